package storage

import (
	"encoding/hex"
	"fmt"
	"strconv"
)

// NodeID names one life of one data directory. It is allocated once per life
// nonce and never reused.
type NodeID uint64

// GroupID names one raft group for all time.
type GroupID uint64

// ReplicaID names one stint of a node in one raft group. It is the id that
// raft, the journal and every message use, and it is never reused: a delayed
// answer of an earlier stint must not vouch for a later, emptier log.
type ReplicaID uint64

// MetadataGroup is the group of the metadata log; every node has a replica.
const MetadataGroup GroupID = 1

// Term is a raft term.
type Term uint64

// Index is a position in a raft log. The first entry of a group that the
// creating command lists is 2: index 1 of term 1 stands for its creation.
type Index uint64

// Offset is a record's position in a partition, gapless from 0.
type Offset int64

// Incarnation names one life of a topic name: 128 random bits chosen by the
// proposer of the topic's creation.
type Incarnation [16]byte

// Nonce names one life of a data directory before it has a NodeID: 128 random
// bits, written before anything else.
type Nonce [16]byte

// ClusterID is made at genesis and carried by every frame once it is known.
type ClusterID [16]byte

func (n NodeID) String() string    { return "n" + strconv.FormatUint(uint64(n), 10) }
func (g GroupID) String() string   { return "g" + strconv.FormatUint(uint64(g), 10) }
func (r ReplicaID) String() string { return "r" + strconv.FormatUint(uint64(r), 10) }

func (i Incarnation) String() string { return hex.EncodeToString(i[:]) }
func (n Nonce) String() string       { return hex.EncodeToString(n[:]) }
func (c ClusterID) String() string   { return hex.EncodeToString(c[:]) }

// IsZero reports whether no incarnation was set.
func (i Incarnation) IsZero() bool { return i == Incarnation{} }

// IsZero reports whether no nonce was set.
func (n Nonce) IsZero() bool { return n == Nonce{} }

// IsZero reports whether the cluster id is not known yet.
func (c ClusterID) IsZero() bool { return c == ClusterID{} }

// ParseIncarnation reads what String wrote.
func ParseIncarnation(s string) (Incarnation, error) {
	var i Incarnation
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(i) {
		return i, fmt.Errorf("storage: incarnation %q: want %d hexadecimal digits", s, 2*len(i))
	}
	copy(i[:], b)
	return i, nil
}
