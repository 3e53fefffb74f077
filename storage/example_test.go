package storage_test

import (
	"fmt"
	"log"
	"os"

	"github.com/stelelog/stele/storage"
)

// A promise survives: what WriteRound returned from is there when the directory
// is opened again, and goes to the log that readers read once it is applied.
func Example() {
	check := func(err error) {
		if err != nil {
			log.Panic(err)
		}
	}
	dir, err := os.MkdirTemp("", "stele-storage-")
	check(err)
	defer os.RemoveAll(dir)
	config := storage.Config{Dir: dir, Name: "node-1", Cluster: "hello"}

	// Replica 7 of group 2 begins, and promises two entries of term 1.
	store, err := storage.Open(config)
	check(err)
	check(store.WriteRound([]storage.Frame{
		{Kind: storage.FrameCreated, Group: 2, Replica: 7, Begin: &storage.Begin{
			Dir: "log", Index: 1, Term: 1, Conf: storage.ConfState{Voters: []storage.ReplicaID{7}},
		}},
		{Kind: storage.FrameAppend, Group: 2, Replica: 7,
			Hard: storage.HardState{Term: 1, Vote: 7, Commit: 3},
			Entries: []storage.Entry{
				{Index: 2, Term: 1, Data: []byte("hello")},
				{Index: 3, Term: 1, Data: []byte("world")},
			}},
	})) // one write and one sync, for however many replicas
	check(store.Close()) // syncs nothing: it could as well have been a crash

	store, err = storage.Open(config)
	check(err)
	defer store.Close()
	for _, replica := range store.Replicas() {
		fmt.Println(replica.Replica, "voted for", replica.Hard.Vote, "and has committed", replica.Hard.Commit)
		partition, err := store.OpenLog(replica)
		check(err)
		for _, e := range replica.Tail { // promised, and not in the log
			check(partition.Append([]storage.LogEntry{{
				Entry: e, Verdict: storage.VerdictData, BaseOffset: partition.NextOffset(), Count: 1,
			}}))
		}
		read, err := partition.ReadAt(0, 1<<20, nil)
		check(err)
		for _, f := range read.Frames {
			fmt.Printf("offset %d: %s\n", f.BaseOffset, f.Payload)
		}
		check(partition.Close())
	}
	// Output:
	// r7 voted for r7 and has committed 3
	// offset 0: hello
	// offset 1: world
}
