package membership

import (
	"time"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// sample is what facts are made of, beside the memory of the leadership: taken
// at one moment, on the leader.
type sample struct {
	rules  Rules
	self   raftlog.NodeID
	newest metastore.CommandType // that this node applies
	tick   time.Duration         // of raft
	// segmentBytes is the size of log segments.
	segmentBytes int64
	status       raftlog.Status
	members      []metastore.Member
	version      uint64
	applied      metastore.CommandType
	load         func(raftlog.NodeID) uint64 // asked of those who leave
}

// facts joins a sample and the memory of the leadership.
func (t *tenure) facts(s sample, now time.Duration) *Facts {
	f := &Facts{
		SegmentBytes: s.segmentBytes,
		Rules:        s.rules, Conf: s.status.Conf, Version: s.version, NewestApplied: s.applied,
		Leads:    t.begun && s.status.Role == raftlog.RoleLeaderActive && s.status.Term == t.term,
		Changing: s.status.Transferee != 0 || s.status.ConfPending,
		ConfSafe: s.status.ConfSafe, Unsettled: s.status.Unsettled,
	}
	if f.Leads {
		f.LedFor = max(0, now-t.since)
	}
	progress := map[raftlog.ReplicaID]raftlog.Progress{}
	for _, p := range s.status.Progress {
		progress[p.Replica] = p
	}
	for _, m := range s.members {
		f.Members = append(f.Members, t.known(m, s, progress, now))
	}
	for i := range f.Members {
		if k := &f.Members[i]; k.Liveness.Draining() || f.successor(k.Node) != nil {
			k.Assigned = s.load(k.Node)
		}
	}
	return f
}

// known is what is known of one member.
func (t *tenure) known(m metastore.Member, s sample, progress map[raftlog.ReplicaID]raftlog.Progress, now time.Duration) Known {
	k := Known{
		Member: m, Seat: SeatOf(s.status.Conf, m.Replica), Self: m.Node == s.self,
		Silent: t.silent(m.Node, now), Announced: t.newest[m.Node], Pending: t.pending[m.Node],
		Unreachable: t.unreachable(m.Node, now), Wanted: t.wanted(m.Node),
		Abstains: !t.asks(m.Node, s.rules.FailureMemory, now),
	}
	if k.Silent >= s.rules.ReplaceAfter {
		k.Pending = false // see Steward.flush
	}
	if k.Self {
		k.Silent, k.Announced, k.Unreachable = 0, s.newest, -1
	}
	p, ok := progress[m.Replica]
	ticks := func(n int) time.Duration { return time.Duration(n) * s.tick }
	switch {
	case ok && p.SinceContact >= 0:
		k.Idle = ticks(p.SinceContact)
	default:
		k.Idle = max(0, now-t.since)
	}
	k.CaughtUp = ok && p.SinceCaughtUp >= 0 && ticks(p.SinceCaughtUp) <= s.rules.CaughtUpWithin
	return k
}
