package membership

import (
	"fmt"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// Verdict is what a leader decides of a join.
type Verdict uint8

const (
	// VerdictAdmit: a new member.
	VerdictAdmit Verdict = iota + 1
	// VerdictReplace: a new member, in the place of a silent life of its name.
	VerdictReplace
	// VerdictMember: it is a member already; at most its address changes.
	VerdictMember
	// VerdictWait: not now; Reason says why.
	VerdictWait
	// VerdictBurn: the life whose name it wants has spoken since it first asked.
	// It is proposed with the stamp of then, which the state machine refuses, and
	// with it the nonce for good.
	VerdictBurn
	// VerdictRemoved: a life that was removed, or refused for good.
	VerdictRemoved
	// VerdictOlder: it applies too few types of commands.
	VerdictOlder
	// VerdictRefused: it cannot be what it says; Reason says why.
	VerdictRefused
	// VerdictOther: it was given other settings than the cluster has.
	VerdictOther
)

func (v Verdict) String() string {
	names := [...]string{"none", "admit", "replace", "member", "wait", "burn", "removed", "older", "refused", "other settings"}
	if int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("verdict(%d)", uint8(v))
}

// Admission is the decision about a join.
type Admission struct {
	Verdict  Verdict
	Reason   string
	Replaces raftlog.NodeID        // VerdictReplace, VerdictBurn
	Seen     metastore.Stamp       // VerdictReplace, VerdictBurn: the last stamp of that life that this rests on
	Member   *Known                // VerdictMember
	Need     metastore.CommandType // VerdictOlder
}

// Asked is what a leader remembers of a nonce that wants a taken name.
type Asked struct {
	// Seen is the newest stamp of the other life when the nonce first asked.
	Seen metastore.Stamp
	// Heard: the other life was heard since.
	Heard bool
}

// Admit decides about a join that reached a leader (f.Leads). t is the
// tombstone of its nonce, nil: none. The rules, in order:
//
//	a life that was removed or refused for good stays out (J17)
//	a member is a member: whatever it is, it stays that (J8, J13)
//	replicas have equal segments: who would cut them elsewhere stays out
//	the cluster must be able to record a new member (C9)
//	who applies less than every member, or than what was applied, is too old (J13)
//	a name of another life is taken only from one that was silent for
//	ReplaceAfter of this leadership; who asked before it spoke never gets it (J17)
func Admit(f *Facts, r JoinRequest, t *metastore.Tombstone, asked Asked) Admission {
	if t != nil {
		return Admission{Verdict: VerdictRemoved, Reason: whyOut(t, r.Name)}
	}
	member := f.byNonce(r.Nonce)
	if member != nil && member.Name != r.Name {
		return Admission{Verdict: VerdictRefused, Reason: fmt.Sprintf("this life is recorded with the name %q", member.Name)}
	}
	if member != nil && member.Seat != SeatNone {
		return Admission{Verdict: VerdictMember, Member: member}
	}
	if r.SegmentBytes != f.SegmentBytes && r.SegmentBytes != 0 && f.SegmentBytes != 0 {
		return Admission{Verdict: VerdictOther, Reason: fmt.Sprintf(
			"its log segments have %d bytes, those of the cluster %d", r.SegmentBytes, f.SegmentBytes)}
	}
	if f.Version < versionOfJoining {
		return Admission{Verdict: VerdictWait, Reason: fmt.Sprintf("nodes can join later: %v",
			&metastore.ClusterVersionError{Needs: versionOfJoining, Has: f.Version, Behind: Behind(f)})}
	}
	if need := f.needs(); r.Newest < need {
		return Admission{Verdict: VerdictOlder, Need: need, Reason: fmt.Sprintf(
			"it applies command types up to %d, the cluster needs %d: start a newer build", r.Newest, need)}
	}
	if member != nil {
		return Admission{Verdict: VerdictMember, Member: member}
	}
	old := f.holder(r.Name)
	switch {
	case old == nil:
		return Admission{Verdict: VerdictAdmit}
	case old.Name != r.Name:
		return Admission{Verdict: VerdictRefused, Reason: fmt.Sprintf("a member is called %q, which differs only in the case of letters", old.Name)}
	}
	return f.replace(old, asked)
}

// whyOut says why a life with a tombstone stays out.
func whyOut(t *metastore.Tombstone, name string) string {
	if t.Refused {
		return fmt.Sprintf("this life asked for the place of another node %q that then spoke: it is refused for good; give the node another name, and an empty directory", name)
	}
	return "this life of the node was removed from the cluster: it takes part again only with an empty directory"
}

// versionOfJoining is the cluster version that has the commands for it.
const versionOfJoining = 2

// needs is the fewest types that a joiner must apply: as many as some member,
// and all that was ever applied.
func (f *Facts) needs() metastore.CommandType {
	oldest := ^metastore.CommandType(0)
	for i := range f.Members {
		oldest = min(oldest, f.Members[i].Liveness.Newest)
	}
	if len(f.Members) == 0 {
		oldest = 0
	}
	return max(oldest, f.NewestApplied)
}

// replace decides about a new life whose name another life has.
func (f *Facts) replace(old *Known, asked Asked) Admission {
	wait := func(format string, args ...any) Admission {
		return Admission{Verdict: VerdictWait, Reason: fmt.Sprintf(format, args...)}
	}
	switch {
	case asked.Heard && old.Liveness.Stamp > asked.Seen:
		return Admission{Verdict: VerdictBurn, Replaces: old.Node, Seen: asked.Seen,
			Reason: fmt.Sprintf("%v, which has the name, has spoken since", old.Node)}
	case asked.Heard || old.Pending || old.Self:
		return wait("%v, which has the name, is alive", old.Node)
	case !f.replaceable(old):
		return wait("the name is that of %v, which must be silent for %v under one leader", old.Node, f.Rules.ReplaceAfter)
	}
	return Admission{Verdict: VerdictReplace, Replaces: old.Node, Seen: old.Liveness.Stamp}
}
