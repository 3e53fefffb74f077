package raftlog

import (
	"fmt"
	"iter"
	"slices"

	"github.com/stelelog/stele/storage"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// # Forced recovery
//
// A group that lost the majority of its voters for good can do nothing by
// itself: to commit anything, its configuration too, needs the majority. A
// person may force one of the replicas that are left to go on alone. This file
// has the pure parts: what a log holds, which one it should be, and what is
// written for it.
//
// What is committed can be told only in part. A survivor knows its own commit
// index, and that may be behind; an entry that only the lost majority had is gone
// and nobody knows of it. So the best that can be done is
//
//	nothing that a survivor knows to be committed is lost, and
//	of all that may be committed as much is kept as any survivor has.
//
// The first needs care. The replica with the highest last term, and of those the
// one with the longest log, is the one that raft would elect, but here no majority
// limits what may have happened: a survivor may know that entry i of term 2 is
// committed, thanks to a leader of term 4 that is lost, and another survivor may
// end with an entry of term 3 at i, that of a leader which never committed it
// (Raft dissertation, figure 3.7). So the replica is chosen among those whose log
// holds the entry at C, the highest commit index that any survivor knows: by log
// matching they hold all before it too. Whoever knows C is one of them, so there
// always is one. Among them the last term and the last index decide.
//
// The rest of the chosen log, behind C, is taken for committed: it may be, and
// what is in it and is not was only never acknowledged. No entry of it changes;
// behind it, in a term that is far above any that the lost ones can have reached,
// follow the entries that make the configuration {the chosen one}, and all of it
// is marked committed. That is what a majority could have done. So opening,
// applying and catching up know nothing of a recovery, and nothing of it is lost or
// done twice by a crash: it is one frame of the journal.
//
// The other survivors' replicas are not continued, though much of them may be the
// same: they could elect each other under a configuration of theirs that is older,
// against the chosen one. Their replicas are set aside, and their nodes get new
// ones, under ids that were never used, from the chosen one. Who is lost and comes
// back is kept away by the recovery epoch, which whoever carries messages has to
// compare.

// LogEnd is what a recovery needs to know of a closed replica: its promises, and
// where its log ends. It is a value, which a person may carry between machines.
type LogEnd struct {
	Group   GroupID   `json:"group"`
	Replica ReplicaID `json:"replica"`
	// SetAside: it was taken out of use, and is no part of the rest.
	SetAside bool `json:"set_aside,omitempty"`
	Term     Term `json:"term"`
	// Commit is the highest index that the replica knows to be committed.
	Commit Index `json:"commit"`
	// Terms are those of the entries that are not in the log's files for sure:
	// the first is at or below Commit. Last is the index of the last entry; 0: it
	// has none, and no configuration.
	Terms []TermStart `json:"terms"`
	Last  Index       `json:"last"`
	// Confs are the configurations that were in force, or are to be, from Commit
	// to Last, oldest first.
	Confs []ConfState `json:"confs"`
}

// TermStart says that the entries from First on are of Term, up to the next one's.
type TermStart struct {
	First Index `json:"first"`
	Term  Term  `json:"term"`
}

// LogEndOf examines a replica, whose state machine has applied up to machine; 0:
// it has no state of its own.
func LogEndOf(st ReplicaState, machine Index) LogEnd {
	e := LogEnd{
		Group: st.Group, Replica: st.Replica, SetAside: st.Status != storage.ReplicaLive, Term: st.Hard.Term,
		Commit: max(st.Hard.Commit, st.Log.LastIndex, machine), Last: st.Log.LastIndex,
	}
	if e.SetAside {
		e.Terms, e.Confs = []TermStart{}, []ConfState{}
		return e
	}
	e.Terms = []TermStart{{st.Log.LastIndex, st.Log.LastTerm}}
	conf := st.Conf
	e.Confs = []ConfState{conf}
	for _, entry := range st.Tail {
		if e.LastTerm() != entry.Term {
			e.Terms = append(e.Terms, TermStart{entry.Index, entry.Term})
		}
		e.Last = entry.Index
		if entry.Kind == storage.EntryNormal {
			continue
		}
		if conf = confAfter(conf, entry); entry.Index <= e.Commit {
			e.Confs = e.Confs[:0]
		}
		e.Confs = append(e.Confs, conf)
	}
	return e
}

// EntriesAbove returns what a closed replica's log holds above an index, as its
// state machine would be given it, also what is not known to be committed: files
// yields the entries of the log's files, in order. The configurations are exact if
// the state machine is at the index, with conf.
func EntriesAbove(st ReplicaState, above Index, conf ConfState, files iter.Seq2[storage.Entry, error]) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		give := func(e storage.Entry) bool {
			if e.Index <= above {
				return true
			}
			out := Entry{Index: e.Index, Term: e.Term, Kind: e.Kind, Data: e.Data}
			if e.Kind != storage.EntryNormal {
				conf = confAfter(conf, e)
				c := conf
				out.Conf = &c
			}
			return yield(out, nil)
		}
		if above < st.Log.LastIndex {
			for e, err := range files {
				if err != nil {
					yield(Entry{}, err)
					return
				}
				if e.Index > st.Log.LastIndex {
					break
				}
				if !give(e) {
					return
				}
			}
		}
		for _, e := range st.Tail {
			if !give(e) {
				return
			}
		}
	}
}

// confAfter is what an entry makes of a configuration when it is applied; one
// that is not valid changes nothing.
func confAfter(conf ConfState, e storage.Entry) ConfState {
	if change, err := decodeConfChange(toRaftEntry(e)); err == nil {
		if next, err := changeConf(conf, e.Index, change); err == nil {
			return next
		}
	}
	return conf
}

// LastTerm is the term of the last entry.
func (e *LogEnd) LastTerm() Term {
	if len(e.Terms) == 0 {
		return 0
	}
	return e.Terms[len(e.Terms)-1].Term
}

// term returns the term of an entry that is not below Terms.
func (e *LogEnd) term(i Index) (Term, bool) {
	if i > e.Last {
		return 0, false
	}
	for k := len(e.Terms) - 1; k >= 0; k-- {
		if e.Terms[k].First <= i {
			return e.Terms[k].Term, true
		}
	}
	return 0, false
}

// holds reports whether the log has what the other one knows to be committed.
func (e *LogEnd) holds(knows *LogEnd) bool {
	if e.Commit >= knows.Commit {
		return true // two commits are of one log
	}
	mine, ok := e.term(knows.Commit)
	theirs, known := knows.term(knows.Commit)
	return ok && known && mine == theirs
}

// begun reports whether the replica is part of its group by its own log: one that
// began empty, and was told nothing, holds nothing. One that is on its way out is
// part of it as long as that is not known to be committed.
func (e *LogEnd) begun() bool {
	return !e.SetAside && e.Last > 0 && slices.ContainsFunc(e.Confs, func(c ConfState) bool { return listed(c, e.Replica) })
}

// ChooseSurvivor returns which replica of a group should go on alone, if one has
// to: it loses nothing that any of them knows to be committed, and of those it is
// the one that raft would elect; of equals, the one with the lowest id. -1: none
// of them can.
func ChooseSurvivor(all []LogEnd) int {
	knows := -1
	for i := range all {
		if !all[i].SetAside && (knows < 0 || all[i].Commit > all[knows].Commit) {
			knows = i
		}
	}
	chosen := -1
	for i := range all {
		if e := &all[i]; e.begun() && e.holds(&all[knows]) && (chosen < 0 || e.better(&all[chosen])) {
			chosen = i
		}
	}
	return chosen
}

func (e *LogEnd) better(than *LogEnd) bool {
	switch {
	case e.LastTerm() != than.LastTerm():
		return e.LastTerm() > than.LastTerm()
	case e.Last != than.Last:
		return e.Last > than.Last
	}
	return e.Replica < than.Replica
}

// HasMajority reports whether the replicas that are left can go on by themselves:
// they are a majority of every configuration that the chosen log may be in.
func (e *LogEnd) HasMajority(left func(ReplicaID) bool) bool {
	for _, c := range e.Confs {
		if !majority(c.Voters, left) || len(c.VotersOutgoing) > 0 && !majority(c.VotersOutgoing, left) {
			return false
		}
	}
	return len(e.Confs) > 0
}

func majority(voters []ReplicaID, left func(ReplicaID) bool) bool {
	n := 0
	for _, r := range voters {
		if left(r) {
			n++
		}
	}
	return n > len(voters)/2
}

// RecoveryTerm is the term in which a forced replica goes on, above all terms
// that survivors know: far enough for what the lost ones may have reached since,
// at two elections a second for 68 years.
func RecoveryTerm(known Term) Term { return known + 1<<32 }

// ForcedEntries returns what follows a closed replica's log so that it goes on
// alone, in a term of RecoveryTerm: the change of the configuration to itself,
// and the data.
//
// An error says that the log is not one to go on from.
func ForcedEntries(st ReplicaState, term Term, data ...[]byte) ([]storage.Entry, error) {
	refuse := func(format string, args ...any) ([]storage.Entry, error) {
		return nil, &StateError{Group: st.Group, Replica: st.Replica, Reason: fmt.Sprintf(format, args...)}
	}
	end := LogEndOf(st, 0)
	switch {
	case !end.begun():
		return refuse("it is in no configuration that it knows")
	case term <= max(st.Hard.Term, end.LastTerm()):
		return refuse("term %d is not above %d", term, max(st.Hard.Term, end.LastTerm()))
	}
	conf, last := end.Confs[len(end.Confs)-1], end.Last
	var entries []storage.Entry
	add := func(kind EntryKind, data []byte) {
		last++
		entries = append(entries, storage.Entry{Index: last, Term: term, Kind: kind, Data: data})
		if kind != storage.EntryNormal {
			conf = confAfter(conf, entries[len(entries)-1])
		}
	}
	leave := func() {
		if len(conf.VotersOutgoing) > 0 {
			add(storage.EntryConfChangeV2, nil)
		}
	}
	leave()
	change, err := aloneIn(conf, st.Replica)
	if err != nil {
		return refuse("%v", err)
	}
	if change != nil {
		add(storage.EntryConfChangeV2, change)
		leave()
	}
	if !slices.Equal(conf.Voters, []ReplicaID{st.Replica}) || len(conf.Learners)+len(conf.VotersOutgoing)+len(conf.LearnersNext) > 0 {
		return refuse("its configuration would be %+v", conf)
	}
	for _, d := range data {
		add(storage.EntryNormal, d)
	}
	if len(entries) == 0 {
		add(storage.EntryNormal, nil)
	}
	return entries, nil
}

// aloneIn is the change to a configuration of one voter; nil: it is that one.
func aloneIn(conf ConfState, r ReplicaID) ([]byte, error) {
	cc := &pb.ConfChangeV2{}
	add := func(kind pb.ConfChangeType, r ReplicaID) {
		cc.Changes = append(cc.Changes, &pb.ConfChangeSingle{Type: kind.Enum(), NodeId: new(uint64(r))})
	}
	if !slices.Contains(conf.Voters, r) {
		add(pb.ConfChangeAddNode, r)
	}
	for _, other := range slices.Concat(conf.Voters, conf.Learners) {
		if other != r {
			add(pb.ConfChangeRemoveNode, other)
		}
	}
	if len(cc.Changes) == 0 {
		return nil, nil
	}
	how := pb.ConfChangeTransitionAuto
	if len(cc.Changes) > 1 {
		how = pb.ConfChangeTransitionJointExplicit
	}
	cc.Transition = how.Enum()
	return proto.Marshal(cc)
}

// ForcedFrame is the frame of the journal that makes a closed replica go on
// alone: the entries, and that all of the log is committed. It keeps them.
func ForcedFrame(st ReplicaState, entries []storage.Entry) storage.Frame {
	last := entries[len(entries)-1]
	return storage.Frame{
		Kind: storage.FrameAppend, Group: st.Group, Replica: st.Replica,
		Hard: storage.HardState{Term: last.Term, Commit: last.Index}, Entries: entries,
	}
}
