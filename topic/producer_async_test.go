package topic_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

// answers are callbacks that check their order.
type answers struct {
	t     *testing.T
	asked int
	told  atomic.Int64
	inUse atomic.Bool
	last  storage.Offset
	errs  int
}

func (a *answers) next(wait time.Duration) func(topic.Position, error) {
	n := a.asked
	a.asked++
	return func(at topic.Position, err error) {
		assert := func(ok bool, format string, args ...any) {
			if !ok {
				a.t.Errorf(format, args...)
			}
		}
		assert(!a.inUse.Swap(true), "callback %d runs beside another one", n)
		pass(wait)
		assert(int(a.told.Add(1)) == n+1, "callback %d overtook another one", n)
		if err == nil {
			assert(a.errs > 0 && at.Offset == 0 || at.Offset >= a.last, "offset %d after %d", at.Offset, a.last)
			a.last = at.Offset
		} else {
			a.errs++
		}
		a.inUse.Store(false)
	}
}

// Property: P6 (red: callbacks called by whoever brought the answer)
func TestCallbacksOfAPartitionKeepTheirOrder(t *testing.T) {
	for _, from := range []string{"the leader", "a follower", "a node without a replica"} {
		t.Run(from, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rng := rand.New(rand.NewPCG(1, 1))
				c := newCluster(t, 4, 1)
				c.config = func(cfg *topic.Config) { cfg.CallTimeout = 2 * time.Second }
				c.startAll()
				made, err := c.node(1).topics.CreateTopic(t.Context(), "orders", metastore.TopicConfig{Partitions: 1, Replicas: 3})
				require.NoError(t, err)
				leader := c.leader("orders", 0)
				n := map[string]*node{"the leader": leader, "a follower": c.follower(made.Partitions[0], leader), "a node without a replica": c.outside(made.Partitions[0])}[from]
				p := producer(t, n, topic.ProducerConfig{MaxInFlight: 5, MaxBatchBytes: 1 << 10})
				a := &answers{t: t}
				c.mu.Lock()
				c.loss = 0.1
				c.mu.Unlock()
				for i := range 600 {
					p.ProduceAsync(t.Context(), "orders", record(fmt.Sprint(i)), a.next(time.Duration(rng.IntN(4))*time.Millisecond))
					if i%7 == 0 {
						pass(time.Duration(rng.IntN(5)) * time.Millisecond)
					}
					if i%200 == 100 {
						lead := c.leader("orders", 0).id
						c.isolate(lead, true)
						pass(time.Duration(rng.IntN(3)) * time.Second)
						c.isolate(lead, false)
					}
				}
				require.NoError(t, p.Close(t.Context()))
				require.EqualValues(t, 600, a.told.Load(), "Close waits for callbacks")
			})
		})
	}
}

// TestAnExpiredRecordIsNotToldOfBeforeThoseAhead: they are in doubt as long as
// there is no leader, and what waits behind them is certainly not appended.
//
// Property: P6 (red: what expired was told so beside what was in doubt)
func TestAnExpiredRecordIsNotToldOfBeforeThoseAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		c.config = func(cfg *topic.Config) { cfg.CallTimeout = time.Second }
		c.startAll()
		c.create("orders", 1)
		leader := c.leader("orders", 0)
		p := producer(t, leader, topic.ProducerConfig{MaxInFlight: 1})
		_, err := p.Produce(t.Context(), "orders", record("first"))
		require.NoError(t, err)
		c.isolate(leader.id, true)
		a := &answers{t: t}
		for range 3 { // one is on its way, two wait
			p.ProduceAsync(t.Context(), "orders", record("async"), a.next(0))
			synctest.Wait()
		}
		_, err = p.Produce(t.Context(), "orders", record("never"))
		require.ErrorIs(t, err, raftlog.ErrRetry, "one that waits is told")
		pass(5 * time.Second)
		require.Zero(t, a.told.Load())
		hurried, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		gone := make(chan error, 1)
		p.ProduceAsync(hurried, "orders", record("never"), func(_ topic.Position, err error) { gone <- err })
		require.ErrorIs(t, <-gone, context.DeadlineExceeded, "and one whose context ended")
		c.isolate(leader.id, false)
		require.NoError(t, p.Flush(t.Context()))
		require.EqualValues(t, 3, a.told.Load())
		require.NotContains(t, c.running()[0].dump("orders", 0), "never")
	})
}

// TestCallbacksMayProduce: with a full buffer, which others fill as well.
//
// Property: L4 (red: callbacks called in the goroutine of the answer)
func TestCallbacksMayProduce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 3, 1)
		c.create("orders", 2)
		for _, n := range c.running() {
			p := producer(t, n, topic.ProducerConfig{MaxBufferedBytes: 1 << 10})
			ended := make(chan error)
			var chain func(left int) func(topic.Position, error)
			chain = func(left int) func(topic.Position, error) {
				return func(_ topic.Position, err error) {
					if left == 0 || err != nil {
						ended <- err
						return
					}
					p.ProduceAsync(t.Context(), "orders", topic.Record{Key: keyFor(uint32(left%2), 2), Value: make([]byte, 300)}, chain(left-1))
				}
			}
			const chains = 8
			for range chains {
				go p.ProduceAsync(t.Context(), "orders", topic.Record{Value: make([]byte, 300)}, chain(50))
			}
			for range chains {
				require.NoError(t, <-ended)
			}
			require.NoError(t, p.Close(t.Context()))
		}
	})
}

// TestFlushWaitsForWhatCameBefore and for nothing else.
//
// Property: P6 (red: a mark passed those that it was behind; red: Flush waited until the buffer was empty)
func TestFlushWaitsForWhatCameBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 3, 1)
		c.create("orders", 4)
		for _, n := range c.running() {
			p := producer(t, n, topic.ProducerConfig{})
			require.NoError(t, p.Flush(t.Context()), "of nothing")
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan bool)
			go func() { // one that never pauses
				defer close(ended)
				for ctx.Err() == nil {
					p.ProduceAsync(t.Context(), "orders", topic.Record{Value: make([]byte, 700)}, nil)
					pass(500 * time.Microsecond)
				}
			}()
			for range 20 {
				var told atomic.Int64
				for i := range 40 {
					p.ProduceAsync(t.Context(), "orders", topic.Record{Key: keyFor(uint32(i%4), 4), Value: make([]byte, 100)}, func(_ topic.Position, err error) {
						pass(time.Millisecond)
						told.Add(1)
					})
				}
				require.NoError(t, p.Flush(t.Context()))
				require.EqualValues(t, 40, told.Load())
			}
			stop()
			<-ended
			require.NoError(t, p.Close(t.Context()))
			require.NoError(t, p.Flush(t.Context()), "of what was closed: all is answered")
		}
		// Without a quorum it ends with its context; calls that give up do not
		// hold it up, nor are those before it told twice.
		n := c.node(1)
		p := producer(t, n, topic.ProducerConfig{})
		_, err := p.ProduceTo(t.Context(), "orders", 0, record("first"))
		require.NoError(t, err)
		c.isolate(1, true)
		pass(3 * time.Second)
		impatient, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		var told atomic.Int64
		for range 10 {
			p.ProduceAsync(impatient, "orders", topic.Record{Key: keyFor(0, 4)}, func(topic.Position, error) { told.Add(1) })
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err = p.Flush(short)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		oneOutcome(t, err)
		require.Zero(t, told.Load())
		require.NoError(t, p.Flush(t.Context()))
		require.EqualValues(t, 10, told.Load())
		c.isolate(1, false)
	})
}

// TestFailWhenFull: with a typed error, and without waiting.
func TestFailWhenFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 3, 1)
		c.create("orders", 1)
		p := producer(t, c.node(1), topic.ProducerConfig{MaxBufferedBytes: 1 << 10, FailWhenFull: true})
		c.isolate(1, true)
		pass(3 * time.Second)
		answered := make(chan error, 1)
		p.ProduceAsync(t.Context(), "orders", topic.Record{Value: make([]byte, 900)}, func(_ topic.Position, err error) { answered <- err })
		begun := time.Now()
		for _, produce := range []func() error{
			func() error {
				_, err := p.Produce(t.Context(), "orders", topic.Record{Value: make([]byte, 200)})
				return err
			},
			func() (err error) {
				p.ProduceAsync(t.Context(), "orders", topic.Record{Value: make([]byte, 200)}, func(_ topic.Position, e error) { err = e })
				return err
			},
		} {
			err := produce()
			var full *topic.BufferFullError
			require.ErrorAs(t, err, &full)
			require.Equal(t, topic.BufferFullError{Size: 240, Used: 940, Max: 1024}, *full)
			require.ErrorIs(t, err, raftlog.ErrRetry)
			oneOutcome(t, err)
			saysWhere(t, err, "orders/0", "240", "940", "1024", "MaxBufferedBytes")
		}
		require.Zero(t, time.Since(begun))
		p.ProduceAsync(t.Context(), "orders", topic.Record{Value: make([]byte, 30)}, func(_ topic.Position, err error) { answered <- err })
		require.Empty(t, answered, "a small one has room, and waits for its leader")
		c.isolate(1, false)
		require.NoError(t, <-answered)
		require.NoError(t, <-answered)
	})
}

// TestLargeCallsAreNotOvertakenForEver: room is given in the order of the calls.
//
// Property: L4 (red: whoever found room took it)
func TestLargeCallsAreNotOvertakenForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 3, 1)
		c.create("orders", 1)
		p := producer(t, c.node(1), topic.ProducerConfig{MaxBufferedBytes: 4 << 10})
		_, err := p.Produce(t.Context(), "orders", record("first"))
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		for range 8 {
			go func() {
				for ctx.Err() == nil {
					_, _ = p.Produce(t.Context(), "orders", topic.Record{Value: make([]byte, 900)})
				}
			}()
		}
		pass(50 * time.Millisecond)
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = p.Produce(short, "orders", topic.Record{Value: make([]byte, 100<<10)})
		require.NoError(t, err)
		given, cancel := context.WithCancel(t.Context())
		go p.Produce(given, "orders", topic.Record{Value: make([]byte, 100<<10)})
		pass(time.Millisecond)
		cancel() // what gives up does not hold up those behind it
		_, err = p.Produce(short, "orders", topic.Record{Value: make([]byte, 100<<10)})
		require.NoError(t, err)
		stop()
		require.NoError(t, p.Close(t.Context()))
	})
}

// TestCallbacksThatEndTheirGoroutine harm nobody: a failed assertion does so.
//
// Property: L4 (red: the next callbacks were never called)
func TestCallbacksThatEndTheirGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 1, 1)
		c.create("orders", 1)
		p := producer(t, c.node(1), topic.ProducerConfig{})
		var told atomic.Int64
		for range 100 {
			p.ProduceAsync(t.Context(), "orders", record("x"), func(topic.Position, error) {
				told.Add(1)
				runtime.Goexit()
			})
		}
		require.NoError(t, p.Close(t.Context()))
		require.EqualValues(t, 100, told.Load())
	})
}

// TestCloseWaitsForCallbacks: as long as its context says, and the manager's
// does without limit.
//
// Property: L2 (red: the manager was closed while a callback ran)
func TestCloseWaitsForCallbacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 1, 1)
		c.create("orders", 1)
		p := producer(t, c.node(1), topic.ProducerConfig{})
		var told atomic.Bool
		p.ProduceAsync(t.Context(), "orders", record("x"), func(topic.Position, error) {
			pass(5 * time.Second)
			told.Store(true)
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := p.Close(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		oneOutcome(t, err)
		require.False(t, told.Load())
		require.NoError(t, c.node(1).topics.Close())
		require.True(t, told.Load())
		require.NoError(t, p.Close(t.Context()))
	})
}
