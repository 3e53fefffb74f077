package storage_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/storage"
)

func TestValidateName(t *testing.T) {
	for _, good := range []string{"a", "A.b_c-9", "...", strings.Repeat("x", storage.MaxNameLength)} {
		require.NoError(t, storage.ValidateName(good))
	}
	for _, bad := range []string{"", ".", "..", "a@b", "a/b", "a b", "~a", "ä", "a\x00", strings.Repeat("x", storage.MaxNameLength+1)} {
		var name *storage.NameError
		require.ErrorAs(t, storage.ValidateName(bad), &name)
		require.Equal(t, bad, name.Name)
	}
	// The longest name that the layout makes fits a file system.
	longest := strings.Repeat("x", storage.MaxNameLength) + "@" + testIncarnation.String() +
		fmt.Sprintf(".%d.%d~%d", ^uint32(0), ^uint64(0), ^uint32(0))
	require.LessOrEqual(t, len(longest), 255)
}

func TestCreateTopicDirIsIdempotent(t *testing.T) {
	fs := simfs.New(1)
	s := openStore(t, fs)
	defer s.Close()
	dir, err := s.CreateTopicDir("orders", testIncarnation)
	require.NoError(t, err)
	require.Equal(t, "topics/orders@"+testIncarnation.String(), dir)
	again, err := s.CreateTopicDir("orders", testIncarnation)
	require.NoError(t, err)
	require.Equal(t, dir, again)
	_, err = s.CreateTopicDir("orders", storage.Incarnation{9})
	require.NoError(t, err)
	dirs, err := s.TopicDirs()
	require.NoError(t, err)
	require.Equal(t, []storage.TopicDir{
		{Dir: dir, Name: "orders", Incarnation: testIncarnation},
		{Dir: "topics/orders@" + storage.Incarnation{9}.String(), Name: "orders", Incarnation: storage.Incarnation{9}},
	}, dirs)
	_, err = s.CreateTopicDir("or@ders", testIncarnation)
	var name *storage.NameError
	require.ErrorAs(t, err, &name)
}

// Property: I2, S8 (red: the directory was made under its own name; its marker was
// not synced, nor it before the rename, nor topics/ behind it)
//
// Power fails at every operation of creating a topic's directory and the first
// log in it: there is never a directory without its marker, and what was
// returned is there.
func TestTopicDirsAreNeverUnmarked(t *testing.T) {
	for at := int64(1); ; at++ {
		fs := simfs.New(uint64(at))
		s := openStore(t, fs)
		fs.SetHook(simfs.CrashAt(fs.Ops() + at))
		_, err := s.CreateTopicDir("orders", testIncarnation)
		for _, survival := range []simfs.Survival{simfs.Strict, simfs.Random, simfs.Random, simfs.Lucky, simfs.Kill} {
			img := fs.Crash(survival)
			after := openStore(t, img)
			dirs, lerr := after.TopicDirs()
			require.NoError(t, lerr)
			for _, d := range dirs {
				require.NoError(t, d.Foreign, "crash at %d", at)
			}
			if err == nil {
				require.Len(t, dirs, 1, "crash at %d", at)
			}
			l := openLog(t, after, emptyPosition())
			require.NoError(t, l.Append(history(1, 3, 10)))
			require.NoError(t, l.Sync())
			img = img.Crash(simfs.Strict)
			require.NoError(t, after.Close())
			after = openStore(t, img)
			requireLog(t, openLog(t, after, l.Position()), history(1, 3, 10))
			require.NoError(t, after.Close())
		}
		require.NoError(t, s.Close())
		if err == nil {
			require.Greater(t, at, int64(5))
			return
		}
	}
}

// Power fails at every operation of creating a topic's directory: what is left under
// its temporary name is gone when the store was opened again, which may itself lose
// power on the way. What holds anything but a marker stays.
//
// Property: I4, I10 (red: Open left it; what held something else was removed, too)
func TestUnfinishedTopicDirsAreRemoved(t *testing.T) {
	unfinished := func(fs *simfs.FS) (all []string) {
		names, err := fs.List("/node/topics")
		if err != nil {
			return nil // not made yet
		}
		for _, name := range names {
			if strings.HasPrefix(name, "~") {
				all = append(all, name)
			}
		}
		return all
	}
	left := 0
	for at := int64(1); ; at++ {
		fs := simfs.New(uint64(at))
		s := openStore(t, fs)
		fs.SetHook(simfs.CrashAt(fs.Ops() + at))
		_, made := s.CreateTopicDir("orders", testIncarnation)
		for _, survival := range []simfs.Survival{simfs.Strict, simfs.Random, simfs.Lucky, simfs.Kill} {
			img := fs.Crash(survival)
			left += len(unfinished(img))
			img.SetHook(simfs.CrashAt(img.Ops() + at))
			if again, err := storage.Open(logConfig(img)); err == nil {
				require.NoError(t, again.Close())
			}
			img = img.Crash(survival)
			require.NoError(t, openStore(t, img).Close())
			require.Empty(t, unfinished(img), "crash at %d", at)
		}
		require.NoError(t, s.Close())
		if made == nil {
			break
		}
	}
	require.Positive(t, left)

	fs := simfs.New(1)
	require.NoError(t, openStore(t, fs).Close())
	for _, dir := range []string{"~orders@" + testIncarnation.String() + "/0.1", "~mine"} {
		require.NoError(t, fs.MkdirAll("/node/topics/"+dir, 0o755))
	}
	require.NoError(t, openStore(t, fs).Close())
	require.Len(t, unfinished(fs), 2)
}

// A directory that is not what its name says is never opened.
func TestForeignTopicDirsAreRefused(t *testing.T) {
	marker := "/node/topics/orders@" + testIncarnation.String() + "/INCARNATION"
	for name, change := range map[string]func(t *testing.T, fs *simfs.FS){
		"removed": func(t *testing.T, fs *simfs.FS) { require.NoError(t, fs.Remove(marker)) },
		"flipped": func(t *testing.T, fs *simfs.FS) { require.NoError(t, fs.Flip(marker, 30, 2)) },
		"of another incarnation": func(t *testing.T, fs *simfs.FS) {
			writeFile(t, fs, marker, storage.EncodeMarker("orders", storage.Incarnation{9}))
		},
		"of another topic": func(t *testing.T, fs *simfs.FS) {
			writeFile(t, fs, marker, storage.EncodeMarker("bills", testIncarnation))
		},
	} {
		t.Run(name, func(t *testing.T) {
			fs := simfs.New(1)
			s := openStore(t, fs)
			defer s.Close()
			l := openLog(t, s, emptyPosition())
			require.NoError(t, l.Append(history(1, 3, 10)))
			require.NoError(t, l.Close())
			change(t, fs)

			var foreign *storage.MarkerError
			_, err := s.OpenLog(replicaAt(7, l.Position()))
			require.ErrorAs(t, err, &foreign)
			require.Equal(t, "topics/orders@"+testIncarnation.String(), foreign.Dir)
			_, err = s.CreateTopicDir("orders", testIncarnation)
			require.ErrorAs(t, err, &foreign)
			dirs, err := s.TopicDirs()
			require.NoError(t, err)
			require.Len(t, dirs, 1)
			require.ErrorAs(t, dirs[0].Foreign, &foreign)

			require.NoError(t, s.QuarantineTopic(dirs[0], because("test")))
			_, err = s.CreateTopicDir("orders", testIncarnation)
			require.NoError(t, err)
			var damage *storage.DamageError
			_, err = s.OpenLog(replicaAt(7, l.Position()))
			require.ErrorAs(t, err, &damage, "the new directory is empty")
		})
	}
}

func TestQuarantineKeepsEverything(t *testing.T) {
	fs := simfs.New(1)
	s := openStore(t, fs)
	l := openLog(t, s, emptyPosition())
	require.NoError(t, l.Append(history(1, 3, 10)))
	dirs, err := s.TopicDirs()
	require.NoError(t, err)
	require.ErrorContains(t, s.QuarantineTopic(dirs[0], because("too early")), "is open")
	require.NoError(t, l.Close())
	require.NoError(t, s.QuarantineTopic(dirs[0], because("the topic\nwas deleted")))
	require.Error(t, s.QuarantineTopic(storage.TopicDir{Dir: "journal"}, because("no")))
	require.Error(t, s.QuarantineTopic(storage.TopicDir{Dir: "topics/x@y/0.7"}, because("no")))

	base := "orders@" + testIncarnation.String()
	for n := 2; n <= 3; n++ {
		_, err := s.CreateTopicDir("orders", testIncarnation)
		require.NoError(t, err)
		require.NoError(t, s.QuarantineTopic(dirs[0], because(fmt.Sprint("again ", n))))
	}
	require.NoError(t, fs.MkdirAll("/node/topics/"+strings.Repeat("y", 255), 0o755))
	dirs, err = s.TopicDirs()
	require.NoError(t, err)
	require.Len(t, dirs, 1)
	require.NoError(t, s.QuarantineTopic(dirs[0], because("no topic")))

	fs = fs.Crash(simfs.Strict)
	require.NoError(t, s.Close())
	s = openStore(t, fs)
	defer s.Close()
	moved, err := s.Quarantined()
	require.NoError(t, err)
	require.Equal(t, []storage.QuarantinedDir{
		{Dir: "quarantine/" + base + "~1", From: base, Number: 1, Reason: because("the topic\nwas deleted")},
		{Dir: "quarantine/" + base + "~2", From: base, Number: 2, Reason: because("again 2")},
		{Dir: "quarantine/" + base + "~3", From: base, Number: 3, Reason: because("again 3")},
		{Dir: "quarantine/" + strings.Repeat("y", 240) + "~1", From: strings.Repeat("y", 255), Number: 1, Reason: because("no topic")},
	}, moved)
	names, err := fs.List("/node/quarantine/" + base + "~1/0.7")
	require.NoError(t, err)
	require.Len(t, names, 1)
}

// Property: S8 (red: neither directory was synced after the rename; the reason was not written)
//
// Power fails at every operation of a quarantine: the directory is in one place
// or the other, whole, and in quarantine only with its reason.
func TestQuarantineSurvivesACrashAtEveryOperation(t *testing.T) {
	for at := int64(1); ; at++ {
		fs := simfs.New(uint64(at))
		s := openStore(t, fs)
		l := openLog(t, s, emptyPosition())
		require.NoError(t, l.Append(history(1, 3, 10)))
		require.NoError(t, l.Close())
		dirs, err := s.TopicDirs()
		require.NoError(t, err)
		fs.SetHook(simfs.CrashAt(fs.Ops() + at))
		qerr := s.QuarantineTopic(dirs[0], because("because"))
		for _, survival := range []simfs.Survival{simfs.Strict, simfs.Random, simfs.Random, simfs.Kill} {
			after := openStore(t, fs.Crash(survival))
			here, err := after.TopicDirs()
			require.NoError(t, err)
			there, err := after.Quarantined()
			require.NoError(t, err)
			require.Equal(t, 1, len(here)+len(there), "crash at %d", at)
			if qerr == nil {
				require.Len(t, there, 1)
			}
			for _, d := range there {
				require.NoError(t, d.ReasonErr)
				require.Equal(t, because("because"), d.Reason)
			}
			for range here {
				requireLog(t, openLog(t, after, l.Position()), history(1, 3, 10))
			}
			require.NoError(t, after.Close())
		}
		require.NoError(t, s.Close())
		if qerr == nil {
			require.Greater(t, at, int64(5))
			return
		}
	}
}
