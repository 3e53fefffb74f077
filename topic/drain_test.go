package topic_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

// Where the replicas of a node go that leaves: elsewhere if there is room, and what
// was on its way to it does not come.
func TestPlannedDrain(t *testing.T) {
	on := func(nodes ...storage.NodeID) (p metastore.Partition) {
		for _, n := range nodes {
			p.Replicas = append(p.Replicas, metastore.Assignment{Node: n, Replica: storage.ReplicaID(10 + n)})
		}
		return p
	}
	moving := func(p metastore.Partition, to storage.NodeID, remove storage.ReplicaID) metastore.Partition {
		p.Target = &metastore.Target{Add: metastore.Assignment{Node: to, Replica: 99}, Remove: remove}
		return p
	}
	members := []metastore.Member{{Node: 1}, {Node: 2}, {Node: 3}, {Node: 4}}
	plan := func(p metastore.Partition, node storage.NodeID) topic.Plan {
		topics := []metastore.Topic{{Name: "t", State: metastore.TopicActive, Partitions: []metastore.Partition{p}}}
		got := topic.PlannedDrain(members, topics, node)
		require.Equal(t, p.Target, topics[0].Partitions[0].Target, "nothing is changed")
		return got
	}
	got := plan(on(1, 2, 3), 3)
	require.Len(t, got.Moves, 1)
	require.Equal(t, storage.NodeID(4), got.Moves[0].To)
	require.Empty(t, plan(on(1, 2, 3), 4))
	require.Equal(t, []topic.BlockedReplica{{TopicPartition: topic.TopicPartition{Topic: "t"}, Node: 4}}, plan(on(1, 2, 3, 4), 4).Blocked)
	require.Equal(t, storage.NodeID(4), plan(moving(on(1, 2, 3), 4, 13), 3).Moves[0].To, "on its way")
	require.Empty(t, plan(moving(on(1, 2, 3), 4, 13), 4), "it does not come")
	members[3].Liveness.Dead = true
	require.Len(t, plan(on(1, 2, 3), 3).Blocked, 1, "nothing goes to a dead node")
}
