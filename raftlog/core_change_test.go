package raftlog

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stelelog/stele/storage"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/raft/v3/raftpb"
)

func wish(n byte) ChangeID { return ChangeID{0: n, 15: 1} }

// Property: R18 (red: voters that are no learners taken in; the leader's own removal taken in; the count of voters left out)
func TestWhichChangesAreProposed(t *testing.T) {
	conf := ConfState{Voters: []ReplicaID{1, 2, 3}, Learners: []ReplicaID{4}}
	for name, c := range map[string]struct {
		change Change
		reason string // empty: proposed
	}{
		"a learner":               {Change{Learners: []ReplicaID{5}}, ""},
		"a vote":                  {Change{Voters: []ReplicaID{4}}, ""},
		"a demotion":              {Change{Learners: []ReplicaID{2}}, ""},
		"a removal":               {Change{Remove: []ReplicaID{3}}, ""},
		"of a learner":            {Change{Remove: []ReplicaID{4}}, ""},
		"a swap":                  {Change{Voters: []ReplicaID{4}, Remove: []ReplicaID{3}}, ""},
		"all at once":             {Change{Learners: []ReplicaID{2, 5}, Voters: []ReplicaID{4}, Remove: []ReplicaID{3}}, ""},
		"nothing":                 {Change{}, "nothing"},
		"nobody":                  {Change{Learners: []ReplicaID{0}}, "no replica"},
		"a voter out of nothing":  {Change{Voters: []ReplicaID{5}}, "no learner"},
		"a voter that votes":      {Change{Voters: []ReplicaID{2}}, "no learner"},
		"a learner that is one":   {Change{Learners: []ReplicaID{4}}, "learner already"},
		"a removal of nobody":     {Change{Remove: []ReplicaID{9}}, "not in the configuration"},
		"the leader's removal":    {Change{Remove: []ReplicaID{1}}, "does not remove itself"},
		"the leader's demotion":   {Change{Learners: []ReplicaID{1}}, "does not demote itself"},
		"twice in a list":         {Change{Learners: []ReplicaID{5, 5}}, "named twice"},
		"twice in two lists":      {Change{Voters: []ReplicaID{4}, Remove: []ReplicaID{4}}, "named twice"},
		"more than can be meant":  {Change{Learners: make([]ReplicaID, maxChanges+1)}, "the most is"},
		"two of three at a time":  {Change{Learners: []ReplicaID{2}, Remove: []ReplicaID{3}}, ""},
		"a learner out of thin 2": {Change{Learners: []ReplicaID{5, 6, 7}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c.change.ID = wish(1)
			err := c.change.check(7, conf, 1)
			if c.reason == "" {
				require.NoError(t, err)
				data, err := c.change.encode()
				require.NoError(t, err)
				cc, err := decodeConfChange(toRaftEntry(storage.Entry{Kind: storage.EntryConfChangeV2, Data: data}))
				require.NoError(t, err)
				_, err = changeConf(conf, 9, cc)
				require.NoError(t, err, "raft takes it")
				id, ok := wishOf(cc)
				require.True(t, ok)
				require.Equal(t, wish(1), id)
				auto, joint := cc.EnterJoint()
				require.False(t, auto, "it is left explicitly")
				require.Equal(t, len(cc.GetChanges()) > 1, joint)
				return
			}
			var refused *ChangeError
			require.ErrorAs(t, err, &refused)
			require.ErrorIs(t, err, ErrRefused)
			require.ErrorContains(t, err, c.reason)
		})
	}
	require.ErrorContains(t, (&Change{Remove: []ReplicaID{2}}).check(7, conf, 1), "no id")
	// Whoever is asked to leave the last voter out is not the leader: a learner
	// cannot be, but the rule does not rest on that.
	alone := ConfState{Voters: []ReplicaID{1}, Learners: []ReplicaID{4}}
	require.ErrorContains(t, (&Change{ID: wish(1), Remove: []ReplicaID{1}}).check(7, alone, 4), "no voter")
}

func TestForeignContextsNameNoWish(t *testing.T) {
	for _, context := range [][]byte{nil, {1}, append([]byte{2}, make([]byte, 16)...), append([]byte{1}, make([]byte, 17)...)} {
		_, ok := wishOf(&pb.ConfChangeV2{Context: context})
		require.False(t, ok)
	}
}

// changed proposes a change on a core and returns how it ended.
func (b *bench) change(r *bencher, ch Change) error {
	id := r.begin(ch)
	b.settle()
	ev, ok := r.changes[id]
	require.True(b.t, ok, "the change has not ended: %+v", r.core.Status())
	return ev.Err
}

func (r *bencher) begin(ch Change) ProposalID {
	r.lastChange++
	id := 1_000_000 + r.lastChange
	r.core.Change(id, ch)
	return id
}

// join opens an empty replica.
func (b *bench) join(id ReplicaID) *bencher {
	if len(b.cores) > 0 && b.cores[id] == nil {
		b.ids = append(b.ids, id)
	}
	return b.open(storage.ReplicaState{Group: 7, Replica: id, Status: storage.ReplicaLive}, &memoryLog{}, CoreOptions{})
}

// install begins the log of a replica anew at what another one applied.
func (b *bench) install(id, from ReplicaID) *bencher {
	st, src := b.cores[id].core.State(), b.cores[from].core
	begin := Begin{Reset: st.Log.Reset + 1, Index: src.applied, Term: src.state.Log.LastTerm, Conf: src.conf}
	held, err := CheckReset(st, begin)
	require.NoError(b.t, err)
	require.False(b.t, held)
	st.Hard.Commit = begin.Index
	if st.Hard.Term < begin.Term {
		st.Hard.Term, st.Hard.Vote = begin.Term, 0
	}
	st.Conf, st.Tail = begin.Conf, nil
	st.Log = storage.LogPosition{
		Reset: begin.Reset, StartIndex: begin.Index, StartTerm: begin.Term, LastIndex: begin.Index, LastTerm: begin.Term,
	}
	old := b.cores[id]
	r := b.open(st, &memoryLog{}, CoreOptions{})
	r.behind = old.behind
	return r
}

// grow adds an empty replica to the group, has it catch up and vote.
func (b *bench) grow(leader *bencher, id ReplicaID, n byte) {
	b.join(id)
	require.NoError(b.t, b.change(leader, Change{ID: wish(n), Learners: []ReplicaID{id}}))
	b.install(id, leader.core.self)
	b.tick(leader.core.self, 4)
	require.Equal(b.t, leader.core.Status().Applied, b.cores[id].core.Status().Applied)
	require.NoError(b.t, b.change(leader, Change{ID: wish(n + 1), Voters: []ReplicaID{id}}))
}

// A replica is added with nothing, gets a snapshot beside raft, learns and then
// votes; another one goes in the same step.
//
// Property: R17, R19, R32 (red: no answer to a heartbeat without a commit index; no leave proposed by the leader)
func TestAReplicaJoinsAndReplacesAnother(t *testing.T) {
	b := newBench(t, CoreOptions{}, 1, 2, 3)
	leader := b.elect(1)
	for i := range 5 {
		leader.core.Propose(ProposalID(i+1), []byte{byte(i)})
	}
	b.settle()
	joiner := b.join(4)
	require.NoError(t, b.change(leader, Change{ID: wish(1), Learners: []ReplicaID{4}}))
	b.tick(1, 6)
	require.Equal(t, RoleObserver, joiner.core.Status().Role)
	require.Equal(t, ReplicaID(1), joiner.core.Status().Leader)
	require.Zero(t, joiner.core.Status().Commit)
	require.Equal(t, []ReplicaID{4}, leader.behind)
	require.True(t, joiner.core.NeedsSnapshot(1, 2, 1))
	require.False(t, joiner.core.NeedsSnapshot(1, 1, 1), "of a term of the past")
	require.False(t, joiner.core.NeedsSnapshot(2, 2, 1), "not of its leader")

	joiner = b.install(4, 1)
	require.Equal(t, RoleObserver, joiner.core.Status().Role)
	b.tick(1, 4)
	require.Equal(t, leader.core.Status().Applied, joiner.core.Status().Applied)
	require.True(t, joiner.core.Status().Readable)

	require.NoError(t, b.change(leader, Change{ID: wish(2), Voters: []ReplicaID{4}, Remove: []ReplicaID{3}}))
	s := leader.core.Status()
	require.Equal(t, []ReplicaID{1, 2, 4}, s.Conf.Voters)
	require.Empty(t, s.Conf.VotersOutgoing)
	require.True(t, s.ConfSafe)
	require.True(t, s.Settled)
	require.Empty(t, s.Unsettled)
	require.False(t, s.ConfPending)
	require.Equal(t, s.Conf.Voters, b.cores[4].core.Status().Conf.Voters)
	require.Equal(t, RoleRemoved, b.cores[3].core.Status().Role)
	require.Equal(t, RoleFollower, b.cores[4].core.Status().Role)

	// The leader and one more can go: the new one has a vote.
	b.drop = func(m anyMessage) bool {
		return m.GetFrom() == 1 || m.GetTo() == 1 || m.GetFrom() == 3 || m.GetTo() == 3
	}
	b.patient(2)
	b.elect(4)
}

// A change that was not applied did not happen: not the second of two at a
// time, which raft would turn into an empty entry without a word, and not one
// before the leader knows where it stands.
//
// Property: R17, R18 (red: no look at what became of the entry, and none at what is pending; a leader that has committed nothing)
func TestOneChangeAtATime(t *testing.T) {
	b := newBench(t, CoreOptions{}, 1, 2, 3)
	b.drop = func(m anyMessage) bool { return m.GetType() == pb.MsgApp }
	leader := b.cores[1]
	for i := 0; i < 60 && leader.core.Status().Role != RoleLeaderStarting; i++ {
		b.tick(1, 1)
	}
	require.ErrorIs(t, b.change(leader, Change{ID: wish(1), Learners: []ReplicaID{4}}), ErrNotActive)
	require.ErrorIs(t, b.change(leader, Change{ID: wish(1), Learners: []ReplicaID{4}}), ErrRetry)
	b.drop = nil
	b.tick(1, 3)

	first := leader.begin(Change{ID: wish(1), Learners: []ReplicaID{4}})
	second := leader.begin(Change{ID: wish(2), Learners: []ReplicaID{5}})
	again := leader.begin(Change{ID: wish(1), Learners: []ReplicaID{4}})
	b.settle()
	require.NoError(t, leader.changes[first].Err)
	require.NoError(t, leader.changes[again].Err, "the same wish is followed")
	require.ErrorIs(t, leader.changes[second].Err, ErrChangePending)
	require.ErrorIs(t, leader.changes[second].Err, ErrRetry)
	require.Equal(t, []ReplicaID{4}, leader.core.Status().Conf.Learners)
	require.NoError(t, b.change(leader, Change{ID: wish(1), Learners: []ReplicaID{4}}), "and known to be done")
	require.ErrorIs(t, b.change(leader, Change{ID: wish(3), Learners: []ReplicaID{4}}), ErrRefused)
	var elsewhere *NotLeaderError
	require.ErrorAs(t, b.change(b.cores[2], Change{ID: wish(4), Learners: []ReplicaID{5}}), &elsewhere)
	require.Equal(t, ReplicaID(1), elsewhere.Leader)

	// Not while leadership is handed over, nor beside proposals over the limit.
	b.drop = func(m anyMessage) bool { return m.GetType() == pb.MsgTimeoutNow }
	require.NoError(t, leader.core.Transfer(2))
	require.ErrorIs(t, b.change(leader, Change{ID: wish(5), Learners: []ReplicaID{5}}), ErrTransferring)
}

// What raft itself refuses ends as if nothing had happened, also when it was
// found out behind our back.
//
// Property: R17 (red: any entry in its place taken for the change)
func TestAChangeThatRaftReplaces(t *testing.T) {
	b := newBench(t, CoreOptions{}, 1, 2, 3)
	leader := b.elect(1)
	data, err := (&Change{ID: wish(9), Learners: []ReplicaID{9}}).encode()
	require.NoError(t, err)
	id := leader.begin(Change{ID: wish(1), Learners: []ReplicaID{4}})
	require.NoError(t, leader.core.node.Step(&pb.Message{ // raft has one already
		Type: pb.MsgProp.Enum(), Entries: toRaftEntries([]storage.Entry{{Kind: storage.EntryConfChangeV2, Data: data}}),
	}))
	leader.core.last++ // as it would have been seen
	b.settle()
	require.ErrorIs(t, leader.changes[id].Err, ErrChangePending)
	require.ErrorIs(t, leader.changes[id].Err, ErrRetry)
	require.Equal(t, []ReplicaID{9}, leader.core.Status().Conf.Learners)
	require.NoError(t, b.change(leader, Change{ID: wish(1), Learners: []ReplicaID{4}}))
}

// A leader that is gone before its change is applied does not know; the one
// after it finishes what it finds, and the wish is known there by its name.
//
// Property: R17, R19 (red: leadership lost told as nothing happened; the leave proposed only by who began)
func TestTheNextLeaderLeavesAJointConfiguration(t *testing.T) {
	b := newBench(t, CoreOptions{}, 1, 2, 3)
	leader := b.elect(1)
	b.join(4)
	require.NoError(t, b.change(leader, Change{ID: wish(1), Learners: []ReplicaID{4}}))
	b.install(4, 1)
	b.tick(1, 4)

	// The change reaches the others; what they answer does not reach the leader.
	b.drop = func(m anyMessage) bool { return m.GetTo() == 1 }
	swap := Change{ID: wish(2), Voters: []ReplicaID{4}, Remove: []ReplicaID{3}}
	id := leader.begin(swap)
	b.settle()
	b.drop = func(m anyMessage) bool { return m.GetTo() == 1 || m.GetFrom() == 1 }
	b.tick(1, 21)
	require.ErrorIs(t, leader.changes[id].Err, ErrLeadershipLost)
	require.ErrorIs(t, leader.changes[id].Err, ErrOutcomeUnknown)
	b.patient(3, 4)
	next := b.elect(2)
	b.tick(2, 2)
	s := next.core.Status()
	require.Equal(t, []ReplicaID{1, 2, 4}, s.Conf.Voters)
	require.Empty(t, s.Conf.VotersOutgoing, "nobody asked, and it is left")
	require.True(t, s.ConfSafe)
	require.False(t, s.Settled)
	require.Equal(t, []ReplicaID{1}, s.Unsettled, "it has not heard of it")
	require.NoError(t, b.change(next, swap))
	b.drop = nil
	b.tick(2, 4)
	require.True(t, next.core.Status().Settled)
}

// A leader that a joint configuration takes out hands over first: it cannot
// have asked for that itself, but may have come to lead since.
//
// Property: R20 (red: no hand-over before the leave)
func TestALeaderOnItsWayOutHandsOver(t *testing.T) {
	b := newBench(t, CoreOptions{}, 1, 2, 3)
	leader := b.elect(1)
	b.join(4)
	require.NoError(t, b.change(leader, Change{ID: wish(1), Learners: []ReplicaID{4}}))
	b.install(4, 1)
	b.tick(1, 4)
	b.drop = func(m anyMessage) bool { return m.GetTo() == 1 }
	leader.begin(Change{ID: wish(2), Voters: []ReplicaID{4}, Remove: []ReplicaID{2}})
	b.settle()
	b.drop = func(m anyMessage) bool { return m.GetTo() == 1 || m.GetFrom() == 1 }
	b.patient(3, 4)
	out := b.cores[2] // it has the change in its log
	for i := 0; i < 60 && !slices.Contains(out.roles, RoleLeaderActive); i++ {
		b.tick(2, 1)
	}
	require.Contains(t, out.roles, RoleLeaderActive)
	b.tick(2, 2)
	b.drop = nil
	for range 5 {
		for _, id := range []ReplicaID{1, 2, 3, 4} {
			b.tick(id, 1)
		}
	}
	var leads []ReplicaID
	for _, id := range []ReplicaID{1, 3, 4} {
		s := b.cores[id].core.Status()
		require.Empty(t, s.Conf.VotersOutgoing, "%v", id)
		if s.Role == RoleLeaderActive {
			leads = append(leads, id)
			require.Equal(t, Term(4), s.Term, "handed over, not elected after a timeout")
		}
	}
	require.Len(t, leads, 1)
	require.False(t, out.core.Status().Role.IsLeader())
}

// A single voter grows to three and back, whoever leads.
func TestOneVoterGrowsAndShrinks(t *testing.T) {
	b := newBench(t, CoreOptions{}, 1)
	leader := b.elect(1)
	b.grow(leader, 2, 1)
	b.grow(leader, 3, 3)
	require.Equal(t, []ReplicaID{1, 2, 3}, leader.core.Status().Conf.Voters)
	require.NoError(t, leader.core.Transfer(3))
	b.settle()
	leader = b.cores[3]
	require.Equal(t, RoleLeaderActive, leader.core.Status().Role)
	require.NoError(t, b.change(leader, Change{ID: wish(9), Remove: []ReplicaID{1}}))
	require.NoError(t, b.change(leader, Change{ID: wish(10), Learners: []ReplicaID{2}}))
	leader.core.Propose(1, []byte("alone"))
	b.settle()
	require.Equal(t, []ProposalID{1}, leader.owned)
	require.Equal(t, RoleObserver, b.cores[2].core.Status().Role)
	require.ErrorIs(t, leader.core.Resign(), ErrNoTarget, "there is nobody else")
	require.Equal(t, RoleLeaderActive, leader.core.Status().Role)
}

// Proposals and a change go to raft together, and each gets its own place.
func TestProposalsBesideAChange(t *testing.T) {
	b := newBench(t, CoreOptions{}, 1, 2, 3)
	leader := b.elect(1)
	for i := range 3 {
		leader.core.Propose(ProposalID(i+1), fmt.Append(nil, "before ", i))
	}
	id := leader.begin(Change{ID: wish(1), Learners: []ReplicaID{4}})
	for i := range 3 {
		leader.core.Propose(ProposalID(i+4), fmt.Append(nil, "behind ", i))
	}
	b.settle()
	require.NoError(t, leader.changes[id].Err)
	require.Equal(t, []ProposalID{1, 2, 3, 4, 5, 6}, leader.owned)
	require.Equal(t, storage.EntryConfChangeV2, leader.applied[4].Kind)
	require.Zero(t, leader.core.proposals.uncommitted)
}
