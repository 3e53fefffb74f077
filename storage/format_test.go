package storage_test

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/storage"
)

var rewriteJournal = flag.Bool("rewrite-journal", false, "write testdata/journal anew")

// everyKind is rounds with all kinds of frames.
func everyKind() [][]storage.Frame {
	conf := storage.ConfState{Voters: []storage.ReplicaID{7, 8}, Learners: []storage.ReplicaID{300},
		VotersOutgoing: []storage.ReplicaID{7}, LearnersNext: []storage.ReplicaID{9}, AutoLeave: true}
	return [][]storage.Frame{
		{
			{Kind: storage.FrameCreated, Group: 2, Replica: 7, Begin: &storage.Begin{Dir: "logs/seven", Index: 1, Term: 1, Conf: conf}},
			{Kind: storage.FrameCreated, Group: 3, Replica: 8, Begin: &storage.Begin{Dir: "logs/eight"}},
			{Kind: storage.FrameCreated, Group: 4, Replica: 9, Begin: &storage.Begin{Dir: "logs/nine"}},
		},
		nil,
		{
			{Kind: storage.FrameAppend, Group: 2, Replica: 7, Hard: storage.HardState{Term: 2, Vote: 8, Commit: 2},
				Entries: []storage.Entry{
					{Index: 2, Term: 2},
					{Index: 3, Term: 2, Kind: storage.EntryConfChangeV2, Data: []byte("change")},
					{Index: 4, Term: 2, Data: []byte("record")},
				}},
			{Kind: storage.FrameReset, Group: 3, Replica: 8, Begin: &storage.Begin{Reset: 77, Index: 500, Term: 6, NextOffset: 400, Conf: conf}},
			{Kind: storage.FrameAppend, Group: 3, Replica: 8, Hard: storage.HardState{Term: 6, Commit: 500}},
			{Kind: storage.FrameSetAside, Group: 4, Replica: 9},
		},
	}
}

// journalFiles writes everyKind and returns the journal's files.
func journalFiles(t testing.TB) map[string][]byte {
	fs := simfs.New(1)
	cfg := testConfig(fs)
	n := uint64(0)
	cfg.Rand = func() uint64 { n++; return n << 32 }
	s, err := storage.Open(cfg)
	require.NoError(t, err)
	for _, frames := range everyKind() {
		require.NoError(t, s.WriteRound(frames))
	}
	require.NoError(t, s.Close())
	s, err = storage.Open(cfg) // carries
	require.NoError(t, err)
	require.NoError(t, s.WriteRound([]storage.Frame{{Kind: storage.FrameDestroyed, Group: 4, Replica: 9}}))
	require.NoError(t, s.Close())
	files := map[string][]byte{}
	for _, name := range []string{"1.journal", "2.journal", "checkpoint.0"} {
		files[name] = readFile(t, fs, "/node/journal/"+name)
	}
	return files
}

func readFile(t testing.TB, fs storage.FS, path string) []byte {
	f, err := fs.Open(path)
	require.NoError(t, err)
	defer f.Close()
	b, err := io.ReadAll(f)
	require.NoError(t, err)
	return b
}

// dump is b for people: lines of zeros are left out.
func dump(b []byte) string {
	var out strings.Builder
	for at := 0; at < len(b); at += 16 {
		line := b[at:min(at+16, len(b))]
		if bytes.Count(line, []byte{0}) == len(line) {
			continue
		}
		text := bytes.Map(func(r rune) rune {
			if r < ' ' || r > '~' {
				return '.'
			}
			return r
		}, line)
		fmt.Fprintf(&out, "%06x  % x  |%s|\n", at, line, text)
	}
	return out.String()
}

// failedRow is a table's row of a replica whose log failed.
func failedRow() storage.ReplicaState {
	return storage.ReplicaState{Status: storage.ReplicaLive, Group: 2, Replica: 7, Dir: "logs/seven",
		Hard: storage.HardState{Term: 2, Vote: 8, Commit: 4},
		Log:  storage.LogPosition{StartIndex: 1, StartTerm: 1, LastIndex: 1, LastTerm: 1},
		Tail: []storage.Entry{{Index: 2, Term: 2}, entry(3, 2, "record")}}
}

func TestJournalFormatIsPinned(t *testing.T) {
	files := journalFiles(t)
	files["checkpoint.failed"] = storage.EncodeTable([]storage.ReplicaState{failedRow()})
	for name, b := range files {
		path := filepath.Join("testdata", "journal", name+".txt")
		if *rewriteJournal {
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
			require.NoError(t, os.WriteFile(path, []byte(dump(b)), 0o644))
		}
		want, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, string(want), dump(b), name)
	}
}

func TestUnknownKindsAreRefused(t *testing.T) {
	for _, body := range [][]byte{{8, 1, 1}, {0, 1, 1}, {1, 1, 1, 0, 0, 0, 1, 1, 1, 3, 0}} {
		_, err := storage.DecodeFrames(body)
		require.ErrorContains(t, err, "not known to this build")
	}
}

// Property: S11 (red: the count of a list was believed)
func TestDecodersAllocateWhatTheInputJustifies(t *testing.T) {
	huge := binary.AppendUvarint(nil, 1<<40)
	table := storage.EncodeTable(nil)
	binary.LittleEndian.PutUint64(table[40:], 1<<40)
	fs := simfs.New(1)
	require.NoError(t, fs.MkdirAll("/j", 0o755))
	long := make([]byte, 65)
	long[0], long[60] = 64, 0x7f
	writeJournal(t, fs, nil, forge(long))
	inputs := []func(){
		func() { _, _ = storage.ReadJournal(fs, "/j") },
		func() { _, _ = storage.DecodeFrames(append([]byte{1, 1, 1, 0, 0, 0, 1}, huge...)) },
		func() { _, _ = storage.DecodeFrames(append([]byte{1, 1, 1, 0, 0, 0, 1, 1, 1, 0}, huge...)) },
		func() { _, _ = storage.DecodeFrames(append([]byte{2, 1, 1}, huge...)) },
		func() { _, _ = storage.DecodeFrames(append([]byte{2, 1, 1, 0, 0, 0, 0, 0}, huge...)) },
		func() { _, _ = storage.DecodeTable(storage.SealTable(table)) },
	}
	for i, decode := range inputs {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		decode()
		runtime.ReadMemStats(&after)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20), "input %d", i)
	}
}

// The entries of a row follow its log.
func TestARowHasNoGap(t *testing.T) {
	whole := failedRow()
	rows, err := storage.DecodeTable(storage.EncodeTable([]storage.ReplicaState{whole}))
	require.NoError(t, err)
	require.Equal(t, []storage.ReplicaState{whole}, rows)
	gap := failedRow()
	gap.Tail = gap.Tail[1:]
	_, err = storage.DecodeTable(storage.EncodeTable([]storage.ReplicaState{gap}))
	require.ErrorContains(t, err, "do not follow")
}

// Property: S11 (red: a value that is cut off was read)
func FuzzFrames(f *testing.F) {
	for _, frames := range everyKind() {
		for body := storage.EncodeFrames(frames); len(body) > 0; body = body[:len(body)-1] {
			f.Add(body)
		}
	}
	f.Add([]byte{1, 1, 1, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		frames, err := storage.DecodeFrames(b)
		if err != nil {
			return
		}
		again, err := storage.DecodeFrames(storage.EncodeFrames(frames))
		require.NoError(t, err)
		require.Equal(t, frames, again)
	})
}

// Property: S11 (red: the length of the rows was believed)
func FuzzTable(f *testing.F) {
	f.Add(storage.EncodeTable(nil))
	long := storage.EncodeTable(nil)
	binary.LittleEndian.PutUint64(long[32:], 1<<40)
	f.Add(long)
	f.Add(storage.EncodeTable([]storage.ReplicaState{failedRow()}))
	gap := failedRow()
	gap.Tail = gap.Tail[1:]
	f.Add(storage.EncodeTable([]storage.ReplicaState{gap}))
	f.Add(storage.EncodeTable([]storage.ReplicaState{{Status: storage.ReplicaLive, Group: 1, Replica: 2, Dir: "d",
		Log: storage.LogPosition{LastIndex: 9, Exists: true}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, b := range [][]byte{b, storage.SealTable(bytes.Clone(b))} {
			rows, err := storage.DecodeTable(b)
			if err != nil {
				continue
			}
			again, err := storage.DecodeTable(storage.EncodeTable(rows))
			require.NoError(t, err)
			require.Equal(t, rows, again)
		}
	})
}

// FuzzJournal recovers from a file of rounds with any content.
//
// Property: S11 (red: a gap between entries was not looked at)
func FuzzJournal(f *testing.F) {
	gap := storage.EncodeFrames([]storage.Frame{{Kind: storage.FrameAppend, Group: 2, Replica: 7,
		Entries: []storage.Entry{entry(100, 1, "")}}})
	header := make([]byte, 65)
	header[0], header[57] = byte(64+len(gap)), byte(len(gap))
	f.Add(append(header, gap...))
	for _, b := range journalFiles(f) {
		var pages []byte
		for at := 0; at+4096 <= len(b); at += 4096 {
			page := bytes.TrimRight(b[at:at+4096], "\x00")
			pages = append(append(pages, byte(len(page))), page[:len(page)%256]...)
		}
		f.Add(pages)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		fs := simfs.New(1)
		require.NoError(t, fs.MkdirAll("/j", 0o755))
		rows := []storage.ReplicaState{{Status: storage.ReplicaLive, Group: 2, Replica: 7, Dir: "d"}}
		writeJournal(t, fs, rows, forge(b))
		_, _ = storage.ReadJournal(fs, "/j")
	})
}

func writeJournal(t testing.TB, fs storage.FS, rows []storage.ReplicaState, journal []byte) {
	for name, content := range map[string][]byte{"checkpoint.0": storage.EncodeTable(rows), "1.journal": journal} {
		file, err := fs.Create("/j/"+name, vfs.WriteCategoryUnspecified)
		require.NoError(t, err)
		_, err = file.Write(content)
		require.NoError(t, err)
		require.NoError(t, file.Close())
	}
}

// forge makes a file of pages, each the length of its content and the content,
// that are rounds of the generation that EncodeTable names.
func forge(b []byte) []byte {
	var file []byte
	for len(b) > 0 && len(file) < 1<<20 {
		n := min(int(b[0]), len(b)-1)
		page := make([]byte, 4096)
		copy(page, b[1:1+n])
		b = b[1+n:]
		copy(page[4:], "SJR\x01")
		binary.LittleEndian.PutUint64(page[8:], 1)
		binary.LittleEndian.PutUint64(page[16:], 2)
		binary.LittleEndian.PutUint64(page[24:], uint64(len(file)))
		binary.LittleEndian.PutUint64(page[32:], 0)
		file = append(file, page...)
	}
	return storage.SealRounds(file)
}
