package stele_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
	"github.com/stelelog/stele/metastore"
)

// On whole nodes, which lose power in the grace: a topic is deleted with the grace of
// the node's configuration, brought back, deleted again and gone when that is over.
// All nodes tell so, and count it meanwhile.
//
// Property: I11, I4, L2, S1 (red: Config.DeleteGrace reached nobody; that a topic was brought back was told at the wrong change)
func TestATopicIsDeletedWithAGrace(t *testing.T) {
	registries := map[string]*prometheus.Registry{}
	diaries, opts := withDiaries(3, func(cfg *stele.Config) {
		events := cfg.Events
		diary := events.TopicDeleted
		cfg.DeleteGrace = 40 * time.Second
		cfg.Events.TopicRetired = func(s stele.Topic) { s.Name = "retired " + s.Name; diary(s) }
		cfg.Events.TopicUndeleted = func(s stele.Topic) { s.Name = "undeleted " + s.Name; diary(s) }
		registries[cfg.Name] = prometheus.NewRegistry()
		cfg.Metrics = registries[cfg.Name]
	})
	testcluster.Run(t, opts, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		c.Eventually(func() bool { return version(c, 0) == metastore.NewestVersion }, "the version is raised")
		mustCreate(c, 0, "orders", 2)
		top, err := c.Node(0).DescribeTopic(t.Context(), "orders")
		require.NoError(t, err)
		retired := func(want float64) func() bool {
			return func() bool {
				for name, r := range registries {
					if gauge(t, r, "stele_topics_retired", name) != want {
						return false
					}
				}
				return true
			}
		}
		produce := func(value string) {
			p, err := c.Node(1).NewProducer(stele.ProducerConfig{})
			require.NoError(t, err)
			_, err = p.ProduceTo(t.Context(), "orders", 0, stele.Record{Value: []byte(value)})
			require.NoError(t, err)
			require.NoError(t, p.Close(t.Context()))
		}
		produce("old")
		require.NoError(t, c.Node(0).DeleteTopic(t.Context(), "orders"))
		c.Eventually(retired(1), "it is counted")
		_, err = c.Node(1).NewReader(t.Context(), stele.TopicPartition{Topic: "orders"}, stele.FromStart())
		var refused *stele.TopicRetiredError
		require.ErrorAs(t, err, &refused)
		require.Equal(t, 40*time.Second, refused.Until.Time().Sub(refused.At.Time()))
		c.PowerLossAll()
		c.StartAll()
		c.WaitReady()
		back, err := c.Node(2).UndeleteTopic(t.Context(), "orders")
		require.NoError(t, err)
		require.Equal(t, top.Incarnation, back.Incarnation)
		require.Equal(t, stele.TopicActive, back.State)
		produce("new")
		r, err := c.Node(0).NewReader(t.Context(), stele.TopicPartition{Topic: "orders"}, stele.FromStart())
		require.NoError(t, err)
		for record, err := range r.Records(t.Context()) {
			require.NoError(t, err)
			require.Equal(t, []string{"old", "new"}[record.Offset], string(record.Value))
			if record.Offset == 1 {
				break
			}
		}
		r.Close()
		c.Eventually(retired(0), "it is not counted any more")
		require.NoError(t, c.Node(0).DeleteTopic(t.Context(), "orders", stele.WithGrace(5*time.Second)))
		c.Eventually(func() bool { return len(c.Node(1).Topics()) == 0 }, "it is gone when its grace is over")
		_, err = c.Node(1).UndeleteTopic(t.Context(), "orders")
		require.ErrorIs(t, err, stele.ErrTopicNotFound)
		for name, d := range diaries {
			c.Eventually(d.has("deleted orders"), name)
			require.Less(t, d.index("deleted retired orders"), d.index("deleted undeleted orders"), name)
			require.Less(t, d.index("deleted undeleted orders"), d.index("deleted orders"), name)
		}
		mustCreate(c, 2, "orders", 1)
	})
}
