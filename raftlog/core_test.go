package raftlog

import (
	"errors"
	"slices"
	"testing"
	"testing/cryptotest"

	"github.com/stelelog/stele/storage"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/raft/v3/raftpb"
)

// bench is a few cores, each with a disk that syncs at once and a log in
// memory, and a network that delivers everything in order.
type bench struct {
	t     *testing.T
	cores map[ReplicaID]*bencher
	ids   []ReplicaID
	drop  func(anyMessage) bool
	watch func(*bencher) // sees effects before they are carried out
}

type anyMessage = *pb.Message

type bencher struct {
	core    *Core
	log     *memoryLog
	fx      Effects
	applied []Entry
	owned   []ProposalID
	props   map[ProposalID]ProposalEvent
	reads   map[ReadID]ReadEvent
	changes map[ProposalID]ChangeEvent
	behind  []ReplicaID
	roles   []Role
	stalled bool // the disk: effects are kept, nothing is told
	held    Seq
	frames  []storage.Frame

	lastChange ProposalID
}

// memoryLog is a partition log in memory.
type memoryLog struct {
	entries []storage.Entry
	start   Index
	err     error
	reads   int
}

func (l *memoryLog) Entries(lo, hi Index, maxBytes int) ([]storage.Entry, error) {
	l.reads++
	if l.err != nil {
		return nil, l.err
	}
	var out []storage.Entry
	for _, e := range l.entries {
		if e.Index >= lo && e.Index < hi && (len(out) == 0 || maxBytes > 0) {
			out = append(out, e)
			maxBytes -= len(e.Data)
		}
	}
	return out, nil
}

func (l *memoryLog) Position() storage.LogPosition {
	return storage.LogPosition{StartIndex: l.start, StartTerm: 2}
}

func (l *memoryLog) Term(i Index) (Term, error) {
	if l.err != nil {
		return 0, l.err
	}
	for _, e := range l.entries {
		if e.Index == i {
			return e.Term, nil
		}
	}
	return 0, errors.New("not here")
}

func created(group GroupID, self ReplicaID, voters ...ReplicaID) storage.ReplicaState {
	return storage.ReplicaState{
		Group: group, Replica: self, Status: storage.ReplicaLive,
		Hard: storage.HardState{Term: 1, Commit: 1},
		Conf: ConfState{Voters: voters},
		Log:  storage.LogPosition{StartIndex: 1, StartTerm: 1, LastIndex: 1, LastTerm: 1},
	}
}

func newBench(t *testing.T, opts CoreOptions, voters ...ReplicaID) *bench {
	b := emptyBench(t, voters...)
	for _, id := range voters {
		b.open(created(7, id, voters...), &memoryLog{}, opts)
	}
	return b
}

// emptyBench repeats the election timeouts that raft draws.
func emptyBench(t *testing.T, ids ...ReplicaID) *bench {
	cryptotest.SetGlobalRandom(t, 1)
	return &bench{t: t, cores: map[ReplicaID]*bencher{}, ids: ids}
}

func (b *bench) open(st storage.ReplicaState, log *memoryLog, opts CoreOptions) *bencher {
	return b.openWith(st, log, opts, nil)
}

func (b *bench) openWith(st storage.ReplicaState, log *memoryLog, opts CoreOptions, machine *AppliedState) *bencher {
	core, err := NewCore(CoreConfig{State: st, Machine: machine, Older: log, ReadNonce: uint64(st.Replica), Options: opts})
	require.NoError(b.t, err)
	r := &bencher{
		core: core, log: log, props: map[ProposalID]ProposalEvent{}, reads: map[ReadID]ReadEvent{},
		changes: map[ProposalID]ChangeEvent{},
	}
	b.cores[st.Replica] = r
	return r
}

// settle runs effects until nobody has any.
func (b *bench) settle() {
	for again := true; again; {
		again = false
		for _, id := range b.ids {
			for b.cores[id].core.HasEffects() {
				again = true
				b.run(b.cores[id])
			}
		}
	}
}

func (b *bench) run(r *bencher) {
	r.core.Effects(&r.fx)
	if b.watch != nil {
		b.watch(r)
	}
	for _, ev := range r.fx.Proposals {
		r.props[ev.ID] = ev
	}
	for _, ev := range r.fx.Reads {
		r.reads[ev.ID] = ev
	}
	for _, ev := range r.fx.Changes {
		r.changes[ev.ID] = ev
	}
	r.behind = append(r.behind, r.fx.Behind...)
	if r.fx.Status != nil {
		r.roles = append(r.roles, r.fx.Status.Role)
	}
	sends := r.fx.Send
	for _, m := range sends {
		to := b.cores[ReplicaID(m.GetTo())]
		if to != nil && (b.drop == nil || !b.drop(m)) {
			to.core.Step(m)
		}
	}
	if a := r.fx.Append; a != nil {
		r.frames = append(r.frames, a.Frame)
		r.held = a.Seq
	}
	if !r.stalled {
		r.core.Appended(r.held)
	}
	r.apply()
}

func (r *bencher) apply() {
	if len(r.fx.Apply) == 0 {
		return
	}
	for i, e := range r.fx.Apply {
		r.applied = append(r.applied, e)
		if r.fx.Owners != nil && r.fx.Owners[i] != 0 {
			r.owned = append(r.owned, r.fx.Owners[i])
		}
		if n := len(r.log.entries); n == 0 || r.log.entries[n-1].Index < e.Index {
			r.log.entries = append(r.log.entries, storage.Entry{Index: e.Index, Term: e.Term, Kind: e.Kind, Data: e.Data})
		}
	}
	last := r.fx.Apply[len(r.fx.Apply)-1]
	pos := r.core.state.Log
	if last.Index > pos.LastIndex {
		pos.LastIndex, pos.LastTerm = last.Index, last.Term
	}
	r.core.Applied(last.Index, pos)
}

// elect ticks one replica until it leads.
func (b *bench) elect(id ReplicaID) *bencher {
	r := b.cores[id]
	for i := 0; i < 100 && r.core.Status().Role != RoleLeaderActive; i++ {
		b.tick(id, 1)
	}
	require.Equal(b.t, RoleLeaderActive, r.core.Status().Role)
	return r
}

func (b *bench) tick(id ReplicaID, n int) {
	for range n {
		b.cores[id].core.Tick()
		b.settle()
	}
}

// patient lets replicas wait out their leader without campaigning, so that
// they will vote for another.
func (b *bench) patient(ids ...ReplicaID) {
	drop := b.drop
	b.drop = func(m anyMessage) bool { return m.GetType() == pb.MsgPreVote || drop != nil && drop(m) }
	for _, id := range ids {
		b.tick(id, 10)
	}
	b.drop = drop
}

func TestCoreReplicates(t *testing.T) {
	b := newBench(t, CoreOptions{}, 1, 2, 3)
	leader := b.elect(1)
	for i := range 5 {
		leader.core.Propose(ProposalID(i+1), []byte{byte(i)})
	}
	b.settle()
	require.Equal(t, []ProposalID{1, 2, 3, 4, 5}, leader.owned)
	for _, id := range b.ids {
		got := b.cores[id].applied
		require.Len(t, got, 6, "the term's empty entry and five proposals")
		require.Equal(t, Index(2), got[0].Index)
		require.Equal(t, leader.applied, got)
		require.True(t, b.cores[id].core.Status().Readable)
	}
	require.Equal(t, []Role{RoleUnattached, RoleProspective, RoleCandidate, RoleLeaderStarting, RoleLeaderActive}, slices.Compact(leader.roles))
	leader.core.Read(1)
	b.cores[2].core.Read(2)
	b.settle()
	require.Equal(t, ReadEvent{ID: 1, Index: 7}, leader.reads[1])
	require.Equal(t, ReadEvent{ID: 2, Index: 7}, b.cores[2].reads[2])
}

func TestCoreOneVoter(t *testing.T) {
	b := newBench(t, CoreOptions{}, 9)
	leader := b.elect(9)
	leader.core.Propose(1, []byte("a"))
	leader.core.Read(1)
	b.settle()
	require.Equal(t, []ProposalID{1}, leader.owned)
	require.Equal(t, Index(2), leader.reads[1].Index)
}
