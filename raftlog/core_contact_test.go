package raftlog

import (
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/raft/v3/raftpb"
)

// When the leader was last heard is what the leader of this term says alone: not
// what comes late of an older term, from its leader of then or another one, nor
// what somebody else says in this term. One of a later term is believed.
//
// Property: H8 (red: the term not compared; any sender of the term; any message; a later term not believed)
func TestOnlyTheLeaderOfTheTermRefreshesTheContact(t *testing.T) {
	b := newBench(t, CoreOptions{}, 1, 2, 3)
	b.elect(1)
	b.patient(2, 3)
	old := b.cores[1].core.Status().Term
	b.elect(2)
	b.tick(2, 1)
	follower := b.cores[3]
	now := follower.core.Status()
	require.Equal(t, ReplicaID(2), now.Leader)
	require.Greater(t, now.Term, old)
	b.drop = func(anyMessage) bool { return true }
	b.tick(3, 4)
	require.Equal(t, now.SinceLeader+4, follower.core.Status().SinceLeader)

	stays := func(m *pb.Message) {
		t.Helper()
		before := follower.core.Status().SinceLeader
		require.Positive(t, before)
		follower.core.Step(m)
		b.settle()
		require.Equal(t, before, follower.core.Status().SinceLeader, "%v of %v in term %v", m.GetType(), m.GetFrom(), m.GetTerm())
	}
	refreshes := func(term Term) {
		t.Helper()
		follower.core.Step(message(pb.MsgHeartbeat, 2, 3, term))
		b.settle()
		require.Zero(t, follower.core.Status().SinceLeader)
		b.tick(3, 1)
	}
	for _, from := range []ReplicaID{1, 2} { // who led then, and who leads now
		stays(message(pb.MsgHeartbeat, from, 3, old))
		stays(message(pb.MsgApp, from, 3, old))
	}
	stays(message(pb.MsgVote, 2, 3, now.Term)) // what no leader says
	stays(message(pb.MsgHeartbeatResp, 2, 3, now.Term))
	refreshes(now.Term)
	stays(message(pb.MsgHeartbeat, 1, 3, now.Term)) // another one in its term
	refreshes(now.Term + 1)
}
