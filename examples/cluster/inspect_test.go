package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// inspectJSON inspects directories.
func inspectJSON(t *testing.T, dirs ...string) (code int, all inspection) {
	t.Helper()
	code, out, _ := runHere(t.Context(), nil, append([]string{"inspect", "-json"}, dirs...)...)
	require.NoError(t, json.Unmarshal([]byte(out), &all))
	require.Equal(t, all.Damaged, code == exitFailed)
	return code, all
}

func TestInspect(t *testing.T) {
	l := startLone(t)
	l.do(t, "POST", "/topics/t", `{"partitions": 1}`)
	line := strings.Repeat("x", 1000) + "\n"
	for range 30 { // of 10 kB each: the journal goes on in another file now and then, and checkpoints follow
		_, text := l.do(t, "POST", "/topics/t/records", strings.Repeat(line, 10))
		require.Contains(t, text, "ok 10 0 ")
	}
	code, all := inspectJSON(t, l.dir)
	require.Equal(t, exitFailed, code)
	require.Contains(t, all.Directories[0].Damage[0], "the directory is in use: stop its node first")
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

// Replicas that know different amounts are equal as far as the shorter one goes;
// ones with different records are not.
func TestCompare(t *testing.T) {
	replica := func(states ...recordState) *group {
		g := &group{Topic: "t", states: states}
		if len(states) > 0 {
			g.HighWatermark = states[len(states)-1].next
		}
		return g
	}
	a, b := digest{1}, digest{2}
	for _, c := range []struct {
		groups []*group
		common int64
		same   bool
	}{
		{[]*group{replica(recordState{5, a}), replica(recordState{5, a})}, 5, true},
		{[]*group{replica(recordState{5, a}), replica(recordState{5, b})}, 5, false},
		{[]*group{replica(recordState{5, a}, recordState{9, b}), replica(recordState{5, a})}, 5, true},
		{[]*group{replica(recordState{4, a}, recordState{9, b}), replica(recordState{5, a})}, 5, false},
		{[]*group{replica(recordState{5, a}), replica()}, 0, true},
	} {
		got := compareGroups(c.groups)
		require.Equal(t, c.common, got.Common)
		require.Equal(t, c.same, got.Same)
	}
}
