package topic_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/metastore"
)

// TestDeletionsThatWaitHoldUpNoOthers: many topics cannot be sealed, because
// the only node that holds them is down; the last one by name can.
func TestDeletionsThatWaitHoldUpNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 3, 1)
		last := "none"
		for i := range 30 {
			made, err := c.node(1).topics.CreateTopic(t.Context(), fmt.Sprintf("topic-%02d", i), metastore.TopicConfig{Partitions: 1, Replicas: 1})
			require.NoError(t, err)
			if made.Partitions[0].Replicas[0].Node != 3 {
				last = made.Name
			}
		}
		c.crash(3, simfs.Strict)
		n := c.node(1)
		for _, made := range n.meta.Topics() {
			require.NoError(t, n.meta.SetTopicDeleting(t.Context(), made.Incarnation))
		}
		begun := time.Now()
		settle(t, "deleted", func() bool { _, err := n.meta.Topic(last); return err != nil })
		require.Less(t, time.Since(begun), 20*time.Second) // virtual
		c.start(3)
		for range 10 {
			pass(15 * time.Second)
		}
		require.Empty(t, n.meta.Topics())
	})
}
