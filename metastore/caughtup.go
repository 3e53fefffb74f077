package metastore

import (
	"fmt"
	"time"

	"github.com/stelelog/stele/raftlog"
)

// caughtUpFacts is what the caught-up decision rests on, all sampled after the
// round that it speaks of.
type caughtUpFacts struct {
	Role   raftlog.Role
	Term   raftlog.Term
	Leader raftlog.ReplicaID // 0: none is known

	// Round: a linearizable read of this process was confirmed, in RoundTerm, at
	// RoundIndex, SinceRound ago. The leader answered it, so that is also when
	// the leader was last surely heard.
	Round      bool
	RoundTerm  raftlog.Term
	RoundIndex raftlog.Index
	SinceRound time.Duration

	// Applied is the state machine's own applied index: the one in the batch
	// with the effects. Raft's counters run ahead of it.
	Applied raftlog.Index
}

// caughtUp decides whether the state on this node is as new as a leader's was
// at some moment since this process started; otherwise it says what is missing.
//
// Weaker tests were tried by others and set the latch on an old state: a
// heartbeat's commit index is the minimum of commit and what this replica has;
// "applied equals commit" is true after each batch of a long catch-up; raft's
// applied index may count what the state machine is still working on. Only the
// index of a confirmed read is a bound that the leader vouched for.
//
// The term must be that of the round: a node that became the leader since then
// asks anew, and a leader's rounds wait for the first commit of its term.
func (f caughtUpFacts) caughtUp(contact time.Duration) (ok bool, missing string) {
	switch {
	case f.Leader == 0:
		return false, "no leader is known"
	case f.Role == raftlog.RoleLeaderStarting:
		return false, "this node leads and has not yet committed in its term"
	case !f.Round:
		return false, "no read of this process was confirmed by a leader"
	case f.RoundTerm != f.Term:
		return false, fmt.Sprintf("the last confirmed read was in term %d, now is term %d", f.RoundTerm, f.Term)
	case f.SinceRound > contact:
		return false, fmt.Sprintf("the leader was last heard %v ago", f.SinceRound)
	case f.Applied < f.RoundIndex:
		return false, fmt.Sprintf("applied is %d of %d", f.Applied, f.RoundIndex)
	}
	return true, ""
}

// lacksOnlyApplied reports whether waiting for the state machine will do.
func (f caughtUpFacts) lacksOnlyApplied(contact time.Duration) bool {
	f.Applied = max(f.Applied, f.RoundIndex)
	ok, _ := f.caughtUp(contact)
	return ok
}
