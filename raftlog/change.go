package raftlog

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

var (
	// ErrChangePending refuses a change of the configuration while another one
	// is not applied, or not left if it is joint. It comes as Retry.
	ErrChangePending = errors.New("raftlog: another change of the configuration is under way")
	// ErrNotActive refuses a change of the configuration by a leader that has not
	// yet applied an entry of its own term. It comes as Retry.
	ErrNotActive = errors.New("raftlog: the leader has not committed in its term yet")
)

// ChangeID names one wish to change a configuration. It is random; whoever asks
// again for the same wish, because the first answer was lost, uses it again.
type ChangeID [16]byte

func (id ChangeID) String() string { return hex.EncodeToString(id[:]) }

// Change is a wish to change a configuration. A replica is in one of the lists
// at most.
type Change struct {
	ID       ChangeID
	Learners []ReplicaID // to be added, or voters to be demoted
	Voters   []ReplicaID // learners to be promoted: nobody votes who did not learn first
	Remove   []ReplicaID // voters or learners
}

// ChangeError refuses a change of the configuration for good, as long as the
// configuration is what it is. Nothing happened: it matches ErrRefused.
type ChangeError struct {
	Group   GroupID
	Replica ReplicaID // 0: the change as a whole
	Reason  string
}

func (e *ChangeError) Error() string {
	if e.Replica == 0 {
		return fmt.Sprintf("raftlog: change of %v: %s", e.Group, e.Reason)
	}
	return fmt.Sprintf("raftlog: change of %v: %v %s", e.Group, e.Replica, e.Reason)
}

// Unwrap gives the outcome.
func (e *ChangeError) Unwrap() error { return ErrRefused }

// check says why a leader does not propose the change in a configuration that
// is not joint, or nil. raft would take some of it in: it removes who is not
// there, adds voters that hold nothing, and panics when the last voter goes.
func (ch *Change) check(group GroupID, conf ConfState, leader ReplicaID) error {
	refuse := func(r ReplicaID, reason string) error {
		return &ChangeError{Group: group, Replica: r, Reason: reason}
	}
	if ch.ID == (ChangeID{}) {
		return refuse(0, "it has no id")
	}
	all := slices.Concat(ch.Learners, ch.Voters, ch.Remove)
	if len(all) == 0 {
		return refuse(0, "it changes nothing")
	}
	if len(all) > maxChanges {
		return refuse(0, fmt.Sprintf("it names %d replicas, the most is %d", len(all), maxChanges))
	}
	for i, r := range all {
		if r == 0 || slices.Contains(all[:i], r) {
			return refuse(r, "is no replica, or named twice")
		}
	}
	left := len(conf.Voters) + len(ch.Voters)
	for _, r := range ch.Learners {
		switch {
		case slices.Contains(conf.Learners, r):
			return refuse(r, "is a learner already")
		case r == leader:
			return refuse(r, "leads: it does not demote itself, transfer leadership first")
		case slices.Contains(conf.Voters, r):
			left--
		}
	}
	for _, r := range ch.Voters {
		if !slices.Contains(conf.Learners, r) {
			return refuse(r, "is to vote and is no learner")
		}
	}
	for _, r := range ch.Remove {
		switch {
		case r == leader:
			return refuse(r, "leads: it does not remove itself, transfer leadership first")
		case slices.Contains(conf.Voters, r):
			left--
		case !slices.Contains(conf.Learners, r):
			return refuse(r, "is to be removed and is not in the configuration")
		}
	}
	if left <= 0 {
		return refuse(0, "it would leave no voter")
	}
	return nil
}

// maxChanges bounds the replicas that one change names.
const maxChanges = 64

// A configuration entry carries raft's ConfChangeV2, whose context names the
// wish:
//
//	context  version 1 | id 16
//
// "1" and "16" are bytes. An entry without data leaves a joint configuration
// and needs no name. A context of another length or version names no wish.
const changeVersion = 1

// encode makes the entry's data. One change goes without a joint configuration,
// more go through one that is left explicitly: that is raft's own rule.
func (ch *Change) encode() ([]byte, error) {
	cc := &pb.ConfChangeV2{Context: append([]byte{changeVersion}, ch.ID[:]...)}
	add := func(kind pb.ConfChangeType, ids []ReplicaID) {
		for _, r := range ids {
			cc.Changes = append(cc.Changes, &pb.ConfChangeSingle{Type: kind.Enum(), NodeId: new(uint64(r))})
		}
	}
	// Removals last: at no moment in between is a configuration without voters.
	add(pb.ConfChangeAddNode, ch.Voters)
	add(pb.ConfChangeAddLearnerNode, ch.Learners)
	add(pb.ConfChangeRemoveNode, ch.Remove)
	how := pb.ConfChangeTransitionAuto
	if len(cc.Changes) > 1 {
		how = pb.ConfChangeTransitionJointExplicit
	}
	cc.Transition = how.Enum()
	return proto.Marshal(cc)
}

// wishOf returns the name of the wish that a change carries, if it has one.
func wishOf(cc *pb.ConfChangeV2) (ChangeID, bool) {
	context := cc.GetContext()
	if len(context) != 1+len(ChangeID{}) || context[0] != changeVersion {
		return ChangeID{}, false
	}
	return ChangeID(context[1:]), true
}
