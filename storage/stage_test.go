package storage_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/storage"
)

// source is a log to be copied: of the same group, on another node.
func source(t require.TestingT, entries []storage.LogEntry) *storage.Log {
	s := openStore(t, simfs.New(9))
	l := openLog(t, s, emptyPosition())
	require.NoError(t, l.Append(entries))
	return l
}

// copyFrames sends what src holds up to last to a staged log.
func copyFrames(src *storage.Log, to *storage.StagedLog, last storage.Index, maxBytes int) error {
	for to.Next() <= last {
		frames, next, err := src.Frames(to.Next(), last+1, maxBytes, nil)
		if err != nil {
			return err
		}
		if err := to.Append(frames); err != nil {
			return err
		}
		if to.Next() != next {
			return fmt.Errorf("staged up to %d, sent up to %d", to.Next(), next)
		}
	}
	return nil
}

const testReset = 77

// createEmpty makes replica 7 as one that no creating command lists.
func createEmpty(s *storage.Store) (storage.ReplicaState, error) {
	st := replicaAt(7, storage.LogPosition{})
	if _, err := s.CreateTopicDir("orders", testIncarnation); err != nil {
		return st, err
	}
	return st, s.WriteRound([]storage.Frame{
		{Kind: storage.FrameCreated, Group: st.Group, Replica: st.Replica, Begin: &storage.Begin{Dir: st.Dir}},
	})
}

// fill stages the source's entries up to last and resets the replica to them.
// It returns the replica's state behind that.
func fill(s *storage.Store, st storage.ReplicaState, src *storage.Log, last storage.Index, aux []byte) (storage.ReplicaState, error) {
	staged, err := s.StageLog(st, testReset, src.Start())
	if err != nil {
		return st, err
	}
	if err := copyFrames(src, staged, last, 1500); err != nil {
		return st, err
	}
	if aux != nil {
		if err := staged.WriteAux(last-3, aux); err != nil {
			return st, err
		}
	}
	begin, err := staged.Finish()
	if err != nil {
		return st, err
	}
	begin.Conf.Learners = []storage.ReplicaID{st.Replica}
	frame := storage.Frame{Kind: storage.FrameReset, Group: st.Group, Replica: st.Replica, Begin: &begin}
	return st.After(&begin), s.WriteRound([]storage.Frame{frame})
}

// onlyReplica returns what the store recovered of the only replica.
func onlyReplica(t require.TestingT, s *storage.Store) storage.ReplicaState {
	states := s.Replicas()
	require.Len(t, states, 1)
	return states[0]
}

func TestAStagedLogBecomesTheReplicas(t *testing.T) {
	entries := history(5, 200, 400)
	src := source(t, entries)
	last := storage.Index(151)
	fs := simfs.New(1)
	s := openStore(t, fs)
	st, err := createEmpty(s)
	require.NoError(t, err)
	own, err := s.OpenLog(st)
	require.NoError(t, err)
	st, err = fill(s, st, src, last, []byte("what it knew"))
	require.NoError(t, err)
	require.NoError(t, own.Close())
	require.Equal(t, storage.HardState{Term: entries[last-2].Term, Commit: last}, st.Hard)
	require.Equal(t, []storage.ReplicaID{7}, st.Conf.Learners)

	// In the same process, and in the next one, before and behind a checkpoint.
	for round := range 3 {
		if round > 0 {
			fs = fs.Crash(simfs.Strict)
			require.NoError(t, s.Close())
			s = openStore(t, fs)
			require.Equal(t, st, onlyReplica(t, s))
		}
		l, err := s.OpenLog(st)
		require.NoError(t, err)
		requireLog(t, l, entries[:last-1])
		pos := l.Position()
		require.Equal(t, last-3, pos.AuxIndex)
		aux, err := l.ReadAux(pos.AuxIndex)
		require.NoError(t, err)
		require.Equal(t, "what it knew", string(aux))
		require.Equal(t, storage.LogStart{Index: 1, Term: 1}, l.Start())
		require.NoError(t, l.Append(entries[last-1:]))
		requireLog(t, l, entries)
		want := src.Position()
		want.Reset, want.AuxIndex = testReset, pos.AuxIndex
		require.Equal(t, want, l.Position(), "the same segments")
		if round == 1 { // from here on the table has the whole position
			st.Log = pos
			generation, err := s.Rotate([]storage.ReplicaState{st}, nil)
			require.NoError(t, err)
			require.NoError(t, s.Checkpoint(generation, []storage.ReplicaState{st}))
			fs = fs.Crash(simfs.Strict)
			require.NoError(t, s.Close())
			s = openStore(t, fs)
			l, err = s.OpenLog(onlyReplica(t, s))
			require.NoError(t, err)
			require.Equal(t, pos, l.Position())
			requireLog(t, l, entries[:last-1])
			return
		}
		require.NoError(t, l.Close())
	}
}

// Property: R22, R24, S8, S12 (red: Finish synced nothing; the log's directory not synced;
// its name not synced; whole nodes: TestAFillOfANodeThatLosesPower in topic)
//
// Power fails at every operation of a fill: the replica has its old log or all
// of the new one, never a part of it, and nothing is left of the other.
func TestAFillSurvivesACrashAtEveryOperation(t *testing.T) {
	entries := history(5, 60, 700)
	src := source(t, entries)
	aux := bytes.Repeat([]byte("known "), 300)
	run := func(fs *simfs.FS) error {
		s, err := storage.Open(logConfig(fs))
		if err != nil {
			return err
		}
		defer s.Close()
		st, err := createEmpty(s)
		if err != nil {
			return err
		}
		own, err := s.OpenLog(st)
		if err != nil {
			return err
		}
		st, err = fill(s, st, src, 41, aux)
		if err != nil {
			return err
		}
		if err := own.Close(); err != nil {
			return err
		}
		l, err := s.OpenLog(st)
		if err != nil {
			return err
		}
		if err := l.Append(entries[40:]); err != nil {
			return err
		}
		return l.Close()
	}
	old, filled := 0, 0
	for at := int64(1); ; at++ {
		fs := simfs.New(uint64(at))
		fs.SetHook(simfs.CrashAt(at))
		done := run(fs)
		for _, survival := range []simfs.Survival{simfs.Strict, simfs.Random, simfs.Kill} {
			img := fs.Crash(survival)
			for range 2 { // the second opening finds what the first one left
				s := openStore(t, img)
				states := s.Replicas()
				if len(states) == 0 {
					require.NoError(t, s.Close())
					break
				}
				l, err := s.OpenLog(states[0])
				require.NoError(t, err, "crash at %d", at)
				if states[0].Log.Reset == 0 {
					require.Error(t, done)
					require.Zero(t, l.Position())
					require.Empty(t, logNames(t, img, ""), "crash at %d", at)
					old++
				} else {
					requireLog(t, l, entries[:40])
					data, err := l.ReadAux(38)
					require.NoError(t, err)
					require.Equal(t, aux, data)
					require.NoError(t, l.Append(entries[40:]))
					requireLog(t, l, entries)
					require.Equal(t, []string{fmt.Sprintf("%020d.reset", testReset)}, logNames(t, img, ""))
					filled++
				}
				require.NoError(t, l.Close())
				require.NoError(t, s.Close())
			}
		}
		if done == nil {
			require.Greater(t, at, int64(50), "operations")
			break
		}
	}
	require.Greater(t, old, 50)
	require.Greater(t, filled, 10)
}

// logNames lists the directory of replica 7, or one below it.
func logNames(t require.TestingT, fs *simfs.FS, below string) []string {
	names, err := fs.List(fs.PathJoin("/node", replicaAt(7, emptyPosition()).Dir, below))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	require.NoError(t, err)
	slices.Sort(names)
	return names
}

// Property: I8, S4 (red: a gap taken; the payload's checksum not verified; whole nodes: TestAFillPassesOverDamage in topic)
//
// Frames that are not what continues the log are refused, whole calls at a
// time, and the right ones can be sent after them.
func TestStagedFramesAreVerified(t *testing.T) {
	entries := history(6, 50, 200)
	src := source(t, entries)
	s := openStore(t, simfs.New(1))
	defer s.Close()
	st, err := createEmpty(s)
	require.NoError(t, err)
	staged, err := s.StageLog(st, testReset, src.Start())
	require.NoError(t, err)
	good, next, err := src.Frames(2, 52, 1200, nil)
	require.NoError(t, err)
	require.Greater(t, next, storage.Index(3))
	for bit := range 8 * len(good) {
		bad := bytes.Clone(good)
		bad[bit/8] ^= 1 << (bit % 8)
		require.Error(t, staged.Append(bad), "bit %d", bit)
		require.Equal(t, storage.Index(2), staged.Next())
	}
	later, _, err := src.Frames(next, 52, 1200, nil)
	require.NoError(t, err)
	require.ErrorContains(t, staged.Append(later), "where entry 2 belongs")
	require.ErrorContains(t, staged.Append(good[:len(good)-1]), "is cut off")
	foreign := storage.EncodeFrame(4, goldenFrame())
	require.ErrorContains(t, staged.Append(foreign), "group")
	require.NoError(t, staged.Append(good))
	require.ErrorContains(t, staged.Append(good), fmt.Sprintf("where entry %d belongs", next))
	require.NoError(t, copyFrames(src, staged, 51, 700))
	_, err = staged.Finish()
	require.NoError(t, err)
}

// Property: M4 (red: the leftovers of a replica that is opened again were all removed; a quarantine did not look at staged logs; the manager's part: TestATopicIsDeletedWhileAReplicaMoves in topic)
func TestAStagedLogIsLeftAlone(t *testing.T) {
	entries := history(6, 50, 200)
	src := source(t, entries)
	fs := simfs.New(1)
	s := openStore(t, fs)
	defer s.Close()
	st, err := createEmpty(s)
	require.NoError(t, err)
	staged, err := s.StageLog(st, testReset, src.Start())
	require.NoError(t, err)
	_, err = s.StageLog(st, testReset+1, src.Start())
	require.ErrorContains(t, err, "another one is staged")
	require.NoError(t, copyFrames(src, staged, 51, 700))
	reopen := func() []string {
		l, err := s.OpenLog(st)
		require.NoError(t, err)
		require.NoError(t, l.Close())
		return logNames(t, fs, "")
	}
	name := fmt.Sprintf("%020d.reset", testReset)
	require.Equal(t, []string{name}, reopen())
	dirs, err := s.TopicDirs()
	require.NoError(t, err)
	require.ErrorContains(t, s.QuarantineTopic(dirs[0], because("because")), "is open")
	_, err = staged.Finish()
	require.NoError(t, err)
	require.Equal(t, []string{name}, reopen(), "finished and not yet taken")
	require.NoError(t, staged.Abandon())
	require.NoError(t, staged.Abandon())
	require.Empty(t, logNames(t, fs, ""))

	// The id may be used again, and what an earlier process left goes.
	staged, err = s.StageLog(st, testReset, src.Start())
	require.NoError(t, err)
	require.NoError(t, copyFrames(src, staged, 20, 700))
	require.NoError(t, staged.Abandon())
	require.NoError(t, fs.MkdirAll("/node/"+st.Dir+"/00000000000000000005.reset", 0o755))
	require.Empty(t, reopen())
	require.NoError(t, s.QuarantineTopic(dirs[0], because("because")))
	_, err = s.StageLog(st, testReset, src.Start())
	var marker *storage.MarkerError
	require.ErrorAs(t, err, &marker, "the topic is gone")
}

// What a reset replaced is removed once the new log is open.
func TestTheLogThatAResetReplacedIsRemoved(t *testing.T) {
	entries := history(6, 50, 200)
	src := source(t, entries)
	fs := simfs.New(1)
	s := openStore(t, fs)
	defer s.Close()
	_, err := s.CreateTopicDir("orders", testIncarnation)
	require.NoError(t, err)
	st := replicaAt(7, emptyPosition())
	require.NoError(t, s.WriteRound([]storage.Frame{
		{Kind: storage.FrameCreated, Group: 3, Replica: 7, Begin: &storage.Begin{Dir: st.Dir, Index: 1, Term: 1}}}))
	old, err := s.OpenLog(st)
	require.NoError(t, err)
	require.NoError(t, old.Append(entries[:30]))
	require.NoError(t, old.WriteAux(20, []byte("x")))
	require.NoError(t, old.Close())
	st, err = fill(s, st, src, 51, nil)
	require.NoError(t, err)
	l, err := s.OpenLog(st)
	require.NoError(t, err)
	requireLog(t, l, entries)
	require.Equal(t, []string{fmt.Sprintf("%020d.reset", testReset)}, logNames(t, fs, ""))
	for _, name := range logNames(t, fs, fmt.Sprintf("%020d.reset", testReset)) {
		require.NotContains(t, name, ".tmp")
	}
}

// Frames are read beside the writer, and are always those that were appended.
func TestFramesAreReadBesideTheWriter(t *testing.T) {
	entries := history(7, 300, 300)
	s := openStore(t, simfs.New(1))
	defer s.Close()
	l := openLog(t, s, emptyPosition())
	want := make([][]byte, len(entries))
	for i, e := range entries {
		want[i] = storage.EncodeFrame(3, &storage.FrameView{Index: e.Index, Term: e.Term, Kind: e.Kind, Verdict: e.Verdict,
			BaseOffset: e.BaseOffset, Count: e.Count, Payload: e.Data})
	}
	var readers sync.WaitGroup
	for r := range 3 {
		readers.Go(func() {
			for at := storage.Index(2); at < storage.Index(len(entries)+2); {
				hi := l.Position().LastIndex + 1
				got, next, err := l.Frames(at, hi, 500*(r+1), []byte("kept"))
				if err != nil {
					t.Error(err)
					return
				}
				if at < next && !bytes.Equal(got[4:], bytes.Join(want[at-2:next-2], nil)) {
					t.Errorf("entries %d to %d are others", at, next)
					return
				}
				at = next
			}
		})
	}
	for rest := entries; len(rest) > 0; rest = rest[min(3, len(rest)):] {
		require.NoError(t, l.Append(rest[:min(3, len(rest))]))
	}
	readers.Wait()
	_, _, err := l.Frames(1, 2, 1, nil)
	require.ErrorIs(t, err, storage.ErrCompacted)
	_, _, err = l.Frames(2, 303, 1, nil)
	require.ErrorIs(t, err, storage.ErrBeyond)
}
