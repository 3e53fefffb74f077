package stele_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
	"github.com/stelelog/stele/metastore"
)

// While the host is busy with what it was told, a topic is brought back and deleted
// again: it is told both, with the grace that there is. A later end of the same grace
// is not a deletion.
func TestAHostIsToldOfTheNextDeletion(t *testing.T) {
	var mu sync.Mutex
	var told []stele.Topic
	var busy, begun chan struct{}
	opts := testcluster.Options{Nodes: 1, Seed: 1, Config: func(cfg *stele.Config) {
		tell := func(top stele.Topic) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, top)
		}
		cfg.Events.TopicUndeleted = tell
		cfg.Events.TopicRetired = func(top stele.Topic) {
			begun <- struct{}{}
			<-busy
			tell(top)
		}
	}}
	testcluster.Run(t, opts, func(c *testcluster.Cluster) {
		t := c.T
		busy, begun = make(chan struct{}), make(chan struct{}, 9)
		c.StartAll()
		n := c.Node(0)
		c.Eventually(func() bool { return version(c, 0) == metastore.NewestVersion }, "the version is raised")
		mustCreate(c, 0, "orders", 1)
		require.NoError(t, n.DeleteTopic(t.Context(), "orders", stele.WithGrace(time.Hour)))
		<-begun
		_, err := n.UndeleteTopic(t.Context(), "orders")
		require.NoError(t, err)
		c.Sleep(time.Second)
		require.NoError(t, n.DeleteTopic(t.Context(), "orders", stele.WithGrace(2*time.Hour)))
		now, err := n.DescribeTopic(t.Context(), "orders")
		require.NoError(t, err)
		close(busy)
		c.Eventually(func() bool { mu.Lock(); defer mu.Unlock(); return len(told) >= 3 }, "all is told")
		require.NoError(t, n.DeleteTopic(t.Context(), "orders", stele.WithGrace(3*time.Hour)))
		c.Sleep(5 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		require.Len(t, told, 3)
		require.Equal(t, stele.TopicActive, told[1].State)
		require.Equal(t, stele.Deletion{Number: 1}, told[1].Deletion)
		require.Equal(t, now.Deletion, told[2].Deletion)
		require.Equal(t, now.Incarnation, told[2].Incarnation)
	})
}
