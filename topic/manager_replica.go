package topic

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// beacon tells any number of waiters that something changed. Take the channel
// before looking:
//
//	for { changed := b.wait(); if what is wanted is there { return }; <-changed }
type beacon struct {
	mu sync.Mutex
	ch chan struct{} // nil: nobody waits
}

func (b *beacon) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch == nil {
		b.ch = make(chan struct{})
	}
	return b.ch
}

func (b *beacon) flash() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch != nil {
		close(b.ch)
		b.ch = nil
	}
}

// replica is a replica of a partition that is open on this node.
type replica struct {
	address
	name  string // of the topic
	place atomic.Pointer[metastore.Partition]
	id    storage.ReplicaID
	part  *Partition
	group *raftlog.Group // set before anybody else sees the replica

	lead    atomic.Pointer[leadership]
	changed beacon // lead, ending or shut changed
	// ending: the topic is being deleted. Records are neither taken nor shown.
	ending atomic.Bool
	// shut: the topic was deleted with a grace, and was not brought back yet. Records
	// are neither taken nor shown; all else goes on.
	shut atomic.Bool
	// reopening: a restore is on its way, which nobody waits for.
	reopening atomic.Bool
	// behind is the node of the leader that has said that the log here cannot be
	// continued; 0: none has.
	behind atomic.Uint64
	// damage is what is known to be damaged of the log here, nil: nothing; repaired
	// the bytes that came for it.
	damage   atomic.Pointer[DamageChange]
	repaired atomic.Int64
	sums     sums
	// retains is why records that may be due are not removed, if this replica leads;
	// nil: nothing is due, or it is removed.
	retains atomic.Pointer[string]
}

// leadership is what a replica knows of its group's leader.
type leadership struct {
	role   raftlog.Role
	term   storage.Term
	leader storage.ReplicaID // 0: none is known
	failed error             // why the replica takes no part any more
	conf   storage.Index     // of the entry that made the configuration
	since  time.Time         // that it is role, in that term
	// learners: the configuration is joint, or has learners.
	learners bool
}

// noteStatus is called by the host's loop.
func (m *Manager) noteStatus(r *replica, s raftlog.Status) {
	if s.Failed != nil {
		defer m.broke.flash()
	}
	last, now := r.lead.Load(), &leadership{
		role: s.Role, term: s.Term, leader: s.Leader, failed: s.Failed, conf: s.ConfIndex,
		learners: len(s.Conf.VotersOutgoing)+len(s.Conf.Learners) > 0,
	}
	if now.since = last.since; now.role != last.role || now.term != last.term {
		now.since = m.cfg.Clock.Now()
	}
	r.lead.Store(now)
	r.part.Wake()
	r.changed.flash()
	if now.role.IsLeader() && (now.role != last.role || now.term != last.term || now.conf != last.conf) {
		m.led.flash()
	}
}

// noteBehind is called by the host's loop.
func (m *Manager) noteBehind(r *replica, leader storage.NodeID) {
	if m.cfg.Streamer != nil && r.behind.Swap(uint64(leader)) == 0 {
		m.broke.flash()
	}
}

// where is where the partition's replicas are.
func (r *replica) where() metastore.Partition { return *r.place.Load() }

// relocate notes where the partition's replicas are now.
func (r *replica) relocate(p *metastore.Partition) {
	if last := r.place.Swap(p); last == nil || last.Generation != p.Generation {
		r.group.UpdatePeers(peersOf(p))
	}
}

// peersOf says where each replica of a partition is, the one to come too.
func peersOf(p *metastore.Partition) map[storage.ReplicaID]storage.NodeID {
	peers := make(map[storage.ReplicaID]storage.NodeID, len(p.Replicas)+1)
	for _, a := range p.Replicas {
		peers[a.Replica] = a.Node
	}
	if p.Target != nil {
		peers[p.Target.Add.Replica] = p.Target.Add.Node
	}
	return peers
}

// end makes the replica refuse records and reads.
func (r *replica) end() {
	if !r.ending.Swap(true) {
		r.part.Wake()
		r.changed.flash()
	}
}

// follow has the replica take and show records, or not, as its topic's state says.
func (r *replica) follow(s metastore.TopicState) {
	if s == metastore.TopicDeleting {
		r.end()
	}
	if shut := s != metastore.TopicActive; r.shut.Swap(shut) != shut {
		r.part.Wake()
		r.changed.flash()
	}
}

// leads reports whether this replica takes records.
func (r *replica) leads() bool { return r.lead.Load().role.IsLeader() }

// failed returns why the replica takes no part any more, or nil.
func (r *replica) failed() error { return r.lead.Load().failed }

// leader returns where the leader is, 0 if that is not known, and its term.
func (r *replica) leader() (storage.NodeID, storage.Term) {
	l := r.lead.Load()
	return nodeOf(r.where(), l.leader), l.term
}

// nodeOf returns the node that holds a replica of the partition, or is to hold
// it, or 0.
func nodeOf(p metastore.Partition, id storage.ReplicaID) storage.NodeID {
	for _, a := range p.Replicas {
		if a.Replica == id {
			return a.Node
		}
	}
	if p.Target != nil && p.Target.Add.Replica == id {
		return p.Target.Add.Node
	}
	return 0
}

// seal ends the partition and waits for it.
func (r *replica) seal(ctx context.Context) error {
	done := make(chan error, 1)
	if err := r.part.Seal(func(err error) { done <- err }); err != nil {
		return err
	}
	return await(ctx, done)
}

// append appends an encoded batch and waits for it.
func (r *replica) append(ctx context.Context, batch []byte) (storage.Offset, error) {
	done := make(chan Ack, 1)
	if err := r.part.AppendBatch(batch, func(a Ack) { done <- a }); err != nil {
		return 0, err
	}
	select {
	case a := <-done:
		return a.Base, a.Err
	case <-ctx.Done():
		return 0, raftlog.UnknownCause(ctx)
	}
}

func await(ctx context.Context, done <-chan error) error {
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return raftlog.UnknownCause(ctx)
	}
}

// offsets returns what the replica may show; linearizable: not less than what
// any replica had shown before the call.
func (r *replica) offsets(ctx context.Context, linearizable bool) (offsets, error) {
	if linearizable {
		if _, err := r.group.ReadIndex(ctx); err != nil {
			return offsets{}, readError(err)
		}
	}
	start, end, err := r.part.bounds()
	if err != nil {
		return offsets{}, err
	}
	return offsets{start: min(start, end), end: end}, nil
}

// fetch waits for records, until ctx ends.
func (r *replica) fetch(ctx context.Context, req FetchRequest, buf []byte) (Fetched, error) {
	for {
		changed := r.part.Changed()
		if r.ending.Load() {
			return Fetched{Buf: buf}, ErrTopicDeleted
		}
		if r.shut.Load() {
			return Fetched{Buf: buf}, errNotYet
		}
		f, err := r.part.Fetch(req, buf)
		if err != nil || len(f.Data) > 0 {
			return f, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return f, nil
		}
	}
}
