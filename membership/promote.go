package membership

import (
	"fmt"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// Promotion is the decision about a learner that asks for a vote.
type Promotion struct {
	// Status is StatusVoter if it votes already, StatusPromoted if Change makes it
	// a voter, StatusDeferred if not now: Reason says why.
	Status Status
	Why    Deferral // with StatusDeferred
	Reason string   // the same for a person
	Change raftlog.Change
}

// Deferral is why a learner gets no vote now, for programs.
type Deferral uint8

const (
	DeferredNoRecord    Deferral = iota + 1 // no member record of this life
	DeferredNoLearner                       // it is in no configuration yet
	DeferredDead                            // it is marked dead
	DeferredDraining                        // it is on its way out
	DeferredObserver                        // it never votes
	DeferredNewLeader                       // the leader has led for less than PromoteAfter
	DeferredUnreachable                     // a call to it failed within FailureMemory
	DeferredBehind                          // it is not caught up
	DeferredStandby                         // there are MaxVoters voters: it stands by
	DeferredChanging                        // another change of the configuration is under way
	DeferredOldLife                         // the life that it replaces speaks, or does not leave yet
	DeferredQuorum                          // too few of the voters after it would be alive
	newestDeferral      = DeferredQuorum
)

// String is the reason in a word, distinct for each.
func (d Deferral) String() string {
	names := [...]string{"none", "no-record", "no-learner", "dead", "draining", "observer", "new-leader", "unreachable",
		"behind", "standby", "changing", "old-life", "quorum"}
	if int(d) < len(names) {
		return names[d]
	}
	return fmt.Sprintf("deferral(%d)", uint8(d))
}

// Promote decides about a learner that asks a leader (f.Leads) for a vote. It
// is deferred while any of these holds (J10), in this order:
//
//	its member record is missing, dead or draining, or says observer
//	the leader leads for less than PromoteAfter
//	a call to it failed within FailureMemory, and none succeeded since
//	it is not caught up
//	the voter limit is reached: it stands by (J18)
//	another change is under way (R18)
//
// A life that replaces another takes its vote in one joint change, however many
// voters there are, while the old one is silent and every voter whose disk is not
// lost has durably committed the change before (J17, R21).
func Promote(f *Facts, node raftlog.NodeID, nonce raftlog.Nonce) Promotion {
	deferred := func(why Deferral, format string, args ...any) Promotion {
		return Promotion{Status: StatusDeferred, Why: why, Reason: fmt.Sprintf(format, args...)}
	}
	k := f.member(node)
	if k == nil || k.Nonce != nonce {
		return deferred(DeferredNoRecord, "no member record of this life")
	}
	if k.Seat == SeatVoter {
		return Promotion{Status: StatusVoter}
	}
	if why, text := f.unfit(k); why != 0 {
		return deferred(why, "%s", text)
	}
	old := f.member(k.Liveness.Replaces)
	takesOver := old != nil && old.Seat == SeatVoter
	if !takesOver && len(f.Conf.Voters) >= f.Rules.MaxVoters {
		return deferred(DeferredStandby, "it stands by: there are %d voters of at most %d", len(f.Conf.Voters), f.Rules.MaxVoters)
	}
	if ok, why := f.steady(); !ok {
		return deferred(DeferredChanging, "%s", why)
	}
	change := raftlog.Change{Voters: []raftlog.ReplicaID{k.Replica}}
	if takesOver {
		switch {
		case !f.replaceable(old):
			return deferred(DeferredOldLife, "the life that it replaces, %v, must be silent for %v under one leader", old.Node, f.Rules.ReplaceAfter)
		case old.Liveness.Departure != metastore.Leaves:
			return deferred(DeferredOldLife, "the life that it replaces, %v, is not leaving yet", old.Node)
		case !f.settled():
			return deferred(DeferredChanging, "not every voter has durably committed the last change of the configuration")
		}
		change.Remove = []raftlog.ReplicaID{old.Replica}
	}
	if after := f.after(change); !f.quorum(after, f.alive) {
		return deferred(DeferredQuorum, "too few of the %d voters after it would be alive", len(after.Voters))
	}
	return Promotion{Status: StatusPromoted, Change: change}
}

// unfit says why a learner may not vote now, 0 if it may.
func (f *Facts) unfit(k *Known) (Deferral, string) {
	switch {
	case k.Seat != SeatLearner:
		return DeferredNoLearner, "it is not a learner yet"
	case k.Liveness.Dead:
		return DeferredDead, "it is marked dead"
	case k.Liveness.Draining():
		return DeferredDraining, "it is draining"
	case k.Liveness.Observer:
		return DeferredObserver, "it is an observer"
	case f.LedFor < f.Rules.PromoteAfter:
		return DeferredNewLeader, fmt.Sprintf("the leader has led for less than %v", f.Rules.PromoteAfter)
	case k.Unreachable >= 0 && k.Unreachable < f.Rules.FailureMemory:
		return DeferredUnreachable, fmt.Sprintf("a call to it failed within the last %v", f.Rules.FailureMemory)
	case !k.CaughtUp || k.Idle > f.Rules.CaughtUpWithin:
		return DeferredBehind, "it is not caught up"
	}
	return 0, ""
}

// after is the configuration that a change leads to.
func (f *Facts) after(c raftlog.Change) raftlog.ConfState {
	gone := map[raftlog.ReplicaID]bool{}
	for _, rs := range [][]raftlog.ReplicaID{c.Remove, c.Voters, c.Learners} {
		for _, r := range rs {
			gone[r] = true
		}
	}
	var to raftlog.ConfState
	for _, r := range f.Conf.Voters {
		if !gone[r] {
			to.Voters = append(to.Voters, r)
		}
	}
	for _, r := range f.Conf.Learners {
		if !gone[r] {
			to.Learners = append(to.Learners, r)
		}
	}
	to.Voters = append(to.Voters, c.Voters...)
	to.Learners = append(to.Learners, c.Learners...)
	return to
}

// Standby decides whether a standby takes the vote of a voter that is dead and
// has been silent in raft for VotePasses (J18). The dead one is demoted, never
// removed. nil: nothing to do.
func Standby(f *Facts) *raftlog.Change {
	if ok, _ := f.steady(); !ok || !f.Leads {
		return nil
	}
	for i := range f.Members {
		k := &f.Members[i]
		if k.Seat != SeatVoter || k.Self || !k.Liveness.Dead || k.Idle < f.Rules.VotePasses || f.heir(k) != nil {
			continue
		}
		standby := f.standby()
		if standby == nil {
			return nil
		}
		c := raftlog.Change{Voters: []raftlog.ReplicaID{standby.Replica}, Learners: []raftlog.ReplicaID{k.Replica}}
		if !f.quorum(f.after(c), f.alive) {
			return nil
		}
		return &c
	}
	return nil
}

// standby returns a learner that may take a vote, or nil: of those that are fit and
// ask for one (J11), the one that was a member first, but no new life of a name whose
// old one votes, which has a vote to take already.
func (f *Facts) standby() *Known {
	for i := range f.Members {
		k := &f.Members[i]
		if why, _ := f.unfit(k); why != 0 || k.Abstains || k.Silent > f.Rules.DeadAfter {
			continue
		}
		if old := f.member(k.Liveness.Replaces); old != nil && old.Seat == SeatVoter {
			continue
		}
		return k
	}
	return nil
}

// Seats returns the learners that are to be: members that are in no
// configuration and are not on their way out. One that leaves never gets its
// seat back: that would be a second stint under one replica id. nil: none.
func Seats(f *Facts) *raftlog.Change {
	if ok, _ := f.steady(); !ok || !f.Leads {
		return nil
	}
	var c raftlog.Change
	for i := range f.Members {
		k := &f.Members[i]
		if k.Seat == SeatNone && !k.Liveness.Draining() {
			c.Learners = append(c.Learners, k.Replica)
		}
	}
	if len(c.Learners) == 0 {
		return nil
	}
	return &c
}

// Strays returns the learners that no member is: the change that added them was
// overtaken by the removal of their record. nil: none. A voter is never taken out
// like this: it may be needed.
func Strays(f *Facts) *raftlog.Change {
	if ok, _ := f.steady(); !ok || !f.Leads {
		return nil
	}
	var c raftlog.Change
	for _, r := range f.Conf.Learners {
		if f.byReplica(r) == nil {
			c.Remove = append(c.Remove, r)
		}
	}
	if len(c.Remove) == 0 {
		return nil
	}
	return &c
}
