package storage_test

import (
	"fmt"
	"maps"
	"slices"

	"github.com/stelelog/stele/storage"
)

// model is all that a node has promised.
type model map[storage.ReplicaID]*replicaModel

// replicaModel is one replica: all of its entries, wherever they are.
type replicaModel struct {
	group   storage.GroupID
	dir     string
	aside   bool
	start   storage.Begin
	hard    storage.HardState
	entries []storage.Entry     // above start.Index
	applied storage.LogPosition // of its log in this process
	trimmed storage.Index       // its log may begin above this one
}

func (m model) clone() model {
	c := model{}
	for id, r := range m {
		cr := *r
		cr.entries = slices.Clip(slices.Clone(r.entries))
		c[id] = &cr
	}
	return c
}

func (m model) ids(live bool) []storage.ReplicaID {
	ids := slices.Sorted(maps.Keys(m))
	if live {
		ids = slices.DeleteFunc(ids, func(id storage.ReplicaID) bool { return m[id].aside })
	}
	return ids
}

func (r *replicaModel) last() storage.Index {
	return r.start.Index + storage.Index(len(r.entries))
}

func (r *replicaModel) from(i storage.Index) []storage.Entry {
	return r.entries[i-r.start.Index-1:]
}

// conf is the configuration as of an index: that of the last multiple of 5.
func (r *replicaModel) conf(i storage.Index) storage.ConfState {
	for at := i; at > r.start.Index; at-- {
		if at%5 == 0 {
			e := r.from(at)[0]
			return wideConf(storage.ReplicaID(e.Index), storage.ReplicaID(e.Term))
		}
	}
	return r.start.Conf
}

// wideConf is a configuration that makes a row of the table so long that the
// table is several sectors, which a crash can tear.
func wideConf(ids ...storage.ReplicaID) storage.ConfState {
	for i := range 24 {
		ids = append(ids, storage.ReplicaID(1<<62+i))
	}
	return storage.ConfState{Voters: ids}
}

func (r *replicaModel) apply(f *storage.Frame) {
	switch f.Kind {
	case storage.FrameAppend:
		if n := len(f.Entries); n > 0 {
			keep := f.Entries[0].Index - r.start.Index - 1
			r.entries = append(r.entries[:keep:keep], f.Entries...)
		}
		r.hard = f.Hard
	case storage.FrameReset:
		r.start = *f.Begin
		r.entries = nil
		r.applied = emptyLog(f.Begin)
		r.trimmed = 0
		r.hard.Commit = f.Begin.Index
		if f.Begin.Term > r.hard.Term {
			r.hard = storage.HardState{Term: f.Begin.Term, Commit: f.Begin.Index}
		}
	case storage.FrameSetAside:
		r.aside = true
	}
}

// emptyLog is where a log begins, empty but for what was staged.
func emptyLog(b *storage.Begin) storage.LogPosition {
	if b.Log != nil {
		return *b.Log
	}
	return storage.LogPosition{Reset: b.Reset, StartIndex: b.Index, StartTerm: b.Term,
		LastIndex: b.Index, LastTerm: b.Term, NextOffset: b.NextOffset}
}

func (m model) apply(frames []storage.Frame) {
	for i := range frames {
		f := &frames[i]
		switch f.Kind {
		case storage.FrameCreated:
			m[f.Replica] = &replicaModel{group: f.Group, dir: f.Begin.Dir, start: *f.Begin,
				hard:    storage.HardState{Term: f.Begin.Term, Commit: f.Begin.Index},
				applied: emptyLog(f.Begin)}
		case storage.FrameDestroyed:
			delete(m, f.Replica)
		default:
			m[f.Replica].apply(f)
		}
	}
}

// compare returns the model as the store recovered it, or how it differs.
func (w *world) compare(states []storage.ReplicaState, want model) (model, error) {
	if len(states) != len(want) {
		return nil, fmt.Errorf("%d replicas, want %d", len(states), len(want))
	}
	now := want.clone()
	for i := range states {
		st := &states[i]
		r := now[st.Replica]
		if r == nil {
			return nil, fmt.Errorf("%v should not be", st.Replica)
		}
		if err := w.compareOne(st, r); err != nil {
			return nil, fmt.Errorf("%v: %w", st.Replica, err)
		}
	}
	return now, nil
}

func (w *world) compareOne(st *storage.ReplicaState, r *replicaModel) error {
	if st.Group != r.group || st.Dir != r.dir || (st.Status == storage.ReplicaSetAside) != r.aside {
		return fmt.Errorf("is %+v", st)
	}
	if st.Hard.Term != r.hard.Term || st.Hard.Vote != r.hard.Vote || st.Hard.Commit < r.hard.Commit {
		return fmt.Errorf("hard state %+v, want %+v", st.Hard, r.hard)
	}
	if r.aside {
		return nil
	}
	last := st.Log.LastIndex + storage.Index(len(st.Tail))
	if st.Hard.Commit > last || st.Log.LastIndex > st.Hard.Commit {
		return fmt.Errorf("commit %d, log %d, last %d", st.Hard.Commit, st.Log.LastIndex, last)
	}
	first := emptyLog(&r.start).StartIndex
	if st.Log.Reset != r.start.Reset || st.Log.StartIndex < first || st.Log.StartIndex > max(first, r.trimmed) || last != r.last() {
		return fmt.Errorf("log %+v, last %d; want reset %d, start %d, last %d",
			st.Log, last, r.start.Reset, first, r.last())
	}
	if conf := r.conf(st.Log.LastIndex); !slices.Equal(conf.Voters, st.Conf.Voters) {
		return fmt.Errorf("configuration %v at %d, want %v", st.Conf, st.Log.LastIndex, conf)
	}
	if err := sameEntries(st.Tail, r.from(st.Log.LastIndex+1)); err != nil {
		return err
	}
	if err := w.compareLog(st, r); err != nil {
		return err
	}
	r.hard, r.applied = st.Hard, st.Log
	return nil
}

// compareLog opens the replica's log and reads all of it.
func (w *world) compareLog(st *storage.ReplicaState, r *replicaModel) error {
	if l := w.logs[st.Replica]; l != nil {
		delete(w.logs, st.Replica) // of the comparison before
		if err := l.Close(); err != nil {
			return err
		}
	}
	l, err := w.s.OpenLog(*st)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	w.logs[st.Replica] = l
	if err := w.otherLogs(r); err != nil {
		return err
	}
	want := slices.Concat(stagedEntries(&r.start), r.entries[:st.Log.LastIndex-r.start.Index])
	want = want[st.Log.StartIndex-emptyLog(&r.start).StartIndex:]
	var got []storage.Entry
	for len(got) < len(want) {
		some, err := l.Entries(st.Log.StartIndex+1+storage.Index(len(got)), st.Log.LastIndex+1, 1<<20)
		if err != nil {
			return fmt.Errorf("log %+v: %w", st.Log, err)
		}
		got = append(got, some...)
	}
	return sameEntries(got, want)
}

func sameEntries(got, want []storage.Entry) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d entries, want %d", len(got), len(want))
	}
	for i := range got {
		a, b := &got[i], &want[i]
		if a.Index != b.Index || a.Term != b.Term || string(a.Data) != string(b.Data) {
			return fmt.Errorf("entry %d of term %d, want %d of %d", a.Index, a.Term, b.Index, b.Term)
		}
	}
	return nil
}
