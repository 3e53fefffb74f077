package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/membership"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/storage"
)

// Two of three directories are lost: the third goes on with all that it knew. One
// that comes back is fenced, and harms nobody.
//
// Property: R33 (red: epochs were not compared)
func TestOneProcessIsLeft(t *testing.T) {
	if testing.Short() {
		t.Skip("real time: three processes")
	}
	defer http.DefaultClient.CloseIdleConnections()
	nodes := startProcesses(t)
	a, b, c := nodes[0], nodes[1], nodes[2]
	mustRun(t, "", "create", "-topic", "lines", "-http", b.http)
	var want []string
	produce := func(n int) {
		var in strings.Builder
		for range n {
			line := "line " + strconv.Itoa(len(want))
			want = append(want, line)
			in.WriteString(line + "\n")
		}
		mustRun(t, in.String(), "produce", "-topic", "lines", "-http", c.http)
	}
	consumed := func() []string {
		return strings.Split(strings.TrimSuffix(mustRun(t, "", "consume", "-topic", "lines", "-http", c.http), "\n"), "\n")
	}
	produce(300)
	c.waitFor(a)
	code, _, errs := runHere(t.Context(), nil, "recover", "-dirs", c.dir)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "stop its node first")
	for _, p := range nodes {
		require.NoError(t, p.cmd.Process.Kill())
		_ = p.cmd.Wait()
	}

	code, _, errs = runHere(t.Context(), nil, "recover", "-dirs", b.dir+","+c.dir)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "are a majority, of every partition too: start them")

	// a is lost for good; b is thought to be, and comes back later.
	require.NoError(t, os.RemoveAll(a.dir))
	away := b.dir + "-away"
	require.NoError(t, os.Rename(b.dir, away))
	tmp := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(tmp, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	survey := file("c.json", mustRun(t, "", "recover", "survey", "-dir", c.dir))
	code, other, words := runHere(t.Context(), nil, "recover", "plan", survey)
	require.Zero(t, code, words)
	require.Regexp(t, `(?m)^  metadata: r3 on c, whose log ends with entry \d+ of term \d+`, words)
	require.Contains(t, words, "none of the 3 partitions that the metadata know")
	code, _, errs = runHere(t.Context(), nil, "recover", "apply", "-plan", survey, "-dir", c.dir)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "c.json is a survey, not a plan")
	code, _, errs = runHere(t.Context(), nil, "recover", "plan", file("a plan.json", other))
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "a plan.json is a plan, not a survey")

	require.Contains(t, mustRun(t, "", "recover", "-dirs", c.dir), "Nothing was changed")
	kept := filepath.Join(tmp, "plan.json")
	out := mustRun(t, "", "recover", "-dirs", c.dir, "-plan", kept, "-yes")
	require.Regexp(t, `(?m)^  a \(n1, at .*\n  b \(n2, at `, out)
	require.Contains(t, out, "c is in recovery epoch 1")
	mustRun(t, "", "recover", "apply", "-plan", kept, "-dir", c.dir) // once more is harmless
	code, _, errs = runHere(t.Context(), nil, "recover", "apply", "-plan", file("other.json", other), "-dir", c.dir)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "the plan was not applied")
	code, _, errs = runHere(t.Context(), nil, "recover", "-dirs", c.dir, "-plan", kept, "-yes")
	require.Equal(t, exitFailed, code)
	require.NotContains(t, errs, "applied in part")
	require.Contains(t, errs, "in recovery epoch 1: ")

	c.start()
	c.waitReady()
	require.ElementsMatch(t, want, consumed())
	produce(100)
	require.ElementsMatch(t, want, consumed())
	require.Regexp(t, `(?m)^recovery epoch 1, plan [0-9a-f]{32} of .*: left behind 2 nodes; 3 partitions went on from one replica, 0 lost; what was set aside is held: recover end-hold -epoch 1$`,
		mustRun(t, "", "members", "-http", c.http))

	require.NoError(t, os.Rename(away, b.dir))
	b.start()
	_ = b.cmd.Wait() // it is fenced
	require.Equal(t, exitFenced, b.cmd.ProcessState.ExitCode())
	text, err := os.ReadFile(b.log.Name())
	require.NoError(t, err)
	require.Contains(t, string(text), "fenced: the cluster went on in recovery epoch 1")
	mustRun(t, "", "recover", "end-hold", "-epoch", "1", "-http", b.http+","+c.http)
	require.Contains(t, mustRun(t, "", "members", "-http", b.http+","+c.http), "nothing is held")
	produce(100)
	require.ElementsMatch(t, want, consumed())
	require.Zero(t, c.end(syscall.SIGTERM))
}

// Of three directories one is lost, and with it the only replica of some partitions.
// The plan has two nodes; one is started before the plan was applied to its directory:
// it ends with a status of its own, and again, until that is done. What is left is
// read, and what is lost is named.
//
// Property: R33 (red: who is in the plan ended with the status of who was left behind)
func TestPlanIsToBeApplied(t *testing.T) {
	if testing.Short() {
		t.Skip("real time: three processes")
	}
	defer http.DefaultClient.CloseIdleConnections()
	nodes := startProcesses(t)
	a, b, c := nodes[0], nodes[1], nodes[2]
	mustRun(t, "", "create", "-topic", "single", "-partitions", "6", "-replicas", "1", "-http", b.http)
	var lines [6]string
	for i := range lines {
		lines[i] = "of " + strconv.Itoa(i)
		mustRun(t, lines[i]+"\n", "produce", "-topic", "single", "-partition", strconv.Itoa(i), "-http", b.http)
	}
	var status statusAnswer
	answer, err := http.Get("http://" + b.http + "/status")
	require.NoError(t, err)
	require.NoError(t, json.NewDecoder(answer.Body).Decode(&status))
	require.NoError(t, answer.Body.Close())
	var left, lost []string
	for _, p := range status.Known {
		if slices.Equal(p.On, []string{"a"}) {
			lost = append(lost, fmt.Sprintf("single/%d", p.Partition))
		} else {
			left = append(left, lines[p.Partition])
		}
	}
	require.NotEmpty(t, lost)
	require.NotEmpty(t, left)
	for _, p := range nodes {
		require.NoError(t, p.cmd.Process.Kill())
		_ = p.cmd.Wait()
	}
	require.NoError(t, os.RemoveAll(a.dir))

	tmp := t.TempDir()
	plan := filepath.Join(tmp, "plan.json")
	for _, p := range []*process{b, c} {
		require.NoError(t, os.WriteFile(filepath.Join(tmp, p.name), []byte(mustRun(t, "", "recover", "survey", "-dir", p.dir)), 0o600))
	}
	require.NoError(t, os.WriteFile(plan, []byte(mustRun(t, "", "recover", "plan", filepath.Join(tmp, "b"), filepath.Join(tmp, "c"))), 0o600))
	mustRun(t, "", "recover", "apply", "-plan", plan, "-dir", c.dir)
	c.start()
	for range 2 { // when it meets c, and at once
		b.start()
		_ = b.cmd.Wait()
		require.Equal(t, exitApply, b.cmd.ProcessState.ExitCode())
	}
	text, err := os.ReadFile(b.log.Name())
	require.NoError(t, err)
	require.Regexp(t, `(?m)^cluster node: stele: not recovered: .*: apply plan [0-9a-f]{32} to it, and do not empty it.*\ncluster node: storage: .*: apply its plan [0-9a-f]{32}, and do not empty it`, string(text))
	_, out, _ := runHere(t.Context(), nil, "inspect", b.dir)
	require.Contains(t, out, "  RECOVERY: ")

	mustRun(t, "", "recover", "apply", "-plan", plan, "-dir", b.dir)
	b.start()
	b.waitReady()
	c.waitReady()
	code, out, errs := runHere(t.Context(), nil, "consume", "-topic", "single", "-http", b.http+","+c.http)
	require.Equal(t, exitFailed, code)
	require.Equal(t, left, strings.Split(strings.TrimSuffix(out, "\n"), "\n"))
	for _, p := range lost {
		require.Contains(t, errs, "cluster consume: "+p+": a forced recovery left no replica of "+p)
	}
	require.Contains(t, mustRun(t, "", "status", "-http", b.http+","+c.http), lost[0]+" is lost: ")
	for _, p := range []*process{b, c} {
		require.Zero(t, p.end(syscall.SIGTERM))
	}
}

// What is lost, and what cannot be known, is said.
//
// Property: R33 (red: lost partitions not named; what is kept without being known to be committed not counted)
func TestPlanInWords(t *testing.T) {
	lines := func(p uint32) membership.PlannedGroup {
		return membership.PlannedGroup{Topic: "lines", Partition: p, Group: storage.GroupID(10 + p)}
	}
	var out bytes.Buffer
	printPlan(&out, &stele.RecoveryPlan{
		Cluster: "example", From: 1, To: 2, Kept: 4, Forced: []membership.PlannedGroup{lines(1)}, Lost: []membership.PlannedGroup{lines(2)},
		LeftBehind: []membership.SurveyedMember{{Node: 3, Name: "c", Addr: "c:1"}},
		Nodes: []membership.PlannedNode{
			{Node: 1, Name: "a", Addr: "a:1", GoesOn: true, Forced: []membership.ForcedReplica{{Group: 1, Replica: 1, Last: 9, LastTerm: 2}}},
			{Node: 2, Name: "b", Addr: "b:1", SetAside: []stele.ReplicaID{2}, Forced: []membership.ForcedReplica{{Group: 11, Replica: 7, Last: 5, LastTerm: 3, Unsure: 1}}},
		},
	})
	require.Equal(t, strings.ReplaceAll(`Recovery of cluster "example" (ID) from recovery epoch 1 to 2, plan ID

Who goes on:
  a (n1, at a:1) with its own metadata; replicas set aside: 0
  b (n2, at b:1) with the metadata of a; replicas set aside: 1

Lost or left behind, and never to return. Can one of their directories still be read? Then stop: it may hold what these do not, so survey it, too
  c (n3, at c:1)

Goes on from one replica:
  metadata: r1 on a, whose log ends with entry 9 of term 2
  lines/1: r7 on b, whose log ends with entry 5 of term 3; of its end 1 entry is kept that nobody left knows to be committed
4 partitions go on as before, by the majority that is left

Lost, with all records: no replica is left. Copy the other partitions of their topics elsewhere, then delete them
  lines/2

What cannot be known:
  what only lost nodes had is gone, acknowledged or not: records, topics, members. Nobody can list it
  whether what is kept without being known to be committed was acknowledged: 1 entry. From now on it counts

The others must not meet these nodes: keep their machines off. Destroy their directories last, when the new cluster was looked at and nothing of them is needed.

`, "ID", strings.Repeat("0", 32)), out.String())
	a := describeMembers(stele.Cluster{Recoveries: []stele.Recovery{
		{Epoch: 1, DestructionHeld: true}, {Epoch: 2, Stamp: metastore.Stamp(time.Unix(0, 0).UnixMilli()), LeftBehind: []stele.NodeID{1}},
	}}, nil, nil)
	out.Reset()
	a.printRecovery(&out)
	require.Equal(t, "recovery epoch 2, plan "+strings.Repeat("0", 32)+" of 1970-01-01T00:00:00Z: left behind 1 node; 0 partitions went on from one replica, 0 lost; what was set aside is held: recover end-hold -epoch 1\n", out.String())
}
