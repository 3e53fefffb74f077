package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A directory that nobody knows is listed, looked at, and restored as a topic. The
// cluster cannot say that it is over; a person can, when the node is stopped.
func TestQuarantineCommands(t *testing.T) {
	l := startLone(t)
	l.waitVersion(t)
	http := strings.TrimPrefix(l.url, "http://")
	mustRun(t, "", "create", "-topic", "lines", "-partitions", "1", "-http", http)
	want := "one\ntwo\nthree\n"
	mustRun(t, want, "produce", "-topic", "lines", "-http", http)
	made, err := filepath.Glob(filepath.Join(l.dir, "topics", "lines@*"))
	require.NoError(t, err)
	require.Len(t, made, 1)
	entry := "lines@" + strings.Repeat("f", 32) + "~1"
	path := filepath.Join(l.dir, "quarantine", entry)
	require.NoError(t, os.CopyFS(path, os.DirFS(made[0])))

	require.Contains(t, mustRun(t, "", "quarantine", "list", "-http", http), "a: in quarantine: 1 directory\n")
	var list quarantineAnswer
	require.NoError(t, json.Unmarshal([]byte(mustRun(t, "", "quarantine", "list", "-json", "-http", http)), &list))
	require.Equal(t, "a", list.Node)
	require.Len(t, list.Quarantined, 1)
	q := list.Quarantined[0]
	require.Equal(t, entry, q.Dir)
	require.Equal(t, "unknown", q.Fate)
	require.Contains(t, q.Marker, "its marker names lines@")
	require.Contains(t, q.Reason, "not known")
	require.Len(t, q.Logs, 1)

	here := []string{"-http", http, "-entry", entry}
	step := func(name string, more ...string) (int, string, string) {
		return runHere(t.Context(), nil, append(append([]string{"quarantine", name}, here...), more...)...)
	}
	code, out, errs := step("show")
	require.Zero(t, code, errs)
	require.Contains(t, out, "the cluster knows no such life of a topic")
	code, out, errs = step("show", "-partition", "0")
	require.Zero(t, code, errs)
	require.Equal(t, want, out)
	code, out, errs = step("show", "-partition", "0", "-from", "1", "-n", "1", "-json")
	require.Zero(t, code, errs)
	require.Regexp(t, `^\{"partition":0,"offset":1,"timestamp":\d+,"value":"two"\}\n$`, out)
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"show -entry gone~1 -http " + http, 1, "nothing of the name"},
		{"show -entry ../../topics -partition 0 -http " + http, 1, "no directory in quarantine"},
		{"show -entry " + entry + " -partition 7 -http " + http, 1, "no log of partition 7"},
		{"show -entry " + entry + " -http a:1,b:2", 2, "the one node"},
		{"reclaim -entry " + entry + " -http " + http, 1, "its marker names"},
		{"reclaim -entry x -yes -http " + http, 2, "-yes goes with -dir"},
		{"restore -entry " + entry + " -topic lines -http " + http, 1, "exists"},
		{"restore -entry " + entry + " -topic back -partitions 0 -http a:1,b:2", 2, "the one node"},
		{"list -dir " + l.dir, 1, "stop its node first"},
		{"frobnicate", 2, "want list, show, restore, reclaim or adopt"},
	} {
		code, _, errs := runHere(t.Context(), nil, append([]string{"quarantine"}, strings.Fields(c.args)...)...)
		require.Equal(t, c.code, code, "%s: %s", c.args, errs)
		require.Contains(t, errs, c.says, c.args)
	}
	code, out, errs = step("restore", "-topic", "back")
	require.Zero(t, code, errs)
	require.Contains(t, out, "back: 3 records in 1 partition\n")
	require.Equal(t, want, mustRun(t, "", "consume", "-topic", "back", "-http", http))
	code, out, errs = step("restore", "-topic", "back", "-resume", "-json")
	require.Zero(t, code, errs)
	var again restoreAnswer
	require.NoError(t, json.Unmarshal([]byte(out), &again))
	require.EqualValues(t, 3, again.Partitions[0].Found)

	l.stopNode(t)
	here = []string{"-dir", l.dir, "-entry", entry}
	require.Contains(t, mustRun(t, "", "quarantine", "list", "-dir", l.dir), entry)
	code, out, errs = step("show", "-partition", "0")
	require.Zero(t, code, errs)
	require.Equal(t, want, out)
	code, out, errs = step("reclaim")
	require.Zero(t, code, errs)
	require.Contains(t, out, "Nothing was removed")
	require.DirExists(t, path)
	code, _, errs = runHere(t.Context(), nil, "quarantine", "reclaim", "-dir", l.dir, "-entry", "../topics", "-yes")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "no directory in quarantine")
	adopt := func(more ...string) (int, string, string) {
		return runHere(t.Context(), nil, append([]string{"quarantine", "adopt", "-dir", l.dir, "-topic", "lines"}, more...)...)
	}
	id := strings.TrimPrefix(filepath.Base(made[0]), "lines@")
	copied := filepath.Join(l.dir, "quarantine", "copied~1")
	require.NoError(t, os.CopyFS(copied, os.DirFS(made[0])))
	code, _, errs = adopt("-entry", "copied~1", "-incarnation", id)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "a directory with one is not adopted")
	require.NoError(t, os.Remove(filepath.Join(copied, "INCARNATION")))
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{nil, 2, "-entry is missing"},
		{[]string{"-entry", "copied~1"}, 2, "-incarnation"},
		{[]string{"-entry", "copied~1", "-incarnation", "xyz"}, 2, "-incarnation"},
		{[]string{"-entry", "copied~1", "-incarnation", strings.Repeat("f", 32), "-yes"}, 1, "where the journal has it"},
	} {
		code, _, errs = adopt(c.args...)
		require.Equal(t, c.code, code, errs)
		require.Contains(t, errs, c.says)
	}
	code, out, errs = adopt("-entry", "copied~1", "-incarnation", id)
	require.Zero(t, code, errs)
	require.Contains(t, out, "Nothing was changed")
	require.DirExists(t, copied)
	code, out, errs = adopt("-entry", "copied~1", "-incarnation", id, "-yes")
	require.Zero(t, code, errs)
	require.Contains(t, out, "lines@"+id+"~1 is adopted")
	require.NoDirExists(t, copied)
	require.Contains(t, mustRun(t, "", "quarantine", "list", "-dir", l.dir), "adopted")
	code, _, errs = step("reclaim", "-yes")
	require.Zero(t, code, errs)
	require.NoDirExists(t, path)
	require.DirExists(t, made[0])
}
