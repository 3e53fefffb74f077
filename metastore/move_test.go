package metastore

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/raftlog"
)

// moving is a state with a topic of two partitions on nodes 1 to 3, and two more
// nodes; replicas 14 to 16 hold the first partition.
func moving(t *testing.T) memView {
	v := seeded(t, testGenesis(3)).atTwo(t)
	v.do(t, createTopic{inc(1), "orders", TopicConfig{Partitions: 2}}, joins(4), joins(5))
	require.Equal(t, []Assignment{{14, 1}, {15, 2}, {16, 3}}, newTx(v).partition(inc(1), 0).Replicas)
	return v
}

// TestAMovePutsOneReplicaInAnothersPlace: with an id of its own, at the same
// place in the order, and the loads follow.
func TestAMovePutsOneReplicaInAnothersPlace(t *testing.T) {
	v := moving(t)
	before := newTx(v).load(1)
	c := startMove{MoveRequest{inc(1), 0, 0, 4, 14}, 900}
	p := v.do(t, c).(Partition)
	require.Equal(t, Partition{
		Index: 0, Group: 2, Replicas: []Assignment{{14, 1}, {15, 2}, {16, 3}}, Generation: 1,
		Target: &Target{Assignment{22, 4}, 14, 900}, first: []raftlog.ReplicaID{14, 15, 16},
	}, p)
	require.Equal(t, load{1, 0}, newTx(v).load(4), "what comes counts")
	c.Stamp = 950
	require.Equal(t, p, v.do(t, c), "asked again")

	finish := finishMove{endMove{inc(1), 0, 1, 22}}
	v.do(t, finish, finish)
	p = newTx(v).partition(inc(1), 0)
	require.Equal(t, []Assignment{{22, 4}, {15, 2}, {16, 3}}, p.Replicas)
	require.Equal(t, uint64(2), p.Generation)
	require.Nil(t, p.Target)
	require.Equal(t, []raftlog.ReplicaID{14, 15, 16}, p.FirstReplicas(), "the group began with them, for ever")
	require.Equal(t, load{1, 1}, newTx(v).load(4), "it leads what the other led")
	require.Equal(t, load{before.Replicas - 1, before.Leads - 1}, newTx(v).load(1))
	require.ErrorIs(t, v.refuses(t, cancelMove{endMove{inc(1), 0, 1, 22}}), ErrStale, "it was finished")

	p = v.do(t, startMove{MoveRequest{inc(1), 0, 2, 1, 0}, 990}).(Partition)
	require.Equal(t, raftlog.ReplicaID(23), p.Target.Add.Replica, "a second stint of a node has an id of its own")
	v.do(t, finishMove{endMove{inc(1), 0, 3, 23}})
	p = newTx(v).partition(inc(1), 0)
	require.Equal(t, []Assignment{{22, 4}, {15, 2}, {16, 3}, {23, 1}}, p.Replicas, "one more")
	require.Equal(t, []raftlog.ReplicaID{14, 15, 16}, p.FirstReplicas())
}

func TestAMoveIsCancelled(t *testing.T) {
	v := moving(t)
	before := newTx(v).load(4)
	v.do(t, startMove{MoveRequest{inc(1), 1, 0, 4, 18}, 900})
	cancel := cancelMove{endMove{inc(1), 1, 1, 22}}
	v.do(t, cancel, cancel)
	require.ErrorIs(t, v.refuses(t, finishMove{endMove{inc(1), 1, 1, 22}}), ErrStale, "it was cancelled")
	require.Equal(t, before, newTx(v).load(4))
	p := newTx(v).partition(inc(1), 1)
	require.Nil(t, p.Target)
	require.Equal(t, uint64(2), p.Generation)
	p = v.do(t, startMove{MoveRequest{inc(1), 1, 2, 4, 18}, 950}).(Partition)
	require.Equal(t, raftlog.ReplicaID(23), p.Target.Add.Replica, "an id is used once")
}

// TestMoveRefusals: each step compares and swaps.
//
// Property: M1 (red: generations were not compared; a move was begun over another one; nine at a time)
func TestMoveRefusals(t *testing.T) {
	start := func(index uint32, generation uint64, to raftlog.NodeID, remove raftlog.ReplicaID) startMove {
		return startMove{MoveRequest{inc(1), index, generation, to, remove}, 900}
	}
	elsewhere := start(0, 0, 4, 14)
	elsewhere.Incarnation = inc(7)
	for name, c := range map[string]struct {
		before  []command
		command command
		want    error
	}{
		"no topic":             {nil, elsewhere, ErrTopicNotFound},
		"no partition":         {nil, start(2, 0, 4, 14), ErrTopicNotFound},
		"no node":              {nil, start(0, 0, 9, 14), ErrMemberNotFound},
		"a removed node":       {departs(4), start(0, 0, 4, 14), &RemovedError{4, "node-4"}},
		"a dead node":          {[]command{markDead{{4, 400}}}, start(0, 0, 4, 14), ErrMemberDead},
		"a draining node":      {[]command{setDeparture{4, raftlog.Nonce{4}, Drains}}, start(0, 0, 4, 14), ErrMemberDraining},
		"a node that holds it": {nil, start(0, 0, 3, 14), ErrReplicaExists},
		"no such replica":      {nil, start(0, 0, 4, 18), ErrStale},
		"a later generation":   {nil, start(0, 1, 4, 14), ErrStale},
		"an earlier one":       {[]command{start(0, 0, 4, 14), cancelMove{endMove{inc(1), 0, 1, 22}}}, start(0, 0, 5, 14), ErrStale},
		"a move is under way":  {[]command{start(0, 0, 4, 14)}, start(0, 1, 5, 15), ErrMovePending},
		"another one won":      {[]command{start(0, 0, 4, 14)}, start(0, 0, 5, 14), ErrStale},
		"it is being deleted":  {[]command{topicDeleting{inc(1)}}, start(0, 0, 4, 14), ErrTopicDeleting},
		"finish: none":         {nil, finishMove{endMove{inc(1), 0, 0, 14}}, ErrStale},
		"finish: another add":  {[]command{start(0, 0, 4, 14)}, finishMove{endMove{inc(1), 0, 1, 21}}, ErrStale},
		"finish: another gen":  {[]command{start(0, 0, 4, 14)}, finishMove{endMove{inc(1), 0, 2, 22}}, ErrStale},
		"finish: no topic":     {nil, finishMove{endMove{inc(7), 0, 1, 22}}, ErrTopicNotFound},
		"cancel: another add":  {[]command{start(0, 0, 4, 14)}, cancelMove{endMove{inc(1), 0, 1, 21}}, ErrStale},
		"cancel: another gen":  {[]command{start(0, 0, 4, 14)}, cancelMove{endMove{inc(1), 0, 0, 22}}, ErrStale},
		"cancel: no partition": {nil, cancelMove{endMove{inc(1), 5, 1, 22}}, ErrTopicNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			v := moving(t)
			v.do(t, c.before...)
			err := v.refuses(t, c.command)
			if removed, ok := c.want.(*RemovedError); ok {
				require.Equal(t, removed, err)
				return
			}
			require.ErrorIs(t, err, c.want)
		})
	}
}

func TestEightMovesAtATime(t *testing.T) {
	v := seeded(t, testGenesis(3)).atTwo(t)
	v.do(t, joins(4), createTopic{inc(1), "orders", TopicConfig{Partitions: 10, Replicas: 3}}, createTopic{inc(2), "mails", TopicConfig{Partitions: 1, Replicas: 1}})
	start := func(i int, to raftlog.NodeID) startMove {
		return startMove{MoveRequest{inc(1), uint32(i), 0, to, 0}, 900}
	}
	outsider := func(i int) raftlog.NodeID {
		for n := raftlog.NodeID(1); ; n++ {
			if _, on := newTx(v).partition(inc(1), uint32(i)).On(n); !on {
				return n
			}
		}
	}
	for i := range MaxMoves {
		v.do(t, start(i, outsider(i)))
	}
	require.ErrorIs(t, v.refuses(t, start(8, outsider(8))), ErrTooManyMoves)
	first := newTx(v).partition(inc(1), 0)
	v.do(t, finishMove{endMove{inc(1), 0, 1, first.Target.Add.Replica}}, start(8, outsider(8)))
	require.ErrorIs(t, v.refuses(t, start(9, outsider(9))), ErrTooManyMoves)
	v.do(t, topicDeleting{inc(1)}, topicDeleted{inc(1)})
	require.Zero(t, newTx(v).moves(), "they end with their topic")
	for n := raftlog.NodeID(1); n <= 4; n++ {
		require.LessOrEqual(t, newTx(v).load(n).Replicas, uint64(1))
	}
}

// TestADeadReplicaIsToldFromALivingOne: for each state on the way of a log, what
// it says to be dead is dead in all later ones, and never what has a place.
func TestADeadReplicaIsToldFromALivingOne(t *testing.T) {
	v := moving(t)
	steps := []command{
		noop{},
		startMove{MoveRequest{inc(1), 0, 0, 4, 14}, 1}, finishMove{endMove{inc(1), 0, 1, 22}},
		startMove{MoveRequest{inc(1), 1, 0, 5, 0}, 1}, cancelMove{endMove{inc(1), 1, 1, 23}},
		createTopic{inc(2), "mails", TopicConfig{Partitions: 2, Replicas: 2}},
		joins(6), topicDeleting{inc(1)}, topicDeleted{inc(1)},
	}
	steps = append(steps, departs(6)...)
	dead := map[string]bool{}
	for _, c := range steps {
		v.do(t, c)
		catalog, err := loadCatalog(v)
		require.NoError(t, err)
		living := map[string]bool{}
		place := func(g raftlog.GroupID, r raftlog.ReplicaID) string { return fmt.Sprint(g, "/", r) }
		for _, m := range catalog.members {
			living[place(1, m.Replica)] = true
		}
		for _, topic := range catalog.topics {
			for _, p := range topic.Partitions {
				for _, a := range p.Replicas {
					living[place(p.Group, a.Replica)] = true
				}
				if p.Target != nil {
					living[place(p.Group, p.Target.Add.Replica)] = true
				}
			}
		}
		for g := raftlog.GroupID(0); g < 10; g++ {
			for r := raftlog.ReplicaID(0); r < 40; r++ {
				says := catalog.replicaDead(g, r)
				require.False(t, says && living[place(g, r)], "%T: %v/%v", c, g, r)
				require.True(t, says || !dead[place(g, r)], "%T: %v/%v was dead", c, g, r)
				dead[place(g, r)] = says
				require.Equal(t, r > 0 && uint64(r) < catalog.nextReplica && !living[place(g, r)], says, "%T: %v/%v", c, g, r)
			}
		}
		require.False(t, catalog.replicaDead(1, raftlog.ReplicaID(makeID(1, 3))), "of a later recovery epoch")
	}
	require.True(t, dead["g2/r14"], "%v", dead)
	empty, err := loadCatalog(memView{})
	require.NoError(t, err)
	require.False(t, empty.replicaDead(1, 1), "an empty state knows nothing")
}

// TestAnOlderEpochsReplicasAreDead: they were lost with it, unless somebody has
// them.
func TestAnOlderEpochsReplicasAreDead(t *testing.T) {
	g := testGenesis(1)
	g.Epoch = 3
	g.Members[0].Node, g.Members[0].Replica = raftlog.NodeID(makeID(3, 9)), raftlog.ReplicaID(makeID(3, 40))
	c, err := loadCatalog(seeded(t, g))
	require.NoError(t, err)
	require.True(t, c.replicaDead(1, raftlog.ReplicaID(makeID(2, 500))))
	require.True(t, c.replicaDead(1, raftlog.ReplicaID(makeID(3, 39))))
	require.False(t, c.replicaDead(1, raftlog.ReplicaID(makeID(3, 40))))
	require.False(t, c.replicaDead(1, raftlog.ReplicaID(makeID(3, 41))))
}
