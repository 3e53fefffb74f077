package raftlog

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/raft/v3/raftpb"
)

func message(t pb.MessageType, from, to ReplicaID, term Term) *pb.Message {
	return &pb.Message{Type: t.Enum(), From: new(uint64(from)), To: new(uint64(to)), Term: new(uint64(term))}
}

// Property: R12 (red: Core.admits without the check of the address; without the one of MsgTimeoutNow's sender)
func TestMessagesForOthersAreDropped(t *testing.T) {
	b := newBench(t, CoreOptions{}, 1, 2, 3)
	b.elect(1)
	follower := b.cores[2]
	before := follower.core.Status()
	frames := len(follower.frames)
	for _, m := range []*pb.Message{
		message(pb.MsgVote, 3, 22, 9),          // another stint of this node
		message(pb.MsgHeartbeat, 3, 0, 9),      // nobody
		message(pb.MsgHeartbeat, 2, 2, 9),      // from itself
		message(pb.MsgHeartbeat, 0, 2, 9),      // from nobody
		message(pb.MsgTimeoutNow, 3, 2, 2),     // not its leader
		message(pb.MsgTimeoutNow, 1, 2, 9),     // not of its leader's term
		message(pb.MsgHup, 1, 2, 2),            // local to raft
		message(pb.MsgCheckQuorum, 1, 2, 2),    // local to raft
		message(pb.MsgProp, 1, 2, 0),           // proposals are not forwarded
		message(pb.MsgTransferLeader, 1, 2, 0), // nor are transfers
		message(pb.MsgForgetLeader, 1, 2, 0),   // nobody else's business
		message(pb.MsgSnap, 1, 2, 9),           // not sent by this version
		message(pb.MsgVoteResp, 9, 2, 9),       // an answer from outside the configuration
		message(pb.MsgHeartbeat, 1, 2, 0),      // without a term
		message(pb.MsgReadIndex, 3, 2, 0),      // it does not lead
	} {
		follower.core.Step(m)
		b.settle()
		require.Equal(t, before, follower.core.Status(), "%v", m.GetType())
		require.Len(t, follower.frames, frames, "%v", m.GetType())
	}
}

// A late message of the leader's own earlier term is answered by a message
// without an index; raft would take that for an acknowledgement of entry 0 and
// then look for entry 1, which no log holds.
//
// Property: R12 (red: Core.admits lets MsgAppResp without an index through; of other ages and stints: TestSeeds and TestAnswersOfAnEarlierStint in internal/sim)
func TestALateMessageDoesNotStrandAFollower(t *testing.T) {
	b := newBench(t, CoreOptions{}, 1, 2, 3)
	b.elect(1)
	b.patient(2, 3)
	b.drop = func(m anyMessage) bool { return m.GetTo() == 3 && m.GetType() == pb.MsgApp }
	next := b.elect(2)
	b.patient(1, 3)
	leader := b.elect(1) // again, in a later term; replica 3 has got nothing of it
	require.NotNil(t, next)
	b.tick(1, 2)
	b.cores[3].core.Step(message(pb.MsgHeartbeat, 1, 3, 2))
	b.settle()
	b.drop = nil
	leader.core.Propose(1, []byte("for all"))
	for range 10 {
		b.tick(1, 1)
	}
	require.Equal(t, leader.applied, b.cores[3].applied)
}

// Property: L1 (red: Core.guard without its recover; Pebble: TestPebbleFailsTheNodeAlone of the root)
func TestAPanicOfRaftFailsTheGroup(t *testing.T) {
	b := newBench(t, CoreOptions{}, 1, 2, 3)
	leader := b.elect(1)
	leader.core.Propose(1, []byte("a"))
	b.settle()
	b.drop = func(anyMessage) bool { return true }
	leader.core.Propose(2, []byte("in the log"))
	b.settle()
	leader.core.Propose(3, []byte("queued"))
	leader.core.Read(4)
	// A leader of a later term says that what nobody has is committed.
	m := message(pb.MsgHeartbeat, 3, 1, 9)
	m.Commit = new(uint64(1000))
	leader.core.Step(m)
	var failed *GroupFailedError
	require.ErrorAs(t, leader.core.Failed(), &failed)
	require.Equal(t, GroupID(7), failed.Group)
	require.ErrorContains(t, failed, "1000")
	b.settle()
	require.Equal(t, RoleResigned, leader.roles[len(leader.roles)-1])
	require.Equal(t, ProposalLost, leader.props[2].State)
	require.ErrorIs(t, leader.props[2].Err, ErrOutcomeUnknown)
	require.Equal(t, ProposalRefused, leader.props[3].State)
	require.ErrorIs(t, leader.props[3].Err, ErrRetry)
	require.ErrorIs(t, leader.reads[4].Err, ErrRetry)

	frames := len(leader.frames)
	leader.core.Tick()
	leader.core.Step(message(pb.MsgVote, 2, 1, 20))
	leader.core.Propose(5, []byte("late"))
	leader.core.Read(6)
	leader.core.Appended(leader.held + 1)
	leader.core.Fail(errors.New("again"))
	b.settle()
	require.ErrorIs(t, leader.props[5].Err, ErrRetry)
	require.ErrorIs(t, leader.reads[6].Err, ErrRetry)
	require.ErrorIs(t, leader.core.Transfer(2), ErrRetry)
	require.Len(t, leader.frames, frames)
	require.False(t, leader.core.HasEffects())
}

func TestAppliedOutOfOrderFailsTheGroup(t *testing.T) {
	b := newBench(t, CoreOptions{}, 1)
	leader := b.elect(1)
	pos := leader.core.State().Log
	pos.LastIndex += 5
	leader.core.Applied(pos.LastIndex, pos)
	require.Error(t, leader.core.Failed())
}

func TestProgressAndTransferToTheBest(t *testing.T) {
	b := newBench(t, CoreOptions{}, 1, 2, 3)
	leader := b.elect(1)
	b.drop = func(m anyMessage) bool { return m.GetTo() == 2 }
	leader.core.Propose(1, []byte("a"))
	b.tick(1, 3)
	s := leader.core.Status()
	require.Len(t, s.Progress, 3)
	require.Equal(t, Progress{Replica: 1, Match: 3, Next: s.Progress[0].Next}, s.Progress[0])
	require.Equal(t, Index(2), s.Progress[1].Match)
	require.GreaterOrEqual(t, s.Progress[1].SinceContact, 3)
	require.Equal(t, Index(3), s.Progress[2].Match)
	require.LessOrEqual(t, s.Progress[2].SinceContact, 2)
	require.LessOrEqual(t, s.Progress[2].SinceCaughtUp, 3)
	b.drop = nil
	require.NoError(t, leader.core.Transfer(0))
	b.settle()
	require.Equal(t, RoleLeaderActive, b.cores[3].core.Status().Role)
	require.Equal(t, RoleFollower, leader.core.Status().Role)
	require.Nil(t, b.cores[2].core.Status().Progress)
}
