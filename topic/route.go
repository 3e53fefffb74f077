package topic

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// routes remembers where the leaders of partitions are of which this node
// holds no replica: what answers said last, or else a guess, beginning with the
// preferred leader. Of the others the replica here knows.
type routes struct {
	mu    sync.Mutex
	hints map[address]hint
}

type hint struct {
	node storage.NodeID
	// A guess, since a call failed then; zero: the last call there succeeded, or
	// another node named it.
	guessed time.Time
	// silent is the last node that did not answer a call, which was given up
	// then. The others may name it for a while, or nobody, until they have
	// elected another leader: they are asked again, rather than that one.
	silent storage.NodeID
	since  time.Time
}

// silence is how long it does not count that others name a node which did not
// answer. If it leads after all, and is slow, they go on to.
const silence = firstAttempt

// find returns where to send, and whether the leader is believed to be there.
// Where the last call failed a while ago, it is to be tried again.
func (r *routes) find(a address, p metastore.Partition, now time.Time) (storage.NodeID, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h, ok := r.hints[a]; ok {
		return h.node, h.guessed.IsZero() || now.Sub(h.guessed) >= avoided
	}
	if len(p.Replicas) == 0 { // a forced recovery found none of it
		return 0, false
	}
	return p.Replicas[0].Node, true
}

// found notes that the leader is at node.
func (r *routes) found(a address, node storage.NodeID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hints == nil {
		r.hints = map[address]hint{}
	}
	r.hints[a] = hint{node: node}
}

// failed notes that node did not lead, and what it said of the leader: the
// next guess is there, or else at the next replica. A node that said nothing,
// and perhaps never will, is silent.
func (r *routes) failed(a address, p metastore.Partition, node storage.NodeID, now time.Time, silent bool, says *raftlog.NotLeaderError) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hints == nil {
		r.hints = map[address]hint{}
	}
	h := r.hints[a]
	if silent {
		h.silent, h.since = node, now
	}
	named := says != nil && says.Node != 0 && says.Node != node
	if named && (says.Node != h.silent || now.Sub(h.since) >= silence) {
		h.node, h.guessed = says.Node, time.Time{}
	} else {
		h.node, h.guessed = h.next(p, node), now
	}
	r.hints[a] = h
}

// next is the node of the replica behind that of another node, but for the
// silent one.
func (h *hint) next(p metastore.Partition, node storage.NodeID) storage.NodeID {
	if len(p.Replicas) == 0 {
		return 0
	}
	at := 0
	for i, replica := range p.Replicas {
		if replica.Node == node {
			at = i + 1
		}
	}
	next := p.Replicas[at%len(p.Replicas)].Node
	if next == h.silent {
		next = p.Replicas[(at+1)%len(p.Replicas)].Node
	}
	return next
}

// keep forgets the partitions of topics that are gone.
func (r *routes) keep(alive func(storage.Incarnation) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for a := range r.hints {
		if !alive(a.incarnation) {
			delete(r.hints, a)
		}
	}
}

// target is where records of a partition are to be sent.
type target struct {
	here *replica       // not nil: this node leads
	node storage.NodeID // else: who is believed to lead; 0: nobody
	term storage.Term   // of that leader, as far as it is known
	sure bool           // there is reason to believe it
}

// leaderOf returns where the leader of a partition is believed to be.
func (m *Manager) leaderOf(a address, p metastore.Partition) target {
	if r := m.informed(a); r != nil {
		if r.leads() {
			return target{here: r, sure: true}
		}
		if node, term := r.leader(); node != m.cfg.Node {
			return target{node: node, term: term, sure: node != 0}
		}
		return target{}
	}
	p = m.current(a, p)
	node, sure := m.routes.find(a, p, m.cfg.Clock.Now())
	if node == m.cfg.Node { // it is not open here, or failed: ask another one
		for _, at := range p.Replicas {
			if at.Node != m.cfg.Node {
				return target{node: at.Node, sure: false}
			}
		}
		return target{}
	}
	return target{node: node, sure: sure}
}

// informed returns the replica here that knows where the leader is, if there is
// one and it still takes part.
func (m *Manager) informed(a address) *replica {
	r := m.replica(a)
	if r == nil {
		return nil
	}
	switch r.lead.Load().role {
	case raftlog.RoleResigned, raftlog.RoleRemoved:
		return nil
	}
	return r
}

// current returns where the replicas of a partition are as the metadata here say
// now: whoever knew it as p may have known it for long.
func (m *Manager) current(a address, p metastore.Partition) metastore.Partition {
	t, err := m.cfg.Meta.TopicByIncarnation(a.incarnation)
	if err != nil || int(a.partition) >= len(t.Partitions) {
		return p
	}
	return t.Partitions[a.partition]
}

// noteRoute notes how a call to a partition's leader ended.
func (m *Manager) noteRoute(a address, p metastore.Partition, node storage.NodeID, err error) {
	if m.informed(a) != nil {
		return // it knows better
	}
	p = m.current(a, p)
	var notLeader *raftlog.NotLeaderError
	switch {
	case err == nil:
		m.routes.found(a, node)
	case errors.As(err, &notLeader):
		m.routes.failed(a, p, node, m.cfg.Clock.Now(), false, notLeader)
	case raftlog.OutcomeOf(err) != raftlog.OutcomeRefused:
		m.routes.failed(a, p, node, m.cfg.Clock.Now(), unanswered(err), nil)
	}
}

// backoff waits longer from time to time.
type backoff struct{ last time.Duration }

const (
	firstBackoff = 10 * time.Millisecond
	lastBackoff  = 500 * time.Millisecond
)

// next returns how long to wait now.
func (b *backoff) next() time.Duration {
	b.last = min(max(2*b.last, firstBackoff), lastBackoff)
	return b.last
}

// wait waits, or until ctx ends or the channel is closed, which may be nil.
func (b *backoff) wait(ctx context.Context, c clock.Clock, sooner <-chan struct{}) {
	timer := c.NewTimer(b.next())
	defer timer.Stop()
	select {
	case <-sooner:
	case <-timer.C():
	case <-ctx.Done():
	}
}
