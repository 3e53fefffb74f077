// Package stele embeds a replicated topic log in a Go program: topics with
// partitions, each replicated by raft over the nodes of a cluster, every record
// synced on a majority before Produce returns.
//
// # How a program uses it
//
//	node, err := stele.Open(ctx, cfg)        // local work only
//	err = node.WaitReady(ctx)                // or poll node.Readiness()
//	topic, err := node.CreateTopic(ctx, "orders", stele.TopicConfig{Partitions: 12})
//
//	producer, err := node.NewProducer(stele.ProducerConfig{})
//	at, err := producer.Produce(ctx, "orders", stele.Record{Key: k, Value: v})
//	producer.ProduceAsync(ctx, "orders", record, func(at stele.Position, err error) { ... })
//
//	reader, err := node.NewReader(ctx, stele.TopicPartition{Topic: "orders", Partition: 3}, stele.FromStart())
//	for record, err := range reader.Records(ctx) { // waits at the end, until ctx ends
//		...
//	}
//
// A key always goes to the same partition; records without one are spread, a
// batch at a time. One producer and any number of goroutines is the fast way:
// records that wait for the same partition travel together. A reader belongs to
// one goroutine. Producer and Reader are documented in package topic.
//
// Everything is of one Node and ends with it; the good order is producers
// (Close flushes), readers, node. Node.Close hands leaderships over; a program
// that dies without it loses nothing, and the others need an election, about a
// second with the defaults.
//
// # One page on how it works
//
// A node is a directory and an address in a host program. Nodes that list each
// other as initial members become a cluster: the first by name founds it, when
// all were up once (package membership). From then on the cluster agrees on its
// topics in one raft group, group 1, whose state every node keeps in a small
// database (package metastore). Each partition of a topic is a raft group of its
// own, and its log is what readers read (package topic).
//
//	host program
//	  │  Open, CreateTopic, NewProducer, NewReader, Close
//	┌─▼──────────────────────── stele ───────────────────────────┐
//	│ topic        produce, read, one state machine per partition │
//	│ membership   genesis            metastore   topics, members │
//	│ raftlog      many raft groups, one loop, one outcome each   │
//	│ storage      one journal per node, one log per partition    │──▶ directory
//	│ transport    frames, calls, streams by address              │──▶ network
//	└─────────────────────────────────────────────────────────────┘
//
// Imports point downwards; what a lower package needs of a higher one it
// declares as an interface, and this package joins them.
//
// # One record's way
//
// Produce on any node picks a partition and finds its leader. If that is another
// node, the batch is forwarded, encoded once. The leader proposes it to the
// partition's raft group. All groups of a node share one loop and one journal:
// whatever waits when a sync ends is the next round, one write and one sync for
// all groups, so that batching needs no timer. Followers do the same and answer
// when their round is synced. When a majority has, the batch is applied: it gets
// its offsets, or is recognised as a retry of one that has them, and goes to the
// partition's log. Then Produce returns.
//
// The partition log is not synced: the journal is what promises. Now and then a
// checkpoint syncs the logs, notes how far they reach, and frees old journal
// files; after a crash the journal is replayed from there.
//
// # One name, many lives
//
// Names come back, ids never do. A directory's life, a node, a replica's stint in
// a group, a topic's life under its name: each has an id that is never used
// again, so a late message, a copied directory or an old disk is recognised as
// what it is.
//
// # Errors
//
// OutcomeOf says of every error whether the same call may be made again: Retry,
// nothing happened; Refused, nothing ever will; Unknown, it may have happened. A
// call that its context ended matches ctx.Err() too, and is Unknown if it could
// have taken effect.
//
// # What runs
//
// Open starts, and Close and Abort stop: the raft loop, the journal's writer, a
// checkpoint now and then, the metadata gate, the reconciler of topics, the
// transport's connections, Pebble's own goroutines. Groups that apply entries
// have a goroutine while they do. Nothing of a node is shared with another one in
// the process, and nothing exits or panics the host.
package stele
