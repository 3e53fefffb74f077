// Package testcluster runs whole nodes, unmodified, in one process and in
// virtual time: real Pebble and real journals on a crashable file system, the
// memory network between them, a testing/synctest bubble around all of it.
//
//	testcluster.Run(t, testcluster.Options{Nodes: 3, Seed: 7}, func(c *testcluster.Cluster) {
//		c.StartAll()
//		...
//		c.PowerLoss(0)     // un-synced bytes are lost, by seed
//		c.Start(0)
//	})
//
// Time passes only while everything in the bubble waits, so a minute of
// elections costs what its work costs. The order of goroutines is the
// scheduler's: a seed fixes the faults, not every interleaving.
package testcluster

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/internal/invariant"
	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/transport"
)

// Options describe a cluster. A zero field has its default.
type Options struct {
	Nodes  int    // default 3
	Seed   uint64 // of file systems and network
	Faults transport.Faults
	Logger *zap.Logger
	// Config changes the configuration of every node.
	Config func(*stele.Config)
	// Applied, if it is not nil, is told of each entry that a member is about to
	// apply, by goroutines of that node.
	Applied func(i int, group raftlog.GroupID, e *raftlog.Entry)
}

// Cluster is a set of nodes that a test starts and stops. Its methods are
// called by the test's goroutine alone, except Acked.
type Cluster struct {
	T    *testing.T
	Net  *transport.Network
	opts Options

	members []*Member
	peers   []stele.Peer
	begun   time.Time
	loads   []*Load // of all ledgers, ended or not
	history *history

	mu struct {
		sync.Mutex
		down map[int]bool // told nothing more since the moment of its image
	}
}

// Member is one place in the cluster: a directory that outlives its processes.
type Member struct {
	Name string
	Addr string
	FS   *simfs.FS
	node *stele.Node
	join []string // nil: an initial member

	history *history     // that its processes are held against
	off     atomic.Int64 // of its time of day
	damaged bool
}

// Dir is the data directory of every member, on its own file system.
const Dir = "data"

// Run runs f in a bubble. It ends whatever f leaves running.
func Run(t *testing.T, opts Options, f func(c *Cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		if opts.Nodes == 0 {
			opts.Nodes = 3
		}
		if opts.Faults == (transport.Faults{}) {
			opts.Faults = transport.Faults{MinLatency: 200 * time.Microsecond, MaxLatency: 2 * time.Millisecond}
		}
		c := &Cluster{T: t, Net: transport.NewNetwork(opts.Seed, clock.System()), opts: opts, history: newHistory(), begun: time.Now()}
		c.Net.SetFaults(opts.Faults)
		c.mu.down = map[int]bool{}
		for i := range opts.Nodes {
			m := c.add(i)
			c.peers = append(c.peers, stele.Peer{Name: m.Name, Addr: m.Addr})
		}
		defer func() {
			c.stopAll()
			for _, v := range c.Violations() {
				t.Errorf("seed %d: %s", opts.Seed, v)
			}
		}()
		f(c)
	})
}

func (c *Cluster) add(i int) *Member {
	m := &Member{Name: fmt.Sprintf("node-%d", i+1), Addr: fmt.Sprintf("host-%d:7942", i+1)}
	m.FS, m.history = simfs.New(c.opts.Seed*1_000_003+uint64(i)), c.history
	c.members = append(c.members, m)
	return m
}

// Add adds a member that joins the running cluster when it is started, asking at
// the addresses of those that are there now, and returns its number.
func (c *Cluster) Add() int {
	i := len(c.members)
	var join []string
	for _, m := range c.members {
		join = append(join, m.Addr)
	}
	c.add(i).join = join
	return i
}

func (c *Cluster) stopAll() {
	for i, m := range c.members {
		if m.node != nil {
			c.Kill(i)
		}
	}
	for _, l := range c.loads {
		l.Stop() // a test that failed left it
	}
}

// Size is the number of members.
func (c *Cluster) Size() int { return len(c.members) }

// Member returns member i, from 0.
func (c *Cluster) Member(i int) *Member { return c.members[i] }

// Node returns the running node of member i, or nil.
func (c *Cluster) Node(i int) *stele.Node { return c.members[i].node }

// Config is the configuration of member i, for its next start.
func (c *Cluster) Config(i int) stele.Config {
	m := c.members[i]
	cfg := stele.Config{
		Cluster: "test", Name: m.Name, Dir: Dir, InitialMembers: c.peers,
		Transport: c.Net.Transport(m.Addr), FS: m.FS, Logger: c.opts.Logger,
		JournalBytes: 64 << 10, SegmentBytes: 64 << 10,
	}
	if m.join != nil {
		cfg.InitialMembers, cfg.Join = nil, m.join
	}
	if c.opts.Config != nil {
		c.opts.Config(&cfg)
	}
	return cfg
}

// StartWith starts member i with a configuration that is changed for this start.
func (c *Cluster) StartWith(i int, change func(*stele.Config)) {
	c.T.Helper()
	cfg := c.Config(i)
	change(&cfg)
	require.NoError(c.T, c.open(i, cfg), "start of %s", c.members[i].Name)
}

// Open starts member i and returns Open's error.
func (c *Cluster) Open(i int) error { return c.open(i, c.Config(i)) }

func (c *Cluster) open(i int, cfg stele.Config) error {
	c.mu.Lock()
	delete(c.mu.down, i)
	c.mu.Unlock()
	node, err := stele.Open(invariant.With(c.T.Context(), c.watch(i)), cfg)
	if err != nil {
		return err
	}
	c.members[i].node = node
	return nil
}

// Start starts member i.
func (c *Cluster) Start(i int) {
	c.T.Helper()
	require.NoError(c.T, c.Open(i), "start of %s", c.members[i].Name)
}

// StartAll starts every member that does not run and waits until all are ready.
func (c *Cluster) StartAll() {
	c.T.Helper()
	for i, m := range c.members {
		if m.node == nil {
			c.Start(i)
		}
	}
	c.WaitReady()
}

// WaitReady waits until every running member is ready, a minute at most.
func (c *Cluster) WaitReady() {
	c.T.Helper()
	c.WaitReadyBut()
}

// WaitReadyBut is WaitReady for all but some.
func (c *Cluster) WaitReadyBut(some ...int) {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(c.T.Context(), time.Minute)
	defer cancel()
	for i, m := range c.members {
		if m.node != nil && !slices.Contains(some, i) {
			require.NoError(c.T, m.node.WaitReady(ctx), m.Name)
		}
	}
}

// Acked counts an acknowledgement that a client got through member i: it calls
// f unless the member was taken down meanwhile. An answer that comes out of a
// process after the moment whose disk image survives proves nothing.
func (c *Cluster) Acked(i int, f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.mu.down[i] {
		f()
	}
}

// Violations returns what members did that no cluster may do: see history. Run
// fails a test for them; this is for one that would rather know at once.
func (c *Cluster) Violations() (all []string) {
	held := []*history{c.history}
	for _, m := range c.members {
		if !slices.Contains(held, m.history) {
			held = append(held, m.history)
		}
	}
	for _, h := range held {
		all = append(all, h.violations()...)
	}
	return all
}

// Damaged says that the test has damaged the metadata of a member, which does not
// run: they are not held against those of the others any more.
func (c *Cluster) Damaged(i int) { c.members[i].damaged = true }

// Recovered says that a forced recovery left these members, which do not run, and
// no others: they, and who joins them, begin another history. The others go on
// with theirs.
func (c *Cluster) Recovered(left ...int) {
	c.history = newHistory()
	for _, i := range left {
		c.members[i].history = c.history
	}
}

// Conf returns the newest configuration that any member applied of a raft group.
func (c *Cluster) Conf(group raftlog.GroupID) raftlog.ConfState {
	c.history.mu.Lock()
	defer c.history.mu.Unlock()
	if g := c.history.groups[group]; g != nil && len(g.confs) > 0 {
		return g.confs[len(g.confs)-1].conf
	}
	return raftlog.ConfState{}
}

// Began reports whether a replica of a raft group ever ran.
func (c *Cluster) Began(group raftlog.GroupID, replica raftlog.ReplicaID) bool {
	c.history.mu.Lock()
	defer c.history.mu.Unlock()
	g := c.history.groups[group]
	return g != nil && g.began[replica]
}

// takeDown fences member i: from now on nobody hears of it.
func (c *Cluster) takeDown(i int) {
	c.mu.Lock()
	c.mu.down[i] = true
	c.mu.Unlock()
	for _, p := range c.members {
		c.Net.Cut(c.members[i].Addr, p.Addr)
	}
}

// end stops the process of member i and gives it the disk for its next start.
func (c *Cluster) end(i int, disk *simfs.FS) {
	m := c.members[i]
	m.node.Abort()
	m.node, m.FS = nil, disk
	for _, p := range c.members {
		c.Net.Heal(m.Addr, p.Addr)
	}
}

// Kill ends the process of member i at once; its machine stays up, so un-synced
// bytes are still in the page cache, and still not durable.
func (c *Cluster) Kill(i int) {
	c.takeDown(i)
	c.end(i, c.members[i].FS.Image(simfs.Kill))
}

// PowerLoss ends member i at once and loses un-synced bytes as the seed draws.
func (c *Cluster) PowerLoss(i int) {
	c.takeDown(i)
	c.end(i, c.members[i].FS.Image(simfs.Random))
}

// PowerLossAll does that to all running members at one moment.
func (c *Cluster) PowerLossAll() {
	disks := map[int]*simfs.FS{}
	for i, m := range c.members {
		if m.node != nil {
			c.takeDown(i)
		}
	}
	for i, m := range c.members {
		if m.node != nil {
			disks[i] = m.FS.Image(simfs.Random)
		}
	}
	for i, disk := range disks {
		c.end(i, disk)
	}
}

// Close ends member i in good order.
func (c *Cluster) Close(i int) {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(c.T, c.members[i].node.Close(ctx))
	c.members[i].node = nil
}

// MoveTo gives member i, which must be down, another address. Those that list it
// as an initial member read that when they are started again.
func (c *Cluster) MoveTo(i int, addr string) {
	m := c.members[i]
	c.peers = slices.Clone(c.peers)
	for k := range c.peers {
		if c.peers[k].Name == m.Name {
			c.peers[k].Addr = addr
		}
	}
	m.Addr = addr
}

// Tell gives member i, which must be down and no initial member, the addresses of
// the others as they are now, to ask there when it is started: what a person does
// when all those that it was told first are gone.
func (c *Cluster) Tell(i int) {
	var join []string
	for j, m := range c.members {
		if j != i {
			join = append(join, m.Addr)
		}
	}
	c.members[i].join = join
}

// Wipe gives member i, which must be down, an empty disk.
func (c *Cluster) Wipe(i int) {
	c.opts.Seed++
	c.members[i].FS = simfs.New(c.opts.Seed * 7_919)
}

// Isolate cuts member i from all others, in both directions.
func (c *Cluster) Isolate(i int) {
	for j, m := range c.members {
		if j != i {
			c.Net.Cut(c.members[i].Addr, m.Addr)
			c.Net.Cut(m.Addr, c.members[i].Addr)
		}
	}
}

// Rejoin ends Isolate.
func (c *Cluster) Rejoin(i int) {
	for j, m := range c.members {
		if j != i {
			c.Net.Heal(c.members[i].Addr, m.Addr)
			c.Net.Heal(m.Addr, c.members[i].Addr)
		}
	}
}

// Eventually waits in virtual time until cond holds, two minutes at most.
func (c *Cluster) Eventually(cond func() bool, what string) {
	c.T.Helper()
	c.within(2*time.Minute, 20*time.Millisecond, cond, what)
}

// EventuallyLong is Eventually for what takes up to twenty minutes.
func (c *Cluster) EventuallyLong(cond func() bool, what string) {
	c.T.Helper()
	c.within(20*time.Minute, time.Second, cond, what)
}

func (c *Cluster) within(d, every time.Duration, cond func() bool, what string) {
	c.T.Helper()
	deadline := time.Now().Add(d)
	for !cond() {
		require.True(c.T, time.Now().Before(deadline), "seed %d: not within %v: %s", c.opts.Seed, d, what)
		c.Sleep(every)
	}
}

// Sleep lets virtual time pass.
func (c *Cluster) Sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	<-timer.C
}

// MetadataLeader returns the running member that leads the metadata, or -1.
func (c *Cluster) MetadataLeader() int {
	for i, m := range c.members {
		if m.node != nil && m.node.Status().Metadata.Role.IsLeader() {
			return i
		}
	}
	return -1
}
