package topic_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

// requireSetAside stops a node and looks at its directory: all replicas of
// partitions are set aside for ever, and carry nothing.
func (c *cluster) requireSetAside(id storage.NodeID, replicas int) {
	c.crash(id, simfs.Strict)
	offline, err := storage.ReadOffline(c.disks[id], "data")
	require.NoError(c.t, err)
	require.Empty(c.t, offline.TopicDirs)
	require.Len(c.t, offline.Quarantined, 1)
	require.Equal(c.t, storage.ReasonDeleted, offline.Quarantined[0].Reason.Kind)
	for _, r := range offline.Replicas {
		if strings.HasPrefix(r.Dir, "topics/") {
			require.Equal(c.t, storage.ReplicaSetAside, r.Status, r.Dir)
			require.Empty(c.t, r.Tail, r.Dir)
			replicas--
		}
	}
	require.Zero(c.t, replicas)
}

func TestReplicasOfDeletedTopicsAreSetAside(t *testing.T) {
	for _, down := range []bool{false, true} {
		t.Run(fmt.Sprint("down ", down), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := startCluster(t, 3, 1)
				c.create("orders", 2)
				p := producer(t, c.node(1), topic.ProducerConfig{})
				for i := range uint32(20) {
					_, err := p.ProduceTo(t.Context(), "orders", i%2, record("x"))
					require.NoError(t, err)
				}
				if down {
					c.crash(3, simfs.Strict)
				}
				require.NoError(t, c.node(1).topics.DeleteTopic(t.Context(), "orders"))
				if down {
					c.start(3)
				}
				n := c.node(3)
				settle(t, "quarantined", func() bool { return len(n.dirs()) == 0 })
				c.requireSetAside(3, 2)
				// The directory that is missing now is not damage, and the name is free.
				c.start(3)
				c.create("orders", 2)
				settle(t, "opened", func() bool { return len(c.node(3).topics.Status()) == 2 })
				require.Empty(t, c.node(3).dump("orders", 0))
			})
		})
	}
}
