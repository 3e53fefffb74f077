package storage_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/storage"
)

var testIncarnation = storage.Incarnation{1, 2, 3}

const testSegment = 4 << 10

func logConfig(fs storage.FS) storage.Config {
	return storage.Config{FS: fs, Dir: "/node", Name: "n", Cluster: "c", JournalFileSize: 64 << 10,
		SegmentSize: testSegment, MaxOpenFiles: 8, Rand: rand.New(rand.NewPCG(1, 2)).Uint64}
}

func openStore(t require.TestingT, fs storage.FS) *storage.Store {
	s, err := storage.Open(logConfig(fs))
	require.NoError(t, err)
	return s
}

// replicaAt is a live replica of the test topic with its log at pos.
func replicaAt(r storage.ReplicaID, pos storage.LogPosition) storage.ReplicaState {
	dir := storage.ReplicaDir(fmt.Sprintf("topics/orders@%v", testIncarnation), 0, r)
	return storage.ReplicaState{Group: 3, Replica: r, Status: storage.ReplicaLive, Dir: dir, Log: pos}
}

func emptyPosition() storage.LogPosition {
	return storage.LogPosition{StartIndex: 1, StartTerm: 1, LastIndex: 1, LastTerm: 1}
}

// openLog opens the log of replica 7 in a store whose topic directory exists.
func openLog(t require.TestingT, s *storage.Store, pos storage.LogPosition) *storage.Log {
	_, err := s.CreateTopicDir("orders", testIncarnation)
	require.NoError(t, err)
	l, err := s.OpenLog(replicaAt(7, pos))
	require.NoError(t, err)
	return l
}

// history makes n entries behind index 1 of term 1, of all kinds and sizes.
func history(seed uint64, n, maxPayload int) []storage.LogEntry {
	rng := rand.New(rand.NewPCG(seed, 9))
	entries := make([]storage.LogEntry, n)
	term, next := storage.Term(1), storage.Offset(0)
	for i := range entries {
		e := &entries[i]
		if rng.IntN(10) == 0 {
			term += storage.Term(rng.IntN(3))
		}
		e.Index, e.Term, e.BaseOffset = storage.Index(i+2), term, next
		e.Verdict = storage.Verdict(1 + rng.IntN(9))
		if e.Verdict > storage.VerdictControl {
			e.Verdict = storage.VerdictData
		}
		switch e.Verdict {
		case storage.VerdictData:
			e.Count = uint32(1 + rng.IntN(20))
		case storage.VerdictConfig:
			e.Kind = storage.EntryConfChangeV2
		}
		if e.Verdict != storage.VerdictEmpty {
			e.Data = make([]byte, 1+rng.IntN(maxPayload))
			for k := range e.Data {
				e.Data[k] = byte(rng.Uint32())
			}
		}
		next += storage.Offset(e.Count)
	}
	return entries
}

// requireFrames compares frames with the entries from the one at first on.
func requireFrames(t require.TestingT, entries []storage.LogEntry, first storage.Index, frames []storage.FrameView) {
	for i, f := range frames {
		want := entries[int(first)+i-2]
		have := storage.LogEntry{Entry: storage.Entry{Index: f.Index, Term: f.Term, Kind: f.Kind, Data: bytes.Clone(f.Payload)},
			Verdict: f.Verdict, BaseOffset: f.BaseOffset, Count: f.Count}
		if len(f.Payload) == 0 {
			have.Data = nil
		}
		require.Equal(t, want, have)
	}
}

// requireLog reads the whole log in every way and compares it with entries.
func requireLog(t require.TestingT, l *storage.Log, entries []storage.LogEntry) {
	start, first := l.Start(), 0 // entries that the log does not hold any more
	for first < len(entries) && entries[first].Index <= start.Index {
		first++
	}
	next := storage.Offset(0)
	if n := len(entries); n > 0 {
		next = entries[n-1].BaseOffset + storage.Offset(entries[n-1].Count)
	}
	require.Equal(t, next, l.NextOffset())
	require.Equal(t, start.Offset, l.StartOffset())
	if first > 0 {
		before := &entries[first-1]
		require.Equal(t, storage.LogStart{Index: before.Index, Term: before.Term, Offset: before.BaseOffset + storage.Offset(before.Count)}, start)
	}
	require.Equal(t, storage.Index(len(entries)+1), l.Position().LastIndex)

	for from := start.Offset; from < next; {
		r, err := l.ReadAt(from, 6000, nil)
		require.NoError(t, err)
		require.NotEmpty(t, r.Frames)
		f := r.Frames[0]
		require.True(t, f.BaseOffset <= from && from < f.NextOffset(), "offset %d: got frame %+v", from, f)
		requireFrames(t, entries, f.Index, r.Frames)
		from = r.Frames[len(r.Frames)-1].NextOffset()
	}
	last := storage.Index(len(entries) + 1)
	for lo := max(2, start.Index+1); lo <= last; {
		got, err := l.Entries(lo, last+1, 5000)
		require.NoError(t, err)
		require.NotEmpty(t, got)
		for i, e := range got {
			require.Equal(t, entries[int(lo)+i-2].Entry, e)
		}
		lo += storage.Index(len(got))
	}
	for _, e := range entries[first:] {
		term, err := l.Term(e.Index)
		require.NoError(t, err)
		require.Equal(t, e.Term, term)
	}
}

func TestLogReadsWhatWasAppended(t *testing.T) {
	s := openStore(t, simfs.New(1))
	defer s.Close()
	l := openLog(t, s, emptyPosition())
	r, err := l.ReadAt(0, 100, nil)
	require.NoError(t, err)
	require.Empty(t, r.Frames)

	entries := history(1, 400, 300)
	for rest := entries; len(rest) > 0; rest = rest[min(7, len(rest)):] {
		require.NoError(t, l.Append(rest[:min(7, len(rest))]))
	}
	requireLog(t, l, entries)

	_, err = l.Entries(1, 3, 100)
	require.ErrorIs(t, err, storage.ErrCompacted)
	_, err = l.Entries(2, 403, 100)
	require.ErrorIs(t, err, storage.ErrBeyond)
	_, err = l.Term(402)
	require.ErrorIs(t, err, storage.ErrBeyond)
	_, err = l.Term(0)
	require.ErrorIs(t, err, storage.ErrCompacted)
	var out *storage.OutOfRangeError
	_, err = l.ReadAt(l.NextOffset()+1, 100, nil)
	require.ErrorAs(t, err, &out)
	require.Equal(t, storage.OutOfRangeError{Offset: l.NextOffset() + 1, Start: 0, End: l.NextOffset()}, *out)
	_, err = l.ReadAt(-1, 100, nil)
	require.ErrorAs(t, err, &out)

	got, err := l.Entries(2, 402, math.MaxInt)
	require.NoError(t, err)
	require.NotEmpty(t, got)

	require.NoError(t, l.Close())
	require.ErrorIs(t, l.Append(nil), storage.ErrClosed)
	_, err = l.ReadAt(0, 100, nil)
	require.ErrorIs(t, err, storage.ErrClosed)
}

// A read puts frames behind what the buffer holds and keeps to it if they fit.
func TestReadAtAppendsToTheBuffer(t *testing.T) {
	s := openStore(t, simfs.New(1))
	defer s.Close()
	l := openLog(t, s, emptyPosition())
	entries := history(2, 100, 100)
	require.NoError(t, l.Append(entries))
	buf := append(make([]byte, 0, 64<<10), "before"...)
	r, err := l.ReadAt(0, 1000, buf)
	require.NoError(t, err)
	require.Equal(t, "before", string(r.Buf[:6]))
	require.Same(t, &buf[:1][0], &r.Buf[:1][0])
	requireFrames(t, entries, r.Frames[0].Index, r.Frames)
	require.Greater(t, len(r.Frames), 2)

	var next storage.Offset
	buf = buf[:0]
	allocs := testing.AllocsPerRun(20, func() {
		r, err := l.ReadAt(next, 1000, buf)
		if err != nil || len(r.Frames) == 0 {
			next = 0
			return
		}
		next = r.Frames[len(r.Frames)-1].NextOffset()
	})
	require.LessOrEqual(t, allocs, 4.0, "allocations of a read of many records")
}

func TestLogRefusesWhatDoesNotContinueIt(t *testing.T) {
	good := storage.LogEntry{Entry: storage.Entry{Index: 2, Term: 2}, Verdict: storage.VerdictEmpty}
	for name, change := range map[string]func(*storage.LogEntry){
		"index":   func(e *storage.LogEntry) { e.Index = 3 },
		"offset":  func(e *storage.LogEntry) { e.BaseOffset = 1 },
		"term":    func(e *storage.LogEntry) { e.Term = 1 },
		"kind":    func(e *storage.LogEntry) { e.Kind = 9 },
		"verdict": func(e *storage.LogEntry) { e.Verdict = 0 },
		"count":   func(e *storage.LogEntry) { e.Count = 1 },
		"size":    func(e *storage.LogEntry) { e.Data = make([]byte, storage.MaxFramePayload+1) },
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, simfs.New(1))
			defer s.Close()
			pos := emptyPosition()
			pos.StartTerm, pos.LastTerm = 2, 2
			l := openLog(t, s, pos)
			bad := good
			change(&bad)
			err := l.Append([]storage.LogEntry{bad})
			require.Error(t, err)
			require.Equal(t, err, l.Append([]storage.LogEntry{good}), "the error is sticky")
			require.Equal(t, pos, l.Position())
		})
	}
}

// Property: P2 (red: Sync synced the newest segment alone; a reader's hint was
// believed for another segment; a trimmed log was searched below its
// start)
//
// Any program of appends, syncs, reopens and crashes, against a slice. A
// position that was saved after a Sync is what a checkpoint table would hold.
func TestLogAgainstAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		entries := history(rapid.Uint64().Draw(t, "history"), 300, rapid.SampledFrom([]int{10, 200, 9000}).Draw(t, "payload"))
		fs := simfs.New(rapid.Uint64().Draw(t, "disk"))
		segment := rapid.SampledFrom([]int64{testSegment, 64 << 10}).Draw(t, "segment")
		openStore := func() *storage.Store {
			cfg := logConfig(fs)
			cfg.SegmentSize = segment
			s, err := storage.Open(cfg)
			require.NoError(t, err)
			return s
		}
		s := openStore()
		l := openLog(t, s, emptyPosition())
		saved, have := emptyPosition(), 0 // have: entries in the log
		reopen := func(pos storage.LogPosition) {
			s = openStore()
			l = openLog(t, s, pos)
			have = int(pos.LastIndex) - 1
			require.Equal(t, pos, l.Position())
		}
		t.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) {
				n := min(rapid.IntRange(1, 20).Draw(t, "n"), len(entries)-have)
				require.NoError(t, l.Append(entries[have:have+n]))
				have += n
			},
			"sync": func(t *rapid.T) {
				require.NoError(t, l.Sync())
				saved = l.Position()
			},
			"aux": func(t *rapid.T) {
				if i := l.Position().LastIndex; i > l.Position().AuxIndex && have > 0 {
					require.NoError(t, l.WriteAux(i, entries[i-2].Data))
				}
			},
			"close": func(t *rapid.T) {
				require.NoError(t, l.Close())
				saved = l.Position()
				require.NoError(t, s.Close())
				reopen(saved)
			},
			"crash": func(t *rapid.T) {
				fs = fs.Crash(rapid.SampledFrom([]simfs.Survival{simfs.Strict, simfs.Random, simfs.Lucky, simfs.Kill}).Draw(t, "survival"))
				require.NoError(t, s.Close())
				reopen(saved)
			},
			"trim": func(t *rapid.T) {
				segments, err := l.Segments()
				require.NoError(t, err)
				if len(segments) > 1 {
					s := segments[rapid.IntRange(0, len(segments)-1).Draw(t, "segment")]
					start, err := l.SegmentStart(s)
					require.NoError(t, err)
					removed, err := l.TrimTo(start)
					require.NoError(t, err)
					require.Equal(t, start, l.Start())
					gone := int64(0)
					for _, g := range segments {
						if g.First < s.First {
							gone += g.Bytes
						}
					}
					require.Equal(t, gone, removed)
				}
			},
			"read": func(t *rapid.T) {
				if start := l.StartOffset(); start > 0 {
					_, err := l.ReadAt(start-1, 1, nil)
					require.Equal(t, &storage.OutOfRangeError{Offset: start - 1, Start: start, End: l.NextOffset()}, err)
				}
				if next := l.NextOffset(); next > l.StartOffset() {
					from := storage.Offset(rapid.Int64Range(int64(l.StartOffset()), int64(next)-1).Draw(t, "from"))
					r, err := l.ReadAt(from, rapid.IntRange(0, 20000).Draw(t, "max"), nil)
					require.NoError(t, err)
					require.True(t, r.Frames[0].BaseOffset <= from && from < r.Frames[0].NextOffset())
					requireFrames(t, entries, r.Frames[0].Index, r.Frames)
				}
			},
			"all": func(t *rapid.T) {
				requireLog(t, l, entries[:have])
				if i := l.Position().AuxIndex; i > 0 {
					data, err := l.ReadAux(i)
					require.NoError(t, err)
					require.True(t, bytes.Equal(entries[i-2].Data, data))
				}
			},
		})
		require.NoError(t, s.Close())
	})
}

// segmentBytes returns the segments of replica 7's log by name.
func segmentBytes(t require.TestingT, fs storage.FS) map[string]string {
	dir := "/node/" + replicaAt(7, emptyPosition()).Dir
	names, err := fs.List(dir)
	require.NoError(t, err)
	files := map[string]string{}
	for _, name := range names {
		if strings.HasSuffix(name, ".seg") {
			files[name] = string(fileBytes(t, fs, dir+"/"+name))
		}
	}
	return files
}

func fileBytes(t require.TestingT, fs storage.FS, path string) []byte {
	f, err := fs.Open(path)
	require.NoError(t, err)
	defer f.Close()
	info, err := f.Stat()
	require.NoError(t, err)
	b := make([]byte, info.Size())
	if len(b) > 0 {
		_, err = f.ReadAt(b, 0)
		require.NoError(t, err)
	}
	return b
}

// The files are a function of the entries, whatever restarts and crashes.
func TestSegmentsDependOnTheEntriesAlone(t *testing.T) {
	entries := history(5, 200, 700)
	fs := simfs.New(1)
	s := openStore(t, fs)
	l := openLog(t, s, emptyPosition())
	require.NoError(t, l.Append(entries))
	want := segmentBytes(t, fs)
	require.Greater(t, len(want), 10)
	require.NoError(t, s.Close())

	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		fs := simfs.New(seed)
		pos := emptyPosition()
		for {
			s := openStore(t, fs)
			l := openLog(t, s, pos)
			for have := int(pos.LastIndex) - 1; have < len(entries); {
				n := min(1+rng.IntN(30), len(entries)-have)
				require.NoError(t, l.Append(entries[have:have+n]))
				have += n
				if rng.IntN(4) == 0 {
					require.NoError(t, l.Sync())
					pos = l.Position()
				}
				if rng.IntN(10) == 0 {
					break
				}
			}
			done := int(l.Position().LastIndex)-1 == len(entries)
			if done {
				require.Equal(t, want, segmentBytes(t, fs), "seed %d", seed)
			}
			fs = fs.Crash(simfs.Random)
			require.NoError(t, s.Close())
			if done {
				break
			}
		}
	}
}

// Property: S8 (red: Sync left out the log's directory; it left out the directories
// above; it renamed a side file that was not synced)
//
// Power fails at every operation, everything un-synced is lost, or any part of
// it. What a Sync that returned covered is there.
func TestLogSurvivesACrashAtEveryOperation(t *testing.T) {
	entries := history(3, 60, 700)
	run := func(fs *simfs.FS) (saved storage.LogPosition) {
		saved = emptyPosition()
		s, err := storage.Open(logConfig(fs))
		if err != nil {
			return saved
		}
		defer s.Close()
		if _, err := s.CreateTopicDir("orders", testIncarnation); err != nil {
			return saved
		}
		l, err := s.OpenLog(replicaAt(7, saved))
		if err != nil {
			return saved
		}
		for i := 0; i < len(entries); i += 6 {
			if l.Append(entries[i:i+6]) != nil {
				return saved
			}
			if i%4 == 0 && l.WriteAux(l.Position().LastIndex, entries[i].Data) != nil {
				return saved
			}
			if i%3 == 0 {
				if l.Sync() != nil {
					return saved
				}
				saved = l.Position()
			}
		}
		return saved
	}
	total := int64(0)
	for at := int64(1); ; at++ {
		fs := simfs.New(uint64(at))
		fs.SetHook(simfs.CrashAt(at))
		saved := run(fs)
		for _, survival := range []simfs.Survival{simfs.Strict, simfs.Random, simfs.Kill} {
			img := fs.Crash(survival)
			s := openStore(t, img)
			l := openLog(t, s, saved)
			have := int(saved.LastIndex) - 1
			requireLog(t, l, entries[:have])
			if saved.AuxIndex > 0 {
				data, err := l.ReadAux(saved.AuxIndex)
				require.NoError(t, err)
				require.Equal(t, len(entries[saved.AuxIndex-7].Data), len(data))
			}
			require.NoError(t, l.Append(entries[have:]))
			requireLog(t, l, entries)
			require.NoError(t, l.Close())
			require.NoError(t, s.Close())
		}
		if int(saved.LastIndex)-1 >= 58 || at > 2000 {
			total = at
			break
		}
	}
	require.Greater(t, total, int64(50), "operations")
}

func TestReadAuxReturnsWhatWasWrittenAside(t *testing.T) {
	disk := simfs.New(1)
	s := openStore(t, disk)
	l := openLog(t, s, emptyPosition())
	require.Error(t, l.WriteAux(2, nil), "the log is not that long")
	entries := history(6, 20, 100)
	require.NoError(t, l.Append(entries[:10]))
	require.NoError(t, l.WriteAux(11, []byte("at 11")))
	data, err := l.ReadAux(11)
	require.NoError(t, err)
	require.Equal(t, "at 11", string(data))
	require.NoError(t, l.Sync())
	require.NoError(t, l.Append(entries[10:]))
	require.NoError(t, l.WriteAux(21, []byte("at 21")))
	require.Error(t, l.WriteAux(21, nil), "not above the last")
	require.NoError(t, l.Sync())
	_, err = l.ReadAux(15)
	require.ErrorIs(t, err, fs.ErrNotExist)
	pos := l.Position()
	require.Equal(t, storage.Index(21), pos.AuxIndex)
	require.NoError(t, s.Close())

	path := "/node/" + replicaAt(7, pos).Dir + fmt.Sprintf("/%020d.aux", 21)
	require.NoError(t, disk.Flip(path, 26, 3))
	s = openStore(t, disk)
	l = openLog(t, s, pos)
	var damage *storage.DamageError
	_, err = l.ReadAux(21)
	require.ErrorAs(t, err, &damage)
	require.Equal(t, path, damage.Path)
	data, err = l.ReadAux(11)
	require.NoError(t, err)
	require.Equal(t, "at 11", string(data))
	require.NoError(t, s.Close())

	require.NoError(t, disk.Remove(path))
	s = openStore(t, disk)
	defer s.Close()
	l = openLog(t, s, pos)
	_, err = l.ReadAux(21)
	require.ErrorAs(t, err, &damage)
	require.Equal(t, path, damage.Path)
	require.ErrorIs(t, err, fs.ErrNotExist)
	all, err := l.Asides()
	require.NoError(t, err)
	require.Equal(t, []storage.Index{11}, all)

	require.Error(t, l.RewriteAux(11, []byte("at 11")), "it is not the newest")
	require.NoError(t, l.RewriteAux(21, []byte("at 21, again")))
	s2 := openStore(t, disk.Crash(simfs.Strict))
	defer s2.Close()
	data, err = openLog(t, s2, pos).ReadAux(21)
	require.NoError(t, err)
	require.Equal(t, "at 21, again", string(data))
}
