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
//	refused     other incarnation, sealed, out of order, not a batch     none
//	control     a seal: nothing is appended behind it                    none
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
// # Outcomes
//
// Every error tells whether nothing happened (retry), nothing ever will
// (refused), or it may have happened (unknown): see raftlog.OutcomeOf.
//
// # Goroutines
//
// A Partition has none. It runs in the goroutines of its callers and of its
// group: Apply, Applied and the answers of Append come from the group.
// Readers that wait hold a channel that is closed when the watermark moves.
package topic
