package raftlog_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/raftlog"
)

// Whatever kind a raft message is of: for another group than the replica's, for another
// stint of a node than the open one, or from a node that the sender does not live on, it
// never comes to a group. Its term, far ahead, would be seen.
//
// Property: I8 (red: addresseeLocked without its look at the group; found by the group alone; without its look at where the sender lives)
func TestMessagesForOthersAreDropped(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 3, 2)
		defer c.stopAll()
		c.must(1, "x")
		n := c.nodes[0]
		group := n.group(1)
		const lives, stranger = raftlog.NodeID(2), raftlog.NodeID(3)
		mine, other := replicaOf(1, n.id), replicaOf(1, lives)
		before := group.Status()
		const far = 1 << 40
		kinds := 0
		for what, c := range map[string]struct {
			group raftlog.GroupID
			to    raftlog.ReplicaID
			from  raftlog.NodeID
		}{
			"another group":                      {77, mine, lives},
			"another group that is here, too":    {2, mine, lives},
			"another stint":                      {1, mine + 1000, lives},
			"another node than the sender's":     {1, mine, stranger},
			"no node at all":                     {1, mine, 99},
			"another replica's, on another node": {1, other, lives},
		} {
			frames, err := raftlog.ForgedFrames(c.group, other, c.to, far)
			require.NoError(t, err)
			kinds = len(frames)
			for kind, frame := range frames {
				stats := n.host.Stats()
				n.host.HandleFrame(c.from, frame)
				after := n.host.Stats()
				require.Zero(t, after.FramesMalformed, "%s: %s", what, kind)
				require.Equal(t, stats.MessagesStray+1, after.MessagesStray, "%s: %s", what, kind)
			}
		}
		require.Equal(t, 12, kinds, "a kind that travels has been added: is it dropped, too?")
		time.Sleep(3 * time.Second)
		require.Equal(t, before.Term, group.Status().Term)
		c.must(1, "y")
	})
}
