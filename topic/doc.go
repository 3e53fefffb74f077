// Package topic keeps records in topics: a topic is a number of partitions,
// and a partition is a raft group whose log readers read.
//
// # The way of a record
//
//	Append ──► open batch ──► entry ──► raft group ──► Apply ──► partition log ──► Fetch
//	(many      (no timer)     (one      (quorum,       (offset,   (committed        (whole
//	 callers)                  batch)    synced)        verdict)   entries only)     batches)
//
// One batch is one raft entry, and its bytes stay the same everywhere: in the
// journal, between nodes, in the partition log and in a reader's buffer
// (format.go has the diagram). Only the base offset is filled in on the way
// out, because it is decided where the entry is applied, from the entries
// before it alone. So are all other decisions:
//
//	verdict     what the entry was                                       offsets
//	data        records, appended                                        count
//	duplicate   a producer's batch that was appended before              none
//	refused     other incarnation, sealed or retired, out of order,      none
//	            not a batch
//	control     a seal, behind which nothing is appended; a retire,      none
//	            behind which nothing is until a restore; or a log
//	            start, which removes what is before it
//	empty       opens a leader's term                                    none
//	config      changes the group's configuration                        none
//
// Refused and duplicate entries stay in the log, where raft needs them;
// readers do not see them. Offsets are therefore gapless and equal on all
// replicas, through elections, repetitions and restarts.
//
// # Producers
//
// A producer with an identity numbers its records in each partition, and a
// partition appends each number once: Producers has the rules and their
// limits. It may have RememberedBatches batches in flight, and repeats one
// whose outcome is unknown exactly as it was. When it is told
// ErrUnknownProducer it takes a new identity for that partition: a batch that
// it never sent before may be sent under it; what became of a batch that it
// did send is not known.
//
// The memory of producers is a function of the log. It is written beside the
// log at indices that the entries determine, and a reopened replica reads the
// newest such file and the few entries behind it when it is first given
// records, not before.
//
// # Watermarks
//
// A replica shows records up to its high watermark: what it has applied, once
// a leader of the current term has vouched that this is not less than what
// was shown before. A reader carries the highest watermark that it has seen,
// and a replica that is behind it says so.
//
// # Times
//
// Every batch carries the clock of the leader that proposed it, its append
// stamp. Along a partition stamps never step back: a leader gives no batch an
// earlier one than it knows of, and what a leader stamped that did not know all
// yet is refused where it is applied, and sent again. So the first record since
// a time (FromTime) is the same on all replicas, and is found by halves.
//
// # Retention
//
// A topic may say how long, and how much of each partition, is kept. Whole segments
// go, alike on all replicas, because an entry of the partition says so; retention.go
// has who decides, when, and why nothing is missing after a crash.
//
// # Managers
//
// A Manager is a node's part in all topics. Its reconciler makes the node hold
// what the metadata assigns to it: it opens replicas, and sets aside, and moves
// to quarantine, those of topics that were deleted. It is level-triggered,
// begins only when the metadata have caught up, replaces a directory that is not
// what was made here (reconcile_foreign.go), and tries again whatever failed,
// ever less often, without holding up anything else.
//
//	call           waits for                                        ends early with
//	CreateTopic    a quorum of the metadata, a leader in each       ctx (unknown)
//	               partition
//	DeleteTopic    a quorum of the metadata and of each partition,  ctx (unknown; finished
//	UndeleteTopic  which is sealed, or closed, or opened            in the background)
//	SetRetention   a quorum of the metadata                         ctx (unknown)
//	Produce        the topic, room in the producer, a quorum of     ctx (retry before the
//	               the partition                                    records are sent, else
//	                                                                unknown), CallTimeout
//	                                                                without a leader (retry)
//	NewReader      the topic, a replica that can answer             ctx (retry)
//	Transfer-      a leader, and that the other replica leads       ctx (unknown), CallTimeout
//	 Leadership                                                     without a leader (retry)
//	Fetch          a record                                         ctx (retry)
//	Producer.Close the answers to all that was produced             ctx (unknown)
//
// A call whose context has ended before it begins nothing. All calls end with
// ErrClosed when the manager is closed. That a topic or partition is not there
// is said only after a linearizable read of the metadata. Names are taken
// literally, upper and lower case apart, but two topics whose names differ only
// in case cannot be at the same time.
//
// # Moves
//
// A partition's replicas move while it serves: because their node is to leave,
// because another one has joined, or because somebody asks (MoveReplica).
//
//	what moves where     Planned, on the node that leads the metadata: a pure function
//	which step is next   stepOf, on the node that leads the partition: a pure function
//	who copies           fill: any replica sends, the new one stages, the reconciler
//	                     puts what came in the log's place
//
// The metadata hold the wish, as the partition's target; the partition's group
// holds its configuration; whoever leads the group brings the one to the other,
// a step at a time (move_step.go has the table). A new replica begins with
// nothing. It gets the log of another one up to what that has applied, whole
// segments, with the configuration and the producers' memory as of exactly that
// entry (fill_format.go); raft brings the rest. Entries are the same on all
// replicas, so a copy that was interrupted goes on from another one. Then it
// takes the old one's place by one joint change. The old one is set aside only
// when a quorum of the new configuration knows of it, and its files stay.
//
// A destination that is to leave, or has been dead for two minutes, is taken out
// of the group again and the wish is cancelled. What a dead node holds stays its
// own: PartitionStatus.Silent says that copies lag. A topic that is deleted ends
// its moves.
//
// The first replica of a partition is its preferred leader. Who leads in another's
// place for a while hands the leadership back when that one is there again and
// has everything, a few at a time, unless its node is to leave.
//
// # What is deleted, and when it is gone
//
// A topic that is deleted with a grace is kept, and UndeleteTopic brings it back, until
// that is over: undelete.go has its states, and why it is safe.
//
// Nothing that a node set aside is destroyed on its own word: its metadata may be
// old or damaged. The sweeper asks for a proof (metastore.Store.Confirm), of the
// death of the topic's incarnation or of the removal of the replica from its group,
// and for a copy that moved away it asks that group itself, too. With the proof the
// directory is unlinked, and the journal forgets the replica; without it everything
// stays, and is tried again (sweep.go). Config.OnReclaimed and OnReclaimRefused
// tell. When a node starts it takes stock of what earlier processes left before it
// opens anything.
//
// What nobody can prove to be over, and what waits for a person, stays in quarantine
// and can be listed, read, restored as a topic of another name, and reclaimed by a
// call (quarantine.go).
//
// # Producing
//
//	call ─► queue ─► batch ─► leader here   : Append, up to MaxInFlight at once
//	       (lane: one          or elsewhere : topic.produce, one at a time
//	        per partition)
//
// A producer has a lane for each partition that it writes to, and no goroutine
// while all goes well with a leader on this node: whoever calls, or brings an
// answer of the group, sends what waits. There are two goroutines for a batch on
// its way to another node, one of which looks out for another leader, one for a
// lane that pauses after a failure, one that calls callbacks, and one that asks
// the metadata for an identity. Close waits for all of them.
//
// Room: what is produced holds its size of the producer's buffer until it is
// answered. Calls wait for room in the order in which they came, or fail at once
// (ProducerConfig.FailWhenFull). It is free again before the callback, so that
// one that produces does not wait for itself.
//
// Order: records of one call to one partition, and of calls that follow each
// other and succeed, have ascending offsets. Calls side by side, and records of
// different partitions, are in no order. The callbacks of ProduceAsync for one
// partition come one after the other, in the order of its calls, but for those
// whose context ended.
//
// Retries: a batch that was not taken, or whose outcome is unknown, is sent
// again with its sequence numbers until it is answered or the producer is
// closed, and is appended once. An attempt at another node ends when the replica
// here hears of another leader or term; if there is none here, after 2 s, and
// later ones after twice as long each, up to CallTimeout. The batch's calls hear
// of this only if their context ends, or if nothing can have been appended for
// CallTimeout. Without identity (ProducerConfig.Anonymous) only what was
// certainly not appended is sent again. Nothing is repeated that was refused,
// nor across lives of a topic: that is for the caller to decide.
//
// # Reading
//
// A reader has no goroutine between calls: Fetch and Records run in their
// caller's. It asks the replica on this node and waits there for records; where
// there is none, or it is behind what the reader has seen elsewhere, or has no
// watermark yet, other nodes are asked in turn, beginning with the leader's,
// which hold the question up to FetchWait. After waiting that long in vain at
// its own replica it asks another one, and reads there as long as its own,
// perhaps stalled, is behind. Failures are repeated until ctx ends. Offsets
// ascend without gaps or repetitions, whichever replicas answer.
//
// # Traces
//
// Config.Trace is told when an operation begins and ends: see Operation. Without
// it nothing is spent.
//
// # Outcomes
//
// Every error tells whether nothing happened (retry), nothing ever will
// (refused), or it may have happened (unknown): see raftlog.OutcomeOf.
//
// # Goroutines
//
// Those of a Manager and of its producers are in the table at Manager. Between
// Open and Close it always has seven: the reconciler, the mover, the planner, the
// scrubber, the sweeper, the retainer, and the finisher of deletions that others began.
//
// A Partition has none. It runs in the goroutines of its callers and of its
// group: Apply, Applied and the answers of Append come from the group.
// Readers that wait hold a channel that is closed when the watermark moves.
package topic
