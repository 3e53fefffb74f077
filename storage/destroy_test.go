package storage_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/proof"
	"github.com/stelelog/stele/internal/proof/prooftest"
	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/storage"
)

var otherIncarnation = storage.Incarnation{9}

// openMember opens the directory of a node that is a member of a cluster.
func openMember(t require.TestingT, fs storage.FS) *storage.Store {
	s := openStore(t, fs)
	if id := s.Identity(); id.Node == 0 {
		id.ClusterID, id.Epoch, id.Node = storage.ClusterID{0xc1}, 2, 1
		require.NoError(t, s.SetIdentity(id))
	}
	return s
}

func dead(inc storage.Incarnation) proof.Proof {
	return prooftest.Dead(storage.ClusterID{0xc1}, 2, inc)
}

// topicWithLog makes a topic's directory with the log of replica 7 in it, closed.
func topicWithLog(t require.TestingT, s *storage.Store, name string, inc storage.Incarnation) storage.ReplicaState {
	dir, err := s.CreateTopicDir(name, inc)
	require.NoError(t, err)
	st := replicaAt(7, emptyPosition())
	st.Dir = storage.ReplicaDir(dir, 0, 7)
	l, err := s.OpenLog(st)
	require.NoError(t, err)
	require.NoError(t, l.Append(history(1, 3, 10)))
	require.NoError(t, l.Close())
	st.Status = storage.ReplicaSetAside
	return st
}

func aside(t require.TestingT, s *storage.Store, name string, inc storage.Incarnation) {
	require.NoError(t, s.QuarantineTopic(storage.TopicDir{Dir: "topics/" + name + "@" + inc.String()}, because("deleted")))
}

func quarantined(t require.TestingT, s *storage.Store) (dirs []string) {
	all, err := s.Quarantined()
	require.NoError(t, err)
	for _, d := range all {
		dirs = append(dirs, strings.TrimPrefix(d.Dir, "quarantine/"))
	}
	return dirs
}

// A proof that an incarnation is dead takes all that was moved aside of it, as
// often as that was, and nothing else: not the next life of the name, nor what
// goes by its name and is marked as something else.
//
// Property: X1, I5 (red: meant by the topic's name; isNot without its look at the marker; DestroyTopic without its look at the proof)
func TestDestroyTakesWhatTheProofNames(t *testing.T) {
	fs := simfs.New(1)
	s := openMember(t, fs)
	defer s.Close()
	base := "orders@" + testIncarnation.String()
	for range 2 {
		topicWithLog(t, s, "orders", testIncarnation)
		aside(t, s, "orders", testIncarnation)
	}
	topicWithLog(t, s, "orders", testIncarnation)
	topicWithLog(t, s, "orders", otherIncarnation)
	aside(t, s, "orders", otherIncarnation)
	other := "orders@" + otherIncarnation.String()
	topicWithLog(t, s, "orders", otherIncarnation)

	before := fs.Ops()
	for what, p := range map[string]proof.Proof{
		"the zero value":  {},
		"of a replica":    prooftest.Removed(storage.ClusterID{0xc1}, 2, 5, 7),
		"an older epoch":  prooftest.Dead(storage.ClusterID{0xc1}, 1, testIncarnation),
		"another cluster": prooftest.Dead(storage.ClusterID{0xc2}, 2, testIncarnation),
	} {
		_, err := s.DestroyTopic(p)
		require.ErrorIs(t, err, proof.ErrRefused, what)
	}
	require.Equal(t, before, fs.Ops(), "the disk was not touched")

	// One of another life, and one without a marker, that go by this one's name.
	for n, change := range map[int]func(path string){
		3: func(path string) {
			writeFile(t, fs, path+"/INCARNATION", storage.EncodeMarker("orders", otherIncarnation))
		},
		4: func(path string) { require.NoError(t, fs.Remove(path+"/INCARNATION")) },
		5: func(path string) { require.NoError(t, fs.Flip(path+"/INCARNATION", 30, 2)) },
	} {
		path := fmt.Sprintf("/node/quarantine/%s~%d", base, n)
		require.NoError(t, fs.MkdirAll(path, 0o755))
		writeFile(t, fs, path+"/INCARNATION", storage.EncodeMarker("orders", testIncarnation))
		writeFile(t, fs, path+"/bytes", []byte("x"))
		change(path)
	}
	for _, name := range []string{base + "x~1", base + ".0~1", base + ".0.x~1", base + ".00.7~1", "y" + base[1:31] + "~1", "no-topic~1"} {
		require.NoError(t, fs.MkdirAll("/node/quarantine/"+name, 0o755))
	}
	strangers := len(quarantined(t, s)) - 6
	got, err := s.DestroyTopic(dead(testIncarnation))
	require.NoError(t, err)
	require.Equal(t, []string{"quarantine/" + base + "~1", "quarantine/" + base + "~2"}, got.Dirs)
	require.Greater(t, got.Bytes, int64(2*3*10))
	require.Len(t, got.Kept, 3)
	for i, why := range []string{"its marker names " + other, "it has no marker", "its marker is not whole"} {
		require.Equal(t, fmt.Sprintf("quarantine/%s~%d", base, i+3), got.Kept[i].Dir)
		require.Contains(t, got.Kept[i].Reason, why)
	}
	left := quarantined(t, s)
	require.Len(t, left, strangers+4)
	require.Contains(t, left, other+"~1")
	dirs, err := s.TopicDirs()
	require.NoError(t, err)
	require.Len(t, dirs, 2, "nothing in topics/ is touched")
	again, err := s.DestroyTopic(dead(testIncarnation))
	require.NoError(t, err)
	require.Empty(t, again.Dirs)
	require.Zero(t, again.Bytes)
}

// A replica's directory is taken out of that of a topic that lives, whose other
// replicas stay, and whose own later stint does.
//
// Property: X1, M5 (red: asideReplica without its look at the marker, and at open logs; destroyReplica by the partition alone; DestroyReplica of a live one)
func TestDestroyOneReplica(t *testing.T) {
	fs := simfs.New(1)
	s := openMember(t, fs)
	defer s.Close()
	st := topicWithLog(t, s, "orders", testIncarnation)
	topicDir := "topics/orders@" + testIncarnation.String()
	later := st
	later.Replica, later.Dir = 70, storage.ReplicaDir(topicDir, 0, 70)
	l, err := s.OpenLog(storage.ReplicaState{Group: 5, Replica: 70, Status: storage.ReplicaLive, Dir: later.Dir, Log: emptyPosition()})
	require.NoError(t, err)
	removed := func(r storage.ReplicaID) proof.Proof {
		return prooftest.Removed(storage.ClusterID{0xc1}, 2, uint64(st.Group), uint64(r))
	}
	for _, p := range []proof.Proof{{}, removed(70), dead(otherIncarnation), prooftest.Removed(storage.ClusterID{0xc1}, 3, uint64(st.Group), 7)} {
		_, err := s.DestroyReplica(p, st, asideAt)
		require.ErrorIs(t, err, proof.ErrRefused)
	}
	live := st
	live.Status = storage.ReplicaLive
	_, err = s.DestroyReplica(removed(7), live, asideAt)
	require.ErrorContains(t, err, "not set aside")
	_, err = s.DestroyReplica(removed(70), later, asideAt)
	require.ErrorContains(t, err, "is open", "before it has a file")
	require.NoError(t, l.Append(history(1, 3, 10)))
	for _, dir := range []string{"journal", "topics/x/0.7", topicDir + "/7", topicDir + "/0.70", topicDir, "topics/orders@" + testIncarnation.String() + "/../0.7"} {
		strange := st
		strange.Dir = dir
		_, err = s.DestroyReplica(removed(7), strange, asideAt)
		require.Error(t, err, dir)
	}

	another := "/node/quarantine/orders@" + testIncarnation.String() + ".0.70~1"
	require.NoError(t, fs.MkdirAll(another, 0o755))
	writeFile(t, fs, another+"/INCARNATION", storage.EncodeMarker("orders", testIncarnation))
	got, err := s.DestroyReplica(removed(7), st, asideAt)
	require.NoError(t, err)
	require.Equal(t, []string{"quarantine/orders@" + testIncarnation.String() + ".0.7~1"}, got.Dirs)
	require.Len(t, quarantined(t, s), 1)
	names, err := fs.List("/node/" + topicDir)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"INCARNATION", "0.70"}, names)
	got, err = s.DestroyReplica(removed(7), st, asideAt)
	require.NoError(t, err)
	require.Zero(t, got.Bytes, "it is gone")
	require.NoError(t, l.Close())

	// By the death of the topic, and not out of a directory that is another's.
	writeFile(t, fs, "/node/"+topicDir+"/INCARNATION", storage.EncodeMarker("orders", otherIncarnation))
	got, err = s.DestroyReplica(dead(testIncarnation), later, asideAt)
	require.NoError(t, err)
	require.Len(t, got.Kept, 1)
	require.Empty(t, got.Dirs)
	writeFile(t, fs, "/node/"+topicDir+"/INCARNATION", storage.EncodeMarker("orders", testIncarnation))
	got, err = s.DestroyReplica(dead(testIncarnation), later, asideAt)
	require.NoError(t, err)
	require.Len(t, got.Dirs, 2)
	require.Empty(t, quarantined(t, s))
}

// Power fails at every operation, and again at every one of the repetition: at any
// time what is left is found and goes with the next call, and the next life of the
// topic, and what is of others in quarantine, is whole.
//
// Property: S8, X1 (red: the marker was unlinked with the rest; the directory was not synced before its marker; quarantine/ was not synced)
func TestDestroySurvivesACrashAtEveryOperation(t *testing.T) {
	prepare := func(seed uint64) (*simfs.FS, storage.ReplicaState) {
		fs := simfs.New(seed)
		s := openMember(t, fs)
		topicWithLog(t, s, "orders", testIncarnation)
		aside(t, s, "orders", testIncarnation)
		topicWithLog(t, s, "orders", otherIncarnation)
		aside(t, s, "orders", otherIncarnation)
		st := topicWithLog(t, s, "bills", otherIncarnation)
		require.NoError(t, s.Close())
		return fs, st
	}
	destroy := func(s *storage.Store, st storage.ReplicaState) error {
		_, err := s.DestroyTopic(dead(testIncarnation))
		if err == nil {
			_, err = s.DestroyReplica(prooftest.Removed(storage.ClusterID{0xc1}, 2, uint64(st.Group), uint64(st.Replica)), st, asideAt)
		}
		return err
	}
	for at := int64(1); ; at++ {
		fs, st := prepare(uint64(at))
		s := openMember(t, fs)
		fs.SetHook(simfs.CrashAt(fs.Ops() + at))
		done := destroy(s, st)
		for _, survival := range []simfs.Survival{simfs.Strict, simfs.Random, simfs.Kill} {
			img := fs.Crash(survival)
			after := openMember(t, img)
			if done == nil {
				require.Equal(t, []string{"orders@" + otherIncarnation.String() + "~1"}, quarantined(t, after), "crash at %d", at)
			}
			img.SetHook(simfs.CrashAt(img.Ops() + at%7 + 1))
			_ = destroy(after, st)
			img = img.Crash(survival)
			require.NoError(t, after.Close())
			after = openMember(t, img)
			require.NoError(t, destroy(after, st))
			require.Equal(t, []string{"orders@" + otherIncarnation.String() + "~1"}, quarantined(t, after), "crash at %d", at)
			names, err := img.List("/node/quarantine/orders@" + otherIncarnation.String() + "~1/0.7")
			require.NoError(t, err)
			require.Len(t, names, 1)
			dirs, err := after.TopicDirs()
			require.NoError(t, err)
			require.Len(t, dirs, 1)
			require.NoError(t, dirs[0].Foreign)
			names, err = img.List("/node/" + dirs[0].Dir)
			require.NoError(t, err)
			require.Equal(t, []string{"INCARNATION"}, names)
			require.NoError(t, after.Close())
		}
		require.NoError(t, s.Close())
		if done == nil {
			require.Greater(t, at, int64(15))
			return
		}
	}
}
