package stele

import (
	"github.com/stelelog/stele/membership"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

// Events are functions of the host that a node calls when something happened
// to it; a nil one is not called. Package documentation has the table.
//
// They are called by one goroutine of the node, one after the other, so that
// what is told is in order and no function runs beside another. They may take
// their time, and may call every method of the node. While one runs nothing is
// lost and nothing grows: the node keeps what is newest of each partition and
// topic, and tells what is different from what it told last. (Of what leaders tell,
// MembershipNoticed and MoveChanged, of damage, fenced peers, splits and the quarantine, the
// newest 256 wait.) So who is slow
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
	// MembershipNoticed: this node leads the metadata, and noticed something about
	// members or who wants to be one. Most of it no other node knows: who is deferred
	// or refused, and why.
	MembershipNoticed func(MembershipNotice)
	// MoveChanged: a replica of a partition that this node leads is on its way to
	// another node, and farther than before, or it has arrived, or will not.
	MoveChanged func(MoveChange)
	// DamageChanged: bytes of a partition log on this node are not what was written,
	// or, without a Reason, are again. Status().Partitions shows it meanwhile. What is
	// damaged is refused to readers, who go to another replica, and is got again from
	// one; the replica goes on voting and acknowledging.
	DamageChanged func(DamageChange)
	// Reclaimed: what this node had set aside of a topic or of a copy that moved away
	// was confirmed to be over, by a majority of the voters on the metadata, and was
	// unlinked.
	Reclaimed func(Reclaimed)
	// Quarantined: a directory of this node is in quarantine: it was moved there, or was
	// there when the node was opened. See Node.Quarantine.
	Quarantined func(Quarantined)
	// ReclaimRefused: something that was set aside is kept, for now or until a person
	// has looked, for a new reason. With the reason ConfirmDissent the metadata of two
	// nodes disagree: one of them is damaged.
	ReclaimRefused func(ReclaimRefusal)
	// Restored: a RestoreQuarantined of this node has made a topic of records in
	// quarantine.
	Restored func(Restored)
	// NodeFailed: the node can serve no more until it is opened again. The error
	// is that of WaitReady: *EpochFencedError if a forced recovery left it behind.
	NodeFailed func(error)
	// TopicCreated: this node has applied a topic's creation. The topics that it
	// knew when it was opened are not told: see ListTopics. After a crash, what
	// was told last may be told again.
	TopicCreated func(Topic)
	// TopicDeleted: this node has applied the end of a topic's deletion. The
	// topic is as this node knew it last.
	TopicDeleted func(Topic)
	// TopicRetired: this node has applied that a topic was deleted with a grace.
	// Topic.Deletion says until when it can be brought back, unless it is deleted once
	// more meanwhile, which makes that later and is not told; then TopicDeleted follows,
	// or TopicUndeleted. A deletion that is taken back before it could be told is not.
	TopicRetired func(Topic)
	// TopicUndeleted: this node has applied that a topic was brought back.
	TopicUndeleted func(Topic)
	// PeerFenced: a node of before a forced recovery speaks to this one, which keeps
	// it out. It is told once a minute of each at most.
	PeerFenced func(FencedPeer)
	// MetadataSplit: this node leads the metadata, and the voters' copies of it differ
	// without a majority that has the same. Some of them are damaged, and nobody knows
	// which: a person has to. Nobody stops meanwhile, but no node is given the metadata
	// of another one, so that none can join. It is told at every comparison.
	MetadataSplit func(MetadataSplit)
}

// MetadataSplit is what Events.MetadataSplit tells.
type MetadataSplit = metastore.StateSplit

// FencedPeer is what Events.PeerFenced tells: a node of an older recovery epoch.
type FencedPeer struct {
	Name  string
	Addr  string
	Node  NodeID
	Epoch uint64 // its recovery epoch
	// Included: the plan of the recovery includes it, and was not applied to its
	// directory, which must not be emptied: see EpochFencedError.Plan. Else it was left
	// behind, as far as this node knows, and comes back only with an empty directory.
	Included bool
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

// Kinds says what has changed, in the order of a member's life; more than one thing
// may have since it was told last.
func (c MemberChange) Kinds() (kinds []MemberChangeKind) {
	from, to := c.From, c.To
	add := func(is bool, kind MemberChangeKind) {
		if is {
			kinds = append(kinds, kind)
		}
	}
	if to.Node == 0 {
		return []MemberChangeKind{MemberRemoved}
	}
	joined := from.Node == 0
	add(joined && to.Liveness.Replaces == 0, MemberJoined)
	add(joined && to.Liveness.Replaces != 0, MemberReplaced)
	add(to.Seat == SeatLearner && from.Seat == SeatNone, MemberStaged)
	add(to.Seat == SeatVoter && from.Seat != SeatVoter, MemberPromoted)
	add(to.Seat != SeatVoter && from.Seat == SeatVoter, MemberDemoted)
	add(!joined && to.Seat == SeatNone && from.Seat != SeatNone, MemberOut)
	add(!joined && to.Addr != from.Addr, MemberMoved)
	add(to.Liveness.Dead && !from.Liveness.Dead, MemberDead)
	add(!joined && from.Liveness.Dead && !to.Liveness.Dead, MemberAlive)
	was, is := from.Liveness.Departure, to.Liveness.Departure
	add((is == Drains || is == DrainsForced) && was == Stays, MemberDraining)
	add(is == Leaves && was != Leaves, MemberDrained)
	add(is == Stays && was != Stays, MemberStays)
	return kinds
}

// MemberChangeKind is what has changed of a member.
type MemberChangeKind string

// What has changed of a member.
const (
	MemberJoined   MemberChangeKind = "joined"
	MemberReplaced MemberChangeKind = "replaced" // it joined in the place of an older life of its name
	MemberStaged   MemberChangeKind = "staged"   // it is a learner: it gets the metadata, and has no vote yet
	MemberPromoted MemberChangeKind = "promoted" // it votes
	MemberDemoted  MemberChangeKind = "demoted"  // it votes no more
	MemberOut      MemberChangeKind = "out"      // it is out of the metadata's group; its record ends soon
	MemberMoved    MemberChangeKind = "moved"    // it is reached elsewhere
	MemberDead     MemberChangeKind = "dead"
	MemberAlive    MemberChangeKind = "alive" // it was dead, and is heard again
	MemberDraining MemberChangeKind = "draining"
	MemberDrained  MemberChangeKind = "drained" // all that it had is elsewhere, and it leaves
	MemberStays    MemberChangeKind = "stays"   // its decommission was taken back
	MemberRemoved  MemberChangeKind = "removed"
)

// MembershipNotice is what Events.MembershipNoticed tells: a kind, the node if it
// has an id, its name, and a reason for a person.
type MembershipNotice = membership.Event

// NoticeKind is what a MembershipNotice is about.
type NoticeKind = membership.EventKind

// What a MembershipNotice is about.
const (
	NoticeAdmitted  NoticeKind = membership.EventAdmitted  // a new member
	NoticeReplaced  NoticeKind = membership.EventReplaced  // a new member, in the place of a life of its name
	NoticeRefused   NoticeKind = membership.EventRefused   // a life that never will be one
	NoticeOlder     NoticeKind = membership.EventOlder     // a joiner whose build is too old; once a minute
	NoticeDeferred  NoticeKind = membership.EventDeferred  // a learner that gets no vote yet, for a new reason
	NoticePromoted  NoticeKind = membership.EventPromoted  // it has a vote
	NoticeDead      NoticeKind = membership.EventDead      // it was marked dead
	NoticeSpared    NoticeKind = membership.EventSpared    // silent voters are not marked: too few would be left
	NoticeStep      NoticeKind = membership.EventStep      // a member that leaves goes on: Reason names the step
	NoticeBlocked   NoticeKind = membership.EventBlocked   // a member that leaves waits for a person
	NoticeRemoved   NoticeKind = membership.EventRemoved   // a member is out
	NoticeVersion   NoticeKind = membership.EventVersion   // the cluster has a new version
	NoticeStray     NoticeKind = membership.EventStray     // a replica of the metadata votes that no member is
	NoticeForgotten NoticeKind = membership.EventForgotten // and was taken out
)

// DamageChange is what Events.DamageChanged tells.
type DamageChange = topic.DamageChange

// MoveChange is what Events.MoveChanged tells.
type MoveChange = topic.MoveProgress

// MovePhase is how far a move is.
type MovePhase = topic.MovePhase

// How far a move is.
const (
	MoveStarted   MovePhase = topic.MoveStarted   // it is wanted
	MoveFills     MovePhase = topic.MoveFills     // the new replica gets what the others have
	MoveSwaps     MovePhase = topic.MoveSwaps     // it takes the old one's place
	MoveFinished  MovePhase = topic.MoveFinished  // it has it
	MoveCancelled MovePhase = topic.MoveCancelled // it will not come, or is taken out again
)

// Reclaimed is what Events.Reclaimed tells.
type Reclaimed = topic.Reclaimed

// ReclaimRefusal is what Events.ReclaimRefused tells.
type ReclaimRefusal = topic.ReclaimRefusal

// ConfirmReason is why something is not confirmed to be over.
type ConfirmReason = metastore.ConfirmReason

// Why something is not confirmed to be over.
const (
	ConfirmUnread     ConfirmReason = metastore.ConfirmUnread     // no linearizable read of the metadata
	ConfirmNotSo      ConfirmReason = metastore.ConfirmNotSo      // the metadata here do not say so
	ConfirmHeld       ConfirmReason = metastore.ConfirmHeld       // by a forced recovery: see Node.EndHold
	ConfirmNoMajority ConfirmReason = metastore.ConfirmNoMajority // too few voters said so
	ConfirmDissent    ConfirmReason = metastore.ConfirmDissent    // a voter says otherwise: one of them is damaged
)

// ReplicaFailure is what Events.ReplicaFailed tells.
type ReplicaFailure struct {
	TopicPartition
	Err error
}
