package stele_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
)

// What a cluster begins with is made once, however often its members start: a
// topic that was deleted does not come back.
//
// Property: J19 (red: the mark that it was made not kept)
func TestInitialStateIsMadeOnce(t *testing.T) {
	config := func(cfg *stele.Config) {
		cfg.InitialState.Topics = []stele.TopicSpec{{Name: "orders", Config: stele.TopicConfig{Partitions: 2}}}
	}
	testcluster.Run(t, testcluster.Options{Seed: 51, Config: config}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		topics := func(i int) int {
			all, err := c.Node(i).ListTopics(t.Context())
			require.NoError(t, err)
			return len(all)
		}
		c.Eventually(func() bool { return topics(0) == 1 }, "it is made")
		c.Sleep(10 * time.Second)
		require.Equal(t, 1, topics(1), "by one of the three")
		require.NoError(t, c.Node(2).DeleteTopic(t.Context(), "orders"))
		c.PowerLossAll()
		c.StartAll()
		c.Sleep(time.Minute)
		for i := range c.Size() {
			require.Zero(t, topics(i))
		}
	})
}
