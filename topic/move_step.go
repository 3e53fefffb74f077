package topic

import (
	"fmt"
	"slices"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// A move replaces a replica of a partition by one on another node. The metadata
// hold what is wanted, as the partition's target; the partition's group holds
// what is, as its configuration; and whoever leads the group takes the next step
// from the one to the other. No step rests on the memory of an earlier one, so
// it does not matter which leader took that, or how it ended.
//
//	target        configuration       next
//	add N for O   {A B O}             N learns
//	              {A B O} + N         N gets a copy, and catches up
//	              {A B O} + N         if O leads: the leadership goes to A or B
//	              {A B O}{A B N}      nothing: the group leaves it by itself
//	              {A B N}             the metadata hear that it is done
//	none          {A B N}             nothing; O's node sets its replica aside
//
// A partition of one replica has nobody to hand the leadership to before N
// votes, so there N votes beside O, leads, and then O goes. A destination that
// died, or is to leave, is taken out again while it learns, and then the target
// is cancelled. The target is cancelled only while N is in no configuration, and
// done only when O is in none that a quorum may still go back to (ConfSafe):
// its node gives it up for good at once.

// MovePhase is how far a move is.
type MovePhase uint8

const (
	// MoveStarted: it is wanted, and the new replica is not part of the group.
	MoveStarted MovePhase = 1
	// MoveFills: the new replica learns, and gets what the others have.
	MoveFills MovePhase = 2
	// MoveSwaps: it has all, and takes the old one's place.
	MoveSwaps MovePhase = 3
	// MoveFinished: it has it, and the old one is set aside.
	MoveFinished MovePhase = 4
	// MoveCancelled: the new replica is taken out of the group again, or was.
	MoveCancelled MovePhase = 5
)

func (p MovePhase) String() string {
	names := [...]string{"unknown", "started", "fills", "swaps", "finished", "cancelled"}
	if int(p) < len(names) {
		return names[p]
	}
	return fmt.Sprintf("phase(%d)", uint8(p))
}

// destination is what the metadata say of the node that a move goes to.
type destination uint8

const (
	destinationLives   destination = iota
	destinationDead                // marked dead, not for long
	destinationLost                // dead for lostAfter
	destinationLeaving             // it drains, or is no member
)

// moveFacts is what a group's leader knows when it looks for the next step.
type moveFacts struct {
	self        storage.ReplicaID
	conf        storage.ConfState // as of applied
	safe        bool              // a quorum knows durably that conf is committed
	unsettled   []storage.ReplicaID
	orphans     []storage.ReplicaID // learners that no assignment names, nor ever will
	target      *metastore.Target
	destination destination
	caughtUp    bool // the target's replica has, but for the last moments, what the leader has
	successor   bool // a voter that is neither self nor the target's lives
	ousts       bool // the new replica's node is a new life of the old one's, whose disk is lost
	contested   bool // ousts, and the old one was heard from
}

// moveStep is what a leader does next.
type moveStep uint8

const (
	stepNone     moveStep = iota // there is nothing to do
	stepWait                     // for something that comes by itself
	stepChange                   // the configuration
	stepTransfer                 // the leadership
	stepFinish                   // tell the metadata that it is done
	stepCancel                   // tell the metadata that it will not be
)

func (s moveStep) String() string {
	names := [...]string{"none", "wait", "change", "transfer", "finish", "cancel"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("step(%d)", uint8(s))
}

// nextStep is a step with all that it needs.
type nextStep struct {
	step   moveStep
	phase  MovePhase
	change raftlog.Change    // without an id
	to     storage.ReplicaID // of a transfer; 0: the best prepared
	why    string
}

// stepOf decides.
func stepOf(f *moveFacts) nextStep {
	switch {
	case len(f.conf.VotersOutgoing) > 0:
		return nextStep{step: stepWait, phase: MoveSwaps, why: "the joint configuration is being left"}
	case !f.safe:
		return nextStep{step: stepWait, why: "the configuration is not known to a quorum yet"}
	case f.target == nil && len(f.orphans) > 0:
		return nextStep{step: stepChange, change: raftlog.Change{Remove: f.orphans}, why: "learners that are no longer wanted"}
	case f.target == nil:
		return nextStep{}
	case slices.Contains(f.conf.Voters, f.target.Add.Replica):
		return f.stepOfVoter()
	case slices.Contains(f.conf.Learners, f.target.Add.Replica):
		return f.stepOfLearner()
	}
	switch f.destination {
	case destinationLost, destinationLeaving:
		return nextStep{step: stepCancel, phase: MoveCancelled, why: f.destination.String()}
	case destinationDead:
		return nextStep{step: stepWait, phase: MoveStarted, why: f.destination.String()}
	}
	add := raftlog.Change{Learners: []storage.ReplicaID{f.target.Add.Replica}}
	return nextStep{step: stepChange, phase: MoveStarted, change: add, why: "the new replica learns"}
}

// stepOfVoter is for a new replica that votes.
func (f *moveFacts) stepOfVoter() nextStep {
	old := f.target.Remove
	switch {
	case !f.isMember(old):
		return nextStep{step: stepFinish, phase: MoveFinished, why: "the group has the new replica, and not the old one"}
	case old == f.self:
		return nextStep{step: stepTransfer, phase: MoveSwaps, to: f.target.Add.Replica, why: "the old replica leads"}
	case f.ousts && !f.settledBut(old):
		return nextStep{step: stepWait, phase: MoveSwaps, why: "a voter does not know of the last change yet"}
	}
	return nextStep{step: stepChange, phase: MoveSwaps, change: raftlog.Change{Remove: []storage.ReplicaID{old}}, why: "the old replica goes"}
}

// stepOfLearner is for a new replica that learns.
func (f *moveFacts) stepOfLearner() nextStep {
	add, old := f.target.Add.Replica, f.target.Remove
	switch f.destination {
	case destinationLost, destinationLeaving:
		back := raftlog.Change{Remove: []storage.ReplicaID{add}}
		return nextStep{step: stepChange, phase: MoveCancelled, change: back, why: f.destination.String()}
	case destinationDead:
		return nextStep{step: stepWait, phase: MoveFills, why: f.destination.String()}
	}
	swap := raftlog.Change{Voters: []storage.ReplicaID{add}}
	switch {
	case !f.caughtUp:
		return nextStep{step: stepWait, phase: MoveFills, why: "the new replica is not caught up"}
	case f.contested:
		return nextStep{step: stepWait, phase: MoveSwaps, why: "the node whose place another one takes is heard from"}
	case old == f.self && f.successor:
		return nextStep{step: stepTransfer, phase: MoveSwaps, why: "the old replica leads"}
	case old == f.self && len(f.conf.Voters) > 1:
		return nextStep{step: stepWait, phase: MoveSwaps, why: "the old replica leads, and no other voter is heard from"}
	case f.ousts && !f.settledBut(old):
		return nextStep{step: stepWait, phase: MoveSwaps, why: "a voter does not know of the last change yet"}
	case old != f.self && f.isMember(old):
		swap.Remove = []storage.ReplicaID{old}
		return nextStep{step: stepChange, phase: MoveSwaps, change: swap, why: "the new replica replaces the old one"}
	}
	return nextStep{step: stepChange, phase: MoveSwaps, change: swap, why: "the new replica votes"}
}

func (f *moveFacts) isMember(r storage.ReplicaID) bool {
	return r != 0 && (slices.Contains(f.conf.Voters, r) || slices.Contains(f.conf.Learners, r))
}

// settledBut reports whether all voters but one that goes anyhow know of the
// last change: then a quorum of the rest does, whoever of them is lost next. It
// is asked where a disk is lost (R21). Where all disks are there raft's own rules
// do, and a voter that is down keeps nobody from moving.
func (f *moveFacts) settledBut(goes storage.ReplicaID) bool {
	return !slices.ContainsFunc(f.unsettled, func(r storage.ReplicaID) bool { return r != goes })
}

func (d destination) String() string {
	switch d {
	case destinationLives:
		return "the destination lives"
	case destinationDead:
		return "the destination is dead"
	case destinationLost:
		return "the destination has been dead for too long"
	case destinationLeaving:
		return "the destination is to leave"
	}
	return fmt.Sprintf("destination(%d)", uint8(d))
}
