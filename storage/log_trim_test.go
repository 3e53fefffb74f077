package storage_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/storage"
)

// Property: P2 (red: the position was published before the bytes were written)
//
// One writer, who trims too, and readers: none ever sees half a frame, or a wrong
// one; who comes too late is told where the log begins. For the race detector too.
func TestReadersBesideTheWriter(t *testing.T) {
	entries := history(4, 2000, 200)
	s := openStore(t, simfs.New(1))
	defer s.Close()
	l := openLog(t, s, emptyPosition())
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			var from storage.Offset
			var buf []byte
			for last := false; !last; {
				select {
				case <-done:
					last = true
				default:
				}
				for {
					r, err := l.ReadAt(from, 2000, buf[:0])
					var gone *storage.OutOfRangeError
					if errors.As(err, &gone) && gone.Start > from {
						from = gone.Start
						continue
					}
					if err != nil {
						t.Errorf("read at %d: %v", from, err)
						return
					}
					if len(r.Frames) == 0 {
						break
					}
					requireFrames(t, entries, r.Frames[0].Index, r.Frames)
					from, buf = r.Frames[len(r.Frames)-1].NextOffset(), r.Buf
				}
			}
			if from != l.NextOffset() {
				t.Errorf("read up to %d of %d", from, l.NextOffset())
			}
		})
	}
	readers.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				if err := l.Sync(); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	for i := 0; i < len(entries); i += 5 {
		require.NoError(t, l.Append(entries[i:i+5]))
		if segments, err := l.Segments(); i%200 == 0 && len(segments) > 2 {
			require.NoError(t, err)
			start, err := l.SegmentStart(segments[len(segments)-2])
			require.NoError(t, err)
			_, err = l.TrimTo(start)
			require.NoError(t, err)
		}
	}
	close(done)
	readers.Wait()
	requireLog(t, l, entries)
}

// A committed start means the same for every replica: also for one whose first
// segments are damaged or missing, and for one that has passed it.
//
// Property: S9 (red: the segment that is written was let go; the term of what goes was read)
func TestAStartIsTheSameForAllReplicas(t *testing.T) {
	entries := history(8, 400, 300)
	disks := []*simfs.FS{simfs.New(1), simfs.New(2), simfs.New(3)}
	var logs []*storage.Log
	for i, disk := range disks {
		s := openStore(t, disk)
		defer s.Close()
		l := openLog(t, s, emptyPosition())
		for rest := entries; len(rest) > 0; { // in steps of other sizes
			n := min(1+i*13, len(rest))
			require.NoError(t, l.Append(rest[:n]))
			rest = rest[n:]
		}
		require.NoError(t, l.Sync())
		logs = append(logs, l)
	}
	segments, err := logs[0].Segments()
	require.NoError(t, err)
	require.Greater(t, len(segments), 6)
	last := segments[len(segments)-1]
	for _, l := range logs {
		same, err := l.Segments()
		require.NoError(t, err)
		require.Equal(t, segments, same)
	}
	dir := "/node/" + replicaAt(7, emptyPosition()).Dir
	segment := func(i int) string {
		return filepath.Join(dir, fmt.Sprintf("%020d-%020d.seg", segments[i].First, segments[i].Offset))
	}
	require.NoError(t, disks[1].Flip(segment(2), segments[2].Bytes-60, 1))
	require.NoError(t, disks[1].Remove(segment(0)))

	starts := make([]storage.LogStart, len(segments))
	for i, s := range segments[1:] {
		starts[i+1], err = logs[0].SegmentStart(s)
		require.NoError(t, err)
	}
	for _, at := range []int{3, 2, 5} {
		for _, l := range logs {
			_, err := l.TrimTo(starts[at])
			require.NoError(t, err)
			require.Equal(t, starts[max(at, 3)], l.Start())
		}
	}
	between := storage.LogStart{Index: segments[6].First, Term: 9, Offset: 1}
	_, err = logs[0].TrimTo(between)
	require.NoError(t, err)
	require.Equal(t, starts[6], logs[0].Start(), "whole segments alone")
	for _, l := range logs {
		_, err := l.TrimTo(storage.LogStart{Index: l.Position().LastIndex, Term: 9, Offset: 1 << 40})
		require.NoError(t, err)
		require.Equal(t, last.First-1, l.Start().Index, "the segment that is written stays")
	}
	_, err = logs[0].ReadAt(last.Offset, 1, nil)
	require.NoError(t, err)
}

// Of a start that does not fit the log's offsets nothing is believed.
func TestAStartThatIsNotTheLogsIsRefused(t *testing.T) {
	s := openStore(t, simfs.New(1))
	defer s.Close()
	l := openLog(t, s, emptyPosition())
	require.NoError(t, l.Append(history(8, 100, 300)))
	segments, err := l.Segments()
	require.NoError(t, err)
	start, err := l.SegmentStart(segments[2])
	require.NoError(t, err)
	start.Offset++
	before := l.Start()
	_, err = l.TrimTo(start)
	require.ErrorContains(t, err, "has offset")
	require.Equal(t, before, l.Start())
}
