package simfs_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
)

const sector = 512

func TestUnsyncedContentIsLostStrictly(t *testing.T) {
	fs := simfs.New(1)
	save(t, fs, "f", "old", true)
	f := openRW(t, fs, "f")
	_, err := f.WriteAt([]byte("new and longer"), 0)
	require.NoError(t, err)
	require.Equal(t, "new and longer", read(t, fs, "f"))
	require.Equal(t, "old", read(t, fs.Image(simfs.Strict), "f"))
	require.Equal(t, "new and longer", read(t, fs.Image(simfs.Lucky), "f"))
	require.NoError(t, f.SyncData())
	require.Equal(t, "new and longer", read(t, fs.Image(simfs.Strict), "f"))
}

func TestHolesReadAsZeros(t *testing.T) {
	fs := simfs.New(1)
	f := create(t, fs, "f", "a")
	_, err := f.WriteAt([]byte("b"), 10000)
	require.NoError(t, err)
	p := bytes.Repeat([]byte("x"), 10001)
	_, err = f.ReadAt(p, 0)
	require.NoError(t, err)
	require.Equal(t, "a"+strings.Repeat("\x00", 9999)+"b", string(p))
}

func TestSyncToIsNoPromise(t *testing.T) {
	fs := simfs.New(1)
	save(t, fs, "f", "", true)
	f := openRW(t, fs, "f")
	_, err := f.Write([]byte("x"))
	require.NoError(t, err)
	full, err := f.SyncTo(1)
	require.NoError(t, err)
	require.False(t, full)
	require.Empty(t, read(t, fs.Crash(simfs.Strict), "f"))
}

// A large write over synced bytes comes back whole, gone, and torn in every
// way: a prefix, a hole of one sector, a lone sector at the end.
func TestWritesTearBySector(t *testing.T) {
	const sectors = 32
	old, neu := strings.Repeat("o", sectors*sector), bytes.Repeat([]byte("n"), sectors*sector)
	fs := simfs.New(7)
	save(t, fs, "f", old, true)
	f := openRW(t, fs, "f")
	_, err := f.WriteAt(neu, 0)
	require.NoError(t, err)
	seen := map[string]bool{}
	for range 400 {
		got := read(t, fs.Image(simfs.Random), "f")
		require.Len(t, got, sectors*sector)
		var shape strings.Builder
		for s := range sectors {
			one := got[s*sector : (s+1)*sector]
			require.Equal(t, strings.Repeat(one[:1], sector), one, "a sector is torn")
			shape.WriteString(one[:1])
		}
		n := strings.Count(shape.String(), "n")
		seen["whole"] = seen["whole"] || n == sectors
		seen["gone"] = seen["gone"] || n == 0
		seen["hole"] = seen["hole"] || n == sectors-1
		prefix := shape.String() == strings.Repeat("n", n)+strings.Repeat("o", sectors-n)
		seen["prefix"] = seen["prefix"] || prefix && n > 0 && n < sectors
		seen["mixed"] = seen["mixed"] || !prefix && n < sectors-1
	}
	require.Equal(t, map[string]bool{
		"whole": true, "gone": true, "hole": true, "prefix": true, "mixed": true,
	}, seen)
}

// A file that grew can have its new size without its new content.
func TestSizeAndContentAreLostApart(t *testing.T) {
	fs := simfs.New(3)
	save(t, fs, "f", "", true)
	create(t, fs, "f", "")
	f := openRW(t, fs, "f")
	_, err := f.Write(bytes.Repeat([]byte("x"), 10*sector))
	require.NoError(t, err)
	syncDir(t, fs, "/")
	var empty, full, zeros, between bool
	for range 200 {
		got := read(t, fs.Image(simfs.Random), "f")
		empty = empty || len(got) == 0
		full = full || got == strings.Repeat("x", 10*sector)
		zeros = zeros || len(got) == 10*sector && strings.Contains(got, "\x00")
		between = between || len(got) > 0 && len(got) < 10*sector
	}
	require.True(t, empty && full && zeros && between)
}

func TestFailedSyncMarksPagesCleanAndNotDurable(t *testing.T) {
	fs := simfs.New(1)
	save(t, fs, "f", strings.Repeat("a", 2*sector), true)
	f := openRW(t, fs, "f")
	_, err := f.WriteAt(bytes.Repeat([]byte("b"), sector), 0)
	require.NoError(t, err)
	eio := errors.New("input/output error")
	fs.SetHook(func(op simfs.Op) error {
		if op.Kind == simfs.OpSync {
			return eio
		}
		return nil
	})
	require.ErrorIs(t, f.SyncData(), eio)
	fs.SetHook(nil)
	require.Equal(t, strings.Repeat("b", sector)+strings.Repeat("a", sector), read(t, fs, "f"))

	// The retry succeeds and covers what was written since, not what failed.
	_, err = f.WriteAt(bytes.Repeat([]byte("c"), sector), sector)
	require.NoError(t, err)
	require.NoError(t, f.SyncData())
	for _, s := range []simfs.Survival{simfs.Strict, simfs.Lucky} {
		require.Equal(t, strings.Repeat("a", sector)+strings.Repeat("c", sector), read(t, fs.Image(s), "f"))
	}
	// Writing the bytes again makes them dirty again.
	_, err = f.WriteAt(bytes.Repeat([]byte("b"), sector), 0)
	require.NoError(t, err)
	require.NoError(t, f.SyncData())
	require.Equal(t, strings.Repeat("b", sector)+strings.Repeat("c", sector),
		read(t, fs.Crash(simfs.Strict), "f"))
}

func TestKillKeepsTheCacheAndLeavesItUnsynced(t *testing.T) {
	fs := simfs.New(1)
	save(t, fs, "f", "old", true)
	f := openRW(t, fs, "f")
	_, err := f.WriteAt([]byte("new"), 0)
	require.NoError(t, err)
	save(t, fs, "g", "g", false)

	killed := fs.Crash(simfs.Kill)
	require.Equal(t, "new", read(t, killed, "f"))
	require.Equal(t, "f g", list(t, killed, "/"))
	require.Equal(t, "old", read(t, killed.Image(simfs.Strict), "f"))
	require.Equal(t, "f", list(t, killed.Image(simfs.Strict), "/"))

	// The next process makes it durable by a sync of its own.
	f = openRW(t, killed, "f")
	require.NoError(t, f.Sync())
	syncDir(t, killed, "/")
	lost := killed.Crash(simfs.Strict)
	require.Equal(t, "new", read(t, lost, "f"))
	require.Equal(t, "f g", list(t, lost, "/"))
}

func TestImagesDoNotShareWrites(t *testing.T) {
	for _, s := range []simfs.Survival{simfs.Strict, simfs.Random, simfs.Lucky, simfs.Kill} {
		fs := simfs.New(1)
		save(t, fs, "f", strings.Repeat("a", sector), true)
		f := openRW(t, fs, "f")
		_, err := f.WriteAt([]byte("dirty"), 0)
		require.NoError(t, err)
		img := fs.Image(s)
		was := read(t, img, "f")
		_, err = f.WriteAt([]byte("later"), 0)
		require.NoError(t, err)
		require.Equal(t, was, read(t, img, "f"))
		_, err = openRW(t, img, "f").WriteAt([]byte("IMAGE"), 0)
		require.NoError(t, err)
		require.Equal(t, "later", read(t, fs, "f")[:5])
		require.Equal(t, "IMAGE", read(t, img, "f")[:5])
	}
}

func TestSyncWritesOnlyWhatIsDirty(t *testing.T) {
	fs := simfs.New(1)
	f := openRW(t, fs, "journal")
	zeros := make([]byte, 1<<20)
	for off := int64(0); off < 64<<20; off += int64(len(zeros)) {
		_, err := f.WriteAt(zeros, off)
		require.NoError(t, err)
	}
	require.NoError(t, f.Sync())
	require.Zero(t, fs.Counts("/").BytesSynced, "zeros over a hole")
	_, err := f.WriteAt(bytes.Repeat([]byte{1}, 128<<10), 32<<20)
	require.NoError(t, err)
	require.NoError(t, f.SyncData())
	require.Equal(t, int64(128<<10), fs.Counts("/").BytesSynced)
	syncDir(t, fs, "/")
	require.Equal(t, int64(64<<20), int64(len(read(t, fs.Crash(simfs.Strict), "journal"))))
}

// model is a file as two byte slices: what a process reads, and what the disk
// held at the last sync. failed are the sectors that a failed sync dropped.
type model struct {
	seed     uint64
	cur, dur []byte
	min      int
	failed   map[int]bool
}

func (m *model) step(t *testing.T, rng *rand.Rand, fs *simfs.FS) {
	f := openRW(t, fs, "f")
	defer func() { require.NoError(t, f.Close()) }()
	switch rng.IntN(8) {
	case 0, 1, 2, 3:
		p := make([]byte, 1+rng.IntN(5000))
		if rng.IntN(4) > 0 {
			for i := range p {
				p[i] = byte(rng.IntN(255) + 1)
			}
		}
		off := rng.IntN(20000)
		if rng.IntN(2) == 0 {
			off -= off % 4096
		}
		_, err := f.WriteAt(p, int64(off))
		require.NoError(t, err)
		m.cur = resize(m.cur, max(len(m.cur), off+len(p)))
		copy(m.cur[off:], p)
		for s := off / sector; s <= (off+len(p)-1)/sector; s++ {
			delete(m.failed, s)
		}
	case 4, 5:
		require.NoError(t, f.Sync())
		next := bytes.Clone(m.cur)
		old := resize(bytes.Clone(m.dur), len(next))
		for s := range m.failed {
			if s*sector < len(next) {
				copy(next[s*sector:min(len(next), (s+1)*sector)], old[s*sector:])
			}
		}
		m.dur, m.min = next, len(next)
	case 6:
		size := rng.IntN(25000)
		if size < len(m.cur) && len(m.failed) > 0 {
			return // a dropped sector that is cut off: not in this model
		}
		require.NoError(t, fs.Truncate("f", int64(size)))
		m.cur = resize(m.cur, size)
		m.min = min(m.min, size)
	case 7:
		if m.min < len(m.dur) {
			return
		}
		fs.SetHook(func(op simfs.Op) error {
			if op.Kind == simfs.OpSync {
				return errors.ErrUnsupported
			}
			return nil
		})
		require.Error(t, f.SyncData())
		fs.SetHook(nil)
		a, b := resize(bytes.Clone(m.cur), 50000), resize(bytes.Clone(m.dur), 50000)
		for s := range 50000 / sector {
			if !bytes.Equal(a[s*sector:(s+1)*sector], b[s*sector:(s+1)*sector]) {
				m.failed[s] = true
			}
		}
	}
}

func resize(b []byte, n int) []byte {
	if n <= len(b) {
		return b[:n:n]
	}
	return append(b, make([]byte, n-len(b))...)
}

// check says that got is a state in which a power loss may leave the file.
func (m *model) check(t *testing.T, got []byte) {
	base := min(m.min, len(m.dur))
	kept := resize(bytes.Clone(m.dur[:base]), len(got)) // the truncation survived
	lost := resize(bytes.Clone(m.dur), len(got))        // it did not, or there was none
	cur := resize(bytes.Clone(m.cur), len(got))
	possible := func(disk []byte, from int) bool {
		for at := 0; at < len(got); at += sector {
			one := got[at:min(at+sector, len(got))]
			if bytes.Equal(one, disk[at:at+len(one)]) {
				continue
			}
			if at >= from || !bytes.Equal(one, cur[at:at+len(one)]) {
				return false
			}
		}
		return true
	}
	withCut := len(got) >= base && len(got) <= len(m.cur) && possible(kept, len(got))
	noCut := len(got) == len(m.dur) && possible(lost, base)
	require.True(t, withCut || noCut, "seed %d: size %d, disk %d, cache %d, cut %d",
		m.seed, len(got), len(m.dur), len(m.cur), base)
}

func TestEveryImageOfAFileIsPossible(t *testing.T) {
	for seed := range seeds(t, 80) {
		rng := rand.New(rand.NewPCG(seed, 1))
		fs := simfs.New(seed)
		save(t, fs, "f", "", true)
		m := &model{seed: seed, failed: map[int]bool{}}
		for range 60 {
			m.step(t, rng, fs)
			same := func(want []byte, fs *simfs.FS, what string) {
				require.True(t, bytes.Equal(want, []byte(read(t, fs, "f"))), "seed %d: %s", seed, what)
			}
			same(m.cur, fs, "cache")
			same(m.dur, fs.Image(simfs.Strict), "disk")
			same(m.cur, fs.Image(simfs.Kill), "killed")
			img := fs.Image(simfs.Random)
			got := read(t, img, "f")
			m.check(t, []byte(got))
			require.NoError(t, img.Truncate("f", int64(len(got)+9000)))
			same(resize([]byte(got), len(got)+9000), img, "extended with zeros")
			m.check(t, []byte(read(t, fs.Image(simfs.Kill).Image(simfs.Random), "f")))
			if len(m.failed) == 0 {
				same(m.cur, fs.Image(simfs.Lucky), "lucky")
			}
		}
	}
}

// A full disk takes whole pages as long as there is room, keeps what it has, and
// goes on when something is removed.
func TestADiskFillsUp(t *testing.T) {
	fs := simfs.New(1)
	fs.SetSize(4 * 4096)
	save(t, fs, "f", "x", true)
	f := openRW(t, fs, "f")
	n, err := f.WriteAt(bytes.Repeat([]byte("y"), 6*4096), 100)
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.Equal(t, 4*4096-100, n)
	usage, err := fs.GetDiskUsage("/")
	require.NoError(t, err)
	require.Zero(t, usage.AvailBytes)
	_, err = fs.Create("g", vfs.WriteCategoryUnspecified)
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorIs(t, fs.MkdirAll("d", 0o755), syscall.ENOSPC)
	require.ErrorIs(t, fs.Truncate("f", 5*4096), syscall.ENOSPC)
	_, err = f.WriteAt([]byte("over what is there"), 0)
	require.NoError(t, err)
	require.NoError(t, fs.Truncate("f", 4096))
	img := fs.Image(simfs.Lucky)
	save(t, img, "g", "fits", true)
	img.SetSize(4096) // others came
	_, err = openRW(t, img, "g").WriteAt([]byte("z"), 4096)
	require.ErrorIs(t, err, syscall.ENOSPC)
}
