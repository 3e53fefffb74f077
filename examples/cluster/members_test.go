package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/storage"
)

// What members prints of a cluster in which everything goes on at once.
func TestMembersTable(t *testing.T) {
	now := time.UnixMilli(1_000_000_000)
	member := func(id stele.NodeID, name string, seat stele.Seat, l stele.Liveness) stele.Member {
		l.Stamp = metastore.Stamp(now.Add(-90 * time.Second).UnixMilli())
		return stele.Member{Seat: seat, Member: metastore.Member{Node: id, Name: name, Addr: name + ":1", Liveness: l}}
	}
	on := func(nodes ...stele.NodeID) (all []metastore.Assignment) {
		for _, n := range nodes {
			all = append(all, metastore.Assignment{Node: n, Replica: 10 + storage.ReplicaID(n)})
		}
		return all
	}
	p := metastore.Partition{Index: 3, Replicas: on(1, 2), Target: &metastore.Target{Add: metastore.Assignment{Node: 4, Replica: 99}, Remove: 12}}
	leaving := []stele.Progress{
		{Node: 2, Step: stele.StepMove, Reason: "1 partition replicas are to be moved", Blocked: []stele.Block{{Code: stele.BlockVoters, Reason: "add a node"}}},
		{Node: 5, Step: stele.StepBacklog, Reason: "it is dead", Blocked: []stele.Block{{Code: stele.BlockDead, Reason: "it is dead"}}},
	}
	a := describeMembers(stele.Cluster{Leader: 1, Strays: []stele.ReplicaID{77}, Members: []stele.Member{
		member(1, "a", stele.SeatVoter, stele.Liveness{}),
		member(2, "b", stele.SeatVoter, stele.Liveness{Departure: stele.Drains}),
		member(3, "c", stele.SeatVoter, stele.Liveness{Dead: true}),
		member(4, "d", stele.SeatLearner, stele.Liveness{Observer: true}),
		member(5, "e", stele.SeatNone, stele.Liveness{Dead: true, Departure: stele.DrainsForced}),
		member(6, "c", stele.SeatLearner, stele.Liveness{Replaces: 3}),
	}}, []stele.Topic{{Name: "lines", Partitions: []metastore.Partition{{Index: 0, Replicas: on(1, 9)}, p}}}, leaving)
	var out bytes.Buffer
	require.NoError(t, a.print(&out, now))
	require.Equal(t, strings.TrimPrefix(`
NAME  ID  SEAT               STATE                 HEARD      ADDRESS  REPLICAS  MOVES
a     1   voter, leads       alive                 1m30s ago  a:1      2         -
b     2   voter              drains                1m30s ago  b:1      1         1 out
c     3   voter              dead, replaced by 6   1m30s ago  c:1      0         -
d     4   learner, observer  alive                 1m30s ago  d:1      0         1 in
e     5   none               dead, drains, forced  1m30s ago  e:1      0         -
c     6   learner            alive                 1m30s ago  c:1      0         -
lines/3 is on its way to d, instead of b
b leaves; next: move its partitions: 1 partition replicas are to be moved
b waits to leave: add a node
e leaves; next: deliver its backlog
e waits to leave: it is dead
replica 77 is in the metadata's group, and no member is it: forget -replica 77
`, "\n"), out.String())
}

// addNode is a node that joins a running cluster.
func addNode(t *testing.T, name, dir string, at ...string) *process {
	free := freeAddrs(t, 2)
	p := &process{t: t, name: name, http: free[0], dir: filepath.Join(dir, name)}
	p.join = []string{"-join", strings.Join(at, ","), "-advertise", free[1], "-http", p.http}
	return p
}

// membersOf is what a node says of the cluster.
func membersOf(t *testing.T, web string) (all clusterAnswer) {
	t.Helper()
	answer, err := http.Get("http://" + web + "/members")
	require.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	if answer.StatusCode == http.StatusOK {
		require.NoError(t, json.Unmarshal(text, &all))
	}
	return all
}

// waitMember waits until a member is as it should be, as a node knows it.
func waitMember(t *testing.T, web, name string, want func(memberInfo) bool) memberInfo {
	t.Helper()
	var last memberInfo
	for range 600 {
		for _, m := range membersOf(t, web).Members {
			if m.Name == name {
				last = m
			}
		}
		if want(last) {
			return last
		}
		time.Sleep(50 * time.Millisecond)
	}
	require.FailNow(t, "never", "%+v", last)
	return last
}

// peerAddr is the address at which the others reach an initial member.
func (p *process) peerAddr() string {
	_, rest, _ := strings.Cut(p.peers, p.name+"=")
	addr, _, _ := strings.Cut(rest, "@")
	return addr
}

// A fourth process joins three, while lines are produced: it becomes a voter, gets
// replicas of new topics, and serves; killed, it comes back as itself; then it is
// taken out again. Nothing that was acknowledged is lost.
func TestFourthProcess(t *testing.T) {
	if testing.Short() {
		t.Skip("real time: four processes, a crash")
	}
	defer http.DefaultClient.CloseIdleConnections()
	nodes := startProcesses(t)
	a, b := nodes[0], nodes[1]
	mustRun(t, "", "create", "-topic", "lines", "-http", b.http)

	in, feed := io.Pipe()
	var errs strings.Builder
	var code int
	var running sync.WaitGroup
	running.Go(func() {
		code = run(t.Context(), []string{"produce", "-topic", "lines", "-http", a.http + "," + b.http}, console{in, io.Discard, &errs})
	})
	lines := 0
	write := func(n int) {
		for range n {
			_, err := fmt.Fprintf(feed, "line %d\n", lines)
			require.NoError(t, err)
			lines++
		}
	}
	write(100)
	d := addNode(t, "d", filepath.Dir(a.dir), a.peerAddr(), b.peerAddr())
	d.word = "join"
	d.start()
	write(100)
	d.waitReady()
	write(100)
	m := waitMember(t, a.http, "d", func(m memberInfo) bool { return m.Seat == "voter" })
	require.Equal(t, "alive", m.State)
	write(100)
	require.NoError(t, feed.Close())
	running.Wait()
	require.Zero(t, code, errs.String())

	mustRun(t, "", "create", "-topic", "wide", "-partitions", "8", "-http", d.http)
	require.Positive(t, waitMember(t, a.http, "d", func(m memberInfo) bool { return m.Replicas > 0 }).Replicas)
	var more strings.Builder
	for i := range 100 {
		fmt.Fprintf(&more, "key %d=%d\n", i, i)
	}
	mustRun(t, more.String(), "produce", "-topic", "wide", "-key-separator", "=", "-http", d.http)
	require.Regexp(t, `(?m)^NAME +ID +SEAT .*\n(.*\n)*d +4 +voter.* +alive +(-|\d+s ago) +127\.0\.0\.1:\d+ +[1-9]`, mustRun(t, "", "members", "-http", d.http))
	require.Contains(t, mustRun(t, "", "status", "-http", a.http), "its HTTP address is not known: give it in -http")
	require.NotContains(t, mustRun(t, "", "status", "-http", a.http+","+d.http), "not known")

	require.Equal(t, -1, d.end(syscall.SIGKILL))
	d.start()
	d.waitReady()
	require.Equal(t, m.ID, waitMember(t, d.http, "d", func(m memberInfo) bool { return m.Seat == "voter" }).ID)
	check := func(web string) {
		require.Equal(t, lines, strings.Count(mustRun(t, "", "consume", "-topic", "lines", "-http", web), "\n"))
		require.Equal(t, 100, strings.Count(mustRun(t, "", "consume", "-topic", "wide", "-http", web), "\n"))
	}
	check(d.http)

	// Its replicas move to the others, and it leaves.
	out := mustRun(t, "", "decommission", "-name", "d", "-wait", "-http", b.http+","+a.http)
	require.Regexp(t, `^d drains; partitions still to move: \d+\n(d .*\n)*d is out\n$`, out)
	require.Contains(t, []int{-1, exitGone}, d.end(syscall.SIGKILL), "it finds out in a moment, if it was not killed before")
	d.start() // it finds out again
	_ = d.cmd.Wait()
	require.Equal(t, exitGone, d.cmd.ProcessState.ExitCode())
	require.NotContains(t, mustRun(t, "", "members", "-http", a.http), "\nd ")
	check(b.http)

	// Of the three that are left none can go; one that is to wait is taken back.
	require.Contains(t, mustRun(t, "", "decommission", "-name", "c", "-when-possible", "-http", b.http), "c drains; ")
	waits := `(?m)^c leaves; next: .*\n(c waits to leave: .*\n)*c waits to leave: .*add a node`
	require.Regexp(t, waits, mustRun(t, "", "members", "-http", b.http))
	require.Regexp(t, waits, mustRun(t, "", "status", "-http", b.http))
	require.Equal(t, "drains", waitMember(t, a.http, "c", func(m memberInfo) bool { return m.Departure != "" }).Departure)
	require.Equal(t, "c stays\n", mustRun(t, "", "decommission", "-name", "c", "-cancel", "-http", a.http))
	require.Equal(t, "alive", waitMember(t, b.http, "c", func(m memberInfo) bool { return m.Departure == "" }).State)
	require.NotContains(t, mustRun(t, "", "status", "-http", a.http), "leave")
	check(nodes[2].http)
	for _, p := range nodes {
		p.waitFor(a)
	}
	for _, p := range nodes {
		require.Zero(t, p.end(syscall.SIGTERM))
	}
	exit, all := inspectJSON(t, a.dir, b.dir, nodes[2].dir, d.dir)
	require.Zero(t, exit)
	require.Contains(t, all.summary(), "11 of 11 partitions are equal")
	for _, dir := range all.Directories {
		for _, g := range dir.Groups {
			require.True(t, g.SetAside || g.Topic == "" || len(g.Segments) > 0, "%s: %+v", dir.Dir, g)
		}
	}
}

// A node that nobody takes in says so, and ends when it is told to.
func TestJoinsNobody(t *testing.T) {
	if testing.Short() {
		t.Skip("real time: a process")
	}
	defer http.DefaultClient.CloseIdleConnections()
	p := addNode(t, "d", t.TempDir(), freeAddr(t))
	p.start()
	p.waitAnswer(`"code":"joining"`)
	require.Zero(t, p.end(os.Interrupt))
}

// The routes of members, on a cluster that nobody can leave.
func TestMembersAPI(t *testing.T) {
	l := startLone(t)
	l.waitVersion(t)
	for _, c := range []struct {
		request string
		status  int
		want    string
	}{
		{"GET /members", 200, `"name":"a","id":1,"seat":"voter","state":"alive"`},
		{"POST /members/z/decommission", 404, `no member is called \"z\"`},
		{"DELETE /members/z/decommission", 404, `no member is called \"z\"`},
		{"DELETE /members/a/decommission", 200, `{"name":"a","id":1,"departure":"stays","replicas":0,"done":false}`},
		{"POST /members/a/decommission?forced=1", 400, `unknown parameter \"forced\"`},
		{"GET /members/a/decommission", 200, `"blocked":[{"code":"last-voter","reason":"it is the last voter: add a node"}]`},
		{"POST /members/a/decommission", 409, `it is the last voter: add a node`},
		{"POST /members/a/promote", 200, `a has a vote`},
		{"POST /members/z/promote", 404, `no member is called \"z\"`},
		{"DELETE /strays/1", 400, `it is the member`},
		{"DELETE /strays/none", 400, `want a number`},
		{"DELETE /recoveries/0/hold", 400, `want a number above 0`},
		{"DELETE /recoveries/1/hold", 400, `the recovery epoch of the cluster`},
		{"POST /metadata/leader?to=a", 200, `a leads the metadata`},
		{"POST /topics/none/leader?to=a", 404, `none`},
	} {
		method, path, _ := strings.Cut(c.request, " ")
		status, text := l.do(t, method, path, "")
		require.Equal(t, c.status, status, "%s: %s", c.request, text)
		require.Contains(t, text, c.want, c.request)
	}
	web := strings.TrimPrefix(l.url, "http://")
	require.Equal(t, "a stays\n", mustRun(t, "", "decommission", "-name", "a", "-cancel", "-http", web))
	require.Contains(t, mustRun(t, "", "members", "-http", web), "voter, leads")
	var all clusterAnswer
	require.NoError(t, json.Unmarshal([]byte(mustRun(t, "", "members", "-json", "-http", web)), &all))
	require.Equal(t, membersOf(t, web).Members[0].ID, all.Members[0].ID)
	code, _, errs := runHere(t.Context(), nil, "forget", "-replica", "1", "-http", web)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "it is the member")
	require.Equal(t, "a has a vote\n", mustRun(t, "", "promote", "-name", "a", "-http", web))
	require.Equal(t, "a leads the metadata\n", mustRun(t, "", "transfer", "-to", "a", "-http", web))
	mustRun(t, "", "create", "-topic", "lines", "-http", web)
	require.Equal(t, "a leads lines/0\n", mustRun(t, "", "transfer", "-to", "a", "-topic", "lines", "-http", web))
	code, out, errs := runHere(t.Context(), nil, "decommission", "-name", "a", "-plan", "-http", web)
	require.Equal(t, exitBlocks, code, errs)
	require.Contains(t, out, "in the way: ")
	require.Contains(t, errs, "a cannot leave as things are")
	require.Contains(t, mustRun(t, "", "decommission", "-name", "a", "-plan", "-when-possible", "-http", web), "in the way: ")
}

// Forget asks for the replica that it is given, and says what came of it. Only a fake
// has one: see TestAStrayIsForgotten of the root package for a real one.
func TestForget(t *testing.T) {
	var asked string
	node, _ := fake(t, func(w http.ResponseWriter, r *http.Request) {
		asked = r.Method + " " + r.URL.Path
		order(func(context.Context, *http.Request, *params) (string, error) { return "it is out", nil })(w, r)
	})
	require.Equal(t, "it is out\n", mustRun(t, "", "forget", "-replica", "77", "-http", node))
	require.Equal(t, "DELETE /strays/77", asked)
}
