package raftlog

import (
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/raft/v3/raftpb"
)

// A hand-over needs no disk on the leader's side, even if what it proposed
// last is not durable there.
//
// Property: S7 (red: no step out of leadership in SetDisk)
func TestAStalledLeaderHandsOver(t *testing.T) {
	b := newBench(t, CoreOptions{}, 1, 2, 3)
	leader := b.elect(1)
	leader.stalled = true
	leader.core.Propose(1, []byte("committed by the others"))
	b.settle()
	require.Equal(t, leader.core.Status().Last, leader.core.Status().Commit)
	leader.core.SetDisk(DiskStalled)
	b.settle()
	require.Equal(t, RoleFollower, leader.core.Status().Role)
	next := b.cores[leader.core.Status().Leader]
	require.Equal(t, RoleLeaderActive, next.core.Status().Role)

	// It cannot be applied here, so whoever waits for it hears that it may be.
	require.ErrorIs(t, leader.props[1].Err, ErrDiskStalled)
	require.ErrorIs(t, leader.props[1].Err, ErrOutcomeUnknown)
	require.Empty(t, leader.owned)

	leader.stalled = false
	leader.core.Appended(leader.held)
	leader.core.SetDisk(DiskGood)
	b.tick(leader.core.Status().Leader, 3)
	require.Equal(t, next.applied, leader.applied, "it goes on by itself")
	require.NoError(t, next.core.Transfer(1))
	b.settle()
	require.Equal(t, RoleLeaderActive, leader.core.Status().Role)
}

// The chosen one is dead, or has a bad disk itself: then the leader falls
// silent, so that the others elect.
//
// Property: S7 (red: no silence after a hand-over that failed; heartbeats of a silent leader sent)
func TestAStalledLeaderFallsSilent(t *testing.T) {
	b := newBench(t, CoreOptions{}, 1, 2, 3)
	leader := b.elect(1)
	leader.stalled = true
	handed := map[ReplicaID]int{}
	b.drop = func(m anyMessage) bool {
		if m.GetType() == pb.MsgTimeoutNow {
			handed[ReplicaID(m.GetTo())]++
		}
		return m.GetType() == pb.MsgTimeoutNow
	}
	leader.core.Propose(1, []byte("x"))
	b.settle()
	leader.core.SetDisk(DiskStalled)
	leader.core.Propose(2, []byte("y"))
	b.settle()
	require.ErrorIs(t, leader.props[2].Err, ErrDiskStalled)
	require.ErrorIs(t, leader.props[2].Err, ErrRetry)
	led := func() bool {
		return b.cores[2].core.Status().Role.IsLeader() || b.cores[3].core.Status().Role.IsLeader()
	}
	ticks := 0
	for ; !led() && ticks < 100; ticks++ {
		for _, id := range []ReplicaID{1, 2, 3} {
			b.tick(id, 1)
		}
	}
	require.LessOrEqual(t, ticks, 3*10, "a failed hand-over, and an election")
	require.Len(t, handed, 1)
	require.Equal(t, RoleFollower, leader.core.Status().Role)
	require.ErrorIs(t, leader.props[1].Err, ErrOutcomeUnknown)
}

// Nobody elects, as all have bad disks: the silent leader steps down, because it
// cannot know, and all go on when the disks do.
//
// Property: S7 (red: no silence after a hand-over that failed; MsgTimeoutNow taken in)
func TestAllDisksStall(t *testing.T) {
	b := newBench(t, CoreOptions{}, 1, 2, 3)
	b.elect(1)
	ids := []ReplicaID{1, 2, 3}
	all := func(stalled bool, s DiskState) {
		for _, id := range ids {
			b.cores[id].stalled = stalled
			b.cores[id].core.SetDisk(s)
		}
	}
	all(true, DiskStalled)
	b.cores[1].core.Propose(1, []byte("x"))
	terms := b.cores[1].core.Status().Term
	for range 60 {
		for _, id := range ids {
			b.tick(id, 1)
		}
	}
	for _, id := range ids {
		require.False(t, b.cores[id].core.Status().Role.IsLeader())
		require.Equal(t, terms, b.cores[id].core.Status().Term, "nobody campaigned")
	}
	all(false, DiskGood)
	for _, id := range ids {
		b.cores[id].core.Appended(b.cores[id].held)
	}
	b.settle()
	b.elect(2)
}

// A single voter has nobody to hand over to: it waits for its disk.
func TestAStalledSingleVoterStays(t *testing.T) {
	b := newBench(t, CoreOptions{}, 1)
	leader := b.elect(1)
	leader.stalled = true
	leader.core.Propose(1, []byte("x"))
	b.settle()
	leader.core.SetDisk(DiskStalled)
	leader.core.Propose(2, []byte("y"))
	b.tick(1, 50)
	require.ErrorIs(t, leader.props[2].Err, ErrDiskStalled)
	require.Equal(t, ProposalPlaced, leader.props[1].State)
	leader.stalled = false
	leader.core.Appended(leader.held)
	leader.core.SetDisk(DiskGood)
	b.settle()
	require.Equal(t, RoleLeaderActive, leader.core.Status().Role)
	require.Equal(t, []ProposalID{1}, leader.owned)
}

// A replica whose disk is stalled neither campaigns nor takes over, and its
// term stays what it was, so that it disturbs nobody afterwards. It is the one
// that its peers would prefer.
//
// Property: S7 (red: a stalled replica ticked; MsgTimeoutNow taken in; votes of its peers heard)
func TestAStalledReplicaDoesNotCampaign(t *testing.T) {
	b := newBench(t, CoreOptions{}, 1, 2, 3)
	leader := b.elect(1)
	b.drop = func(m anyMessage) bool { return m.GetTo() == 3 || m.GetFrom() == 3 }
	leader.core.Propose(1, []byte("replica 3 is behind"))
	b.settle()
	b.drop = nil
	sick := b.cores[2]
	sick.stalled = true
	sick.core.SetDisk(DiskStalled)
	require.NoError(t, leader.core.Transfer(2))
	b.settle()
	require.Equal(t, RoleFollower, sick.core.Status().Role)
	require.Equal(t, Term(2), sick.core.Status().Term)
	b.drop = func(m anyMessage) bool { return m.GetFrom() == 1 } // the leader is gone
	for range 60 {
		b.tick(2, 1)
		b.tick(3, 1)
	}
	require.Equal(t, Term(2), sick.core.Status().Term)
	require.Equal(t, RoleFollower, sick.core.Status().Role)

	// It was about to campaign when the disk stalled.
	sick.core.SetDisk(DiskGood)
	sick.stalled = true
	b.drop = func(m anyMessage) bool { return m.GetFrom() == 1 || m.GetType() == pb.MsgPreVoteResp }
	for i := 0; i < 60 && sick.core.Status().Role != RoleProspective; i++ {
		b.tick(2, 1)
	}
	require.Equal(t, RoleProspective, sick.core.Status().Role)
	sick.core.SetDisk(DiskStalled)
	would := message(pb.MsgPreVoteResp, 3, 2, 3)
	sick.core.Step(would)
	b.settle()
	require.Equal(t, RoleProspective, sick.core.Status().Role)
	sick.core.SetDisk(DiskGood)
	sick.core.Step(would)
	b.settle()
	require.Equal(t, RoleCandidate, sick.core.Status().Role)
}

// A leader whose disk is full gives way to whoever has room, and leads on if
// nobody has.
//
// Property: S6 (red: a leader with a full disk that stays; one that falls silent; a full one that takes over)
func TestALeaderWithAFullDiskGivesWay(t *testing.T) {
	for _, poor := range []DiskState{DiskFull, DiskDamaged} {
		giveWay(t, poor)
	}
}

func giveWay(t *testing.T, poor DiskState) {
	b := newBench(t, CoreOptions{}, 1, 2, 3)
	leader := b.elect(1)
	leader.core.SetDisk(poor)
	b.settle()
	require.Equal(t, RoleFollower, leader.core.Status().Role)
	leader.core.SetDisk(DiskGood)
	require.NoError(t, b.cores[leader.core.Status().Leader].core.Transfer(1))
	b.settle()
	require.Equal(t, RoleLeaderActive, leader.core.Status().Role)
	term := leader.core.Status().Term
	asked := 0
	b.drop = func(m anyMessage) bool {
		if m.GetType() == pb.MsgTimeoutNow {
			asked++
		}
		return false
	}
	for _, id := range []ReplicaID{1, 2, 3} {
		b.cores[id].core.SetDisk(poor)
	}
	b.settle()
	for range 100 {
		b.tick(1, 1)
	}
	require.Equal(t, 2, asked, "each other voter once")
	require.Equal(t, RoleLeaderActive, leader.core.Status().Role)
	require.Equal(t, term, leader.core.Status().Term)
	leader.core.Propose(1, []byte("what keeps the group alive"))
	b.settle()
	require.Contains(t, leader.owned, ProposalID(1))
	b.cores[3].core.SetDisk(DiskGood)
	for range 250 {
		b.tick(1, 1)
	}
	require.Equal(t, RoleLeaderActive, b.cores[3].core.Status().Role, "it is asked again")
}
