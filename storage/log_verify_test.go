package storage_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/storage"
)

// verify reads all of a log, and repairs it from another replica's. It returns how
// many damages it met.
func verify(t require.TestingT, l, other *storage.Log, chunk int) (damages int) {
	v := l.Verify(0)
	for {
		n, err := v.Step(chunk)
		if err == nil && n == 0 {
			return damages
		}
		if err == nil {
			continue
		}
		var damage *storage.DamageError
		require.ErrorAs(t, err, &damage)
		damages++
		require.Less(t, damages, 20_000)
		frames, last := []byte(nil), other.Position().LastIndex
		if lo := v.Next(); lo <= last {
			frames, _, err = other.Frames(lo, last+1, chunk, nil)
			require.NoError(t, err)
		}
		require.NoError(t, v.Repair(frames), "%v", damage)
	}
}

// damage spoils a file of a log in one of many ways, and says how.
func damageFile(t require.TestingT, fs *simfs.FS, rng *rand.Rand, path string) string {
	content := fileBytes(t, fs, path)
	size := int64(len(content))
	at := rng.Int64N(size)
	write := func(b []byte, off int64) {
		f, err := fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
		require.NoError(t, err)
		_, err = f.WriteAt(b, off)
		require.NoError(t, errors.Join(err, f.Sync(), f.Close()))
	}
	truncate := func(to int64) {
		require.NoError(t, fs.Truncate(path, to))
		write(nil, 0)
	}
	switch kind := rng.IntN(7); kind {
	case 0:
		require.NoError(t, fs.Flip(path, at, uint(rng.IntN(8))))
		return fmt.Sprintf("bit of byte %d of %s", at, path)
	case 1:
		require.NoError(t, fs.ZeroPage(path, at))
		return fmt.Sprintf("zero page at %d of %s", at, path)
	case 2:
		truncate(at)
		return fmt.Sprintf("%s ends at %d", path, at)
	case 3: // a write that went to the wrong place
		from := rng.Int64N(size)
		b := slices.Clone(content[from:min(from+1+rng.Int64N(2000), size)])
		write(b[:min(int64(len(b)), size-at)], at)
		return fmt.Sprintf("bytes of %d at %d of %s", from, at, path)
	case 4:
		require.NoError(t, fs.Remove(path))
		d, err := fs.OpenDir(fs.PathDir(path))
		require.NoError(t, err)
		require.NoError(t, errors.Join(d.Sync(), d.Close()))
		return path + " is missing"
	case 5: // a page as it was when less of the log was written
		end := min((at/4096+1)*4096, size)
		write(make([]byte, end-at), at)
		return fmt.Sprintf("zeros from %d to %d of %s", at, end, path)
	default:
		write([]byte("what does not belong here"), size)
		return path + " goes on"
	}
}

// Property: S4 (red: nothing was synced, the directory neither; the frames of a
// segment whose name is missing went into the one before; the end of a file that goes
// on was not cut)
//
// However a log is damaged, what is read is right or refused, and it can be made what
// it was from another replica's, which it is then to the byte, also after a crash.
func TestVerifyRepairsWhateverIsDamaged(t *testing.T) {
	entries := history(5, 300, 900)
	good := openLog(t, openStore(t, simfs.New(1)), emptyPosition())
	require.NoError(t, good.Append(entries))
	base := simfs.New(2)
	s := openStore(t, base)
	l := openLog(t, s, emptyPosition())
	require.NoError(t, l.Append(entries))
	require.NoError(t, l.Close())
	pos := l.Position()
	require.NoError(t, s.Close())
	want := segmentBytes(t, base)
	seeds := uint64(100)
	if testing.Short() {
		seeds = 20
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 3))
		fs := base.Image(simfs.Strict)
		var what []string
		spoil := func(open bool) {
			files := segmentBytes(t, fs)
			for range 1 + rng.IntN(4) {
				names := slices.Sorted(maps.Keys(files))
				name := names[rng.IntN(len(names))]
				if !open && (name == names[len(names)-1] || name == names[0]) {
					continue // those a node does not open without
				}
				what = append(what, damageFile(t, fs, rng, "/node/"+replicaAt(7, pos).Dir+"/"+name))
				delete(files, name)
			}
		}
		if seed%2 == 0 {
			spoil(false)
		}
		s := openStore(t, fs)
		l := openLog(t, s, pos)
		if seed%2 == 1 {
			if rng.IntN(2) == 0 {
				requireLog(t, l, entries) // files are open, and places known
			}
			spoil(true)
		}
		requireRightOrRefused(t, l, entries)
		verify(t, l, good, 1+rng.IntN(8<<10))
		require.Zero(t, verify(t, l, good, 64<<10), "seed %d: %v", seed, what)
		requireLog(t, l, entries)
		fs = fs.Crash(simfs.Strict)
		require.NoError(t, s.Close())
		s = openStore(t, fs)
		l = openLog(t, s, pos)
		requireLog(t, l, entries)
		for name, content := range want {
			require.True(t, content == segmentBytes(t, fs)[name], "seed %d: %s: %v", seed, name, what)
		}
		require.NoError(t, s.Close())
	}
}

// requireRightOrRefused reads everything in every way.
func requireRightOrRefused(t require.TestingT, l *storage.Log, entries []storage.LogEntry) {
	var damage *storage.DamageError
	for i, e := range entries {
		if e.Count > 0 {
			r, err := l.ReadAt(e.BaseOffset, 3000, nil)
			if err != nil {
				require.ErrorAs(t, err, &damage)
			} else if len(r.Frames) > 0 {
				requireFrames(t, entries, r.Frames[0].Index, r.Frames)
			}
		}
		got, err := l.Entries(storage.Index(i+2), storage.Index(len(entries)+2), 3000)
		if err != nil {
			require.ErrorAs(t, err, &damage)
			continue
		}
		for k, have := range got {
			require.Equal(t, entries[i+k].Entry, have)
		}
	}
}

// A log is verified and repaired while it is appended to, read and trimmed.
func TestVerifyBesideTheWriter(t *testing.T) {
	entries := history(6, 2000, 300)
	good := openLog(t, openStore(t, simfs.New(1)), emptyPosition())
	fs := simfs.New(2)
	s := openStore(t, fs)
	l := openLog(t, s, emptyPosition())
	require.NoError(t, good.Append(entries[:100]))
	require.NoError(t, l.Append(entries[:100]))
	var group sync.WaitGroup
	stop := make(chan struct{})
	group.Go(func() {
		rng := rand.New(rand.NewPCG(1, 1))
		for {
			select {
			case <-stop:
				return
			default:
			}
			files := segmentBytes(t, fs)
			names := slices.Sorted(maps.Keys(files))
			name := names[rng.IntN(len(names))]
			if n := len(files[name]); n > 0 {
				_ = fs.Flip("/node/"+replicaAt(7, emptyPosition()).Dir+"/"+name, rng.Int64N(int64(n)), 3)
			}
		}
	})
	group.Go(func() {
		for at := storage.Offset(0); ; {
			select {
			case <-stop:
				return
			default:
			}
			r, err := l.ReadAt(at, 2000, nil)
			if err == nil && len(r.Frames) > 0 {
				requireFrames(t, entries, r.Frames[0].Index, r.Frames)
				at = r.Frames[len(r.Frames)-1].NextOffset()
			} else {
				at = l.StartOffset()
			}
		}
	})
	group.Go(func() {
		defer close(stop)
		for i := 100; i < len(entries); i += 5 {
			require.NoError(t, good.Append(entries[i:i+5]))
			require.NoError(t, l.Append(entries[i:i+5]))
			if i%100 == 0 {
				if err := l.Trim(storage.Index(i-50), 1, 1); err != nil {
					require.ErrorAs(t, err, new(*storage.DamageError))
				}
			}
			v := l.Verify(storage.Index(i - 80))
			for {
				n, err := v.Step(4 << 10)
				if err == nil && n == 0 {
					break
				}
				if err == nil {
					continue
				}
				frames, _, err := good.Frames(v.Next(), good.Position().LastIndex+1, 4<<10, nil)
				require.NoError(t, err)
				if err := v.Repair(frames); err != nil {
					require.ErrorIs(t, err, storage.ErrCompacted)
					break
				}
			}
		}
	})
	group.Wait()
	verify(t, l, good, 4<<10)
	require.Zero(t, verify(t, l, good, 4<<10))
	require.NoError(t, s.Close())
}

// Frames that are not those of the place change nothing.
func TestRepairRefusesOtherFrames(t *testing.T) {
	entries := history(5, 100, 900)
	good := openLog(t, openStore(t, simfs.New(1)), emptyPosition())
	require.NoError(t, good.Append(entries))
	fs := simfs.New(2)
	s := openStore(t, fs)
	defer s.Close()
	l := openLog(t, s, emptyPosition())
	require.NoError(t, l.Append(entries[:60]))
	name := slices.Sorted(maps.Keys(segmentBytes(t, fs)))[2]
	path := "/node/" + replicaAt(7, emptyPosition()).Dir + "/" + name
	require.NoError(t, fs.Flip(path, 100, 1))
	v := l.Verify(0)
	var err error
	for err == nil {
		_, err = v.Step(1 << 10)
	}
	lo := v.Next()
	before := segmentBytes(t, fs)
	later, _, err := good.Frames(lo+1, lo+9, 1<<20, nil)
	require.NoError(t, err)
	right, _, err := good.Frames(lo, lo+3, 1<<20, nil)
	require.NoError(t, err)
	for what, frames := range map[string][]byte{
		"none":       nil,
		"of later":   later,
		"cut off":    right[:len(right)-1],
		"damaged":    append(slices.Clone(right[:len(right)-1]), right[len(right)-1]^1),
		"and others": append(slices.Clone(right), right...),
	} {
		require.Error(t, v.Repair(frames), what)
		require.True(t, maps.Equal(before, segmentBytes(t, fs)), what)
	}
	require.NoError(t, v.Repair(right))
	require.Zero(t, verify(t, l, good, 4<<10))
	require.False(t, l.Verify(l.Position().LastIndex).Skip())
}
