package raftlog

import (
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/raft/v3/raftpb"
)

// A replica that was removed and does not know asks for votes for ever and
// disturbs nobody; told so, it says so, and is silent. What waits on it ends.
//
// Property: R20 (red: a proposal of it that never ends)
func TestARemovedReplicaIsTold(t *testing.T) {
	b := newBench(t, CoreOptions{}, 1, 2, 3)
	leader := b.elect(1)
	b.drop = func(m anyMessage) bool { return m.GetTo() == 3 }
	require.NoError(t, b.change(leader, Change{ID: wish(1), Remove: []ReplicaID{3}}))
	b.drop = nil
	gone := b.cores[3]
	require.False(t, leader.core.lists(3))
	require.True(t, leader.core.lists(2))
	require.True(t, gone.core.lists(1))
	asked := 0
	b.drop = func(m anyMessage) bool {
		if m.GetFrom() == 3 {
			asked++
		}
		return false
	}
	for range 100 {
		b.tick(3, 1)
		b.tick(1, 1)
		b.tick(2, 1)
	}
	require.NotZero(t, asked)
	require.Equal(t, RoleProspective, gone.core.Status().Role)
	require.Equal(t, Term(2), leader.core.Status().Term)
	require.Equal(t, RoleLeaderActive, leader.core.Status().Role)

	asked = 0
	gone.core.Read(1)
	gone.core.Remove()
	gone.core.Remove()
	gone.core.Propose(1, []byte("x"))
	gone.core.Read(2)
	gone.core.Change(3, Change{ID: wish(9), Learners: []ReplicaID{9}})
	for range 100 {
		b.tick(3, 1)
	}
	gone.core.Step(message(pb.MsgVote, 2, 3, 9))
	b.settle()
	require.Zero(t, asked)
	require.Equal(t, RoleRemoved, gone.core.Status().Role)
	require.Zero(t, gone.core.Status().Leader)
	for _, err := range []error{gone.reads[1].Err, gone.reads[2].Err, gone.props[1].Err, gone.changes[3].Err} {
		require.ErrorIs(t, err, ErrRemoved)
		require.ErrorIs(t, err, ErrRetry)
	}
	require.ErrorAs(t, gone.core.Transfer(1), new(*NotLeaderError))
	require.ErrorAs(t, gone.core.Resign(), new(*NotLeaderError))
	require.False(t, gone.core.HasEffects())
}

// A leader that the others removed while they did not hear each other: it stops
// at once, and does not know what became of what it accepted.
func TestARemovedLeaderIsTold(t *testing.T) {
	b := newBench(t, CoreOptions{}, 1, 2, 3)
	leader := b.elect(1)
	b.drop = func(anyMessage) bool { return true }
	leader.core.Propose(1, []byte("in its log"))
	id := leader.begin(Change{ID: wish(1), Remove: []ReplicaID{2}})
	b.settle()
	leader.core.Propose(2, []byte("not yet"))
	leader.core.Remove()
	b.settle()
	require.Equal(t, RoleRemoved, leader.core.Status().Role)
	require.ErrorIs(t, leader.props[1].Err, ErrRemoved)
	require.ErrorIs(t, leader.props[1].Err, ErrOutcomeUnknown)
	require.ErrorIs(t, leader.props[2].Err, ErrRetry)
	require.ErrorIs(t, leader.changes[id].Err, ErrOutcomeUnknown)
	sent := 0
	b.drop = func(anyMessage) bool { sent++; return true }
	b.tick(1, 50)
	require.Zero(t, sent)
	require.NoError(t, leader.core.Failed())
	require.Equal(t, RoleRemoved, leader.roles[len(leader.roles)-1])
}

// Whoever applied its own removal still gives its vote: those that stay may
// need it until they know that they do not.
//
// Property: R20 (red: no votes of a replica that applied its removal)
func TestARemovedReplicaVotesUntilAllKnow(t *testing.T) {
	b := newBench(t, CoreOptions{}, 1, 2, 3, 4)
	leader := b.elect(1)
	// The others have the entry and do not hear that it is committed, but for
	// the one that it removes.
	b.drop = func(m anyMessage) bool { return m.GetTo() == 1 && m.GetType() == pb.MsgAppResp && m.GetFrom() != 4 }
	id := leader.begin(Change{ID: wish(1), Remove: []ReplicaID{4}})
	b.settle()
	b.drop = func(m anyMessage) bool {
		return m.GetFrom() == 1 && (m.GetTo() != 4 || m.GetType() != pb.MsgApp && m.GetType() != pb.MsgHeartbeat)
	}
	b.tick(1, 2)
	b.drop = nil
	_ = id
	acks := func(from ReplicaID) {
		m := message(pb.MsgAppResp, from, 1, 2)
		m.Index = new(uint64(b.cores[from].core.Status().Last))
		leader.core.Step(m)
	}
	b.drop = func(m anyMessage) bool { return m.GetFrom() == 1 && m.GetTo() != 4 }
	acks(2)
	acks(3)
	b.settle()
	b.tick(1, 4)
	require.NotContains(t, leader.core.Status().Conf.Voters, ReplicaID(4))
	require.Equal(t, RoleRemoved, b.cores[4].core.Status().Role)
	require.Contains(t, b.cores[2].core.Status().Conf.Voters, ReplicaID(4))
	require.NotContains(t, leader.changes, id, "not before a quorum knows")
	require.False(t, leader.core.Status().ConfSafe)

	b.drop = func(m anyMessage) bool { return m.GetFrom() == 1 || m.GetTo() == 1 } // it dies
	b.patient(3)
	b.tick(4, 12)
	next := b.elect(2)
	require.NotContains(t, next.core.Status().Conf.Voters, ReplicaID(4))
}
