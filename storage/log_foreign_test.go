package storage_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/storage"
)

// swaps are ways in which the directory of a topic becomes one that was not made here.
// The strangers hold, under the same names, whole logs of the same group.
var swaps = map[string]struct {
	kind storage.ReasonKind
	swap func(t *testing.T, fs *simfs.FS, dir string, stranger func(marker []byte))
}{
	"copied from another cluster": {storage.ReasonForeign, func(t *testing.T, fs *simfs.FS, dir string, stranger func([]byte)) {
		stranger(storage.EncodeMarker("orders", otherIncarnation))
	}},
	"another topic's, renamed": {storage.ReasonForeign, func(t *testing.T, fs *simfs.FS, dir string, stranger func([]byte)) {
		stranger(storage.EncodeMarker("bills", otherIncarnation))
	}},
	"another topic's name": {storage.ReasonForeign, func(t *testing.T, fs *simfs.FS, dir string, stranger func([]byte)) {
		stranger(storage.EncodeMarker("bills", testIncarnation))
	}},
	"without a marker": {storage.ReasonUnmarked, func(t *testing.T, fs *simfs.FS, dir string, stranger func([]byte)) {
		stranger(nil)
	}},
	"its marker deleted": {storage.ReasonUnmarked, func(t *testing.T, fs *simfs.FS, dir string, stranger func([]byte)) {
		require.NoError(t, fs.Remove(dir+"/INCARNATION"))
	}},
	"a bit of its marker flipped": {storage.ReasonDamaged, func(t *testing.T, fs *simfs.FS, dir string, stranger func([]byte)) {
		require.NoError(t, fs.Flip(dir+"/INCARNATION", 30, 2))
	}},
}

// swap puts a stranger's directory, with logs of the replicas 7 and 8 that have other
// bytes, in the place of the topic's.
func swap(t *testing.T, fs *simfs.FS, name string) {
	dir := "/node/topics/orders@" + testIncarnation.String()
	swaps[name].swap(t, fs, dir, func(marker []byte) {
		other := simfs.New(2)
		s := openStore(t, other)
		_, err := s.CreateTopicDir("orders", testIncarnation)
		require.NoError(t, err)
		for _, r := range []storage.ReplicaID{7, 8} {
			l, err := s.OpenLog(replicaAt(r, emptyPosition()))
			require.NoError(t, err)
			require.NoError(t, l.Append(strange()))
			require.NoError(t, l.Close())
		}
		require.NoError(t, s.Close())
		require.NoError(t, fs.Rename(dir, "/elsewhere"))
		_, err = vfs.Clone(other, fs, dir, dir)
		require.NoError(t, err)
		require.NoError(t, fs.Remove(dir+"/INCARNATION"))
		if marker != nil {
			writeFile(t, fs, dir+"/INCARNATION", marker)
		}
	})
}

// strange has the indexes, terms, offsets and sizes of native, and other bytes, so
// that every checksum holds and every frame continues the one before.
func native() []storage.LogEntry { return history(1, 150, 300) }

func strange() []storage.LogEntry {
	entries := native()
	for i := range entries {
		if entries[i].Kind == 0 && entries[i].Data != nil {
			entries[i].Data = bytes.Repeat([]byte{'!'}, len(entries[i].Data))
		}
	}
	return entries
}

// contents returns the bytes of all files below a directory.
func contents(t *testing.T, fs storage.FS, dir string) map[string]string {
	all := map[string]string{}
	names, err := fs.List(dir)
	require.NoError(t, err)
	for _, name := range names {
		path := fs.PathJoin(dir, name)
		info, err := fs.Stat(path)
		require.NoError(t, err)
		if !info.IsDir() {
			all[name] = string(fileBytes(t, fs, path))
			continue
		}
		for below, b := range contents(t, fs, path) {
			all[name+"/"+below] = b
		}
	}
	return all
}

// A directory that is another one under logs that are open: the first file that is
// opened of it ends them all, also the one that was not asked. No byte of it is read,
// written or removed, nor is any of the logs' own that were open by chance taken for
// a gap. Once closed, it goes to quarantine whole, and what is opened in the fresh
// directory is lost, not empty.
//
// Property: I3 (red: segment.open, ReadAux and Repair, each without its look at the marker; what was closed was read as a gap; disown ended only the log that had noticed; what had been disowned could be opened again, empty)
func TestADirectoryThatIsAnotherUnderOpenLogs(t *testing.T) {
	notices := map[string]func(l *storage.Log) error{
		"a read":      func(l *storage.Log) error { _, err := l.ReadAt(0, 1<<20, nil); return err },
		"a side file": func(l *storage.Log) error { _, err := l.ReadAux(100); return err },
		"another one to write": func(l *storage.Log) error {
			e := native()[len(native())-1]
			e.Index, e.BaseOffset, e.Data = e.Index+1, e.BaseOffset+storage.Offset(e.Count), make([]byte, testSegment)
			e.Verdict, e.Kind, e.Count = storage.VerdictData, 0, 1
			return l.Append([]storage.LogEntry{e})
		},
		"a repair": func(l *storage.Log) error { return l.Verify(0).Repair(nil) },
	}
	for name, how := range swaps {
		for what, notice := range notices {
			t.Run(name+", noticed by "+what, func(t *testing.T) {
				fs := simfs.New(1)
				s := openStore(t, fs)
				defer s.Close()
				rel, err := s.CreateTopicDir("orders", testIncarnation)
				require.NoError(t, err)
				var logs []*storage.Log
				told := make([]error, 3)
				for i, r := range []storage.ReplicaID{7, 8, 9} {
					l, err := s.OpenLog(replicaAt(r, emptyPosition()))
					require.NoError(t, err)
					if r != 9 {
						require.NoError(t, l.Append(native()))
						require.NoError(t, l.WriteAux(100, []byte("what it knows")))
						require.NoError(t, l.Sync())
					}
					l.OnForeign(func(err error) { told[i] = errors.Join(told[i], err) })
					logs = append(logs, l)
				}
				swap(t, fs, name)
				before := contents(t, fs, "/node/"+rel)

				require.ErrorIs(t, notice(logs[0]), storage.ErrLogClosed, "neither a gap nor records")
				for _, l := range logs {
					_, err := l.ReadAt(0, 1<<20, nil)
					var closed *storage.LogClosedError
					require.ErrorAs(t, err, &closed)
					require.ErrorIs(t, err, storage.ErrClosed)
					require.Equal(t, how.kind, closed.Err.Kind)
					require.Equal(t, rel, closed.Err.Dir)
					_, err = l.ReadAux(100)
					require.ErrorIs(t, err, storage.ErrLogClosed)
					_, err = l.Entries(2, 3, 1<<20)
					require.ErrorIs(t, err, storage.ErrLogClosed)
					require.ErrorIs(t, l.Append(native()[:1]), storage.ErrLogClosed)
					require.ErrorIs(t, l.Sync(), storage.ErrLogClosed)
				}
				for i, err := range told {
					require.ErrorIs(t, err, storage.ErrLogClosed)
					require.NotContains(t, err.Error(), "\n", "log %d was told once", i)
				}
				late := false
				logs[0].OnForeign(func(error) { late = true })
				require.True(t, late, "who asks late is told, too")

				require.ErrorContains(t, s.QuarantineTopic(storage.TopicDir{Dir: rel}, because("x")), "is open")
				for _, l := range logs {
					require.ErrorIs(t, l.Close(), storage.ErrLogClosed)
				}
				why := storage.Reason{Kind: how.kind, Text: "x", At: asideAt}
				require.NoError(t, s.QuarantineTopic(storage.TopicDir{Dir: rel}, why))
				after := contents(t, fs, "/node/quarantine/orders@"+testIncarnation.String()+"~1")
				delete(after, "REASON")
				require.Equal(t, before, after, "not a byte of it was changed")
				moved, err := s.Quarantined()
				require.NoError(t, err)
				require.Len(t, moved, 1)
				require.Equal(t, why, moved[0].Reason)

				_, err = s.CreateTopicDir("orders", testIncarnation)
				require.NoError(t, err)
				for i, l := range logs[:2] {
					for _, pos := range []storage.LogPosition{l.Position(), emptyPosition()} {
						_, err = s.OpenLog(replicaAt(storage.ReplicaID(7+i), pos))
						require.ErrorIs(t, err, storage.ErrLogLost)
						var damage *storage.DamageError
						require.ErrorAs(t, err, &damage)
					}
				}
				fresh, err := s.OpenLog(replicaAt(9, emptyPosition()))
				require.NoError(t, err, "nothing was in it, so nothing is lost")
				require.NoError(t, fresh.Close())
				requireRestored(t, s, logs[0])
			})
		}
	}
}

// requireRestored gives replica 7 the log again that it lost, as another replica
// would send it.
func requireRestored(t *testing.T, s *storage.Store, lost *storage.Log) {
	st := replicaAt(7, lost.Position())
	require.NoError(t, s.WriteRound([]storage.Frame{{Kind: storage.FrameCreated, Group: 3, Replica: 7, Begin: &storage.Begin{Dir: st.Dir, Index: 1, Term: 1}}}))
	entries := native()
	src := source(t, entries)
	st, err := fill(s, st, src, entries[len(entries)-1].Index, nil)
	require.NoError(t, err)
	l, err := s.OpenLog(st)
	require.NoError(t, err)
	requireLog(t, l, entries)
	require.NoError(t, l.Close())
}

// A log that is synced while its directory is another one by name leaves nothing in
// that: its records are in the files that it has open, and the index beside them, which
// is opened by name, is not written.
//
// Property: I3 (red: saveIndex without its look at the marker)
func TestASyncLeavesNothingInAnotherDirectory(t *testing.T) {
	for name := range swaps {
		t.Run(name, func(t *testing.T) {
			fs := simfs.New(1)
			s, l := withWaypoints(t, fs)
			defer s.Close()
			rel := "topics/orders@" + testIncarnation.String()
			swap(t, fs, name)
			before := contents(t, fs, "/node/"+rel)
			require.ErrorIs(t, l.Sync(), storage.ErrLogClosed)
			require.Equal(t, before, contents(t, fs, "/node/"+rel))
			require.ErrorIs(t, l.Close(), storage.ErrLogClosed)
		})
	}
	fs := simfs.New(1)
	s, l := withWaypoints(t, fs)
	defer s.Close()
	require.NoError(t, l.Close())
	found := 0
	for file := range contents(t, fs, "/node/topics") {
		if strings.HasSuffix(file, ".idx") {
			found++
		}
	}
	require.Positive(t, found, "in its own directory it has an index")
}

// withWaypoints is a store with an open log that has waypoints which are not in its
// index file yet.
func withWaypoints(t *testing.T, fs *simfs.FS) (*storage.Store, *storage.Log) {
	cfg := logConfig(fs)
	cfg.SegmentSize = 1 << 20
	s, err := storage.Open(cfg)
	require.NoError(t, err)
	l := openLog(t, s, emptyPosition())
	require.NoError(t, l.Append(history(1, 80, 6000)))
	return s, l
}

// The same before a start: nothing is opened, of no replica, and nothing is changed.
//
// Property: I3 (red: the name in the marker was not compared)
func TestADirectoryThatIsAnotherIsNotOpened(t *testing.T) {
	for name, how := range swaps {
		fs := simfs.New(1)
		s := openStore(t, fs)
		l := openLog(t, s, emptyPosition())
		require.NoError(t, l.Append(native()))
		require.NoError(t, l.Close())
		require.NoError(t, s.Close())
		swap(t, fs, name)
		rel := "topics/orders@" + testIncarnation.String()
		before := contents(t, fs, "/node/"+rel)
		s = openStore(t, fs)
		_, err := s.OpenLog(replicaAt(7, l.Position()))
		var marker *storage.MarkerError
		require.ErrorAs(t, err, &marker, name)
		require.Equal(t, how.kind, marker.Kind, name)
		_, err = s.OpenDamagedLog(replicaAt(8, l.Position()))
		require.ErrorAs(t, err, &marker, name)
		_, err = s.CreateTopicDir("orders", testIncarnation)
		require.ErrorAs(t, err, &marker, name)
		_, err = s.StageLog(replicaAt(7, l.Position()), 5, storage.LogStart{})
		require.ErrorAs(t, err, &marker, name)
		require.ErrorAs(t, s.CheckTopicDir(rel), &marker, name)
		require.Equal(t, before, contents(t, fs, "/node/"+rel), name)
		require.NoError(t, s.Close())
	}
}

// A node stops while a copy of a log that was lost comes in: it is lost at the next
// open, too, and is not taken for one of which some is damaged.
//
// Property: S4 (red: a directory with a staged log was that of the log)
func TestALostLogIsLostUntilItsCopyIsThere(t *testing.T) {
	fs := simfs.New(1)
	s := openStore(t, fs)
	l := openLog(t, s, emptyPosition())
	require.NoError(t, l.Append(native()))
	require.NoError(t, l.Close())
	require.NoError(t, s.Close())
	st := replicaAt(7, l.Position())
	require.NoError(t, fs.RemoveAll("/node/"+st.Dir))
	for round := range uint64(2) {
		s = openStore(t, fs)
		_, err := s.OpenLog(st)
		require.ErrorIs(t, err, storage.ErrLogLost)
		_, err = s.OpenDamagedLog(st)
		require.ErrorIs(t, err, storage.ErrLogLost)
		src := source(t, native())
		staged, err := s.StageLog(st, testReset+round, src.Start())
		require.NoError(t, err)
		require.NoError(t, copyFrames(src, staged, 40, 1<<10))
		fs = fs.Crash(simfs.Kill)
		require.NotEmpty(t, contents(t, fs, "/node/"+st.Dir))
	}
}

// That a marker cannot be read says nothing of the directory: the call fails, the log
// goes on.
//
// Property: I3, S5 (red: a marker that could not be read, and one of a newer release, disowned the log)
func TestAMarkerThatCannotBeReadIsNotAnothers(t *testing.T) {
	fs := simfs.New(1)
	s := openStore(t, fs)
	defer s.Close()
	long := history(1, 400, 300)
	l := openLog(t, s, emptyPosition())
	require.NoError(t, l.Append(long))
	require.NoError(t, l.Sync())
	fs.SetHook(failNth(1, errDisk, func(op simfs.Op) bool { return strings.HasSuffix(op.Path, "/INCARNATION") }))
	_, err := l.ReadAt(0, 1<<20, nil)
	require.ErrorIs(t, err, errDisk)
	require.NotErrorIs(t, err, storage.ErrLogClosed)
	fs.SetHook(nil)
	rel := "topics/orders@" + testIncarnation.String()
	whole := storage.EncodeMarker("orders", testIncarnation)
	newer := bytes.Replace(whole[:len(whole)-16], []byte("topic 1"), []byte("topic 2"), 1)
	writeFile(t, fs, "/node/"+rel+"/INCARNATION", storage.SealText(newer))
	require.ErrorContains(t, s.CheckTopicDir(rel), "newer release")
	writeFile(t, fs, "/node/"+rel+"/INCARNATION", whole)
	requireLog(t, l, long)
	require.NoError(t, l.Close())
}

// No name that a topic can have is the name of something in quarantine, nor the
// other way round, and a directory in topics/ with such a name is no topic's.
//
// Property: I3 (red: '~' and '@' were allowed in names)
func TestNoTopicIsCalledLikeOneInQuarantine(t *testing.T) {
	fs := simfs.New(1)
	s := openStore(t, fs)
	defer s.Close()
	base := "orders@" + testIncarnation.String()
	for _, name := range []string{base, base + "~1", "orders~1", "~orders", base + ".0.7"} {
		_, err := s.CreateTopicDir(name, otherIncarnation)
		var refused *storage.NameError
		require.ErrorAs(t, err, &refused, name)
	}
	for n, name := range []string{base + "~1", base + ".0.7", base + ".0.7~1"} {
		require.NoError(t, fs.MkdirAll("/node/topics/"+name, 0o755))
		dirs, err := s.TopicDirs()
		require.NoError(t, err)
		require.Len(t, dirs, 1)
		require.Empty(t, dirs[0].Name)
		var marker *storage.MarkerError
		require.ErrorAs(t, dirs[0].Foreign, &marker)
		require.Equal(t, storage.ReasonMisnamed, marker.Kind)
		require.NoError(t, s.QuarantineTopic(dirs[0], storage.Reason{Kind: storage.ReasonMisnamed}))
		all, err := s.Quarantined()
		require.NoError(t, err)
		require.Len(t, all, n+1, fmt.Sprint(name, ": the names do not collide"))
	}
}

// What was appended to a log that was disowned is durable nowhere but in the journal:
// a checkpoint does not count it, while the log is still open and when it is closed.
//
// Property: I3, S1 (red: the checkpoint took the log for one that was closed whole)
func TestACheckpointDoesNotCountADisownedLog(t *testing.T) {
	for _, closes := range []bool{false, true} {
		fs := simfs.New(1)
		s := openStore(t, fs)
		rel, err := s.CreateTopicDir("orders", testIncarnation)
		require.NoError(t, err)
		st := replicaAt(7, emptyPosition())
		st.Hard = storage.HardState{Term: 1, Commit: 3}
		entries := []storage.Entry{entry(2, 1, "a"), entry(3, 1, "b")}
		require.NoError(t, s.WriteRound([]storage.Frame{
			{Kind: storage.FrameCreated, Group: 3, Replica: 7, Begin: &storage.Begin{Dir: st.Dir, Index: 1, Term: 1}},
			{Kind: storage.FrameAppend, Group: 3, Replica: 7, Hard: st.Hard, Entries: entries},
		}))
		l, err := s.OpenLog(st)
		require.NoError(t, err)
		for i := range entries {
			require.NoError(t, l.Append([]storage.LogEntry{{Entry: entries[i], Verdict: storage.VerdictControl}}))
		}
		require.NoError(t, fs.Rename("/node/"+rel, "/elsewhere"))
		var marker *storage.MarkerError
		require.ErrorAs(t, s.CheckTopicDir(rel), &marker)
		st.Log = l.Position()
		if closes {
			require.ErrorIs(t, l.Close(), storage.ErrLogClosed)
		}
		generation, err := s.Rotate([]storage.ReplicaState{st}, nil)
		require.NoError(t, err)
		var failed *storage.LogsFailedError
		require.ErrorAs(t, s.Checkpoint(generation, []storage.ReplicaState{st}), &failed)
		require.Equal(t, []storage.ReplicaID{7}, failed.Replicas)
		after := openStore(t, fs.Crash(simfs.Strict))
		got := onlyReplica(t, after)
		require.Equal(t, emptyPosition(), got.Log)
		require.Equal(t, entries, got.Tail)
		_, err = after.CreateTopicDir("orders", testIncarnation)
		require.NoError(t, err)
		l, err = after.OpenLog(got)
		require.NoError(t, err, "all of it is in the journal")
		require.NoError(t, l.Close())
		require.NoError(t, after.Close())
		require.NoError(t, s.Close())
	}
}
