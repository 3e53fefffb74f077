// Package raftlog runs many raft groups on one node, over one journal, for
// state machines that its users bring.
//
// # Layers
//
//	Group.Propose, ReadIndex, Status          StateMachine.Apply, Applied
//	             |                                     ^
//	Host:  one loop steps all groups;  a round of the journal for all of
//	       them; frames to and from other nodes;  appliers
//	             |  inputs                             ^  Effects
//	             v                                     |
//	Core:  one replica of one group; a pure step over etcd raft's RawNode
//	             |                                     ^
//	       tail: the durable end of the log in memory, and older entries
//	       from the partition log
//
// A Core has no goroutine, clock or lock and does no I/O but reading older
// entries of its log. The same Core runs under the simulator (internal/sim),
// where every property below is checked after each step, and in production,
// where the host is all that is added.
//
// # What leaves a node, and when
//
// Everything rests on the order of three things: what is written, what is
// said, what is applied.
//
//	frames       journalled in order; each carries term, vote and commit
//	messages     leave at once, except:
//	             - acknowledgements, votes and their refusals wait for the last
//	               frame before them that holds entries, a term or a vote
//	             - while a change of term or vote is on its way to the disk
//	               nothing leaves, vote requests least of all
//	entries      are applied when they are committed and durable here; they
//	             count as applied once the state machine was told so
//	proposals    end when their entry is applied, or as told below
//
// The second exception departs from how raft says asynchronous writes may be
// used. raft hands vote requests out to be sent at once. A candidate can then
// win a term whose vote it has not written, crash, and win the same term once
// more with other entries at the same places; Raft's log matching ends there.
// TestRaftAloneLeadsATermTwice shows it on raft's public interface.
//
// A frame that carries nothing but a commit index wants no sync of its own.
// It is written all the same: a commit index that is forgotten while a
// configuration changes lets two leaders rise in one term.
//
// # Proposals
//
//	placed       in the leader's log, at an index and a term
//	refused      nothing happened: not the leader, overloaded, handing over;
//	             Retry, or Refused for what can never be proposed: no data, or
//	             more than MaxProposalBytes
//	lost         leadership ended first: Unknown. Only if another entry is
//	             known to be committed in its place: Retry
//	applied      it is entry (index, term) of the committed log
//
// # Changes of the configuration
//
// A change is a wish with a name. Its entry carries the name, so that whoever
// asked finds out what became of it, and one that asks again soon, because it did
// not, is answered and not obeyed twice.
//
//	refused    before it is in the log: by rules that are checked with raft's own
//	           code, so that what raft would panic on, or drop without a word,
//	           never gets there
//	applied    the configuration switches, on each replica when it applies the
//	           entry. One replica in one step; more through a joint configuration
//	           (Raft thesis, section 4.3)
//	left       whoever leads ends a joint configuration by itself, again and again
//	           until it is done; nobody has to ask, and no traffic is needed
//	safe       an entry behind it is committed. What brings that entry to a replica
//	           says that the change is committed, and one frame holds both. So a
//	           quorum of the new configuration knows, after any crash, that the
//	           old one is over
//
// Only now ChangeMembers returns, because only now whoever was removed may go. A
// leader that has applied the removal knows it alone: if it loses power then, the
// others still take the removed one for a voter, may need its vote, and elect
// nobody for ever if it is gone. For the same reason a replica that applied its
// own removal goes on voting, until it is told that it is out (Config.Removed,
// Host.Retire).
//
// A replica that the group was not created with begins with nothing at all: no
// configuration, no entry. It follows whoever speaks to it as a leader and never
// campaigns.
//
// # Snapshots
//
// raft is never given a snapshot, because it would want it in one message. A
// leader whose log does not reach back to what a follower needs says so
// (Effects.Behind, GroupOptions.OnBehind). How the follower gets one is the
// business of the state machine's owner. CheckReset decides whether it becomes
// the log, and a single frame is the switch. Afterwards the follower answers the
// leader's next heartbeat with how far it is, unasked: that is all that raft
// needs to go on behind it.
//
// # Reads
//
// A read is a round of ReadIndex (Raft thesis, section 6.4): the leader
// confirms with a quorum that it still leads, and the answer is an index to
// wait for. One round runs at a time, for all reads that came before it began;
// each try has a name that no other try, process or replica ever had. A leader
// answers only after it has committed in its own term. "I am the leader" is
// never a reason to trust what is here.
//
// # Failure
//
// A panic in raft, an error of a state machine or of a log fails one group on
// this node; other groups go on. A failed journal fails the node. Nothing ends
// the process.
//
// Disks have other ways than failing, and each has its answer:
//
//	a write or sync of the     the node acknowledges nothing from then on; all its groups
//	journal fails              are resigned, their peers elect others after an election
//	                           timeout; nothing is tried again (S5)
//	a round takes longer than  the node hands its leaderships over, and neither campaigns
//	StallTimeout               nor takes over until the round returns; then it goes on (S7)
//	less than a reserve is     leaders refuse what is not essential, and hand over to a
//	left (SetDiskFull)         voter that has room; all else goes on (S6)
//	less than a quarter of it  followers drop entries: they stand still instead of failing
//
// A stalled leader has to act itself. It needs no disk to send heartbeats, and
// as long as they come nobody elects another. Nor does a hand-over need one: of
// what a leader says only its vote must be durable first, and that it is since
// before it led. If the successor is not there after an election timeout, the
// leader falls silent, and the others elect. So with the other voters well a
// group leads elsewhere within
//
//	StallTimeout + a round trip and a sync, if the best prepared voter is well, else
//	StallTimeout + at most four election timeouts
//
// after a write began to hang; with the defaults, 2 s and 4 s. What was proposed
// before ends then, as Unknown; what comes in between is refused. A follower
// that stalls costs its group nothing as long as the others are a quorum. The
// bound is above the slowest syncs of a disk that is well: a slow one, of
// hundreds of milliseconds a sync, makes all slower and moves nothing. A false
// alarm costs one hand-over.
//
// # When a majority is lost
//
// No replica of a group goes on without a majority. A person may have one do so,
// offline: recover.go argues which one, what is kept by that, and what is lost.
//
// # KRaft conformance
//
// What a user sees is KRaft's quorum (KIP-595, KIP-853, KIP-996); what runs is
// etcd raft. Kept, or corrected and why:
//
// States. transitions.go has the table of their changes.
//
//	KRaft         here             from raft
//	Unattached    unattached       follower without a leader, voted or not
//	Prospective   prospective      pre-candidate; term and vote untouched
//	Candidate     candidate        candidate; a lost vote leads to unattached,
//	                               not back to prospective
//	Follower      follower         follower with a leader
//	Leader        leader-starting  leader without a committed entry of its term:
//	              leader-active    split, because only the second may show a
//	                               high watermark, read, or change voters
//	Resigned      resigned         corrected: also what a failed replica is, from
//	                               any state, until it is opened again
//	Observer      observer         learner, or in no configuration it knows; one
//	                               that does not hear its leader for two election
//	                               timeouts gives it up, which raft leaves out
//	-             removed          applied the change that removed it, or was told
//	                               by a node that knows; one that was told is
//	                               silent, one that was not votes when asked
//
// Messages.
//
//	Vote, PreVote      MsgVote, MsgPreVote. A voter that heard from a leader within
//	                   an election timeout refuses both. A prospective moves on at
//	                   quorum, without a period of grace.
//	BeginQuorumEpoch   the first append of a term and every heartbeat
//	EndQuorumEpoch     Resign: a transfer to one successor after the other, and
//	                   silence if none takes over. The transfer skips pre-vote, so
//	                   only the leader that a replica follows may send it
//	Fetch              MsgApp, pushed; liveness is the leader's heartbeats and its
//	                   check that a quorum answers, not the followers' fetches
//	FetchSnapshot      beside raft: a notice "behind" from the leader, a stream that
//	                   the state machine's owner opens, a reset of the log
//	AddRaftVoter,      ChangeMembers. A voter was a learner first, and is caught up
//	RemoveRaftVoter    if its owner waits for that; several replicas in one step
//	UpdateRaftVoter    not raft's business: UpdatePeers, and what is heard
//	DescribeQuorum     Status: per replica match, next, last contact, last caught up
//
// Rules.
//
//	One leader per epoch       kept, per process: a restarted leader never leads its
//	                           old term again, since its vote is durable first
//	High watermark monotone    corrected: per node. A new leader may know less than
//	                           the last one until it commits in its term, and a
//	                           restarted replica less than before, until a leader
//	                           vouched for it and it applied again what it had;
//	                           both show nothing until then (Status.Readable)
//	Removed voters             corrected: told explicitly, and harmless before: they
//	                           raise no term, since nobody who hears the leader
//	                           grants them a pre-vote
//	Observer logs are prefixes corrected: up to their own commit index; they too hold
//	of the committed log       entries that are not committed
//	acks                       an answer means a durable quorum; there is no in-sync
//	                           set that shrinks
//	Voter identity             a replica id is one stint of one data directory in one
//	                           group and is never used again: KRaft's pair of node
//	                           and directory id in one number. What is addressed to
//	                           another id is dropped
//	Voter changes              active when applied, not when appended; joint for a
//	                           replacement; one at a time, and none before the
//	                           leader has applied an entry of its term. A leader
//	                           removes others, never itself. One that finds itself
//	                           on the way out hands over first
//	An isolated leader         stops within two election timeouts, so two replicas
//	                           may lead at one moment, never in one term
//
// One more correction concerns raft itself. A late message of a leader's
// earlier term is answered without an index, to make that leader step down; if
// it leads again by then, raft takes the answer for an acknowledgement of
// entry 0 and looks for entry 1. Logs here begin above it, so the follower
// would get nothing any more; such answers between equals are dropped.
package raftlog
