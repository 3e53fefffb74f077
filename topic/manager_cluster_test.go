package topic_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

// cluster is nodes with real raft, journals, databases and managers, on
// simulated disks and a network that takes a millisecond, in virtual time.
type cluster struct {
	t       *testing.T
	genesis metastore.Genesis
	config  func(*topic.Config)
	segment int64 // size of segments; 0: 256 KiB

	mu    sync.Mutex
	rng   *rand.Rand
	nodes map[raftlog.NodeID]*node // running
	disks map[raftlog.NodeID]*simfs.FS
	cut   map[raftlog.NodeID]bool
	// loss makes calls end unknown: before they arrive or after they were
	// served, each with this probability.
	loss float64
	// meet, if not nil, sees every call that arrives; an error refuses it.
	meet func(from, to raftlog.NodeID, method string) error
	// flow, if not nil, sees what streams bring to a node, and may change it; an
	// error breaks one.
	flow func(to, from raftlog.NodeID, b []byte) error
	// speak, if not nil, is given what a node answers in a stream.
	speak   func(from, to raftlog.NodeID, w io.Writer) io.Writer
	streams []stream
}

type node struct {
	cluster *cluster
	id      raftlog.NodeID
	store   *storage.Store
	host    *raftlog.Host
	meta    *metastore.Store
	topics  *topic.Manager
}

func newCluster(t *testing.T, n int, seed uint64) *cluster {
	c := &cluster{
		t: t, nodes: map[raftlog.NodeID]*node{}, disks: map[raftlog.NodeID]*simfs.FS{}, cut: map[raftlog.NodeID]bool{},
		rng: rand.New(rand.NewPCG(seed, 7)),
	}
	c.genesis.ClusterID = raftlog.ClusterID{1}
	for i := 1; i <= n; i++ {
		id := raftlog.NodeID(i)
		c.genesis.Members = append(c.genesis.Members, metastore.Member{
			Node: id, Replica: raftlog.ReplicaID(i), Name: fmt.Sprint("node-", i), Nonce: raftlog.Nonce{byte(i)}, Addr: fmt.Sprint("node-", i, ":1"),
		})
		c.disks[id] = simfs.New(seed*100 + uint64(i))
	}
	t.Cleanup(func() {
		for id := range c.disks {
			c.crash(id, simfs.Kill)
		}
	})
	return c
}

// startCluster starts n nodes.
func startCluster(t *testing.T, n int, seed uint64) *cluster {
	c := newCluster(t, n, seed)
	c.startAll()
	return c
}

func (c *cluster) startAll() {
	for id := raftlog.NodeID(1); int(id) <= len(c.disks); id++ {
		if c.node(id) == nil {
			c.start(id)
		}
	}
}

func (c *cluster) start(id raftlog.NodeID) *node {
	c.t.Helper()
	fs := c.disks[id]
	store, err := storage.Open(storage.Config{FS: fs, Dir: "data", Name: fmt.Sprint("node-", id), Cluster: "test", JournalFileSize: 256 << 10, SegmentSize: cmp.Or(c.segment, 256<<10)})
	require.NoError(c.t, err)
	if self := store.Identity(); self.Node == 0 { // a proof is of a cluster
		self.ClusterID, self.Node = c.genesis.ClusterID, id
		require.NoError(c.t, store.SetIdentity(self))
	}
	n := &node{cluster: c, id: id, store: store}
	n.host, err = raftlog.Open(raftlog.Config{Node: id, Store: store, Sender: n})
	require.NoError(c.t, err)
	require.NoError(c.t, fs.MkdirAll("data/meta", 0o755))
	n.meta, err = metastore.Open(c.t.Context(), metastore.Config{
		Host: n.host, FS: fs, Dir: "data/meta/db", Node: id, Replica: raftlog.ReplicaID(id), Genesis: c.genesis, Caller: n,
	})
	require.NoError(c.t, err)
	cfg := topic.Config{Meta: n.meta, Host: n.host, Store: store, Node: id, Caller: n, Streamer: n}
	if c.config != nil {
		c.config(&cfg)
	}
	n.topics, err = topic.Open(cfg)
	require.NoError(c.t, err)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes[id] = n
	return n
}

func (c *cluster) node(id raftlog.NodeID) *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[id]
}

// running returns the nodes that run.
func (c *cluster) running() (all []*node) {
	for id := raftlog.NodeID(1); int(id) <= len(c.disks); id++ {
		if n := c.node(id); n != nil {
			all = append(all, n)
		}
	}
	return all
}

// crash stops a node without warning; its disk is as survival leaves it.
func (c *cluster) crash(id raftlog.NodeID, survival simfs.Survival) {
	c.crashAll(survival, id)
}

// crashAll stops nodes at the same instant.
func (c *cluster) crashAll(survival simfs.Survival, ids ...raftlog.NodeID) {
	var gone []*node
	c.mu.Lock()
	for _, id := range ids {
		if n := c.nodes[id]; n != nil {
			gone = append(gone, n)
			delete(c.nodes, id)
		}
	}
	images := map[raftlog.NodeID]*simfs.FS{}
	for _, n := range gone {
		images[n.id] = c.disks[n.id].Image(survival)
	}
	c.mu.Unlock()
	c.breakStreams(ids)
	for _, n := range gone {
		n.host.Abort()
		require.NoError(c.t, n.topics.Close())
		require.NoError(c.t, n.meta.Close())
		require.NoError(c.t, n.store.Close())
		c.disks[n.id] = images[n.id]
	}
}

// isolate cuts a node off, or joins it again.
func (c *cluster) isolate(id raftlog.NodeID, cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut[id] = cut
}

func (c *cluster) connected(a, b raftlog.NodeID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.cut[a] && !c.cut[b]
}

func (c *cluster) loses() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rng.Float64() < c.loss
}

// Send is the node's raftlog.Sender.
func (n *node) Send(to raftlog.NodeID, _ uint8, frame []byte) {
	clock.System().AfterFunc(time.Millisecond, func() {
		target := n.cluster.node(to)
		if target != nil && n.cluster.node(n.id) == n && n.cluster.connected(n.id, to) {
			target.host.HandleFrame(n.id, frame)
		}
	})
}

// Call is the node's way to other nodes.
func (n *node) Call(ctx context.Context, to raftlog.NodeID, method string, request []byte) ([]byte, error) {
	c := n.cluster
	travel(ctx)
	target := c.node(to)
	if target == nil {
		return nil, raftlog.Retry(errors.New("it cannot be reached"))
	}
	if !c.connected(n.id, to) || c.loses() {
		<-ctx.Done()
		return nil, raftlog.UnknownCause(ctx)
	}
	c.mu.Lock()
	meet := c.meet
	c.mu.Unlock()
	if meet != nil {
		if err := meet(n.id, to, method); err != nil {
			return nil, err
		}
	}
	var response []byte
	var err error
	if strings.HasPrefix(method, "topic.") {
		response, err = target.topics.HandleCall(ctx, n.id, method, request)
	} else {
		response, err = target.meta.HandleCall(ctx, n.id, method, request)
	}
	if c.node(to) != target {
		return nil, raftlog.Unknown(errors.New("the connection broke"))
	}
	if !c.connected(n.id, to) || c.loses() {
		<-ctx.Done()
		return nil, raftlog.UnknownCause(ctx)
	}
	if travel(ctx); ctx.Err() != nil {
		return nil, raftlog.UnknownCause(ctx)
	}
	return response, err
}

// travel takes as long as a way through the network.
func travel(ctx context.Context) {
	timer := clock.System().NewTimer(time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-ctx.Done():
	}
}

func pass(d time.Duration) { <-clock.System().NewTimer(d).C() }

// create creates a topic, from whatever node can.
func (c *cluster) create(name string, partitions uint32) metastore.Topic {
	c.t.Helper()
	t, err := c.running()[0].topics.CreateTopic(c.t.Context(), name, metastore.TopicConfig{Partitions: partitions})
	require.NoError(c.t, err)
	return t
}

// leader waits for a leader of a partition and returns its node.
func (c *cluster) leader(name string, partition uint32) *node {
	c.t.Helper()
	for range 400 {
		for _, n := range c.running() {
			for _, s := range n.topics.Status() {
				if s.Topic == name && s.Partition == partition && s.Role == raftlog.RoleLeaderActive {
					return n
				}
			}
		}
		pass(25 * time.Millisecond)
	}
	require.FailNow(c.t, "no leader", "%s/%d", name, partition)
	return nil
}

// dump reads a whole partition through a node.
func (n *node) dump(name string, partition uint32) (values []string) {
	t := n.cluster.t
	t.Helper()
	r, err := n.topics.NewReader(t.Context(), topic.TopicPartition{Topic: name, Partition: partition}, topic.FromEnd())
	require.NoError(t, err)
	end := r.Offset()
	r.Close()
	if r, err = n.topics.NewReader(t.Context(), topic.TopicPartition{Topic: name, Partition: partition}, topic.FromStart()); err != nil {
		require.NoError(t, err)
	}
	defer r.Close()
	if r.Offset() == end {
		return nil
	}
	for record, err := range r.Records(t.Context()) {
		require.NoError(t, err)
		require.Equal(t, storage.Offset(len(values)), record.Offset)
		values = append(values, string(record.Value))
		if record.Offset+1 == end {
			break
		}
	}
	return values
}

func producer(t *testing.T, n *node, cfg topic.ProducerConfig) *topic.Producer {
	t.Helper()
	p, err := n.topics.NewProducer(cfg)
	require.NoError(t, err)
	return p
}

func record(value string) topic.Record { return topic.Record{Value: []byte(value)} }

// oneOutcome checks that an error says what it means.
func oneOutcome(t *testing.T, err error) {
	t.Helper()
	matches := 0
	for _, o := range []error{raftlog.ErrRetry, raftlog.ErrRefused, raftlog.ErrOutcomeUnknown} {
		if errors.Is(err, o) {
			matches++
		}
	}
	require.Equal(t, 1, matches, "%v", err)
}

func TestProduceAndReadFromEveryNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 3, 1)
		c.create("orders", 3)
		var want [3][]string
		for _, n := range c.running() {
			p := producer(t, n, topic.ProducerConfig{})
			for i := range 30 {
				value := fmt.Sprint(n.id, " ", i)
				at, err := p.ProduceTo(t.Context(), "orders", uint32(i%3), record(value))
				require.NoError(t, err)
				require.Equal(t, []topic.Position{{Partition: uint32(i % 3), Offset: storage.Offset(len(want[i%3]))}}, at)
				want[i%3] = append(want[i%3], value)
			}
			require.NoError(t, p.Close(t.Context()))
		}
		for _, n := range c.running() {
			for i := range want {
				require.Equal(t, want[i], n.dump("orders", uint32(i)))
			}
		}
	})
}
