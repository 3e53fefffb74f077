package metastore

import (
	"fmt"
	"slices"

	"github.com/stelelog/stele/raftlog"
)

// hashTally collects the hashes of one index and decides. It is pure.
//
// Invariants:
//
//  1. heard holds only voters of the configuration, each by its first answer that
//     is not "not yet".
//  2. What is of another nonce, index or epoch, or of another replica than the one
//     that was asked, counts for nothing.
type hashTally struct {
	question hashQuestion // of whichever replica
	conf     raftlog.ConfState
	heard    map[raftlog.ReplicaID]hashVoice
}

// hashVoice is what came of asking a voter.
type hashVoice struct {
	has  bool
	odd  bool // who asks is wrong about where the voter is, or about the epoch
	sum  digest
	said string // for a person
}

func newHashTally(q hashQuestion, conf raftlog.ConfState) *hashTally {
	return &hashTally{question: q, conf: conf, heard: map[raftlog.ReplicaID]hashVoice{}}
}

// hear takes the answer of who was asked, and reports whether it is its last word.
func (t *hashTally) hear(from raftlog.ReplicaID, a hashAnswer) bool {
	q := t.question
	q.Replica = from
	v := hashVoice{said: a.Has.String()}
	switch {
	case a.Has == hashPending:
		return false
	case a.Has == hashEpoch || a.Has == hashOther:
		v.odd = true
	case a.Has != hashHere:
	case a.hashQuestion != q:
		v.said = "answers another question"
	default:
		v.has, v.sum, v.said = true, a.Hash, fmt.Sprintf("has %x", a.Hash[:6])
	}
	t.note(from, v)
	return true
}

// miss notes that no answer will come.
func (t *hashTally) miss(from raftlog.ReplicaID, why string) {
	t.note(from, hashVoice{said: "does not answer (" + why + ")"})
}

func (t *hashTally) note(from raftlog.ReplicaID, v hashVoice) {
	if _, twice := t.heard[from]; !twice && slices.Contains(t.voters(), from) {
		t.heard[from] = v
	}
}

// voters is who may be counted, each once.
func (t *hashTally) voters() []raftlog.ReplicaID {
	all := slices.Concat(t.conf.Voters, t.conf.VotersOutgoing)
	slices.Sort(all)
	return slices.Compact(all)
}

// missNowhere notes that who asks does not know where a voter is.
func (t *hashTally) missNowhere(from raftlog.ReplicaID) {
	t.note(from, hashVoice{said: "is no member's", odd: true})
}

// isOdd reports whether it may be for damage of who asks that it has no majority.
func (t *hashTally) isOdd() bool {
	for _, v := range t.heard {
		if v.odd {
			return true
		}
	}
	return false
}

// agreed returns the hash that a majority has, and who that is.
func (t *hashTally) agreed() (sum digest, who []raftlog.ReplicaID, ok bool) {
	for sum, who := range t.hashes() {
		if majorityOf(who, t.conf) {
			return sum, who, true
		}
	}
	return digest{}, nil, false
}

// hashes returns who has which hash; who is ascending.
func (t *hashTally) hashes() map[digest][]raftlog.ReplicaID {
	all := map[digest][]raftlog.ReplicaID{}
	for _, r := range t.voters() {
		if v := t.heard[r]; v.has {
			all[v.sum] = append(all[v.sum], r)
		}
	}
	return all
}

// outcome is what the answers amount to.
func (t *hashTally) outcome() StateHashOutcome {
	if _, _, ok := t.agreed(); ok {
		return StateHashAgreed
	}
	if len(t.hashes()) > 1 {
		return StateHashSplit
	}
	return StateHashNoMajority
}

// said is what a voter said, for a person.
func (t *hashTally) said(r raftlog.ReplicaID) string {
	if v, ok := t.heard[r]; ok {
		return v.said
	}
	return "does not answer in time"
}
