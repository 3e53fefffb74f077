//go:build unix

// Campaign runs a cluster of real processes over real files, does to it what
// machines and operators do, and checks every record.
//
//	go run ./internal/campaign -rounds 30
//	go run ./internal/campaign -rounds 300 -seed 7 -out rounds.jsonl
//
// The nodes are examples/cluster, built and driven as a user would. In each
// round, under load, one fault is put in and taken away again (faults.go): kill
// -9 of one, two or all nodes, also while they start; SIGSTOP; restarts in good
// order; and, for root on Linux, where each node gets a network namespace of its
// own, links that are cut in one direction or both. The seed and the number of a
// round choose what it does, so -seed 7 -first 120 -rounds 1 repeats round 120,
// as far as processes can be repeated. A long campaign is cut into slices with
// -first.
//
// # What is checked
//
// Writers send numbered records, and never the same number twice; readers follow
// each partition through one node after the other. The ledger (ledger.go) finds
//
//   - an acknowledged record that is not read at its offset, or not at all,
//   - a record that is read twice, at any offsets,
//   - a record that is read though its producer was told that nothing happened,
//   - records of one writer out of order in a partition,
//   - an offset at which two readers, of any nodes at any time, saw different
//     records, and a gap.
//
// During a fault that leaves a connected majority, that majority serves all
// partitions within a bound. When the fault is healed, all nodes are ready and
// each serves every partition within a bound, and everything that was
// acknowledged is read within it. Every -inspect rounds the nodes are stopped,
// their directories are read by `cluster inspect`, which verifies every checksum
// and compares the replicas, and the nodes are started again.
//
// With -soak there are no faults: the load runs, and what the nodes use (memory,
// goroutines, descriptors) must not grow while they do.
//
//	go run ./internal/campaign -soak 30m -out soak.jsonl
//
// # Stories
//
// With -story people do with the cluster what people do, step by step, while it is
// used; no step may lose a record or have one refused, and what is in doubt is at
// most what a killed node did not answer.
//
// In a step in good order (a restart, a join, a decommission, a wait; of rolling and
// grow all but the kills) each error that a producer or a reader gets is to be an
// answer with the outcome retry. A connection that was refused or broke is a class of
// its own, permitted of the node that is just stopped, started again or out, and
// counted; no answer in time, an unknown outcome and an answer in no known form are
// not. The failure names who said what in which step.
//
//	go run ./internal/campaign -story rolling -times 3
//	go run ./internal/campaign -story grow
//	go run ./internal/campaign -story harm -times 2 -seed 3
//	go run ./internal/campaign -story mix -rounds 60 -seed 3
//	go run ./internal/campaign -story upgrade
//
//	rolling   5 nodes; each is stopped in good order and started again, one after the
//	          other; then each is killed (kill -9) and started again
//	grow      3 nodes; four join, of which two get votes and two stand by; a standby, the
//	          leader of the metadata and two voters are decommissioned, and end with
//	          status 3; of the three that are left each holds everything
//	harm      nodes join and leave, and are killed, paused, wiped or dead meanwhile, as is
//	          who leads: harm.go has the steps, and the seed their moments
//	mix       rounds, of which every third is one of these steps
//	upgrade   2 nodes of an earlier release and one of this build found a cluster. That one
//	          goes back to the earlier release; then each is replaced by this build, one
//	          after the other, one of them by kill -9, one of them twice, because it went
//	          back. Through every node a topic is created after each step. Only with the
//	          last one the cluster's version rises, and a fourth can join
//
// Each step tells how long it took, and the longest pause between two records that
// were acknowledged, of each partition. For that, records are written to each
// partition one after the other through two nodes. The first step, in which nothing
// happens, tells what the machine adds to that.
//
// A violation ends the campaign with status 1; the directories and the nodes'
// logs stay. Kill -9 keeps what the operating system holds, so this shows
// nothing of a power loss: see TestWholeClusterPowerLoss of the root package.
package main
