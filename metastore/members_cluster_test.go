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

// leader waits for the node that leads the metadata and knows that it can.
func (c *cluster) leader() *node {
	for {
		for id := range c.disks {
			n := c.node(id)
			if n == nil || !n.meta.GroupStatus().Role.IsLeader() {
				continue
			}
			if n.meta.Barrier(c.t.Context()) == nil {
				return n
			}
		}
		pass(100 * time.Millisecond)
	}
}

// TestARemovalOutlivesItsLeader: the node that said it loses power at once, and
// whoever leads then knows the removed life for what it is.
//
// Property: D7 (red: no tombstone by node)
func TestARemovalOutlivesItsLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 4)
		for id := range c.disks {
			c.start(id)
		}
		first := c.leader()
		require.NoError(t, first.meta.SetVersion(t.Context(), 2))
		life := metastore.Admission{Name: "node-4", Nonce: raftlog.Nonce{4}, Addr: "node-4:1", Newest: metastore.NewestCommand}
		m, err := first.meta.Admit(t.Context(), life)
		require.NoError(t, err)
		require.NoError(t, first.meta.SetDeparture(t.Context(), m.Node, m.Nonce, metastore.Drains))
		judged := metastore.Judged{Term: first.meta.GroupStatus().Term, Departures: first.meta.Departures()}
		require.NoError(t, first.meta.MarkLeaving(t.Context(), m.Node, m.Nonce, judged))
		require.NoError(t, first.meta.RemoveMember(t.Context(), m.Node))
		c.crash(first.id, simfs.Strict)
		for range 2 { // without it, and with it
			next := c.leader()
			want := &metastore.RemovedError{Node: m.Node, Name: "node-4"}
			each, err := next.meta.RecordHeartbeats(t.Context(), []metastore.Heartbeat{{Node: m.Node, Nonce: m.Nonce}})
			require.NoError(t, err)
			require.Equal(t, []error{want}, each)
			_, err = next.meta.Admit(t.Context(), life)
			require.Equal(t, want, err)
			require.True(t, next.meta.ReplicaDead(raftlog.MetadataGroup, m.Replica))
			if c.node(first.id) == nil {
				c.start(first.id)
			}
			for id := range c.disks {
				require.NoError(t, c.node(id).meta.Barrier(t.Context()))
				require.Len(t, c.node(id).meta.Members(), 3)
			}
		}
	})
}
