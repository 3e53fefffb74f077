package membership

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// What follows is the metadata and the raft group, as one node sees them.

func (h *house) Leader() (raftlog.NodeID, <-chan struct{}) {
	h.town.mu.Lock()
	defer h.town.mu.Unlock()
	// A node that raft does not reach sees no leader.
	if h.steward == nil || h.cut[h.peer.Addr] || SeatOf(h.conf, h.place.Replica) == SeatNone {
		return 0, h.changed
	}
	return h.leader, h.changed
}

func (h *house) Status() raftlog.Status {
	h.town.mu.Lock()
	defer h.town.mu.Unlock()
	st := raftlog.Status{Role: raftlog.RoleFollower, Term: h.term, Conf: h.conf, ConfSafe: true}
	if h.place.Node == 0 || h.leader != h.place.Node {
		return st
	}
	st.Role = raftlog.RoleLeaderActive
	for _, r := range slices.Concat(h.conf.Voters, h.conf.Learners) {
		p := raftlog.Progress{Replica: r, Learner: SeatOf(h.conf, r) == SeatLearner, Match: 10, SinceContact: -1, SinceCaughtUp: -1}
		for _, n := range h.nodes {
			if n.place.Replica != r || h.cut[n.peer.Addr] {
				continue
			}
			p.SinceContact = 0
			if !n.downSince.IsZero() {
				p.SinceContact = int(time.Since(n.downSince) / (50 * time.Millisecond))
			}
			p.SinceCaughtUp = p.SinceContact
		}
		if p.SinceContact != 0 {
			st.Unsettled = append(st.Unsettled, r)
		}
		st.Progress = append(st.Progress, p)
	}
	return st
}

func (h *house) Barrier(ctx context.Context) error {
	if err := rest(ctx, clock.System(), time.Millisecond, nil); err != nil {
		return raftlog.Retry(err)
	}
	h.town.mu.Lock()
	defer h.town.mu.Unlock()
	if h.leader == 0 || !h.quorumLocked(h.conf) {
		return raftlog.Retry(errors.New("nobody can be asked"))
	}
	return nil
}

// change is a proposal. A leader may crash after it was applied, before it
// answers.
func (h *house) change(apply func() error) error {
	h.town.mu.Lock()
	defer h.town.mu.Unlock()
	if h.leader != h.place.Node || h.leader == 0 {
		return &raftlog.NotLeaderError{Group: raftlog.MetadataGroup, Node: h.leader}
	}
	if !h.quorumLocked(h.conf) {
		return raftlog.Unknown(errors.New("no quorum"))
	}
	err := apply()
	if err != nil {
		return err
	}
	h.changes++
	if h.crash != nil && h.crash(h.changes) {
		h.downSince = time.Now()
		h.end()
		h.electLocked(h.place.Node)
		return raftlog.Unknown(raftlog.ErrLeadershipLost)
	}
	return nil
}

func (h *house) Members() []metastore.Member {
	h.town.mu.Lock()
	defer h.town.mu.Unlock()
	return slices.Clone(h.members)
}

func (h *house) ClusterVersion() uint64 {
	h.town.mu.Lock()
	defer h.town.mu.Unlock()
	return h.version
}

func (h *house) NewestApplied() metastore.CommandType {
	if h.ClusterVersion() == 1 {
		return 9
	}
	return 21
}

func (h *house) Tombstone(n raftlog.Nonce) (metastore.Tombstone, bool, error) {
	h.town.mu.Lock()
	defer h.town.mu.Unlock()
	t, ok := h.stones[n]
	return t, ok, nil
}

func (h *house) Load(node raftlog.NodeID) (uint64, uint64, error) {
	h.town.mu.Lock()
	defer h.town.mu.Unlock()
	return h.loads[node], 0, nil
}

func (h *house) Orphans() (n uint64, err error) {
	h.town.mu.Lock()
	defer h.town.mu.Unlock()
	for node, load := range h.loads {
		if h.memberLocked(node) == nil {
			n += load
		}
	}
	return n, nil
}

func (w *town) stampLocked(stored metastore.Stamp) metastore.Stamp {
	return max(metastore.Stamp(time.Now().Add(w.clockOff).UnixMilli()), stored+1)
}

func (w *town) memberLocked(node raftlog.NodeID) *metastore.Member {
	for i := range w.members {
		if w.members[i].Node == node {
			return &w.members[i]
		}
	}
	return nil
}

func (h *house) Admit(_ context.Context, a metastore.Admission) (m metastore.Member, err error) {
	err = h.change(func() error {
		if t, ok := h.stones[a.Nonce]; ok {
			if t.Refused {
				return metastore.ErrNonceRefused
			}
			return &metastore.RemovedError{Node: t.Node, Name: t.Name}
		}
		var holder *metastore.Member
		for i := range h.members {
			if h.members[i].Nonce == a.Nonce {
				m = h.members[i]
				return nil
			}
			if h.members[i].Name == a.Name {
				holder = &h.members[i]
			}
		}
		if holder != nil {
			if a.Replaces != holder.Node {
				return metastore.ErrNameTaken
			}
			if holder.Liveness.Stamp != a.Seen {
				h.stones[a.Nonce] = metastore.Tombstone{Nonce: a.Nonce, Refused: true}
				return metastore.ErrNonceRefused
			}
		}
		h.ids++
		m = metastore.Member{
			Node: raftlog.NodeID(h.ids), Replica: raftlog.ReplicaID(1000 + h.ids), Name: a.Name, Nonce: a.Nonce, Addr: a.Addr,
			Liveness: metastore.Liveness{Stamp: h.stampLocked(0), Newest: a.Newest, Observer: a.Observer, Replaces: a.Replaces},
		}
		h.members = append(slices.Clone(h.members), m)
		return nil
	})
	return m, err
}

func (h *house) SetAddress(_ context.Context, node raftlog.NodeID, nonce raftlog.Nonce, addr string) error {
	h.town.mu.Lock()
	defer h.town.mu.Unlock()
	if m := h.memberLocked(node); m != nil && m.Nonce == nonce {
		m.Addr = addr
		return nil
	}
	return metastore.ErrMemberNotFound
}

func (h *house) RecordHeartbeats(_ context.Context, beats []metastore.Heartbeat) ([]error, error) {
	results := make([]error, len(beats))
	return results, h.change(func() error {
		for i, b := range beats {
			m := h.memberLocked(b.Node)
			if m == nil || m.Nonce != b.Nonce {
				results[i] = metastore.ErrMemberNotFound
				continue
			}
			m.Liveness.Stamp, m.Liveness.Newest, m.Liveness.Dead = h.stampLocked(m.Liveness.Stamp), b.Newest, false
		}
		return nil
	})
}

func (h *house) MarkDead(_ context.Context, marks []metastore.DeadMark) ([]error, error) {
	results := make([]error, len(marks))
	return results, h.change(func() error {
		for i, mark := range marks {
			if m := h.memberLocked(mark.Node); m.Liveness.Stamp != mark.Judged {
				results[i] = metastore.ErrStale
			} else {
				m.Liveness.Dead = true
			}
		}
		return nil
	})
}

func (h *house) SetDeparture(_ context.Context, node raftlog.NodeID, nonce raftlog.Nonce, d metastore.Departure) error {
	return h.change(func() error { return h.departLocked(node, nonce, d) })
}

func (h *house) MarkLeaving(_ context.Context, node raftlog.NodeID, nonce raftlog.Nonce, of metastore.Judged) error {
	return h.change(func() error {
		if of.Term != h.term {
			return raftlog.Retry(raftlog.ErrLeadershipLost)
		}
		if of.Departures != h.departures {
			return metastore.ErrStale
		}
		return h.departLocked(node, nonce, metastore.Leaves)
	})
}

func (w *town) departLocked(node raftlog.NodeID, nonce raftlog.Nonce, d metastore.Departure) error {
	m := w.memberLocked(node)
	switch {
	case m == nil || m.Nonce != nonce:
		return metastore.ErrMemberNotFound
	case m.Liveness.Departure == metastore.Leaves && d != metastore.Leaves:
		return metastore.ErrMemberLeaving
	case d == metastore.Leaves && m.Liveness.Departure == metastore.Stays:
		return metastore.ErrNotDraining
	}
	if m.Liveness.Departure != d {
		w.departures++
	}
	m.Liveness.Departure = d
	return nil
}

func (h *house) Departures() uint64 {
	h.town.mu.Lock()
	defer h.town.mu.Unlock()
	return h.departures
}

// drain is what a person does.
func (w *town) drain(name string, d metastore.Departure) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.members {
		if m.Name == name {
			return w.departLocked(m.Node, m.Nonce, d)
		}
	}
	return metastore.ErrMemberNotFound
}

func (h *house) RemoveMember(_ context.Context, node raftlog.NodeID) error {
	return h.change(func() error {
		m := h.memberLocked(node)
		switch {
		case m == nil:
			return nil
		case m.Liveness.Departure != metastore.Leaves:
			return metastore.ErrNotLeaving
		case h.loads[node] > 0 || SeatOf(h.conf, m.Replica) != SeatNone:
			return metastore.ErrMemberInUse
		}
		h.stones[m.Nonce] = metastore.Tombstone{Node: node, Nonce: m.Nonce, Name: m.Name}
		h.members = slices.DeleteFunc(slices.Clone(h.members), func(m metastore.Member) bool { return m.Node == node })
		return nil
	})
}

func (h *house) SetVersion(_ context.Context, v uint64) error {
	return h.change(func() error { h.version = v; return nil })
}

func (h *house) ChangeMembers(ctx context.Context, c raftlog.Change) error {
	if err := rest(ctx, clock.System(), 10*time.Millisecond, nil); err != nil {
		return raftlog.Unknown(err)
	}
	return h.change(func() error {
		for _, r := range c.Voters {
			if SeatOf(h.conf, r) != SeatLearner {
				return &raftlog.ChangeError{Replica: r, Reason: "is to vote and is no learner"}
			}
		}
		for _, r := range slices.Concat(c.Remove, c.Learners) {
			if r == h.place.Replica {
				return &raftlog.ChangeError{Replica: r, Reason: "leads"}
			}
		}
		f := &Facts{Conf: h.conf}
		to := f.after(c)
		if !h.quorumLocked(to) {
			h.t.Errorf("a change to %v would have stopped the cluster", to.Voters)
			return raftlog.Unknown(errors.New("no quorum"))
		}
		for _, r := range slices.Concat(c.Learners, c.Voters) {
			if h.left[r] {
				h.t.Errorf("a second stint of %v", r)
			}
		}
		for _, r := range c.Remove {
			h.left[r] = true
		}
		h.conf = to
		close(h.changed) // who is out of it sees no leader any more
		h.changed = make(chan struct{})
		return nil
	})
}

func (h *house) Resign(_ context.Context, successors ...raftlog.ReplicaID) error {
	h.town.mu.Lock()
	defer h.town.mu.Unlock()
	if h.leader != h.place.Node {
		return &raftlog.NotLeaderError{Group: raftlog.MetadataGroup}
	}
	for _, r := range successors {
		for _, n := range h.nodes {
			if n.place.Replica == r && n.downSince.IsZero() {
				h.leadLocked(n.place.Node)
				return nil
			}
		}
	}
	h.electLocked(h.place.Node)
	return nil
}

func (h *house) TransferLeadership(_ context.Context, to raftlog.ReplicaID) error {
	h.town.mu.Lock()
	defer h.town.mu.Unlock()
	if h.leader != h.place.Node {
		return &raftlog.NotLeaderError{Group: raftlog.MetadataGroup}
	}
	for _, n := range h.nodes {
		if n.place.Replica == to && n.downSince.IsZero() {
			h.leadLocked(n.place.Node)
			return nil
		}
	}
	return raftlog.Retry(raftlog.ErrTransferFailed)
}
