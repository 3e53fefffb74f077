package metastore_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// leads waits until a node other than one leads, and returns it.
func (c *cluster) leads(other raftlog.NodeID) *node {
	for {
		for id := range c.disks {
			if n := c.node(id); n != nil && id != other && n.meta.GroupStatus().Role == raftlog.RoleLeaderActive {
				return n
			}
		}
		pass(10 * time.Millisecond)
	}
}

// A leader that is cut off from the others goes on to lead in its own view for a
// while: it confirms nothing, though what it is asked is true, and the others may
// have been asked just before. When it is back it does, as a follower.
//
// Property: X2, X3 (red: Confirm without its barrier)
func TestALeaderThatIsCutOffConfirmsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 31)
		for id := range c.disks {
			c.start(id)
		}
		old := c.leads(0)
		require.NoError(t, old.meta.SetVersion(t.Context(), 3))
		topic, err := old.meta.CreateTopic(t.Context(), metastore.TopicSpec{Name: "orders"})
		require.NoError(t, err)
		require.NoError(t, old.meta.SetTopicDeleting(t.Context(), topic.Incarnation))
		require.NoError(t, old.meta.SetTopicDeleted(t.Context(), topic.Incarnation))
		dead := metastore.IncarnationDead(topic.Incarnation)
		for id := range c.disks {
			_, err := c.node(id).meta.Confirm(t.Context(), dead)
			require.NoError(t, err)
		}
		c.cut(old.id, true)
		require.True(t, old.meta.GroupStatus().Role.IsLeader())
		_, err = old.meta.Confirm(t.Context(), dead)
		var refused *metastore.ConfirmError
		require.ErrorAs(t, err, &refused)
		require.Equal(t, metastore.ConfirmUnread, refused.Reason)

		// The topic comes again meanwhile, in another life.
		next := c.leads(old.id)
		again, err := next.meta.CreateTopic(t.Context(), metastore.TopicSpec{Name: "orders"})
		require.NoError(t, err)
		require.NoError(t, next.meta.SetTopicDeleting(t.Context(), again.Incarnation))
		_, err = next.meta.Confirm(t.Context(), dead)
		require.NoError(t, err)
		_, err = old.meta.Confirm(t.Context(), dead)
		require.ErrorAs(t, err, &refused)
		require.Equal(t, metastore.ConfirmUnread, refused.Reason)
		c.cut(old.id, false)
		_, err = old.meta.Confirm(t.Context(), dead)
		require.NoError(t, err)
		_, err = old.meta.Confirm(t.Context(), metastore.IncarnationDead(again.Incarnation))
		require.ErrorAs(t, err, &refused)
		require.Equal(t, metastore.ConfirmNotSo, refused.Reason)

		// One that was just started and still replays knows nothing by itself.
		c.crash(old.id, simfs.Strict)
		n := c.start(old.id)
		_, err = n.meta.Confirm(t.Context(), dead)
		require.NoError(t, err, "behind a barrier, so it has replayed")
	})
}
