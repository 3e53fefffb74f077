package raftlog

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/raft/v3/raftpb"
)

// Property: R26 (red: Core.Propose without its limit, raft without one either)
func TestOverloadIsRefusedAtOnce(t *testing.T) {
	const limit = 64 << 10
	b := newBench(t, CoreOptions{MaxUncommittedBytes: limit}, 1, 2, 3)
	leader := b.elect(1)
	b.drop = func(anyMessage) bool { return true }
	accepted, refused := 0, 0
	for id := ProposalID(1); id <= 2000; id++ {
		leader.core.Propose(id, make([]byte, 1000))
		if id%7 == 0 {
			b.settle()
		}
	}
	b.settle()
	for _, ev := range leader.props {
		switch ev.State {
		case ProposalPlaced:
			accepted++
		case ProposalRefused:
			require.ErrorIs(t, ev.Err, ErrOverloaded)
			require.ErrorIs(t, ev.Err, ErrRetry)
			refused++
		}
	}
	require.Equal(t, limit/1000, accepted)
	require.Equal(t, 2000-accepted, refused)

	b.drop = nil
	for range 4 {
		b.tick(1, 2)
	}
	leader.core.Propose(3000, bytes.Repeat([]byte("x"), 2*limit))
	b.settle()
	require.Contains(t, leader.owned, ProposalID(3000), "what is over the limit alone is let in when nothing waits")
}

func TestProposalsThatGoNowhere(t *testing.T) {
	b := newBench(t, CoreOptions{}, 1, 2, 3)
	b.cores[2].core.Propose(1, []byte("a"))
	b.settle()
	var notLeader *NotLeaderError
	require.ErrorAs(t, b.cores[2].props[1].Err, &notLeader)
	require.Zero(t, notLeader.Leader)

	leader := b.elect(1)
	b.cores[2].core.Propose(2, []byte("a"))
	leader.core.Propose(3, nil)
	b.settle()
	require.ErrorAs(t, b.cores[2].props[2].Err, &notLeader)
	require.Equal(t, ReplicaID(1), notLeader.Leader)
	require.ErrorIs(t, leader.props[3].Err, ErrEmptyProposal)
	require.ErrorIs(t, leader.props[3].Err, ErrRefused)

	b.drop = func(m anyMessage) bool { return m.GetType() == pb.MsgTimeoutNow }
	require.NoError(t, leader.core.Transfer(2))
	require.Equal(t, ReplicaID(2), leader.core.Status().Transferee)
	leader.core.Propose(4, []byte("a"))
	b.settle()
	require.ErrorIs(t, leader.props[4].Err, ErrTransferring)
	require.ErrorIs(t, leader.props[4].Err, ErrRetry)
	b.tick(1, 11)
	require.Zero(t, leader.core.Status().Transferee, "the target never came")
	leader.core.Propose(5, []byte("a"))
	b.settle()
	require.Contains(t, leader.owned, ProposalID(5))
	require.ErrorIs(t, leader.core.Transfer(9), ErrNoTarget)
	require.ErrorAs(t, b.cores[2].core.Transfer(0), &notLeader)
}

// Property: R14 (red: settle called what it lost Retry; with links and disks: TestIsolatedLeaderStopsAccepting in internal/sim)
func TestLeadershipLost(t *testing.T) {
	b := newBench(t, CoreOptions{}, 1, 2, 3)
	old := b.elect(1)
	old.core.Propose(1, []byte("committed"))
	b.settle()
	b.drop = func(m anyMessage) bool { return m.GetFrom() == 1 || m.GetTo() == 1 }
	old.core.Propose(2, []byte("lost"))
	b.settle()
	require.Equal(t, ProposalPlaced, old.props[2].State)
	require.Equal(t, Index(4), old.props[2].Index)
	b.tick(1, 20)
	require.Equal(t, RoleUnattached, old.roles[len(old.roles)-1], "no quorum answered")
	require.Equal(t, ProposalLost, old.props[2].State)
	require.ErrorIs(t, old.props[2].Err, ErrLeadershipLost)
	require.ErrorIs(t, old.props[2].Err, ErrOutcomeUnknown)
	require.Equal(t, []ProposalID{1}, old.owned)

	// Another leader puts its own entry in that place.
	b.patient(3)
	next := b.elect(2)
	next.core.Propose(1, []byte("other"))
	b.settle()
	b.drop = nil
	for range 4 {
		b.tick(2, 2)
	}
	require.Equal(t, next.applied, old.applied)
	require.Equal(t, []ProposalID{1}, old.owned)
	require.Equal(t, "other", string(old.applied[len(old.applied)-1].Data))
}

// A proposal that lost its place to a committed entry did not happen: the old
// leader learns of its end, of the other entry and of its commit at once.
//
// Property: R14 (red: settle lost what stands at or below commit too; with links and disks: TestIsolatedLeaderStopsAccepting in internal/sim)
func TestProposalReplaced(t *testing.T) {
	b := newBench(t, CoreOptions{}, 1, 2, 3)
	old := b.elect(1)
	b.drop = func(m anyMessage) bool { return m.GetFrom() == 1 || m.GetTo() == 1 }
	old.core.Propose(1, []byte("replaced"))
	b.settle()
	b.patient(3)
	next := b.elect(2)
	next.core.Propose(1, []byte("taken"))
	b.settle()
	old.core.Step(&pb.Message{
		Type: pb.MsgApp.Enum(), From: new(uint64(2)), To: new(uint64(1)), Term: new(uint64(next.core.Status().Term)),
		Index: new(uint64(2)), LogTerm: new(uint64(2)), Commit: new(uint64(4)),
		Entries: toRaftEntries(next.log.entries[1:]),
	})
	b.settle()
	require.Equal(t, ProposalLost, old.props[1].State)
	require.ErrorIs(t, old.props[1].Err, ErrReplaced)
	require.ErrorIs(t, old.props[1].Err, ErrRetry)
	require.Empty(t, old.owned)
	require.Equal(t, next.applied, old.applied)
}

func TestCoreRefusesWhatIsTooLarge(t *testing.T) {
	b := newBench(t, CoreOptions{}, 1)
	leader := b.elect(1)
	leader.core.Propose(1, make([]byte, MaxProposalBytes+1))
	b.settle()
	require.Equal(t, ProposalRefused, leader.props[1].State)
	var tooLarge *TooLargeError
	require.ErrorAs(t, leader.props[1].Err, &tooLarge)
	require.ErrorIs(t, leader.props[1].Err, ErrRefused)
}
