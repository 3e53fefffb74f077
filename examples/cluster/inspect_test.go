package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/storage"
)

// inspectJSON inspects directories.
func inspectJSON(t *testing.T, dirs ...string) (code int, all inspection) {
	t.Helper()
	code, out, _ := runHere(t.Context(), nil, append([]string{"inspect", "-json"}, dirs...)...)
	require.NoError(t, json.Unmarshal([]byte(out), &all))
	require.Equal(t, all.Damaged, code == exitFailed)
	require.Equal(t, all.Unread && !all.Damaged, code == exitUnread)
	return code, all
}

func TestInspect(t *testing.T) {
	l := startLone(t)
	l.do(t, "POST", "/topics/t", `{"partitions": 1}`)
	line := strings.Repeat("x", 1000) + "\n"
	for i := range 30 { // of 10 kB each: the journal goes on in another file now and then, and checkpoints follow
		if i == 20 { // entries that hold no records, and close and open the partition
			require.Eventually(t, func() bool { // the cluster's version rises
				code, _ := l.do(t, "DELETE", "/topics/t?grace=1h", "")
				return code == 204
			}, time.Minute, 10*time.Millisecond)
			code, text := l.do(t, "POST", "/topics/t/undelete", "")
			require.Equal(t, 200, code, text)
		}
		_, text := l.do(t, "POST", "/topics/t/records", strings.Repeat(line, 10))
		require.Contains(t, text, "ok 10 0 ")
	}
	code, all := inspectJSON(t, l.dir)
	require.Equal(t, exitUnread, code)
	require.Empty(t, all.Directories[0].Damage)
	require.Contains(t, all.Directories[0].CannotRead[0], "the directory is in use: stop its node first")
	l.stopNode(t)

	code, all = inspectJSON(t, l.dir)
	require.Zero(t, code, all.Directories[0].Damage)
	require.Equal(t, "a", all.Directories[0].Identity.Name)
	require.Len(t, all.Directories[0].Groups, 2)
	require.Len(t, all.Directories[0].Tables, 2)
	require.NotEmpty(t, all.Directories[0].Journal)
	g := all.Directories[0].Groups[1]
	require.Equal(t, "t/0", g.name())
	require.EqualValues(t, 300, g.Records)
	require.EqualValues(t, 300, g.HighWatermark)
	require.Positive(t, g.Proven, "no checkpoint was made")
	require.NotEqual(t, l.dir, g.Dir)

	segment, err := filepath.Glob(filepath.Join(l.dir, filepath.FromSlash(g.Dir), "*.seg"))
	require.NoError(t, err)
	for _, c := range []struct{ file, named string }{
		{"FORMAT", "FORMAT"},
		{"IDENTITY", "IDENTITY"},
		{filepath.Join("topics", "t@"+g.Incarnation, "INCARNATION"), "topics/t@" + g.Incarnation},
		{strings.TrimPrefix(segment[0], l.dir), filepath.Base(segment[0])},
	} {
		copied := filepath.Join(t.TempDir(), "copy")
		require.NoError(t, os.CopyFS(copied, os.DirFS(l.dir)))
		flip(t, filepath.Join(copied, c.file))
		before, err := os.ReadFile(filepath.Join(copied, c.file))
		require.NoError(t, err)
		code, out, errs := runHere(t.Context(), nil, "inspect", copied)
		require.Equal(t, exitFailed, code, c.file)
		require.Contains(t, out, "DAMAGED: ", c.file)
		require.Contains(t, out, c.named)
		require.Contains(t, errs, "places that are damaged: 1")
		after, err := os.ReadFile(filepath.Join(copied, c.file))
		require.NoError(t, err)
		require.True(t, bytes.Equal(before, after), "inspect changed %s", c.file)
	}
}

// flip changes one byte in the middle of a file's first 200.
func flip(t *testing.T, file string) {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	b[min(len(b)/2, 100)] ^= 1
	require.NoError(t, os.WriteFile(file, b, 0o600))
}

// Replicas that know different amounts are equal, each as far as it goes; ones
// with different records are not; and nothing is said to be equal that was not
// compared.
func TestCompare(t *testing.T) {
	replica := func(states ...recordState) *group {
		g := &group{Topic: "t", states: states}
		if len(states) > 0 {
			g.HighWatermark = states[len(states)-1].next
		}
		return g
	}
	broken := func(g *group) *group { g.Broken = "damaged"; return g }
	from := func(start int64, g *group) *group { g.Start = start; return g }
	a, b := digest{1}, digest{2}
	short, long := []recordState{{5, a}}, []recordState{{5, a}, {9, b}}
	for _, c := range []struct {
		groups       []*group
		end          int64
		result, says string
	}{
		{[]*group{replica(short...), replica(short...)}, 5, resultEqual, ""},
		{[]*group{replica(), replica()}, 0, resultEqual, ""},
		{[]*group{replica(short...), replica(recordState{5, b})}, 5, resultDifferent, "DIFFERENT: 1 below offset 5 from 0"},
		{[]*group{replica(long...), replica(short...)}, 9, resultEqual, "equal, each as far as it goes: 0 has [0, 9), 1 has [0, 5)"},
		{[]*group{replica(recordState{4, a}, recordState{9, b}), replica(short...)}, 9, resultDifferent, "DIFFERENT: 1 below offset 5 from 0"},
		{[]*group{replica(short...)}, 5, resultNotCompared, "not compared: fewer than two replicas; 0 has [0, 5)"},
		{[]*group{replica(short...), replica()}, 5, resultNotCompared, "not compared: only one replica has records; 0 has [0, 5), 1 has [0, 0)"},
		// One that has nothing yet does not keep the others from being compared.
		{[]*group{replica(long...), replica(long...), replica()}, 9, resultEqual, "equal, each as far as it goes"},
		{[]*group{replica(long...), replica(recordState{9, a}), replica()}, 9, resultDifferent, "DIFFERENT: 1 below offset 9 from 0 and 2"},
		{[]*group{broken(replica()), replica(long...), replica(long...)}, 9, resultPartly, "compared only up to 0 of 9, as 0 cannot be read further"},
		{[]*group{replica(long...), broken(replica(short...))}, 9, resultPartly, "compared only up to 5 of 9, as 1 cannot be read further"},
		{[]*group{broken(replica(long...)), replica(recordState{9, a})}, 9, resultDifferent, "DIFFERENT"},
		{[]*group{replica(long...), from(4, replica(long...))}, 9, resultNotCompared, "not compared: they begin at different offsets; 0 has [0, 9), 1 has [4, 9)"},
	} {
		got := compareGroups(c.groups)
		for i, r := range got.Replicas {
			r.Dir = strconv.Itoa(i)
		}
		require.Equal(t, c.end, got.End, c.says)
		require.Equal(t, c.result, got.Result, c.says)
		if c.says == "" {
			require.Empty(t, got.text())
		} else {
			require.Contains(t, got.text(), c.says)
		}
	}
}

// The last line says how many partitions are equal, and what became of the rest.
func TestSummary(t *testing.T) {
	l := startLone(t)
	l.do(t, "POST", "/topics/t", `{"partitions": 2}`)
	for _, partition := range []string{"0", "1"} {
		_, text := l.do(t, "POST", "/topics/t/records?partition="+partition, "a\nb\nc\n")
		require.Contains(t, text, "ok 3 ")
	}
	l.stopNode(t)
	copied := filepath.Join(t.TempDir(), "copy")
	require.NoError(t, os.CopyFS(copied, os.DirFS(l.dir)))
	out := mustRun(t, "", "inspect", l.dir, copied)
	require.Contains(t, out, "\n2 of 2 partitions are equal on all replicas given, each as far as it goes\n")

	code, out, errs := runHere(t.Context(), nil, "inspect", l.dir, filepath.Join(copied, "nothing"))
	require.Equal(t, exitUnread, code)
	require.Contains(t, errs, "cluster inspect: places that cannot be read: 1\n")
	require.Contains(t, out, "  cannot read: open ")
	require.Contains(t, out, "t/0: not compared: fewer than two replicas; ")
	require.Contains(t, out, "\n0 of 2 partitions are equal on all replicas given, each as far as it goes; not compared: 2\n")

	_, all := inspectJSON(t, copied)
	segments, err := filepath.Glob(filepath.Join(copied, filepath.FromSlash(all.Directories[0].Groups[1].Dir), "*.seg"))
	require.NoError(t, err)
	flip(t, segments[0])
	code, out, errs = runHere(t.Context(), nil, "inspect", l.dir, copied)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "places that are damaged: 1; partitions that differ: 0\n")
	require.Contains(t, out, "t/0: compared only up to 0 of 3, as "+copied+" cannot be read further\n")
	require.Contains(t, out, "\n1 of 2 partitions are equal on all replicas given, each as far as it goes; compared only in part: 1\n")
}

// What one may not read is not damaged, and neither is what is of a newer
// release.
func TestCannotRead(t *testing.T) {
	for _, c := range []struct {
		err    error
		damage bool
	}{
		{&storage.DamageError{Path: "x", Reason: "wrong"}, true},
		{&storage.DamageError{Path: "x", Reason: "cannot be read", Err: syscall.EIO}, true},
		{&storage.DamageError{Path: "x", Reason: "cannot be read", Err: syscall.EACCES}, false},
		{fmt.Errorf("storage: read x: %w", &fs.PathError{Op: "open", Path: "x", Err: syscall.EACCES}), false},
		{fmt.Errorf("storage: read x: %w", &storage.FormatError{Path: "x", Reason: "version 9"}), false},
		{fmt.Errorf("storage: read x: %w", &fs.PathError{Op: "open", Path: "x/FORMAT", Err: syscall.ENOENT}), true},
	} {
		var d directory
		d.note(c.err)
		d.note(c.err)
		require.Len(t, d.Damage, map[bool]int{true: 1}[c.damage], c.err)
		require.Len(t, d.CannotRead, map[bool]int{false: 1}[c.damage], c.err)
	}
}
