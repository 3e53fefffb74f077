package raftlog

// StateMachine is what a group's committed entries are applied to. The host
// calls it from one goroutine at a time per group; a panic in it, or an error,
// ends that group on this node and no other.
type StateMachine interface {
	// Apply applies committed entries in log order and fills results[i] for
	// entries[i]; results come zeroed. It must be deterministic: every replica
	// gets the same entries, in batches of its own. It may keep the Data of an
	// entry, which is immutable, but neither slice. A refused command is a
	// result; an error is fatal for the group on this node.
	//
	// After a restart it gets again what the log did not hold durably.
	Apply(entries []Entry, results []Result) error
	// Applied tells that the entries up to last, those of the last Apply, are
	// in the group's log and readable there. It runs before anybody hears of
	// it: proposers, waiting reads, Group.Status and Group.Readable. What it
	// publishes is what a read that was answered finds.
	Applied(last Index)
}

// Result is what applying made of an entry.
type Result struct {
	// Verdict, BaseOffset and Count are what the log keeps. The zero Verdict
	// means VerdictEmpty, VerdictConfig or VerdictControl by the kind of the
	// entry; for a state machine with a state of its own the log always keeps
	// that.
	// Entries with VerdictData have Count offsets from BaseOffset on, which is
	// the log's next; for others both are ignored.
	Verdict    Verdict
	BaseOffset Offset
	Count      uint32
	// Value is handed to the proposer, if it is on this node.
	Value any
	// Err is handed to the proposer: a refusal, not a failure.
	Err error
}

// Proposal is what became of a call of Propose.
type Proposal struct {
	Index  Index // of the entry, if Err is nil
	Term   Term  // of the entry, if Err is nil
	Result Result
	// Err is nil if the proposal was applied on this node: then it is durable
	// on a quorum. Else it matches ErrRetry, ErrRefused or ErrOutcomeUnknown.
	Err error
}
