package raftlog

// transitions is the whole table of role changes, a row per role, R29:
//
//	from \ to         unatt prosp cand  foll  start activ resig obsrv remvd
//	unattached              T     N     L                 F     D     C
//	prospective       V           Q     L                 F     D     C
//	candidate         V     T           L     W           F     D     C
//	follower          V     T     N                       F     D     C
//	leader-starting   V                 L           K     F     D     C
//	leader-active     V                 L                 F     D     C
//	resigned
//	observer          P     P     N     P                 F           C
//	removed                                               F
//
//	T  the election timeout passed                 V  a higher term, a lost vote, a lost quorum, a leader forgotten
//	Q  a quorum would vote for it                  L  a leader of this or a higher term spoke
//	W  a quorum voted for it                       K  an entry of its own term was committed
//	N  a leader handed over                        C  the change that removes it was applied, or it was told so
//	D  it was demoted to a learner                 P  it was promoted, or learnt that it is a voter
//	F  it failed, or its node did
//
// Not in the table, on purpose: a leader of a term never becomes a candidate
// or a follower of the same term's other leader; nobody leads without having
// been a candidate; a resigned or removed replica comes back only by being
// opened again, or never. Resign has no role of its own: whoever resigned leads
// in name alone until another one does, or a quorum no longer answers.
var transitions = [numRoles + 1][]Role{
	RoleUnattached:     {RoleProspective, RoleCandidate, RoleFollower, RoleResigned, RoleObserver, RoleRemoved},
	RoleProspective:    {RoleUnattached, RoleCandidate, RoleFollower, RoleResigned, RoleObserver, RoleRemoved},
	RoleCandidate:      {RoleUnattached, RoleProspective, RoleFollower, RoleLeaderStarting, RoleResigned, RoleObserver, RoleRemoved},
	RoleFollower:       {RoleUnattached, RoleProspective, RoleCandidate, RoleResigned, RoleObserver, RoleRemoved},
	RoleLeaderStarting: {RoleUnattached, RoleFollower, RoleLeaderActive, RoleResigned, RoleObserver, RoleRemoved},
	RoleLeaderActive:   {RoleUnattached, RoleFollower, RoleResigned, RoleObserver, RoleRemoved},
	RoleResigned:       {},
	RoleObserver:       {RoleUnattached, RoleProspective, RoleCandidate, RoleFollower, RoleResigned, RoleRemoved},
	RoleRemoved:        {RoleResigned},
}

// LegalTransition reports whether a replica's role may change so between two
// looks at it, with any number of messages and at most one tick between them.
func LegalTransition(from, to Role) bool {
	if from == to {
		return true
	}
	if int(from) >= len(transitions) {
		return false
	}
	for _, r := range transitions[from] {
		if r == to {
			return true
		}
	}
	return false
}
