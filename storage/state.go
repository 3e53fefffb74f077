package storage

import (
	"errors"
	"fmt"
)

// EntryKind is what a raft entry carries. The values are raft's own.
type EntryKind uint8

const (
	// EntryNormal carries a proposal; without data it is the empty entry that
	// opens a leader's term.
	EntryNormal EntryKind = 0
	// EntryConfChange and EntryConfChangeV2 carry configuration changes.
	EntryConfChange   EntryKind = 1
	EntryConfChangeV2 EntryKind = 2
)

// Entry is one raft entry. Its Data is immutable once it was handed over.
type Entry struct {
	Index Index
	Term  Term
	Kind  EntryKind
	Data  []byte
}

// HardState is what a replica has promised.
type HardState struct {
	Term   Term
	Vote   ReplicaID // 0: none
	Commit Index
}

// ConfState is a raft configuration.
type ConfState struct {
	Voters         []ReplicaID
	Learners       []ReplicaID
	VotersOutgoing []ReplicaID // not empty: joint
	LearnersNext   []ReplicaID
	AutoLeave      bool
}

// ReplicaStatus says whether a replica is still of use.
type ReplicaStatus uint8

const (
	// ReplicaLive takes part in its group.
	ReplicaLive ReplicaStatus = 1
	// ReplicaSetAside was taken out of use: its directory may be in
	// quarantine, and a missing directory is not damage.
	ReplicaSetAside ReplicaStatus = 2
)

// ReplicaState is all that is known of one replica: what Recover returns, what
// a rotation captures, and (without Tail, unless its log failed) a row of the
// checkpoint table.
//
// Invariants: Log.LastIndex <= Hard.Commit; Tail is contiguous and starts at
// Log.LastIndex+1; Conf is the configuration as of Log.LastIndex.
type ReplicaState struct {
	Group   GroupID
	Replica ReplicaID
	Status  ReplicaStatus
	Dir     string // of its log, relative to the node's directory, '/' separated
	Hard    HardState
	Conf    ConfState
	Log     LogPosition
	Tail    []Entry // entries above Log.LastIndex
}

// LogPosition is a point in a partition log at which everything before it has
// been applied.
type LogPosition struct {
	Reset      uint64 // id of the reset that began this log; 0: none yet
	StartIndex Index  // the log holds entries above it
	StartTerm  Term   // term of StartIndex
	LastIndex  Index  // last entry written; StartIndex if none
	LastTerm   Term   // its term
	NextOffset Offset // the offset that the next record gets
	SegIndex   Index  // name of the active segment: index of its first entry, and
	SegOffset  Offset // NextOffset at its start; meaningless while !Exists
	SegBytes   int64  // bytes of the active segment that belong to the log
	Exists     bool   // files exist; false: nothing was ever written
	AuxIndex   Index  // newest state-machine side file (producer state) at or below LastIndex; 0: none
}

// FrameKind is a kind of journal frame. Unknown kinds are refused.
type FrameKind uint8

const (
	FrameAppend    FrameKind = 1 // entries and hard state; without entries: hard state
	FrameCreated   FrameKind = 2 // a replica begins; precedes its first vote
	FrameDestroyed FrameKind = 3 // a replica ended for good
	FrameReset     FrameKind = 4 // the log begins anew at a snapshot; in files, 7 if the staged log holds entries
	FrameCarry     FrameKind = 5 // state as of the start of a generation; written by rotation alone
	FrameSetAside  FrameKind = 6 // a replica was taken out of use

	// frameStaged is how a reset whose Begin has a Log is written.
	frameStaged FrameKind = 7
)

// Frame is one record of the journal. Rounds of frames are atomic.
type Frame struct {
	Kind    FrameKind
	Group   GroupID
	Replica ReplicaID
	Hard    HardState // append, carry
	Entries []Entry   // append, carry; an entry at i discards all >= i of its replica
	Begin   *Begin    // created, reset
}

// Begin is where a replica's log begins: at its creation or at a snapshot.
type Begin struct {
	Dir        string // created
	Reset      uint64 // reset: id, never 0, and the name of the staged log
	Index      Index  // the log holds entries above it
	Term       Term
	NextOffset Offset
	Conf       ConfState // as of Index
	// Log, of a reset alone, is where the staged log stands if it holds entries:
	// below Index, up to it. Its Reset, LastIndex, LastTerm and NextOffset are
	// those above, and its files are durable. Nil: there are none.
	Log *LogPosition
}

// Validate refuses what no reset can be.
func (g *Begin) Validate() error {
	switch {
	case g.Reset == 0 || g.Reset == gone || g.Index == 0 || g.Dir != "":
		return errors.New("a reset has an id and an index, and no directory of its own")
	case g.Log == nil:
		return nil
	case !g.Log.Exists || g.Log.Reset != g.Reset || g.Log.LastIndex != g.Index || g.Log.LastTerm != g.Term ||
		g.Log.NextOffset != g.NextOffset:
		return fmt.Errorf("the staged log is at %+v, the reset at entry %d of term %d, offset %d", *g.Log, g.Index, g.Term, g.NextOffset)
	}
	return checkPosition(*g.Log)
}

// Verdict is what applying decided about an entry.
type Verdict uint8

const (
	VerdictData      Verdict = 1 // records with offsets
	VerdictDuplicate Verdict = 2 // a produce seen before: kept for raft, skipped by readers
	VerdictEmpty     Verdict = 3
	VerdictConfig    Verdict = 4
	VerdictRefused   Verdict = 5 // refused at apply (other incarnation, sealed, out of order): no offsets
	VerdictControl   Verdict = 6 // the state machine's own entry (seal): no offsets
)

// LogEntry is one committed entry as a partition log holds it.
type LogEntry struct {
	Entry
	Verdict    Verdict
	BaseOffset Offset // of its first record; for entries without offsets: the next offset
	Count      uint32 // offsets that it occupies; 0 unless VerdictData
}
