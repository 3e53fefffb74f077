package raftlog

import (
	"github.com/stelelog/stele/storage"
	pb "go.etcd.io/raft/v3/raftpb"
)

// ProposalID is the driver's name for a proposal on this replica, never 0 and
// never used twice with one Core.
type ProposalID uint64

// ReadID is the driver's name for a linearizable read, never used twice with
// one Core.
type ReadID uint64

// Seq numbers the append effects of a Core from 1.
type Seq uint64

// Entry is one committed entry as the state machine gets it.
type Entry struct {
	Index Index
	Term  Term
	Kind  EntryKind  // normal without Data: the empty entry that opens a leader's term
	Data  []byte     // immutable
	Conf  *ConfState // configuration entries: the configuration that they lead to
}

// Effects is what a Core wants done. Core.Effects overwrites it; Append and
// Apply with Owners are handed over, the other slices are reused by the next
// call with the same Effects.
//
//	Append    write it to the journal, in order; when a sync covers it: Core.Appended
//	Send      may leave the node at once
//	Apply     apply in order, write the log; then Core.Applied
//	others    tell whom they concern
type Effects struct {
	Append *Append // nil: nothing to write
	Send   []*pb.Message

	// Apply holds committed entries that follow those of the last Effects, all
	// of them durable here. Owners, if not nil, is as long as Apply and names
	// the proposal of this replica that became the entry, or 0.
	Apply  []Entry
	Owners []ProposalID

	Proposals []ProposalEvent
	Reads     []ReadEvent
	Changes   []ChangeEvent
	Status    *Status // nil: role, term, vote, leader, readability and configuration are as before

	// Behind lists the replicas that need entries from before the start of this
	// leader's log: they need a snapshot of it, which travels beside raft. Each
	// comes once in two election timeouts, as long as it answers heartbeats.
	Behind []ReplicaID

	// OlderErr is why entries below the tail could not be read for a follower
	// that is behind. The group goes on; the follower is not served.
	OlderErr error
}

func (e *Effects) reset() {
	clear(e.Send)
	clear(e.Proposals)
	clear(e.Reads)
	clear(e.Changes)
	*e = Effects{
		Send: e.Send[:0], Proposals: e.Proposals[:0], Reads: e.Reads[:0], Changes: e.Changes[:0], Behind: e.Behind[:0],
	}
}

// Empty reports whether there is nothing to do.
func (e *Effects) Empty() bool {
	return e.Append == nil && len(e.Send) == 0 && len(e.Apply) == 0 && len(e.Proposals) == 0 &&
		len(e.Reads) == 0 && len(e.Changes) == 0 && len(e.Behind) == 0 && e.Status == nil && e.OlderErr == nil
}

// Append is one frame for the journal.
type Append struct {
	Seq   Seq
	Frame storage.Frame
	// Sync: messages wait for this frame, so it wants a sync of its own round.
	// Otherwise it only carries a commit index and may ride along with whatever
	// is synced next, but in order.
	Sync bool
}

// ProposalState says what became of a proposal.
type ProposalState uint8

const (
	// ProposalPlaced: it is in the leader's log at Index and Term.
	ProposalPlaced ProposalState = iota + 1
	// ProposalRefused: nothing happened; Err says why and is Retry or Refused.
	ProposalRefused
	// ProposalLost: it was in the log when leadership ended; Err is Unknown, or
	// Retry if another entry is known to have taken its place.
	ProposalLost
)

// ProposalEvent tells of a proposal. After Placed comes Lost, or its id in
// Effects.Owners; after Refused and Lost nothing.
type ProposalEvent struct {
	ID    ProposalID
	State ProposalState
	Index Index
	Term  Term
	Err   error
}

// ReadEvent ends a read: Index is to be applied before it is answered, or Err
// (Retry) says why no leader confirmed it.
type ReadEvent struct {
	ID    ReadID
	Index Index
	Err   error
}
