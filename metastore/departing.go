package metastore

import (
	"context"
	"encoding/binary"
	"sync"

	"github.com/stelelog/stele/raftlog"
)

// Judged is what a leader's judgement that a member may leave is of.
type Judged struct {
	// Term in which it leads, and in which it passed a Barrier before it looked.
	Term raftlog.Term
	// Departures, from before it looked.
	Departures uint64
}

// MarkLeaving sets a member's departure to Leaves. It is nil if it is that already.
// Only where the metadata is led.
//
// It has to be done before a change that takes the member's replica out of the
// metadata group is proposed, and before RemoveMember: from then on it cannot be
// taken back, so that no such change meets a member that stays.
//
// It comes about only if no departure changed since the judgement: in another term it
// ends with raftlog.ErrLeadershipLost (Retry), and after a change, or while one is
// under way, with ErrStale. So a member that stayed in between, and took records in,
// is not marked by what it said before, however soon it was to leave again.
//
// ErrNotDraining for a member that stays; *RemovedError; ErrMemberNotFound if no
// member has the node id and the nonce.
func (s *Store) MarkLeaving(ctx context.Context, node raftlog.NodeID, nonce raftlog.Nonce, of Judged) error {
	c := setDeparture{node, nonce, Leaves}
	if of.Term == 0 {
		return invalid("Judged.Term", 0, "1 and up")
	}
	if err := s.allowed(c); err != nil {
		return err
	}
	return s.leadBy(ctx, c, func(ctx context.Context, data []byte) answer {
		done := make(chan raftlog.Proposal, 1)
		fresh := func() bool { return s.Departures() == of.Departures }
		if !s.departing.proposeIf(fresh, of.Term, &s.group, data, func(p raftlog.Proposal) { done <- p }) {
			return failedAnswer(ErrStale)
		}
		return s.outcome(ctx, done)
	}).err
}

// departing knows the departures that were proposed here and are not decided. All
// that are in the log in a term in which this node leads were: so if none is under
// way, and none was applied since, none is before what is proposed next in that term.
type departing struct {
	mu struct {
		sync.Mutex
		underWay int
	}
}

func (d *departing) propose(g group, data []byte, done func(raftlog.Proposal)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.proposeLocked(0, g, data, done)
}

// proposeIf proposes and reports true if fresh says so and no other one is under way.
func (d *departing) proposeIf(fresh func() bool, term raftlog.Term, g group, data []byte, done func(raftlog.Proposal)) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.underWay > 0 || !fresh() { // in this order: what ended was applied
		return false
	}
	d.proposeLocked(term, g, data, done)
	return true
}

func (d *departing) proposeLocked(term raftlog.Term, g group, data []byte, done func(raftlog.Proposal)) {
	d.mu.underWay++
	g.ProposeIn(term, data, func(p raftlog.Proposal) {
		d.mu.Lock()
		d.mu.underWay--
		d.mu.Unlock()
		done(p)
	})
}

// isDeparture reports whether an encoded command is a setDeparture.
func isDeparture(command []byte) bool {
	return len(command) >= 2 && CommandType(binary.BigEndian.Uint16(command)) == typeSetDeparture
}
