package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// process is a node in a process of its own.
type process struct {
	t     *testing.T
	name  string
	http  string
	peers string
	join  []string // arguments in place of -peers
	word  string   // the command, "" for node
	dir   string
	cmd   *exec.Cmd
	log   *os.File
}

// startProcesses starts nodes a, b and c.
func startProcesses(t *testing.T) []*process {
	t.Helper()
	dir := t.TempDir()
	var nodes []*process
	var peers []string
	free := freeAddrs(t, 6)
	for i, name := range []string{"a", "b", "c"} {
		p := &process{t: t, name: name, http: free[2*i], dir: filepath.Join(dir, name)}
		peers = append(peers, fmt.Sprintf("%s=%s@%s", name, free[2*i+1], p.http))
		nodes = append(nodes, p)
	}
	for _, p := range nodes {
		p.peers = strings.Join(peers, ",")
		p.start()
	}
	for _, p := range nodes {
		p.waitReady()
	}
	return nodes
}

// freeAddr is an address that nobody listens on now.
func freeAddr(t *testing.T) string { return freeAddrs(t, 1)[0] }

// freeAddrs are several, all different.
func freeAddrs(t *testing.T, n int) (addrs []string) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		addrs = append(addrs, l.Addr().String())
	}
	return addrs
}

func (p *process) start() {
	p.t.Helper()
	program, err := os.Executable()
	require.NoError(p.t, err)
	p.log, err = os.OpenFile(p.dir+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(p.t, err)
	args := []string{cmp.Or(p.word, "node"), "-name", p.name, "-dir", p.dir}
	if p.join != nil {
		args = append(args, p.join...)
	} else {
		args = append(args, "-peers", p.peers)
	}
	p.cmd = exec.Command(program, args...)
	p.cmd.Env = append(os.Environ(), asProgram+"=1")
	p.cmd.Stderr = p.log
	require.NoError(p.t, p.cmd.Start())
	p.t.Cleanup(func() {
		if p.cmd.ProcessState == nil { // the test failed
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
		_ = p.log.Close()
		if p.t.Failed() {
			text, _ := os.ReadFile(p.log.Name())
			p.t.Logf("the log of %s:\n%s", p.name, text)
		}
	})
}

func (p *process) waitReady() { p.waitAnswer(`"code":"ready"`) }

// waitAnswer waits until the node says of itself what is wanted.
func (p *process) waitAnswer(want string) {
	p.t.Helper()
	var last string
	for range 600 {
		answer, err := http.Get("http://" + p.http + "/ready")
		if err != nil {
			last = err.Error()
		} else {
			text, _ := io.ReadAll(answer.Body)
			answer.Body.Close()
			last = string(text)
			if strings.Contains(last, want) {
				require.Equal(p.t, strings.Contains(last, `"code":"ready"`), answer.StatusCode == http.StatusOK)
				return
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	require.FailNow(p.t, "never "+want, "%s: %s", p.name, last)
}

// end sends a signal, waits, and returns the exit code.
func (p *process) end(s os.Signal) int {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(s))
	_ = p.cmd.Wait() // says what the exit code says
	return p.cmd.ProcessState.ExitCode()
}

// Three processes: one that is written through is killed in the middle, and
// nothing that was acknowledged is lost; then all are stopped, and have the same.
func TestThreeProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("real time: three processes, a crash")
	}
	defer http.DefaultClient.CloseIdleConnections()
	nodes := startProcesses(t)
	a, b, c := nodes[0], nodes[1], nodes[2]
	require.Equal(t, "created lines: 3 partitions on 3 nodes each\n", mustRun(t, "", "create", "-topic", "lines", "-http", b.http))
	require.Contains(t, mustRun(t, "", "topics", "-http", c.http), "lines  3           3         active")

	// A reader follows through another node from the beginning.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	followed, w := io.Pipe()
	var running sync.WaitGroup
	running.Go(func() {
		run(ctx, []string{"consume", "-topic", "lines", "-follow", "-http", c.http + "," + b.http}, console{nil, w, io.Discard})
		w.Close()
	})
	seen := bufio.NewScanner(followed)

	// Lines go through a, which is killed while they do, and then through b.
	const lines = 400
	in, feed := io.Pipe()
	var errs strings.Builder
	var code int
	running.Go(func() {
		code = run(t.Context(), []string{"produce", "-topic", "lines", "-partition", "1", "-at-least-once", "-http", a.http + "," + b.http}, console{in, io.Discard, &errs})
	})
	want := map[string]bool{}
	for i := range lines {
		line := fmt.Sprintf("line %d", i)
		want[line] = true
		_, err := fmt.Fprintln(feed, line)
		require.NoError(t, err)
		if i == lines/2 {
			require.Equal(t, -1, a.end(syscall.SIGKILL))
		}
	}
	require.NoError(t, feed.Close())
	for len(want) > 0 {
		require.True(t, seen.Scan(), "not there: %d lines", len(want))
		delete(want, seen.Text())
	}
	cancel()
	_, _ = io.Copy(io.Discard, followed)
	running.Wait()
	require.Zero(t, code, errs.String())

	status := mustRun(t, "", "status", "-http", b.http)
	require.Contains(t, status, "dial tcp "+a.http+": connect: connection refused")
	a.start()
	a.waitReady()
	for _, p := range nodes {
		p.waitFor(b)
	}
	status = mustRun(t, "", "status", "-http", c.http)
	require.NotContains(t, status, "refused")
	require.Contains(t, status, "leader")

	for _, p := range nodes {
		require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	}
	for _, p := range nodes {
		_ = p.cmd.Wait()
		require.Zero(t, p.cmd.ProcessState.ExitCode())
	}
	exit, all := inspectJSON(t, a.dir, b.dir, c.dir)
	require.Zero(t, exit)
	require.Len(t, all.Compared, 3)
	for _, c := range all.Compared {
		require.Equal(t, resultEqual, c.Result)
		require.True(t, c.even(), "%+v", c)
	}
	require.GreaterOrEqual(t, all.Compared[1].End, int64(lines))

	// Without majority there is no leader, and who waits is told.
	a.start()
	a.waitAnswer(`"code":"no-leader"`)
	answer, err := http.Post("http://"+a.http+"/topics/lines/records?partition=0&timeout=3s", "", strings.NewReader("x\n"))
	require.NoError(t, err)
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Contains(t, string(text), "retry 1 ")
	require.Contains(t, string(text), "has no leader in view of")
	require.Zero(t, a.end(syscall.SIGTERM))
}

// waitFor waits until a node has all that it and another one know of.
func (p *process) waitFor(other *process) {
	p.t.Helper()
	for range 200 {
		v := view{client: &client{addrs: []string{p.http, other.http}, timeout: time.Second, http: http.DefaultClient}, nodes: map[string]*nodeView{}}
		require.NoError(p.t, v.ask(p.t.Context()))
		even := v.node(p.name) != nil
		for _, g := range v.groups() {
			if r, holds := g.on[p.name]; holds {
				even = even && r.Readable && r.HighWatermark == g.watermark
			}
		}
		if even {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	require.FailNow(p.t, "behind", p.name)
}

// A node that cannot take part says why and ends; so does one that is told twice.
func TestProcessEnds(t *testing.T) {
	if testing.Short() {
		t.Skip("real time: processes")
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	p := &process{t: t, name: "a", http: freeAddr(t), dir: filepath.Join(t.TempDir(), "a")}
	p.peers = fmt.Sprintf("a=%s@%s", taken.Addr(), p.http)
	p.start()
	_ = p.cmd.Wait()
	require.Equal(t, exitFailed, p.cmd.ProcessState.ExitCode())
	text, err := os.ReadFile(p.log.Name())
	require.NoError(t, err)
	require.Contains(t, string(text), "address already in use")

	// Nobody else is up: it waits for them, and stops when it is told to.
	p.peers = fmt.Sprintf("a=%s@%s,b=%s", freeAddr(t), p.http, freeAddr(t))
	p.start()
	p.waitAnswer(`"code":"waiting-for-members"`)
	http.DefaultClient.CloseIdleConnections()
	require.Zero(t, p.end(os.Interrupt))
}
