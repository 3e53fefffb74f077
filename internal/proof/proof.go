// Package proof is what a call demands that destroys something.
//
// What a node believes may be old, and what a replica of the metadata says may be
// damaged. So nothing is destroyed because somebody believes that it may be. Who
// destroys has to bring a Proof: a value that says that something is over which
// can never begin again.
//
//	a Proof says                      about                          never
//	incarnation X is dead             one life of a topic            a name
//	replica r of group g is removed   one stint of a node in a group a node, a path
//
// These ids are never given out twice, and what is over stays over. So a Proof
// does not expire, however long its holder waits, with one exception: a forced
// recovery may take back what the part of the log said that it lost. So a Proof
// says in which recovery epoch it was given, and is void in every other.
//
//	package    may
//	metastore  mint one, when its confirmation succeeded; nobody else
//	storage    demand one, and compare it with what is to be destroyed
//	raftlog    demand one, for what the journal says of a replica
//	others     carry one from metastore to those; they cannot name the type
//
// A test holds the table (internal/deptest). The zero value is no proof of
// anything, and everybody refuses it. In tests, and in nothing else, prooftest
// mints.
package proof

import (
	"encoding/hex"
	"errors"
	"fmt"
)

// Kind is what a claim says.
type Kind uint8

// What a claim says. The numbers travel, and are never reused.
const (
	DeadIncarnation Kind = 1 // a life of a topic is over
	RemovedReplica  Kind = 2 // a replica is no part of its group, and never will be again
)

// Claim is what somebody wants to have confirmed. The zero value is none.
type Claim struct {
	Kind        Kind
	Incarnation [16]byte // of DeadIncarnation, else zero
	Group       uint64   // of RemovedReplica, else 0
	Replica     uint64   // of RemovedReplica, else 0
}

// Validate refuses what is no claim.
func (c Claim) Validate() error {
	id := c.Incarnation != [16]byte{}
	switch {
	case c.Kind == DeadIncarnation && id && c.Group == 0 && c.Replica == 0:
		return nil
	case c.Kind == RemovedReplica && !id && c.Group != 0 && c.Replica != 0:
		return nil
	}
	return fmt.Errorf("proof: no claim: %+v", c)
}

func (c Claim) String() string {
	switch c.Kind {
	case DeadIncarnation:
		return fmt.Sprintf("incarnation %s is dead", hex.EncodeToString(c.Incarnation[:]))
	case RemovedReplica:
		return fmt.Sprintf("replica %d of group %d is removed", c.Replica, c.Group)
	}
	return "nothing"
}

// Proof says that a claim is true. It is a value, which may be copied.
type Proof struct {
	claim   Claim
	cluster [16]byte
	epoch   uint64
	minted  bool
}

// Mint makes a proof: metastore alone calls it, with a claim that was confirmed
// in this recovery epoch of this cluster.
func Mint(c Claim, cluster [16]byte, epoch uint64) (Proof, error) {
	if err := c.Validate(); err != nil {
		return Proof{}, err
	}
	if cluster == [16]byte{} {
		return Proof{}, errors.New("proof: of no cluster")
	}
	return Proof{c, cluster, epoch, true}, nil
}

// Claim is what the proof says; the zero one of a zero Proof.
func (p Proof) Claim() Claim { return p.claim }

// Epoch is the recovery epoch in which the claim was confirmed.
func (p Proof) Epoch() uint64 { return p.epoch }

func (p Proof) String() string {
	return fmt.Sprintf("proof in recovery epoch %d that %v", p.epoch, p.claim)
}

// ErrRefused is matched by every refusal of a proof. Nothing was destroyed.
var ErrRefused = errors.New("proof: it does not prove that this may be destroyed")

// IsRefused reports whether an error is the refusal of a proof.
func IsRefused(err error) bool { return errors.Is(err, ErrRefused) }

// Error says why a proof was refused. It matches ErrRefused.
type Error struct {
	Proof  Proof
	Reason string
}

func (e *Error) Error() string { return fmt.Sprintf("%v: %s (%v)", ErrRefused, e.Reason, e.Proof) }

// Unwrap gives ErrRefused.
func (e *Error) Unwrap() error { return ErrRefused }

// in refuses a proof that nobody minted, or that is of another cluster or
// another recovery of it.
func (p Proof) in(cluster [16]byte, epoch uint64) error {
	switch {
	case !p.minted:
		return &Error{p, "it is the zero value"}
	case p.cluster != cluster:
		return &Error{p, fmt.Sprintf("it is of the cluster %x, this is %x", p.cluster, cluster)}
	case p.epoch != epoch:
		return &Error{p, fmt.Sprintf("this is recovery epoch %d", epoch)}
	}
	return nil
}

// DeadIncarnation returns the incarnation that the proof says is dead, in this
// recovery epoch of this cluster; else an *Error.
func (p Proof) DeadIncarnation(cluster [16]byte, epoch uint64) ([16]byte, error) {
	if err := p.in(cluster, epoch); err != nil {
		return [16]byte{}, err
	}
	if p.claim.Kind != DeadIncarnation {
		return [16]byte{}, &Error{p, "it says nothing of an incarnation"}
	}
	return p.claim.Incarnation, nil
}

// Covers returns nil if the proof says that a replica is no more, in this
// recovery epoch of this cluster: that it was removed from its group, or that its
// topic's incarnation is dead. Else it returns an *Error. The zero incarnation is
// none that a proof speaks of.
func (p Proof) Covers(cluster [16]byte, epoch uint64, incarnation [16]byte, group, replica uint64) error {
	if err := p.in(cluster, epoch); err != nil {
		return err
	}
	switch c := p.claim; {
	case c.Kind == DeadIncarnation && c.Incarnation == incarnation:
		return nil
	case c.Kind == RemovedReplica && c.Group == group && c.Replica == replica:
		return nil
	}
	return &Error{p, fmt.Sprintf("this is replica %d of group %d, of incarnation %x", replica, group, incarnation)}
}
