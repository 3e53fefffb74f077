package topic_test

import (
	"fmt"
	"testing"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

// BenchmarkPlannedDrain is a look at a node that leaves a cluster of as many
// partitions as there may be, with seven nodes.
func BenchmarkPlannedDrain(b *testing.B) {
	const nodes, perTopic = 7, 10_000
	var members []metastore.Member
	for i := range nodes {
		members = append(members, metastore.Member{Node: storage.NodeID(i + 1), Replica: storage.ReplicaID(i + 1), Name: fmt.Sprint("node-", i)})
	}
	var topics []metastore.Topic
	id := storage.ReplicaID(100)
	for n := range 10 {
		t := metastore.Topic{Name: fmt.Sprint("topic-", n), Incarnation: storage.Incarnation{byte(n + 1)}, State: metastore.TopicActive, Config: metastore.TopicConfig{Partitions: perTopic, Replicas: 3}}
		for i := range uint32(perTopic) {
			p := metastore.Partition{Index: i, Group: storage.GroupID(n*perTopic + int(i) + 2)}
			for k := range 3 {
				id++
				p.Replicas = append(p.Replicas, metastore.Assignment{Replica: id, Node: storage.NodeID((int(i)+k)%nodes + 1)})
			}
			t.Partitions = append(t.Partitions, p)
		}
		topics = append(topics, t)
	}
	b.ReportAllocs()
	for b.Loop() {
		if plan := topic.PlannedDrain(members, topics, 3); len(plan.Moves) < 40_000 {
			b.Fatal(len(plan.Moves), len(plan.Blocked))
		}
	}
}
