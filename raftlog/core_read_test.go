package raftlog

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/raft/v3/raftpb"
)

func TestFollowersAskAgain(t *testing.T) {
	b := newBench(t, CoreOptions{}, 1, 2, 3)
	leader := b.elect(1)
	follower := b.cores[2]
	var names []string
	lose := 2
	b.drop = func(m anyMessage) bool {
		if m.GetType() != pb.MsgReadIndex {
			return false
		}
		names = append(names, string(m.GetEntries()[0].GetData()))
		lose--
		return lose >= 0
	}
	follower.core.Read(1)
	follower.core.Read(2)
	b.settle()
	follower.core.Read(3) // waits for the next round
	b.settle()
	require.Empty(t, follower.reads)
	for range 12 {
		leader.core.Tick()
		follower.core.Tick()
		b.settle()
	}
	require.Equal(t, ReadEvent{ID: 1, Index: 2}, follower.reads[1])
	require.Equal(t, ReadEvent{ID: 2, Index: 2}, follower.reads[2])
	require.Equal(t, ReadEvent{ID: 3, Index: 2}, follower.reads[3])
	require.Len(t, names, 3, "two tries were lost")
	slices.Sort(names)
	require.Len(t, slices.Compact(names), 3, "every try has a name of its own")
}

func TestReadsGiveUp(t *testing.T) {
	b := newBench(t, CoreOptions{}, 1, 2, 3)
	b.elect(1)
	b.drop = func(anyMessage) bool { return true }
	follower := b.cores[2]
	follower.core.Read(1)
	b.settle()
	b.tick(2, 41)
	var notLeader *NotLeaderError
	require.ErrorAs(t, follower.reads[1].Err, &notLeader)
	require.ErrorIs(t, follower.reads[1].Err, ErrRetry)
	require.False(t, follower.core.reads.active)
}

// A leader asks once, however long the answer takes: every heartbeat asks for
// it again, and raft would keep each try without bound.
func TestALeaderKeepsOneRound(t *testing.T) {
	b := newBench(t, CoreOptions{}, 1, 2, 3)
	leader := b.elect(1)
	asked := map[string]bool{}
	b.drop = func(m anyMessage) bool {
		if m.GetType() == pb.MsgHeartbeat && len(m.GetContext()) > 0 {
			asked[string(m.GetContext())] = true
			return true
		}
		return false
	}
	for id := ReadID(1); id <= 20; id++ {
		leader.core.Read(id)
		b.settle()
		if id < 9 {
			b.tick(1, 1)
		}
	}
	require.Len(t, asked, 1)
	b.drop = nil
	b.tick(1, 2)
	require.Len(t, leader.reads, 20)
	for _, ev := range leader.reads {
		require.NoError(t, ev.Err)
	}
}

// Property: R25 (red: the nonce left out of the round's name; pauses and transfers: TestSeeds in internal/sim)
func TestAnAnswerToAnEarlierLifeConfirmsNothing(t *testing.T) {
	b := newBench(t, CoreOptions{}, 1, 2, 3)
	leader := b.elect(1)
	follower := b.cores[2]
	var late *pb.Message
	b.drop = func(m anyMessage) bool {
		if m.GetType() == pb.MsgReadIndexResp && late == nil {
			late = m
		}
		return m.GetType() == pb.MsgReadIndexResp
	}
	follower.core.Read(1)
	b.settle()
	require.NotNil(t, late)
	leader.core.Propose(1, []byte("acknowledged since"))
	b.settle()

	// The follower restarts, and its first read is the first of a life again.
	core, err := NewCore(CoreConfig{State: follower.core.State(), Older: follower.log, ReadNonce: 77})
	require.NoError(t, err)
	follower.core = core
	b.tick(1, 2)
	follower.core.Read(2)
	b.settle()
	follower.core.Step(late)
	b.settle()
	require.NotContains(t, follower.reads, ReadID(2), "that answer is older than what was acknowledged")
	b.drop = nil
	b.tick(2, 5)
	require.Equal(t, ReadEvent{ID: 2, Index: 3}, follower.reads[2])
}

// A leader that has not committed in its term answers nobody.
//
// Property: R25 (red: Core.admits let MsgReadIndex through to a starting leader)
func TestAStartingLeaderAnswersNoReads(t *testing.T) {
	b := newBench(t, CoreOptions{}, 1, 2, 3)
	leader := b.cores[1]
	b.drop = func(m anyMessage) bool { return m.GetType() == pb.MsgAppResp }
	for i := 0; i < 40 && leader.core.Status().Role != RoleLeaderStarting; i++ {
		b.tick(1, 1)
	}
	b.tick(1, 2) // the others know it now
	require.Equal(t, RoleLeaderStarting, leader.core.Status().Role)
	require.False(t, leader.core.Status().Readable)
	require.Equal(t, ReplicaID(1), b.cores[2].core.Status().Leader)
	leader.core.Read(1)
	b.cores[2].core.Read(2)
	b.settle()
	require.Zero(t, leader.core.reads.round, "not asked")
	b.tick(1, 2)
	require.Empty(t, leader.reads)
	require.Empty(t, b.cores[2].reads)
	b.drop = nil
	for range 6 {
		b.tick(1, 1)
		b.tick(2, 1)
	}
	require.Equal(t, ReadEvent{ID: 1, Index: 2}, leader.reads[1])
	require.Equal(t, ReadEvent{ID: 2, Index: 2}, b.cores[2].reads[2])
	require.True(t, leader.core.Status().Readable)
}
