package metastore

import (
	"fmt"
	"slices"

	"github.com/stelelog/stele/raftlog"
)

// hashState asks every replica to hash its state as of this command.
type hashState struct{ Nonce [16]byte } // drawn for each

func (hashState) kind() CommandType            { return typeHashState }
func (c hashState) appendBody(b []byte) []byte { return append(b, c.Nonce[:]...) }

func (c hashState) check() error {
	if c.Nonce == [16]byte{} {
		return invalid("Nonce", "zero", "random bytes")
	}
	return nil
}

// apply changes nothing: what it asks for is no part of the state.
func (hashState) apply(*tx) (any, error) { return nil, nil }

// stateAgreed says what a majority of the voters as of an index have as its hash.
type stateAgreed struct {
	Index raftlog.Index // of the command that asked
	Nonce [16]byte      // its
	Hash  digest
	Who   []raftlog.ReplicaID // have that hash; ascending
}

// maxAgreeing bounds how many replicas a command names.
const maxAgreeing = 64

func (stateAgreed) kind() CommandType { return typeStateAgreed }

func (c stateAgreed) appendBody(b []byte) []byte {
	b = append(appendUint(b, uint64(c.Index)), c.Nonce[:]...)
	return appendReplicas(append(b, c.Hash[:]...), c.Who)
}

func (d *decoder) stateAgreed() stateAgreed {
	return stateAgreed{raftlog.Index(d.uint()), d.id16(), d.digest(), d.replicas()}
}

func (d *decoder) digest() (sum digest) {
	copy(sum[:], d.bytes(len(sum)))
	return sum
}

func (c stateAgreed) check() error {
	switch {
	case c.Index <= genesisIndex:
		return invalid("Index", c.Index, "above %d", genesisIndex)
	case c.Nonce == [16]byte{}:
		return invalid("Nonce", "zero", "random bytes")
	case len(c.Who) == 0 || len(c.Who) > maxAgreeing || !slices.IsSorted(c.Who) || len(slices.Compact(slices.Clone(c.Who))) != len(c.Who):
		return invalid("Who", c.Who, "1 to %d replicas, ascending", maxAgreeing)
	}
	return nil
}

// apply changes nothing: who has hashed its state compares (hashes.agree).
func (stateAgreed) apply(*tx) (any, error) { return nil, nil }

// MethodStateHash is the call by which the leader asks a voter for the hash of its
// state. It came with version 3 of a cluster; format.go has its bytes.
const MethodStateHash = "meta.statehash"

// stateHashVersion is that of the question and of the answer.
const stateHashVersion = 1

// hashQuestion asks one replica for a hash.
type hashQuestion struct {
	Nonce   [16]byte // of the command, at Index
	Epoch   uint64   // recovery epoch
	Replica raftlog.ReplicaID
	Index   raftlog.Index
}

func (q hashQuestion) encode() []byte {
	b := append([]byte{stateHashVersion}, q.Nonce[:]...)
	return appendUint(appendUint(appendUint(b, q.Epoch), uint64(q.Replica)), uint64(q.Index))
}

func decodeHashQuestion(b []byte) (q hashQuestion, err error) {
	if len(b) > 0 && b[0] > stateHashVersion {
		return q, fmt.Errorf("%w: question of version %d, this build knows %d", errNewerForm, b[0], stateHashVersion)
	}
	d := decoder{b: b}
	d.version(stateHashVersion)
	q = hashQuestion{d.id16(), d.uintMax(maxEpoch), raftlog.ReplicaID(d.uint()), raftlog.Index(d.uint())}
	if err := d.end(); err != nil {
		return hashQuestion{}, err
	}
	return q, nil
}

// hasHash is what a replica has of a hash. The numbers travel, and are never
// reused.
type hasHash byte

const (
	hashHere    hasHash = 1
	hashNone    hasHash = 2 // it has none of that index, nor will have
	hashPending hasHash = 3 // it has not applied so far, or not hashed yet
	hashEpoch   hasHash = 4 // it is of another recovery epoch
	hashOther   hasHash = 5 // it is another replica than the one that was asked

	newestHasHash = hashOther
)

func (h hasHash) String() string {
	names := [...]string{"nothing", "has a hash", "has no hash of it", "has not hashed it yet",
		"is of another recovery epoch", "is another replica by now"}
	if int(h) < len(names) {
		return names[h]
	}
	return fmt.Sprintf("says %d", byte(h))
}

// hashAnswer is a replica's answer to a question.
type hashAnswer struct {
	hashQuestion // what it answers; epoch and replica are of who answers
	Has          hasHash
	Hash         digest // if it has one
}

func (a hashAnswer) encode() []byte {
	b := append(a.hashQuestion.encode(), byte(a.Has))
	if a.Has == hashHere {
		b = append(b, a.Hash[:]...)
	}
	return b
}

func decodeHashAnswer(b []byte) (a hashAnswer, err error) {
	d := decoder{b: b}
	d.version(stateHashVersion)
	a.hashQuestion = hashQuestion{d.id16(), d.uintMax(maxEpoch), raftlog.ReplicaID(d.uint()), raftlog.Index(d.uint())}
	if a.Has = hasHash(d.byte()); d.err == nil && (a.Has < hashHere || a.Has > newestHasHash) {
		d.fail("a replica that says %d", a.Has)
	}
	if a.Has == hashHere {
		a.Hash = d.digest()
	}
	if err := d.end(); err != nil {
		return hashAnswer{}, err
	}
	return a, nil
}
