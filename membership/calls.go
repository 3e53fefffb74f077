package membership

import (
	"fmt"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// The calls of membership, beside MethodOrder. All but MethodBacklog are for the
// leader; other nodes name it.
const (
	MethodJoin      = "member.join"      // a JoinRequest: make me a member
	MethodPromote   = "member.promote"   // a MemberRequest: make me a voter
	MethodHeartbeat = "member.heartbeat" // a MemberRequest: I am alive
	MethodBacklog   = "member.backlog"   // a BacklogRequest of the leader: what have you not answered?
)

// JoinRequest asks for membership. It may be repeated: a nonce is a member once.
type JoinRequest struct {
	Name     string
	Nonce    raftlog.Nonce
	Addr     string                // where peers reach it
	Newest   metastore.CommandType // that it applies
	Observer bool                  // it never votes
	// SegmentBytes is the size of its logs' segments; 0: what the cluster has.
	SegmentBytes int64
}

// MemberRequest is what a member says to the leader.
type MemberRequest struct {
	Node   raftlog.NodeID
	Nonce  raftlog.Nonce
	Addr   string
	Newest metastore.CommandType
}

// BacklogRequest asks one life of a node.
type BacklogRequest struct {
	Node     raftlog.NodeID
	Nonce    raftlog.Nonce
	Draining bool // the leader knows that it is
}

// BacklogAnswer says how much a node has accepted and not answered, in bytes of
// records.
type BacklogAnswer struct {
	Node  raftlog.NodeID
	Nonce raftlog.Nonce
	// Draining: the node knew that it is draining before it counted, so nothing is
	// added to the count any more.
	Draining bool
	Count    uint64
}

// ReplyKind says what an answer to a join, promotion or heartbeat is.
type ReplyKind uint8

const (
	// ReplyAccepted: the leader has taken note; Status says how.
	ReplyAccepted ReplyKind = iota + 1
	// ReplyNotLeader: another node leads: Leader and Addr, if they are known.
	ReplyNotLeader
	// ReplyUnconfigured: this node is part of no cluster. Nonce is its life.
	ReplyUnconfigured
	// ReplyRemoved: the life that asks was removed, or refused, for ever.
	ReplyRemoved
	// ReplyOlderRelease: the asker's build applies too little; Need says how much.
	ReplyOlderRelease
	// ReplyOtherSettings: the asker was given another SegmentBytes than the cluster
	// has, which the reply says.
	ReplyOtherSettings
)

// Code is the status code of an answer for hosts that speak HTTP. Some share
// one; String tells them apart.
func (k ReplyKind) Code() int {
	switch k {
	case ReplyAccepted:
		return 200
	case ReplyNotLeader:
		return 421
	case ReplyUnconfigured:
		return 412
	case ReplyRemoved, ReplyOlderRelease, ReplyOtherSettings:
		return 409
	}
	return 500
}

// String is the answer's name, distinct for each.
func (k ReplyKind) String() string {
	names := [...]string{"none", "accepted", "not_leader", "unconfigured", "removed", "older_release", "other_settings"}
	if int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("reply(%d)", uint8(k))
}

// Status is what a member is, in an answer that accepts.
type Status uint8

const (
	// StatusStaged: a member, and a learner or soon one.
	StatusStaged Status = iota + 1
	// StatusDeferred: not now, for the reason given.
	StatusDeferred
	// StatusPromoted: it became a voter by this call.
	StatusPromoted
	// StatusVoter: it is a voter.
	StatusVoter
)

func (s Status) String() string {
	names := [...]string{"none", "staged", "deferred", "promoted", "voter"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("status(%d)", uint8(s))
}

// Reply is the answer to a join, a promotion or a heartbeat. Which fields are
// set depends on Kind.
type Reply struct {
	Kind   ReplyKind
	Status Status // accepted
	Reason string // accepted and deferred, removed, older release, other settings: for a person

	// Accepted, unless the asker is not a member yet (Node 0).
	Node      raftlog.NodeID
	Replica   raftlog.ReplicaID // of group 1
	ClusterID raftlog.ClusterID
	Epoch     uint64
	Members   []Reached // all members, the asker included
	// SegmentBytes is what all of the cluster have: accepted (0: not said), other
	// settings.
	SegmentBytes int64
	// Behind names the members that hold the cluster's version back: accepted.
	Behind []string

	Leader raftlog.NodeID        // not leader; 0: not known
	Addr   string                // of the leader; "": not known
	Nonce  raftlog.Nonce         // unconfigured
	Need   metastore.CommandType // older release
}

// Unconfigured answers a call of membership on a node that is part of no
// cluster yet.
func Unconfigured(nonce raftlog.Nonce) []byte {
	return Reply{Kind: ReplyUnconfigured, Nonce: nonce}.Encode()
}

// Reached is where a member is.
type Reached struct {
	Node    raftlog.NodeID
	Replica raftlog.ReplicaID
	Name    string
	Addr    string
}

// RemovedError says that this life of a node is no member any more, or never
// will be one, and that asking again is of no use: it needs an empty directory.
// It is Refused.
type RemovedError struct{ Reason string }

func (e *RemovedError) Error() string { return "membership: not admitted: " + e.Reason }

// Unwrap makes the error match raftlog.ErrRefused.
func (e *RemovedError) Unwrap() error { return raftlog.ErrRefused }

// Joined is what a life that joined knows of its cluster: durable in its
// IDENTITY, in place of a genesis.
type Joined struct {
	ClusterID raftlog.ClusterID
	Epoch     uint64
	Node      raftlog.NodeID
	Replica   raftlog.ReplicaID // of group 1
	// SegmentBytes is the size of log segments in the cluster; 0: it was not told.
	SegmentBytes int64
}
