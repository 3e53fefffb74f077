package storage_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/storage"
)

// stagedBegin is a reset to a log of two entries, 9 and 10.
func stagedBegin() *storage.Begin {
	return &storage.Begin{Reset: 77, Index: 10, Term: 6, NextOffset: 4, Conf: storage.ConfState{Voters: []storage.ReplicaID{7}},
		Log: &storage.LogPosition{Reset: 77, StartIndex: 8, StartTerm: 5, LastIndex: 10, LastTerm: 6, NextOffset: 4,
			SegIndex: 9, SegOffset: 0, SegBytes: 130, Exists: true, AuxIndex: 10}}
}

func TestStagedResetsArePinned(t *testing.T) {
	frames := []storage.Frame{{Kind: storage.FrameReset, Group: 2, Replica: 7, Begin: stagedBegin()}}
	b := storage.EncodeFrames(frames)
	path := filepath.Join("testdata", "journal", "staged.txt")
	if *rewriteJournal {
		require.NoError(t, os.WriteFile(path, []byte(dump(b)), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), dump(b))
	got, err := storage.DecodeFrames(b)
	require.NoError(t, err)
	require.Equal(t, frames, got)
}

func TestResetsThatRecoveryWouldMisreadAreRefused(t *testing.T) {
	good := func(change func(*storage.Begin)) *storage.Begin {
		b := stagedBegin()
		change(b)
		return b
	}
	for name, b := range map[string]*storage.Begin{
		"no id":                      good(func(b *storage.Begin) { b.Reset, b.Log = 0, nil }),
		"no index":                   good(func(b *storage.Begin) { b.Index, b.Log = 0, nil }),
		"a directory":                good(func(b *storage.Begin) { b.Dir = "logs/other" }),
		"below the commit":           good(func(b *storage.Begin) { b.Index, b.Log = 2, nil }),
		"another id":                 good(func(b *storage.Begin) { b.Log.Reset++ }),
		"another end":                good(func(b *storage.Begin) { b.Log.LastIndex-- }),
		"another term":               good(func(b *storage.Begin) { b.Log.LastTerm-- }),
		"another offset":             good(func(b *storage.Begin) { b.NextOffset++ }),
		"no files":                   good(func(b *storage.Begin) { b.Log.Exists = false }),
		"a segment before its start": good(func(b *storage.Begin) { b.Log.SegIndex = 8 }),
		"the id in use":              good(func(b *storage.Begin) { b.Reset, b.Log = 5, nil }),
	} {
		s, err := storage.Open(testConfig(simfs.New(1)))
		require.NoError(t, err)
		require.NoError(t, s.WriteRound([]storage.Frame{
			{Kind: storage.FrameCreated, Group: 2, Replica: 7, Begin: begin(1, 7)},
			{Kind: storage.FrameReset, Group: 2, Replica: 7, Begin: &storage.Begin{Reset: 5, Index: 3, Term: 2}},
		}))
		err = s.WriteRound([]storage.Frame{{Kind: storage.FrameReset, Group: 2, Replica: 7, Begin: b}})
		require.Error(t, err, name)
		require.Equal(t, err, s.WriteRound(nil), "%s: it is final", name)
		require.NoError(t, s.Close())
	}
}

// What a caller has to keep of a reset is seen to be needed.
//
// Property: S12 (red: the staged log was not synced before the frame; the old one was unlinked before it)
func TestResetsNeedTheirOrder(t *testing.T) {
	for _, rule := range []string{"", stagedNotSynced, unlinkedEarly} {
		found := false
		for seed := range uint64(20) {
			w := newWorld(seed, testConfig(nil), 4)
			w.broken = rule
			for _, step := range []func() error{
				w.open, w.rounds(create, appendSome, appendSome, appendSome), w.applySome, w.applySome,
				w.rotation(appendSome), w.checkpoint, w.applySome,
			} {
				require.NoError(t, step())
			}
			if seed%2 == 0 { // power fails before the frame is durable
				w.setFault(failNth(1, simfs.ErrCrashed, func(op simfs.Op) bool {
					return op.Kind == simfs.OpSync && strings.HasSuffix(op.Path, ".journal")
				}))
			}
			if err := w.rounds(reset)(); err != nil {
				require.ErrorIs(t, err, simfs.ErrCrashed)
			}
			err := w.fork(simfs.Strict, seed).open()
			for range 3 {
				err = errors.Join(err, w.fork(simfs.Random, seed).open())
			}
			require.True(t, rule != "" || err == nil, "seed %d: %v", seed, err)
			found = found || err != nil
		}
		require.Equal(t, rule != "", found, rule)
	}
}

// grow writes and applies entries until the log has so many segments.
func (f *failingLogs) grow(i, segments int) {
	for len(f.segments(i)) < segments {
		st := &f.states[i]
		e := entry(st.Log.LastIndex+1, 1, strings.Repeat("x", 2000))
		st.Hard.Commit = e.Index
		require.NoError(f.t, f.s.WriteRound([]storage.Frame{{Kind: storage.FrameAppend, Group: st.Group,
			Replica: st.Replica, Hard: st.Hard, Entries: []storage.Entry{e}}}))
		require.NoError(f.t, f.logs[i].Append([]storage.LogEntry{{Entry: e, Verdict: storage.VerdictData, BaseOffset: st.Log.NextOffset, Count: 1}}))
		st.Log = f.logs[i].Position()
	}
}

// segments are the segments of a replica on the disk.
func (f *failingLogs) segments(i int) (names []string) {
	all, err := f.fs.List("/node/" + f.states[i].Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	require.NoError(f.t, err)
	for _, name := range all {
		if strings.HasSuffix(name, ".seg") {
			names = append(names, name)
		}
	}
	return names
}

func TestTrimmedSegmentsGoBehindTheOlderCheckpoint(t *testing.T) {
	f := newFailingLogs(t)
	f.fs.SetHook(nil)
	f.grow(1, 5)
	require.NoError(t, f.checkpoint())
	l, before := f.logs[1], f.logs[1].Position()
	require.NoError(t, l.Trim(before.LastIndex, 1<<30, 0), "below the limit")
	require.Equal(t, before, l.Position())
	require.NoError(t, l.Trim(before.StartIndex+1, 1, 0), "the first segment is needed")
	require.Equal(t, before, l.Position())
	require.NoError(t, l.Trim(before.LastIndex, 1, 20<<10))
	some := l.Position()
	require.Greater(t, some.StartIndex, before.StartIndex)
	require.NoError(t, l.Trim(before.LastIndex, 1, 0))
	all := l.Position()
	require.Equal(t, all.SegIndex, all.StartIndex+1, "the one that is written stays")
	require.Greater(t, all.StartIndex, some.StartIndex)
	require.Equal(t, before.LastIndex, all.LastIndex)

	_, err := l.Entries(all.StartIndex, all.StartIndex+2, 1<<20)
	require.ErrorIs(t, err, storage.ErrCompacted)
	entries, err := l.Entries(all.StartIndex+1, all.LastIndex+1, 1<<20)
	require.NoError(t, err)
	require.Equal(t, all.StartIndex+1, entries[0].Index)
	term, err := l.Term(all.StartIndex)
	require.NoError(t, err)
	require.Equal(t, all.StartTerm, term)
	_, err = l.Term(all.StartIndex - 1)
	require.ErrorIs(t, err, storage.ErrCompacted)
	_, err = l.ReadAt(l.StartOffset()-1, 1, nil)
	var gone *storage.OutOfRangeError
	require.ErrorAs(t, err, &gone)
	require.Equal(t, l.StartOffset(), gone.Start)

	f.states[1].Log = all
	have := len(f.segments(1))
	require.NoError(t, f.checkpoint())
	require.Len(t, f.segments(1), have, "the older copy of the table needs them")
	image := f.fs.Image(simfs.Strict)
	require.NoError(t, f.checkpoint())
	require.Len(t, f.segments(1), 1)
	require.NoError(t, f.s.Close())
	for _, disk := range []*simfs.FS{image, f.fs.Image(simfs.Strict), f.fs.Image(simfs.Kill)} {
		s, err := storage.Open(testConfig(disk))
		require.NoError(t, err)
		st := s.Replicas()[1]
		require.Equal(t, all.StartIndex, st.Log.StartIndex)
		l, err := s.OpenLog(st)
		require.NoError(t, err)
		_, err = l.Entries(all.StartIndex+1, st.Log.LastIndex+1, 1<<20)
		require.NoError(t, err)
		require.NoError(t, s.Close())
	}
}

// Property: S12 (red: segments below the start were removed when the log was opened)
//
// A log is opened again in the process that trimmed it, before both copies of the table
// name its new start, then power fails: whichever copy is left finds its segments. They
// go behind the checkpoints after that.
func TestATrimmedLogThatIsOpenedAgainKeepsWhatTheTableNames(t *testing.T) {
	f := newFailingLogs(t)
	f.fs.SetHook(nil)
	f.grow(1, 5)
	require.NoError(t, f.checkpoint())
	require.NoError(t, f.checkpoint())
	l, before := f.logs[1], f.logs[1].Position()
	have := len(f.segments(1))
	require.NoError(t, l.Trim(before.LastIndex, 1, 0))
	require.NoError(t, l.Close())
	st := f.states[1]
	st.Log = l.Position()
	require.Greater(t, st.Log.StartIndex, before.StartIndex)
	l, err := f.s.OpenLog(st)
	require.NoError(t, err)
	f.logs[1], f.states[1].Log = l, st.Log
	_, err = l.Entries(st.Log.StartIndex, st.Log.LastIndex+1, 1<<20)
	require.ErrorIs(t, err, storage.ErrCompacted)

	s, err := storage.Open(testConfig(f.fs.Image(simfs.Strict)))
	require.NoError(t, err)
	old := s.Replicas()[1]
	require.Equal(t, before.StartIndex, old.Log.StartIndex)
	log, err := s.OpenLog(old)
	require.NoError(t, err)
	_, err = log.Entries(before.StartIndex+1, before.LastIndex+1, 1<<20)
	require.NoError(t, err)
	require.NoError(t, s.Close())

	require.Len(t, f.segments(1), have)
	require.NoError(t, f.checkpoint())
	require.NoError(t, f.checkpoint())
	require.Len(t, f.segments(1), 1)
	require.NoError(t, f.s.Close())
}

// A reader that looked before a trim finds its segments gone.
func TestReadersOfATrimmedLogAreTold(t *testing.T) {
	f := newFailingLogs(t)
	f.fs.SetHook(nil)
	f.grow(1, 4)
	require.NoError(t, f.checkpoint())
	l := f.logs[1]
	old := l.Position()
	for range 3 {
		require.NoError(t, l.Trim(old.LastIndex, 1, 0))
		f.states[1].Log = l.Position()
		require.NoError(t, f.checkpoint())
	}
	for i := old.StartIndex + 1; i <= l.Position().StartIndex; i++ {
		_, err := l.Entries(i, i+1, 1)
		require.ErrorIs(t, err, storage.ErrCompacted)
	}
	require.NoError(t, f.s.Close())
}

func TestTrimCount(t *testing.T) {
	for _, c := range []struct {
		sizes       []int64
		whole       int
		limit, keep int64
		want        int
	}{
		{nil, 0, 64, 16, 0},
		{[]int64{64}, 0, 0, 0, 0},               // the one that is written
		{[]int64{64, 0}, 1, 64, 16, 0},          // not above the limit
		{[]int64{64, 1}, 1, 64, 16, 0},          // too little would stay
		{[]int64{64, 16}, 1, 64, 16, 1},         //
		{[]int64{64, 64, 64, 3}, 3, 64, 16, 2},  //
		{[]int64{64, 64, 64}, 3, 64, 16, 2},     // more above
		{[]int64{10, 10, 10, 10}, 3, 30, 0, 3},  //
		{[]int64{10, 10, 10, 10}, 3, 30, 25, 1}, //
	} {
		require.Equal(t, c.want, storage.TrimCount(c.sizes, c.whole, c.limit, c.keep), "%+v", c)
	}
}

// The log of a replica whose files failed may be replaced by a reset in the same
// process.
func TestAResetReplacesAFailedLog(t *testing.T) {
	f := newFailingLogs(t)
	f.write(0, true)
	require.Error(t, f.logs[0].Close())
	_, err := f.s.OpenLog(f.states[0])
	require.ErrorContains(t, err, "failed in this process")
	st := f.states[0]
	b := &storage.Begin{Reset: 9, Index: st.Log.LastIndex + 5, Term: st.Hard.Term + 1}
	require.NoError(t, f.s.WriteRound([]storage.Frame{{Kind: storage.FrameReset, Group: st.Group, Replica: st.Replica, Begin: b}}))
	st = st.After(b)
	l, err := f.s.OpenLog(st)
	require.NoError(t, err)
	require.Equal(t, st.Log, l.Position())
	require.NoError(t, f.s.Close())
}
