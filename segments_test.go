package stele_test

import (
	"context"
	"path"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
)

// segmentsOf returns the names of the files of a topic's first partition on member
// i, which say where its segments begin.
func segmentsOf(c *testcluster.Cluster, i int, topic string) (names []string) {
	fs, root := c.Member(i).FS, "/"+testcluster.Dir+"/topics"
	topics, err := fs.List(root)
	require.NoError(c.T, err)
	for _, dir := range topics {
		if ok, _ := path.Match(topic+"@*", dir); !ok {
			continue
		}
		replicas, err := fs.List(root + "/" + dir)
		require.NoError(c.T, err)
		for _, replica := range replicas {
			if ok, _ := path.Match("0.*", replica); !ok {
				continue
			}
			files, err := fs.List(root + "/" + dir + "/" + replica)
			require.NoError(c.T, err)
			for _, f := range files {
				if path.Ext(f) == ".seg" {
					names = append(names, f)
				}
			}
		}
	}
	return names
}

// Segments are cut alike on all nodes of a cluster. A node that would join with
// another size ends, before anything of it is there, and says both; without one
// it takes the cluster's, for good.
func TestAJoinerHasTheSegmentsOfItsCluster(t *testing.T) {
	given := int64(128 << 10)
	testcluster.Run(t, testcluster.Options{Seed: 61, Config: func(cfg *stele.Config) {
		if cfg.Name == "node-4" {
			cfg.SegmentBytes = given
		}
	}}, func(c *testcluster.Cluster) {
		t := c.T
		refused := func(err error, says string) {
			t.Helper()
			var bad *stele.ConfigError
			require.ErrorAs(t, err, &bad)
			require.Equal(t, "SegmentBytes", bad.Field)
			require.ErrorContains(t, err, says)
			require.Equal(t, stele.OutcomeRefused, stele.OutcomeOf(err))
		}
		c.StartAll()
		c.Sleep(5 * time.Second) // the cluster's version is raised
		fourth := c.Add()
		c.Start(fourth)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		refused(c.Node(fourth).WaitReady(ctx), "Config.SegmentBytes = 131072: want 65536, which the cluster has")
		require.Len(t, c.Node(0).Members(), 3, "nothing was recorded of it")
		c.Close(fourth)

		given = 0
		c.Start(fourth)
		c.WaitReady()
		_, err := c.Node(0).CreateTopic(t.Context(), "orders", stele.TopicConfig{Partitions: 1, Replicas: 4})
		require.NoError(t, err)
		p, err := c.Node(fourth).NewProducer(stele.ProducerConfig{})
		require.NoError(t, err)
		for range 30 {
			_, err := p.Produce(t.Context(), "orders", stele.Record{Value: make([]byte, 10<<10)})
			require.NoError(t, err)
		}
		require.NoError(t, p.Close(t.Context()))
		for i := range c.Size() {
			c.Eventually(func() bool {
				c.Close(i)
				c.Start(i)
				c.WaitReady()
				return len(segmentsOf(c, i, "orders")) >= 5
			}, "its segments are on its disk")
		}
		for i := range c.Size() {
			c.Close(i)
		}
		require.Equal(t, segmentsOf(c, 0, "orders"), segmentsOf(c, fourth, "orders"))

		given = 128 << 10
		refused(c.Open(fourth), "Config.SegmentBytes = 131072: want 65536, with which data began")
		for _, given = range []int64{64 << 10, 0} {
			require.NoError(t, c.Open(fourth), "%d", given)
			c.Close(fourth)
		}
	})
}
