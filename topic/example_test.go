package topic_test

import (
	"fmt"
	"log"
	"os"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

// alone is the network of a node that has no peers.
type alone struct{}

func (alone) Send(raftlog.NodeID, uint8, []byte) {}

// One partition in a raft group of the program's own, here of one node. Where
// partitions have names and places that a cluster agrees on, open a Manager
// over a metastore.Store instead.
func Example() {
	check := func(err error) {
		if err != nil {
			log.Panic(err)
		}
	}
	dir, err := os.MkdirTemp("", "stele-topic-")
	check(err)
	defer os.RemoveAll(dir)
	store, err := storage.Open(storage.Config{Dir: dir, Name: "node-1", Cluster: "hello"})
	check(err)
	defer store.Close()
	host, err := raftlog.Open(raftlog.Config{Node: 1, Store: store, Sender: alone{}})
	check(err)
	defer host.Abort()

	life := storage.Incarnation{1} // random, for each topic that is made
	topicDir, err := store.CreateTopicDir("orders", life)
	check(err)
	partition, err := topic.NewPartition(topic.PartitionConfig{Topic: "orders", Incarnation: life})
	check(err)
	leads := make(chan struct{}, 1)
	group, err := host.OpenGroup(raftlog.GroupOptions{
		Group: 2, Replica: 1, Peers: map[raftlog.ReplicaID]raftlog.NodeID{1: 1},
		Create: &raftlog.Begin{
			Dir: storage.ReplicaDir(topicDir, 0, 1), Index: 1, Term: 1,
			Conf: raftlog.ConfState{Voters: []raftlog.ReplicaID{1}},
		},
		Machine: partition,
		OnStatus: func(s raftlog.Status) {
			partition.Wake() // readers look again
			if s.Role == raftlog.RoleLeaderActive {
				select {
				case leads <- struct{}{}:
				default: // it must not block
				}
			}
		},
	})
	check(err)
	partition.Bind(group)
	defer partition.Close()
	<-leads

	done := make(chan topic.Ack, 1)
	check(partition.Append(topic.ProducerBatch{}, []topic.Record{
		{Key: []byte("k"), Value: []byte("hello")}, {Value: []byte("world")},
	}, func(a topic.Ack) { done <- a }))
	ack := <-done // synced on a quorum
	check(ack.Err)
	fmt.Println("appended at offset", ack.Base)

	fetched, err := partition.Fetch(topic.FetchRequest{From: 0, MaxBytes: 1 << 20}, nil)
	check(err)
	for data := fetched.Data; len(data) > 0; {
		var batch topic.Batch
		batch, data, err = topic.ReadBatch(data)
		check(err)
		var records topic.BatchRecords
		for records.Reset(batch); records.Next(); {
			fmt.Printf("%d: %s\n", records.Offset(), records.Record().Value)
		}
		check(records.Err())
	}
	// Output:
	// appended at offset 0
	// 0: hello
	// 1: world
}
