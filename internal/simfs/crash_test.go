package simfs_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
)

// workload does ops random operations, the same ones for a seed.
func workload(fs *simfs.FS, seed uint64, ops int) error {
	rng := rand.New(rand.NewPCG(seed, 2))
	var errs []error
	for range ops {
		dir := fmt.Sprintf("d%d", rng.IntN(3))
		name, other := fmt.Sprintf("%s/f%d", dir, rng.IntN(5)), fmt.Sprintf("d0/f%d", rng.IntN(5))
		errs = append(errs, fs.MkdirAll(dir, 0o755))
		switch rng.IntN(8) {
		case 0:
			_ = fs.Rename(name, other)
		case 1:
			_ = fs.Link(name, other)
		case 2:
			_ = fs.Remove(name)
		case 3:
			_ = fs.Truncate(name, int64(rng.IntN(9000)))
		case 4:
			d, err := fs.OpenDir(dir)
			if err == nil {
				err = errors.Join(d.Sync(), d.Close())
			}
			errs = append(errs, err)
		default:
			f, err := fs.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			p := []byte(strings.Repeat(fmt.Sprint(rng.IntN(10)), 1+rng.IntN(9000)))
			_, err = f.WriteAt(p, int64(rng.IntN(9000)))
			errs = append(errs, err)
			if rng.IntN(3) == 0 {
				errs = append(errs, f.SyncData())
			}
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

func TestSameSeedSameImage(t *testing.T) {
	images := func(seed uint64) string {
		fs := simfs.New(seed)
		require.NoError(t, workload(fs, 1, 200))
		fs = fs.Crash(simfs.Kill)
		require.NoError(t, workload(fs, 2, 50))
		fs.SetHook(simfs.CrashAt(fs.Ops() + 20))
		require.ErrorIs(t, workload(fs, 3, 50), simfs.ErrCrashed)
		fs = fs.Crash(simfs.Random)
		first := dump(t, fs, "/")
		require.NoError(t, workload(fs, 4, 50))
		return first + dump(t, fs.Crash(simfs.Random), "/")
	}
	want := images(1)
	for range 50 {
		require.Equal(t, want, images(1))
	}
	require.NotEqual(t, want, images(2))
}

func TestCrashAtEveryOperation(t *testing.T) {
	whole := simfs.New(1)
	require.NoError(t, workload(whole, 1, 40))
	for n := int64(1); n <= whole.Ops(); n++ {
		fs := simfs.New(uint64(n))
		fs.SetHook(simfs.CrashAt(n))
		_ = workload(fs, 1, 40)
		_, err := fs.List("/")
		require.ErrorIs(t, err, simfs.ErrCrashed)
		require.Equal(t, n, fs.Ops(), "no operation counts after the crash")
		after := fs.Crash(simfs.Random)
		require.NoError(t, workload(after, 2, 10))
	}
}

// A crash in a sync is none of the failures that make pages clean.
func TestCrashInSyncLeavesThePagesDirty(t *testing.T) {
	fs := simfs.New(1)
	save(t, fs, "f", "", true)
	f := openRW(t, fs, "f")
	_, err := f.Write([]byte("x"))
	require.NoError(t, err)
	fs.SetHook(simfs.CrashAt(fs.Ops() + 1))
	require.ErrorIs(t, f.Sync(), simfs.ErrCrashed)
	require.Equal(t, "x", read(t, fs.Crash(simfs.Lucky), "f"))
	require.Equal(t, "x", read(t, fs.Crash(simfs.Kill).Crash(simfs.Lucky), "f"))
	require.Empty(t, read(t, fs.Crash(simfs.Strict), "f"))
}

func TestCrashFencesOldHandlesAndFreesLocks(t *testing.T) {
	fs := simfs.New(1)
	save(t, fs, "f", "old", true)
	f := openRW(t, fs, "f")
	held, err := fs.Lock("LOCK")
	require.NoError(t, err)
	_, err = fs.Lock("LOCK")
	require.ErrorIs(t, err, syscall.EAGAIN)

	after := fs.Crash(simfs.Kill)
	_, err = f.WriteAt([]byte("new"), 0)
	require.ErrorIs(t, err, simfs.ErrCrashed)
	_, err = f.ReadAt(make([]byte, 1), 0)
	require.ErrorIs(t, err, simfs.ErrCrashed)
	require.ErrorIs(t, f.Sync(), simfs.ErrCrashed)
	require.ErrorIs(t, fs.Rename("f", "g"), simfs.ErrCrashed)
	_, err = fs.List("/")
	require.ErrorIs(t, err, simfs.ErrCrashed)
	require.NoError(t, f.Close())
	require.Equal(t, "old", read(t, after, "f"))

	again, err := after.Lock("LOCK")
	require.NoError(t, err)
	require.NoError(t, held.Close(), "the old process lets go of the old lock only")
	_, err = after.Lock("LOCK")
	require.ErrorIs(t, err, syscall.EAGAIN)
	require.NoError(t, again.Close())
	again, err = after.Lock("LOCK")
	require.NoError(t, err)
	require.NoError(t, again.Close())
}

// A write that fails, by a full disk or a kill, has written a prefix of whole
// pages and says how long it is.
func TestFailedWriteIsShort(t *testing.T) {
	lengths := map[int]bool{}
	for seed := range uint64(100) {
		fs := simfs.New(seed)
		f := create(t, fs, "f", "")
		fault := error(syscall.ENOSPC)
		if seed%2 == 0 {
			fault = simfs.ErrCrashed
		}
		fs.SetHook(func(op simfs.Op) error {
			if op.Kind == simfs.OpWrite {
				return fault
			}
			return nil
		})
		n, err := f.WriteAt([]byte(strings.Repeat("x", 4*4096)), 4096)
		require.ErrorIs(t, err, fault)
		lengths[n] = true
		want := ""
		if n > 0 {
			want = strings.Repeat("\x00", 4096) + strings.Repeat("x", n)
		}
		require.Equal(t, want, read(t, fs.Crash(simfs.Kill), "f"))
	}
	require.Equal(t, map[int]bool{0: true, 4096: true, 2 * 4096: true, 3 * 4096: true}, lengths)
}

func TestHookSeesEveryOperation(t *testing.T) {
	fs := simfs.New(1)
	var got []simfs.Op
	fs.SetHook(func(op simfs.Op) error { got = append(got, op); return nil })
	f := openRW(t, fs, "f")
	_, err := f.WriteAt([]byte("abc"), 7)
	require.NoError(t, err)
	_, err = f.ReadAt(make([]byte, 2), 8)
	require.NoError(t, err)
	require.NoError(t, f.Preallocate(0, 100))
	require.NoError(t, f.SyncData())
	require.NoError(t, fs.Rename("f", "g"))
	syncDir(t, fs, "/")
	require.Equal(t, []simfs.Op{
		{Kind: simfs.OpOpen, Path: "/f"},
		{Seq: 1, Kind: simfs.OpCreate, Path: "/f"},
		{Seq: 2, Kind: simfs.OpWrite, Path: "/f", Offset: 7, Length: 3},
		{Kind: simfs.OpRead, Path: "/f", Offset: 8, Length: 2},
		{Seq: 3, Kind: simfs.OpPreallocate, Path: "/f", Length: 100},
		{Seq: 4, Kind: simfs.OpSync, Path: "/f"},
		{Seq: 5, Kind: simfs.OpRename, Path: "/f", To: "/g"},
		{Kind: simfs.OpOpen, Path: "/"},
		{Seq: 6, Kind: simfs.OpSyncDir, Path: "/"},
	}, got)
}

func TestDamageAtRest(t *testing.T) {
	fs := simfs.New(1)
	save(t, fs, "f", strings.Repeat("a", 2*4096), true)
	f := openRW(t, fs, "f")
	_, err := f.WriteAt([]byte("b"), 10)
	require.NoError(t, err)
	require.NoError(t, fs.Flip("f", 5, 1))
	require.NoError(t, fs.ZeroPage("f", 4100))
	for _, img := range []*simfs.FS{fs, fs.Image(simfs.Kill), fs.Image(simfs.Strict)} {
		got := read(t, img, "f")
		require.Equal(t, "aaaaacaaaa", got[:10])
		require.Equal(t, strings.Repeat("\x00", 4096), got[4096:])
	}
	require.Equal(t, "b", read(t, fs, "f")[10:11])
	require.Equal(t, "a", read(t, fs.Image(simfs.Strict), "f")[10:11])
	require.Error(t, fs.Flip("f", 2*4096, 0))
	require.Error(t, fs.Flip("none", 0, 0))
}

func TestCountsByPrefix(t *testing.T) {
	fs := simfs.New(1)
	save(t, fs, "log-1", strings.Repeat("a", 5000), true)
	save(t, fs, "journal", "b", true)
	require.Equal(t, simfs.Counts{Writes: 1, BytesWritten: 5000, Syncs: 1, BytesSynced: 5120}, fs.Counts("/log"))
	fs = fs.Crash(simfs.Strict)
	require.Zero(t, fs.Counts("/"))
	read(t, fs, "log-1")
	require.Equal(t, int64(5000), fs.Counts("/").BytesRead)
	require.Zero(t, fs.Counts("/journal").BytesRead)
}

func TestDiskUsageFollowsSizes(t *testing.T) {
	fs := simfs.New(1)
	save(t, fs, "f", strings.Repeat("a", 5000), true)
	require.NoError(t, fs.Link("f", "g"))
	u, err := fs.GetDiskUsage("/")
	require.NoError(t, err)
	require.Equal(t, uint64(8192), u.UsedBytes)
	require.Equal(t, u.TotalBytes, u.UsedBytes+u.AvailBytes)
}

// Writers of one file system, images of it, and at last a crash under them.
func TestConcurrentUse(t *testing.T) {
	fs := simfs.New(1)
	fs.SetHook(func(simfs.Op) error { return nil })
	var wg sync.WaitGroup
	for w := range uint64(4) {
		wg.Go(func() {
			for i := range uint64(1000) {
				if errors.Is(workload(fs, w*1000+i, 5), simfs.ErrCrashed) {
					return
				}
			}
		})
	}
	for range 20 {
		_ = workload(fs.Image(simfs.Random), 1, 5)
	}
	after := fs.Crash(simfs.Kill)
	want := dump(t, after, "/")
	wg.Wait()
	require.Equal(t, want, dump(t, after, "/"))
}

func BenchmarkWriteAndSync(b *testing.B) {
	fs := simfs.New(1)
	f, err := fs.OpenReadWrite("f", vfs.WriteCategoryUnspecified)
	require.NoError(b, err)
	const file, write = 64 << 20, 128 << 10
	p := []byte(strings.Repeat("x", write))
	b.SetBytes(write)
	for i := range b.N {
		if _, err := f.WriteAt(p, int64(i)*write%file); err != nil {
			b.Fatal(err)
		}
		if err := f.SyncData(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCrash(b *testing.B) {
	fs := simfs.New(1)
	f, err := fs.Create("f", vfs.WriteCategoryUnspecified)
	require.NoError(b, err)
	_, err = f.Write([]byte(strings.Repeat("x", 64<<20)))
	require.NoError(b, err)
	require.NoError(b, f.Sync())
	for b.Loop() {
		fs.Image(simfs.Random)
	}
}
