package raftlog

import (
	"testing"

	"github.com/stelelog/stele/storage"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/raft/v3/raftpb"
)

// A follower that needs what the leader let go is reported, now and then, as
// long as it answers; one that gets what it needs is not.
//
// Property: R24 (red: every request reported)
func TestWhoIsBehind(t *testing.T) {
	b := newBench(t, CoreOptions{KeepBytes: 1}, 1, 2, 3)
	leader := b.elect(1)
	b.drop = func(m anyMessage) bool { return m.GetTo() == 3 }
	for i := range 5 {
		leader.core.Propose(ProposalID(i+1), []byte{byte(i)})
		b.settle()
	}
	b.drop = nil
	b.tick(1, 2)
	require.Empty(t, leader.behind, "all is there")
	require.Equal(t, leader.applied, b.cores[3].applied)

	b.drop = func(m anyMessage) bool { return m.GetTo() == 3 }
	leader.core.Propose(6, []byte("trimmed"))
	b.settle()
	pos := leader.core.state.Log
	pos.StartIndex, pos.StartTerm = pos.LastIndex, pos.LastTerm
	leader.log.entries = nil
	leader.core.Applied(pos.LastIndex, pos)
	require.Equal(t, pos.StartIndex, leader.core.Status().LogStart)
	b.tick(1, 60)
	require.Empty(t, leader.behind, "it does not answer")
	b.drop = nil
	b.tick(1, 60)
	require.Equal(t, []ReplicaID{3, 3, 3}, leader.behind)
	require.NoError(t, leader.core.Failed())
	b.install(3, 1)
	b.tick(1, 60)
	require.Len(t, leader.behind, 3)
	require.Equal(t, leader.core.Status().Applied, b.cores[3].core.Status().Applied)
	leader.core.Propose(7, []byte("x"))
	b.settle()
	require.Equal(t, leader.core.Status().Applied, b.cores[3].core.Status().Applied)
}

// A log is trimmed and nothing is applied any more, since that takes the
// follower that needs what is gone.
//
// Property: R24 (red: where the log begins told with what is applied alone)
func TestBehindALogThatWasTrimmedSince(t *testing.T) {
	b := newBench(t, CoreOptions{KeepBytes: 1}, 1, 2, 3)
	leader := b.elect(1)
	b.drop = func(m anyMessage) bool { return m.GetTo() == 3 }
	for i := range 5 {
		leader.core.Propose(ProposalID(i+1), []byte{byte(i)})
		b.settle()
	}
	leader.log.start, leader.log.entries = leader.core.Status().Applied, nil
	b.drop = func(m anyMessage) bool { return m.GetTo() == 2 }
	b.tick(1, 3)
	require.Equal(t, []ReplicaID{3}, leader.behind)
	require.Equal(t, leader.log.start, leader.core.Status().LogStart)
	require.NoError(t, leader.core.Failed())
	b.install(3, 1)
	leader.core.Propose(6, []byte("x"))
	b.tick(1, 4)
	require.Contains(t, leader.owned, ProposalID(6))
}

// What a replica vouches for is durable, and known to be committed durably; it
// goes to the leader of its term alone, not before the term is durable.
//
// Property: R3, R12 (red: the end of the log vouched for; an answer to a leader of the past; one that does not wait for the term)
func TestVouching(t *testing.T) {
	st, log := recovered(6, 9, hardAt(2, 7), 1, 2, 3)
	b := emptyBench(t, 1)
	r := b.open(st, log, CoreOptions{})
	b.settle()
	var out []*pb.Message
	b.watch = func(r *bencher) {
		for _, m := range r.fx.Send {
			if m.GetType() == pb.MsgAppResp {
				out = append(out, m)
			}
		}
	}
	hear := func(from ReplicaID, term Term, commit Index) []*pb.Message {
		out = nil
		m := message(pb.MsgHeartbeat, from, 1, term)
		m.Commit = new(uint64(commit))
		r.core.Step(m)
		b.settle()
		return out
	}
	r.stalled = true
	require.Empty(t, hear(2, 4, 0), "a new term")
	require.Empty(t, hear(2, 4, 0), "and still not durable")
	r.core.Appended(r.held)
	r.stalled = false
	b.settle()
	require.Len(t, out, 1)
	require.Len(t, hear(2, 4, 0), 1)
	require.Equal(t, uint64(7), out[0].GetIndex())
	require.Equal(t, uint64(4), out[0].GetTerm())
	require.Equal(t, uint64(2), out[0].GetTo())
	require.False(t, out[0].GetReject())
	require.Len(t, hear(2, 4, 5), 1, "it knows less")
	require.Empty(t, hear(2, 4, 7), "it knows")
	out = nil
	require.False(t, r.core.NeedsSnapshot(2, 4, 7), "what is behind the start of the leader's log is here")
	b.settle()
	require.Len(t, out, 1)
	require.Equal(t, uint64(7), out[0].GetIndex())
	require.True(t, r.core.NeedsSnapshot(2, 4, 8), "the tail may be another")
	require.Len(t, hear(2, 3, 0), 1, "a leader of the past")
	require.Zero(t, out[0].GetIndex(), "is told of the term, as raft does")
}

// Property: R24, R12, R8 (red: the index alone compared; a log that has the entry begun anew; what is committed beyond it forgotten)
func TestCheckReset(t *testing.T) {
	conf := ConfState{Voters: []ReplicaID{1, 2, 3}}
	for name, c := range map[string]struct {
		index  Index
		term   Term
		spoil  func(*storage.ReplicaState, *Begin)
		held   bool
		reason string
	}{
		"beyond the log":                {index: 20, term: 3},
		"beyond the log, an older term": {index: 20, term: 1},
		"at the end, another entry":     {index: 9, term: 3},
		"in the tail, another entry":    {index: 8, term: 3},
		"in the tail, the same entry":   {index: 8, term: 2, held: true},
		"at the end, the same entry":    {index: 9, term: 2, held: true},
		"what is known to be committed": {index: 7, term: 2, held: true},
		"below what is committed":       {index: 6, term: 2, reason: "committed here"},
		"another committed entry":       {index: 7, term: 3, reason: "has term 2"},
		"no entry":                      {index: 0, term: 2, reason: "no entry"},
		"no term":                       {index: 20, term: 0, reason: "no entry"},
		"no id":                         {index: 20, term: 3, reason: "id of its own", spoil: func(_ *storage.ReplicaState, b *Begin) { b.Reset = 0 }},
		"the id of the last reset":      {index: 20, term: 3, reason: "id of its own", spoil: func(st *storage.ReplicaState, _ *Begin) { st.Log.Reset = 5 }},
		"older than the replica's part": {index: 20, term: 3, reason: "does not list", spoil: func(_ *storage.ReplicaState, b *Begin) { b.Conf.Voters = b.Conf.Voters[1:] }},
		"no configuration":              {index: 20, term: 3, reason: "is none", spoil: func(_ *storage.ReplicaState, b *Begin) { b.Conf = ConfState{Learners: []ReplicaID{1}} }},
		"a replica that was set aside":  {index: 20, term: 3, reason: "set aside", spoil: func(st *storage.ReplicaState, _ *Begin) { st.Status = storage.ReplicaSetAside }},
		"an empty replica": {index: 20, term: 3, spoil: func(st *storage.ReplicaState, _ *Begin) {
			*st = storage.ReplicaState{Group: 7, Replica: 1, Status: storage.ReplicaLive}
		}},
		"applied ahead of what is known": {index: 5, term: 2, reason: "entry 6", spoil: func(st *storage.ReplicaState, _ *Begin) { st.Hard.Commit = 3 }},
		"a joint configuration is one":   {index: 20, term: 3, spoil: func(_ *storage.ReplicaState, b *Begin) { b.Conf.VotersOutgoing = []ReplicaID{1, 4, 5} }},
		"a learner gets a snapshot, too": {index: 20, term: 3, spoil: func(_ *storage.ReplicaState, b *Begin) {
			b.Conf = ConfState{Voters: []ReplicaID{2}, Learners: []ReplicaID{1}}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			st, _ := recovered(6, 9, hardAt(2, 7), 1, 2, 3)
			begin := Begin{Reset: 5, Index: c.index, Term: c.term, Conf: conf}
			if c.spoil != nil {
				c.spoil(&st, &begin)
			}
			held, err := CheckReset(st, begin)
			if c.reason == "" {
				require.NoError(t, err)
				require.Equal(t, c.held, held)
				return
			}
			var refused *ResetError
			require.ErrorAs(t, err, &refused)
			require.ErrorIs(t, err, ErrRefused)
			require.ErrorContains(t, err, c.reason)
		})
	}
}
