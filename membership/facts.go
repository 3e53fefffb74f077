package membership

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// Seat is what a member is in the configuration of group 1.
type Seat uint8

const (
	// SeatNone: it is in no configuration.
	SeatNone Seat = iota
	// SeatLearner: it replicates and does not vote.
	SeatLearner
	// SeatVoter: it votes; while joint, in one of the two majorities at least.
	SeatVoter
)

func (s Seat) String() string {
	switch s {
	case SeatLearner:
		return "learner"
	case SeatVoter:
		return "voter"
	default:
		return "none"
	}
}

// Known is what a leader knows of a member, at one moment.
type Known struct {
	metastore.Member
	Seat     Seat
	Self     bool   // it is the leader
	Assigned uint64 // partition replicas that it has or is to get; of who leaves

	// Silent is for how long this leadership has not heard the member: since its
	// last heartbeat or join, or since the leadership's clock began.
	Silent time.Duration
	// Announced is the newest command that it said, in this leadership, that it
	// applies; 0: it was not heard. The recorded one may be an older process's.
	Announced metastore.CommandType
	// Wanted is what a new life of its name applies, which asked for its place and
	// since when it was not heard; 0: none did.
	Wanted metastore.CommandType
	// Pending: it was heard, and the stamp of that is not yet applied.
	Pending bool
	// Idle is for how long raft has not heard it.
	Idle time.Duration
	// CaughtUp: it had, not long ago, all that the leader then had.
	CaughtUp bool
	// Unreachable is how long ago the newest call to it failed, if none succeeded
	// since; negative: none failed.
	Unreachable time.Duration
	// Abstains: it has not asked for a vote within FailureMemory, in this leadership,
	// and so gets none.
	Abstains bool
}

// Facts is what a leader knows, at one moment. Every decision of the leader is
// a pure function of it.
type Facts struct {
	Rules Rules
	// Leads: this node leads group 1, has committed in its term, and passed a
	// barrier since.
	Leads bool
	// LedFor is how long ago that began; a process that was paused begins anew.
	LedFor time.Duration
	// Members are all members by node id.
	Members []Known
	// Conf is the configuration of group 1.
	Conf raftlog.ConfState
	// ConfSafe: Conf is not joint, and a majority durably knows it: who is not in it
	// may stop.
	ConfSafe bool
	// Unsettled are the voters that do not durably know Conf, as far as told.
	Unsettled []raftlog.ReplicaID
	// Changing: a change of the configuration or a hand-over is under way.
	Changing bool

	SegmentBytes  int64                 // of all logs in the cluster; 0: it does not matter
	Version       uint64                // the cluster's
	NewestApplied metastore.CommandType // newest that was ever applied
}

// member returns a member, or nil.
func (f *Facts) member(node raftlog.NodeID) *Known {
	i, ok := slices.BinarySearchFunc(f.Members, node, func(k Known, n raftlog.NodeID) int {
		return cmp.Compare(k.Node, n)
	})
	if !ok {
		return nil
	}
	return &f.Members[i]
}

// byNonce returns the member that is this life, or nil.
func (f *Facts) byNonce(n raftlog.Nonce) *Known {
	for i := range f.Members {
		if f.Members[i].Nonce == n {
			return &f.Members[i]
		}
	}
	return nil
}

// holder returns the newest life of a name, or nil. Names that differ only in
// the case of letters are one name: hosts' files and people mix them up.
func (f *Facts) holder(name string) (newest *Known) {
	for i := range f.Members {
		if strings.EqualFold(f.Members[i].Name, name) {
			newest = &f.Members[i]
		}
	}
	return newest
}

// successor returns the life that takes the place of a member, or nil.
func (f *Facts) successor(node raftlog.NodeID) (newest *Known) {
	if node == 0 {
		return nil
	}
	for i := range f.Members {
		if f.Members[i].Liveness.Replaces == node {
			newest = &f.Members[i]
		}
	}
	return newest
}

// heir returns the life to which the vote of a member passes, or nil: the one
// that replaces it, if that one is to vote.
func (f *Facts) heir(k *Known) *Known {
	if s := f.successor(k.Node); s != nil && !s.Liveness.Observer && !s.Liveness.Draining() {
		return s
	}
	return nil
}

// alive reports whether a member may count to a majority: not dead, and heard.
func (f *Facts) alive(k *Known) bool {
	return k.Self || !k.Liveness.Dead && k.Silent < f.Rules.DeadAfter
}

// replaceable reports whether the place of a member may pass to a new life of
// its name: it was silent long enough, in this leadership.
func (f *Facts) replaceable(k *Known) bool {
	return !k.Self && !k.Pending && min(f.LedFor, k.Silent) >= f.Rules.ReplaceAfter
}

// quorum reports whether, in each majority of a configuration, enough voters
// satisfy ok. A voter that no member is counts as one that does not.
func (f *Facts) quorum(c raftlog.ConfState, ok func(*Known) bool) bool {
	for _, half := range [][]raftlog.ReplicaID{c.Voters, c.VotersOutgoing} {
		n := 0
		for _, r := range half {
			if k := f.byReplica(r); k != nil && ok(k) {
				n++
			}
		}
		if len(half) > 0 && n <= len(half)/2 {
			return false
		}
	}
	return true
}

func (f *Facts) byReplica(r raftlog.ReplicaID) *Known {
	for i := range f.Members {
		if f.Members[i].Replica == r {
			return &f.Members[i]
		}
	}
	return nil
}

// steady reports whether a change of voters may begin now, and if not, why.
func (f *Facts) steady() (ok bool, why string) {
	switch {
	case len(f.Conf.VotersOutgoing) > 0:
		return false, "the configuration is joint: another change is not complete"
	case f.Changing:
		return false, "another change of the configuration is under way"
	}
	return true, ""
}

// settled reports whether every voter durably knows the configuration, but those
// whose place passes to a new life: their disks are lost, and they never will. The
// others are a majority, as ConfSafe says.
func (f *Facts) settled() bool {
	for _, r := range f.Unsettled {
		if k := f.byReplica(r); k == nil || k.Liveness.Departure != metastore.Leaves || f.successor(k.Node) == nil {
			return false
		}
	}
	return f.ConfSafe
}

// SeatOf returns what a replica is in a configuration.
func SeatOf(c raftlog.ConfState, r raftlog.ReplicaID) Seat {
	switch {
	case slices.Contains(c.Voters, r), slices.Contains(c.VotersOutgoing, r):
		return SeatVoter
	case slices.Contains(c.Learners, r), slices.Contains(c.LearnersNext, r):
		return SeatLearner
	}
	return SeatNone
}
