package storage_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/storage"
)

var errDisk = errors.New("disk")

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

// Property: R8 (red: a lower term was admitted; within a core: TestSeeds in internal/sim)
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

// Property: R22 (red: a commit below the log's end was captured; raft's own restart: TestOpensFromWhatACrashLeaves in raftlog)
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

// Property: S5 (red: a failed sync was tried once more; the node resigns: TestJournalFailsOnTheLeader of the root)
func TestAFailureIsFinal(t *testing.T) {
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

// failingLogs is a node with the replicas 7 and 8, whose entries are appended
// to the journal and applied to their logs; 7's log fails at its first sync.
type failingLogs struct {
	t      *testing.T
	fs     *simfs.FS
	s      *storage.Store
	states []storage.ReplicaState // of 7 and 8
	logs   []*storage.Log
}

func newFailingLogs(t *testing.T) *failingLogs {
	f := &failingLogs{t: t, fs: simfs.New(1)}
	var err error
	f.s, err = storage.Open(testConfig(f.fs))
	require.NoError(t, err)
	for r := storage.ReplicaID(7); r <= 8; r++ {
		b := &storage.Begin{Dir: fmt.Sprintf("logs/%d", r), Index: 1, Term: 1}
		g := storage.GroupID(r)
		require.NoError(t, f.s.WriteRound([]storage.Frame{{Kind: storage.FrameCreated, Group: g, Replica: r, Begin: b}}))
		st := storage.ReplicaState{Group: g, Replica: r, Status: storage.ReplicaLive, Dir: b.Dir,
			Hard: storage.HardState{Term: 1, Commit: 1}, Log: emptyPosition()}
		l, err := f.s.OpenLog(st)
		require.NoError(t, err)
		f.states, f.logs = append(f.states, st), append(f.logs, l)
	}
	f.fs.SetHook(failLogOf7)
	return f
}

func failLogOf7(op simfs.Op) error {
	if op.Kind == simfs.OpSync && strings.HasPrefix(op.Path, "/node/logs/7/") {
		return errDisk
	}
	return nil
}

// write appends an entry to the journal, commits it, and applies it if asked.
func (f *failingLogs) write(i int, apply bool) {
	st := &f.states[i]
	e := entry(st.Log.LastIndex+storage.Index(len(st.Tail))+1, 1, fmt.Sprint(i, len(st.Tail)))
	st.Tail = append(st.Tail, e)
	st.Hard.Commit = e.Index
	require.NoError(f.t, f.s.WriteRound([]storage.Frame{{Kind: storage.FrameAppend, Group: st.Group,
		Replica: st.Replica, Hard: st.Hard, Entries: []storage.Entry{e}}}))
	if !apply {
		return
	}
	for _, e := range st.Tail {
		require.NoError(f.t, f.logs[i].Append([]storage.LogEntry{{Entry: e, Verdict: storage.VerdictControl}}))
	}
	st.Log, st.Tail = f.logs[i].Position(), nil
}

func (f *failingLogs) checkpoint() error {
	states := slices.Clone(f.states)
	g, err := f.s.Rotate(states, nil)
	require.NoError(f.t, err)
	return f.s.Checkpoint(g, states)
}

// Property: S5 (red: a checkpoint failed with the log; the row lacked the entries; the node resigns: TestJournalFailsOnTheLeader of the root)
//
// A log that fails to sync holds up nothing: files are let go, and nothing of
// the replica is lost.
func TestAFailedLogHoldsUpNoCheckpoint(t *testing.T) {
	f := newFailingLogs(t)
	for range 3 {
		f.write(0, true)
	}
	var want []storage.Entry
	for i := storage.Index(2); i <= 4; i++ {
		want = append(want, entry(i, 1, "0 0"))
	}
	for n := range 12 {
		if n > 0 && n < 4 {
			f.write(0, false) // what was on its way
			want = append(want, f.states[0].Tail[n-1])
		}
		f.write(1, true)
		err := f.checkpoint()
		var failed *storage.LogsFailedError
		require.ErrorAs(t, err, &failed)
		require.Equal(t, []storage.ReplicaID{7}, failed.Replicas)
		require.ErrorIs(t, err, errDisk)
		names, err := f.fs.List("/node/journal")
		require.NoError(t, err)
		require.LessOrEqual(t, len(names), 4+2, "%v", names)

		s, err := storage.Open(testConfig(f.fs.Image(simfs.Strict)))
		require.NoError(t, err)
		got := s.Replicas()
		require.Equal(t, emptyPosition(), got[0].Log)
		require.Equal(t, want, got[0].Tail)
		require.Equal(t, f.states[0].Hard, got[0].Hard)
		require.Equal(t, f.states[1], got[1])
		l, err := s.OpenLog(got[0])
		require.NoError(t, err)
		require.NoError(t, l.Append([]storage.LogEntry{{Entry: want[0], Verdict: storage.VerdictControl}}))
		require.NoError(t, s.Close())
	}
	// Set aside, the replica is not waited for.
	require.NoError(t, f.s.WriteRound([]storage.Frame{{Kind: storage.FrameSetAside, Group: 7, Replica: 7}}))
	f.states[0].Status, f.states[0].Tail = storage.ReplicaSetAside, nil
	require.NoError(t, f.checkpoint())
	require.NoError(t, f.s.Close())
}

// Without the journal that has the entries there is no checkpoint.
func TestAFailedLogNeedsItsJournal(t *testing.T) {
	f := newFailingLogs(t)
	f.write(0, true)
	names, err := f.fs.List("/node/journal")
	require.NoError(t, err)
	for _, name := range names {
		if strings.HasPrefix(name, "2.") {
			require.NoError(t, f.fs.Flip("/node/journal/"+name, 4096+70, 1))
		}
	}
	err = f.checkpoint()
	var damage *storage.DamageError
	require.ErrorAs(t, err, &damage)
	require.ErrorIs(t, err, errDisk)
	var failed *storage.LogsFailedError
	require.NotErrorAs(t, err, &failed)
	require.NoError(t, f.s.WriteRound(nil))
	require.NoError(t, f.s.Close())
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
