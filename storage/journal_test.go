package storage_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/storage"
)

// openTest opens a store in which replica 7 of group 2 has the entries 2 and 3,
// of term 2, and 2 is committed.
func openTest(t testing.TB, fs *simfs.FS) *storage.Store {
	s, err := storage.Open(testConfig(fs))
	require.NoError(t, err)
	require.NoError(t, s.WriteRound([]storage.Frame{
		{Kind: storage.FrameCreated, Group: 2, Replica: 7, Begin: &storage.Begin{Dir: "logs/7", Index: 1, Term: 1}},
		{Kind: storage.FrameAppend, Group: 2, Replica: 7, Hard: storage.HardState{Term: 2, Vote: 8, Commit: 2},
			Entries: []storage.Entry{entry(2, 2, "a"), entry(3, 2, "b")}},
	}))
	return s
}

func stateOf7() storage.ReplicaState {
	return storage.ReplicaState{Group: 2, Replica: 7, Status: storage.ReplicaLive, Dir: "logs/7",
		Hard: storage.HardState{Term: 2, Vote: 8, Commit: 2},
		Log:  storage.LogPosition{StartIndex: 1, StartTerm: 1, LastIndex: 1, LastTerm: 1},
		Tail: []storage.Entry{entry(2, 2, "a"), entry(3, 2, "b")}}
}

func TestConfigIsChecked(t *testing.T) {
	for field, cfg := range map[string]storage.Config{
		"Dir":             {},
		"JournalFileSize": {Dir: "/n", JournalFileSize: 1},
		"SegmentSize":     {Dir: "/n", SegmentSize: 1},
		"MaxOpenFiles":    {Dir: "/n", MaxOpenFiles: 1},
	} {
		_, err := storage.Open(cfg)
		require.ErrorContains(t, err, "Config."+field)
	}
}

// Property: R8 (red: a lower term was admitted; open: within a core)
func TestWhatRecoveryWouldRefuseIsNotWritten(t *testing.T) {
	hard := storage.HardState{Term: 2, Vote: 8, Commit: 2}
	of := func(kind storage.FrameKind) storage.Frame {
		return storage.Frame{Kind: kind, Group: 2, Replica: 7, Hard: hard}
	}
	with := func(h storage.HardState, entries ...storage.Entry) storage.Frame {
		f := of(storage.FrameAppend)
		f.Hard, f.Entries = h, entries
		return f
	}
	reset := of(storage.FrameReset)
	reset.Begin = &storage.Begin{Reset: 1, Index: 1}
	for name, f := range map[string]storage.Frame{
		"unknown replica":  {Kind: storage.FrameAppend, Group: 2, Replica: 8, Hard: hard},
		"other group":      {Kind: storage.FrameAppend, Group: 3, Replica: 7, Hard: hard},
		"created twice":    {Kind: storage.FrameCreated, Group: 2, Replica: 7, Begin: &storage.Begin{Dir: "d"}},
		"created nowhere":  {Kind: storage.FrameCreated, Group: 2, Replica: 9, Begin: &storage.Begin{}},
		"carry":            of(storage.FrameCarry),
		"unknown kind":     of(99),
		"gap":              with(hard, entry(5, 2, "")),
		"gap inside":       with(hard, entry(4, 2, ""), entry(6, 2, "")),
		"committed":        with(hard, entry(2, 2, "")),
		"lower term":       with(storage.HardState{Term: 1, Vote: 8, Commit: 2}),
		"second vote":      with(storage.HardState{Term: 2, Vote: 7, Commit: 2}),
		"lower commit":     with(storage.HardState{Term: 2, Vote: 8, Commit: 1}),
		"commit ahead":     with(storage.HardState{Term: 2, Vote: 8, Commit: 4}),
		"reset without id": of(storage.FrameReset),
		"reset to before":  reset,
	} {
		fs := simfs.New(1)
		s := openTest(t, fs)
		err := s.WriteRound([]storage.Frame{f})
		require.Error(t, err, name)
		require.Equal(t, err, s.WriteRound(nil), name)
		require.NoError(t, s.Close())
		s, err = storage.Open(testConfig(fs))
		require.NoError(t, err, name)
		require.Equal(t, []storage.ReplicaState{stateOf7()}, s.Replicas(), name)
		require.NoError(t, s.Close())
	}
}

// Property: R22 (red: a commit below the log's end was captured; open: raft's own restart)
func TestStatesThatLackSomethingAreNotCaptured(t *testing.T) {
	for name, change := range map[string]func(*storage.ReplicaState){
		"entry missing":      func(st *storage.ReplicaState) { st.Tail = st.Tail[:1] },
		"vote missing":       func(st *storage.ReplicaState) { st.Hard.Vote = 0 },
		"set aside":          func(st *storage.ReplicaState) { st.Status = storage.ReplicaSetAside },
		"other replica":      func(st *storage.ReplicaState) { st.Replica = 8 },
		"other log":          func(st *storage.ReplicaState) { st.Log.Reset = 5 },
		"commit behind log":  func(st *storage.ReplicaState) { st.Log.LastIndex, st.Tail = 3, nil },
		"commit behind":      func(st *storage.ReplicaState) { st.Hard.Commit = 1 },
		"commit ahead":       func(st *storage.ReplicaState) { st.Hard.Commit = 4 },
		"term from nowhere":  func(st *storage.ReplicaState) { st.Hard.Term = 3 },
		"entry from nowhere": func(st *storage.ReplicaState) { st.Tail = append(st.Tail, entry(4, 2, "")) },
	} {
		s := openTest(t, simfs.New(1))
		st := stateOf7()
		change(&st)
		_, err := s.Rotate([]storage.ReplicaState{st}, nil)
		require.Error(t, err, name)
		require.Equal(t, err, s.WriteRound(nil), name)
		require.NoError(t, s.Close())
	}
	s := openTest(t, simfs.New(1))
	_, err := s.Rotate(nil, nil)
	require.Error(t, err)
	require.NoError(t, s.Close())
}

// Property: S5 (red: a failed sync was tried once more; open: the node resigns)
func TestAFailureIsFinal(t *testing.T) {
	errDisk := errors.New("disk")
	for _, kind := range []simfs.OpKind{simfs.OpWrite, simfs.OpSync} {
		fs := simfs.New(1)
		s := openTest(t, fs)
		fs.SetHook(failNth(1, errDisk, func(op simfs.Op) bool { return op.Kind == kind }))
		err := s.WriteRound(nil)
		require.ErrorIs(t, err, errDisk)
		fs.SetHook(nil)
		require.Equal(t, err, s.WriteRound(nil))
		_, rotated := s.Rotate([]storage.ReplicaState{stateOf7()}, nil)
		require.Equal(t, err, rotated)
		require.Equal(t, err, s.Checkpoint(2, []storage.ReplicaState{stateOf7()}))
		require.NoError(t, s.Close())
	}
}

func TestACheckpointThatFailsIsFinal(t *testing.T) {
	errDisk := errors.New("disk")
	fs := simfs.New(1)
	s := openTest(t, fs)
	states := []storage.ReplicaState{stateOf7()}
	g, err := s.Rotate(states, nil)
	require.NoError(t, err)
	require.Error(t, s.Checkpoint(g+1, states))
	fs.SetHook(failNth(1, errDisk, func(op simfs.Op) bool { return op.Kind == simfs.OpSync }))
	err = s.Checkpoint(g, states)
	require.ErrorIs(t, err, errDisk)
	require.Equal(t, err, s.WriteRound(nil))
	require.NoError(t, s.Close())
}

// A log that fails to sync holds up the checkpoint and nothing else.
func TestACheckpointWaitsForLogs(t *testing.T) {
	errDisk := errors.New("disk")
	fs := simfs.New(1)
	s := openTest(t, fs)
	l, err := s.OpenLog(stateOf7())
	require.NoError(t, err)
	require.NoError(t, l.Append([]storage.LogEntry{{Entry: entry(2, 2, "a"), Verdict: storage.VerdictControl}}))
	st := stateOf7()
	st.Log, st.Tail = l.Position(), st.Tail[1:]
	g, err := s.Rotate([]storage.ReplicaState{st}, nil)
	require.NoError(t, err)
	fs.SetHook(failNth(1, errDisk, func(op simfs.Op) bool { return op.Kind == simfs.OpSync }))
	require.ErrorIs(t, s.Checkpoint(g, []storage.ReplicaState{st}), errDisk)
	fs.SetHook(nil)
	require.ErrorIs(t, s.Checkpoint(g, []storage.ReplicaState{st}), errDisk)

	// Set aside, the replica is not waited for.
	require.NoError(t, s.WriteRound([]storage.Frame{{Kind: storage.FrameSetAside, Group: 2, Replica: 7}}))
	require.NoError(t, s.Checkpoint(g, []storage.ReplicaState{st}))
	require.NoError(t, s.Close())
}

// TestTheJournalIsMissing: what was adopted, or holds anything, had one.
func TestTheJournalIsMissing(t *testing.T) {
	for name, change := range map[string]func(*testing.T, *storage.Store){
		"adopted": func(t *testing.T, s *storage.Store) {
			id := s.Identity()
			id.Node = 5
			require.NoError(t, s.SetIdentity(id))
		},
		"topics": func(t *testing.T, s *storage.Store) {
			_, err := s.CreateTopicDir("orders", testIncarnation)
			require.NoError(t, err)
		},
	} {
		fs := simfs.New(1)
		s := openTest(t, fs)
		change(t, s)
		require.NoError(t, s.Close())
		require.NoError(t, fs.RemoveAll("/node/journal"))
		_, err := storage.Open(testConfig(fs))
		var damage *storage.DamageError
		require.ErrorAs(t, err, &damage, name)
		require.Equal(t, "/node/journal", damage.Path)
	}
}

// Rounds, rotations and checkpoints beside each other; what is there in the end
// is what was written.
func TestRoundsBesideCheckpoints(t *testing.T) {
	fs := simfs.New(1)
	s, err := storage.Open(testConfig(fs))
	require.NoError(t, err)
	st := storage.ReplicaState{Group: 2, Replica: 7, Status: storage.ReplicaLive, Dir: "logs/7"}
	require.NoError(t, s.WriteRound([]storage.Frame{
		{Kind: storage.FrameCreated, Group: 2, Replica: 7, Begin: &storage.Begin{Dir: "logs/7"}}}))
	var checkpoint sync.WaitGroup
	defer checkpoint.Wait()
	errs := make(chan error, 1)
	errs <- nil
	for i := storage.Index(1); i <= 300; i++ {
		e := entry(i, 1, fmt.Sprint(i))
		st.Hard.Term = 1
		frames := []storage.Frame{{Kind: storage.FrameAppend, Group: 2, Replica: 7, Hard: st.Hard, Entries: []storage.Entry{e}}}
		if !s.NeedsRotation() {
			require.NoError(t, s.WriteRound(frames))
		} else {
			capture := st
			capture.Tail = append([]storage.Entry(nil), st.Tail...)
			if i == 1 {
				capture.Hard = storage.HardState{}
			}
			g, err := s.Rotate([]storage.ReplicaState{capture}, frames)
			require.NoError(t, err)
			require.NoError(t, <-errs)
			checkpoint.Go(func() { errs <- s.Checkpoint(g, []storage.ReplicaState{capture}) })
		}
		st.Tail = append(st.Tail, e)
	}
	require.NoError(t, <-errs)
	require.NoError(t, s.Close())
	s, err = storage.Open(testConfig(fs.Crash(simfs.Strict)))
	require.NoError(t, err)
	require.Equal(t, []storage.ReplicaState{st}, s.Replicas())
	require.NoError(t, s.Close())
}

// A round of one entry allocates nothing of its own.
func TestARoundAllocatesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector allocates")
	}
	cfg := testConfig(storage.DiskFS())
	cfg.Dir, cfg.JournalFileSize = t.TempDir(), 16<<20
	s, err := storage.Open(cfg)
	require.NoError(t, err)
	require.NoError(t, s.WriteRound([]storage.Frame{
		{Kind: storage.FrameCreated, Group: 2, Replica: 7, Begin: &storage.Begin{Dir: "logs/7"}}}))
	frames := []storage.Frame{{Kind: storage.FrameAppend, Group: 2, Replica: 7, Hard: storage.HardState{Term: 1},
		Entries: []storage.Entry{entry(1, 1, "some record")}}}
	require.Zero(t, testing.AllocsPerRun(20, func() {
		if err := s.WriteRound(frames); err != nil {
			t.Error(err)
		}
		frames[0].Entries[0].Index++
	}))
	require.NoError(t, s.Close())
}
