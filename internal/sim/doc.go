// Package sim runs whole raft groups in one goroutine under a virtual clock,
// breaks everything that may break around them, and checks after every step
// what must never be otherwise.
//
// The groups are made of the production step, raftlog.Core; what surrounds it
// in production is replaced by a world in which all time, all order and all
// failure is drawn from one seed:
//
//	         proposals, reads, transfers
//	                    |
//	network --msg--> [ Core ] --frames--> journal disk   one round at a time, synced late,
//	drops, doubles,     |                                slow, stalled; a crash keeps the
//	delays, reorders,   | committed                      unsynced round or loses it
//	cuts, and sends     v
//	very old messages  applier --> partition log         a crash cuts it at its checkpoint
//	                    |
//	                 state machine: a chain of hashes
//
// Replicas come and go if Options.Members says so: they are made with nothing, get
// snapshots beside raft, vote, are taken out, run on or are destroyed, and old
// snapshots turn up as old messages do. What those know who ask a leader decides
// when a replica is destroyed.
//
// Nodes crash and lose power, pause, tick fast or slow, batch their effects or
// not. In three runs of four they notice a disk that stalls or is full, and tell
// their cores. The faults of a run are themselves drawn: some runs have many kinds,
// some one, because faults that are always on hide one another.
//
// The checker (checker.go and its neighbours) keeps the history of every group
// and states each property where it is checked, by its id: R1 to R14, R16 to
// R22, R24 to R26, R29, R30. All checks are incremental; logs are compared by
// chained hashes, so a step costs the same however long the logs are.
//
// A run is a pure function of its seed and Options: the same seed gives the
// same trace (L5), if crypto/rand, from which raft draws its election
// timeouts, is made repeatable (testing/cryptotest.SetGlobalRandom).
//
// A checker that finds nothing proves little, so there are mutants: named ways
// to break what is around the Core, or what it says. Each must be found within
// a budget of seeds.
//
// Nothing here starts a goroutine, reads a clock or touches a file.
package sim
