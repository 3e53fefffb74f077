package stele

import "github.com/stelelog/stele/storage"

// Events are functions of the host that a node calls when something happened
// to it; a nil one is not called. Package documentation has the table.
//
// They are called by one goroutine of the node, one after the other, so that
// what is told is in order and no function runs beside another. They may take
// their time, and may call every method of the node. While one runs nothing is
// lost and nothing grows: the node keeps what is newest of each partition and
// topic, and tells what is different from what it told last. So who is slow
// hears of fewer changes, never of old ones last: of three leaders of a
// partition the last one, of a topic that came and went nothing. Metrics count
// leaders that were never told.
//
// A panic in a function is logged, with its stack, and counted; the node goes
// on. After Close or Abort returned none of them runs, with one exception: they
// may themselves call Close or Abort, which then return when everything but
// that function has ended. A function must not wait for another goroutine that
// does so.
type Events struct {
	// ReadinessChanged: the code of Readiness is another one. Closing the node
	// is not told.
	ReadinessChanged func(ReadinessChange)
	// LeaderChanged: a raft group of which this node has a replica has another
	// leader or term, or none in view of this node.
	LeaderChanged func(LeaderChange)
	// ReplicaFailed: a replica of a partition on this node takes no part any
	// more, or could not be opened; it is tried again, and told again if it
	// fails in another way or after it was well. Failures to open are told
	// within a second or two.
	ReplicaFailed func(ReplicaFailure)
	// MemberChanged: a node joined the cluster, has another seat, address or
	// liveness, or is no member any more, as this node knows it. That it was heard
	// again and again is not told, nor are the members that the node knew when it
	// was opened.
	MemberChanged func(MemberChange)
	// NodeFailed: the node can serve no more until it is opened again. The error
	// is that of WaitReady.
	NodeFailed func(error)
	// TopicCreated: this node has applied a topic's creation. The topics that it
	// knew when it was opened are not told: see ListTopics. After a crash, what
	// was told last may be told again.
	TopicCreated func(Topic)
	// TopicDeleted: this node has applied the end of a topic's deletion. The
	// topic is as this node knew it last.
	TopicDeleted func(Topic)
}

// ReadinessChange is what Events.ReadinessChanged tells.
type ReadinessChange struct{ From, To Readiness }

// LeaderChange is what Events.LeaderChanged tells.
type LeaderChange struct {
	TopicPartition              // with an empty Topic: the group of the metadata
	Term           storage.Term // of the raft group; higher is later
	Leader         NodeID       // 0: none in view of this node
}

// MemberChange is what Events.MemberChanged tells. Of who joined, From has no
// Node; of who is no member any more, To.
type MemberChange struct{ From, To Member }

// ReplicaFailure is what Events.ReplicaFailed tells.
type ReplicaFailure struct {
	TopicPartition
	Err error
}
