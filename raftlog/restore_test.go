package raftlog

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/storage"
)

// A replica whose log is lost goes on with a copy: what it acknowledged behind the
// copy's end stays, unless the copy shows that it was never committed; what a reset
// would call held, because the tail has the copy's last entry, is not enough.
//
// Property: I3, R6, R12 (red: the tail was dropped with the log)
func TestACopyTakesThePlaceOfALostLog(t *testing.T) {
	conf := storage.ConfState{Voters: []ReplicaID{7, 8, 9}}
	tail := []storage.Entry{{Index: 11, Term: 3}, {Index: 12, Term: 3}, {Index: 13, Term: 4}, {Index: 14, Term: 4}}
	st := storage.ReplicaState{
		Group: 2, Replica: 7, Status: storage.ReplicaLive, Dir: "d", Conf: conf,
		Hard: storage.HardState{Term: 4, Vote: 8, Commit: 12},
		Log:  storage.LogPosition{StartIndex: 1, StartTerm: 1, LastIndex: 10, LastTerm: 2, Exists: true},
		Tail: tail,
	}
	for name, c := range map[string]struct {
		index Index
		term  Term
		rest  []storage.Entry
		no    bool
	}{
		"before the commit":           {index: 11, term: 3, no: true},
		"at the commit":               {index: 12, term: 3, rest: tail[2:]},
		"at the commit, another term": {index: 12, term: 2, no: true},
		"in the tail":                 {index: 13, term: 4, rest: tail[3:]},
		"in the tail, another term":   {index: 13, term: 5},
		"at the end":                  {index: 14, term: 4},
		"behind the end":              {index: 20, term: 4},
	} {
		begin := Begin{Reset: 5, Index: c.index, Term: c.term, NextOffset: 3, Conf: conf}
		err := CheckRestore(st, begin)
		if c.no {
			var refused *ResetError
			require.ErrorAs(t, err, &refused, name)
			continue
		}
		require.NoError(t, err, name)
		after, frames := restoreFrames(st, &begin, 6)
		require.Equal(t, c.rest, after.Tail, name)
		require.Equal(t, c.index, after.Log.LastIndex, name)
		require.Equal(t, storage.HardState{Term: max(6, c.term), Commit: c.index}, after.Hard, name)
		// The same is what the journal leads to.
		kinds := []storage.FrameKind{storage.FrameAppend, storage.FrameReset}
		if len(c.rest) > 0 {
			kinds = append(kinds, storage.FrameAppend)
			require.Equal(t, c.rest, frames[2].Entries, name)
			require.Equal(t, after.Hard, frames[2].Hard, name)
		}
		require.Len(t, frames, len(kinds), name)
		for i, kind := range kinds {
			require.Equal(t, kind, frames[i].Kind, name)
		}
	}
}
