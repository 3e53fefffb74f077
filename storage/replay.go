package storage

import (
	"fmt"
	"slices"
)

// replay is what the frames read so far say of all replicas.
type replay struct {
	states    map[ReplicaID]*ReplicaState
	destroyed destroyedIDs
}

func newReplay(rows []ReplicaState) *replay {
	r := &replay{states: make(map[ReplicaID]*ReplicaState, len(rows))}
	for i := range rows {
		st := rows[i]
		r.states[st.Replica] = &st
	}
	return r
}

// apply applies the frames of a round. An error says that they are not what
// the gate admits, so that something before them is missing or wrong.
func (r *replay) apply(frames []Frame) error {
	for i := range frames {
		f := &frames[i]
		if err := r.applyFrame(f); err != nil {
			return fmt.Errorf("frame %d of the round, of kind %d for %v in %v: %w", i, f.Kind, f.Replica, f.Group, err)
		}
	}
	return nil
}

func (r *replay) applyFrame(f *Frame) error {
	st := r.states[f.Replica]
	if f.Kind == FrameCreated {
		if st != nil {
			return fmt.Errorf("the replica is there already")
		}
		r.states[f.Replica] = createdState(f)
		return nil
	}
	if st == nil || st.Group != f.Group {
		return fmt.Errorf("there is no such replica")
	}
	switch f.Kind {
	case FrameAppend, FrameCarry:
		return st.append(f.Hard, f.Entries)
	case FrameReset:
		*st = st.After(f.Begin)
	case FrameDestroyed:
		delete(r.states, f.Replica)
		r.destroyed.add(f.Replica)
	case FrameSetAside:
		st.Status = ReplicaSetAside
		st.Tail = nil
	}
	return nil
}

func createdState(f *Frame) *ReplicaState {
	return &ReplicaState{
		Group:   f.Group,
		Replica: f.Replica,
		Status:  ReplicaLive,
		Dir:     f.Begin.Dir,
		Hard:    beginHard(HardState{}, f.Begin),
		Conf:    f.Begin.Conf,
		Log:     f.Begin.position(),
	}
}

// After returns the state of a live replica whose log a reset began anew.
func (st ReplicaState) After(reset *Begin) ReplicaState {
	st.Log = reset.position()
	st.Hard = beginHard(st.Hard, reset)
	st.Conf = reset.Conf
	st.Tail = nil
	return st
}

// position is that of a log that begins at g: still empty, or as it was staged.
func (g *Begin) position() LogPosition {
	if g.Log != nil {
		return *g.Log
	}
	return LogPosition{
		Reset:      g.Reset,
		StartIndex: g.Index,
		StartTerm:  g.Term,
		LastIndex:  g.Index,
		LastTerm:   g.Term,
		NextOffset: g.NextOffset,
	}
}

// beginHard is the hard state of a replica with the hard state h whose log
// begins at g: raft takes no index for stored above its commit, nor a term
// above its own.
func beginHard(h HardState, g *Begin) HardState {
	if g.Term > h.Term {
		h.Term, h.Vote = g.Term, 0
	}
	h.Commit = max(h.Commit, g.Index)
	return h
}

// lastIndex is the index of the replica's last entry.
func (st *ReplicaState) lastIndex() Index {
	if n := len(st.Tail); n > 0 {
		return st.Tail[n-1].Index
	}
	return st.Log.LastIndex
}

// append applies an append or a carry. A carry repeats entries that are there
// already: an entry at an index replaces all from that index on.
func (st *ReplicaState) append(hard HardState, entries []Entry) error {
	for len(entries) > 0 && entries[0].Index <= st.Log.LastIndex {
		entries = entries[1:] // applied, hence committed, hence the same
	}
	if st.Status != ReplicaLive {
		entries = nil
	}
	if len(entries) > 0 {
		first := entries[0].Index
		if first > st.lastIndex()+1 {
			return fmt.Errorf("entry %d follows %d", first, st.lastIndex())
		}
		// The capacity is cut: a copy of this state that was taken before may
		// share the array.
		keep := int(first - st.Log.LastIndex - 1)
		st.Tail = append(st.Tail[:keep:keep], entries...)
	}
	if hard.Term < st.Hard.Term {
		return fmt.Errorf("term %d follows %d", hard.Term, st.Hard.Term)
	}
	if st.Status == ReplicaLive && hard.Commit > st.lastIndex() {
		return fmt.Errorf("commit %d of a log that ends at %d", hard.Commit, st.lastIndex())
	}
	hard.Commit = max(hard.Commit, st.Hard.Commit)
	st.Hard = hard
	return nil
}

// capture returns all states, by replica. They stay as they are when more
// frames are applied.
func (r *replay) capture() []ReplicaState {
	states := make([]ReplicaState, 0, len(r.states))
	for _, st := range r.states {
		c := *st
		c.Tail = c.Tail[:len(c.Tail):len(c.Tail)]
		states = append(states, c)
	}
	slices.SortFunc(states, byReplica)
	return states
}

func byReplica(a, b ReplicaState) int {
	switch {
	case a.Replica < b.Replica:
		return -1
	case a.Replica > b.Replica:
		return 1
	}
	return 0
}

// rowsOf returns the table's rows for the states.
func rowsOf(states []ReplicaState) []ReplicaState {
	rows := slices.Clone(states)
	for i := range rows {
		rows[i].Tail = nil
	}
	slices.SortFunc(rows, byReplica)
	return rows
}
