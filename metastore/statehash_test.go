package metastore_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// hashing is a cluster of n at version 3 whose states are compared every minute,
// and a node 4 to come.
func hashing(t *testing.T, n int, seed uint64) *cluster {
	t.Helper()
	c := newCluster(t, n, seed)
	change := c.change
	c.change = func(config *metastore.Config) {
		config.StateHashInterval = time.Minute
		if change != nil {
			change(config)
		}
	}
	for id := range c.disks {
		c.start(id)
	}
	l := c.leader()
	require.NoError(t, l.meta.SetVersion(t.Context(), 3))
	return c
}

// admit makes a node a member of the cluster that runs, and a learner of its
// metadata.
func (c *cluster) admit(id raftlog.NodeID) *node {
	c.t.Helper()
	var m metastore.Member
	var err error
	for range 20 { // who leads may stop over this
		m, err = c.leader().meta.Admit(c.t.Context(), metastore.Admission{Name: fmt.Sprint("node-", id), Nonce: raftlog.Nonce{byte(id)}, Addr: "joiner:1", Newest: metastore.NewestCommand})
		if err == nil {
			break
		}
		pass(time.Second)
	}
	require.NoError(c.t, err)
	require.Equal(c.t, id, m.Node)
	c.reconfigure(raftlog.Change{ID: raftlog.ChangeID{byte(id)}, Learners: []raftlog.ReplicaID{m.Replica}})
	if c.joins == nil {
		c.joins, c.replicas = map[raftlog.NodeID]bool{}, map[raftlog.NodeID]raftlog.ReplicaID{}
	}
	c.joins[id], c.replicas[id] = true, m.Replica
	c.disks[id] = simfs.New(uint64(id) * 77)
	return c.start(id)
}

// reconfigure changes who takes part in the metadata.
func (c *cluster) reconfigure(change raftlog.Change) {
	c.t.Helper()
	var err error
	for range 20 {
		if err = c.leader().meta.Group().ChangeMembers(c.t.Context(), change); err == nil {
			return
		}
		pass(time.Second)
	}
	require.NoError(c.t, err)
}

// replica is a node's in the metadata's group.
func (c *cluster) replica(id raftlog.NodeID) raftlog.ReplicaID {
	if r := c.replicas[id]; r != 0 {
		return r
	}
	return raftlog.ReplicaID(id)
}

// lead makes a node the leader.
func (c *cluster) lead(id raftlog.NodeID) {
	c.t.Helper()
	for range 100 {
		l := c.leader()
		if l.id == id {
			return
		}
		_ = l.meta.Group().TransferLeadership(c.t.Context(), c.replica(id))
		pass(time.Second)
	}
	c.t.Fatalf("%v does not lead", id)
}

// bury has a topic that lives be dead in a node's state.
func (n *node) bury(topic metastore.Topic) {
	n.cluster.t.Helper()
	require.NoError(n.cluster.t, metastore.Damage(n.meta, func(_ map[string][]byte, set func(string, []byte)) {
		set(metastore.KeyOfTopic(topic.Incarnation), nil)
		set(metastore.KeyOfPartition(topic.Incarnation), nil)
		set(metastore.KeyOfName(topic.Name), nil)
		set(metastore.KeyOfTombstone(topic.Incarnation), metastore.TombstoneOf(topic.Name))
	}))
}

// awaitCaughtUp waits until a node has caught up, for a while.
func (n *node) awaitCaughtUp() {
	n.cluster.t.Helper()
	select {
	case <-n.meta.CaughtUp():
	case <-time.After(3 * time.Minute):
		n.cluster.t.Fatalf("%v: %s", n.id, n.meta.CatchingUp())
	}
}

// requireStopped waits until a node has found out that its state is damaged.
func (n *node) requireStopped() {
	n.cluster.t.Helper()
	for end := time.Now().Add(5 * time.Minute); n.meta.Failed() == nil && time.Now().Before(end); {
		pass(100 * time.Millisecond)
	}
	err := n.meta.Failed()
	require.ErrorIs(n.cluster.t, err, metastore.ErrStateDiverged)
	require.ErrorIs(n.cluster.t, err, raftlog.ErrRefused)
	require.ErrorContains(n.cluster.t, err, "move this node's directory away")
	for end := time.Now().Add(time.Minute); n.meta.GroupStatus().Failed == nil && time.Now().Before(end); {
		_ = n.cluster.leader().meta.Touch(n.cluster.t.Context())
	}
	require.Error(n.cluster.t, n.meta.GroupStatus().Failed, "its replica takes no part any more")
}

// requireSame checks that nodes have the state of each other.
func (c *cluster) requireSame(ids ...raftlog.NodeID) {
	c.t.Helper()
	for range 100 {
		var states []map[string][]byte
		same := true
		var first raftlog.Index
		for i, id := range ids {
			require.NoError(c.t, c.node(id).meta.Failed(), "%v", id)
			require.NoError(c.t, c.node(id).meta.Barrier(c.t.Context()), "%v", id)
			state, at, err := metastore.Dump(c.node(id).meta)
			require.NoError(c.t, err)
			states = append(states, state)
			if i == 0 {
				first = at
			}
			same = same && at == first
		}
		if !same { // an entry came in between
			continue
		}
		for i := range states {
			require.Equal(c.t, states[0], states[i], "%v and %v", ids[0], ids[i])
		}
		return
	}
	c.t.Fatal("they never were at one index")
}

// One of three is damaged, as a voter that follows, as the leader, or as a learner.
// It stops for good; the others go on, and are undisturbed. A restart does not bring
// it back, but as a node whose disk was replaced it comes.
//
// Property: X5 (red: a dissent was none; it was opened again)
func TestADamagedReplicaStops(t *testing.T) {
	for _, bad := range []raftlog.NodeID{1, 2, 4} { // a follower, the leader, a learner
		t.Run(fmt.Sprint("node-", bad), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := hashing(t, 3, 11)
				c.admit(4)
				c.node(4).awaitCaughtUp()
				c.lead(2)
				topic, err := c.node(1).meta.CreateTopic(t.Context(), metastore.TopicSpec{Name: "orders"})
				require.NoError(t, err)
				c.requireSame(1, 2, 3, 4)
				pass(3 * time.Minute)
				for id := range c.disks {
					require.NoError(t, c.node(id).meta.Failed(), "nobody is damaged")
					require.Positive(t, c.node(id).meta.StateHashStats().AgreedIndex)
				}
				damaged := c.node(bad)
				damaged.bury(topic)
				damaged.requireStopped()
				_, err = damaged.meta.Topic("orders")
				require.ErrorIs(t, err, metastore.ErrUnavailable)
				var diverged *metastore.StateDivergedError
				require.ErrorAs(t, damaged.meta.Failed(), &diverged)
				require.NotEqual(t, diverged.Own, diverged.Agreed)
				require.NotContains(t, diverged.Who, c.replica(bad))

				var others []raftlog.NodeID
				for id := range c.disks {
					if id != bad {
						others = append(others, id)
					}
				}
				_, err = c.node(others[0]).meta.CreateTopic(t.Context(), metastore.TopicSpec{Name: "after"})
				require.NoError(t, err)
				pass(3 * time.Minute)
				c.requireSame(others...)
				got, err := c.node(others[0]).meta.Topic("orders")
				require.NoError(t, err)
				require.Equal(t, topic, got)

				c.crash(bad, simfs.Strict)
				require.ErrorIs(t, c.reopen(bad), metastore.ErrStateDiverged)
				require.ErrorIs(t, c.reopen(bad), metastore.ErrStateDiverged, "nothing was changed")
				c.admit(5) // the new life
				c.requireSame(append(others, 5)...)
				c.reconfigure(raftlog.Change{ID: raftlog.ChangeID{6}, Remove: []raftlog.ReplicaID{c.replica(bad)}})
				pass(2 * time.Minute)
				c.requireSame(append(others, 5)...)
			})
		})
	}
}

// A node whose state says that a topic is dead that lives leads, and a replica that
// begins empty asks it for a snapshot. It gives none, since nobody agrees, and it
// stops over that; the next leader gives what is right.
//
// Property: X5 (red: states were given and taken that nobody agreed on: the joiner had the damaged one; a dissent was none)
func TestADamagedLeaderGivesNoSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := hashing(t, 3, 12)
		topic, err := c.node(1).meta.CreateTopic(t.Context(), metastore.TopicSpec{Name: "orders"})
		require.NoError(t, err)
		c.fill(1, 8)
		c.lead(2)
		c.node(2).bury(topic)
		var mu sync.Mutex
		sent := map[raftlog.NodeID]int{}
		c.streams = func(to raftlog.NodeID, s *stream) *stream {
			return s.through(func(b []byte) (int, error) {
				mu.Lock()
				defer mu.Unlock()
				sent[to] += len(b)
				return s.PipeWriter.Write(b)
			})
		}
		begun := time.Now()
		c.admit(4)
		c.requireSame(1, 3, 4)
		require.Less(t, time.Since(begun), 30*time.Second, "the asking brought it about")
		require.ErrorIs(t, c.node(2).meta.Failed(), metastore.ErrStateDiverged)
		got, err := c.node(4).meta.Topic("orders")
		require.NoError(t, err)
		require.Equal(t, topic, got)
		mu.Lock()
		defer mu.Unlock()
		require.Less(t, sent[2], 1<<10, "refusals")
	})
}

// Of two voters, or four, that do not agree nobody knows who is right: nobody
// stops, the leader says so, and nobody gets the state of another one.
//
// Property: X5 (red: half was a majority; states were given and taken that nobody agreed on)
func TestNobodyStopsWithoutAMajority(t *testing.T) {
	for _, n := range []int{2, 4} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var splits []metastore.StateSplit
				c := newCluster(t, n, 13)
				c.change = func(config *metastore.Config) {
					config.StateHashInterval = time.Minute
					config.OnStateSplit = func(s metastore.StateSplit) {
						mu.Lock()
						defer mu.Unlock()
						splits = append(splits, s)
					}
				}
				for id := range c.disks {
					c.start(id)
				}
				require.NoError(t, c.leader().meta.SetVersion(t.Context(), 3))
				topic, err := c.node(1).meta.CreateTopic(t.Context(), metastore.TopicSpec{Name: "orders"})
				require.NoError(t, err)
				for id := 1; id <= n/2; id++ {
					require.NoError(t, c.node(raftlog.NodeID(id)).meta.Barrier(t.Context()))
					c.node(raftlog.NodeID(id)).bury(topic)
				}
				joiner := c.admit(raftlog.NodeID(n + 1))
				pass(5 * time.Minute)
				for id := range c.disks {
					require.NoError(t, c.node(id).meta.Failed())
					require.Zero(t, c.node(id).meta.StateHashStats().AgreedIndex)
				}
				require.False(t, joiner.meta.AppliedCaughtUp(), "it was given nothing")
				require.Zero(t, joiner.meta.ClusterVersion())
				mu.Lock()
				require.GreaterOrEqual(t, len(splits), 4)
				for id := 1; id <= n; id++ {
					require.Contains(t, splits[0].Said, fmt.Sprintf("node-%d has ", id))
				}
				mu.Unlock()
				require.Positive(t, c.leader().meta.StateHashStats().Rounds[metastore.StateHashSplit])
				require.NoError(t, c.leader().meta.Touch(t.Context()), "they go on")

				// A person decides, and replaces the damaged ones' disks: here by hand.
				state, _, err := metastore.Dump(c.node(raftlog.NodeID(n)).meta)
				require.NoError(t, err)
				for id := 1; id <= n/2; id++ {
					require.NoError(t, metastore.Damage(c.node(raftlog.NodeID(id)).meta, func(was map[string][]byte, set func(string, []byte)) {
						for key := range was {
							if _, ok := state[key]; !ok {
								set(key, nil)
							}
						}
						for key, value := range state {
							if key != "a" { // each has its own applied index
								set(key, value)
							}
						}
					}))
				}
				joiner.awaitCaughtUp()
				var all []raftlog.NodeID
				for id := range c.disks {
					all = append(all, id)
				}
				c.requireSame(all...)
			})
		})
	}
}

// reopen is start, and returns the error.
func (c *cluster) reopen(id raftlog.NodeID) error {
	c.t.Helper()
	n, err := c.tryStart(id)
	if err != nil {
		n.host.Abort()
		require.NoError(c.t, n.store.Close())
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes[id] = n
	return nil
}

// A leader whose state says that the cluster is of an older version does not give it
// away as an older release does.
//
// Property: X5 (red: only the version was looked at)
func TestADamagedVersionGivesNoSnapshot(t *testing.T) {
	for name, damage := range map[string]func(was map[string][]byte, set func(string, []byte)){
		"version": func(was map[string][]byte, set func(string, []byte)) {
			set(metastore.KeyOfCluster, metastore.ClusterAt(was[metastore.KeyOfCluster], 2))
		},
		"newest command": func(_ map[string][]byte, set func(string, []byte)) {
			set(metastore.KeyOfFormat, metastore.FormatAt(metastore.NewestOf(2)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := hashing(t, 3, 14)
				pass(2 * time.Minute) // a command of version 3 was applied
				c.lead(2)
				c.requireSame(1, 2, 3)
				require.NoError(t, metastore.Damage(c.node(2).meta, damage))
				c.fill(1, 3)
				c.admit(4)
				c.requireSame(1, 3, 4)
				c.node(2).requireStopped()
			})
		})
	}
}

// A leader that cannot count, since its state lacks a voter's place, is of another
// recovery epoch or has itself for the only voter, agrees with nobody, gives nothing
// and hands over; the next leader finds it. As a follower it is found, too.
//
// Property: X5 (red: it did not hand over; its own list of voters was believed; as a follower it took no notice)
func TestALeaderThatCannotCountIsFound(t *testing.T) {
	for name, damage := range map[string]func(was map[string][]byte, set func(string, []byte)){
		"member":      func(_ map[string][]byte, set func(string, []byte)) { set(metastore.KeyOfMember(3), nil) },
		"only itself": func(was map[string][]byte, set func(string, []byte)) { set("a", metastore.AppliedBy(was["a"], 2)) },
		"other voters": func(was map[string][]byte, set func(string, []byte)) {
			set("a", metastore.AppliedBy(was["a"], 2, 7, 8))
		},
		"epoch": func(was map[string][]byte, set func(string, []byte)) {
			set(metastore.KeyOfCluster, metastore.ClusterOf(was[metastore.KeyOfCluster], 1))
		},
	} {
		for _, leads := range []bool{true, false} {
			t.Run(fmt.Sprint(name, leads), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := hashing(t, 3, 18)
					c.fill(1, 3)
					c.lead(2)
					c.requireSame(1, 2, 3)
					require.NoError(t, metastore.Damage(c.node(2).meta, damage))
					if !leads {
						c.lead(1)
					}
					_ = c.node(1).meta.SetSetting(t.Context(), "after", "value")
					c.node(2).requireStopped()
					c.admit(4)
					c.requireSame(1, 3, 4)
				})
			})
		}
	}
}

// Before version 3 nothing of it is in the log, and states are given as they are.
func TestNothingIsHashedBeforeItsVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 15)
		c.change = func(config *metastore.Config) {
			config.StateHashInterval = time.Minute
			config.Newest = metastore.NewestOf(2)
		}
		for id := range c.disks {
			c.start(id)
		}
		require.NoError(t, c.leader().meta.SetVersion(t.Context(), 2))
		c.fill(1, 3)
		pass(10 * time.Minute)
		c.admit(4)
		c.requireSame(1, 2, 3, 4)
		for id := range c.disks {
			require.LessOrEqual(t, c.node(id).meta.NewestApplied(), metastore.NewestOf(2))
			for _, n := range c.node(id).meta.StateHashStats().Rounds {
				require.Zero(t, n)
			}
		}
	})
}

// The rest of a snapshot comes from another node than its beginning did: they hold
// the same agreed state.
//
// Property: R24, X5 (red: only what was not agreed on was found again)
func TestTheRestComesFromAnotherNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := hashing(t, 3, 16)
		c.fill(1, 20)
		c.lead(2)
		var mu sync.Mutex
		sent := map[raftlog.NodeID]int{}
		c.streams = func(to raftlog.NodeID, s *stream) *stream {
			return s.through(func(b []byte) (int, error) {
				mu.Lock()
				sent[to] += len(b)
				cut := to == 2 && sent[to] > 200<<10
				mu.Unlock()
				if cut {
					c.noStreams.Store(true)
					s.Close()
					return 0, errBroken
				}
				return s.PipeWriter.Write(b)
			})
		}
		n := c.admit(4)
		for !c.noStreams.Load() {
			pass(100 * time.Millisecond)
		}
		c.crash(2, simfs.Strict)
		c.leader()
		c.noStreams.Store(false)
		n.awaitCaughtUp()
		c.requireSame(1, 3, 4)
		mu.Lock()
		defer mu.Unlock()
		require.Greater(t, sent[2], 200<<10)
		require.Less(t, sent[1]+sent[3], 20*16<<10-100<<10, "it went on where it was")
	})
}

// The log goes no farther than to what is agreed, which goes with it; who was away
// for all of it gets the state. A leader that can commit nothing, since the only
// other voter that runs is behind its log, gives the state that was agreed on before.
//
// Property: R24, X5 (red: the log went on without what was agreed; it was held back for ever)
func TestWhatIsAgreedLeadsOnInTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 17)
		c.change = func(config *metastore.Config) { config.TrimLogBytes = 256 << 10 }
		for id := range c.disks {
			c.start(id)
		}
		require.NoError(t, c.leader().meta.SetVersion(t.Context(), 3))
		c.requireSame(1, 2, 3)
		for round := range 3 {
			c.crash(3, simfs.Strict)
			c.leader()
			c.fill(1, 30)
			c.fill(1, 30)
			for id := raftlog.NodeID(1); id <= 2; id++ {
				stats, st := c.node(id).meta.StateHashStats(), c.node(id).meta.GroupStatus()
				require.Greater(t, st.LogStart, raftlog.Index(1), "%v", id)
				require.GreaterOrEqual(t, stats.AgreedIndex, st.LogStart, "%v %v %+v", id, st.Role, stats)
				require.LessOrEqual(t, metastore.Held(c.node(id).meta), 7)
			}
			if round == 1 {
				c.crash(2, simfs.Kill)
				pass(time.Minute)
			}
			c.start(3)
			c.requireSame(1, 3)
			if round == 1 {
				c.start(2)
				pass(time.Minute)
			}
		}
		pass(time.Minute)
		c.requireSame(1, 2, 3)
		// While nothing new is agreed on the log grows, up to a limit.
		c.noHashes.Store(true)
		agreed := c.node(1).meta.StateHashStats().AgreedIndex
		c.fill(1, 40)
		require.Equal(t, agreed, c.node(1).meta.StateHashStats().AgreedIndex)
		require.LessOrEqual(t, c.node(1).meta.GroupStatus().LogStart, agreed)
		c.fill(1, 60)
		require.Greater(t, c.node(1).meta.GroupStatus().LogStart, agreed)
	})
}
