package topic_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/topic"
)

// hold makes the loop of a partition's leader wait until it is released.
func hold(t *testing.T, g *raftlog.Group) (release func()) {
	held, gate := make(chan struct{}), make(chan struct{})
	require.True(t, g.OnTurn(func() { close(held); <-gate }))
	<-held
	return func() { close(gate) }
}

// counted is a context of a kind that cannot be compared. It counts who wants to
// hear of its end, and denies it once if it is told to.
type counted struct {
	context.Context
	asked  []atomic.Int32
	denies *atomic.Bool
}

func (c counted) AfterFunc(f func()) func() bool {
	c.asked[0].Add(1)
	return context.AfterFunc(c.Context, f)
}

func (c counted) Value(any) any { return nil } // so that AfterFunc is what is asked

func (c counted) Err() error {
	if c.denies.CompareAndSwap(true, false) {
		return nil
	}
	return c.Context.Err()
}

func countedContext(parent context.Context) (counted, context.CancelFunc) {
	ctx, cancel := context.WithCancel(parent)
	return counted{Context: ctx, asked: make([]atomic.Int32, 1), denies: new(atomic.Bool)}, cancel
}

// TestCallsOfAContextEndWithIt, those of others do not, and a context is asked
// once for all its calls.
//
// Property: L4 (red: a call that came when its context had just ended was never told)
func TestCallsOfAContextEndWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 3, 1)
		orders := c.create("orders", 1)
		n := c.leader("orders", 0)
		group := n.topics.Group(orders.Incarnation, 0)
		p := producer(t, n, topic.ProducerConfig{MaxInFlight: 1})
		_, err := p.Produce(t.Context(), "orders", record("kept")) // and finds the topic
		require.NoError(t, err)
		stays, cancel := countedContext(t.Context())
		defer cancel()
		ends, end := countedContext(t.Context())
		defer end()
		told := make(chan error, 1000)
		kept := 1
		produce := func(ctx context.Context, value string) {
			p.ProduceAsync(ctx, "orders", record(value), func(_ topic.Position, err error) { told <- err })
		}
		for range 20 { // one after the other
			produce(stays, "kept")
			require.NoError(t, <-told)
			kept++
		}
		require.EqualValues(t, 1, stays.asked[0].Load())

		release := hold(t, group)
		for range 10 {
			produce(stays, "kept")
			produce(ends, "gone")
			kept++
		}
		end()
		for range 10 {
			err := <-told
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, err, raftlog.ErrRetry, "it was not sent")
		}
		release()
		for range 10 {
			require.NoError(t, <-told)
		}
		require.EqualValues(t, 1, ends.asked[0].Load())
		require.EqualValues(t, 1, stays.asked[0].Load())

		late, end := countedContext(t.Context())
		produce(late, "kept")
		require.NoError(t, <-told)
		kept++
		end()
		synctest.Wait()
		late.denies.Store(true)
		release = hold(t, group)
		produce(late, "gone")
		require.ErrorIs(t, <-told, context.Canceled)
		release()
		require.Len(t, n.dump("orders", 0), kept)
		require.NotContains(t, n.dump("orders", 0), "gone")

		c.isolate(n.id, true)
		sent, end := countedContext(t.Context())
		produce(sent, "sent")
		produce(stays, "kept")
		synctest.Wait()
		end()
		require.ErrorIs(t, <-told, raftlog.ErrOutcomeUnknown)
		c.isolate(n.id, false)
		require.NoError(t, <-told)
		require.NoError(t, p.Flush(t.Context()))
		require.Empty(t, told)
	})
}

// TestProduceToAsync: to the partition that was named, whatever the key says.
func TestProduceToAsync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 3, 1)
		c.create("orders", 3)
		n := c.node(1)
		p := producer(t, n, topic.ProducerConfig{})
		type answer struct {
			at  topic.Position
			err error
		}
		told := make(chan answer, 10)
		produce := func(partition uint32) {
			p.ProduceToAsync(t.Context(), "orders", partition, topic.Record{Key: []byte("k"), Value: []byte("v")}, func(at topic.Position, err error) { told <- answer{at, err} })
		}
		for i := range uint32(3) {
			produce(i)
			require.Equal(t, answer{at: topic.Position{Partition: i}}, <-told)
		}
		produce(3)
		require.Len(t, told, 1, "what is not accepted is told at once")
		a := <-told
		var none *topic.NoPartitionError
		require.ErrorAs(t, a.err, &none)
		require.Equal(t, topic.Position{Partition: 3, Offset: topic.NoOffset}, a.at)
		p.ProduceToAsync(t.Context(), "orders", 0, record("v"), nil)
		require.NoError(t, p.Flush(t.Context()))
		require.Len(t, n.dump("orders", 0), 2)
	})
}
