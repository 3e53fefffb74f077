package storage_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/storage"
)

// offlineNode is a directory with one replica: entries committed up to commit in
// the journal, logged up to logged, checkpointed up to named.
func offlineNode(t *testing.T, entries []storage.LogEntry, named, logged, commit int) *simfs.FS {
	fs := simfs.New(1)
	s := openStore(t, fs)
	_, err := s.CreateTopicDir("orders", testIncarnation)
	require.NoError(t, err)
	st := replicaAt(7, emptyPosition())
	st.Conf.Voters = []storage.ReplicaID{7}
	raft := make([]storage.Entry, len(entries))
	for i := range entries {
		raft[i] = entries[i].Entry
	}
	st.Hard = storage.HardState{Term: entries[len(entries)-1].Term, Vote: 7, Commit: storage.Index(commit + 1)}
	require.NoError(t, s.WriteRound([]storage.Frame{
		{Kind: storage.FrameCreated, Group: 3, Replica: 7,
			Begin: &storage.Begin{Dir: st.Dir, Index: 1, Term: 1, Conf: st.Conf}},
		{Kind: storage.FrameAppend, Group: 3, Replica: 7, Hard: st.Hard, Entries: raft},
	}))
	l, err := s.OpenLog(st)
	require.NoError(t, err)
	require.NoError(t, l.Append(entries[:named]))
	st.Log, st.Tail = l.Position(), raft[named:]
	generation, err := s.Rotate([]storage.ReplicaState{st}, nil)
	require.NoError(t, err)
	require.NoError(t, s.Checkpoint(generation, []storage.ReplicaState{st}))
	require.NoError(t, l.Append(entries[named:logged]))
	require.NoError(t, s.WriteRound(nil))
	require.NoError(t, s.Close())
	return fs
}

func TestReadOfflineFindsEverything(t *testing.T) {
	entries := history(1, 60, 300)
	fs := offlineNode(t, entries, 30, 45, 50)
	ops := fs.Ops()
	o, err := storage.ReadOffline(fs, "/node")
	require.NoError(t, err)
	require.Equal(t, "n", o.Identity.Name)
	require.Len(t, o.TopicDirs, 1)
	require.NoError(t, o.TopicDirs[0].Foreign)
	require.Len(t, o.Replicas, 1)
	require.Equal(t, storage.Index(31), o.Replicas[0].Log.LastIndex)
	require.Len(t, o.Replicas[0].Tail, 30)
	n := 0
	for f, err := range o.Frames(7) {
		require.NoError(t, err)
		require.Equal(t, n < 30, f.Proven)
		requireFrames(t, entries, storage.Index(n+2), []storage.FrameView{f.FrameView})
		n++
	}
	require.Equal(t, 45, n)
	require.Equal(t, ops, fs.Ops(), "nothing was changed")

	for _, err := range o.Frames(8) {
		require.ErrorContains(t, err, "no replica")
	}
	for range o.Frames(7) {
		break
	}
	s := openStore(t, fs) // and nothing is locked
	require.NoError(t, s.Close())
}

// After a crash what was not synced is there or not; what was is an error if it
// is not as it was written.
func TestReadOfflineAfterCrashAndDamage(t *testing.T) {
	entries := history(1, 60, 300)
	for seed := range uint64(60) {
		fs := offlineNode(t, entries, 30, 45, 50)
		for range seed {
			fs.Image(simfs.Random) // draw on
		}
		img := fs.Crash(simfs.Random)
		o, err := storage.ReadOffline(img, "/node")
		require.NoError(t, err)
		n := 0
		for f, err := range o.Frames(7) {
			require.NoError(t, err, "seed %d", seed)
			requireFrames(t, entries, storage.Index(n+2), []storage.FrameView{f.FrameView})
			n++
		}
		require.True(t, n >= 30 && n <= 45, "%d frames", n)

		what := damageOne(t, img, rand.New(rand.NewPCG(seed, 1)))
		var damage *storage.DamageError
		n = 0
		for f, err := range o.Frames(7) {
			if err != nil {
				require.ErrorAs(t, err, &damage, what)
				require.Less(t, n, 30, what)
				continue
			}
			requireFrames(t, entries, storage.Index(n+2), []storage.FrameView{f.FrameView})
			n++
		}
		if damage == nil {
			require.GreaterOrEqual(t, n, 30, what)
		}
	}
}

// A log that holds other entries than the journal is an error.
func TestReadOfflineComparesLogAndJournal(t *testing.T) {
	entries := history(1, 60, 300)
	fs := offlineNode(t, entries, 30, 30, 50)
	o, err := storage.ReadOffline(fs, "/node")
	require.NoError(t, err)
	s := openStore(t, fs)
	l, err := s.OpenLog(s.Replicas()[0])
	require.NoError(t, err)
	other := entries[30]
	other.Data = append([]byte("x"), other.Data...)
	require.NoError(t, l.Append([]storage.LogEntry{other}))
	require.NoError(t, s.Close())
	var last error
	for _, err := range o.Frames(7) {
		last = err
	}
	require.ErrorContains(t, last, "another than the journal's")
}

// The journal's files and both copies of the table are told, and which copy is
// not whole.
func TestReadOfflineJournal(t *testing.T) {
	fs := offlineNode(t, history(1, 60, 300), 30, 45, 50)
	o, err := storage.ReadOffline(fs, "/node")
	require.NoError(t, err)
	require.Len(t, o.Journal, 2)
	newest := max(o.Tables[0].Generation, o.Tables[1].Generation)
	for slot, table := range o.Tables {
		require.NoError(t, table.Err)
		if table.Generation != newest {
			continue
		}
		require.NoError(t, fs.Flip(o.Tables[1-slot].Path, 9, 0))
		o, err := storage.ReadOffline(fs, "/node")
		require.NoError(t, err)
		require.ErrorContains(t, o.Tables[1-slot].Err, "checksum differs")
		require.Equal(t, newest, o.Tables[slot].Generation)
		break
	}
}

// Side files that the table names are read, and what is wrong is named.
func TestReadOfflineSideFiles(t *testing.T) {
	fs := simfs.New(1)
	s := openStore(t, fs)
	_, err := s.CreateTopicDir("orders", testIncarnation)
	require.NoError(t, err)
	st := replicaAt(7, emptyPosition())
	st.Conf.Voters = []storage.ReplicaID{7}
	entries := history(1, 9, 300)
	raft := make([]storage.Entry, len(entries))
	for i := range entries {
		raft[i] = entries[i].Entry
	}
	st.Hard = storage.HardState{Term: entries[8].Term, Vote: 7, Commit: 10}
	require.NoError(t, s.WriteRound([]storage.Frame{
		{Kind: storage.FrameCreated, Group: 3, Replica: 7,
			Begin: &storage.Begin{Dir: st.Dir, Index: 1, Term: 1, Conf: st.Conf}},
		{Kind: storage.FrameAppend, Group: 3, Replica: 7, Hard: st.Hard, Entries: raft},
	}))
	l, err := s.OpenLog(st)
	require.NoError(t, err)
	require.NoError(t, l.Append(entries))
	require.NoError(t, l.WriteAux(8, []byte("state")))
	st.Log = l.Position()
	generation, err := s.Rotate([]storage.ReplicaState{st}, nil)
	require.NoError(t, err)
	require.NoError(t, s.Checkpoint(generation, []storage.ReplicaState{st}))
	require.NoError(t, s.Close())

	sideFiles := func() error {
		o, err := storage.ReadOffline(fs, "/node")
		require.NoError(t, err)
		require.ErrorContains(t, o.SideFiles(8), "no replica")
		return o.SideFiles(7)
	}
	require.NoError(t, sideFiles())
	path := "/node/" + st.Dir + "/00000000000000000008.aux"
	require.NoError(t, fs.Flip(path, 25, 0))
	var damage *storage.DamageError
	require.ErrorAs(t, sideFiles(), &damage)
	require.Equal(t, path, damage.Path)
	require.NoError(t, fs.Remove(path))
	require.ErrorContains(t, sideFiles(), "it is missing")
}
