package storage_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/storage"
	"github.com/stretchr/testify/require"
)

const (
	mib     = int64(1) << 20
	reserve = 4 * mib
)

// openWithReserve opens a store on a disk of a size, with all its ballast.
func openWithReserve(t *testing.T, fs *simfs.FS, full func()) *storage.Store {
	cfg := testConfig(fs)
	cfg.Reserve, cfg.OnFull = reserve, full
	s, err := storage.Open(cfg)
	require.NoError(t, err)
	for range 8 {
		_, err := s.Space()
		require.NoError(t, err)
	}
	return s
}

func space(t *testing.T, s *storage.Store) storage.Space {
	sp, err := s.Space()
	require.NoError(t, err)
	return sp
}

// used is what lies on a disk.
func used(t *testing.T, fs *simfs.FS) int64 {
	u, err := fs.GetDiskUsage("/")
	require.NoError(t, err)
	return int64(u.UsedBytes)
}

// Property: S6 (red: low ends where it begins; ballast made before there is room for it and the rest)
func TestSpaceIsLowBeforeItIsGone(t *testing.T) {
	fs := simfs.New(1)
	fs.SetSize(64 * mib)
	s := openWithReserve(t, fs, nil)
	defer s.Close()
	sp := space(t, s)
	require.Equal(t, reserve/2, sp.Ballast)
	require.Equal(t, reserve, sp.Reserve)
	require.False(t, sp.Low)
	base := used(t, fs)
	require.Equal(t, 64*mib-base, sp.Free)

	fs.SetSize(base + reserve/2) // somebody else fills the disk
	require.False(t, space(t, s).Low, "what is left is all of the reserve")
	fs.SetSize(base + reserve/2 - 4096)
	sp = space(t, s)
	require.True(t, sp.Low)
	require.Equal(t, reserve-4096, sp.Left())
	require.Equal(t, reserve/2, sp.Ballast, "kept, as long as it is not needed")
	fs.SetSize(base + reserve/2 + reserve/16)
	require.True(t, space(t, s).Low)
	fs.SetSize(base + reserve/2 + reserve/8)
	require.False(t, space(t, s).Low)

	// It gives back before nothing is free, and takes again when there is enough.
	fs.SetSize(base + 4096)
	for i := range 3 {
		sp = space(t, s)
		require.Equal(t, reserve/2-reserve/16, sp.Ballast, i)
		require.Equal(t, reserve/16+4096, sp.Free, i)
	}
	fs.SetSize(base - reserve/16 + reserve/2)
	require.Equal(t, reserve/2-reserve/16, space(t, s).Ballast)
	fs.SetSize(base + reserve)
	require.Equal(t, reserve/2, space(t, s).Ballast)
	require.False(t, space(t, s).Low)
}

// Others have filled the disk to the last byte since the last poll: no write of
// the node finds out. It ends when there is room again.
//
// Property: S6 (red: nothing given back; the whole buffer written again instead of the rest; low ended before the ballast was whole; the names of ballast not synced)
func TestWritesFindRoomInTheReserve(t *testing.T) {
	fs := simfs.New(1)
	fs.SetSize(64 * mib)
	var full atomic.Int64
	s := openWithReserve(t, fs, func() { full.Add(1) })
	require.NoError(t, s.WriteRound([]storage.Frame{{Kind: storage.FrameCreated, Group: 1, Replica: 7, Begin: begin(1, 7)}}))
	fs.SetSize(used(t, fs)) // somebody else

	last := storage.Index(1)
	big := make([]byte, 300<<10)
	for range 3 {
		last++
		require.NoError(t, s.WriteRound([]storage.Frame{{
			Kind: storage.FrameAppend, Group: 1, Replica: 7, Hard: storage.HardState{Term: 1, Commit: 1},
			Entries: []storage.Entry{{Index: last, Term: 1, Kind: storage.EntryNormal, Data: big}},
		}}))
	}
	require.NotZero(t, full.Load())
	require.True(t, space(t, s).Low)
	f, err := s.FS().Create("/node/other", vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	text := make([]byte, 100<<10)
	for i := range text {
		text[i] = byte(i * 7)
	}
	fs.SetSize(used(t, fs) + 3*4096) // room for some pages of the first
	for range 3 {
		n, err := f.Write(text)
		require.NoError(t, err)
		require.Equal(t, len(text), n)
	}
	require.NoError(t, f.Sync())
	require.NoError(t, f.Close())
	require.Equal(t, slices.Concat(text, text, text), readFile(t, fs, "/node/other"))

	// The reserve too has an end.
	f, err = s.FS().Create("/node/glutton", vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	_, err = f.Write(make([]byte, reserve))
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.NoError(t, f.Close())
	require.Zero(t, space(t, s).Ballast)
	require.True(t, space(t, s).Low)

	// There is room again.
	fs.SetSize(64 * mib)
	polls := 0
	for ; space(t, s).Low; polls++ {
		require.Less(t, polls, 30)
	}
	require.Equal(t, reserve/2, space(t, s).Ballast)
	require.NoError(t, s.WriteRound(nil))
	require.NoError(t, s.Close())

	// The next process finds all of it, the ballast too.
	fs = fs.Crash(simfs.Strict)
	fs.SetSize(used(t, fs))
	s = openWithReserve(t, fs, nil)
	defer s.Close()
	require.Len(t, s.Replicas()[0].Tail, 3)
	require.True(t, space(t, s).Low)
}

// A sync that fails is final, whatever it fails with, and so is a write that
// fails with anything but a lack of room.
//
// Property: S5 (red: syncs tried again from the reserve; writes tried again whatever their error)
func TestTheReserveHidesNoFailure(t *testing.T) {
	for _, fault := range []struct {
		kind simfs.OpKind
		err  error
	}{{simfs.OpSync, syscall.ENOSPC}, {simfs.OpSync, syscall.EIO}, {simfs.OpWrite, syscall.EIO}} {
		t.Run(fmt.Sprint(fault), func(t *testing.T) {
			fs := simfs.New(1)
			s := openWithReserve(t, fs, nil)
			defer s.Close()
			failed := false
			fs.SetHook(func(op simfs.Op) error {
				if op.Kind != fault.kind || failed {
					return nil
				}
				failed = true
				return fault.err
			})
			require.ErrorIs(t, s.WriteRound(nil), fault.err)
			require.ErrorIs(t, s.WriteRound(nil), fault.err)
			require.Equal(t, reserve/2, space(t, s).Ballast)
		})
	}
}

// A file that is to be filled with zeros ahead of the rounds needs no room that
// the rounds do not.
//
// Property: S6 (red: a round failed by the zeros behind it)
func TestAJournalGrowsAsFarAsThereIsRoom(t *testing.T) {
	fs := simfs.New(1)
	cfg := testConfig(fs)
	cfg.JournalFileSize = 16 * mib // it grows by 4 MiB
	s, err := storage.Open(cfg)
	require.NoError(t, err)
	defer s.Close()
	fs.SetSize(used(t, fs) + 3*4096)
	rounds := int64(0)
	for ; rounds < 2000; rounds++ {
		if err = s.WriteRound(nil); err != nil {
			break
		}
	}
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.Greater(t, rounds, 4*mib/4096)
}

func TestReserveOfBadSize(t *testing.T) {
	for _, bytes := range []int64{-1, 1, 1<<20 - 1, 1<<40 + 1} {
		cfg := testConfig(simfs.New(1))
		cfg.Reserve = bytes
		_, err := storage.Open(cfg)
		require.ErrorContains(t, err, "Config.Reserve")
		require.ErrorContains(t, err, fmt.Sprint(bytes))
	}
}

// Ballast of a reserve of another size, and what a crash left half made, is
// replaced.
func TestBallastOfAnotherSize(t *testing.T) {
	fs := simfs.New(1)
	s := openWithReserve(t, fs, nil)
	require.NoError(t, s.Close())
	require.NoError(t, fs.Truncate("/node/reserve/3.ballast", 100))
	s = openWithReserve(t, fs, nil)
	require.Equal(t, reserve/2, space(t, s).Ballast)
	require.NoError(t, s.Close())
	cfg := testConfig(fs)
	cfg.Reserve = 2 * reserve
	s, err := storage.Open(cfg)
	require.NoError(t, err)
	defer s.Close()
	for range 8 {
		space(t, s)
	}
	require.Equal(t, reserve, space(t, s).Ballast)
}
