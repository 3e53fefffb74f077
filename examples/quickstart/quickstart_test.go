package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestReadLines(t *testing.T) {
	long := strings.Repeat("x", 5<<20)
	for _, c := range []struct {
		in   string
		want []string
	}{
		{"", nil},
		{"\n", []string{""}},
		{"a", []string{"a"}},
		{"a\n\nb\r\n", []string{"a", "", "b\r"}},
		{"\x00\xff\n" + long, []string{"\x00\xff", long}},
	} {
		lines, err := readLines(strings.NewReader(c.in))
		require.NoError(t, err)
		require.Len(t, lines, len(c.want))
		for i := range lines {
			require.True(t, string(lines[i]) == c.want[i])
		}
	}
	_, err := readLines(strings.NewReader("a\n" + strings.Repeat("x", maxLine+1)))
	require.ErrorContains(t, err, "line 2 has 16777217 bytes: a record holds at most 16777216")
}

// The whole program, with a file of awkward lines: leaders are aborted, and
// nothing is lost.
func TestQuickstart(t *testing.T) {
	if testing.Short() {
		t.Skip("real time: two crashes")
	}
	var text bytes.Buffer
	for i := range 3000 {
		text.WriteString(strings.Repeat("line\x00\xff ", i%50))
		text.WriteByte('\n')
	}
	text.WriteString(strings.Repeat("long", 1<<18))
	file := filepath.Join(t.TempDir(), "lines")
	require.NoError(t, os.WriteFile(file, text.Bytes(), 0o600))
	require.NoError(t, run(t.Context(), []string{file}))
	require.ErrorIs(t, run(t.Context(), []string{file + ".missing"}), os.ErrNotExist)
}

func TestHelp(t *testing.T) {
	require.NoError(t, run(t.Context(), []string{"-h"}))
	require.ErrorContains(t, run(t.Context(), []string{"-x"}), "-x")
	require.ErrorContains(t, run(t.Context(), []string{"a", "b"}), "want one file")
	for _, how := range strings.SplitAfter(usage, "\n") {
		require.LessOrEqual(t, len(how), 81)
	}
}

func TestReportOfOne(t *testing.T) {
	r := &report{nodes: 3, partitions: 6, records: 1, readVia: "node-3"}
	require.Contains(t, r.String(), "sent        1 record, ")
	r.records = 2
	require.Contains(t, r.String(), "sent        2 records, ")
}
