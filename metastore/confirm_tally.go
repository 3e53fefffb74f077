package metastore

import (
	"fmt"
	"slices"

	"github.com/stelelog/stele/raftlog"
)

// question is what one replica asks the voters of group 1 about a claim that its
// own state says is true.
type question struct {
	Nonce    [16]byte // drawn for this question alone
	Epoch    uint64   // recovery epoch
	Replica  raftlog.ReplicaID
	Index    raftlog.Index // the answer is to be as of this index or later
	Voters   []raftlog.ReplicaID
	Outgoing []raftlog.ReplicaID // not empty: joint
	Claim    Claim
}

// to returns the question for one voter.
func (q question) to(r raftlog.ReplicaID) question {
	q.Replica = r
	return q
}

// says is what a replica says of a claim.
type says byte

// The numbers travel, and are never reused.
const (
	saysYes    says = 1
	saysNo     says = 2
	saysBehind says = 3 // it has not applied what the question is about
	saysHeld   says = 4 // a forced recovery holds destruction
	saysEpoch  says = 5 // it is of another recovery epoch
	saysVoters says = 6 // the group has other voters
	saysOther  says = 7 // it is another replica than the one that was asked

	newestSays = saysOther
)

func (s says) String() string {
	names := [...]string{"nothing", "says so", "says otherwise", "is behind", "says that destruction is held",
		"is of another recovery epoch", "knows other voters", "is another replica by now"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("says %d", byte(s))
}

// testimony is a replica's answer to a question.
type testimony struct {
	Nonce   [16]byte          // of the question
	Epoch   uint64            // of who answers, as all that follows
	Replica raftlog.ReplicaID // which it is
	Applied raftlog.Index     // the state that it looked at is not older
	Says    says
}

// judge is what a replica says to a question that found its state to be f, which
// is as of q.Index or later.
func (q question) judge(f finding, own raftlog.ReplicaID) says {
	switch {
	case q.Replica != own:
		return saysOther
	case q.Epoch != f.cluster.Epoch:
		return saysEpoch
	case f.before < q.Index:
		return saysBehind
	case !sameReplicas(q.Voters, f.conf.Voters) || !sameReplicas(q.Outgoing, f.conf.VotersOutgoing):
		return saysVoters
	case f.held:
		return saysHeld
	case !f.says:
		return saysNo
	}
	return saysYes
}

// sameReplicas: raft keeps them sorted; to rely on that would be to trust more
// than is needed.
func sameReplicas(a, b []raftlog.ReplicaID) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}

// tally collects the answers to a question and decides. It is pure.
//
// Invariants:
//
//  1. heard holds only voters of the question, each by its first answer.
//  2. What does not bear the question's nonce and epoch, is of another replica than
//     the one that was asked, or of an older state, counts for nothing.
type tally struct {
	question question
	heard    map[raftlog.ReplicaID]voice
}

// voice is what came of asking a voter.
type voice struct {
	replica raftlog.ReplicaID
	counts  says   // 0: for nothing
	said    string // for a person
}

func newTally(q question) *tally {
	return &tally{question: q, heard: map[raftlog.ReplicaID]voice{}}
}

// hear takes the answer of who was asked.
func (t *tally) hear(from raftlog.ReplicaID, a testimony) {
	q := t.question
	v := voice{from, a.Says, a.Says.String()}
	switch {
	case a.Nonce != q.Nonce:
		v.counts, v.said = 0, "answers another question"
	case a.Says == saysBehind || a.Says == saysEpoch || a.Says == saysVoters || a.Says == saysOther:
		v.counts = 0
	case a.Epoch != q.Epoch:
		v.counts, v.said = 0, saysEpoch.String()
	case a.Replica != from:
		v.counts, v.said = 0, saysOther.String()
	case a.Applied < q.Index:
		v.counts, v.said = 0, saysBehind.String()
	case a.Says != saysYes && a.Says != saysNo && a.Says != saysHeld:
		v.counts = 0
	}
	t.note(v)
}

// miss notes that no answer came.
func (t *tally) miss(from raftlog.ReplicaID, why string) {
	t.note(voice{replica: from, said: "does not answer (" + why + ")"})
}

func (t *tally) note(v voice) {
	if _, twice := t.heard[v.replica]; !twice && slices.Contains(t.all(), v.replica) {
		t.heard[v.replica] = v
	}
}

// all is who may be counted, each once.
func (t *tally) all() []raftlog.ReplicaID {
	all := slices.Concat(t.question.Voters, t.question.Outgoing)
	slices.Sort(all)
	return slices.Compact(all)
}

// silent returns who has not been heard.
func (t *tally) silent() (rest []raftlog.ReplicaID) {
	for _, r := range t.all() {
		if _, ok := t.heard[r]; !ok {
			rest = append(rest, r)
		}
	}
	return rest
}

// voters returns all that may be counted, with what they said.
func (t *tally) voters() (all []voice) {
	for _, r := range t.all() {
		v, ok := t.heard[r]
		if !ok {
			v = voice{replica: r, said: "does not answer"}
		}
		all = append(all, v)
	}
	return all
}

// majority reports whether a majority says yes, of both halves while joint.
func (t *tally) majority() bool {
	of := func(voters []raftlog.ReplicaID) bool {
		n := 0
		for _, r := range voters {
			if t.heard[r].counts == saysYes {
				n++
			}
		}
		return 2*n > len(voters)
	}
	q := t.question
	return of(q.Voters) && (len(q.Outgoing) == 0 || of(q.Outgoing))
}

// refusal is why the claim is not confirmed by what was heard; "": it is.
func (t *tally) refusal() ConfirmReason {
	said := func(s says) bool {
		for _, v := range t.heard {
			if v.counts == s {
				return true
			}
		}
		return false
	}
	switch {
	case said(saysNo):
		return ConfirmDissent
	case said(saysHeld):
		return ConfirmHeld
	case !t.majority():
		return ConfirmNoMajority
	}
	return ""
}
