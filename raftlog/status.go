package raftlog

import "fmt"

// Role is what a replica is in its group, in KRaft's words. transitions.go has
// the table of its changes.
type Role uint8

const (
	// RoleUnattached votes and knows no leader.
	RoleUnattached Role = iota + 1
	// RoleProspective asks whether it could win an election; term and vote are
	// untouched (pre-vote).
	RoleProspective
	// RoleCandidate has raised the term and asks for votes.
	RoleCandidate
	// RoleFollower votes and follows a leader.
	RoleFollower
	// RoleLeaderStarting won the election and has not yet committed an entry of
	// its term: it shows no high watermark and answers no reads.
	RoleLeaderStarting
	// RoleLeaderActive has committed in its term.
	RoleLeaderActive
	// RoleResigned takes no part any more until it is opened again: it failed.
	RoleResigned
	// RoleObserver replicates and does not vote: a learner, or not yet known to
	// its own configuration.
	RoleObserver
	// RoleRemoved applied the change that took it out of its group, or was told
	// of it.
	RoleRemoved

	numRoles = int(RoleRemoved)
)

func (r Role) String() string {
	names := [...]string{"none", "unattached", "prospective", "candidate", "follower",
		"leader-starting", "leader-active", "resigned", "observer", "removed"}
	if int(r) < len(names) {
		return names[r]
	}
	return fmt.Sprintf("role(%d)", uint8(r))
}

// IsLeader reports whether the replica leads, active or not.
func (r Role) IsLeader() bool { return r == RoleLeaderStarting || r == RoleLeaderActive }

// Status is a snapshot of one replica's view of its group.
type Status struct {
	Group   GroupID
	Replica ReplicaID
	Role    Role
	Failed  error // why it is RoleResigned (*GroupFailedError), else nil
	Term    Term
	Vote    ReplicaID // 0: none in this term
	Leader  ReplicaID // 0: none known
	// Transferee is to become the leader; the leader refuses proposals until it
	// is or gives up. 0: none.
	Transferee ReplicaID

	// SinceLeader counts ticks since the leader was last heard from; 0 on the
	// leader, negative if none was in this process.
	SinceLeader int

	LogStart Index // the log holds entries above it
	Commit   Index // known to be committed: the high watermark, once Readable
	Applied  Index // applied, and in the log
	Durable  Index // last entry that is durable here
	Last     Index // last entry of the log

	// Readable: the applied index may be shown to readers. Not so on a leader
	// that has not committed in its term, nor on a replica that was restarted
	// and not yet taught by a leader of the current term, or that has not yet
	// applied again all that it may have shown before.
	Readable bool

	Conf ConfState // as of Applied; not to be changed
	// ConfIndex is the entry that made Conf; 0 if that was applied before this
	// process began.
	ConfIndex Index
	// ConfPending, of a leader: its log has, or may have, a change that is not
	// applied.
	ConfPending bool
	// ConfSafe, of a leader: Conf is not joint, and a quorum of it has durably
	// committed the entry that made it. Whoever was removed may be shut down.
	ConfSafe bool
	// Unsettled, of a leader: the voters of Conf that have not, as far as it knows.
	// A voter that loses its disk before that may take the change with it.
	Unsettled []ReplicaID // not to be changed
	// Settled, of a leader: there are none.
	Settled bool

	Progress []Progress // leader only: one per replica of Conf, itself included, by id

	unsettled int // how many voters are
}

// Progress is what a leader knows of a replica.
type Progress struct {
	Replica ReplicaID
	Learner bool
	Match   Index // durable there
	Next    Index // the next to be sent
	// SinceContact and SinceCaughtUp count ticks since the replica was last
	// heard from, and since it last acknowledged the then end of the log.
	// Negative: never in this term of leadership. 0 for the leader itself.
	SinceContact  int
	SinceCaughtUp int
}

// changed reports whether observers of s should hear of t.
func (s *Status) changed(t *Status) bool {
	return s.Role != t.Role || s.Term != t.Term || s.Vote != t.Vote || s.Leader != t.Leader ||
		s.Transferee != t.Transferee || s.Readable != t.Readable ||
		s.ConfIndex != t.ConfIndex || s.ConfPending != t.ConfPending || s.ConfSafe != t.ConfSafe ||
		s.unsettled != t.unsettled
}
