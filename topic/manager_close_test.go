package topic_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/topic"
)

// calls are all ways into a node's topics, but for those of its own.
func calls(n *node, p *topic.Producer, r *topic.Reader) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"produce":    func(ctx context.Context) error { _, err := p.Produce(ctx, "orders", record("x")); return err },
		"produce to": func(ctx context.Context) error { _, err := p.ProduceTo(ctx, "orders", 0, record("x")); return err },
		"produce async": func(ctx context.Context) error {
			done := make(chan error, 1)
			p.ProduceAsync(ctx, "orders", record("x"), func(_ topic.Position, err error) { done <- err })
			return <-done
		},
		"flush": func(ctx context.Context) error { return p.Flush(ctx) },
		"fetch": func(ctx context.Context) error { _, err := r.Fetch(ctx, 1); return err },
		"records": func(ctx context.Context) (err error) {
			for _, err = range r.Records(ctx) {
				return err
			}
			return nil
		},
		"open": func(ctx context.Context) error {
			_, err := n.topics.NewReader(ctx, at("orders", 0), topic.FromStart())
			return err
		},
		"create": func(ctx context.Context) error {
			_, err := n.topics.CreateTopic(ctx, "more", metastore.TopicConfig{})
			return err
		},
		"delete":   func(ctx context.Context) error { return n.topics.DeleteTopic(ctx, "orders") },
		"describe": func(ctx context.Context) error { _, err := n.topics.DescribeTopic(ctx, "orders"); return err },
		"list":     func(ctx context.Context) error { _, err := n.topics.ListTopics(ctx); return err },
	}
}

// startCalls makes a topic with one record, and a producer and reader of it.
func startCalls(t *testing.T) (*cluster, *node, map[string]func(context.Context) error) {
	c := startCluster(t, 3, 1)
	c.create("orders", 1)
	n := c.node(2)
	p := producer(t, n, topic.ProducerConfig{})
	_, err := p.Produce(t.Context(), "orders", record("first"))
	require.NoError(t, err)
	r, err := n.topics.NewReader(t.Context(), at("orders", 0), topic.FromStart())
	require.NoError(t, err)
	t.Cleanup(r.Close)
	return c, n, calls(n, p, r)
}

func TestAContextThatHasEndedDoesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, n, calls := startCalls(t)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
		defer cancel()
		for name, call := range calls {
			for _, ctx := range []context.Context{ended, late} {
				begun := time.Now()
				err := call(ctx)
				require.ErrorIs(t, err, ctx.Err(), name)
				require.ErrorIs(t, err, raftlog.ErrRetry, name)
				oneOutcome(t, err)
				require.Zero(t, time.Since(begun), name)
			}
		}
		pass(10 * time.Second)
		all, err := n.topics.ListTopics(t.Context())
		require.NoError(t, err)
		require.Len(t, all, 1)
		require.Equal(t, metastore.TopicActive, all[0].State)
		require.Equal(t, []string{"first"}, c.node(1).dump("orders", 0))
	})
}

func TestCallsOfWhatIsClosedSaySo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, n, calls := startCalls(t)
		require.NoError(t, n.topics.Close())
		calls["new producer"] = func(context.Context) error { _, err := n.topics.NewProducer(topic.ProducerConfig{}); return err }
		for name, call := range calls {
			err := call(t.Context())
			require.ErrorIs(t, err, topic.ErrClosed, name)
			require.ErrorIs(t, err, raftlog.ErrClosed, name)
			require.NotErrorIs(t, err, context.Canceled, name) // the caller's has not ended
			require.ErrorIs(t, err, raftlog.ErrRetry, name)
			oneOutcome(t, err)
		}
	})
}

// TestCallsThatWaitEndWithTheManager: whatever they wait for.
//
// Property: P9 (red: a call that was not sent got the outcome of one that was)
func TestCallsThatWaitEndWithTheManager(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, n, calls := startCalls(t)
		require.NoError(t, calls["fetch"](t.Context()))
		c.isolate(n.id, true)
		pass(5 * time.Second)
		delete(calls, "records") // a reader is for one goroutine
		delete(calls, "describe")
		delete(calls, "flush") // all is answered then
		delete(calls, "open")  // it may read what was shown here
		errs := map[string]chan error{}
		for name, call := range calls {
			ended := make(chan error, 1)
			go func() { ended <- call(t.Context()) }()
			errs[name] = ended
		}
		pass(time.Second)
		require.NoError(t, n.topics.Close())
		for name, err := range errs {
			err := <-err
			require.ErrorIs(t, err, topic.ErrClosed, name)
			require.ErrorIs(t, err, raftlog.ErrClosed, name)
			require.NotErrorIs(t, err, context.Canceled, name)
			oneOutcome(t, err)
		}
	})
}
