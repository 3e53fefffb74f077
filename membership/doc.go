// Package membership decides who is in a cluster: how one is founded, how nodes
// join it, get a vote, are watched, and leave. It can be used without the package
// that embeds it all: over a metastore, a raft group and a network of its own (see
// the example).
//
// # The life of a node
//
//	empty directory ──▶ a nonce: 128 random bits that name this life
//	      │
//	      │ initial member                          every other node
//	      ▼                                              │
//	   genesis ──── a cluster exists, this ────────────▶ join
//	      │         life is not in its genesis           │ member.join, every 2 s
//	      │ listed                                       ▼
//	      │                                      admitted: node id, replica id
//	      │                                              │ the steward adds its replica
//	      │                                              ▼
//	      │                                           learner ◀────────┐
//	      │                                              │ member.promote, every 2 s
//	      ▼                                              ▼             │ dead for long:
//	    voter ◀───────────────────────────────────────  voter ─────────┘ demoted
//	      │
//	      │ member.heartbeat, every 5 s; silent for 30 s: marked dead; speaks: alive
//	      ▼
//	   draining ─▶ partitions moved off ─▶ backlog zero ─▶ leadership handed off
//	      │ (a cancel works until here)
//	      ▼
//	   leaving ─▶ out of the configuration ─▶ record removed, tombstone written
//
// Names come back, lives never do. A node id, a replica id and a nonce belong to
// one life of one directory. A disk that was wiped has a new nonce and is a new
// node, even under its old name; an old disk that returns is refused for ever by
// the tombstone of its nonce.
//
// # Genesis
//
// Each initial member starts with an empty directory. Exactly one of them, the
// first by name, may found the cluster:
//
//	founder                          every other initial member
//	-------                          --------------------------
//	asks its own listed address: is it me?   (else it probes nobody)
//	probes all ───── probe{nonce} ──▶ asks the founder's listed address back,
//	                                  remembers the founder's nonce, syncs it
//	           ◀──── unconfigured ── answers{name, nonce, hash of its list}
//	all answered this round, same
//	lists, distinct nonces: makes the
//	genesis, syncs it, then
//	hands it on ──── offer ─────────▶ adopts it if it lists this life and comes
//	                                  from the founder that it answered last
//	           ◀──── ask ──────────── (who missed the offer asks, for ever)
//
// Silence never founds. A genesis names lives, not only names: a member whose
// disk was wiped has a new nonce, is not listed, and can neither vote nor found a
// rival. It joins, as does one that meets nodes which are in a cluster but have no
// genesis to show, because they joined it themselves. Enter is both ways in one.
//
// The awkward case is a founder that founded, handed its genesis to some, lost
// its disk and came back as a new life that probes the rest. Those remember the
// new life and would wait for it for ever. So a member that is shown a genesis
// of another founder than the one that it answered last shows it to that one; a
// life that sees a cluster in which it is not listed renounces founding for
// good, syncs that, and says so; then the member is free to adopt.
//
// # Joining
//
// A Joiner walks over addresses: leaders that it remembers, newest first, then
// those it was configured with. Whoever does not lead names the leader, and is
// followed, at most four times in an attempt; no answer of one peer, and no
// silence, keeps the next from being asked (J6, J7). A node that was removed and
// still runs is told of no leader any more, and names those that were beside it.
// The leader decides by Admit:
//
//	who asks                                  answer            code
//	a life that was removed, or refused       removed           409
//	a member                                  accepted: staged  200   its address may change, nothing else
//	                                          or voter
//	one with segments of another size         otherSettings     409   it ends: they would be cut elsewhere
//	a build that applies too few commands     olderRelease      409   it keeps asking
//	a new name                                accepted: staged  200
//	the name of a life that was silent for    accepted: staged  200   in its place
//	30 s of this leadership
//	the name of a life that speaks            accepted:         200   and, once that has spoken after the
//	                                          deferred                first ask, refused for good: removed
//	and of nodes that do not lead:            notLeader         421
//	of nodes that are in no cluster:          unconfigured      412
//
// A join is idempotent: a nonce is one member, whatever is lost or doubled. That
// an answer was "accepted" ends nothing: the joiner goes on until its own replica
// sees a leader, and starts again whenever it saw none for 15 s, because then it
// may know only addresses that are gone (J5, J14).
//
// # A vote
//
// A learner asks for its vote, again and again; nothing promotes one that does not
// ask, and an observer never does (J10, J11). The leader answers by Promote. It
// leads for 12 s first, longer than the 10 s after which a call counts as failed:
// it calls every learner from its first second on, so that by then it knows whom
// it cannot reach. A voter that no one reaches would cost the cluster a majority.
//
// At most five members vote; more stand by, and go on asking. A standby takes the vote of a voter
// that leaves, or that is dead and silent in raft for ten minutes; the dead one is
// demoted in the same joint change, never removed (J18). A new life takes the vote
// of the life that it replaces in one joint change, while that one is silent, and
// only when every other voter durably knows the change before: two changes in
// flight and one more lost disk could forget both (R21).
//
// Learner first, voter later, never both at once, is the way of the Raft
// dissertation (section 4.2.1, catching up new servers); replacing by joint
// consensus is its section 4.3. Node ids that are bound to the life of a directory
// are the directory ids of KIP-853.
//
// # Who is alive
//
// Every member heartbeats to the leader. The stamp of a heartbeat is the leader's
// and travels in the log, so that all replicas agree; but silence is judged by the
// leader's own monotonic clock alone, and only of its own leadership: wall clocks
// jump, and a new leader has heard nobody yet (H1 to H3). A process that was paused
// begins its leadership anew. A mark carries the heartbeat that it judged and is
// refused if a newer one was applied first (H4). If the marks would leave no
// majority of live voters, no voter is marked: it is more likely that the leader is
// deaf (H5). A dead mark takes nothing away: replicas stay, and the next heartbeat
// ends it.
//
// Ready says whether a node can serve: it leads, or heard the leader within 5 s,
// and its metadata has caught up once (H8, H9).
//
// # Leaving
//
// NextStep looks at facts only, so a leader that dies between any two steps is
// followed by one that goes on. What cannot be answered waits: a node that does not
// say that its backlog is zero is not removed (D3), unless a person forces it; and if
// it is called back, what it said before counts no more, however soon it leaves. The
// leader never removes itself; it hands over, and the next one goes on (D4). No
// decommission leaves fewer than three voters, unless it is forced, and none leaves
// fewer than a live majority, forced or not (D2).
//
// The mark "leaving" is there because of two races. A cancel may come while the
// change of the configuration is on its way, whose outcome nobody knows until it is
// applied; and a replica that is out of a configuration must not come back under
// its id, since late messages of its first stint would speak for the second. So the
// mark is written first, in the same log that a cancel goes through (D1).
//
// # When a majority is lost
//
// Nothing here founds a cluster anew, or shrinks one to what is left, by itself:
// silence is never evidence. A person may force it, offline: Survey is what a
// stopped node's directory holds, PlanRecovery decides from all surveys at once
// which replica of each group that has no majority goes on alone, and the plan is
// carried to each directory (recover_plan.go, raftlog/recover.go). From then on the
// cluster is in the next recovery epoch. All ids that it gives out have the epoch in
// their top bits, so none comes again that the lost nodes gave out unheard; every
// frame and call has the epoch, too, so that the lives that were left behind are
// fenced when they return (R33). Beside it travels which plan led there: of two
// clusters that came to one epoch by different plans neither takes in the other's
// nodes, and no later plan is made of both. They are members that never will be heard again:
// their places pass on, as in a forced decommission, and tombstones end them.
//
// # Versions
//
// What this package needs of the metadata came with cluster version 2. The leader
// raises the version when every member has announced, in this leadership, that it
// applies the commands; until then nobody joins (NextVersion). A disk that is lost
// before that does not hold it back: what its new life applies counts, once the old
// one was silent for as long as for any other replacement. One that is lost for good,
// and has no new life, does so for ten minutes.
//
// A caller that does not know the release of whom it asks sends the newest form of
// a request, and, to who does not know that, OlderForm: it did not happen. Calls says
// which call came with which version; all but genesis came with version 2.
//
// # Who runs what
//
// The decisions are pure functions of facts, Admit, Promote, Standby, MarkDead,
// NextStep, NextVersion, Seats, Strays, Forget, PlanDecommission, Ready, and Walk
// and Member hold no goroutine, clock, lock or I/O either. Rules has their numbers.
// Around them, each driver is one call of Run, in a goroutine of the caller's that
// ends with its context:
//
//	Enter        until part of a cluster    genesis, then joining
//	Joiner       every node                 asks when it sees no leader
//	Heartbeater  every node
//	Promoter     every node but observers   asks while it is a learner
//	Steward      every node                 works while it leads group 1: a pass a second, each after a
//	                                        barrier; a goroutine for its pulse and one for each node
//	                                        that it calls, which end with Run
//
// Steward.HandleCall answers the calls, on the transport's goroutines. It never
// waits for the node that asks. Lock order: Steward.seats, Steward.mu; no lock is
// held while the metadata, raft or the network is called, but Steward.seats, which
// is held while a change of the configuration is made.
package membership
