package stele_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
	"github.com/stelelog/stele/transport"
)

// errorsSeen are the errors of public calls, by outcome.
type errorsSeen struct {
	mu    sync.Mutex
	count map[stele.Outcome]int
	wrong []string
}

// note checks that an error has one outcome and no other.
func (s *errorsSeen) note(call string, err error) {
	if err == nil {
		return
	}
	outcomes := 0
	for _, o := range []error{stele.ErrRetry, stele.ErrRefused, stele.ErrOutcomeUnknown} {
		if errors.Is(err, o) {
			outcomes++
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.count == nil {
		s.count = map[stele.Outcome]int{}
	}
	s.count[stele.OutcomeOf(err)]++
	if outcomes != 1 && len(s.wrong) < 5 {
		s.wrong = append(s.wrong, fmt.Sprintf("%s: %d outcomes: %v", call, outcomes, err))
	}
}

// everyCall makes calls of all kinds on one node until ctx ends, one after the
// other, with contexts that end soon, late or at once.
func (s *errorsSeen) everyCall(ctx context.Context, node *stele.Node, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	p, err := node.NewProducer(stele.ProducerConfig{MaxBufferedBytes: 4 << 10})
	s.note("NewProducer", err)
	r, err := node.NewReader(ctx, stele.TopicPartition{Topic: "orders"}, stele.FromStart())
	s.note("NewReader", err)
	for ctx.Err() == nil {
		call, end := context.WithTimeout(ctx, time.Duration(rng.IntN(1000))*time.Millisecond)
		name := []string{"orders", "some-topic", "no-topic", "bad/name"}[rng.IntN(4)]
		switch rng.IntN(9) {
		case 0:
			_, err := node.CreateTopic(call, "some-topic", stele.TopicConfig{Partitions: uint32(rng.IntN(4)), Replicas: uint32(rng.IntN(5))})
			s.note("CreateTopic", err)
		case 1:
			s.note("DeleteTopic", node.DeleteTopic(call, []string{"some-topic", "no-topic"}[rng.IntN(2)]))
		case 2:
			_, err := node.DescribeTopic(call, name)
			s.note("DescribeTopic", err)
		case 3:
			_, err := node.ListTopics(call)
			s.note("ListTopics", err)
		case 4:
			other, err := node.NewReader(call, stele.TopicPartition{Topic: name, Partition: uint32(rng.IntN(4))}, stele.FromOffset(stele.Offset(rng.IntN(200)-50)))
			s.note("NewReader", err)
			if err == nil {
				other.Close()
			}
		case 5:
			if r != nil {
				_, err := r.Fetch(call, 1<<10)
				s.note("Fetch", err)
			}
		case 6:
			s.note("WaitReady", node.WaitReady(call))
		default:
			if p != nil {
				records := make([]stele.Record, 1+rng.IntN(30))
				for i := range records {
					records[i] = stele.Record{Key: []byte{byte(i)}, Value: make([]byte, 100)}
				}
				_, err := p.Produce(call, name, records...)
				s.note("Produce", err)
			}
		}
		end()
		pause(ctx, time.Duration(1+rng.IntN(20))*time.Millisecond)
	}
	if p != nil {
		ended, end := context.WithCancel(context.Background())
		end()
		s.note("Producer.Close", p.Close(ended))
	}
	if r != nil {
		r.Close()
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// Property: P9 (red: ErrClosed of a closed node without an outcome; what WaitReady says when ctx ends without one)
func TestEveryErrorHasOneOutcome(t *testing.T) {
	var seen errorsSeen
	runs := uint64(6)
	if testing.Short() {
		runs = 1
	}
	for seed := uint64(1); seed <= runs; seed++ {
		faults := transport.Faults{MinLatency: 100 * time.Microsecond, MaxLatency: 5 * time.Millisecond}
		if seed%2 == 0 {
			faults.Loss, faults.Duplicate, faults.Reorder = 0.05, 0.02, 0.1
		}
		config := func(cfg *stele.Config) { cfg.CallTimeout, cfg.UncommittedBytes = 500*time.Millisecond, 64<<10 }
		testcluster.Run(t, testcluster.Options{Seed: seed, Faults: faults, Config: config}, func(c *testcluster.Cluster) {
			rng := rand.New(rand.NewPCG(seed, 1))
			c.StartAll()
			mustCreate(c, 0, "orders", 3)
			ctx, stop := context.WithCancel(context.Background())
			var work sync.WaitGroup
			use := func(i int) {
				node := c.Node(i)
				for range 3 {
					worker := rng.Uint64()
					work.Go(func() { seen.everyCall(ctx, node, worker) })
				}
			}
			for i := range c.Size() {
				use(i)
			}
			for range 6 {
				c.Sleep(time.Duration(200+rng.IntN(2000)) * time.Millisecond)
				i := rng.IntN(c.Size())
				switch rng.IntN(3) {
				case 0:
					c.Isolate(i)
					c.Sleep(time.Duration(rng.IntN(3000)) * time.Millisecond)
					c.Rejoin(i)
				case 1:
					c.PowerLoss(i)
					seen.note("Open", c.Open(i))
					use(i)
				case 2:
					ended, end := context.WithTimeout(ctx, time.Duration(rng.IntN(300))*time.Millisecond)
					seen.note("Close", c.Node(i).Close(ended))
					end()
					c.Kill(i)
					seen.note("Open", c.Open(i))
					use(i)
				}
			}
			stop()
			work.Wait()
		})
	}
	t.Logf("%v", seen.count)
	require.Empty(t, seen.wrong)
	for _, o := range []stele.Outcome{stele.OutcomeRetry, stele.OutcomeRefused, stele.OutcomeUnknown} {
		require.Positive(t, seen.count[o], "%v", o)
	}
}

// Close, twice and at once, at moments from the first to long after the last of
// what a node does first: the calls under way end, all of them with an outcome.
//
// Property: L3, P9 (red: each Close ending the node, not the first alone; ErrClosed of a closed node without an outcome)
func TestCloseDuringEverything(t *testing.T) {
	var seen errorsSeen
	for moment := time.Duration(0); moment < 3*time.Second; moment += 130 * time.Millisecond {
		testcluster.Run(t, testcluster.Options{Seed: uint64(moment)}, func(c *testcluster.Cluster) {
			for i := range c.Size() {
				c.Start(i)
			}
			ctx, stop := context.WithCancel(context.Background())
			var work sync.WaitGroup
			node := c.Node(0)
			for k := range uint64(2) {
				work.Go(func() {
					seen.note("WaitReady", node.WaitReady(ctx))
					if k == 0 {
						_, err := node.CreateTopic(ctx, "orders", stele.TopicConfig{Partitions: 3})
						seen.note("CreateTopic", err)
					}
					seen.everyCall(ctx, node, k)
				})
			}
			c.Sleep(moment)
			var closing sync.WaitGroup
			for range 2 {
				closing.Go(func() { seen.note("Close", node.Close(context.Background())) })
			}
			closing.Wait()
			require.Equal(c.T, stele.Closed, node.Readiness().Code)
			stop()
			work.Wait()
		})
	}
	t.Logf("%v", seen.count)
	require.Empty(t, seen.wrong)
}
