package topic_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

// swept is what the nodes of a cluster told of what they reclaimed.
type swept struct {
	mu      sync.Mutex
	got     []topic.Reclaimed
	refused []topic.ReclaimRefusal
}

func (s *swept) config(cfg *topic.Config) {
	cfg.NoBalance, cfg.NoHandBack = true, true
	cfg.OnReclaimed = func(r topic.Reclaimed) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.got = append(s.got, r)
	}
	cfg.OnReclaimRefused = func(r topic.ReclaimRefusal) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.refused = append(s.refused, r)
	}
}

func (s *swept) told() ([]topic.Reclaimed, []topic.ReclaimRefusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]topic.Reclaimed{}, s.got...), append([]topic.ReclaimRefusal{}, s.refused...)
}

// startSwept starts a cluster in which what is dead can be confirmed.
func startSwept(t *testing.T, n int, seed uint64, config func(*topic.Config)) (*cluster, *swept) {
	s := &swept{}
	c := newMoves(t, n, seed, func(cfg *topic.Config) {
		s.config(cfg)
		if config != nil {
			config(cfg)
		}
	})
	c.raise(3)
	return c, s
}

// raise raises the version of the cluster.
func (c *cluster) raise(version uint64) {
	c.t.Helper()
	settle(c.t, "the version", func() bool {
		for _, n := range c.running() {
			if leader, _ := n.meta.Leader(); leader == n.id {
				return n.meta.SetVersion(c.t.Context(), version) == nil
			}
		}
		return false
	})
}

// quarantined returns what is in quarantine on a node, and how many replicas its
// journal knows that were set aside.
func (n *node) quarantined() (dirs []string, aside int) {
	all, err := n.store.Quarantined()
	require.NoError(n.cluster.t, err)
	for _, d := range all {
		dirs = append(dirs, d.Dir)
	}
	for _, st := range n.host.Replicas() {
		if st.Status == storage.ReplicaSetAside {
			aside++
		}
	}
	return dirs, aside
}

func (n *node) clean() bool {
	dirs, aside := n.quarantined()
	return len(dirs) == 0 && aside == 0
}

// A topic is deleted, and comes again under its name, while a node is down, more
// than once. That node moves what it has of it aside, and gives its bytes back once
// the others confirmed it; as do those that were there. The last life is whole.
//
// Property: I4, I5, X1 (red: Host.Destroy left out: the journal knew the replicas for ever; no flash behind a purge: ten minutes)
func TestWhatWasDeletedIsReclaimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, told := startSwept(t, 3, 61, nil)
		var lives []storage.Incarnation
		var want []string
		for life := range 3 {
			made := c.create("orders", 2)
			lives = append(lives, made.Incarnation)
			p := producer(t, c.node(1), topic.ProducerConfig{})
			for i := range 6 {
				value := fmt.Sprint(life, " ", i)
				_, err := p.ProduceTo(t.Context(), "orders", 0, record(value))
				require.NoError(t, err)
				if life == 2 {
					want = append(want, value)
				}
			}
			require.NoError(t, p.Close(t.Context()))
			if life == 0 {
				settle(t, "held", func() bool { return len(c.node(3).topics.Status()) == 2 })
				c.crash(3, simfs.Strict)
			}
			if life < 2 {
				require.NoError(t, c.node(1).topics.DeleteTopic(t.Context(), "orders"))
			}
		}
		for id := raftlog.NodeID(1); id <= 2; id++ {
			settle(t, "reclaimed where it was seen", c.node(id).clean)
		}
		c.start(3)
		settle(t, "reclaimed where it was missed", c.node(3).clean)
		settle(t, "opened", func() bool { return len(c.node(3).topics.Status()) == 2 })
		require.Equal(t, want, c.node(3).dump("orders", 0))
		for _, n := range c.running() {
			require.Equal(t, []string{"topics/orders@" + lives[2].String()}, n.dirs())
		}
		got, refused := told.told()
		require.Empty(t, refused)
		reclaimed := map[storage.Incarnation]int{}
		for _, r := range got {
			require.Zero(t, r.Replica)
			require.Positive(t, r.Bytes)
			reclaimed[r.Incarnation]++
		}
		require.Equal(t, map[storage.Incarnation]int{lives[0]: 3, lives[1]: 2}, reclaimed)
		require.EqualValues(t, 1, c.node(3).topics.Stats().ReclaimedDirs)
		require.Positive(t, c.node(3).topics.Stats().ReclaimedBytes)
		c.crash(3, simfs.Strict)
		c.start(3)
		settle(t, "opened again", func() bool { return len(c.node(3).topics.Status()) == 2 })
		require.Equal(t, want, c.node(3).dump("orders", 0))
	})
}

// While nobody can confirm it nothing is destroyed; it is when somebody can again,
// without being asked. Why not is told once.
//
// Property: X2 (red: reclaim went on with the zero proof, which storage refused; a pass that gave up for a day)
func TestWhatIsNotConfirmedStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, told := startSwept(t, 3, 62, nil)
		c.create("orders", 1)
		settle(t, "held", func() bool { return len(c.node(3).topics.Status()) == 1 })
		c.mu.Lock()
		c.meet = func(_, _ raftlog.NodeID, method string) error {
			if method == metastore.MethodConfirm {
				return errors.New("the connection broke")
			}
			return nil
		}
		c.mu.Unlock()
		require.NoError(t, c.node(1).topics.DeleteTopic(t.Context(), "orders"))
		pass(5 * time.Minute)
		for _, n := range c.running() {
			dirs, aside := n.quarantined()
			require.Len(t, dirs, 1)
			require.Equal(t, 1, aside)
			require.Zero(t, n.topics.Stats().ReclaimedDirs)
		}
		got, refused := told.told()
		require.Empty(t, got)
		require.Len(t, refused, 3, "once on each node")
		for _, r := range refused {
			require.Equal(t, metastore.ConfirmNoMajority, r.Reason)
			require.Error(t, r.Err)
		}
		// A node that is cut off has no linearizable read.
		c.mu.Lock()
		c.meet = nil
		c.mu.Unlock()
		c.isolate(3, true)
		pass(3 * time.Minute)
		require.True(t, c.node(1).clean() && c.node(2).clean())
		dirs, _ := c.node(3).quarantined()
		require.Len(t, dirs, 1)
		c.isolate(3, false)
		settle(t, "reclaimed", c.node(3).clean)
	})
}

// A cluster with a member of an older release destroys nothing, and does when that
// has been upgraded.
func TestNothingIsReclaimedBeforeItsVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := &swept{}
		c := newMoves(t, 3, 63, told.config)
		c.create("orders", 1)
		require.NoError(t, c.node(1).topics.DeleteTopic(t.Context(), "orders"))
		pass(3 * time.Minute)
		for _, n := range c.running() {
			require.False(t, n.clean())
		}
		_, refused := told.told()
		require.Len(t, refused, 3)
		var version *metastore.ClusterVersionError
		require.ErrorAs(t, refused[0].Err, &version)
		c.raise(3)
		for _, n := range c.running() {
			settle(t, "reclaimed", n.clean)
		}
	})
}

// A copy that moved away goes only when its own group says that it has left, too,
// and when it is confirmed. It may come back meanwhile: that stint stays.
//
// Property: M5 (red: reclaim without hasLeft; hasLeft gave up with the first that could not be asked)
func TestACopyThatMovedAwayIsReclaimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, told := startSwept(t, 4, 64, nil)
		made := c.create("orders", 1)
		p := producer(t, c.node(1), topic.ProducerConfig{})
		var want []string
		for i := range 5 {
			want = append(want, fmt.Sprint(i))
			_, err := p.ProduceTo(t.Context(), "orders", 0, record(want[i]))
			require.NoError(t, err)
		}
		require.NoError(t, p.Close(t.Context()))
		before := c.partition("orders", 0)
		from, to := before.Replicas[2].Node, c.off("orders", 0)
		old := before.Replicas[2].Replica
		var mu sync.Mutex
		asked := map[raftlog.NodeID]bool{}
		c.mu.Lock()
		c.meet = func(_, to raftlog.NodeID, method string) error {
			if strings.HasSuffix(method, ".left") {
				mu.Lock()
				defer mu.Unlock()
				asked[to] = true
				return errors.New("the connection broke")
			}
			return nil
		}
		c.mu.Unlock()
		require.NoError(t, c.node(1).topics.MoveReplica(t.Context(), at("orders", 0), from, to))
		c.moved("orders", 0)
		pass(2 * time.Minute)
		_, aside := c.node(from).quarantined()
		require.Equal(t, 1, aside, "its group was not heard")
		require.NotEmpty(t, c.node(from).replicaDir(old), "its files are where they were")
		mu.Lock()
		require.Len(t, asked, 3, "each that holds it")
		mu.Unlock()
		_, refused := told.told()
		require.Len(t, refused, 1)
		require.Equal(t, old, refused[0].Replica)
		require.Empty(t, refused[0].Reason)

		// It comes back while the old copy is there.
		require.NoError(t, c.node(1).topics.MoveReplica(t.Context(), at("orders", 0), to, from))
		c.moved("orders", 0)
		c.mu.Lock()
		c.meet = nil
		c.mu.Unlock()
		settle(t, "reclaimed", func() bool { return c.node(from).clean() && c.node(to).clean() })
		require.Empty(t, c.node(from).replicaDir(old))
		again, _ := c.partition("orders", 0).On(from)
		require.NotEmpty(t, c.node(from).replicaDir(again))
		require.Equal(t, want, c.node(from).dump("orders", 0))
		got, _ := told.told()
		require.Len(t, got, 2)
		for _, r := range got {
			require.Equal(t, made.Incarnation, r.Incarnation)
			require.NotZero(t, r.Replica)
		}
	})
}

// replicaDir is the directory of a replica in topics/, empty if it is not there.
func (n *node) replicaDir(id storage.ReplicaID) string {
	for _, dir := range n.dirs() {
		names, err := n.cluster.disks[n.id].List("data/" + dir)
		require.NoError(n.cluster.t, err)
		for _, name := range names {
			if strings.HasSuffix(name, fmt.Sprint(".", uint64(id))) {
				return name
			}
		}
	}
	return ""
}

// Whatever the metadata say, a replica that its group lists stays: here they say it
// of one that is only cut off.
//
// Property: M5 (red: hasLeft without its look at the answer; lists without its linearizable read)
func TestAListedReplicaHasNotLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := startSwept(t, 3, 65, nil)
		made := c.create("orders", 1)
		c.leader("orders", 0)
		p := made.Partitions[0]
		for _, n := range c.running() {
			for _, a := range p.Replicas {
				require.ErrorContains(t, n.topics.HasLeft(t.Context(), made.Incarnation, 0, p.Group, a.Replica), "still lists")
			}
			require.NoError(t, n.topics.HasLeft(t.Context(), made.Incarnation, 0, p.Group, 999))
			require.Error(t, n.topics.HasLeft(t.Context(), made.Incarnation, 0, p.Group+1, 999), "another group")
			require.Error(t, n.topics.HasLeft(t.Context(), made.Incarnation, 7, p.Group, 999), "no partition")
		}
		c.isolate(1, true)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		err := c.node(1).topics.HasLeft(ctx, made.Incarnation, 0, p.Group, 999)
		require.Error(t, err, "it cannot read")
		oneOutcome(t, err)
	})
}

// A node that starts takes stock before it opens anything: what an earlier process
// left, which no record names, is moved aside first. Should that not succeed, it
// waits for a minute, and then serves without.
//
// Property: X4 (red: what is assigned was opened without it; no startBy: nothing was ever opened)
func TestNothingIsOpenedBeforeStockIsTaken(t *testing.T) {
	for _, heals := range []time.Duration{30 * time.Second, 90 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			c, _ := startSwept(t, 3, 66, func(cfg *topic.Config) { cfg.SweepInterval = 2 * time.Minute })
			c.create("gone", 1)
			settle(t, "held", func() bool { return len(c.node(3).topics.Status()) == 1 })
			c.crash(3, simfs.Strict)
			require.NoError(t, c.node(1).topics.DeleteTopic(t.Context(), "gone"))
			c.create("orders", 1)
			fs := c.disks[3]
			require.NoError(t, fs.MkdirAll("data/topics/a-stray", 0o755))
			var mu sync.Mutex
			broken := true
			fs.SetHook(func(op simfs.Op) error {
				mu.Lock()
				defer mu.Unlock()
				if broken && op.Kind == simfs.OpRename && strings.Contains(op.Path, "a-stray") {
					return errors.New("the directory is busy")
				}
				return nil
			})
			n := c.start(3)
			<-n.meta.CaughtUp()
			open := func() bool { s := n.topics.Status(); return len(s) == 1 && s[0].Role != 0 }
			pass(min(heals, 50*time.Second))
			require.False(t, open(), "creates wait")
			require.Len(t, n.dirs(), 2)
			if heals > time.Minute {
				settle(t, "opened without", open)
				pass(heals)
				require.Len(t, n.dirs(), 3, "the life that is gone is not looked at yet")
			}
			mu.Lock()
			broken = false
			mu.Unlock()
			if heals > time.Minute {
				pass(2 * time.Minute)
			}
			settle(t, "opened", open)
			settle(t, "the life that is gone is reclaimed", func() bool { return len(n.dirs()) == 1 })
			dirs, err := n.store.Quarantined()
			require.NoError(t, err)
			require.Len(t, dirs, 1, "the stray needs a person")
		})
	}
}

// A node whose metadata do not catch up within a minute of its start leaves its
// stock for later.
//
// Property: X4 (red: takeStock without its look at startBy)
func TestALateNodeLeavesItsStockForLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := startSwept(t, 3, 67, func(cfg *topic.Config) { cfg.SweepInterval = 2 * time.Minute })
		c.create("gone", 1)
		settle(t, "held", func() bool { return len(c.node(3).topics.Status()) == 1 })
		c.crash(3, simfs.Strict)
		require.NoError(t, c.node(1).topics.DeleteTopic(t.Context(), "gone"))
		c.create("orders", 1)
		c.isolate(3, true)
		n := c.start(3)
		pass(61 * time.Second)
		require.Len(t, n.dirs(), 1, "nothing is known, and nothing done")
		c.isolate(3, false)
		settle(t, "opened", func() bool { s := n.topics.Status(); return len(s) == 1 && s[0].Role != 0 })
		pass(90 * time.Second)
		require.Len(t, n.dirs(), 2)
		pass(2 * time.Minute)
		require.Len(t, n.dirs(), 1)
		settle(t, "reclaimed", n.clean)
	})
}
