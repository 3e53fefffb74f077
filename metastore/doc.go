// Package metastore is what a cluster agrees on: its members, its topics, where
// the replicas of their partitions are, and the ids that nobody may use twice.
// It is the state machine of raft group 1, of which every node has a replica.
//
// # A change
//
//	any node                      the leader                    every node
//	--------                      ----------                    ----------
//	CreateTopic
//	  command (wishes, random
//	  ids of the proposer)
//	  ── "meta.propose" ─────────▶ decode, check
//	                               raft: durable on a quorum
//	                               ──────────────────────────▶ Apply: decide(state, command)
//	                                                              -> writes, result
//	  ◀───────────── result ────── the proposer's own          one Pebble batch: writes,
//	  wait until applied here                                  applied index, configuration
//
// A command is a versioned value (command.go) whose decision (apply.go) is a
// pure function of the state and the command: equal on all replicas, whatever
// their batches and restarts. Refused commands are results and count as
// applied. Proposals carry wishes; ids and places are decided when they are
// applied, so no proposal is stale. format.go has every byte.
//
// # Members
//
//	admit ──▶ member: node id, replica of the metadata group       for good: nothing gives
//	          ├ heartbeats, dead marks, which a heartbeat ends      a node id, a replica id
//	          ├ stays ⇄ drains ─▶ leaves                            or a nonce out twice
//	          └───────────────────┴─▶ remove ──▶ tombstone
//
// Who is let in, called dead or taken out is decided by package membership, on
// the node that leads. Here is what such a decision may change, by comparing what
// it rests on with what was applied: a dead mark and the admission of a new life
// with the last heartbeat of the old one, a move with the partition's generation.
// Heartbeats wake nobody who watches.
//
// A member that leaves cannot be called back. It is said before a change is
// proposed that takes its replica out of the metadata group: of such a change
// nobody can tell whether it still comes about, and a replica never returns to a
// group under its id.
//
// # Moves
//
// A partition has the replicas that its creation listed until a move puts another
// one in the place of one of them:
//
//	StartMove   a target: a replica id that was never used, on a node
//	            the partition's leader has it filled, and changes its group
//	FinishMove  the target takes its place;  CancelMove: it is dropped
//
// Only who leads the partition's group knows whether the group has the target, so
// that only it may finish or cancel. The group's first configuration stays what
// the creation listed, for ever (Partition.FirstReplicas).
//
// # Topics
//
//	create ──▶ active ──▶ deleting ──▶ deleted: a tombstone by incarnation
//	             ▲ └─▶ retiring ─▶ retired ─┘    with a grace, which ends by itself
//	             └──── restoring ◀──┘            or by somebody who brings it back
//
// All that happens to a topic names its incarnation; what happens to one that is
// deleted with a grace also names the number of that deletion (retire.go).
//
// # Versions
//
// A cluster begins at version 1 and is raised when every member can apply what
// comes with the next one (version.go). Until then it writes, byte for byte, what
// the older release writes.
//
// # What is durable when
//
// A change that returned nil is in the journals of a quorum. The database is
// not synced for it: effects, applied index, term and configuration are one
// batch, for empty, refused and configuration entries too, so that whatever a
// crash leaves is the state of some applied index, and the raft log is
// replayed from there. Nothing is applied twice or skipped.
//
// The state begins with the genesis at index 1, which each initial member
// writes by itself; it is in no log. A node that joins later begins with nothing.
//
// # Snapshots
//
// A replica whose leader's log begins behind what it needs is told so, and asks
// that node for its state, over a stream (MethodSnapshot). The state comes as of
// one applied index, in chunks, beside the one in use; a stream that breaks goes
// on where it was while the sender holds that state. When it is all there and
// checked, the log is begun anew at its index and the state takes its place, in an
// order that a crash at any moment does not disturb (generations.go). Calls go on
// meanwhile; the gate, if it is not open, opens as ever. What is late, broken, of
// another cluster or not ahead changes nothing.
//
// So the log need not be kept for ever: see Config.TrimLogBytes.
//
// # Agreed states
//
// All replicas have one state at one index, unless one of them is damaged. So all of
// them hash theirs, now and then and when a snapshot is asked for, and what a
// majority of the voters has is agreed:
//
//	the leader              hash(nonce), committed at i
//	every replica           hashes its state of exactly i, beside the applying
//	the leader              asks the voters ("meta.statehash"); with a majority for
//	                        one hash: agreed(i, hash, who), committed
//	every replica           has the same one, or stops for good: ErrStateDiverged
//
// A snapshot is of an agreed state, and is taken only with its hash, so that damage
// does not spread from a node that is damaged and leads. If no majority has the same
// one nobody stops, and nobody is given anything (Config.OnStateSplit). statehash.go says why
// that is enough, what it does not find, and what it costs. It begins with version 3.
//
// # Recovery epochs
//
// A forced recovery ends in a command that no cluster proposes: it is the last
// entry of the log that goes on, written offline. It raises the recovery epoch,
// which is the top 16 bits of each id that is given out, so that counters which lost
// some of what they counted still give out nothing twice; it gives the nodes that
// are left their new places, marks the others as never to return, and takes away
// the names of producers, whose epochs the lost nodes may have raised. Until a
// person ends that (EndHold), what was set aside is held, and nothing may be
// destroyed (recover.go).
//
// # Proofs
//
// What is destroyed for ever needs more than this node's word. Confirm makes a
// linearizable read, looks at this node's state behind it, and asks the voters of
// group 1 what theirs says; with a majority, and nobody against it, it gives out a
// proof, which the calls that destroy demand (confirm.go says why that is enough).
// Whatever goes wrong, there is no proof, and the bytes stay.
//
// # What may be answered
//
// After a restart the state is old, and nobody can tell from it how old. Until
// the gate opens, assignments are ErrUnavailable: never "not found", never "not
// yours". It opens once, when a linearizable read of this process was confirmed
// by a leader, in the present term, not long ago, and the state machine's own
// applied index, that of the batch, has reached it (caughtup.go says why less
// is not enough).
//
// Reads are stale (Topic, Topics, TopicByIncarnation, Members, Moves, Setting), of
// the session (after Session) or linearizable (after Barrier; FindTopic). They
// are answered from memory, except for tombstones, loads and settings.
//
// # Errors
//
// Every error of a call matches exactly one of raftlog.ErrRetry, ErrRefused and
// ErrOutcomeUnknown. A change that was cancelled is Unknown, a read Retry.
// Attempts that did nothing are repeated within the call's time. One whose
// outcome is unknown is repeated only if the command may be applied twice. Such
// a one also ends when another leader is seen, and after AttemptTimeout.
//
// # Goroutines
//
//	gate           Open        asks until this node has caught up    ends when it has, or by Close
//	snapshots      Open        fetches and installs them             Close
//	in Pebble      each call   is the only one to touch Pebble       with the call
//	watchDatabase  Open        says when the database fails          ends when it has, or by Close
//	followMembers  Open        gives the raft group its peers        Close
//	hashes         Open        hashes what was asked for             Close
//	rounds         Open        has states compared, where it leads   Close
//	questions      Confirm and asks one voter each                   with the call,
//	               rounds                                            or the round
//	of Pebble      Open        flushes, compactions                  Close
//
// The database may fail: a write did not reach the disk, or what is read is
// damaged. Then the store stops (Failed) and its raft group fails, as the group
// may also do by itself. A store that stopped does not know what it misses: it
// sees no leader, and answers ErrUnavailable. Nothing else of the process is
// concerned. What Pebble was
// doing is left where it was: its goroutines, open files and directory lock stay
// until the process ends. This is the one case in which Close gives nothing
// back; Pebble cannot be used, nor closed, after such an error.
//
// Streams that are served run in goroutines of the transport; Close ends them and
// waits.
//
// Lock order: Store.mu, machine.mu and database.mu are never held together,
// nor while Pebble or raft is called, nor is hashes.mu. sources.mu is held while
// Pebble closes a snapshot, and before database.mu.
package metastore
