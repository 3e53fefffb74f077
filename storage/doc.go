// Package storage is a node's disk: what it has promised, and what it has
// applied.
//
// A node takes part in many raft groups. For each of them it must not forget a
// vote or an entry that it has acknowledged, and it must hold the log that
// readers read. If each group synced files of its own, the disk would do little
// else, so there are two places:
//
//	            promised: synced before an answer        applied: synced before a checkpoint
//
//	 rounds of  +------------------------------+  apply   +----------------------------+
//	 all groups | journal                      |--------->| partition log, per replica |
//	----------->| one write, one sync a round  |          | segments, append-only      |
//	            +------------------------------+          +----------------------------+
//	                     ^ begins at                         ^ cut at
//	                     |        +------------------+       |
//	                     +--------| checkpoint table |-------+
//	                              | two copies       |
//	                              +------------------+
//
// The journal holds frames: what raft wants to be durable, of all groups, in
// one sequence. WriteRound writes a round of them, whole or not at all. When a
// file is full, Rotate begins a new generation in another one, with the states
// of all replicas, and Checkpoint makes the table say that this is where
// replay begins, as soon as the partition logs are synced up to there. Then
// older files are written over. The table has one row for each replica: hard
// state, configuration, and the position up to which its log counts.
//
// Open reads the table, replays the journal behind it, moves what it found to
// a new generation, and only then returns: see recovery.go, which says why
// nothing promised is lost whenever power fails, and format.go for the bytes.
// The partition logs are not read. Each is cut at its position by OpenLog and
// written again through raft, from the entries in ReplicaState.Tail. A replica that
// gets a snapshot changes over to another log by one frame, a reset.
//
// A partition log holds committed entries with what applying them decided: the
// verdict and the offsets. It is never truncated by a conflict. Its segments
// are a function of the entries alone, so that replicas can be compared file by
// file. Topic directories carry the incarnation of their topic in their name and
// in a marker, which is compared whenever anything in them is opened, and are
// moved into quarantine, by name. What is there can be described and read
// (Store.Describe, ReadQuarantined), and is unlinked only against a proof
// (destroy.go). One without a marker is nobody's, until a person says whose it is, with
// the node stopped (Adopt).
//
//	<dir>/LOCK  FORMAT  IDENTITY
//	<dir>/journal/<number>.journal  checkpoint.0  checkpoint.1
//	<dir>/topics/<name>@<incarnation>/INCARNATION
//	<dir>/topics/<name>@<incarnation>/<partition>.<replica>/   the partition logs
//	<dir>/topics/<name>@<incarnation>/<partition>.<replica>/<reset>.reset/   since a reset
//	<dir>/quarantine/<name>@<incarnation>~<n>/REASON
//	<dir>/quarantine/<name>@<incarnation>.<partition>.<replica>~<n>/REASON
//	<dir>/reserve/<n>.ballast    room for when the disk is full: reserve.go
//
// # Who may do what at the same time
//
// The package starts no goroutine. One goroutine at a time writes rounds and
// rotates; one runs a checkpoint beside it; each log has one writer and any
// number of readers; all else is safe for concurrent use. Blocking is that of
// the file system. Lock order: journal.checkpointing, then the logs' locks (see
// logSet); journal.writing; journal.mu is a leaf.
//
// # What fails, and how far it reaches
//
//	a write or sync of journal or table   the Store: every later call returns the same
//	                                      error, nothing is tried again
//	a frame that recovery would refuse    the same: the caller's idea of what is durable
//	                                      is wrong
//	a write or sync of a partition log    that log; Checkpoint reports it, and carries
//	                                      what the log lacks to the next Open
//	damage of journal or table            Open returns a *DamageError and changes nothing
//	damage of a partition log             the reader of that range gets a *DamageError,
//	                                      until a Verifier has written it again from
//	                                      what another replica has (log_verify.go)
//	the directory of a topic is another   all logs in it: their calls end with ErrLogClosed,
//	                                      and what they had is lost here (log_foreign.go)
//	a torn tail                           is cut: nothing was promised of it
//	no room for a write                   nothing, while there is ballast to give back; then
//	                                      as any failed write. Zeros that are written ahead
//	                                      into a journal file may find no room
//
// # What is assumed
//
// A sync that returns has made the file's content and size durable; a sector is
// written whole or not at all; nobody restores an old copy of the directory or
// changes it beside the Store. Damage behind the journal's last mark (a
// WriteRound without frames, which an idle node writes) looks like a torn tail.
package storage
