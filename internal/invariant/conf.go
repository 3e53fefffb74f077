package invariant

import (
	"slices"

	"github.com/stelelog/stele/raftlog"
)

// Voters returns who votes in a configuration, in both halves while it is joint.
func Voters(c raftlog.ConfState) []raftlog.ReplicaID {
	return slices.Concat(c.Voters, c.VotersOutgoing)
}

// Everyone returns who is in a configuration.
func Everyone(c raftlog.ConfState) []raftlog.ReplicaID {
	return slices.Concat(c.Voters, c.VotersOutgoing, c.Learners, c.LearnersNext)
}

// Same reports whether two configurations are equal.
func Same(a, b raftlog.ConfState) bool {
	return slices.Equal(a.Voters, b.Voters) && slices.Equal(a.Learners, b.Learners) &&
		slices.Equal(a.VotersOutgoing, b.VotersOutgoing) && slices.Equal(a.LearnersNext, b.LearnersNext) &&
		a.AutoLeave == b.AutoLeave
}

// Quorum reports whether those that are in are a quorum, in both halves while
// the configuration is joint.
func Quorum(c raftlog.ConfState, in func(raftlog.ReplicaID) bool) bool {
	majority := func(ids []raftlog.ReplicaID) bool {
		n := 0
		for _, id := range ids {
			if in(id) {
				n++
			}
		}
		return n > len(ids)/2
	}
	return majority(c.Voters) && (len(c.VotersOutgoing) == 0 || majority(c.VotersOutgoing))
}

// Intersect reports whether every quorum of a meets every quorum of b: no set is
// a quorum of a while the rest is one of b.
func Intersect(a, b raftlog.ConfState) bool {
	all := slices.Concat(Voters(a), Voters(b))
	slices.Sort(all)
	all = slices.Compact(all)
	for set := range uint64(1) << len(all) {
		in := func(id raftlog.ReplicaID) bool {
			i, _ := slices.BinarySearch(all, id)
			return set>>i&1 == 1
		}
		if Quorum(a, in) && Quorum(b, func(id raftlog.ReplicaID) bool { return !in(id) }) {
			return false
		}
	}
	return true
}
