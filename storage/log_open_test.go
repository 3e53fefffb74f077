package storage_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/storage"
)

// Property: S10 (red: OpenLog looked up its last entry; the whole node: TestReopenReadsNoLog of the root)
//
// A reopen reads markers, and nothing of the logs, whatever their size.
func TestOpenLogReadsNoFrame(t *testing.T) {
	reopen := func(n int) (simfs.Counts, int) {
		fs := simfs.New(1)
		s := openStore(t, fs)
		l := openLog(t, s, emptyPosition())
		require.NoError(t, l.Append(history(1, n, 500)))
		require.NoError(t, l.Close())
		pos := l.Position()
		require.NoError(t, s.Close())

		fs = fs.Crash(simfs.Strict)
		s = openStore(t, fs)
		defer s.Close()
		l = openLog(t, s, pos)
		require.Zero(t, fs.Counts("/node/"+replicaAt(7, pos).Dir).BytesRead)
		term, err := l.Term(pos.LastIndex)
		require.NoError(t, err)
		require.Equal(t, pos.LastTerm, term)
		require.Zero(t, fs.Counts("/node/"+replicaAt(7, pos).Dir).BytesRead)
		total := fs.Counts("/node/topics")

		// The first read at the end costs less than a segment.
		_, err = l.ReadAt(l.NextOffset()-1, 100, nil)
		require.NoError(t, err)
		require.LessOrEqual(t, fs.Counts("/node/"+replicaAt(7, pos).Dir).BytesRead, int64(3*testSegment))
		return total, int(pos.NextOffset)
	}
	small, few := reopen(20)
	large, many := reopen(4000)
	require.Greater(t, many, 100*few)
	require.Equal(t, small.BytesRead, large.BytesRead)
	require.Less(t, large.BytesRead, int64(1000))
}

// A segment's index file makes the first lookup after a restart cheap, and is
// believed only where it is right.
func TestIndexFileIsAHint(t *testing.T) {
	cfg := func(fs storage.FS) storage.Config {
		c := logConfig(fs)
		c.SegmentSize = 8 << 20
		return c
	}
	build := func() (*simfs.FS, storage.LogPosition, []storage.LogEntry) {
		fs := simfs.New(1)
		s, err := storage.Open(cfg(fs))
		require.NoError(t, err)
		l := openLog(t, s, emptyPosition())
		entries := history(1, 3000, 2000)
		require.NoError(t, l.Append(entries))
		require.NoError(t, l.Sync())
		require.NoError(t, s.Close())
		return fs, l.Position(), entries
	}
	readLast := func(fs *simfs.FS, pos storage.LogPosition, entries []storage.LogEntry) int64 {
		s, err := storage.Open(cfg(fs))
		require.NoError(t, err)
		defer s.Close()
		l := openLog(t, s, pos)
		before := fs.Counts("/").BytesRead
		r, err := l.ReadAt(l.NextOffset()-200, 1000, nil)
		require.NoError(t, err)
		requireFrames(t, entries, r.Frames[0].Index, r.Frames)
		return fs.Counts("/").BytesRead - before
	}
	fs, pos, entries := build()
	require.Less(t, readLast(fs, pos, entries), int64(200<<10))

	index := "/node/" + replicaAt(7, pos).Dir + fmt.Sprintf("/%020d-%020d.idx", 2, 0)
	size := int64(len(fileBytes(t, fs, index)))
	require.Equal(t, int64(0), size%40)
	require.Greater(t, size, int64(400))
	rng := rand.New(rand.NewPCG(1, 1))
	for range 20 {
		for range 30 {
			require.NoError(t, fs.Flip(index, rng.Int64N(size), uint(rng.IntN(8))))
		}
		readLast(fs, pos, entries)
	}
	require.NoError(t, fs.Remove(index))
	require.Greater(t, readLast(fs, pos, entries), int64(1<<20), "without it the segment is walked")

	// One that lies with good checksums is found out too.
	writeFile(t, fs, index, storage.EncodeWaypoints(3, 1000, 2000, 30000))
	readLast(fs, pos, entries)
}

func writeFile(t require.TestingT, fs storage.FS, path string, b []byte) {
	f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	_, err = f.Write(b)
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	require.NoError(t, f.Close())
}

// Damage anywhere in the files is an error of the reads that meet it, at open or
// later, and never other entries.
func TestDamageIsNeverRead(t *testing.T) {
	seeds := uint64(300)
	if testing.Short() {
		seeds = 60
	}
	entries := history(7, 60, 600)
	for seed := range seeds {
		fs := simfs.New(seed)
		s := openStore(t, fs)
		l := openLog(t, s, emptyPosition())
		require.NoError(t, l.Append(entries))
		require.NoError(t, l.Close())
		require.NoError(t, s.Close())
		pos := l.Position()

		rng := rand.New(rand.NewPCG(seed, 3))
		what := damageOne(t, fs, rng)
		s = openStore(t, fs)
		l, err := s.OpenLog(replicaAt(7, pos))
		var damage *storage.DamageError
		if err != nil {
			require.ErrorAs(t, err, &damage, "seed %d: %s", seed, what)
		} else {
			found := false
			for i := range entries {
				for _, err := range readOne(t, l, entries, i) {
					found = true
					require.ErrorAs(t, err, &damage, "seed %d: %s", seed, what)
					require.Contains(t, damage.Path, ".seg")
				}
			}
			require.True(t, found, "seed %d: %s was not noticed", seed, what)
		}
		require.NoError(t, s.Close())
	}
}

// readOne reads entry i in each way, and returns the errors.
func readOne(t *testing.T, l *storage.Log, entries []storage.LogEntry, i int) (errs []error) {
	index := entries[i].Index
	if got, err := l.Entries(index, index+1, 1); err != nil {
		errs = append(errs, err)
	} else {
		require.Equal(t, entries[i].Entry, got[0])
	}
	if term, err := l.Term(index); err != nil {
		errs = append(errs, err)
	} else {
		require.Equal(t, entries[i].Term, term)
	}
	if entries[i].Count == 0 {
		return errs
	}
	if r, err := l.ReadAt(entries[i].BaseOffset, 5000, nil); err != nil {
		errs = append(errs, err)
	} else {
		require.Equal(t, index, r.Frames[0].Index)
		requireFrames(t, entries, index, r.Frames)
	}
	return errs
}

// damageOne damages one segment in one way.
func damageOne(t *testing.T, fs *simfs.FS, rng *rand.Rand) string {
	dir := "/node/" + replicaAt(7, emptyPosition()).Dir
	names, err := fs.List(dir)
	require.NoError(t, err)
	var segments []string
	for _, n := range names {
		if strings.HasSuffix(n, ".seg") && len(fileBytes(t, fs, dir+"/"+n)) > 0 {
			segments = append(segments, dir+"/"+n)
		}
	}
	k := rng.IntN(len(segments))
	path := segments[k]
	size := int64(len(fileBytes(t, fs, path)))
	off := rng.Int64N(size)
	switch rng.IntN(5) {
	case 0:
		require.NoError(t, fs.Truncate(path, off))
		return fmt.Sprintf("%s truncated to %d of %d", path, off, size)
	case 1:
		require.NoError(t, fs.ZeroPage(path, off))
		return fmt.Sprintf("%s: page of byte %d is zero", path, off)
	case 2:
		require.NoError(t, fs.Remove(path))
		return path + " removed"
	case 3:
		other := segments[(k+1)%len(segments)]
		writeFile(t, fs, path, fileBytes(t, fs, other))
		return path + " has the content of " + other
	default:
		require.NoError(t, fs.Flip(path, off, uint(rng.IntN(8))))
		return fmt.Sprintf("%s: a bit of byte %d is flipped", path, off)
	}
}

// A frame of another group's log, valid in itself, is not this log's.
func TestFramesOfAnotherGroupAreDamage(t *testing.T) {
	fs := simfs.New(1)
	s := openStore(t, fs)
	entries := history(1, 5, 50)
	l := openLog(t, s, emptyPosition())
	require.NoError(t, l.Append(entries))
	require.NoError(t, l.Close())
	pos := l.Position()
	other := replicaAt(7, pos)
	other.Group = 4
	l, err := s.OpenLog(other)
	require.NoError(t, err)
	var damage *storage.DamageError
	_, err = l.ReadAt(0, 100, nil)
	require.ErrorAs(t, err, &damage)
	require.Contains(t, damage.Reason, "group")
	require.NoError(t, s.Close())
}

// A sync or write that fails is final: it is not tried again, and the replica's
// log cannot be opened anew by this process.
func TestFailedWritesAreFinal(t *testing.T) {
	for _, kind := range []simfs.OpKind{simfs.OpWrite, simfs.OpSync, simfs.OpSyncDir, simfs.OpCreate} {
		fs := simfs.New(1)
		s := openStore(t, fs)
		l := openLog(t, s, emptyPosition())
		entries := history(1, 10, 50)
		failures := 0
		fs.SetHook(func(op simfs.Op) error {
			if op.Kind == kind && failures == 0 {
				failures++
				return syscall.EIO
			}
			return nil
		})
		err := l.Append(entries[:5])
		if err == nil {
			err = l.Sync()
		}
		require.ErrorIs(t, err, syscall.EIO)
		require.Equal(t, 1, failures)
		require.ErrorIs(t, l.Sync(), syscall.EIO)
		require.ErrorIs(t, l.Append(entries[5:]), syscall.EIO)
		require.ErrorIs(t, l.Close(), syscall.EIO)
		_, err = s.OpenLog(replicaAt(7, emptyPosition()))
		require.ErrorIs(t, err, syscall.EIO)
		fs = fs.Crash(simfs.Random)
		require.NoError(t, s.Close())

		s = openStore(t, fs)
		l = openLog(t, s, emptyPosition())
		require.NoError(t, l.Append(entries))
		require.NoError(t, l.Close())
		require.NoError(t, s.Close())
	}
}

func TestOpenLogRefuses(t *testing.T) {
	s := openStore(t, simfs.New(1))
	defer s.Close()
	openLog(t, s, emptyPosition())
	for name, change := range map[string]func(*storage.ReplicaState){
		"a log that is open":     func(*storage.ReplicaState) {},
		"one that was set aside": func(st *storage.ReplicaState) { st.Replica, st.Status = 8, storage.ReplicaSetAside },
		"a path upwards":         func(st *storage.ReplicaState) { st.Replica, st.Dir = 8, "topics/../../x" },
		"an absolute path":       func(st *storage.ReplicaState) { st.Replica, st.Dir = 8, "/etc" },
		"an impossible position": func(st *storage.ReplicaState) { st.Replica, st.Log.LastIndex = 8, 9 },
	} {
		st := replicaAt(7, emptyPosition())
		change(&st)
		_, err := s.OpenLog(st)
		require.Error(t, err, name)
	}
}

// countingFS counts open files of segments.
type countingFS struct {
	*simfs.FS
	open, most atomic.Int64
}

type countedFile struct {
	vfs.File
	fs *countingFS
}

func (c *countingFS) count(path string, f vfs.File, err error) (vfs.File, error) {
	if err != nil || !strings.HasSuffix(path, ".seg") {
		return f, err
	}
	c.most.Store(max(c.most.Load(), c.open.Add(1)))
	return countedFile{f, c}, nil
}

func (f countedFile) Close() error {
	f.fs.open.Add(-1)
	return f.File.Close()
}

func (c *countingFS) Open(path string, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := c.FS.Open(path, opts...)
	return c.count(path, f, err)
}

func (c *countingFS) OpenReadWrite(path string, cat vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := c.FS.OpenReadWrite(path, cat, opts...)
	return c.count(path, f, err)
}

// Hundreds of logs need few open files, and what was pushed out before it was
// synced is durable when Sync says so.
func TestManyLogsShareFewFiles(t *testing.T) {
	fs := &countingFS{FS: simfs.New(1)}
	s := openStore(t, fs)
	_, err := s.CreateTopicDir("orders", testIncarnation)
	require.NoError(t, err)
	entries := history(1, 30, 400)
	logs := make([]*storage.Log, 200)
	for i := range logs {
		logs[i], err = s.OpenLog(replicaAt(storage.ReplicaID(i+1), emptyPosition()))
		require.NoError(t, err)
	}
	for k := 0; k < len(entries); k += 10 {
		for _, l := range logs {
			require.NoError(t, l.Append(entries[k:k+10]))
		}
	}
	for _, l := range logs {
		requireLog(t, l, entries)
		require.NoError(t, l.Sync())
	}
	require.LessOrEqual(t, fs.most.Load(), int64(8+1), "one more while it is swapped")
	pos := logs[0].Position()
	fs.FS = fs.FS.Crash(simfs.Strict)
	require.NoError(t, s.Close())
	require.Zero(t, fs.open.Load())

	s = openStore(t, fs)
	for i := range logs {
		l, err := s.OpenLog(replicaAt(storage.ReplicaID(i+1), pos))
		require.NoError(t, err)
		requireLog(t, l, entries)
	}
	require.NoError(t, s.Close())
	require.Zero(t, fs.open.Load())
}

// A reader may be one who must not wait for a disk: it never syncs what others
// wrote, and still leaves no more open than may be.
func TestAReadSyncsNothing(t *testing.T) {
	for _, most := range []int{8, 100} {
		readAmongDirtyFiles(t, most)
	}
}

// readAmongDirtyFiles reads logs while as many as may be open are not synced.
func readAmongDirtyFiles(t *testing.T, most int) {
	sim := simfs.New(1)
	fs := &countingFS{FS: sim}
	cfg := logConfig(fs)
	cfg.MaxOpenFiles = most
	s, err := storage.Open(cfg)
	require.NoError(t, err)
	_, err = s.CreateTopicDir("orders", testIncarnation)
	require.NoError(t, err)
	entries := history(1, 5, 50)
	logs := make([]*storage.Log, 10+most)
	for i := range logs {
		logs[i], err = s.OpenLog(replicaAt(storage.ReplicaID(i+1), emptyPosition()))
		require.NoError(t, err)
	}
	clean, dirty := logs[:10], logs[10:]
	for _, l := range clean {
		require.NoError(t, l.Append(entries))
		require.NoError(t, l.Sync())
	}
	for _, l := range dirty {
		require.NoError(t, l.Append(entries))
	}
	before := fs.open.Load()
	sim.SetHook(func(op simfs.Op) error {
		if op.Kind == simfs.OpSync {
			return fmt.Errorf("%s was synced", op.Path)
		}
		return nil
	})
	for _, l := range logs {
		requireLog(t, l, entries)
	}
	require.LessOrEqual(t, fs.open.Load(), before)
	require.LessOrEqual(t, fs.most.Load(), int64(most+1), "one more while it is swapped")
	sim.SetHook(nil)
	for _, l := range dirty {
		require.NoError(t, l.Sync(), "a read synced it")
	}
	require.NoError(t, s.Close())
	require.Zero(t, fs.open.Load())
}

// A file that is pushed out is synced first. If that fails, its log has failed,
// though nobody had called it.
func TestAFailedSyncOfAPushedOutFileIsItsLogs(t *testing.T) {
	fs := simfs.New(1)
	s := openStore(t, fs)
	defer s.Close()
	first := openLog(t, s, emptyPosition())
	entries := history(1, 5, 50)
	require.NoError(t, first.Append(entries))
	fs.SetHook(func(op simfs.Op) error {
		if op.Kind == simfs.OpSync && strings.Contains(op.Path, "/0.7/") {
			return syscall.EIO
		}
		return nil
	})
	for i := range 12 {
		l, err := s.OpenLog(replicaAt(storage.ReplicaID(100+i), emptyPosition()))
		require.NoError(t, err)
		require.NoError(t, l.Append(entries))
	}
	fs.SetHook(nil)
	err := first.Sync()
	require.True(t, errors.Is(err, syscall.EIO), "got %v", err)
}
