package metastore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// cluster is nodes with real raft, journals and databases, on simulated disks
// and a network that takes a millisecond.
type cluster struct {
	t       *testing.T
	genesis metastore.Genesis

	mu    sync.Mutex
	nodes map[raftlog.NodeID]*node // running
	disks map[raftlog.NodeID]*simfs.FS

	away      map[raftlog.NodeID]bool              // cut off from the others
	joins     map[raftlog.NodeID]bool              // begin empty
	replicas  map[raftlog.NodeID]raftlog.ReplicaID // of those whose number is not that of the node
	change    func(*metastore.Config)              // of each node, if set
	options   func(*raftlog.Config)                // of each node, if set
	arrives   func(to *node, from raftlog.NodeID, class uint8, frame []byte) bool
	noStreams atomic.Bool
	noHashes  atomic.Bool                                // nobody answers for the hash of its state
	streams   func(to raftlog.NodeID, s *stream) *stream // that are opened, if set
}

type node struct {
	cluster *cluster
	id      raftlog.NodeID
	store   *storage.Store
	host    *raftlog.Host
	meta    *metastore.Store
}

func newCluster(t *testing.T, n int, seed uint64) *cluster {
	c := &cluster{t: t, nodes: map[raftlog.NodeID]*node{}, disks: map[raftlog.NodeID]*simfs.FS{}}
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

func (c *cluster) start(id raftlog.NodeID) *node {
	c.t.Helper()
	n, err := c.tryStart(id)
	require.NoError(c.t, err)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes[id] = n
	return n
}

// tryStart opens a node; the error is that of its metadata.
func (c *cluster) tryStart(id raftlog.NodeID) (*node, error) {
	c.t.Helper()
	fs := c.disks[id]
	store, err := storage.Open(storage.Config{FS: fs, Dir: "data", Name: fmt.Sprint("node-", id), Cluster: "test",
		JournalFileSize: 64 << 10, SegmentSize: 16 << 10})
	require.NoError(c.t, err)
	n := &node{cluster: c, id: id, store: store}
	options := raftlog.Config{Node: id, Store: store, Sender: n}
	if c.options != nil {
		c.options(&options)
	}
	n.host, err = raftlog.Open(options)
	require.NoError(c.t, err)
	require.NoError(c.t, fs.MkdirAll("data/meta", 0o755))
	replica := raftlog.ReplicaID(id)
	if r := c.replicas[id]; r != 0 {
		replica = r
	}
	config := metastore.Config{
		Host: n.host, FS: fs, Dir: "data/meta/db", Node: id, Replica: replica, Genesis: c.genesis, Caller: n, Streamer: n,
	}
	if c.joins[id] {
		config.Genesis.Members = nil
	}
	if c.change != nil {
		c.change(&config)
	}
	n.meta, err = metastore.Open(c.t.Context(), config)
	return n, err
}

func (c *cluster) node(id raftlog.NodeID) *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[id]
}

// crash stops a node without warning; its disk is as survival leaves it.
func (c *cluster) crash(id raftlog.NodeID, survival simfs.Survival) {
	c.mu.Lock()
	n := c.nodes[id]
	delete(c.nodes, id)
	c.mu.Unlock()
	if n == nil {
		return
	}
	image := c.disks[id].Image(survival)
	n.host.Abort()
	require.NoError(c.t, n.meta.Close())
	require.NoError(c.t, n.store.Close())
	c.disks[id] = image
}

// Send is the node's raftlog.Sender.
func (n *node) Send(to raftlog.NodeID, class uint8, frame []byte) {
	clock.System().AfterFunc(time.Millisecond, func() {
		if target := n.cluster.node(to); target != nil && n.cluster.node(n.id) == n && !n.cluster.parts(n.id, to) &&
			(n.cluster.arrives == nil || n.cluster.arrives(target, n.id, class, frame)) {
			target.host.HandleFrame(n.id, frame)
		}
	})
}

// Call is the node's metastore.Caller.
func (n *node) Call(ctx context.Context, to raftlog.NodeID, method string, request []byte) ([]byte, error) {
	target := n.cluster.node(to)
	if target == nil || n.cluster.parts(n.id, to) || n.cluster.noHashes.Load() && method == metastore.MethodStateHash {
		return nil, raftlog.Retry(errors.New("it cannot be reached"))
	}
	response, err := target.meta.HandleCall(ctx, n.id, method, request)
	if n.cluster.node(to) != target {
		return nil, raftlog.Unknown(errors.New("the connection broke"))
	}
	return response, err
}

// parts reports whether nothing goes between two nodes.
func (c *cluster) parts(a, b raftlog.NodeID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return a != b && (c.away[a] || c.away[b])
}

// cut takes a node away from the others, or brings it back.
func (c *cluster) cut(id raftlog.NodeID, away bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.away = map[raftlog.NodeID]bool{id: away}
}

func pass(d time.Duration) { <-clock.System().NewTimer(d).C() }

func TestOneNodeIsACluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, 1)
		n := c.start(1)
		topic, err := n.meta.CreateTopic(t.Context(), metastore.TopicSpec{Name: "orders"})
		require.NoError(t, err)
		<-n.meta.CaughtUp()
		for range 3 {
			c.crash(1, simfs.Strict)
			n = c.start(1)
			<-n.meta.CaughtUp()
			got, err := n.meta.FindTopic(t.Context(), "orders")
			require.NoError(t, err)
			require.Equal(t, topic, got)
			all, err := n.meta.ListAssignments(1)
			require.NoError(t, err)
			require.Len(t, all, 1)
		}
	})
}

// Property: R25 (red: Barrier returned at once; pauses and transfers: TestSeeds in internal/sim, of a core that asks no clock)
func TestNothingIsLostOrDoneTwiceThroughCrashes(t *testing.T) {
	runs := uint64(8)
	if testing.Short() {
		runs = 2
	}
	for seed := range runs {
		synctest.Test(t, func(t *testing.T) { surviveCrashes(t, seed) })
	}
}

func surviveCrashes(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 3))
	c := newCluster(t, 3, seed)
	for id := range c.disks {
		c.start(id)
	}
	made := map[string]metastore.Topic{}
	epoch := uint32(0)
	for i := range 30 {
		via := raftlog.NodeID(1 + r.IntN(3))
		name := fmt.Sprint("topic-", i)
		topic, err := c.node(via).meta.CreateTopic(t.Context(), metastore.TopicSpec{Name: name, Config: metastore.TopicConfig{Partitions: 2, Replicas: 2}})
		require.NoError(t, err, "seed %d: %s via %v", seed, name, via)
		made[name] = topic
		reader := c.node(raftlog.NodeID(1 + r.IntN(3))).meta
		require.NoError(t, reader.Barrier(t.Context()), "seed %d: %s", seed, name)
		got, err := reader.Topic(name)
		require.NoError(t, err, "seed %d: a linearizable read misses %s", seed, name)
		require.Equal(t, topic, got)
		if id, e, err := c.node(via).meta.AllocateProducer(t.Context(), metastore.ProducerRequest{Name: "billing", Token: [16]byte{1 + byte(i)}}); err == nil {
			require.Equal(t, metastore.ProducerID(1), id)
			require.True(t, i == 0 || e > epoch, "seed %d: epoch %d after %d", seed, e, epoch)
			epoch = e
		}
		c.changeMembers(i)
		if i%3 != 2 {
			continue
		}
		victim := raftlog.NodeID(1 + r.IntN(3))
		c.crash(victim, []simfs.Survival{simfs.Strict, simfs.Random, simfs.Kill}[r.IntN(3)])
		if r.IntN(3) == 0 { // all at once
			for id := range c.disks {
				c.crash(id, simfs.Random)
			}
			for id := range c.disks {
				c.start(id)
			}
			continue
		}
		pass(time.Duration(r.IntN(3000)) * time.Millisecond)
		n := c.start(victim)
		if _, err := n.meta.ListAssignments(victim); err == nil {
			require.True(t, n.meta.AppliedCaughtUp())
		}
	}
	for id := range c.disks {
		n := c.node(id)
		require.NoError(t, n.meta.Barrier(t.Context()), "seed %d: %v", seed, id)
		<-n.meta.CaughtUp()
		topics := n.meta.Topics()
		require.Len(t, topics, len(made), "seed %d: %v", seed, id)
		for _, topic := range topics {
			require.Equal(t, made[topic.Name], topic, "seed %d: %v", seed, id)
		}
		require.NoError(t, n.meta.Failed())
		require.NoError(t, c.node(1).meta.Barrier(t.Context()), "seed %d", seed)
		require.True(t, slices.Equal(c.node(1).meta.Members(), n.meta.Members()), "seed %d: %v", seed, id)
		require.Equal(t, uint64(2), n.meta.ClusterVersion(), "seed %d: %v", seed, id)
		require.Greater(t, len(n.meta.Members()), 5, "seed %d: %v", seed, id)
	}
}

// changeMembers makes changes where the metadata is led; what comes of them is
// not looked at here.
func (c *cluster) changeMembers(i int) {
	ctx := c.t.Context()
	for id := range c.disks {
		n := c.node(id)
		if n == nil || !n.meta.GroupStatus().Role.IsLeader() {
			continue
		}
		nonce := raftlog.Nonce{100, byte(i)}
		_ = n.meta.SetVersion(ctx, 2)
		_, _ = n.meta.RecordHeartbeats(ctx, []metastore.Heartbeat{{Node: 1, Nonce: raftlog.Nonce{1}}, {Node: 2, Nonce: raftlog.Nonce{2}}})
		if m, err := n.meta.Admit(ctx, metastore.Admission{Name: fmt.Sprint("new-", i), Nonce: nonce, Addr: "new:1", Newest: metastore.NewestCommand}); err == nil && i%2 == 0 {
			_, _ = n.meta.MarkDead(ctx, []metastore.DeadMark{{Node: m.Node, Judged: m.Liveness.Stamp}})
		} else if err == nil {
			_ = n.meta.SetDeparture(ctx, m.Node, nonce, metastore.Drains)
		}
	}
}

func TestFollowersForwardThroughAFailOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 9)
		for id := range c.disks {
			c.start(id)
		}
		_, err := c.node(2).meta.CreateTopic(t.Context(), metastore.TopicSpec{Name: "before"})
		require.NoError(t, err)
		for _, victim := range []raftlog.NodeID{1, 2, 3} {
			c.crash(victim, simfs.Strict)
			other := victim%3 + 1
			name := fmt.Sprint("without-", victim)
			topic, err := c.node(other).meta.CreateTopic(t.Context(), metastore.TopicSpec{Name: name})
			require.NoError(t, err)
			n := c.start(victim)
			got, err := n.meta.FindTopic(t.Context(), name)
			require.NoError(t, err)
			require.Equal(t, topic, got)
		}
	})
}
