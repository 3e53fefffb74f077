package stele_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
	"github.com/stelelog/stele/metastore"
)

// A topic keeps records for half a minute, on whole nodes: the clocks of the others
// are asked, all replicas begin alike, readers are told, disks get smaller, and
// power losses change none of that.
//
// Property: S9, P2, S1 (red: clocks were not told)
func TestTopicsKeepWhatTheyAreTold(t *testing.T) {
	registry := prometheus.NewRegistry()
	testcluster.Run(t, testcluster.Options{Seed: 71, Config: func(cfg *stele.Config) {
		cfg.SegmentBytes, cfg.Metrics = 64<<10, registry
	}}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		c.Eventually(func() bool { return version(c, 0) == metastore.NewestVersion }, "the version is raised")
		const age = 30 * time.Second
		_, err := c.Node(0).CreateTopic(t.Context(), "orders", stele.TopicConfig{Retention: stele.Retention{Age: age}})
		require.NoError(t, err)
		p, err := c.Node(1).NewProducer(stele.ProducerConfig{})
		require.NoError(t, err)
		defer p.Close(t.Context())
		for i := range 60 {
			_, err := p.Produce(t.Context(), "orders", stele.Record{Value: fmt.Appendf(nil, "%d %s", i, bytes.Repeat([]byte("."), 10_000))})
			require.NoError(t, err)
		}
		orders := func(i int) stele.PartitionStatus {
			for _, s := range c.Node(i).Status().Partitions {
				if s.Topic == "orders" {
					return s
				}
			}
			return stele.PartitionStatus{}
		}
		c.Sleep(age / 2)
		for i := range 3 {
			require.Zero(t, orders(i).Start, "not before")
			require.Greater(t, len(segmentsOf(c, i, "orders")), 5)
		}
		c.Eventually(func() bool { return orders(0).Start > 0 && orders(1).Start > 0 && orders(2).Start > 0 }, "what is older goes")
		start := orders(0).Start
		check := func(i int) {
			t.Helper()
			c.Eventually(func() bool { return orders(i).Readable }, "it can be read")
			require.Equal(t, start, orders(i).Start)
			require.Less(t, orders(i).LogBytes, int64(64<<10))
			_, err := c.Node(i).NewReader(t.Context(), stele.TopicPartition{Topic: "orders"}, stele.FromOffset(0))
			var out *stele.OutOfRangeError
			require.ErrorAs(t, err, &out)
			require.Equal(t, stele.OutcomeRefused, stele.OutcomeOf(err))
			require.Equal(t, start, out.Start)
			r, err := c.Node(i).NewReader(t.Context(), stele.TopicPartition{Topic: "orders"}, stele.FromStart())
			require.NoError(t, err)
			defer r.Close()
			require.Equal(t, start, r.Offset())
			for record, err := range r.Records(t.Context()) {
				require.NoError(t, err)
				require.True(t, bytes.HasPrefix(record.Value, fmt.Appendf(nil, "%d ", record.Offset)))
				if record.Offset == 59 {
					break
				}
			}
		}
		for i := range 3 {
			check(i)
		}
		require.Positive(t, gathered(t, registry, "stele_removed_bytes_total"))
		c.Sleep(3 * time.Minute)
		for i := range 3 {
			require.Len(t, segmentsOf(c, i, "orders"), 1)
		}
		require.Zero(t, gathered(t, registry, "stele_removing_bytes"))

		c.PowerLossAll()
		c.StartAll()
		for i := range 3 {
			check(i)
		}
		got, err := c.Node(2).SetRetention(t.Context(), "orders", stele.Retention{})
		require.NoError(t, err)
		require.True(t, got.Config.Retention.IsZero())
		for i := range 3 {
			c.Close(i)
		}
		require.Equal(t, 60, c.CompareOffline())
	})
}
