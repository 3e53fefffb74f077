package stele_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// ofFive is a cluster of five under load.
func ofFive(t *testing.T, seed uint64, story func(ctx context.Context, c *testcluster.Cluster), config ...func(*stele.Config)) {
	all := func(cfg *stele.Config) {
		for _, change := range config {
			change(cfg)
		}
	}
	testcluster.Run(t, testcluster.Options{Nodes: 5, Seed: seed, Config: all}, func(c *testcluster.Cluster) {
		c.StartAll()
		mustCreate(c, 0, "orders", 5)
		l := c.NewLedger("orders")
		load := l.StartLoad(1, 5, 100*time.Millisecond)
		c.Sleep(5 * time.Second) // the cluster's version is raised
		ctx, cancel := context.WithTimeout(c.T.Context(), 10*time.Minute)
		defer cancel()
		story(ctx, c)
		before := l.Acked()
		c.Eventually(func() bool { return l.Acked() > before+20 }, "records are taken in")
		load.Stop()
		for i := range c.Size() {
			if n := c.Node(i); n != nil && n.Readiness().Ready() {
				l.Verify(i)
			}
		}
	})
}

func decommission(ctx context.Context, c *testcluster.Cluster, at, i int, opts stele.DecommissionOptions) *stele.Decommission {
	c.T.Helper()
	d, err := c.Node(at).Decommission(ctx, c.Member(i).Name, opts)
	require.NoError(c.T, err)
	return d
}

// Two nodes leave at once; both are gone, one after the other.
func TestTwoNodesLeaveAtOnce(t *testing.T) {
	ofFive(t, 91, func(ctx context.Context, c *testcluster.Cluster) {
		first := decommission(ctx, c, 0, 3, stele.DecommissionOptions{})
		second := decommission(ctx, c, 1, 4, stele.DecommissionOptions{})
		require.NoError(c.T, second.Wait(ctx))
		require.NoError(c.T, first.Wait(ctx))
		c.Eventually(func() bool { return len(c.Node(0).Members()) == 3 }, "every node hears that both are gone")
		for _, i := range []int{3, 4} {
			c.Eventually(func() bool { return c.Node(i).Readiness().Code == stele.Removed }, "it knows")
		}
	})
}

// A node dies in the middle of leaving. Its partitions are moved without it; then
// it is waited for, because nobody else knows whether it has answered all that it
// took in; and when it is back it goes.
//
// Property: D3 (red: a node that does not answer counted as one with nothing to answer)
func TestANodeDiesWhileItLeaves(t *testing.T) {
	ofFive(t, 92, func(ctx context.Context, c *testcluster.Cluster) {
		const leaver = 4
		d := decommission(ctx, c, 0, leaver, stele.DecommissionOptions{})
		c.PowerLoss(leaver)
		c.Eventually(func() bool { at, err := d.Progress(); return err == nil && at.Replicas == 0 }, "its partitions are elsewhere")
		c.Sleep(time.Minute)
		at, err := d.Progress()
		require.NoError(c.T, err)
		require.False(c.T, at.Done, "nobody answered the question")
		require.Equal(c.T, stele.Drains, at.Departure)
		c.Start(leaver)
		require.NoError(c.T, d.Wait(ctx))
		c.Eventually(func() bool { return c.Node(leaver).Readiness().Code == stele.Removed }, "it knows")
	})
}

// A node that is dead, and will not come back, is taken out by force.
func TestADeadNodeIsTakenOutByForce(t *testing.T) {
	ofFive(t, 93, func(ctx context.Context, c *testcluster.Cluster) {
		const dead = 2
		c.PowerLoss(dead)
		c.Eventually(func() bool {
			for _, m := range c.Node(0).Members() {
				if m.Name == c.Member(dead).Name {
					return m.Liveness.Dead
				}
			}
			return false
		}, "it is marked dead")
		require.NoError(c.T, decommission(ctx, c, 0, dead, stele.DecommissionOptions{Force: true}).Wait(ctx))
		require.Len(c.T, c.Node(0).Members(), 4)
		c.Start(dead) // with its old disk
		c.Eventually(func() bool { return c.Node(dead).Readiness().Code == stele.Removed }, "it never comes back")
		c.Eventually(func() bool { return c.Node(dead).Status().Metadata.Role == raftlog.RoleRemoved }, "its status says so")
	})
}

// leadership is who leads a group since when.
type leadership struct {
	term   raftlog.Term
	leader uint64 // a replica of the metadata; a node, of a partition
}

// terms are the leaderships of all groups, as those see them that have replicas,
// but for one member. All of them agree.
func terms(c *testcluster.Cluster, but int) map[stele.TopicPartition]leadership {
	c.T.Helper()
	all := map[stele.TopicPartition]leadership{}
	see := func(at stele.TopicPartition, now leadership) {
		if was, ok := all[at]; ok {
			require.Equal(c.T, was, now, "%v", at)
		}
		all[at] = now
	}
	for _, i := range others(c, but) {
		s := c.Node(i).Status()
		see(stele.TopicPartition{}, leadership{s.Metadata.Term, uint64(s.Metadata.Leader)})
		for _, p := range s.Partitions {
			see(stele.TopicPartition{Topic: p.Topic, Partition: p.Partition}, leadership{p.Term, uint64(p.Leader)})
		}
	}
	return all
}

// A node that is cut off is taken out meanwhile, and runs on. It is heard again: for
// a minute it makes nobody elect, in any group; it is told that it is out, and says so.
//
// Property: D5, R20 (red: who was removed told by nobody, and admitted again; frames of strangers let in, and raft without pre-vote and check of the quorum; its replicas not told what the node was told; only one of them told)
func TestARemovedNodeDisturbsNobody(t *testing.T) {
	ofFive(t, 98, func(ctx context.Context, c *testcluster.Cluster) {
		removed := (c.MetadataLeader() + 1) % 5
		asked := c.MetadataLeader()
		node := c.Node(removed).Status().Node
		c.Isolate(removed)
		c.Eventually(func() bool { return deadFor(c, asked, node) }, "it is marked dead")
		require.NoError(c.T, decommission(ctx, c, asked, removed, stele.DecommissionOptions{Force: true}).Wait(ctx))
		c.Sleep(5 * time.Second)
		before := terms(c, removed)
		require.Len(c.T, before, 6, "the metadata and five partitions")
		c.Rejoin(removed)
		for range 60 {
			c.Sleep(time.Second)
			require.Equal(c.T, before, terms(c, removed), "somebody had to elect")
		}
		at := c.Node(removed).Status()
		require.Equal(c.T, stele.Removed, at.Readiness.Code, "it says so")
		require.Equal(c.T, raftlog.RoleRemoved, at.Metadata.Role, "of its place among who keeps the metadata, too")
		require.Len(c.T, at.Partitions, 3)
		for _, p := range at.Partitions {
			require.Equal(c.T, raftlog.RoleRemoved, p.Role, "%s/%d", p.Topic, p.Partition)
		}
	}, func(cfg *stele.Config) { cfg.NoLeaderRebalance = true }) // whatever changes hands is somebody's doing
}

// A node is down while its replicas are moved elsewhere, and starts with its old disk:
// first alone, for a while, then among the others, then once more. No group of those
// has to elect; it takes part in none of them, its copies are set aside, and it serves
// as a client of the others.
//
// Property: R20 (red: replicas were opened by metadata that had not caught up)
func TestReplicasThatMovedAwayWhileTheirNodeWasDown(t *testing.T) {
	config := func(cfg *stele.Config) { cfg.NoRebalance, cfg.NoLeaderRebalance = true, true }
	testcluster.Run(t, testcluster.Options{Nodes: 4, Seed: 99, Config: config}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "orders", 4)
		l := c.NewLedger("orders")
		load := l.StartLoad(1, 4, 250*time.Millisecond)
		c.Sleep(5 * time.Second) // the cluster's version is raised
		asked := c.MetadataLeader()
		down := (asked + 1) % 4
		node := c.Node(down).Status().Node
		c.Eventually(func() bool { return holds(c, down, "orders") == 3 }, "it has replicas")
		c.PowerLoss(down)
		c.Eventually(func() bool { return deadFor(c, asked, node) }, "it is marked dead")
		for _, p := range partitions(c, asked, "orders") {
			if _, here := p.On(node); !here {
				continue
			}
			for i := range c.Size() {
				if _, holds := p.On(stele.NodeID(i + 1)); !holds {
					require.NoError(t, c.Node(asked).MoveReplica(t.Context(), stele.TopicPartition{Topic: "orders", Partition: p.Index}, c.Member(down).Name, c.Member(i).Name))
				}
			}
		}
		c.Eventually(func() bool { return moving(c, asked, "orders") == 0 && on(c, asked, "orders", node) == 0 }, "it has none any more")
		c.Sleep(5 * time.Second)
		before := terms(c, down)
		require.Len(t, before, 5, "the metadata and four partitions")
		undisturbed := func() {
			t.Helper()
			for range 30 {
				c.Sleep(time.Second)
				require.Equal(t, before, terms(c, down), "somebody had to elect")
				for _, p := range c.Node(down).Status().Partitions {
					require.Equal(t, raftlog.RoleRemoved, p.Role, "%s/%d", p.Topic, p.Partition)
				}
			}
		}
		c.Isolate(down)
		c.Start(down)
		undisturbed()
		c.Rejoin(down)
		undisturbed()
		require.True(t, c.Node(down).Readiness().Ready())
		require.Zero(t, holds(c, down, "orders"))
		c.PowerLoss(down)
		c.Start(down)
		undisturbed()
		load.Stop()
		for i := range c.Size() {
			l.Verify(i)
		}
	})
}

// A member that does not vote leaves as any other.
func TestAnObserverLeaves(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Seed: 94}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "orders", 4)
		observer := c.Add()
		c.StartWith(observer, func(cfg *stele.Config) { cfg.Observer = true })
		c.WaitReady()
		c.Eventually(func() bool { return holds(c, observer, "orders") == 3 }, "it gets partitions")
		require.Equal(t, stele.SeatLearner, seat(c, 0, observer), "it never votes")
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		require.NoError(t, decommission(ctx, c, 0, observer, stele.DecommissionOptions{}).Wait(ctx))
		require.Len(t, c.Node(0).Members(), 3)
		c.Eventually(func() bool { return c.Node(observer).Readiness().Code == stele.Removed }, "it knows")
	})
}

// The leader is started again right after it removed a node: that stays removed,
// and cannot speak itself back in.
//
// Property: D7 (red: tombstones not looked at, neither by who is asked nor when a life is admitted)
func TestTheLeaderRestartsAfterARemoval(t *testing.T) {
	ofFive(t, 95, func(ctx context.Context, c *testcluster.Cluster) {
		leader := c.MetadataLeader()
		leaver, asked := (leader+1)%5, (leader+2)%5
		require.NoError(c.T, decommission(ctx, c, asked, leaver, stele.DecommissionOptions{}).Wait(ctx))
		c.PowerLoss(c.MetadataLeader())
		for i := range c.Size() {
			if c.Node(i) == nil {
				c.Start(i)
			}
		}
		c.Eventually(func() bool { return c.Node(leaver).Readiness().Code == stele.Removed }, "it knows")
		c.Sleep(time.Minute)
		for _, i := range others(c, leaver) {
			require.Len(c.T, c.Node(i).Members(), 4)
			require.Empty(c.T, lives(c, i, leaver))
		}
		require.False(c.T, c.Node(leaver).Readiness().Ready())
	})
}

// Whoever leads the metadata loses power at each step of a member on its way out:
// the next leader goes on, to the end.
//
// Property: D1 (red: a record left to the leader that took its member out; a record never removed)
func TestLeadersDieWhileANodeLeaves(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Nodes: 5, Seed: 97}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "orders", 5)
		c.Sleep(5 * time.Second) // the cluster's version is raised
		l := c.NewLedger("orders")
		load := l.StartLoad(1, 5, 100*time.Millisecond)
		const leaver = 4
		node := c.Node(leaver).Status().Node
		decommission(t.Context(), c, 0, leaver, stele.DecommissionOptions{})
		begun, seen := time.Now(), map[string]bool{}
		for ; ; c.Sleep(time.Millisecond) {
			require.Less(t, time.Since(begun), 2*time.Minute, "it is out")
			at := c.MetadataLeader()
			if at < 0 || at == leaver {
				continue
			}
			members := c.Node(at).Members()
			i := slices.IndexFunc(members, func(m stele.Member) bool { return m.Node == node })
			if i < 0 {
				break
			}
			left := on(c, at, "orders", node)
			if m := members[i]; m.Liveness.Departure == metastore.Leaves || m.Seat == stele.SeatNone {
				require.Zero(t, left, "its partitions come first")
			}
			step := fmt.Sprint(members[i].Liveness.Departure, members[i].Seat, left == 0)
			if !seen[step] {
				seen[step] = true
				c.PowerLoss(at)
				c.Start(at)
			}
		}
		require.GreaterOrEqual(t, len(seen), 3, "%v", seen)
		load.Stop()
		c.Eventually(func() bool { return c.Node(leaver).Readiness().Code == stele.Removed }, "it knows")
		for i := range leaver {
			c.Eventually(func() bool { return len(c.Node(i).Members()) == 4 }, "all know")
			l.Verify(i)
		}
	})
}

// A move goes to a node that has just died: it is given up after two minutes, and
// nothing is left of it. Neither an hour by which all clocks jump nor new leaders of
// the partitions count.
//
// Property: M3, H2 (red: a destination that is dead for long waited for as one that has just died; the two minutes measured by the time of day)
func TestAMoveToADeadNodeIsGivenUp(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Seed: 96}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "orders", 8)
		c.Sleep(5 * time.Second) // the cluster's version is raised
		fourth := c.Add()
		c.Start(fourth)
		moves := func() int {
			at, err := c.Node(0).DescribeCluster(t.Context())
			require.NoError(t, err)
			return len(at.Moves)
		}
		c.Eventually(func() bool { return moves() > 0 }, "replicas are on their way to it")
		c.PowerLoss(fourth)
		c.Sleep(100 * time.Second)
		for i := range fourth {
			c.Jump(i, time.Hour)
		}
		for _, p := range c.Node(0).Status().Partitions {
			at := stele.TopicPartition{Topic: p.Topic, Partition: p.Partition}
			for i := range fourth {
				if c.Node(i).Status().Node == p.Leader {
					require.NoError(t, c.Node(i).TransferLeadership(t.Context(), at, c.Member((i+1)%fourth).Name))
				}
			}
		}
		c.Sleep(20 * time.Second)
		require.Positive(t, moves(), "dead for a minute and a half")
		c.Eventually(func() bool { return moves() == 0 }, "they are given up")
		c.Start(fourth)
		c.WaitReady()
		c.Eventually(func() bool { return holds(c, fourth, "orders") == 6 && moves() == 0 }, "they begin anew")
	})
}
