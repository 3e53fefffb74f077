package testcluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
)

// Ledger remembers what a load was told: which record is where. It is safe for
// concurrent use.
type Ledger struct {
	c     *Cluster
	topic string

	mu    sync.Mutex
	acked map[uint32]map[stele.Offset]string
	when  map[uint32][]time.Time // each batch was acknowledged
	tried int
}

// NewLedger starts an empty ledger of a topic.
func (c *Cluster) NewLedger(topic string) *Ledger {
	return &Ledger{c: c, topic: topic, acked: map[uint32]map[stele.Offset]string{}, when: map[uint32][]time.Time{}}
}

// note records acknowledgements that came through member i.
func (l *Ledger) note(i int, positions []stele.Position, values []string) {
	l.c.Acked(i, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		for k, p := range positions {
			if l.acked[p.Partition] == nil {
				l.acked[p.Partition] = map[stele.Offset]string{}
			}
			if before, ok := l.acked[p.Partition][p.Offset]; ok {
				l.c.T.Errorf("partition %d offset %d acknowledged twice: %q and %q", p.Partition, p.Offset, before, values[k])
			}
			l.acked[p.Partition][p.Offset] = values[k]
		}
		l.when[positions[0].Partition] = append(l.when[positions[0].Partition], time.Now())
	})
}

// Acked is how many records were acknowledged.
func (l *Ledger) Acked() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.acked {
		n += len(p)
	}
	return n
}

// Partitions are those of which something was acknowledged.
func (l *Ledger) Partitions() []uint32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Sorted(maps.Keys(l.acked))
}

// Series is how many batches of a partition were acknowledged in each bin of time from
// begin to end.
func (l *Ledger) Series(partition uint32, begin, end time.Time, bin time.Duration) []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	bins := make([]int, end.Sub(begin)/bin)
	for _, at := range l.when[partition] {
		if n := int(at.Sub(begin) / bin); !at.Before(begin) && n < len(bins) {
			bins[n]++
		}
	}
	return bins
}

// Load is a set of producers that go on until Stop.
type Load struct {
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// StartLoad starts so many idempotent producers on each running member. Each
// sends batches of unique records one after the other; one whose node goes down
// ends.
func (l *Ledger) StartLoad(perNode, partitions int, think time.Duration) *Load {
	load := l.newLoad()
	for i := range l.c.Size() {
		if l.c.Node(i) != nil {
			load.on(l, i, perNode, partitions, think)
		}
	}
	return load
}

// StartLoadOn does that on one member, which runs; it waits for the node to be
// ready.
func (l *Ledger) StartLoadOn(i, producers, partitions int, think time.Duration) *Load {
	load := l.newLoad()
	load.on(l, i, producers, partitions, think)
	return load
}

func (l *Ledger) newLoad() *Load {
	load := &Load{}
	load.ctx, load.cancel = context.WithCancel(context.Background())
	l.c.loads = append(l.c.loads, load)
	return load
}

func (load *Load) on(l *Ledger, i, producers, partitions int, think time.Duration) {
	node := l.c.Node(i)
	for k := range producers {
		load.wg.Go(func() {
			if node.WaitReady(load.ctx) == nil {
				l.produce(load.ctx, i, k, node, partitions, think)
			}
		})
	}
}

func (l *Ledger) produce(ctx context.Context, i, k int, node *stele.Node, partitions int, think time.Duration) {
	p, err := node.NewProducer(stele.ProducerConfig{})
	if err != nil {
		return
	}
	defer p.Close(ctx)
	for n := 0; ctx.Err() == nil; n++ {
		l.mu.Lock()
		l.tried++
		id := l.tried
		l.mu.Unlock()
		var records []stele.Record
		var values []string
		for r := range 1 + n%3 {
			v := fmt.Sprintf("%d.%d.%d.%d", i, k, id, r)
			values = append(values, v)
			records = append(records, stele.Record{Value: []byte(v)})
		}
		positions, err := p.ProduceTo(ctx, l.topic, uint32((i+k+n)%partitions), records...)
		switch code := node.Readiness().Code; {
		case err == nil:
			l.note(i, positions, values)
		case code == stele.Closed || code == stele.Removed:
			return
		case !errors.Is(err, stele.ErrRetry) && !errors.Is(err, stele.ErrRefused) && !errors.Is(err, stele.ErrOutcomeUnknown):
			l.c.T.Errorf("an error without an outcome: %v", err)
		}
		timer := time.NewTimer(think)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// Stop ends the producers and waits for them.
func (l *Load) Stop() {
	l.cancel()
	l.wg.Wait()
}

// Verify reads every partition through member i and compares it with the
// ledger: what was acknowledged is where it was said to be, offsets have no
// gap, and no record is there twice.
func (l *Ledger) Verify(i int) {
	t := l.c.T
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	topic, err := l.c.Node(i).DescribeTopic(ctx, l.topic)
	require.NoError(t, err, "seed %d", l.c.opts.Seed)
	seen := map[string]stele.Position{}
	for _, p := range topic.Partitions {
		values := l.c.ReadAll(ctx, i, stele.TopicPartition{Topic: l.topic, Partition: p.Index})
		for o, v := range values {
			if at, ok := seen[v]; ok {
				t.Errorf("seed %d: %q is at %v and again at %d/%d", l.c.opts.Seed, v, at, p.Index, o)
			}
			seen[v] = stele.Position{Partition: p.Index, Offset: stele.Offset(o)}
		}
		for o, v := range l.acked[p.Index] {
			if int(o) >= len(values) {
				t.Errorf("seed %d: acknowledged %q at %d/%d is lost: the partition ends at %d", l.c.opts.Seed, v, p.Index, o, len(values))
			} else if values[o] != v {
				t.Errorf("seed %d: acknowledged %q at %d/%d is %q now", l.c.opts.Seed, v, p.Index, o, values[o])
			}
		}
	}
}

// ReadAll reads a partition through member i from its start to the end that a
// linearizable reader sees now, and checks that offsets have no gap.
func (c *Cluster) ReadAll(ctx context.Context, i int, p stele.TopicPartition) (values []string) {
	c.T.Helper()
	end, err := c.Node(i).NewReader(ctx, p, stele.FromEnd())
	require.NoError(c.T, err, "seed %d", c.opts.Seed)
	last := end.Offset()
	end.Close()
	r, err := c.Node(i).NewReader(ctx, p, stele.FromStart())
	require.NoError(c.T, err, "seed %d", c.opts.Seed)
	defer r.Close()
	for r.Offset() < last {
		view, err := r.Fetch(ctx, 64<<10)
		require.NoError(c.T, err, "seed %d", c.opts.Seed)
		for view.Next() {
			require.Equal(c.T, stele.Offset(len(values)), view.Offset(), "seed %d: %v has a gap", c.opts.Seed, p)
			values = append(values, string(view.Record().Value))
		}
		require.NoError(c.T, view.Err(), "seed %d", c.opts.Seed)
	}
	return values
}
