package storage_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/storage"
)

const unmarkedBase = "quarantine/lost~1"

// stopped is a node that does not run, with what somebody copied to unmarkedBase: a topic's
// directory without its marker, with the logs of two partitions.
func stopped(t require.TestingT, seed uint64) (*simfs.FS, storage.AdoptConfig) {
	fs := simfs.New(seed)
	s := openMember(t, fs)
	dir, err := s.CreateTopicDir("orders", testIncarnation)
	require.NoError(t, err)
	for p := range uint32(2) {
		l, err := s.OpenLog(storage.ReplicaState{Group: storage.GroupID(40 + p), Replica: storage.ReplicaID(70 + p),
			Status: storage.ReplicaLive, Dir: storage.ReplicaDir(dir, p, storage.ReplicaID(70+p)), Log: emptyPosition()})
		require.NoError(t, err)
		require.NoError(t, l.Append(history(uint64(p), 20, 600)))
		require.NoError(t, l.Close())
	}
	require.NoError(t, s.Close())
	require.NoError(t, fs.Remove("/node/"+dir+"/INCARNATION"))
	require.NoError(t, fs.MkdirAll("/node/quarantine", 0o755))
	require.NoError(t, fs.Rename("/node/"+dir, "/node/"+unmarkedBase))
	// All of that is on the disk, but for what was copied last.
	last := "/node/" + unmarkedBase + "/1.71/"
	files := segmentFiles(t, fs, last)
	last += slices.Max(slices.Collect(maps.Keys(files)))
	copied := fileBytes(t, fs, last)
	require.NoError(t, fs.Remove(last))
	fs = fs.Crash(simfs.Lucky)
	f, err := fs.Create(last, vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	_, err = f.Write(copied)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	return fs, storage.AdoptConfig{FS: fs, Dir: "/node", Entry: unmarkedBase, Topic: "orders", Incarnation: testIncarnation, At: asideAt, Frame: telling}
}

// telling is the word of a state machine whose entries all say the incarnation.
func telling(_ storage.QuarantinedLog, f *storage.FrameView) (bool, error) {
	return f.Verdict == storage.VerdictData, nil
}

// A directory without a marker becomes what a person says that it is, and no more than
// something in quarantine: no replica opens it, no sweep takes it, and a proof that the
// life is over does. What it was is in its reason.
//
// Property: I9 (red: the kind of the reason was that of a deleted topic)
func TestAnUnmarkedDirectoryIsAdopted(t *testing.T) {
	for _, entry := range []string{unmarkedBase, "lost~1", "topics/lost", "topics/orders@" + testIncarnation.String(), "quarantine/orders@" + testIncarnation.String() + "~4"} {
		fs, cfg := stopped(t, 1)
		cfg.Entry = entry
		if at := "/node/" + entry; entry != "lost~1" && entry != unmarkedBase {
			require.NoError(t, fs.Rename("/node/"+unmarkedBase, at))
		}
		before := contents(t, fs, "/node")
		dry := cfg
		dry.DryRun = true
		plan, err := storage.Adopt(dry)
		require.NoError(t, err, entry)
		require.Equal(t, before, contents(t, fs, "/node"), "%s: a dry run changes nothing", entry)
		got, err := storage.Adopt(cfg)
		require.NoError(t, err, entry)
		require.Equal(t, plan, got, entry)
		want := "quarantine/orders@" + testIncarnation.String() + "~1"
		if strings.HasSuffix(entry, "~4") {
			want = entry
		}
		require.Equal(t, want, got.Dir)
		require.Len(t, got.Logs, 2)
		for p, l := range got.Logs {
			entries := history(uint64(p), 20, 600)
			last := entries[len(entries)-1]
			require.EqualValues(t, 40+p, l.Group)
			require.EqualValues(t, 70+p, l.Replica)
			require.Equal(t, last.Index+1, l.Next)
			require.Equal(t, last.BaseOffset+storage.Offset(last.Count), l.End)
		}
		cfg.Entry = got.Dir
		again, err := storage.Adopt(cfg)
		require.NoError(t, err, "twice is once")
		require.Equal(t, got.Dir, again.Dir)

		s := openMember(t, fs)
		dirs, err := s.TopicDirs()
		require.NoError(t, err)
		require.Empty(t, dirs, "nothing is put into service")
		e, err := s.Describe(got.Dir)
		require.NoError(t, err)
		require.NoError(t, e.Foreign)
		require.Equal(t, storage.ReasonAdopted, e.Reason.Kind)
		require.Equal(t, asideAt, e.Reason.At)
		require.Contains(t, e.Reason.Text, strings.TrimPrefix(entry, "quarantine/"), "what it was called")
		require.True(t, e.Held())
		swept, err := s.DestroyTopic(dead(testIncarnation))
		require.NoError(t, err)
		require.Empty(t, swept.Dirs)
		taken, err := s.DestroyQuarantined(dead(testIncarnation), got.Dir, 0)
		require.NoError(t, err)
		require.Equal(t, []string{got.Dir}, taken.Dirs)
		require.NoError(t, s.Close())
	}
}

// Of the files of one replica's log a person says whose they are, too.
func TestAnUnmarkedLogIsAdopted(t *testing.T) {
	fs, cfg := stopped(t, 1)
	require.NoError(t, fs.Rename("/node/"+unmarkedBase+"/1.71", "/node/quarantine/part~9"))
	cfg.Entry, cfg.Partition, cfg.Replica = "part~9", 1, 71
	got, err := storage.Adopt(cfg)
	require.NoError(t, err)
	require.Equal(t, "quarantine/orders@"+testIncarnation.String()+".1.71~1", got.Dir)
	s := openMember(t, fs)
	defer s.Close()
	e, err := s.Describe(got.Dir)
	require.NoError(t, err)
	require.NoError(t, e.Foreign)
	require.True(t, e.OfReplica)
	r, err := s.ReadQuarantined(got.Dir, 1, 71, nil)
	require.NoError(t, err)
	defer r.Close()
	read, damaged := readAll(t, r, history(1, 20, 600))
	require.Equal(t, 20, read)
	require.Empty(t, damaged)
}

// Whatever contradicts what is said refuses it, says what does, and changes nothing.
//
// Property: I9 (red: find without its look at the name, in quarantine and in topics/; readMarker took any marker; compareJournal left out; verify without its look at the groups, and at whether anything told; verifyLog without its look at Frame's error, and at the journal's group, and over damage; without the lock; noneElse left out; more than one log of a replica; an error of the disk for damage)
func TestWhatContradictsAnAdoption(t *testing.T) {
	other := "orders@" + otherIncarnation.String()
	log := "/node/" + unmarkedBase + "/0.70"
	for what, c := range map[string]struct {
		change func(fs *simfs.FS, cfg *storage.AdoptConfig)
		field  string
		value  string
	}{
		"no topic's name":     {func(_ *simfs.FS, cfg *storage.AdoptConfig) { cfg.Topic = "a/b" }, "Topic", `"a/b"`},
		"no incarnation":      {func(_ *simfs.FS, cfg *storage.AdoptConfig) { cfg.Incarnation = storage.Incarnation{} }, "Incarnation", "zero"},
		"no directory":        {func(_ *simfs.FS, cfg *storage.AdoptConfig) { cfg.Dir = "" }, "Dir", `""`},
		"nobody to tell":      {func(_ *simfs.FS, cfg *storage.AdoptConfig) { cfg.Frame = nil }, "Frame", "nil"},
		"half of a replica":   {func(_ *simfs.FS, cfg *storage.AdoptConfig) { cfg.Partition = 3 }, "Partition", "3"},
		"out of topics":       {func(_ *simfs.FS, cfg *storage.AdoptConfig) { cfg.Entry = "topics/../quarantine/lost~1" }, "Entry", ".."},
		"not there":           {func(_ *simfs.FS, cfg *storage.AdoptConfig) { cfg.Entry = "topics/gone" }, "Entry", "gone"},
		"a replica in topics": {func(fs *simfs.FS, cfg *storage.AdoptConfig) { intoTopics(t, fs, cfg, "lost"); cfg.Replica = 70 }, "Replica", "70"},
		"an unfinished creation": {func(fs *simfs.FS, cfg *storage.AdoptConfig) {
			intoTopics(t, fs, cfg, "~orders@"+testIncarnation.String())
		}, "Entry", "~orders"},
		"another life by its name": {func(fs *simfs.FS, cfg *storage.AdoptConfig) {
			cfg.Entry = "quarantine/" + other + "~1"
			require.NoError(t, fs.Rename("/node/"+unmarkedBase, "/node/"+cfg.Entry))
		}, "Entry", other},
		"another life by its name in topics": {func(fs *simfs.FS, cfg *storage.AdoptConfig) { intoTopics(t, fs, cfg, other) }, "Entry", other},
		"another one's marker": {func(fs *simfs.FS, cfg *storage.AdoptConfig) {
			writeFile(t, fs, "/node/"+unmarkedBase+"/INCARNATION", storage.EncodeMarker("orders", otherIncarnation))
		}, "marker", other},
		"the right marker already, by nobody's word": {func(fs *simfs.FS, cfg *storage.AdoptConfig) {
			writeFile(t, fs, "/node/"+unmarkedBase+"/INCARNATION", storage.EncodeMarker("orders", testIncarnation))
		}, "marker", "orders@"},
		"half of a marker": {func(fs *simfs.FS, cfg *storage.AdoptConfig) {
			writeFile(t, fs, "/node/"+unmarkedBase+"/INCARNATION", []byte("stele topic 1\n"))
		}, "marker", "there"},
		"no logs": {func(fs *simfs.FS, cfg *storage.AdoptConfig) {
			require.NoError(t, fs.Rename(log, "/node/"+unmarkedBase+"/x"))
			require.NoError(t, fs.Rename("/node/"+unmarkedBase+"/1.71", "/node/"+unmarkedBase+"/y"))
		}, "Entry", "without a segment"},
		"a log that nobody looks for": {func(fs *simfs.FS, _ *storage.AdoptConfig) {
			require.NoError(t, fs.MkdirAll("/node/"+unmarkedBase+"/backup", 0o755))
			require.NoError(t, fs.Rename("/node/"+unmarkedBase+"/1.71", "/node/"+unmarkedBase+"/backup/1.71"))
		}, "Entry", unmarkedBase + "/backup"},
		"two logs of a replica": {func(fs *simfs.FS, _ *storage.AdoptConfig) {
			require.NoError(t, fs.MkdirAll("/node/"+unmarkedBase+"/0.70/00000000000000000007.reset", 0o755))
		}, "Entry", "0.70/00000000000000000007.reset"},
		"a bit": {func(fs *simfs.FS, cfg *storage.AdoptConfig) {
			for name := range segmentFiles(t, fs, log) {
				require.NoError(t, fs.Flip(log+"/"+name, 60, 1))
				break
			}
		}, "log", "damaged at entry"},
		"one group for two partitions": {func(fs *simfs.FS, cfg *storage.AdoptConfig) {
			require.NoError(t, fs.RemoveAll("/node/"+unmarkedBase+"/1.71"))
			copyDir(t, fs, log, "/node/"+unmarkedBase+"/1.71")
		}, "group", "40"},
		"two groups in one partition": {func(fs *simfs.FS, cfg *storage.AdoptConfig) {
			require.NoError(t, fs.Rename("/node/"+unmarkedBase+"/1.71", "/node/"+unmarkedBase+"/0.71"))
		}, "group", "41"},
		"another life by its records": {func(_ *simfs.FS, cfg *storage.AdoptConfig) {
			cfg.Frame = func(_ storage.QuarantinedLog, f *storage.FrameView) (bool, error) {
				if f.Index == 15 {
					return false, errors.New("it is of another life")
				}
				return true, nil
			}
		}, "log", "at entry 15"},
		"nothing that says it": {func(_ *simfs.FS, cfg *storage.AdoptConfig) {
			cfg.Frame = func(storage.QuarantinedLog, *storage.FrameView) (bool, error) { return false, nil }
		}, "Incarnation", testIncarnation.String()},
		"another place in the journal": {func(fs *simfs.FS, cfg *storage.AdoptConfig) {
			journalHas(t, fs, 40, 70, "topics/bills@"+otherIncarnation.String()+"/0.70")
		}, "Replica", "partition 0"},
		"another partition in the journal": {func(fs *simfs.FS, cfg *storage.AdoptConfig) {
			journalHas(t, fs, 40, 70, "topics/orders@"+testIncarnation.String()+"/5.70")
		}, "Replica", "partition 0"},
		"another group in the journal": {func(fs *simfs.FS, cfg *storage.AdoptConfig) {
			journalHas(t, fs, 44, 70, "topics/orders@"+testIncarnation.String()+"/0.70")
		}, "group", "40"},
	} {
		fs, cfg := stopped(t, 1)
		c.change(fs, &cfg)
		before := contents(t, fs, "/node")
		_, err := storage.Adopt(cfg)
		var refused *storage.AdoptError
		require.ErrorAs(t, err, &refused, what)
		require.Equal(t, c.field, refused.Field, "%s: %v", what, err)
		require.Contains(t, refused.Value, c.value, what)
		require.NotEmpty(t, refused.Allowed, what)
		require.Equal(t, before, contents(t, fs, "/node"), what)
	}

	// A disk that cannot be read contradicts nothing.
	fs, cfg := stopped(t, 1)
	fs.SetHook(func(op simfs.Op) error {
		if op.Kind == simfs.OpRead && strings.HasPrefix(op.Path, log) {
			return syscall.EIO
		}
		return nil
	})
	_, err := storage.Adopt(cfg)
	require.ErrorIs(t, err, syscall.EIO)
	var refused *storage.AdoptError
	require.False(t, errors.As(err, &refused), "%v", err)

	// The directory as a whole.
	fs, cfg = stopped(t, 1)
	cfg.Entry = "gone~1"
	_, err = storage.Adopt(cfg)
	require.ErrorIs(t, err, storage.ErrNotQuarantined)
	cfg.Entry = unmarkedBase
	s := openMember(t, fs)
	_, err = storage.Adopt(cfg)
	require.ErrorIs(t, err, storage.ErrLocked, "its node runs")
	id := s.Identity()
	id.Recovering.Epoch = 3
	require.NoError(t, s.SetIdentity(id))
	require.NoError(t, s.Close())
	var recovering *storage.RecoveringError
	_, err = storage.Adopt(cfg)
	require.ErrorAs(t, err, &recovering)
	cfg.Dir = "/elsewhere"
	_, err = storage.Adopt(cfg)
	require.Error(t, err)
	names, _ := fs.List("/elsewhere")
	require.Empty(t, names, "no LOCK is left in a stranger's directory")
}

func intoTopics(t *testing.T, fs *simfs.FS, cfg *storage.AdoptConfig, base string) {
	cfg.Entry = "topics/" + base
	require.NoError(t, fs.Rename("/node/"+unmarkedBase, "/node/"+cfg.Entry))
}

// journalHas lets the journal of a stopped node know a replica.
func journalHas(t *testing.T, fs *simfs.FS, group storage.GroupID, replica storage.ReplicaID, dir string) {
	s := openMember(t, fs)
	require.NoError(t, s.WriteRound([]storage.Frame{{Kind: storage.FrameCreated, Group: group, Replica: replica,
		Begin: &storage.Begin{Dir: dir, Index: 1, Term: 1, Conf: storage.ConfState{Voters: []storage.ReplicaID{replica}}}}}))
	require.NoError(t, s.Close())
}

func syncDirs(fs *simfs.FS, dirs ...string) error {
	for _, dir := range dirs {
		d, err := fs.OpenDir(dir)
		if err != nil {
			return err
		}
		if err := errors.Join(d.Sync(), d.Close()); err != nil {
			return err
		}
	}
	return nil
}

func copyDir(t *testing.T, fs *simfs.FS, from, to string) {
	require.NoError(t, fs.MkdirAll(to, 0o755))
	for name, b := range contents(t, fs, from) {
		writeFile(t, fs, to+"/"+name, []byte(b))
	}
}

// Wherever power fails, the directory has no marker, or is in quarantine with one and
// whole; never is there a marker in topics/. The call that is repeated ends it.
//
// Property: I9, I2 (red: the marker was written before the move; it was written in place; what was verified was not synced)
func TestACrashAdoptsNothing(t *testing.T) {
	for _, inTopics := range []bool{false, true} {
		whole := func(fs *simfs.FS, dir string) map[string]string {
			all := contents(t, fs, dir)
			for name := range all {
				if !strings.HasSuffix(name, ".seg") {
					delete(all, name)
				}
			}
			return all
		}
		marked := 0
		for at := int64(1); ; at++ {
			fs, cfg := stopped(t, uint64(at))
			base := "orders@" + testIncarnation.String()
			if inTopics {
				intoTopics(t, fs, &cfg, base)
				require.NoError(t, syncDirs(fs, "/node/topics", "/node/quarantine"))
			}
			want := whole(fs, "/node/"+cfg.Entry)
			fs.SetHook(simfs.CrashAt(fs.Ops() + at))
			_, done := storage.Adopt(cfg)
			for _, survival := range []simfs.Survival{simfs.Strict, simfs.Random, simfs.Lucky, simfs.Kill} {
				img := fs.Crash(survival)
				where := fmt.Sprintf("in topics: %v, crash at %d, %v", inTopics, at, survival)
				var dirs []string
				for _, dir := range []string{"topics", "quarantine"} {
					names, _ := img.List("/node/" + dir)
					for _, name := range names {
						dirs = append(dirs, dir+"/"+name)
					}
				}
				require.NotEmpty(t, dirs, where)
				dir := dirs[0]
				has := contents(t, img, "/node/"+dir)
				if marker, ok := has["INCARNATION"]; ok {
					require.Equal(t, "quarantine/"+base+"~1", dir, where)
					require.True(t, bytes.Equal(storage.EncodeMarker("orders", testIncarnation), []byte(marker)), where)
					require.Contains(t, has["REASON"], "kind adopted", where)
					require.Equal(t, want, whole(img, "/node/"+dir), where)
					marked++
				}
				if len(dirs) == 1 && len(whole(img, "/node/"+dir)) == len(want) {
					again := cfg
					again.FS, again.Entry = img, dir
					got, err := storage.Adopt(again)
					require.NoError(t, err, where)
					require.Equal(t, "quarantine/"+base+"~1", got.Dir, where)
				}
			}
			if done == nil {
				require.Greater(t, at, int64(8))
				require.Positive(t, marked)
				break
			}
		}
	}
}
