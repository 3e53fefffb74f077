package storage_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/storage"
)

var benchSizes = []int{4 << 10, 64 << 10, 1 << 20}

// BenchmarkJournalRound is a synced round of one entry that fills the named
// number of bytes, on the disk of the temporary directory, in recycled files.
// Compare it with BenchmarkBareFdatasync.
func BenchmarkJournalRound(b *testing.B) {
	for _, size := range benchSizes {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			s, err := storage.Open(storage.Config{Dir: filepath.Join(b.TempDir(), "node"), JournalFileSize: 32 << 20})
			require.NoError(b, err)
			defer func() { require.NoError(b, s.Close()) }()
			w := benchWriter{b: b, s: s, data: make([]byte, 1<<20)}
			require.NoError(b, s.WriteRound([]storage.Frame{
				{Kind: storage.FrameCreated, Group: 2, Replica: 7, Begin: &storage.Begin{Dir: "logs/7"}}}))
			for range 5 * 32 { // every file has had its first life
				w.round()
			}
			w.data = w.data[:size-128]
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				w.round()
			}
		})
	}
}

// benchWriter appends entries of one term, each applied at once.
type benchWriter struct {
	b    *testing.B
	s    *storage.Store
	data []byte
	last storage.Index
}

func (w *benchWriter) round() {
	hard := storage.HardState{Term: 1, Commit: w.last}
	frames := [1]storage.Frame{{Kind: storage.FrameAppend, Group: 2, Replica: 7, Hard: hard,
		Entries: []storage.Entry{{Index: w.last + 1, Term: 1, Data: w.data}}}}
	if w.last == 0 || !w.s.NeedsRotation() {
		require.NoError(w.b, w.s.WriteRound(frames[:]))
		w.last++
		return
	}
	states := []storage.ReplicaState{{Group: 2, Replica: 7, Status: storage.ReplicaLive, Dir: "logs/7", Hard: hard,
		Log: storage.LogPosition{LastIndex: w.last, LastTerm: 1}}}
	g, err := w.s.Rotate(states, frames[:])
	require.NoError(w.b, err)
	require.NoError(w.b, w.s.Checkpoint(g, states))
	w.last++
}

// BenchmarkBareFdatasync overwrites a file that is whole already, round and
// round, and syncs each time: as fast as the disk gets.
func BenchmarkBareFdatasync(b *testing.B) {
	for _, size := range benchSizes {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "file")
			require.NoError(b, os.WriteFile(path, make([]byte, 32<<20), 0o644))
			f, err := vfs.Default.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
			require.NoError(b, err)
			defer func() { require.NoError(b, f.Close()) }()
			require.NoError(b, f.Sync())
			data := make([]byte, size)
			b.SetBytes(int64(size))
			for i := 0; b.Loop(); i++ {
				_, err := f.WriteAt(data, int64(i*size%(32<<20)))
				if err == nil {
					err = f.SyncData()
				}
				require.NoError(b, err)
			}
		})
	}
}
