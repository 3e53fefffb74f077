package raftlog

import (
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/raft/v3/raftpb"
)

// leads returns who leads actively, 0: nobody.
func (b *bench) leads(except ReplicaID) ReplicaID {
	for _, id := range b.ids {
		if id != except && b.cores[id].core.Status().Role == RoleLeaderActive {
			return id
		}
	}
	return 0
}

func (b *bench) tickAll() {
	for _, id := range b.ids {
		b.tick(id, 1)
	}
}

// Property: R16 (red: successors asked in the order of their logs; dead ones asked first)
func TestResignToTheFirstThatIsThere(t *testing.T) {
	for name, c := range map[string]struct {
		successors []ReplicaID
		dead       ReplicaID
		want       ReplicaID
	}{
		"the first":                {[]ReplicaID{4, 2}, 0, 4},
		"the first is dead":        {[]ReplicaID{4, 2}, 4, 2},
		"none: the most caught up": {nil, 0, 2},
		"nobody it knows":          {[]ReplicaID{9, 1}, 0, 2},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, CoreOptions{}, 1, 2, 3, 4, 5)
			leader := b.elect(1)
			dead := func(m anyMessage) bool { return ReplicaID(m.GetTo()) == c.dead || ReplicaID(m.GetFrom()) == c.dead }
			b.drop = dead
			b.tick(1, 15)
			b.drop = func(m anyMessage) bool { // these have heard of the last entry
				return dead(m) || m.GetType() == pb.MsgApp && m.GetTo() != 2 && m.GetTo() != 5
			}
			leader.core.Propose(1, []byte("a"))
			b.settle()
			b.drop = dead
			leader.core.Propose(2, []byte("of the same look"))
			require.NoError(t, leader.core.Resign(c.successors...))
			leader.core.Propose(3, []byte("too late"))
			last := leader.core.Status().Last
			b.settle()
			require.ErrorIs(t, leader.props[2].Err, ErrTransferring)
			require.ErrorIs(t, leader.props[3].Err, ErrTransferring)
			require.Contains(t, leader.owned, ProposalID(1))
			for range 5 {
				b.tick(1, 1)
			}
			require.Equal(t, c.want, b.leads(1))
			require.Equal(t, last, leader.core.state.Log.LastIndex-1, "nothing but what the next one appended")
			require.False(t, leader.core.Status().Role.IsLeader())
		})
	}
}

// A leader that has just won knows nobody yet who is there: it waits for the first
// answer, which is the moment to hand over, and not for an election.
//
// Property: R16, H10 (red: silence at once; the next tick waited for)
func TestResignOfOneThatHasJustWon(t *testing.T) {
	b := newBench(t, CoreOptions{}, 1, 2, 3)
	leader := b.cores[1]
	var late []anyMessage
	b.drop = func(m anyMessage) bool {
		if m.GetType() == pb.MsgAppResp {
			late = append(late, m)
		}
		return m.GetType() == pb.MsgAppResp
	}
	for i := 0; i < 100 && !leader.core.Status().Role.IsLeader(); i++ {
		b.tick(1, 1)
	}
	require.NoError(t, leader.core.Resign())
	b.settle()
	b.drop = nil
	leader.core.Step(late[0]) // no time passes: nobody campaigns by itself
	b.settle()
	require.NotZero(t, b.leads(1))
	require.False(t, leader.core.Status().Role.IsLeader())
}

// If nobody takes over the leader falls silent, and stays so: the others elect.
//
// Property: R16 (red: no silence after the last refusal)
func TestResignWithoutATarget(t *testing.T) {
	b := newBench(t, CoreOptions{}, 1, 2, 3)
	leader := b.elect(1)
	handed := map[ReplicaID]int{}
	b.drop = func(m anyMessage) bool {
		if m.GetType() == pb.MsgTimeoutNow {
			handed[ReplicaID(m.GetTo())]++
		}
		return m.GetType() == pb.MsgTimeoutNow
	}
	leader.core.Propose(1, []byte("before"))
	b.settle()
	require.NoError(t, leader.core.Resign(3))
	require.NoError(t, leader.core.Resign(2), "it has")
	ticks := 0
	for ; b.leads(1) == 0 && ticks < 100; ticks++ {
		leader.core.SetDisk(DiskGood)
		leader.core.Propose(ProposalID(ticks+2), []byte("after"))
		b.tickAll()
	}
	require.LessOrEqual(t, ticks, 2*10+2*20, "two refusals, and an election")
	require.Equal(t, map[ReplicaID]int{2: 1, 3: 1}, handed)
	for i := range ticks {
		require.Equal(t, ProposalRefused, leader.props[ProposalID(i+2)].State)
		require.ErrorIs(t, leader.props[ProposalID(i+2)].Err, ErrRetry)
	}
	for range 25 {
		b.tickAll()
	}
	require.Equal(t, RoleFollower, leader.core.Status().Role)

	// It may lead again, in another term.
	b.drop = nil
	require.NoError(t, b.cores[leader.core.Status().Leader].core.Transfer(1))
	b.settle()
	leader.core.Propose(1000, []byte("again"))
	b.settle()
	require.Contains(t, leader.owned, ProposalID(1000))
	var elsewhere *NotLeaderError
	require.ErrorAs(t, b.cores[2].core.Resign(), &elsewhere)
}

// The last other voter goes while the leader is on its way out: it stays.
//
// Property: R16 (red: a resignation that outlives the last other voter)
func TestResignBesideTheLastRemoval(t *testing.T) {
	b := newBench(t, CoreOptions{}, 1, 2)
	leader := b.elect(1)
	id := leader.begin(Change{ID: wish(1), Remove: []ReplicaID{2}})
	b.drop = func(m anyMessage) bool { return m.GetType() == pb.MsgTimeoutNow || m.GetType() == pb.MsgAppResp }
	b.settle()
	require.NoError(t, leader.core.Resign())
	b.drop = func(m anyMessage) bool { return m.GetType() == pb.MsgTimeoutNow }
	for range 40 {
		b.tick(1, 1)
	}
	require.NoError(t, leader.changes[id].Err)
	require.Equal(t, []ReplicaID{1}, leader.core.Status().Conf.Voters)
	leader.core.Propose(1, []byte("alone"))
	b.settle()
	require.Equal(t, []ProposalID{1}, leader.owned)
}

// Cut off from all, it steps down all the same.
func TestResignAlone(t *testing.T) {
	b := newBench(t, CoreOptions{}, 1, 2, 3)
	leader := b.elect(1)
	b.drop = func(anyMessage) bool { return true }
	require.NoError(t, leader.core.Resign())
	b.tick(1, 4*10)
	require.False(t, leader.core.Status().Role.IsLeader())
}
