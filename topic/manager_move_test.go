package topic_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
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

// newMoves starts nodes of which all but the first three hold nothing at first.
func newMoves(t *testing.T, n int, seed uint64, config func(*topic.Config)) *cluster {
	c := newCluster(t, n, seed)
	c.config = func(cfg *topic.Config) {
		cfg.NoBalance, cfg.NoHandBack = true, true
		if config != nil {
			config(cfg)
		}
	}
	c.startAll()
	c.upgrade()
	return c
}

// upgrade lets the cluster use what moves need.
func (c *cluster) upgrade() { c.upgradeTo(2) }

// upgradeTo raises the version of the cluster.
func (c *cluster) upgradeTo(version uint64) {
	c.t.Helper()
	settle(c.t, "the version", func() bool {
		all := true
		for _, n := range c.running() {
			if leader, _ := n.meta.Leader(); leader == n.id {
				all = n.meta.SetVersion(c.t.Context(), version) == nil && all
			}
			all = n.meta.ClusterVersion() >= version && all
		}
		return all
	})
}

// partition returns what the metadata say of a partition.
func (c *cluster) partition(name string, index uint32) metastore.Partition {
	c.t.Helper()
	n := c.running()[0]
	require.NoError(c.t, n.meta.Barrier(c.t.Context()))
	t, err := n.meta.Topic(name)
	require.NoError(c.t, err)
	return t.Partitions[index]
}

// on returns the nodes of a partition's replicas, in the metadata's order.
func (c *cluster) on(name string, index uint32) (nodes []raftlog.NodeID) {
	for _, a := range c.partition(name, index).Replicas {
		nodes = append(nodes, a.Node)
	}
	return nodes
}

// off returns a node that holds no replica of the partition.
func (c *cluster) off(name string, index uint32) raftlog.NodeID {
	on := c.on(name, index)
	for id := raftlog.NodeID(1); int(id) <= len(c.disks); id++ {
		if !slices.Contains(on, id) {
			return id
		}
	}
	c.t.Fatal("all nodes hold it")
	return 0
}

// moved waits until no move of the partition is under way.
func (c *cluster) moved(name string, index uint32) {
	c.t.Helper()
	settle(c.t, "moved", func() bool {
		p := c.partition(name, index)
		return p.Target == nil
	})
}

// awaitConf waits until all replicas of the partition know the same
// configuration: those that the metadata assign, all voting.
func (c *cluster) awaitConf(t *testing.T, top metastore.Topic, index uint32) {
	t.Helper()
	settle(t, "the group is what the metadata say", func() bool {
		var want []raftlog.ReplicaID
		for _, a := range c.partition(top.Name, index).Replicas {
			want = append(want, a.Replica)
		}
		slices.Sort(want)
		for _, a := range c.partition(top.Name, index).Replicas {
			n := c.node(a.Node)
			if n == nil {
				continue
			}
			g := n.topics.OpenGroup(top.Incarnation, index)
			if g == nil {
				return false
			}
			conf := g.Status().Conf
			have := slices.Clone(conf.Voters)
			slices.Sort(have)
			if !slices.Equal(want, have) || len(conf.Learners)+len(conf.VotersOutgoing) > 0 {
				return false
			}
		}
		return true
	})
}

// produceUntil appends records without end to a partition, until it is told to
// stop, and returns what was acknowledged. The longest wait between two of them
// is in the result too.
type steady struct {
	stop    context.CancelFunc
	work    sync.WaitGroup
	values  map[storage.Offset]string
	longest time.Duration
	err     error
}

func (n *node) produceSteadily(t *testing.T, name string, partition uint32, size int) *steady {
	return n.produceEvery(t, 2*time.Millisecond, name, partition, size)
}

// produceEvery is produceSteadily with a pause between two records.
func (n *node) produceEvery(t *testing.T, pause time.Duration, name string, partition uint32, size int) *steady {
	p := producer(t, n, topic.ProducerConfig{})
	ctx, stop := context.WithCancel(t.Context())
	s := &steady{stop: stop, values: map[storage.Offset]string{}}
	s.work.Go(func() {
		last := time.Now()
		for i := 0; ctx.Err() == nil; i++ {
			value := fmt.Sprintf("%d-%s", i, bytes.Repeat([]byte("x"), size))
			at, err := p.ProduceTo(t.Context(), name, partition, record(value))
			if err != nil {
				s.err = err
				return
			}
			s.values[at[0].Offset] = value
			s.longest = max(s.longest, time.Since(last))
			last = time.Now()
			pass(pause)
		}
	})
	return s
}

// end returns what was acknowledged.
func (s *steady) end(t *testing.T) map[storage.Offset]string {
	t.Helper()
	s.stop()
	s.work.Wait()
	require.NoError(t, s.err)
	return s.values
}

// requireOn reads the partition from the replica on a node alone.
func requireOn(t *testing.T, n *node, top metastore.Topic, index uint32, want map[storage.Offset]string) {
	t.Helper()
	requireRange(t, n, top, index, 0, want)
}

// requireFrom is requireOn of a partition 0 that begins with the offset.
func requireFrom(t *testing.T, n *node, top metastore.Topic, start storage.Offset, want map[storage.Offset]string) {
	t.Helper()
	requireRange(t, n, top, 0, start, want)
}

func requireRange(t *testing.T, n *node, top metastore.Topic, index uint32, start storage.Offset, want map[storage.Offset]string) {
	t.Helper()
	end := storage.Offset(0)
	for at := range want {
		end = max(end, at+1)
	}
	settle(t, "it has all", func() bool {
		g := n.topics.OpenGroup(top.Incarnation, index)
		if g == nil {
			return false
		}
		_, readable := g.Readable()
		return readable && g.Log().NextOffset() >= end
	})
	for at := start; at < end; {
		response, err := n.topics.HandleCall(t.Context(), 99, "topic.fetch", topic.EncodeFetch(top.Incarnation, index, at))
		require.NoError(t, err)
		data, err := topic.DecodeFetched(response)
		require.NoError(t, err)
		require.NotEmpty(t, data)
		for len(data) > 0 {
			var b topic.Batch
			b, data, err = topic.ReadBatch(data)
			require.NoError(t, err)
			var it topic.BatchRecords
			for it.Reset(b); it.Next(); at = it.Offset() + 1 {
				if value, ok := want[it.Offset()]; ok {
					require.Equal(t, value, string(it.Record().Value), "offset %d", it.Offset())
				}
			}
			require.NoError(t, it.Err())
		}
	}
}

// Property: M1, R32 (red: the old replica was not set aside; a replica that a move brings began with the configuration of the creation)
//
// A replica moves to an empty node while records come, follower or leader: the
// new one has every record at its offset, and the producers' memory; the old one
// is set aside; nobody waits long.
func TestAReplicaMoves(t *testing.T) {
	for _, what := range []string{"a follower", "the leader", "the only one"} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var phases []topic.MovePhase
				c := newMoves(t, 4, 1, func(cfg *topic.Config) {
					cfg.OnMove = func(p topic.MoveProgress) {
						mu.Lock()
						defer mu.Unlock()
						if n := len(phases); n == 0 || phases[n-1] != p.Phase {
							phases = append(phases, p.Phase)
						}
					}
				})
				replicas := uint32(3)
				if what == "the only one" {
					replicas = 1
				}
				top, err := c.node(1).topics.CreateTopic(t.Context(), "orders", metastore.TopicConfig{Replicas: replicas})
				require.NoError(t, err)
				leader := c.leader("orders", 0)
				to := c.off("orders", 0)
				from := leader.id
				if what == "a follower" {
					from = c.on("orders", 0)[0]
					if from == leader.id {
						from = c.on("orders", 0)[1]
					}
				}
				// A batch that will be repeated: the copy knows that it is one.
				batch := func() []byte {
					info := topic.BatchInfo{Incarnation: top.Incarnation, Producer: topic.ProducerBatch{ID: 77, First: 0}}
					return encode(info, time.Now(), record("once"))
				}
				send := func(n *node) (storage.Offset, error) {
					response, err := n.topics.HandleCall(t.Context(), 99, "topic.produce", topic.EncodeProduce(top.Incarnation, 0, batch()))
					require.NoError(t, err)
					return topic.DecodeProduced(response)
				}
				first, err := send(leader)
				require.NoError(t, err)
				load := c.node(2).produceSteadily(t, "orders", 0, 4000)
				pass(2 * time.Second) // four segments

				require.NoError(t, c.node(3).topics.MoveReplica(t.Context(), at("orders", 0), from, to))
				c.moved("orders", 0)
				require.Contains(t, c.on("orders", 0), to)
				require.NotContains(t, c.on("orders", 0), from)
				require.Len(t, c.on("orders", 0), int(replicas))
				want := load.end(t)
				require.Greater(t, len(want), 300)
				require.Less(t, load.longest, 3*time.Second)
				c.awaitConf(t, top, 0)
				requireOn(t, c.node(to), top, 0, want)
				require.Positive(t, c.node(to).topics.Stats().FilledIn)
				require.EqualValues(t, 1, c.node(to).topics.Stats().Fills)
				require.GreaterOrEqual(t, len(phases), 4)
				require.Equal(t, topic.MoveFinished, phases[len(phases)-1])
				if what != "the leader" { // the next one tells anew
					require.True(t, slices.IsSorted(phases), "%v", phases)
				}

				// The old replica is gone for good, its bytes are not.
				settle(t, "set aside", func() bool { return c.node(from).topics.OpenGroup(top.Incarnation, 0) == nil })
				settle(t, "set aside durably", func() bool {
					states := c.node(from).host.Replicas()
					return slices.ContainsFunc(states, func(st storage.ReplicaState) bool {
						return st.Group == top.Partitions[0].Group && st.Status == storage.ReplicaSetAside
					})
				})
				for _, s := range c.node(from).topics.Status() {
					require.NotEqual(t, "orders", s.Topic)
				}

				// The new one leads, and the batch is a repetition.
				settle(t, "the new one leads", func() bool {
					l := c.leader("orders", 0)
					if l.id == to {
						return true
					}
					id, _ := c.partition("orders", 0).On(to)
					_ = l.topics.OpenGroup(top.Incarnation, 0).TransferLeadership(t.Context(), id)
					return false
				})
				again, err := send(c.node(to))
				require.NoError(t, err)
				require.Equal(t, first, again)

				// And it is what a restart finds.
				c.crash(to, simfs.Strict)
				c.start(to)
				requireOn(t, c.node(to), top, 0, want)
				require.EqualValues(t, 0, c.node(to).topics.Stats().Fills)
			})
		})
	}
}

// Property: M3 (red: a destination that is dead was waited for without end)
//
// A destination that dies is waited for, two minutes by the leader's own clock,
// and then the partition is as it was.
func TestAMoveToADeadNodeIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newMoves(t, 4, 1, nil)
		top, err := c.node(1).topics.CreateTopic(t.Context(), "orders", metastore.TopicConfig{})
		require.NoError(t, err)
		to := c.off("orders", 0)
		c.crash(to, simfs.Strict)
		before := c.partition("orders", 0)
		require.NoError(t, c.running()[0].topics.MoveReplica(t.Context(), at("orders", 0), before.Replicas[0].Node, to))
		settle(t, "it learns", func() bool {
			s := c.leader("orders", 0).topics.OpenGroup(top.Incarnation, 0).Status()
			return len(s.Conf.Learners) == 1
		})
		c.markDead(to)
		pass(119 * time.Second)
		require.NotNil(t, c.partition("orders", 0).Target)
		begun := time.Now()
		c.moved("orders", 0)
		require.Less(t, time.Since(begun), 10*time.Second)
		require.Equal(t, before.Replicas, c.partition("orders", 0).Replicas)
		c.awaitConf(t, top, 0)
		// The node comes back, and gives up what it was to hold.
		c.start(to)
		settle(t, "nothing is left", func() bool { return c.node(to).topics.OpenGroup(top.Incarnation, 0) == nil })
		_, err = producer(t, c.running()[0], topic.ProducerConfig{}).Produce(t.Context(), "orders", record("x"))
		require.NoError(t, err)
	})
}

// A partition gets no more replicas than its topic is to have, not even when
// somebody asks.
func TestAPartitionHasEnoughReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newMoves(t, 4, 1, nil)
		_, err := c.node(1).topics.CreateTopic(t.Context(), "orders", metastore.TopicConfig{Replicas: 2})
		require.NoError(t, err)
		before := c.partition("orders", 0)
		err = c.node(1).topics.MoveReplica(t.Context(), at("orders", 0), 0, c.off("orders", 0))
		require.ErrorIs(t, err, topic.ErrEnoughReplicas)
		require.Equal(t, raftlog.OutcomeRefused, raftlog.OutcomeOf(err))
		saysWhere(t, err, "orders/0", "2")
		require.Equal(t, before, c.partition("orders", 0))
	})
}

// markDead marks a node dead in the metadata.
func (c *cluster) markDead(id raftlog.NodeID) {
	c.t.Helper()
	settle(c.t, "marked dead", func() bool {
		for _, n := range c.running() {
			m, ok := n.meta.Member(id)
			if leader, _ := n.meta.Leader(); leader == n.id && ok {
				errs, err := n.meta.MarkDead(c.t.Context(), []metastore.DeadMark{{Node: id, Judged: m.Liveness.Stamp}})
				return err == nil && errs[0] == nil
			}
		}
		return false
	})
}

// depart has a node drain, or stay after all.
func (c *cluster) depart(id raftlog.NodeID, d metastore.Departure) {
	c.t.Helper()
	settle(c.t, "departure", func() bool {
		n := c.running()[0]
		m, ok := n.meta.Member(id)
		return ok && n.meta.SetDeparture(c.t.Context(), id, m.Nonce, d) == nil
	})
}

// Property: M1, M2 (red: nothing was planned)
//
// A node that drains is emptied, eight moves at a time at most, while records
// come; one that is there for new replicas gets its share; a dead one keeps what
// it had, and its partitions say that they lack a copy.
func TestANodeIsEmptiedAndFilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, 1)
		c.config = func(cfg *topic.Config) { cfg.NoHandBack = true }
		c.startAll()
		c.upgrade()
		top, err := c.node(1).topics.CreateTopic(t.Context(), "orders", metastore.TopicConfig{Partitions: 8})
		require.NoError(t, err)
		load := c.node(2).produceSteadily(t, "orders", 3, 500)
		most := 0
		watch := func() { most = max(most, len(c.node(1).meta.Moves())) }
		holds := func(id raftlog.NodeID) (n int) {
			for i := range top.Partitions {
				if slices.Contains(c.on("orders", uint32(i)), id) {
					n++
				}
			}
			return n
		}
		require.Equal(t, 6, holds(4))
		c.depart(4, metastore.Drains)
		settle(t, "it is empty", func() bool { watch(); return holds(4) == 0 })
		require.Greater(t, most, 1)
		require.LessOrEqual(t, most, metastore.MaxMoves)
		settle(t, "nothing is open on it", func() bool { return len(c.node(4).topics.Status()) == 0 })

		c.depart(4, metastore.Stays)
		settle(t, "it has its share", func() bool { return holds(4) == 6 && len(c.node(1).meta.Moves()) == 0 })
		pass(2 * time.Second)
		require.Equal(t, 6, holds(4), "and no more")
		want := load.end(t)
		require.Less(t, load.longest, 3*time.Second)
		for _, id := range c.on("orders", 3) {
			requireOn(t, c.node(id), top, 3, want)
		}

		c.crash(4, simfs.Strict)
		c.markDead(4)
		pass(30 * time.Second)
		require.Equal(t, 6, holds(4))
		settle(t, "six lack a copy", func() bool {
			lacking := 0
			for _, n := range c.running() {
				for _, s := range n.topics.Status() {
					if slices.Equal(s.Silent, []raftlog.NodeID{4}) {
						lacking++
					}
				}
			}
			return lacking == 6
		})
	})
}

// Replicas move all the time, while nodes crash, are cut off, and lose power.
func TestReplicasMoveWhileNodesFail(t *testing.T) {
	for seed := range runs(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := &chaos{cluster: newCluster(t, 4, 100+seed), partitions: 2}
				x.acked, x.shown = map[topic.Position]string{}, map[topic.Position]string{}
				x.config = func(cfg *topic.Config) {
					cfg.CallTimeout, cfg.FetchWait = 2*time.Second, time.Second
					cfg.NoBalance = true
				}
				x.ctx, x.stop = context.WithCancel(t.Context())
				x.startAll()
				x.upgrade()
				x.create("orders", uint32(x.partitions))
				rng := rand.New(rand.NewPCG(seed, 5))
				x.loss = 0.02
				for _, n := range x.running()[:2] {
					x.load(n, seed)
				}
				moves := 0
				for range 7 {
					pass(time.Duration(rng.IntN(1500)) * time.Millisecond)
					part := uint32(rng.IntN(x.partitions))
					ctx, cancel := context.WithTimeout(x.ctx, 3*time.Second)
					n := x.running()[rng.IntN(len(x.running()))]
					if top, err := n.meta.Topic("orders"); err == nil {
						p := top.Partitions[part]
						to := raftlog.NodeID(1)
						for _, busy := p.On(to); busy; _, busy = p.On(to) {
							to++
						}
						if n.topics.MoveReplica(ctx, at("orders", part), p.Replicas[rng.IntN(len(p.Replicas))].Node, to) == nil {
							moves++
						}
					}
					cancel()
					if rng.IntN(2) == 0 {
						x.disturbAmong(rng, seed, 4)
					}
				}
				x.stop()
				x.work.Wait()
				x.cluster.mu.Lock()
				x.cluster.loss = 0
				x.cluster.mu.Unlock()
				x.startAll()
				for part := range uint32(x.partitions) {
					x.moved("orders", part)
					top, err := x.node(1).meta.Topic("orders")
					require.NoError(t, err)
					x.awaitConf(t, top, part)
				}
				t.Log("moves:", moves, "acknowledged:", x.verify())
			})
		})
	}
}

// A node that was away has its leaderships back after a while, a few at a time,
// and none while it drains.
func TestLeadershipsAreHandedBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 3, 1)
		c.create("orders", 9)
		leads := func() map[raftlog.NodeID]int {
			m := map[raftlog.NodeID]int{}
			for _, n := range c.running() {
				for _, s := range n.topics.Status() {
					if s.Role == raftlog.RoleLeaderActive {
						m[n.id]++
					}
				}
			}
			return m
		}
		// Not only as many as they should: one that leads in another's place since
		// before the crash may hand back at once.
		asPreferred := func() bool {
			top, err := c.node(1).meta.Topic("orders")
			require.NoError(t, err)
			led := 0
			for _, n := range c.running() {
				for _, s := range n.topics.Status() {
					if s.Role == raftlog.RoleLeaderActive && top.Partitions[s.Partition].Replicas[0].Node == n.id {
						led++
					}
				}
			}
			return led == 9
		}
		settle(t, "all lead where they should", asPreferred)
		c.crash(2, simfs.Strict)
		settle(t, "others lead", func() bool { m := leads(); return m[1]+m[3] == 9 })
		c.start(2)
		pass(ledForTest)
		require.Zero(t, leads()[2], "not at once")
		settle(t, "handed back", asPreferred)
		var handed uint64
		for _, n := range c.running() {
			handed += n.topics.Stats().HandedBack
		}
		require.GreaterOrEqual(t, handed, uint64(3))

		c.upgrade()
		c.crash(3, simfs.Strict)
		settle(t, "others lead", func() bool { m := leads(); return m[1]+m[2] == 9 })
		c.depart(3, metastore.Drains)
		c.start(3)
		pass(30 * time.Second)
		require.Zero(t, leads()[3])
	})
}

// ledForTest is below the 15 s that a leader leads before it hands back: not all
// were elected at one moment.
const ledForTest = 10 * time.Second
