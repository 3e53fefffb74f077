package storage_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/storage"
)

func benchLog(b *testing.B) *storage.Log {
	s, err := storage.Open(storage.Config{Dir: b.TempDir(), Name: "n", Cluster: "c"})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, s.Close()) })
	return openLog(b, s, emptyPosition())
}

// BenchmarkLogAppend appends batches of the size; nothing is synced.
func BenchmarkLogAppend(b *testing.B) {
	for _, size := range []int{256, 16 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			l := benchLog(b)
			entry := []storage.LogEntry{{Entry: storage.Entry{Index: 2, Term: 1, Data: make([]byte, size)},
				Verdict: storage.VerdictData, Count: 10}}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				require.NoError(b, l.Append(entry))
				entry[0].Index++
				entry[0].BaseOffset += 10
			}
		})
	}
}

// BenchmarkLogRead reads a log of 128 MiB from start to end, again and again,
// 1 MiB at a time, every checksum verified.
func BenchmarkLogRead(b *testing.B) {
	for _, size := range []int{256, 16 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			l := benchLog(b)
			entries := make([]storage.LogEntry, (1<<20)/size)
			for i := range 128 {
				for k := range entries {
					n := i*len(entries) + k
					entries[k] = storage.LogEntry{Entry: storage.Entry{Index: storage.Index(n + 2), Term: 1, Data: make([]byte, size)},
						Verdict: storage.VerdictData, BaseOffset: storage.Offset(10 * n), Count: 10}
				}
				require.NoError(b, l.Append(entries))
			}
			var from storage.Offset
			buf := make([]byte, 0, 2<<20)
			b.SetBytes(1 << 20)
			b.ReportAllocs()
			for b.Loop() {
				r, err := l.ReadAt(from, 1<<20, buf[:0])
				require.NoError(b, err)
				if from = r.Frames[len(r.Frames)-1].NextOffset(); from == l.NextOffset() {
					from = 0
				}
			}
		})
	}
}
