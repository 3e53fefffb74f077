package topic_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/topic"
)

// saysWhere checks that an error says of what it is, and not in numbers that
// only stele knows.
func saysWhere(t *testing.T, err error, texts ...string) {
	t.Helper()
	require.Error(t, err)
	for _, text := range texts {
		require.Contains(t, err.Error(), text)
	}
	require.NotRegexp(t, `\bg\d+\b|raftlog: closed|\n|topic: .*topic: `, err.Error())
}

func TestErrorsSayWhatTheyAreAbout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 3, 1)
		c.create("orders", 4)
		n := c.node(1)
		p := producer(t, n, topic.ProducerConfig{})
		at3 := at("orders", 3)
		r, err := n.topics.NewReader(t.Context(), at3, topic.FromEnd())
		require.NoError(t, err)
		defer r.Close()
		require.Equal(t, "orders/3", fmt.Sprint(r))
		short := func() context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			t.Cleanup(cancel)
			return ctx
		}
		_, err = r.Fetch(short(), 1)
		require.EqualError(t, err, "topic: read orders/3 from offset 0 on: context deadline exceeded")
		for _, err = range r.Records(short()) {
			saysWhere(t, err, "orders/3", "deadline exceeded")
		}
		_, err = p.ProduceTo(t.Context(), "orders", 3, record("small"), topic.Record{Value: make([]byte, topic.MaxRecordSize+1)})
		saysWhere(t, err, "orders/3", "record 1 of the call")
		_, err = p.Produce(t.Context(), "orders", topic.Record{Value: make([]byte, topic.MaxRecordSize+1)})
		saysWhere(t, err, "orders", "record 0 of the call")
		_, err = n.topics.NewReader(t.Context(), at3, topic.FromOffset(9))
		saysWhere(t, err, "orders/3", "offset 9", "[0, 0)")

		others := c.running()[1:]
		for _, n := range others {
			c.isolate(n.id, true)
		}
		pass(5 * time.Second)
		for name, f := range map[string]func(context.Context) error{
			"open a reader of orders/3": func(ctx context.Context) error {
				_, err := n.topics.NewReader(ctx, at3, topic.FromEnd())
				return err
			},
			`delete "orders"`: func(ctx context.Context) error { return n.topics.DeleteTopic(ctx, "orders") },
			`create "more"`: func(ctx context.Context) error {
				_, err := n.topics.CreateTopic(ctx, "more", metastore.TopicConfig{})
				return err
			},
			"list topics":     func(ctx context.Context) error { _, err := n.topics.ListTopics(ctx); return err },
			`describe "none"`: func(ctx context.Context) error { _, err := n.topics.DescribeTopic(ctx, "none"); return err },
			`produce to "none"`: func(ctx context.Context) error {
				_, err := p.Produce(ctx, "none", record("x"))
				return err
			},
			"records for orders/3": func(ctx context.Context) error {
				_, err := p.ProduceTo(ctx, "orders", 3, record("x"))
				return err
			},
		} {
			saysWhere(t, f(short()), name, "deadline exceeded")
		}
		_, err = n.topics.ListTopics(t.Context())
		saysWhere(t, err, "list topics", "the metadata group has no leader")
		_, err = n.topics.CreateTopic(t.Context(), "more", metastore.TopicConfig{})
		saysWhere(t, err, `create "more"`, "the metadata group has no leader")
		_, err = p.ProduceTo(t.Context(), "orders", 3, record("x"))
		saysWhere(t, err, "orders/3", "identity", "the metadata group has no leader")
		require.ErrorIs(t, err, metastore.ErrUnavailable)
		for _, n := range others {
			c.isolate(n.id, false)
		}
		require.NoError(t, n.topics.DeleteTopic(t.Context(), "orders"))
		_, err = r.Fetch(t.Context(), 1)
		saysWhere(t, err, "orders/3", "deleted")
	})
}

// TestNoLeaderIsSaidOfThePartition and not of a number.
func TestNoLeaderIsSaidOfThePartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		c.config = func(cfg *topic.Config) { cfg.CallTimeout = time.Second }
		c.startAll()
		c.create("orders", 1)
		lead := c.leader("orders", 0)
		n := c.running()[int(lead.id)%3]
		p := producer(t, n, topic.ProducerConfig{})
		_, err := p.Produce(t.Context(), "orders", record("first"))
		require.NoError(t, err)
		for _, other := range c.running() {
			if other != n {
				c.crash(other.id, simfs.Strict)
			}
		}
		pass(5 * time.Second)
		_, err = p.Produce(t.Context(), "orders", record("second"))
		require.EqualError(t, err, "topic: no leader of orders/0 took the records: none is known")
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err = p.Produce(ctx, "orders", record("third"))
		saysWhere(t, err, "orders/0", "deadline exceeded", "none is known")
	})
}
