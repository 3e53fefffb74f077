package sim

import (
	"encoding/binary"
	"errors"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

type proposalState uint8

const (
	proposalSent proposalState = iota
	proposalPlaced
	proposalAcked   // and all that follow: ended
	proposalLost    // unknown
	proposalRefused // nothing happened
	proposalDead    // its process crashed
)

// proposal is one write, named by its first eight bytes.
type proposal struct {
	r         *replica
	life      uint64
	state     proposalState
	index     raftlog.Index
	term      raftlog.Term
	bytes     int
	committed bool // some state machine applied it
	err       error
}

// readCall is one linearizable read.
type readCall struct {
	r     *replica
	life  uint64
	floor raftlog.Index // acknowledged before it began
	at    raftlog.Index // confirmed, waits to be applied; 0: not yet
	done  bool
}

// client makes some calls and comes back.
func (w *world) client() {
	if w.faults.clientEvery == 0 {
		return
	}
	w.after(w.exp(w.faults.clientEvery), event{kind: evClient})
	g := w.groups[w.rng.IntN(len(w.groups))]
	r := w.leaderOf(g)
	if r == nil || w.chance(0.1) {
		r = g.kept[w.rng.IntN(len(g.kept))]
	}
	if l := w.deposedOf(g); l != nil && w.chance(0.3) {
		r = l
	}
	if r.core == nil || r.n.pausedUntil > w.now {
		return
	}
	switch p := w.rng.Float64(); {
	case p < 0.75:
		for range 1 + w.rng.IntN(4) {
			w.propose(r, 8+w.rng.IntN(60))
		}
	case p < 0.99:
		reader := g.kept[w.rng.IntN(len(g.kept))]
		if l := w.deposedOf(g); l != nil && w.chance(0.5) {
			reader = l
		}
		w.read(reader)
	case w.faults.transfer:
		w.transfer(r, g)
	}
	w.pump(r)
}

func (w *world) propose(r *replica, size int) raftlog.ProposalID {
	data := make([]byte, max(size, 8))
	id := raftlog.ProposalID(len(w.props) + 1)
	binary.LittleEndian.PutUint64(data, uint64(id))
	w.props = append(w.props, proposal{r: r, life: r.n.life, bytes: len(data)})
	w.result.Steps++
	w.trace.note(w.now, r.name, "proposes", uint64(id), uint64(len(data)), 0, 0)
	r.core.Propose(id, data)
	w.pump(r)
	return id
}

func (w *world) transfer(r *replica, g *group) {
	to := g.kept[w.rng.IntN(len(g.kept))].id
	if w.chance(0.3) {
		to = 0
	}
	w.trace.note(w.now, r.name, "hands over", uint64(to), 0, 0, 0)
	w.result.Steps++
	_ = r.core.Transfer(to)
}

func (w *world) read(r *replica) {
	if r.core == nil || r.n.pausedUntil > w.now {
		return
	}
	w.reads = append(w.reads, readCall{r: r, life: r.n.life, floor: r.g.acked})
	id := raftlog.ReadID(len(w.reads))
	w.trace.note(w.now, r.name, "reads", uint64(id), uint64(r.g.acked), 0, 0)
	w.result.Steps++
	if w.opts.Mutant == MutantStaleRead && r.status.Role.IsLeader() {
		w.readEvent(r, raftlog.ReadEvent{ID: id, Index: r.core.Status().Commit})
		return
	}
	r.core.Read(id)
	w.pump(r)
}

func (w *world) readEvent(r *replica, ev raftlog.ReadEvent) {
	c := &w.reads[ev.ID-1]
	w.trace.note(w.now, r.name, "read ends", uint64(ev.ID), uint64(ev.Index), 0, 0)
	switch {
	case c.done || c.at != 0 || c.r != r || c.life != r.n.life:
		w.violate("R25", "%s: read %d ends twice or elsewhere", r.name, ev.ID)
	case ev.Err != nil:
		c.done = true
		if !errors.Is(ev.Err, raftlog.ErrRetry) {
			w.violate("R25", "%s: read %d fails without saying that it may be retried: %v", r.name, ev.ID, ev.Err)
		}
	case ev.Index < c.floor:
		w.violate("R25", "%s: a read at %d is older than entry %d, acknowledged before it began", r.name, ev.Index, c.floor)
	default:
		c.at = ev.Index
		w.result.Reads++
		r.waiting = append(r.waiting, ev.ID)
		w.answerReads(r)
	}
}

// answerReads ends confirmed reads whose index is applied.
func (w *world) answerReads(r *replica) {
	kept := r.waiting[:0]
	for _, id := range r.waiting {
		if c := &w.reads[id-1]; r.applied >= c.at {
			c.done = true
		} else {
			kept = append(kept, id)
		}
	}
	r.waiting = kept
}

func (w *world) proposalEvent(r *replica, ev raftlog.ProposalEvent) {
	p := &w.props[ev.ID-1]
	w.trace.note(w.now, r.name, "proposal is", uint64(ev.ID), uint64(ev.State), uint64(ev.Index), uint64(ev.Term))
	if p.state >= proposalAcked || p.r != r || p.life != r.n.life {
		w.violate("R14", "%s: proposal %d ends twice or elsewhere", r.name, ev.ID)
		return
	}
	p.err = ev.Err
	switch ev.State {
	case raftlog.ProposalPlaced:
		p.state, p.index, p.term = proposalPlaced, ev.Index, ev.Term
		r.placed += p.bytes
		if limit := w.faults.core.MaxUncommittedBytes; limit > 0 && r.placed > limit+p.bytes {
			w.violate("R26", "%s: %d bytes wait, the bound is %d", r.name, r.placed, limit)
		}
	case raftlog.ProposalRefused:
		w.nothingHappened(r, ev)
	case raftlog.ProposalLost:
		if errors.Is(ev.Err, raftlog.ErrRetry) || w.opts.Mutant == MutantReply {
			w.nothingHappened(r, ev)
			return
		}
		p.state = proposalLost
		if !errors.Is(ev.Err, raftlog.ErrOutcomeUnknown) {
			w.violate("R14", "%s: proposal %d is lost with %v", r.name, ev.ID, ev.Err)
		}
	}
}

// nothingHappened holds the node to its word.
func (w *world) nothingHappened(r *replica, ev raftlog.ProposalEvent) {
	p := &w.props[ev.ID-1]
	p.state = proposalRefused
	if p.committed {
		w.violate("R14", "%s: proposal %d was applied and is told to have failed", r.name, ev.ID)
	}
}

// committedProposal notes the first application of an entry anywhere.
func (w *world) committedProposal(e raftlog.Entry) {
	if len(e.Data) < 8 || e.Kind != storage.EntryNormal {
		return
	}
	id := binary.LittleEndian.Uint64(e.Data)
	p := &w.props[id-1]
	if p.committed {
		w.violate("R11", "proposal %d is committed twice", id)
	}
	p.committed = true
	if p.state == proposalRefused {
		w.violate("R14", "proposal %d was told to have failed and is committed at %d", id, e.Index)
	}
}

// acknowledge tells a proposer of its entry.
func (w *world) acknowledge(r *replica, id raftlog.ProposalID, e raftlog.Entry) {
	p := &w.props[id-1]
	if p.state != proposalPlaced || p.index != e.Index || p.term != e.Term || p.r != r || p.life != r.n.life ||
		binary.LittleEndian.Uint64(e.Data) != uint64(id) {
		w.violate("R11", "%s: entry %d of term %d is told to proposal %d: %+v", r.name, e.Index, e.Term, id, *p)
		return
	}
	p.state = proposalAcked
	r.placed = max(r.placed-p.bytes, 0)
	w.result.Acked++
	r.g.acked = max(r.g.acked, e.Index)
}

// lostCalls ends the calls of a process that crashed.
func (w *world) lostCalls(r *replica) {
	r.waiting = nil
	for i := r.firstCall; i < len(w.props); i++ {
		if p := &w.props[i]; p.r == r && p.state < proposalAcked {
			p.state = proposalDead
		}
	}
	r.firstCall = len(w.props)
	for i := r.firstRead; i < len(w.reads); i++ {
		if c := &w.reads[i]; c.r == r {
			c.done = true
		}
	}
	r.firstRead = len(w.reads)
	for i := range w.changes {
		if c := &w.changes[i]; c.r == r {
			c.done = true
		}
	}
}
