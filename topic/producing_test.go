package topic_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

// unsteady is a group that commits what is proposed after a random while, and
// loses its leadership now and then: then some of the proposals are committed
// by the next leader and the others are not, and all end unknown.
type unsteady struct {
	*replica
	history
	rng *rand.Rand
}

func (g *unsteady) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-g.arrived:
		}
		for n := len(g.waiting()); n > 0; n = len(g.waiting()) {
			pause(time.Duration(g.rng.IntN(5)) * time.Millisecond)
			if err := g.step(1 + g.rng.IntN(n)); err != nil {
				return err
			}
		}
	}
}

// step ends the oldest n proposals.
func (g *unsteady) step(n int) error {
	lost := g.rng.IntN(4) == 0
	taken := g.take(n)
	committed := n
	if lost {
		committed = g.rng.IntN(n + 1)
	}
	if g.rng.IntN(3) == 0 {
		if _, err := g.apply([]raftlog.Entry{g.history.commit(storage.EntryNormal, nil)}); err != nil {
			return err
		}
	}
	var entries []raftlog.Entry
	for _, p := range taken[:committed] {
		entries = append(entries, g.history.commit(storage.EntryNormal, p.data))
	}
	var results []raftlog.Result
	if committed > 0 {
		var err error
		if results, err = g.apply(entries); err != nil {
			return err
		}
	}
	for i, p := range taken {
		if lost {
			p.done(raftlog.Proposal{Err: raftlog.Unknown(raftlog.ErrLeadershipLost)})
		} else {
			p.done(raftlog.Proposal{Index: entries[i].Index, Term: 1, Result: results[i]})
		}
	}
	return nil
}

// pause lets virtual time pass.
func pause(d time.Duration) {
	t := clock.System().NewTimer(d)
	<-t.C()
}

// produced is what a producer was told: a value and where it is.
type produced struct {
	mu      sync.Mutex
	offsets map[storage.Offset]string
	order   map[string][]storage.Offset // by producer
}

func (p *produced) note(who string, base storage.Offset, values []string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, v := range values {
		at := base + storage.Offset(i)
		if other, taken := p.offsets[at]; taken {
			return fmt.Errorf("offset %d given to %q and %q", at, other, v)
		}
		p.offsets[at] = v
		p.order[who] = append(p.order[who], at)
	}
	return nil
}

// produce appends batches of numbered records one after the other, up to
// RememberedBatches in flight, and repeats each as it was until its outcome is
// known. An anonymous one does not repeat.
func produce(r *replica, id topic.ProducerID, who string, rng *rand.Rand, told *produced) error {
	type sent struct {
		batch  topic.ProducerBatch
		values []string
		ack    chan topic.Ack
	}
	send := func(s *sent) error {
		var records []topic.Record
		for _, v := range s.values {
			records = append(records, topic.Record{Value: []byte(v)})
		}
		return r.partition.Append(s.batch, records, func(a topic.Ack) { s.ack <- a })
	}
	for number := 0; number < 40; {
		var flight []*sent
		for range 1 + rng.IntN(topic.RememberedBatches) {
			s := &sent{ack: make(chan topic.Ack, 1)}
			if id != 0 {
				s.batch = topic.ProducerBatch{ID: id, First: topic.Sequence(number)}
			}
			for range 1 + rng.IntN(3) {
				s.values = append(s.values, who+" "+strconv.Itoa(number))
				number++
			}
			if err := send(s); err != nil {
				return err
			}
			flight = append(flight, s)
			pause(time.Duration(rng.IntN(3)) * time.Millisecond)
		}
		for _, s := range flight {
			a := <-s.ack
			for tries := 0; id != 0 && a.Err != nil; tries++ {
				if raftlog.OutcomeOf(a.Err) == raftlog.OutcomeRefused || tries == 1000 {
					return a.Err
				}
				if err := send(s); err != nil {
					return err
				}
				a = <-s.ack
			}
			if a.Err != nil {
				continue
			}
			if a.Count != len(s.values) {
				return fmt.Errorf("%d records became %d", len(s.values), a.Count)
			}
			if err := told.note(who, a.Base, s.values); err != nil {
				return err
			}
		}
	}
	return nil
}

// Property: P1, P4, P5, P6 (red: records of a call joined to the wrong place of the batch; red: queued entries proposed out of order; red: gaps let in at apply; real fail-over: TestNodesFailUnderLoad)
func TestProducersOverAnUnsteadyGroup(t *testing.T) {
	for seed := range seeds(30) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { runUnsteady(t, uint64(seed)) })
		})
	}
}

func runUnsteady(t *testing.T, seed uint64) {
	cfg := topic.PartitionConfig{MaxInFlight: 1 + int(seed%7), Codec: topic.Codec(seed % 3)}
	g := &unsteady{replica: open(t, cfg), rng: rand.New(rand.NewPCG(seed, 2))}
	g.arrived = make(chan struct{}, 1)
	told := &produced{offsets: map[storage.Offset]string{}, order: map[string][]storage.Offset{}}
	ctx, cancel := context.WithCancel(t.Context())
	var producers, group sync.WaitGroup
	var failed [2]error
	group.Go(func() { failed[0] = g.run(ctx) })
	var mu sync.Mutex
	for i := range 12 {
		id := topic.ProducerID(max(0, i-5))
		rng := rand.New(rand.NewPCG(seed, uint64(100+i)))
		producers.Go(func() {
			err := produce(g.replica, id, fmt.Sprint("producer ", i), rng, told)
			mu.Lock()
			defer mu.Unlock()
			failed[1] = errors.Join(failed[1], err)
		})
	}
	producers.Wait()
	cancel()
	group.Wait()
	require.NoError(t, errors.Join(failed[:]...))

	all, err := g.readAll(1)
	require.NoError(t, err)
	seen := map[string]int{}
	for i, r := range all {
		require.Equal(t, storage.Offset(i), r.offset)
		if want, ok := told.offsets[r.offset]; ok {
			require.Equal(t, want, string(r.Value))
		}
		seen[string(r.Value)]++
	}
	for i := range 12 {
		who := fmt.Sprint("producer ", i)
		require.IsIncreasing(t, append([]storage.Offset{-1}, told.order[who]...))
		for n := 0; i > 5 && n < len(told.order[who]); n++ {
			require.Equal(t, 1, seen[who+" "+strconv.Itoa(n)], "once and no more")
		}
	}
	for v, n := range seen {
		require.Equal(t, 1, n, v)
	}
}
