// Package prooftest mints proofs for tests of those who demand them. A test of
// internal/deptest keeps it out of everything else.
package prooftest

import "github.com/stelelog/stele/internal/proof"

// Dead returns a proof that an incarnation is dead.
func Dead(cluster [16]byte, epoch uint64, incarnation [16]byte) proof.Proof {
	return must(proof.Mint(proof.Claim{Kind: proof.DeadIncarnation, Incarnation: incarnation}, cluster, epoch))
}

// Removed returns a proof that a replica is no part of its group any more.
func Removed(cluster [16]byte, epoch uint64, group, replica uint64) proof.Proof {
	return must(proof.Mint(proof.Claim{Kind: proof.RemovedReplica, Group: group, Replica: replica}, cluster, epoch))
}

func must(p proof.Proof, err error) proof.Proof {
	if err != nil {
		panic(err)
	}
	return p
}
