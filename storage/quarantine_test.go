package storage_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/proof"
	"github.com/stelelog/stele/internal/proof/prooftest"
	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/storage"
)

// asideLog is a node with a topic in quarantine, whose partition 0 has the entries.
// It returns the directory, what the journal says of the replica, and the path of the
// log's files.
func asideLog(t require.TestingT, fs storage.FS, entries []storage.LogEntry) (s *storage.Store, dir string, st storage.ReplicaState, path string) {
	s = openMember(t, fs)
	l := openLog(t, s, emptyPosition())
	require.NoError(t, l.Append(entries))
	st = replicaAt(7, l.Position())
	require.NoError(t, l.Close())
	aside(t, s, "orders", testIncarnation)
	st.Status = storage.ReplicaSetAside
	dir = "quarantine/orders@" + testIncarnation.String() + "~1"
	return s, dir, st, "/node/" + dir + "/0.7"
}

// readAll reads a log in quarantine to its end, over what cannot be read. damaged are
// the first entries that could not be, each with how it went on: 0, it did not.
func readAll(t require.TestingT, r *storage.QuarantineReader, entries []storage.LogEntry) (read int, damaged [][2]storage.Index) {
	for {
		at := r.Next()
		f, err := r.Read()
		if err == io.EOF {
			_, err = r.Read()
			require.Equal(t, io.EOF, err, "again")
			return read, damaged
		}
		if err != nil {
			var damage *storage.DamageError
			require.ErrorAs(t, err, &damage)
			require.NotEmpty(t, damage.Path)
			_, again := r.Read()
			require.Equal(t, err, again, "until Skip")
			require.Equal(t, at, r.Next())
			if !r.Skip() {
				return read, append(damaged, [2]storage.Index{at, 0})
			}
			damaged = append(damaged, [2]storage.Index{at, r.Next()})
			continue
		}
		requireFrames(t, entries, f.Index, []storage.FrameView{f})
		require.Equal(t, at, f.Index)
		require.Equal(t, f.NextOffset(), r.Offset())
		read++
	}
}

func TestAQuarantineIsDescribed(t *testing.T) {
	fs := simfs.New(1)
	entries := history(3, 60, 400)
	s, dir, _, path := asideLog(t, fs, entries)
	defer s.Close()
	e, err := s.Describe(dir)
	require.NoError(t, err)
	require.Equal(t, dir, e.Dir)
	require.Equal(t, storage.ReasonDeleted, e.Reason.Kind)
	require.NoError(t, e.Foreign)
	require.Equal(t, "orders", e.Topic)
	require.Equal(t, testIncarnation, e.Incarnation)
	require.False(t, e.OfReplica)
	require.Len(t, e.Logs, 1)
	log := e.Logs[0]
	require.Equal(t, dir+"/0.7", log.Dir)
	require.EqualValues(t, 7, log.Replica)
	require.EqualValues(t, 2, log.First)
	require.Zero(t, log.Start)
	files := segmentFiles(t, fs, path)
	require.Equal(t, len(files), log.Segments)
	require.Greater(t, log.Segments, 2)
	var bytes int64
	for _, b := range files {
		bytes += int64(len(b))
	}
	require.Equal(t, bytes, log.Bytes)
	require.Greater(t, e.Bytes, bytes)
	again, err := s.Describe(strings.TrimPrefix(dir, "quarantine/"))
	require.NoError(t, err)
	require.Equal(t, e, again)

	// Of one replica; with another marker, with none, with half of one.
	base := "/node/quarantine/orders@" + testIncarnation.String()
	for n, c := range []struct {
		suffix, foreign string
		marker          []byte
	}{
		{".3.9~1", "", storage.EncodeMarker("orders", testIncarnation)},
		{"~2", "its marker names orders@" + otherIncarnation.String(), storage.EncodeMarker("orders", otherIncarnation)},
		{"~3", "it has no marker", nil},
		{"~4", "its marker is not whole", []byte("stele topic 1\n")},
	} {
		require.NoError(t, fs.MkdirAll(base+c.suffix, 0o755))
		if c.marker != nil {
			writeFile(t, fs, base+c.suffix+"/INCARNATION", c.marker)
		}
		e, err := s.Describe("orders@" + testIncarnation.String() + c.suffix)
		require.NoError(t, err)
		require.Equal(t, testIncarnation, e.Incarnation)
		require.Error(t, e.ReasonErr)
		require.Empty(t, e.Reason.Kind)
		require.Equal(t, n == 0, e.OfReplica)
		if n == 0 {
			require.EqualValues(t, 3, e.Partition)
			require.EqualValues(t, 9, e.Replica)
			require.Len(t, e.Logs, 1, "its own directory is where its log is")
			require.NoError(t, e.Foreign)
			continue
		}
		require.Empty(t, e.Logs)
		require.ErrorContains(t, e.Foreign, c.foreign)
		require.Equal(t, n == 1, e.MarkerIncarnation == otherIncarnation)
	}
	// Whatever else may be there.
	for _, name := range []string{"meta~1", "no topic @ all\n~7", "~1", "..~1"} {
		require.NoError(t, fs.MkdirAll("/node/quarantine/"+name+"/0.7", 0o755))
		e, err := s.Describe(name)
		require.NoError(t, err)
		require.Empty(t, e.Topic)
		require.Zero(t, e.Incarnation)
	}
	deep := "/node/quarantine/meta~1" + strings.Repeat("/x", 200)
	require.NoError(t, fs.MkdirAll(deep, 0o755))
	_, err = s.Describe("meta~1")
	require.NoError(t, err)
}

// segmentFiles are the segment files in a directory.
func segmentFiles(t require.TestingT, fs storage.FS, dir string) map[string][]byte {
	names, err := fs.List(dir)
	require.NoError(t, err)
	files := map[string][]byte{}
	for _, name := range names {
		if strings.HasSuffix(name, ".seg") {
			files[name] = fileBytes(t, fs, dir+"/"+name)
		}
	}
	return files
}

// No name leads out of the quarantine, whoever gives it.
//
// Property: X1 (red: quarantinedBase without its look for separators)
func TestNoNameLeadsOutOfTheQuarantine(t *testing.T) {
	fs := simfs.New(1)
	s, dir, _, _ := asideLog(t, fs, history(3, 5, 10))
	defer s.Close()
	require.NoError(t, fs.MkdirAll("/node/topics/x~1", 0o755))
	require.NoError(t, fs.MkdirAll("/node/quarantine/a/b~1", 0o755))
	writeFile(t, fs, "/node/quarantine/file~1", []byte("x"))
	for _, name := range []string{
		"", ".", "..", "/", "quarantine", "quarantine/", "../topics/x~1", "quarantine/../topics/x~1", "a/b~1", "quarantine/a/b~1",
		"/node/" + dir, dir + "/", dir + "/0.7", "quarantine/" + dir, "..\\topics\\x~1", "x\x00~1", "gone~1", "file~1", "x~", "x~-1", "x~1x", "x~99999999999999999999",
	} {
		_, err := s.Describe(name)
		require.ErrorIs(t, err, storage.ErrNotQuarantined, "%q", name)
		_, err = s.ReadQuarantined(name, 0, 0, nil)
		require.ErrorIs(t, err, storage.ErrNotQuarantined, "%q", name)
		_, err = s.DestroyQuarantined(dead(testIncarnation), name, 0)
		require.ErrorIs(t, err, storage.ErrNotQuarantined, "%q", name)
	}
	require.Len(t, quarantined(t, s), 1)
	_, err := s.ReadQuarantined(dir, 1, 0, nil)
	require.ErrorIs(t, err, storage.ErrNotQuarantined, "no such partition")
	_, err = s.ReadQuarantined(dir, 0, 8, nil)
	require.ErrorIs(t, err, storage.ErrNotQuarantined, "no such replica")
}

// A log in quarantine is read as it was written, from its start or from an offset, on
// a node that runs and on a stopped one.
func TestAQuarantinedLogIsRead(t *testing.T) {
	fs := simfs.New(1)
	entries := history(4, 80, 900)
	s, dir, st, _ := asideLog(t, fs, entries)
	for _, journal := range [][]storage.ReplicaState{nil, {st}} {
		r, err := s.ReadQuarantined(dir, 0, 0, journal)
		require.NoError(t, err)
		read, damaged := readAll(t, r, entries)
		require.Equal(t, len(entries), read)
		require.Empty(t, damaged)
		require.EqualValues(t, 3, r.Group())
		if journal != nil {
			require.Equal(t, entries[len(entries)-1].Index, r.Vouched())
		}
		end := r.Offset()
		for o := storage.Offset(0); o <= end+5; o += 7 {
			r.Seek(o)
			require.LessOrEqual(t, r.Offset(), o)
			n := 0
			for {
				f, err := r.Read()
				if err == io.EOF {
					break
				}
				require.NoError(t, err)
				requireFrames(t, entries, f.Index, []storage.FrameView{f})
				n++
			}
			require.Equal(t, end, r.Offset())
			require.Positive(t, n)
		}
		r.Close()
		r.Close()
		_, err = r.Read()
		require.ErrorIs(t, err, storage.ErrClosed)
	}
	require.NoError(t, s.Close())
	off, err := storage.ReadOffline(fs, "/node")
	require.NoError(t, err)
	r, err := off.ReadQuarantined(dir, 0, 7)
	require.NoError(t, err)
	defer r.Close()
	read, _ := readAll(t, r, entries)
	require.Equal(t, len(entries), read)
	e, err := off.Describe(dir)
	require.NoError(t, err)
	require.Equal(t, r.Entry(), e)
}

// Wherever a byte is changed, all before the entry that it belongs to is read, and
// nothing else but what the next segment begins with.
func TestDamageInQuarantineIsFound(t *testing.T) {
	fs := simfs.New(1)
	entries := history(5, 40, 700)
	s, dir, _, path := asideLog(t, fs, entries)
	defer s.Close()
	files := segmentFiles(t, fs, path)
	require.Greater(t, len(files), 3)
	for name, b := range files {
		first, last := spanOf(entries, files, name)
		for at := int64(0); at < int64(len(b)); at += 13 {
			require.NoError(t, fs.Flip(path+"/"+name, at, uint(at)%8))
			r, err := s.ReadQuarantined(dir, 0, 0, nil)
			require.NoError(t, err)
			read, damaged := readAll(t, r, entries)
			r.Close()
			require.Len(t, damaged, 1, "%s at %d", name, at)
			hit := damaged[0][0]
			require.True(t, first <= hit && hit <= last, "entry %d of [%d, %d]", hit, first, last)
			lost := int(last - hit + 1)
			require.Equal(t, len(entries)-lost, read)
			if last == entries[len(entries)-1].Index {
				require.Zero(t, damaged[0][1])
			} else {
				require.Equal(t, last+1, damaged[0][1])
			}
			require.NoError(t, fs.Flip(path+"/"+name, at, uint(at)%8))
		}
	}
}

// spanOf are the first and the last entry of a segment.
func spanOf(entries []storage.LogEntry, files map[string][]byte, name string) (first, last storage.Index) {
	last = entries[len(entries)-1].Index
	_, err := fmt.Sscanf(name, "%d-", &first)
	if err != nil {
		panic(err)
	}
	for other := range files {
		var i storage.Index
		if _, err := fmt.Sscanf(other, "%d-", &i); err == nil && i > first {
			last = min(last, i-1)
		}
	}
	return first, last
}

// What is missing is told: in the middle always, at the end as far as the journal
// vouches for it, or as it shows.
func TestWhatIsMissingInQuarantineIsTold(t *testing.T) {
	entries := history(6, 40, 700)
	for what, c := range map[string]struct {
		harm            func(fs *simfs.FS, names []string)
		alone, vouched  int // damages, without a journal and with one
		lost, lostAtEnd bool
	}{
		"nothing":             {harm: func(*simfs.FS, []string) {}},
		"the index files":     {harm: func(fs *simfs.FS, names []string) { _ = fs.Remove(strings.TrimSuffix(names[0], "seg") + "idx") }},
		"a segment":           {harm: func(fs *simfs.FS, names []string) { _ = fs.Remove(names[1]) }, alone: 1, vouched: 1, lost: true},
		"the last segment":    {harm: func(fs *simfs.FS, names []string) { _ = fs.Remove(names[len(names)-1]) }, vouched: 1, lost: true, lostAtEnd: true},
		"all segments":        {harm: func(fs *simfs.FS, names []string) { removeAll(fs, names) }, vouched: 1, lost: true, lostAtEnd: true},
		"half of a segment":   {harm: func(fs *simfs.FS, names []string) { _ = fs.Truncate(names[1], 1000) }, alone: 1, vouched: 1, lost: true},
		"a byte of the last":  {harm: func(fs *simfs.FS, names []string) { shorten(fs, names[len(names)-1], 1) }, alone: 1, vouched: 1, lost: true},
		"another's bytes":     {harm: func(fs *simfs.FS, names []string) { rewrite(t, fs, names[1], names[2]) }, alone: 1, vouched: 1, lost: true},
		"the last one's size": {harm: func(fs *simfs.FS, names []string) { _ = fs.Truncate(names[len(names)-1], 0) }, vouched: 1, lost: true, lostAtEnd: true},
	} {
		fs := simfs.New(1)
		s, dir, st, path := asideLog(t, fs, entries)
		var names []string
		list, err := fs.List(path)
		require.NoError(t, err)
		for _, name := range list {
			if strings.HasSuffix(name, ".seg") {
				names = append(names, path+"/"+name)
			}
		}
		slices.Sort(names)
		c.harm(fs, names)
		for _, journal := range [][]storage.ReplicaState{nil, {st}} {
			r, err := s.ReadQuarantined(dir, 0, 0, journal)
			require.NoError(t, err, what)
			read, damaged := readAll(t, r, entries)
			r.Close()
			want := c.alone
			if journal != nil {
				want = c.vouched
			}
			require.Len(t, damaged, want, "%s, journal: %v", what, journal != nil)
			require.Equal(t, c.lost, read < len(entries), what)
		}
		require.NoError(t, s.Close())
	}
}

func rewrite(t require.TestingT, fs *simfs.FS, name, from string) {
	writeFile(t, fs, name, fileBytes(t, fs, from))
}

func removeAll(fs *simfs.FS, names []string) {
	for _, name := range names {
		_ = fs.Remove(name)
	}
}

func shorten(fs *simfs.FS, name string, by int64) {
	info, err := fs.Stat(name)
	if err == nil {
		_ = fs.Truncate(name, info.Size()-by)
	}
}

// A frame that claims more than its file has is refused before there is room for it.
//
// Property: S11 (red: frame without its look at the file's size)
func TestAQuarantinedFrameClaimsNoMemory(t *testing.T) {
	fs := simfs.New(1)
	s, dir, _, path := asideLog(t, fs, history(7, 3, 10))
	defer s.Close()
	files := segmentFiles(t, fs, path)
	for name := range files {
		frame := storage.EncodeFrame(3, &storage.FrameView{Index: 2, Term: 1, Verdict: storage.VerdictData, Count: 1, Payload: []byte("x")})
		frame[44], frame[45], frame[46], frame[47] = 0, 0, 0, 3 // 48 MiB
		writeFile(t, fs, path+"/"+name, storage.SealFrame(frame))
	}
	r, err := s.ReadQuarantined(dir, 0, 0, nil)
	require.NoError(t, err)
	defer r.Close()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = r.Read()
	runtime.ReadMemStats(&after)
	require.ErrorContains(t, err, "cut off")
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(4<<20))
}

// A directory that is read is not destroyed, and one that is destroyed is not read.
func TestReadersKeepWhatTheyRead(t *testing.T) {
	fs := simfs.New(1)
	entries := history(8, 40, 700)
	s, dir, st, _ := asideLog(t, fs, entries)
	defer s.Close()
	r, err := s.ReadQuarantined(dir, 0, 0, nil)
	require.NoError(t, err)
	second, err := s.ReadQuarantined(dir, 0, 0, nil)
	require.NoError(t, err)
	second.Close()
	second.Close()
	for _, destroy := range []func() (storage.Destroyed, error){
		func() (storage.Destroyed, error) { return s.DestroyTopic(dead(testIncarnation)) },
		func() (storage.Destroyed, error) { return s.DestroyQuarantined(dead(testIncarnation), dir, 0) },
		func() (storage.Destroyed, error) {
			st := st
			st.Dir = "topics/orders@" + testIncarnation.String() + "/0.7"
			return s.DestroyTopic(dead(testIncarnation))
		},
	} {
		got, err := destroy()
		require.NoError(t, err)
		require.Empty(t, got.Dirs)
		require.Equal(t, []storage.KeptDir{{Dir: dir, Reason: "it is being read", Busy: true}}, got.Kept)
	}
	read, damaged := readAll(t, r, entries)
	require.Equal(t, len(entries), read)
	require.Empty(t, damaged)
	r.Close()

	// In the middle of it nobody begins to read.
	var met error
	fs.SetHook(func(op simfs.Op) error {
		if op.Kind == simfs.OpRemove && met == nil && strings.HasPrefix(op.Path, "/node/"+dir) {
			met = errors.New("asked")
			_, met = s.ReadQuarantined(dir, 0, 0, nil)
		}
		return nil
	})
	got, err := s.DestroyQuarantined(dead(testIncarnation), dir, 0)
	fs.SetHook(nil)
	require.NoError(t, err)
	require.Equal(t, []string{dir}, got.Dirs)
	require.ErrorIs(t, met, storage.ErrNotQuarantined)
	require.ErrorContains(t, met, "being destroyed")
	_, err = s.ReadQuarantined(dir, 0, 0, nil)
	require.ErrorIs(t, err, storage.ErrNotQuarantined)
}

// Who removes a directory by hand meanwhile does not make it damaged.
func TestAQuarantineThatVanishesIsNotDamaged(t *testing.T) {
	fs := simfs.New(1)
	s, dir, _, _ := asideLog(t, fs, history(9, 40, 700))
	defer s.Close()
	r, err := s.ReadQuarantined(dir, 0, 0, nil)
	require.NoError(t, err)
	defer r.Close()
	_, err = r.Read()
	require.NoError(t, err)
	require.NoError(t, fs.RemoveAll("/node/"+dir))
	for err == nil {
		_, err = r.Read()
	}
	require.ErrorIs(t, err, storage.ErrNotQuarantined)
	_, err = s.Describe(dir)
	require.ErrorIs(t, err, storage.ErrNotQuarantined)
}

// Links that somebody made in a directory in quarantine go with it; what they lead to
// stays. A link that leads back up ends a description, too.
//
// Property: X1 (red: unlinkIn went into the directory behind a link)
func TestDestroyFollowsNoLink(t *testing.T) {
	root, disk := t.TempDir(), storage.DiskFS()
	cfg := logConfig(disk)
	cfg.Dir = filepath.Join(root, "node")
	s, err := storage.Open(cfg)
	require.NoError(t, err)
	defer s.Close()
	id := s.Identity()
	id.ClusterID, id.Epoch, id.Node = storage.ClusterID{0xc1}, 2, 1
	require.NoError(t, s.SetIdentity(id))
	topicWithLog(t, s, "orders", testIncarnation)
	aside(t, s, "orders", testIncarnation)
	dir := "quarantine/orders@" + testIncarnation.String() + "~1"
	outside := filepath.Join(root, "outside", "below")
	require.NoError(t, os.MkdirAll(outside, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(outside, "file"), []byte("x"), 0o600))
	for name, to := range map[string]string{"dir": filepath.Dir(outside), "up": "..", "nowhere": "gone", "file": filepath.Join(outside, "file")} {
		require.NoError(t, os.Symlink(to, filepath.Join(cfg.Dir, dir, "0.7", name)))
	}
	_, err = s.Describe(dir)
	require.NoError(t, err)
	got, err := s.DestroyTopic(dead(testIncarnation))
	require.NoError(t, err)
	require.Equal(t, []string{dir}, got.Dirs)
	require.NoDirExists(t, filepath.Join(cfg.Dir, dir))
	require.FileExists(t, filepath.Join(outside, "file"))
}

// A directory in quarantine that is only a link, to where a person has moved it, goes
// as a link: the sweep takes the link, and a call that names it does; what it leads to
// stays, the marker first of all.
//
// Property: X1 (red: unlink went on into the directory behind the link)
func TestDestroyTakesALinkForALink(t *testing.T) {
	for what, destroy := range map[string]func(s *storage.Store, dir string) (storage.Destroyed, error){
		"by its life": func(s *storage.Store, _ string) (storage.Destroyed, error) {
			return s.DestroyTopic(dead(testIncarnation))
		},
		"by its name": func(s *storage.Store, dir string) (storage.Destroyed, error) {
			return s.DestroyQuarantined(dead(testIncarnation), dir, 0)
		},
	} {
		root, disk := t.TempDir(), storage.DiskFS()
		cfg := logConfig(disk)
		cfg.Dir = filepath.Join(root, "node")
		s, err := storage.Open(cfg)
		require.NoError(t, err)
		id := s.Identity()
		id.ClusterID, id.Epoch, id.Node = storage.ClusterID{0xc1}, 2, 1
		require.NoError(t, s.SetIdentity(id))
		topicWithLog(t, s, "orders", testIncarnation)
		aside(t, s, "orders", testIncarnation)
		dir := "quarantine/orders@" + testIncarnation.String() + "~1"
		outside := filepath.Join(root, "outside")
		require.NoError(t, os.Rename(filepath.Join(cfg.Dir, dir), outside))
		require.NoError(t, os.Symlink(outside, filepath.Join(cfg.Dir, dir)))
		before := contents(t, disk, outside)
		require.Len(t, before, 3, "a marker, a reason, a segment")

		got, err := destroy(s, dir)
		require.NoError(t, err, what)
		require.Equal(t, storage.Destroyed{Dirs: []string{dir}}, got, what)
		_, err = os.Lstat(filepath.Join(cfg.Dir, dir))
		require.ErrorIs(t, err, os.ErrNotExist, what)
		require.Equal(t, before, contents(t, disk, outside), what)
		require.NoError(t, s.Close())
	}
}

// A call that names one directory takes that one, with a proof of it.
//
// Property: X1 (red: DestroyQuarantined without Covers; meant by incarnation)
func TestDestroyQuarantinedTakesOne(t *testing.T) {
	fs := simfs.New(1)
	s, dir, _, _ := asideLog(t, fs, history(1, 5, 10))
	defer s.Close()
	topicWithLog(t, s, "orders", testIncarnation)
	aside(t, s, "orders", testIncarnation)
	replica := "orders@" + testIncarnation.String() + ".0.9~1"
	require.NoError(t, fs.MkdirAll("/node/quarantine/"+replica, 0o755))
	writeFile(t, fs, "/node/quarantine/"+replica+"/INCARNATION", storage.EncodeMarker("orders", testIncarnation))
	require.NoError(t, fs.MkdirAll("/node/quarantine/meta~1", 0o755))
	writeFile(t, fs, "/node/quarantine/meta~1/x", []byte("x"))
	cluster := storage.ClusterID{0xc1}
	for what, c := range map[string]struct {
		dir   string
		group storage.GroupID
		p     proof.Proof
	}{
		"the zero value":                  {dir, 0, proof.Proof{}},
		"another incarnation":             {dir, 0, dead(otherIncarnation)},
		"an older epoch":                  {dir, 0, prooftest.Dead(cluster, 1, testIncarnation)},
		"a replica, for a topic":          {dir, 3, prooftest.Removed(cluster, 2, 3, 7)},
		"another replica":                 {replica, 3, prooftest.Removed(cluster, 2, 3, 7)},
		"another group":                   {replica, 4, prooftest.Removed(cluster, 2, 3, 9)},
		"no topic's name":                 {"meta~1", 0, dead(testIncarnation)},
		"no topic's name, and no replica": {"meta~1", 3, prooftest.Removed(cluster, 2, 3, 9)},
	} {
		_, err := s.DestroyQuarantined(c.p, c.dir, c.group)
		require.ErrorIs(t, err, proof.ErrRefused, what)
	}
	require.Len(t, quarantined(t, s), 4)
	got, err := s.DestroyQuarantined(prooftest.Removed(cluster, 2, 3, 9), replica, 3)
	require.NoError(t, err)
	require.Equal(t, []string{"quarantine/" + replica}, got.Dirs)
	got, err = s.DestroyQuarantined(dead(testIncarnation), dir, 0)
	require.NoError(t, err)
	require.Equal(t, []string{dir}, got.Dirs)
	require.Positive(t, got.Bytes)
	require.Equal(t, []string{"meta~1", strings.TrimPrefix(strings.TrimSuffix(dir, "1"), "quarantine/") + "2"}, quarantined(t, s))
}

// A replica's directory may hold the logs of more than one reset: read is the one that
// the journal names, else the one that goes farthest.
func TestTheLogOfAResetIsRead(t *testing.T) {
	fs := simfs.New(1)
	entries := history(10, 40, 700)
	s, dir, st, path := asideLog(t, fs, entries)
	defer s.Close()
	later := path + "/" + fmt.Sprintf("%020d.reset", 77)
	require.NoError(t, fs.MkdirAll(later, 0o755))
	for name, b := range segmentFiles(t, fs, path) {
		writeFile(t, fs, later+"/"+name, bytes.Clone(b))
	}
	longest := func() string {
		e, err := s.Describe(dir)
		require.NoError(t, err)
		require.Len(t, e.Logs, 1)
		return e.Logs[0].Dir
	}
	require.Equal(t, dir+"/0.7", longest())
	files, err := fs.List(path)
	require.NoError(t, err)
	slices.Sort(files)
	for i := len(files) - 1; i >= 0; i-- {
		if strings.HasSuffix(files[i], ".seg") {
			require.NoError(t, fs.Remove(path+"/"+files[i]))
			break
		}
	}
	require.Equal(t, dir+"/0.7/00000000000000000077.reset", longest())
	r, err := s.ReadQuarantined(dir, 0, 7, []storage.ReplicaState{st})
	require.NoError(t, err)
	defer r.Close()
	require.Zero(t, r.Log().Reset, "the journal knows of no reset")
	_, damaged := readAll(t, r, entries)
	require.Len(t, damaged, 1)
}
