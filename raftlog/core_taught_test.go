package raftlog

import (
	"testing"

	"github.com/stelelog/stele/storage"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/raft/v3/raftpb"
)

// A restarted replica shows nothing until a leader spoke that knows at least
// as much as it does, and until all is applied that it may have shown before:
// what it knew to be committed may be forgotten, what it applied was durable.
//
// Property: P3 (red: any heartbeat taught; readable before the end of the recovered log was applied; sessions across replicas: TestASessionNeverGoesBack in topic)
func TestReadableOnceTaught(t *testing.T) {
	st, log := recovered(6, 9, hardAt(2, 7), 1, 2, 3)
	b := emptyBench(t, 1)
	r := b.open(st, log, CoreOptions{})
	b.settle()
	require.False(t, r.core.Status().Readable)
	for _, c := range []struct {
		term   Term
		commit Index
		taught bool
	}{{1, 9, false}, {2, 0, false}, {2, 3, false}, {2, 7, false}, {2, 9, true}} {
		m := message(pb.MsgHeartbeat, 2, 1, c.term)
		m.Commit = new(uint64(c.commit))
		r.core.Step(m)
		b.settle()
		require.Equal(t, c.taught, r.core.Status().Readable, "%+v", c)
	}
	require.Equal(t, RoleFollower, r.core.Status().Role)
}

// What a leader cut off was never committed, so nobody was shown it.
func TestReadableBehindWhatWasCutOff(t *testing.T) {
	st, log := recovered(6, 9, hardAt(2, 7), 1, 2, 3)
	b := emptyBench(t, 1)
	r := b.open(st, log, CoreOptions{})
	b.settle()
	m := message(pb.MsgApp, 2, 1, 3)
	m.Index, m.LogTerm, m.Commit = new(uint64(7)), new(uint64(2)), new(uint64(7))
	m.Entries = toRaftEntries([]storage.Entry{{Index: 8, Term: 3}})
	r.core.Step(m)
	b.settle()
	require.Equal(t, Index(8), r.core.Status().Last)
	require.Equal(t, Index(7), r.core.Status().Applied)
	require.True(t, r.core.Status().Readable)
}

// Property: P3 (red: messages compared with the term of the last Ready)
func TestLeadersOfThePastDoNotTeach(t *testing.T) {
	st, log := recovered(6, 6, hardAt(2, 6), 1, 2, 3)
	b := emptyBench(t, 1)
	r := b.open(st, log, CoreOptions{})
	b.settle()
	vote := message(pb.MsgVote, 3, 1, 5)
	vote.Index, vote.LogTerm = new(uint64(9)), new(uint64(4))
	r.core.Step(vote)
	late := message(pb.MsgHeartbeat, 2, 1, 2)
	late.Commit = new(uint64(6))
	r.core.Step(late) // raft drops it
	b.settle()
	require.Equal(t, Term(5), r.core.Status().Term)
	require.False(t, r.core.Status().Readable)
	beat := message(pb.MsgHeartbeat, 3, 1, 5)
	beat.Commit = new(uint64(6))
	r.core.Step(beat)
	b.settle()
	require.True(t, r.core.Status().Readable)
}

// A restarted replica that won an election and lost it again, without a commit,
// has learnt nothing.
//
// Property: P3 (red: winning an election counted as taught)
func TestALeaderThatCommittedNothingIsNotTaught(t *testing.T) {
	b := newBench(t, CoreOptions{}, 1, 2, 3)
	leader := b.elect(1)
	for i := range 5 {
		leader.core.Propose(ProposalID(i+1), []byte{byte(i)})
	}
	b.settle()
	shown := leader.core.Status().Applied
	require.Equal(t, Index(7), shown)
	r := b.open(leader.core.State(), leader.log, CoreOptions{})
	b.patient(2, 3)
	b.drop = func(m anyMessage) bool { // only votes arrive
		return m.GetType() == pb.MsgApp || m.GetType() == pb.MsgHeartbeat
	}
	for i := 0; i < 60 && r.core.Status().Role != RoleLeaderStarting; i++ {
		b.tick(1, 1)
	}
	require.Equal(t, RoleLeaderStarting, r.core.Status().Role)
	require.False(t, r.core.Status().Readable)
	for i := 0; i < 60 && r.core.Status().Role.IsLeader(); i++ {
		b.tick(1, 1)
	}
	require.False(t, r.core.Status().Role.IsLeader())
	require.False(t, r.core.Status().Readable)
	b.drop = nil
	for i := 0; i < 60 && !r.core.Status().Readable; i++ {
		b.tick(1, 1)
	}
	require.True(t, r.core.Status().Readable)
	require.GreaterOrEqual(t, r.core.Status().Applied, shown)
}
