package raftlog

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/storage"
)

// survivor is a replica of group 5 whose entries have these terms, from index 2
// on, of which the first are in its log's files.
func survivor(id ReplicaID, voters []ReplicaID, commit Index, files int, terms ...Term) storage.ReplicaState {
	st := storage.ReplicaState{
		Group: 5, Replica: id, Status: storage.ReplicaLive, Conf: ConfState{Voters: voters},
		Hard: storage.HardState{Term: terms[len(terms)-1], Commit: commit},
		Log:  storage.LogPosition{StartIndex: 1, StartTerm: 1, LastIndex: 1, LastTerm: 1},
	}
	for i, term := range terms {
		if index := Index(i + 2); i < files {
			st.Log.LastIndex, st.Log.LastTerm = index, term
		} else {
			st.Tail = append(st.Tail, storage.Entry{Index: index, Term: term, Data: fmt.Append(nil, term, index)})
		}
	}
	return st
}

// TestWhoGoesOn is the choice of a survivor, case by case.
//
// Property: R33 (red: the highest last term and index alone; holds did not compare terms; begun not asked)
func TestWhoGoesOn(t *testing.T) {
	five := []ReplicaID{1, 2, 3, 4, 5}
	empty := storage.ReplicaState{Group: 5, Replica: 9, Status: storage.ReplicaLive}
	aside := survivor(8, five, 9, 0, 1, 1, 1, 1, 1, 1, 1, 1)
	aside.Status = storage.ReplicaSetAside
	for name, c := range map[string]struct {
		of     []storage.ReplicaState
		chosen ReplicaID
	}{
		"nobody":                     {nil, 0},
		"the only one":               {[]storage.ReplicaState{survivor(2, five, 1, 0, 1, 1)}, 2},
		"the longest":                {[]storage.ReplicaState{survivor(1, five, 2, 1, 1), survivor(2, five, 2, 1, 1, 1)}, 2},
		"the last term":              {[]storage.ReplicaState{survivor(1, five, 1, 0, 1, 1, 1), survivor(2, five, 1, 0, 1, 2)}, 2},
		"equals":                     {[]storage.ReplicaState{survivor(2, five, 1, 0, 1), survivor(1, five, 1, 0, 1)}, 1},
		"one that begins empty":      {[]storage.ReplicaState{empty, survivor(2, five, 1, 0, 1)}, 2},
		"nothing but an empty one":   {[]storage.ReplicaState{empty}, 0},
		"one set aside":              {[]storage.ReplicaState{aside, survivor(2, five, 1, 0, 1)}, 2},
		"nothing but one set aside":  {[]storage.ReplicaState{aside}, 0},
		"who is in no configuration": {[]storage.ReplicaState{survivor(6, five, 3, 2, 1, 1)}, 0},
		// Raft dissertation, figure 3.7: entry 3 of term 2 was committed by a leader
		// of term 4, which is lost and whose commit one of those that are left knows;
		// the other one led term 3 alone.
		"an old entry is committed":         {[]storage.ReplicaState{survivor(1, five, 3, 0, 1, 2, 4), survivor(5, five, 2, 0, 1, 3)}, 1},
		"and the other one ends higher":     {[]storage.ReplicaState{survivor(1, five, 3, 0, 1, 2), survivor(5, five, 2, 0, 1, 3)}, 1},
		"and is in the files already":       {[]storage.ReplicaState{survivor(1, five, 3, 2, 1, 2), survivor(5, five, 2, 0, 1, 3, 3, 3)}, 1},
		"a longer one that holds it":        {[]storage.ReplicaState{survivor(1, five, 3, 2, 1, 2), survivor(5, five, 2, 0, 1, 3), survivor(3, five, 2, 0, 1, 2, 2)}, 3},
		"it is not: the higher term may be": {[]storage.ReplicaState{survivor(1, five, 2, 0, 1, 2), survivor(5, five, 2, 0, 1, 3)}, 5},
		"too short for what is committed":   {[]storage.ReplicaState{survivor(1, five, 4, 3, 1, 1, 1), survivor(2, five, 2, 1, 1, 1)}, 1},
	} {
		var ends []LogEnd
		for _, st := range c.of {
			ends = append(ends, LogEndOf(st, 0))
		}
		var got ReplicaID
		if i := ChooseSurvivor(ends); i >= 0 {
			got = ends[i].Replica
		}
		require.Equal(t, c.chosen, got, name)
	}
}

// TestWhetherAMajorityIsLeft: of every configuration that may be in force.
func TestWhetherAMajorityIsLeft(t *testing.T) {
	three := []ReplicaID{1, 2, 3}
	change := func(ch Change) storage.Entry {
		data, err := ch.encode()
		require.NoError(t, err)
		return storage.Entry{Kind: storage.EntryConfChangeV2, Data: data}
	}
	joint := change(Change{Voters: []ReplicaID{4}, Remove: []ReplicaID{3}})
	for name, c := range map[string]struct {
		left    []ReplicaID
		commit  Index
		entries []storage.Entry
		want    bool
	}{
		"all":                                  {three, 1, nil, true},
		"two of three":                         {[]ReplicaID{1, 3}, 1, nil, true},
		"one of three":                         {[]ReplicaID{1}, 1, nil, false},
		"not of what may be":                   {[]ReplicaID{1, 3}, 1, []storage.Entry{joint}, false},
		"of both halves":                       {[]ReplicaID{1, 2}, 1, []storage.Entry{joint}, true},
		"not of what it is to be":              {[]ReplicaID{2, 3}, 1, []storage.Entry{joint, {Kind: storage.EntryConfChangeV2}}, false},
		"of what it is, whatever it was":       {[]ReplicaID{1, 4}, 3, []storage.Entry{joint, {Kind: storage.EntryConfChangeV2}}, true},
		"of what it is, which may be what was": {[]ReplicaID{1, 4}, 2, []storage.Entry{joint, {Kind: storage.EntryConfChangeV2}}, false},
	} {
		st := survivor(1, three, c.commit, 0, 1)
		st.Conf.Learners = []ReplicaID{4}
		st.Tail = c.entries
		for i := range st.Tail {
			st.Tail[i].Index, st.Tail[i].Term = Index(i+2), 1
		}
		e := LogEndOf(st, 0)
		require.Equal(t, c.want, e.HasMajority(func(r ReplicaID) bool { return slices.Contains(c.left, r) }), name)
	}
}

// TestWhatIsForcedGoesOnAlone: from any configuration, a joint one too, a replica
// that is opened with what was written leads by itself, keeps all that it had, and
// calls it committed.
//
// Property: R33 (red: the joint configuration was not left first; a learner was not made a voter; commit was not raised)
func TestWhatIsForcedGoesOnAlone(t *testing.T) {
	for name, conf := range map[string]ConfState{
		"one of three":          {Voters: []ReplicaID{1, 2, 3}},
		"a learner":             {Voters: []ReplicaID{2, 3}, Learners: []ReplicaID{1, 4}},
		"in a joint one":        {Voters: []ReplicaID{1, 2, 4}, VotersOutgoing: []ReplicaID{1, 2, 3}},
		"going out":             {Voters: []ReplicaID{2, 4}, VotersOutgoing: []ReplicaID{1, 2}},
		"to be demoted":         {Voters: []ReplicaID{2, 4}, VotersOutgoing: []ReplicaID{1, 2}, LearnersNext: []ReplicaID{1}},
		"alone already":         {Voters: []ReplicaID{1}},
		"alone with a learner":  {Voters: []ReplicaID{1}, Learners: []ReplicaID{2}},
		"two, and it was alone": {Voters: []ReplicaID{1, 2}, VotersOutgoing: []ReplicaID{1}, AutoLeave: true},
	} {
		st := survivor(1, nil, 2, 0, 1, 2, 2)
		st.Conf = conf
		term := RecoveryTerm(7)
		entries, err := ForcedEntries(st, term, []byte("command"))
		require.NoError(t, err, name)
		_, err = ForcedEntries(st, 2)
		require.Error(t, err, "a term that was")
		frame := ForcedFrame(st, entries)
		st.Hard, st.Tail = frame.Hard, append(slices.Clone(st.Tail), frame.Entries...)
		again := LogEndOf(st, 0)
		require.Equal(t, term, again.LastTerm(), "it is seen to be done")

		b := emptyBench(t, 1)
		b.open(st, &memoryLog{start: 1}, CoreOptions{})
		b.settle()
		leader := b.elect(1)
		require.Equal(t, ConfState{Voters: []ReplicaID{1}}, leader.core.Status().Conf, name)
		require.Greater(t, leader.core.Status().Term, term, name)
		for i, e := range st.Tail {
			require.Equal(t, e.Index, leader.applied[i].Index, name)
			require.Equal(t, e.Data, leader.applied[i].Data, "%s: entry %d", name, e.Index)
		}
	}
}
