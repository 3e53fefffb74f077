package raftlog_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stretchr/testify/require"
)

const (
	tick     = 50 * time.Millisecond
	election = 10 * tick
)

// network delivers frames between hosts after a latency, unless cut.
type network struct {
	mu      sync.Mutex
	hosts   map[raftlog.NodeID]*raftlog.Host
	cut     map[[2]raftlog.NodeID]bool // from, to
	latency time.Duration
}

func newNetwork() *network {
	return &network{
		hosts: map[raftlog.NodeID]*raftlog.Host{}, cut: map[[2]raftlog.NodeID]bool{}, latency: time.Millisecond,
	}
}

type sender struct {
	net  *network
	from raftlog.NodeID
}

func (s sender) Send(to raftlog.NodeID, _ uint8, frame []byte) {
	s.net.mu.Lock()
	defer s.net.mu.Unlock()
	if s.net.cut[[2]raftlog.NodeID{s.from, to}] {
		return
	}
	time.AfterFunc(s.net.latency, func() {
		s.net.mu.Lock()
		host, cut := s.net.hosts[to], s.net.cut[[2]raftlog.NodeID{s.from, to}]
		s.net.mu.Unlock()
		if host != nil && !cut {
			host.HandleFrame(s.from, frame)
		}
	})
}

// isolate cuts a node off, or connects it again.
func (n *network) isolate(id raftlog.NodeID, cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for other := range n.hosts {
		n.cut[[2]raftlog.NodeID{id, other}] = cut
		n.cut[[2]raftlog.NodeID{other, id}] = cut
	}
}

func (n *network) set(id raftlog.NodeID, h *raftlog.Host) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hosts[id] = h
}

// ledger is a state machine whose state is its log: a list of records, one per
// entry.
type ledger struct {
	mu      sync.Mutex
	records [][]byte
	last    raftlog.Index
	gate    chan struct{} // not nil: Apply waits until it is closed
	poison  []byte        // Apply panics when it meets it
	refuse  []byte        // Apply returns an error when it meets it
	curtain chan struct{} // not nil: Applied waits until it is closed
	shown   raftlog.Index // as of Applied
}

func (l *ledger) recover(log *storage.Log) error {
	for at := log.StartOffset(); at < log.NextOffset(); {
		r, err := log.ReadAt(at, 1<<20, nil)
		if err != nil {
			return err
		}
		for _, f := range r.Frames {
			if f.Count == 0 {
				continue
			}
			l.records = append(l.records, bytes.Clone(f.Payload))
			at = f.BaseOffset + raftlog.Offset(f.Count)
		}
	}
	l.last = log.Position().LastIndex
	return nil
}

func (l *ledger) Apply(entries []raftlog.Entry, results []raftlog.Result) error {
	l.mu.Lock()
	gate := l.gate
	l.mu.Unlock()
	if gate != nil {
		<-gate
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, e := range entries {
		if e.Index != l.last+1 {
			return fmt.Errorf("entry %d after %d", e.Index, l.last)
		}
		l.last = e.Index
		if len(e.Data) == 0 || e.Kind != storage.EntryNormal {
			continue
		}
		if l.poison != nil && bytes.Equal(e.Data, l.poison) {
			panic("poison")
		}
		if l.refuse != nil && bytes.Equal(e.Data, l.refuse) {
			return errors.New("refused to apply")
		}
		results[i] = raftlog.Result{
			Verdict: raftlog.VerdictData, BaseOffset: raftlog.Offset(len(l.records)), Count: 1,
			Value: len(l.records),
		}
		l.records = append(l.records, e.Data)
	}
	return nil
}

// close makes every later Apply wait for the gate.
func (l *ledger) close(gate chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gate = gate
}

func (l *ledger) Applied(last raftlog.Index) {
	l.mu.Lock()
	curtain := l.curtain
	l.mu.Unlock()
	if curtain != nil {
		<-curtain
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shown = last
}

// draw makes every later Applied wait for the curtain.
func (l *ledger) draw(curtain chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.curtain = curtain
}

func (l *ledger) showsUpTo() raftlog.Index {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.shown
}

func (l *ledger) snapshot() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]string, len(l.records))
	for i, r := range l.records {
		out[i] = string(r)
	}
	return out
}

type node struct {
	id      raftlog.NodeID
	disk    *simfs.FS
	store   *storage.Store
	host    *raftlog.Host // nil while it is stopped
	ledgers map[raftlog.GroupID]*ledger

	mu     sync.Mutex // groups is also read by load
	groups map[raftlog.GroupID]*raftlog.Group
}

func (n *node) group(g raftlog.GroupID) *raftlog.Group {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.groups[g]
}

func (n *node) setGroup(g raftlog.GroupID, group *raftlog.Group) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.groups == nil {
		n.groups = map[raftlog.GroupID]*raftlog.Group{}
	}
	n.groups[g] = group
}

// cluster is some hosts in one bubble, each group with a replica on each.
type cluster struct {
	t      testing.TB
	net    *network
	nodes  []*node
	groups []raftlog.GroupID
	config func(*raftlog.Config)
	ledger func(*ledger, *node, raftlog.GroupID)
}

func newCluster(t testing.TB, seed uint64, nodes, groups int) *cluster {
	c := &cluster{t: t, net: newNetwork()}
	for i := range nodes {
		c.nodes = append(c.nodes, &node{id: raftlog.NodeID(i + 1), disk: simfs.New(seed*100 + uint64(i))})
	}
	for i := range groups {
		c.groups = append(c.groups, raftlog.GroupID(i+1))
	}
	return c
}

// startCluster starts all nodes and waits for leaders.
func startCluster(t testing.TB, seed uint64, nodes, groups int) *cluster {
	c := newCluster(t, seed, nodes, groups)
	c.startAll()
	for _, g := range c.groups {
		c.leader(g)
	}
	return c
}

func replicaOf(g raftlog.GroupID, n raftlog.NodeID) raftlog.ReplicaID {
	return raftlog.ReplicaID(uint64(g)*100 + uint64(n))
}

func (c *cluster) options(n *node, g raftlog.GroupID, l *ledger) raftlog.GroupOptions {
	o := raftlog.GroupOptions{
		Group: g, Replica: replicaOf(g, n.id), Peers: map[raftlog.ReplicaID]raftlog.NodeID{},
		Machine: l, Recover: l.recover,
		Essential: func(data []byte) bool { return string(data) == "essential" },
	}
	var conf raftlog.ConfState
	for _, other := range c.nodes {
		conf.Voters = append(conf.Voters, replicaOf(g, other.id))
		o.Peers[replicaOf(g, other.id)] = other.id
	}
	o.Create = &raftlog.Begin{Dir: fmt.Sprintf("groups/%d", g), Index: 1, Term: 1, Conf: conf}
	return o
}

func (c *cluster) startAll() {
	for _, n := range c.nodes {
		require.NoError(c.t, c.start(n))
	}
}

// start opens a node on its disk.
func (c *cluster) start(n *node) error {
	store, err := storage.Open(storage.Config{
		FS: n.disk, Dir: path.Join("/node", fmt.Sprint(n.id)), JournalFileSize: 64 << 10, SegmentSize: 16 << 10,
	})
	if err != nil {
		return err
	}
	cfg := raftlog.Config{Node: n.id, Store: store, Sender: sender{c.net, n.id}, Tick: tick}
	if c.config != nil {
		c.config(&cfg)
	}
	host, err := raftlog.Open(cfg)
	if err != nil {
		return errors.Join(err, store.Close())
	}
	n.store, n.host = store, host
	n.ledgers = map[raftlog.GroupID]*ledger{}
	c.net.set(n.id, host)
	for _, g := range c.groups {
		l := &ledger{}
		if c.ledger != nil {
			c.ledger(l, n, g)
		}
		group, err := host.OpenGroup(c.options(n, g, l))
		if err != nil {
			return err
		}
		n.ledgers[g] = l
		n.setGroup(g, group)
	}
	return nil
}

// stop ends a node and its store as a crash would.
func (c *cluster) stop(n *node) {
	if n.host == nil {
		return
	}
	c.net.set(n.id, nil)
	n.host.Abort()
	_ = n.store.Close()
	n.host, n.store = nil, nil
}

func (c *cluster) stopAll() {
	for _, n := range c.nodes {
		c.stop(n)
	}
}

// crash loses what is not synced and leaves the node stopped.
func (c *cluster) crash(n *node, how simfs.Survival) {
	image := n.disk.Crash(how)
	if n.host != nil && n.host.Failed() != nil {
		require.ErrorIs(c.t, n.host.Failed(), simfs.ErrCrashed)
	}
	c.stop(n)
	n.disk = image
}

// leader waits until a running replica of g leads actively.
func (c *cluster) leader(g raftlog.GroupID) *node {
	for range 400 {
		for _, n := range c.nodes {
			if n.host != nil && n.groups[g] != nil && n.groups[g].Status().Role == raftlog.RoleLeaderActive {
				return n
			}
		}
		time.Sleep(tick / 5)
	}
	require.FailNow(c.t, "no leader", "group %v", g)
	return nil
}

// propose proposes on n and waits for the outcome.
func (n *node) propose(g raftlog.GroupID, data string) raftlog.Proposal {
	done := make(chan raftlog.Proposal, 1)
	n.groups[g].Propose([]byte(data), func(p raftlog.Proposal) { done <- p })
	return <-done
}

// must proposes at the leader until it is acknowledged.
func (c *cluster) must(g raftlog.GroupID, data string) raftlog.Proposal {
	for range 20 {
		p := c.leader(g).propose(g, data)
		if p.Err == nil {
			return p
		}
		require.Equal(c.t, raftlog.OutcomeRetry, raftlog.OutcomeOf(p.Err), "%v", p.Err)
		time.Sleep(tick)
	}
	require.FailNow(c.t, "never acknowledged", data)
	return raftlog.Proposal{}
}

// settle waits until all running replicas of g have applied the same.
func (c *cluster) settle(g raftlog.GroupID) []string {
	var got []string
	for range 400 {
		equal, want := true, raftlog.Index(0)
		for _, n := range c.nodes {
			if n.host == nil {
				continue
			}
			s := n.groups[g].Status()
			if want == 0 {
				want, got = s.Applied, n.ledgers[g].snapshot()
			}
			equal = equal && s.Applied == want && slices.Equal(got, n.ledgers[g].snapshot())
		}
		if equal {
			return got
		}
		time.Sleep(tick)
	}
	for _, n := range c.nodes {
		if n.host != nil {
			s := n.groups[g].Status()
			s.Progress = n.groups[g].Status().Progress
			c.t.Logf("%v: host failed: %v, %d records, status %+v, stats %+v", n.id, n.host.Failed(), len(n.ledgers[g].snapshot()), s, n.host.Stats())
		}
	}
	require.FailNow(c.t, "replicas do not agree", "group %v", g)
	return nil
}

func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

func withTimeout(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}
