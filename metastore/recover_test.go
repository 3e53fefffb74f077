package metastore

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/raftlog"
)

// goldenRecovery is a command with something of everything.
func goldenRecovery() recovery {
	return recovery{
		Epoch: 2, Plan: [16]byte{7}, Stamp: 1000,
		Left:   []RecoveredMember{{1, raftlog.Nonce{1}, 11}, {4, raftlog.Nonce{4}, 2<<48 + 1}},
		Forced: []ForcedGroup{{2, 12}, {4, 1<<48 + 9}}, Lost: []raftlog.GroupID{3, 5},
	}
}

// TestRecoveryBeginsAnEpoch: what the lost part of the log gave out does not come
// again, who is lost goes, and who is left stays.
//
// Property: R33 (red: the epoch was not raised; the counter of replicas stayed below the ids that the recovery gives out; names of producers were kept; members that are lost were not made to leave)
func TestRecoveryBeginsAnEpoch(t *testing.T) {
	v := seeded(t, testGenesis(3))
	v.do(t, setVersion{2}, createTopic{inc(1), "orders", TopicConfig{Partitions: 3, Replicas: 3}})
	before := v.do(t, allocateProducer{"billing", [16]byte{7}, 0, false}).(producer)
	require.Equal(t, ProducerID(1), before.ID)
	lost := map[uint64]bool{} // what the rest of the log, which is lost, gave out
	gone := newTx(v)
	for i := range 40 {
		_, refusal, err := decide(gone, createTopic{inc(10 + i), fmt.Sprint("gone-", i), TopicConfig{Partitions: 3, Replicas: 3}})
		require.NoError(t, err)
		require.NoError(t, refusal)
	}
	c, err := loadCatalog(gone)
	require.NoError(t, err)
	for _, topic := range c.sorted() {
		for _, p := range topic.Partitions {
			lost[uint64(p.Group)] = true
			for _, a := range p.Replicas {
				lost[uint64(a.Replica)] = topic.Name != "orders"
			}
		}
	}

	left := []RecoveredMember{{2, raftlog.Nonce{2}, 12}, {3, raftlog.Nonce{3}, 1<<48 + 90}}
	v.do(t, recovery{1, [16]byte{7}, 500, left, []ForcedGroup{{2, raftlog.ReplicaID(15)}}, []raftlog.GroupID{3}})
	require.NoError(t, checkInvariants(v))
	x := newTx(v)
	require.Equal(t, cluster{testGenesis(3).ClusterID, 1, 2}, x.cluster())
	members := x.members()
	require.Len(t, members, 3)
	require.True(t, members[0].Liveness.Dead && members[0].Liveness.Departure == DrainsForced, "%+v", members[0])
	require.False(t, members[1].Liveness.Dead || members[1].Liveness.Draining(), "%+v", members[1])
	require.Equal(t, []raftlog.ReplicaID{11, 12, 1<<48 + 90}, []raftlog.ReplicaID{members[0].Replica, members[1].Replica, members[2].Replica})

	now := v.do(t, allocateProducer{"billing", [16]byte{7}, 0, false}).(producer)
	require.Greater(t, now.ID, before.ID, "the id under which the lost part may have granted more")
	topic := v.do(t, createTopic{inc(99), "new", TopicConfig{Partitions: 40, Replicas: 2}}).(*Topic)
	for _, p := range topic.Partitions {
		require.False(t, lost[uint64(p.Group)], "%v came again", p.Group)
		for _, a := range p.Replicas {
			require.False(t, lost[uint64(a.Replica)], "%v came again", a.Replica)
			require.NotEqual(t, raftlog.ReplicaID(1<<48+90), a.Replica)
			require.NotEqual(t, raftlog.NodeID(1), a.Node, "a lost node gets nothing")
		}
	}
	require.ErrorIs(t, v.refuses(t, recovery{1, [16]byte{8}, 501, left, nil, nil}), ErrStale, "a second one of the same epoch")
}

// TestRecoveryLeavesWhatGoesOn: partitions that lost their majority have the one
// replica that goes on or none; their topics can be deleted; the others are as
// they were.
//
// Property: R33 (red: the loads of what went stayed; the move under way stayed)
func TestRecoveryLeavesWhatGoesOn(t *testing.T) {
	v := seeded(t, testGenesis(3))
	v.do(t, setVersion{2}, joins(4), createTopic{inc(1), "orders", TopicConfig{Partitions: 3, Replicas: 3}})
	p := newTx(v).partition(inc(1), 0)
	v.do(t, startMove{MoveRequest{inc(1), 0, 0, otherThan(p, 4), p.Replicas[0].Replica}, 5})
	p = newTx(v).partition(inc(1), 0)
	kept := newTx(v).partition(inc(1), 2)
	v.do(t, recovery{1, [16]byte{7}, 500, []RecoveredMember{{4, raftlog.Nonce{4}, 1<<48 + 1}},
		[]ForcedGroup{{p.Group, p.Target.Add.Replica}}, []raftlog.GroupID{p.Group + 1}})
	require.NoError(t, checkInvariants(v))
	forced, none := newTx(v).partition(inc(1), 0), newTx(v).partition(inc(1), 1)
	require.Equal(t, []Assignment{p.Target.Add}, forced.Replicas, "the one that a move was bringing can be the one")
	require.Nil(t, forced.Target)
	require.Equal(t, p.Generation+1, forced.Generation)
	require.Equal(t, p.FirstReplicas(), forced.FirstReplicas(), "what the group began with does not change")
	require.Empty(t, none.Replicas)
	require.Equal(t, kept, newTx(v).partition(inc(1), 2))

	r := newTx(v).recoveries()
	require.Len(t, r, 1)
	require.Equal(t, Recovery{1, [16]byte{7}, 500, true, []raftlog.NodeID{1, 2, 3}, []ForcedGroup{{p.Group, p.Target.Add.Replica}}, []raftlog.GroupID{p.Group + 1}}, r[0])
	require.ErrorIs(t, v.refuses(t, endHold{2}), raftlog.ErrRefused, "nobody has seen a later one")
	v.do(t, endHold{1}, endHold{1})
	require.False(t, newTx(v).recoveries()[0].DestructionHeld)
	v.do(t, topicDeleting{inc(1)}, topicDeleted{inc(1)})
	require.NoError(t, checkInvariants(v))
}

// otherThan returns a node up to n that the partition is not on.
func otherThan(p Partition, n raftlog.NodeID) raftlog.NodeID {
	for {
		if _, on := p.On(n); !on {
			return n
		}
		n--
	}
}

// TestRecoveryOfAnyState: whatever a cluster was, and whichever of its nodes and
// partitions are left, the state is sound, its catalog follows it, and it can go on.
func TestRecoveryOfAnyState(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		v := seeded(t, testGenesis(3))
		c, err := loadCatalog(v)
		require.NoError(t, err)
		step := func(cmd command) {
			x := newTx(v)
			_, _, err := decide(x, cmd)
			require.NoError(t, err, "seed %d: %T", seed, cmd)
			now := x.news()
			v.commit(x)
			require.NoError(t, c.follow(x.changes, now))
			fresh, err := loadCatalog(v)
			require.NoError(t, err)
			require.Equal(t, fresh, c, "seed %d: %T", seed, cmd)
			require.NoError(t, checkInvariants(v), "seed %d: %T", seed, cmd)
		}
		run := func() {
			for range 30 {
				step(randomMemberCommand(r, v))
			}
		}
		step(setVersion{2})
		run()
		for epoch := uint64(1); epoch < 4; epoch++ {
			step(randomRecovery(r, c, epoch))
			run()
		}
	}
}

func randomRecovery(r *rand.Rand, c *catalog, epoch uint64) recovery {
	cmd := recovery{Epoch: epoch, Stamp: 9}
	for _, m := range c.members {
		if r.IntN(2) == 0 || m.Node == c.members[len(c.members)-1].Node && len(cmd.Left) == 0 {
			cmd.Left = append(cmd.Left, RecoveredMember{m.Node, m.Nonce, raftlog.ReplicaID(makeID(epoch, uint64(len(cmd.Left)+1)))})
		}
	}
	for _, g := range c.groups {
		for _, p := range c.topics[g.of].Partitions {
			switch r.IntN(3) {
			case 0:
				cmd.Lost = append(cmd.Lost, p.Group)
			case 1:
				if len(p.Replicas) > 0 {
					cmd.Forced = append(cmd.Forced, ForcedGroup{p.Group, p.Replicas[r.IntN(len(p.Replicas))].Replica})
				}
			}
		}
	}
	return cmd
}
