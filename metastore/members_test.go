package metastore

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/raftlog"
)

// inRaisedCluster is inCluster at version 2.
func inRaisedCluster(t *testing.T, n int, f func(t *testing.T, c *fakeCluster)) {
	inCluster(t, n, func(t *testing.T, c *fakeCluster) {
		require.NoError(t, c.nodes[1].store.SetVersion(t.Context(), 2))
		f(t, c)
	})
}

func admission(n int) Admission { return joins(n).Admission }

func beat(n int) Heartbeat { return beats(n, 0)[0].Heartbeat }

// TestOnlyTheLeaderJudges: what rests on the leader's own clock and memory is
// not said for it by others.
func TestOnlyTheLeaderJudges(t *testing.T) {
	inRaisedCluster(t, 3, func(t *testing.T, c *fakeCluster) {
		last := c.last()
		calls := map[string]func(s *Store) error{
			"SetVersion": func(s *Store) error { return s.SetVersion(t.Context(), 2) },
			"Admit": func(s *Store) error {
				_, err := s.Admit(t.Context(), admission(4))
				return err
			},
			"RecordHeartbeats": func(s *Store) error {
				_, err := s.RecordHeartbeats(t.Context(), []Heartbeat{beat(2)})
				return err
			},
			"MarkDead": func(s *Store) error {
				_, err := s.MarkDead(t.Context(), []DeadMark{{3, 0}})
				return err
			},
		}
		for name, call := range calls {
			err := call(c.nodes[2].store)
			var notLeader *raftlog.NotLeaderError
			require.ErrorAs(t, err, &notLeader, name)
			require.Equal(t, raftlog.NodeID(1), notLeader.Node, name)
			requireOneOutcome(t, raftlog.OutcomeRetry, err)
		}
		require.Equal(t, last, c.last(), "nothing was proposed")
		for name, call := range calls {
			require.NoError(t, call(c.nodes[1].store), name)
		}
		require.Len(t, c.nodes[2].store.Members(), 4)
	})
}

// Property: C9 (red: propose did not look; HandleCall did not; real older builds: internal/campaign -story upgrade)
func TestNothingOfVersionTwoIsProposedBefore(t *testing.T) {
	inCluster(t, 3, func(t *testing.T, c *fakeCluster) {
		last := c.last()
		for _, cmd := range goldenCommands() {
			if cmd.kind() <= typeSetVersion || cmd.kind() == typeRecover { // never proposed
				continue
			}
			want := &ClusterVersionError{Needs: cmd.kind().needs(), Has: 1}
			for _, n := range c.nodes {
				_, err := n.store.propose(t.Context(), cmd)
				require.Equal(t, want, err)
			}
			_, err := c.nodes[1].store.lead(t.Context(), cmd)
			require.Equal(t, want, err)
			b, err := c.nodes[1].store.HandleCall(t.Context(), 2, MethodPropose, encodeCommand(cmd))
			require.NoError(t, err)
			require.Equal(t, want, decodeAnswer(b).err, "of a node that is ahead")
		}
		require.Equal(t, last, c.last())
		var invalid *InvalidError
		require.ErrorAs(t, c.nodes[1].store.SetVersion(t.Context(), NewestVersion+1), &invalid)
		require.Equal(t, uint64(1), c.nodes[3].store.ClusterVersion())
		require.Equal(t, typeGenesis, c.nodes[3].store.NewestApplied())
		require.NoError(t, c.nodes[1].store.SetVersion(t.Context(), 2))
		require.Equal(t, uint64(2), c.nodes[3].store.ClusterVersion())
		require.Equal(t, typeSetVersion, c.nodes[3].store.NewestApplied())
	})
}

// TestANodeOfAnOlderReleaseStops: at the command that raises the version, and it
// does not open what it does not know.
//
// Property: C9 (red: the limit was not given to decodeCommand; format.know with NewestCommand always; real older builds: internal/campaign -story upgrade)
func TestANodeOfAnOlderReleaseStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3)
		fs := simfs.New(3)
		c.start(1, simfs.New(1))
		c.start(2, simfs.New(2))
		older := c.startWith(3, fs, func(n *fakeNode) { n.newest = typeCreateLimited })
		c.elect(1)
		<-older.store.CaughtUp()
		_, err := older.store.CreateTopic(t.Context(), TopicSpec{Name: "orders"})
		require.NoError(t, err)
		c.elect(3)
		var invalid *InvalidError
		require.ErrorAs(t, older.store.SetVersion(t.Context(), 2), &invalid, "it raises nothing that it does not know")
		c.elect(1)
		require.NoError(t, c.nodes[1].store.SetVersion(t.Context(), 2))
		var unknown *UnknownCommandError
		require.ErrorAs(t, older.store.machine.failure(), &unknown)
		require.NoError(t, c.nodes[2].store.machine.failure(), "the others go on")

		require.NoError(t, older.store.Close())
		db, err := openTestMachine(fs, c.genesis)
		require.NoError(t, err, "a newer build goes on from where it stopped")
		require.NoError(t, db.Apply([]raftlog.Entry{{Index: db.applied().Index + 1, Term: 2, Data: encodeCommand(setVersion{2})}}, make([]raftlog.Result, 1)))
		require.NoError(t, db.db.close())
		_, err = open(t.Context(), Config{FS: fs, Dir: "db", Node: 3, Replica: 13, Genesis: c.genesis, Caller: older, Newest: typeCreateLimited}, func(raftlog.GroupOptions) (group, error) { return nil, errors.New("it was opened") })
		var newer *NewerStateError
		require.ErrorAs(t, err, &newer)
	})
}

// skewedClock is a clock that is off.
type skewedClock struct {
	clock.Clock
	by time.Duration
}

func (c skewedClock) Now() time.Time { return c.Clock.Now().Add(c.by) }

// Property: H1 (red: each replica added something of its own to the stamp)
func TestReplicasWithSkewedClocksStoreEqualStamps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3)
		for i, by := range []time.Duration{time.Hour, 0, -time.Hour} {
			node := raftlog.NodeID(i + 1)
			c.startWith(node, simfs.New(uint64(node)), func(n *fakeNode) { n.clock = skewedClock{clock.System(), by} })
		}
		c.elect(1)
		require.NoError(t, c.nodes[1].store.SetVersion(t.Context(), 2))
		var stamps []Stamp
		for _, leader := range []raftlog.NodeID{1, 2, 3} {
			c.elect(leader)
			s := c.nodes[leader].store
			now := s.stamp()
			each, err := s.RecordHeartbeats(t.Context(), []Heartbeat{beat(2), beat(3)})
			require.NoError(t, err)
			require.Equal(t, []error{nil, nil}, each)
			m, ok := s.Member(2)
			require.True(t, ok)
			if leader == 1 {
				require.Equal(t, now, m.Liveness.Stamp, "the leader's own clock")
				require.Equal(t, s.config.Clock.Now().UnixMilli(), m.Liveness.Stamp.Time().UnixMilli())
			}
			stamps = append(stamps, m.Liveness.Stamp)
			want := s.machine.hash(t)
			for _, n := range c.nodes {
				require.Equal(t, want, n.store.machine.hash(t))
				require.Equal(t, s.Members(), n.store.Members())
			}
		}
		require.Less(t, stamps[0], stamps[1])
		require.Less(t, stamps[1], stamps[2], "they rise, whatever the clocks say")
	})
}

// Property: H7 (red: every change of a member was loud; the end of a dead mark was quiet)
func TestHeartbeatsWakeNobody(t *testing.T) {
	inRaisedCluster(t, 3, func(t *testing.T, c *fakeCluster) {
		leader := c.nodes[1].store
		watched := func() (woken func() int) {
			var all []<-chan struct{}
			for _, n := range c.nodes {
				_, next := n.store.Watch()
				all = append(all, next)
			}
			return func() (n int) {
				synctest.Wait()
				for _, next := range all {
					select {
					case <-next:
						n++
					default:
					}
				}
				return n
			}
		}
		hear := func(n int) {
			t.Helper()
			each, err := leader.RecordHeartbeats(t.Context(), []Heartbeat{beat(n)})
			require.NoError(t, err)
			require.NoError(t, each[0])
		}
		woken := watched()
		for range 3 {
			hear(2)
		}
		m, _ := c.nodes[3].store.Member(2)
		require.NotZero(t, m.Liveness.Stamp, "they are seen")
		require.Zero(t, woken(), "and wake nobody")

		for name, change := range map[string]func(){
			"dead and alive": func() {
				m, _ := leader.Member(2)
				each, err := leader.MarkDead(t.Context(), []DeadMark{{2, m.Liveness.Stamp}})
				require.NoError(t, err)
				require.NoError(t, each[0])
				require.Equal(t, 3, woken(), "dead")
				woken = watched()
				hear(2)
			},
			"draining": func() { require.NoError(t, leader.SetDeparture(t.Context(), 3, raftlog.Nonce{3}, Drains)) },
			"address":  func() { require.NoError(t, leader.SetAddress(t.Context(), 2, raftlog.Nonce{2}, "moved:1")) },
			"admitted": func() { _, err := leader.Admit(t.Context(), admission(4)); require.NoError(t, err) },
		} {
			woken = watched()
			change()
			require.Equal(t, 3, woken(), name)
		}
	})
}

// TestTheGroupFollowsTheMembers: a replica is sent to as soon as its node is a
// member, and no longer than it is one.
func TestTheGroupFollowsTheMembers(t *testing.T) {
	inRaisedCluster(t, 3, func(t *testing.T, c *fakeCluster) {
		requirePeers := func(want map[raftlog.ReplicaID]raftlog.NodeID) {
			t.Helper()
			synctest.Wait()
			for _, n := range c.nodes {
				n.mu.Lock()
				require.Equal(t, want, n.peers)
				n.mu.Unlock()
			}
		}
		requirePeers(map[raftlog.ReplicaID]raftlog.NodeID{11: 1, 12: 2, 13: 3})
		m, err := c.nodes[1].store.Admit(t.Context(), admission(4))
		require.NoError(t, err)
		requirePeers(map[raftlog.ReplicaID]raftlog.NodeID{11: 1, 12: 2, 13: 3, m.Replica: 4})
		s := c.nodes[2].store
		require.False(t, s.ReplicaDead(1, m.Replica))
		departures := s.Departures()
		require.NoError(t, s.SetDeparture(t.Context(), 4, m.Nonce, DrainsForced))
		require.NoError(t, s.SetDeparture(t.Context(), 4, m.Nonce, DrainsForced))
		lead := c.nodes[1].store
		require.NoError(t, lead.MarkLeaving(t.Context(), 4, m.Nonce, Judged{lead.GroupStatus().Term, lead.Departures()}))
		require.NoError(t, s.RemoveMember(t.Context(), 4))
		require.NoError(t, s.RemoveMember(t.Context(), 4))
		requirePeers(map[raftlog.ReplicaID]raftlog.NodeID{11: 1, 12: 2, 13: 3})
		require.Equal(t, departures+2, s.Departures())
		require.True(t, s.ReplicaDead(1, m.Replica))
		require.False(t, s.ReplicaDead(1, m.Replica+1), "nobody has it yet")
		stone, ok, err := s.Tombstone(m.Nonce)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, Tombstone{4, m.Nonce, "node-4", false}, stone)
		byNode, ok, err := s.TombstoneOf(4)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, stone, byNode)
		_, ok, err = s.Tombstone(raftlog.Nonce{3})
		require.NoError(t, err)
		require.False(t, ok)
	})
}

// What is assigned to a node that is no member is counted, that which a move is to
// bring to it included. No command leads there: the member is taken out of what one
// node knows by hand.
//
// Property: D6 (red: the target of a move did not count; what a node holds did not)
func TestOrphansCountWhatIsPlanned(t *testing.T) {
	inRaisedCluster(t, 3, func(t *testing.T, c *fakeCluster) {
		s := c.nodes[1].store
		topic, err := s.CreateTopic(t.Context(), TopicSpec{Name: "orders", Config: TopicConfig{Partitions: 1, Replicas: 1}})
		require.NoError(t, err)
		from := topic.Partitions[0].Replicas[0]
		to := from.Node%3 + 1
		_, err = s.StartMove(t.Context(), MoveRequest{topic.Incarnation, 0, 0, to, from.Replica})
		require.NoError(t, err)
		<-s.CaughtUp()
		for gone, want := range map[raftlog.NodeID]uint64{99: 0, to: 1, from.Node: 1, to%3 + 1: 0} {
			s.machine.mu.Lock()
			all := s.machine.mu.catalog.members
			s.machine.mu.catalog.members = slices.DeleteFunc(slices.Clone(all), func(m Member) bool { return m.Node == gone })
			s.machine.mu.Unlock()
			n, err := s.Orphans()
			s.machine.mu.Lock()
			s.machine.mu.catalog.members = all
			s.machine.mu.Unlock()
			require.NoError(t, err)
			require.Equal(t, want, n, "without %v", gone)
		}
	})
}

// TestMovesFromAnyNode: with what is seen of them on all nodes.
func TestMovesFromAnyNode(t *testing.T) {
	inRaisedCluster(t, 3, func(t *testing.T, c *fakeCluster) {
		s, leader := c.nodes[3].store, c.nodes[1].store
		topic, err := s.CreateTopic(t.Context(), TopicSpec{Name: "orders", Config: TopicConfig{Partitions: 2, Replicas: 1}})
		require.NoError(t, err)
		first := topic.Partitions[0]
		from := first.Replicas[0]
		to := from.Node%3 + 1
		_, err = s.StartMove(t.Context(), MoveRequest{topic.Incarnation, 0, 7, to, from.Replica})
		require.ErrorIs(t, err, ErrStale, "it travels")
		requireOneOutcome(t, raftlog.OutcomeRefused, err)
		move, err := s.StartMove(t.Context(), MoveRequest{topic.Incarnation, 0, 0, to, from.Replica})
		require.NoError(t, err)
		again, err := leader.StartMove(t.Context(), MoveRequest{topic.Incarnation, 0, 0, to, from.Replica})
		require.NoError(t, err)
		require.Equal(t, move, again)
		for _, n := range c.nodes {
			require.Equal(t, []Move{move}, n.store.Moves())
			all, err := n.store.ListAssignments(to)
			require.NoError(t, err)
			require.True(t, all[0].Target)
			require.Equal(t, move.Target.Add.Replica, all[0].Replica)
			got, ok := all[0].Move()
			require.True(t, ok)
			require.Equal(t, move, got)
			replicas, _, err := n.store.Load(to)
			require.NoError(t, err)
			require.EqualValues(t, len(all), replicas)
			require.False(t, n.store.ReplicaDead(first.Group, move.Target.Add.Replica))
			n.store.machine.requireCatalog(t)
		}
		require.NoError(t, s.FinishMove(t.Context(), move))
		require.NoError(t, leader.FinishMove(t.Context(), move))
		require.ErrorIs(t, s.CancelMove(t.Context(), move), ErrStale)
		for _, n := range c.nodes {
			require.Empty(t, n.store.Moves())
			require.True(t, n.store.ReplicaDead(first.Group, from.Replica))
			got, err := n.store.Topic("orders")
			require.NoError(t, err)
			require.Equal(t, TopicActive, got.State)
			require.Equal(t, []Assignment{move.Target.Add}, got.Partitions[0].Replicas)
			require.Equal(t, topic.Partitions[1], got.Partitions[1])
			require.Equal(t, []raftlog.ReplicaID{from.Replica}, got.Partitions[0].FirstReplicas())
			n.store.machine.requireCatalog(t)
		}
		require.Equal(t, []raftlog.ReplicaID{from.Replica}, topic.Partitions[0].FirstReplicas(), "what was handed out stays as it was")
	})
}

// Property: J19 (red: the mark was not written)
func TestManyNodesSeedOnce(t *testing.T) {
	inRaisedCluster(t, 3, func(t *testing.T, c *fakeCluster) {
		state := InitialState{map[string]string{"b": "2", "a": "1"}, []TopicSpec{{Name: "orders"}, {Name: "mails"}}}
		times := 0
		for _, n := range c.nodes {
			seeded, err := n.store.Seed(t.Context(), state)
			require.NoError(t, err)
			if seeded {
				times++
			}
		}
		require.Equal(t, 1, times)
		require.Len(t, c.nodes[2].store.Topics(), 2)
		v, ok, err := c.nodes[3].store.Setting("a")
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, "1", v)
	})
}

// TestWhatAFullDiskTakesIn: whatever gets the cluster out of it.
func TestWhatAFullDiskTakesIn(t *testing.T) {
	for _, c := range goldenCommands() {
		var brings bool
		switch c.(type) {
		case createTopic, allocateProducer, seed:
			brings = true
		}
		require.Equal(t, !brings, essential(encodeCommand(c)), fmt.Sprintf("%T", c))
	}
}
