package sim

import "fmt"

// Options shape a run. The zero value of a field means its default.
type Options struct {
	Nodes   int // 3
	Groups  int // 1; every second group's state machine keeps a state of its own
	Seconds int // of virtual time with faults, before all heals; 60
	Voters  int // nodes that each group begins with; all
	// Members: replicas come and go, and logs are cut in front.
	Members bool
	// Mutant breaks something on purpose; empty: nothing.
	Mutant Mutant
	// Ignore names properties that are not checked, so that a mutant is seen
	// through what it leads to and not through what it does.
	Ignore []string
	// Storm: leaders are cut off, disks stall and power fails, again and again
	// and for moments only, so that crashes fall into elections.
	Storm bool
	// Quiet: no faults and no clients but those that a test makes itself.
	Quiet bool
}

func (o Options) withDefaults() Options {
	if o.Nodes == 0 {
		o.Nodes = 3
	}
	if o.Groups == 0 {
		o.Groups = 1
	}
	if o.Voters == 0 {
		o.Voters = o.Nodes
	}
	if o.Seconds == 0 {
		o.Seconds = 60
	}
	return o
}

// Result is what became of a run.
type Result struct {
	Seed      uint64
	TraceHash uint64
	Events    int // things that happened
	Steps     int // inputs to cores
	Elections int
	Committed int // entries, over all groups
	Acked     int // proposals reported applied
	Reads     int // confirmed
	Crashes   int
	Changes   int        // of configurations, that were committed
	Resets    int        // logs that began anew at a snapshot
	Violation *Violation // nil: nothing was found
}

// Violation is a property that did not hold.
type Violation struct {
	Property string
	Seed     uint64
	At       int64 // virtual microseconds
	Text     string
	Trace    string // the end of the trace
}

func (v *Violation) Error() string {
	return fmt.Sprintf("seed %d at %.3f ms: %s: %s\n%s", v.Seed, float64(v.At)/1000, v.Property, v.Text, v.Trace)
}

// Mutant names a way to break the system.
type Mutant string

// The mutants. Each acts around the Core, never in it.
const (
	MutantNone           Mutant = ""
	MutantAckBeforeSync  Mutant = "ack before sync"         // frames count as durable when they are handed out
	MutantVoteBeforeSync Mutant = "vote before sync"        // the same for frames without entries
	MutantAskBeforeSync  Mutant = "ask before sync"         // MsgVote leaves with the frame that it speaks of
	MutantVoteLost       Mutant = "vote lost"               // a restart forgets the vote
	MutantTermLost       Mutant = "term lost"               // a restart forgets frames without entries
	MutantCommitLost     Mutant = "commit lost"             // a restart forgets the commit index
	MutantAppliedTwice   Mutant = "applied twice"           // a restart applies the last entry again
	MutantEntrySkipped   Mutant = "entry skipped"           // a restart skips an entry
	MutantNoTruncation   Mutant = "no truncation"           // a conflicting entry does not discard what follows it
	MutantTailLost       Mutant = "tail lost"               // a restart forgets the last durable entry
	MutantStaleRead      Mutant = "stale read"              // whoever believes that it leads answers reads
	MutantWiped          Mutant = "wiped, with its old id"  // a restart finds an empty disk
	MutantTwoRounds      Mutant = "answer the wrong round"  // a finished round counts for the frames behind it too
	MutantReply          Mutant = "unknown told as refused" // a lost proposal is reported as "nothing happened"

	MutantSameStint   Mutant = "the same id for another stint" // a node comes back to a group as who it was, with nothing
	MutantAnySnapshot Mutant = "any snapshot"                  // a snapshot becomes the log, whatever the log has
	MutantLateConf    Mutant = "snapshot of another index"     // a snapshot has the newest configuration instead of its own
	MutantNotTold     Mutant = "removed and not told"          // nobody tells a replica that it is out
)

// Mutants are all of them.
func Mutants() []Mutant {
	return []Mutant{
		MutantAckBeforeSync, MutantVoteBeforeSync, MutantAskBeforeSync, MutantVoteLost, MutantTermLost,
		MutantCommitLost, MutantAppliedTwice, MutantEntrySkipped, MutantNoTruncation, MutantTailLost,
		MutantStaleRead, MutantWiped, MutantTwoRounds, MutantReply,
		MutantSameStint, MutantAnySnapshot, MutantLateConf, MutantNotTold,
	}
}
