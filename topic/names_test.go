package topic_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/topic"
)

// TestNamesThatNoTopicHas are refused as such, wherever they are given.
func TestNamesThatNoTopicHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 1, 1)
		n := c.node(1)
		p := producer(t, n, topic.ProducerConfig{})
		for _, name := range []string{"", ".", "..", "a b", "a/b", "é", strings.Repeat("x", 180)} {
			var want, got *metastore.InvalidError
			_, err := n.topics.CreateTopic(t.Context(), name, metastore.TopicConfig{})
			require.ErrorAs(t, err, &want)
			for what, f := range map[string]func() error{
				"produce": func() error { _, err := p.Produce(t.Context(), name, record("x")); return err },
				"delete":  func() error { return n.topics.DeleteTopic(t.Context(), name) },
				"describe": func() error {
					_, err := n.topics.DescribeTopic(t.Context(), name)
					return err
				},
				"read": func() error {
					_, err := n.topics.NewReader(t.Context(), at(name, 0), topic.FromStart())
					return err
				},
			} {
				err := f()
				require.ErrorAs(t, err, &got, "%s %q", what, name)
				require.Equal(t, want, got)
				require.NotErrorIs(t, err, metastore.ErrTopicNotFound)
				require.ErrorIs(t, err, raftlog.ErrRefused)
				oneOutcome(t, err)
			}
		}
		// Names are told apart by their case, but for two topics at once.
		c.create("orders", 1)
		_, err := p.Produce(t.Context(), "Orders", record("x"))
		require.ErrorIs(t, err, metastore.ErrTopicNotFound)
		_, err = n.topics.CreateTopic(t.Context(), "Orders", metastore.TopicConfig{})
		require.ErrorIs(t, err, metastore.ErrTopicExists)
	})
}
