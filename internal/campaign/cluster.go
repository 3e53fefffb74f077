//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// cluster is a number of nodes, each a process of examples/cluster. Some of them
// are members, by what the campaign did with them.
type cluster struct {
	binary string
	dir    string
	net    *network
	nodes  []*node
	http   *http.Client // for questions that are answered at once
}

func nodeName(i int) string { return string(rune('a' + i)) }

// newCluster has n initial members, and spare nodes that join when they are
// started.
func newCluster(binary, dir string, n, spare int, w *network) (*cluster, error) {
	ports, err := freePorts(2 * (n + spare))
	if err != nil {
		return nil, err
	}
	c := &cluster{binary: binary, dir: dir, net: w, http: &http.Client{Timeout: 3 * time.Second}}
	var peers, addrs []string
	for i := range n + spare {
		addrs = append(addrs, w.addr(i, 0, ports))
	}
	for i := range n {
		peers = append(peers, fmt.Sprintf("%s=%s@%s", nodeName(i), addrs[i], w.addr(i, 1, ports)))
	}
	for i := range n + spare {
		x := &node{name: nodeName(i), http: w.addr(i, 1, ports)}
		x.dir, x.log = filepath.Join(dir, x.name), filepath.Join(dir, x.name+".log")
		args := []string{binary, "node", "-name", x.name, "-dir", x.dir}
		x.joins = w.inside(i, append(args, "-join", strings.Join(addrs, ","), "-advertise", w.addr(i, 0, ports), "-http", x.http)...)
		x.command = x.joins
		if i < n {
			x.command = w.inside(i, append(args, "-peers", strings.Join(peers, ","))...)
			x.member.Store(true)
		}
		c.nodes = append(c.nodes, x)
	}
	return c, nil
}

// outsiders are the nodes that are no members, in order.
func (c *cluster) outsiders() (all []int) {
	for i, n := range c.nodes {
		if !n.member.Load() {
			all = append(all, i)
		}
	}
	return all
}

// members are the nodes that should serve, in order.
func (c *cluster) members() (all []int) {
	for i, n := range c.nodes {
		if n.member.Load() {
			all = append(all, i)
		}
	}
	return all
}

// after is the member that clients ask after a node.
func (c *cluster) after(node int) int {
	for i := range c.nodes {
		if at := (node + 1 + i) % len(c.nodes); c.nodes[at].member.Load() {
			return at
		}
	}
	return node
}

// freePorts finds ports of loopback that nobody has now.
func freePorts(n int) (ports []int, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// node is one process after the other over one directory.
type node struct {
	name, http, dir, log string
	command              []string
	joins                []string    // the command of one that joins a running cluster
	member               atomic.Bool // clients know it, and it should serve

	mu      sync.Mutex
	process *process // nil: it does not run
}

// process is one life of a node.
type process struct {
	*exec.Cmd
	ended chan struct{} // closed when it has, with its error
	err   error
}

// start starts the node if it does not run.
func (n *node) start() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.process != nil {
		return nil
	}
	log, err := os.OpenFile(n.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	p := &process{Cmd: exec.Command(n.command[0], n.command[1:]...), ended: make(chan struct{})}
	p.Stdout, p.Stderr = log, log
	p.SysProcAttr = childAttributes()
	if err := p.Start(); err != nil {
		return err
	}
	n.process = p
	go func() {
		p.err = p.Wait()
		close(p.ended)
	}()
	return nil
}

// take gives the running process away, if there is one.
func (n *node) take() *process {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.process
	n.process = nil
	return p
}

// kill ends it with SIGKILL, paused or not, and waits until it is gone.
func (n *node) kill() {
	if p := n.take(); p != nil {
		_ = p.Process.Kill() // it fails only if the process is gone
		<-p.ended
	}
}

func (n *node) signal(s syscall.Signal) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.process == nil {
		return fmt.Errorf("node %s does not run", n.name)
	}
	return n.process.Process.Signal(s)
}

func (n *node) pause() error  { return n.signal(syscall.SIGSTOP) }
func (n *node) resume() error { return n.signal(syscall.SIGCONT) }

// fallen returns why a node that nobody stopped does not run any more.
func (n *node) fallen() error {
	n.mu.Lock()
	p := n.process
	n.mu.Unlock()
	if p == nil {
		return nil
	}
	select {
	case <-p.ended:
		return fmt.Errorf("node %s ended by itself: %w; see %s", n.name, errors.Join(p.err, errors.New("its log has the reason")), n.log)
	default:
		return nil
	}
}

// stopBound is how long a stop in good order may take. The nodes' own limit
// (-stop-timeout, 10 s) makes it an abort before.
const stopBound = 20 * time.Second

// stop stops nodes in good order, all at the same time. One that does not end
// with status 0 is an error.
func (c *cluster) stop(nodes []int) error {
	errs := make([]error, len(nodes))
	var wg sync.WaitGroup
	for i, at := range nodes {
		wg.Go(func() { errs[i] = c.nodes[at].stop() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (n *node) stop() error {
	p := n.take()
	if p == nil {
		return nil
	}
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop node %s: %w", n.name, err)
	}
	select {
	case <-p.ended:
	case <-time.After(stopBound):
		_ = p.Process.Signal(syscall.SIGQUIT) // its goroutines go to the log
		<-p.ended
		return fmt.Errorf("node %s did not stop within %v; its goroutines are in %s", n.name, stopBound, n.log)
	}
	if p.err != nil {
		return fmt.Errorf("node %s was stopped: %w; see %s", n.name, p.err, n.log)
	}
	return nil
}

// exit waits until a process ends by itself, and returns its status.
func (n *node) exit(ctx context.Context) (int, error) {
	n.mu.Lock()
	p := n.process
	n.mu.Unlock()
	if p == nil {
		return 0, fmt.Errorf("node %s does not run", n.name)
	}
	select {
	case <-p.ended:
		n.take()
		return p.ProcessState.ExitCode(), nil
	case <-ctx.Done():
		return 0, fmt.Errorf("node %s still runs: %w", n.name, ctx.Err())
	}
}

// renew takes away all that a node that does not run has. It joins when it is
// started: whom it was founded with may be gone.
func (n *node) renew() error {
	n.command = n.joins
	return os.RemoveAll(n.dir)
}

// killAll ends everything.
func (c *cluster) killAll() {
	for _, n := range c.nodes {
		n.kill()
	}
}

// awaitReady waits until a node says that it is.
func (c *cluster) awaitReady(ctx context.Context, node int) error {
	last := errors.New("it was not asked")
	for {
		err := c.get(ctx, node, "/ready", nil)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		if wait(ctx, 20*time.Millisecond) != nil {
			return fmt.Errorf("node %s is not ready: %w", c.nodes[node].name, last)
		}
	}
}

// get asks a node.
func (c *cluster) get(ctx context.Context, node int, path string, v any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.nodes[node].http+path, nil)
	if err != nil {
		return err
	}
	answer, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	switch {
	case err != nil:
		return err
	case answer.StatusCode != http.StatusOK:
		return fmt.Errorf("%s: %s", answer.Status, body)
	case v == nil:
		return nil
	}
	return json.Unmarshal(body, v)
}

// busiest is the node that leads most groups, by what the nodes say; -1 if none
// answers.
func (c *cluster) busiest(ctx context.Context) int {
	led := map[string]int{}
	for _, i := range c.members() {
		var status struct {
			Groups []struct{ Leader string }
		}
		if c.get(ctx, i, "/status", &status) != nil {
			continue
		}
		for _, g := range status.Groups {
			led[g.Leader]++
		}
	}
	best := -1
	for i, n := range c.nodes {
		if led[n.name] > 0 && (best < 0 || led[n.name] > led[c.nodes[best].name]) {
			best = i
		}
	}
	return best
}

// inspect reads the directories of the stopped nodes, verifies every checksum
// and compares the replicas as far as the shorter ones go. Of each partition there
// must be so many replicas, of which a majority holds the records below ends.
func (c *cluster) inspect(ctx context.Context, topic string, replicas int, ends []int64) error {
	args := []string{"inspect", "-json"}
	for _, i := range c.members() {
		args = append(args, c.nodes[i].dir)
	}
	cmd := exec.CommandContext(ctx, c.binary, args...)
	var text strings.Builder
	cmd.Stderr = &text
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("inspect: %w: %s", err, text.String())
	}
	var found inspection
	if err := json.Unmarshal(out, &found); err != nil {
		return fmt.Errorf("inspect: %w", err)
	}
	return found.judge(topic, ends, replicas)
}

// inspection is what of the inspect command's answer is looked at.
type inspection struct {
	Damaged     bool
	Directories []struct {
		Groups []struct {
			Topic         string
			Partition     int
			SetAside      bool  `json:"set_aside"` // it moved away
			HighWatermark int64 `json:"high_watermark"`
			TailRecords   int64 `json:"tail_records"` // behind it, durable here
		}
	}
	Compared []struct {
		Topic     string
		Partition int
		Replicas  []struct{}
		Result    string
		Why       string
	}
}

func (in *inspection) judge(topic string, ends []int64, replicas int) error {
	if in.Damaged {
		return errors.New("inspect: damage, but exit status 0")
	}
	compared := 0
	for _, p := range in.Compared {
		if p.Topic != topic {
			continue
		}
		compared++
		if p.Result != "equal" || len(p.Replicas) != replicas {
			return fmt.Errorf("inspect: %s/%d: %d replicas: %s %s", p.Topic, p.Partition, len(p.Replicas), p.Result, p.Why)
		}
	}
	if compared != len(ends) {
		return fmt.Errorf("inspect: %d partitions were compared, want %d", compared, len(ends))
	}
	holders := make([]int, len(ends))
	for _, d := range in.Directories {
		for _, g := range d.Groups {
			if g.Topic == topic && !g.SetAside && g.HighWatermark+g.TailRecords >= ends[g.Partition] {
				holders[g.Partition]++
			}
		}
	}
	for p, n := range holders {
		if n <= replicas/2 {
			return fmt.Errorf("inspect: %s/%d: readers saw %d records, %d of %d replicas hold them", topic, p, ends[p], n, replicas)
		}
	}
	return nil
}

// wait waits, unless ctx ends.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
