package storage

import (
	"errors"
	"fmt"
)

// gate keeps what recovery would refuse, or misread, out of the journal: there
// it would stop the node at its next start. It knows of each replica what the
// journal says of it.
//
// A refusal is a bug of the caller. It is as final as a failed write, because
// the caller's idea of what is durable is wrong.
type gate struct {
	replicas  map[ReplicaID]*progress
	destroyed destroyedIDs
}

// DestroyedError refuses to begin a replica under the id of one that was
// destroyed: late messages of that one would vouch for the new one's log. Ids are
// allocated once, so this is a bug of whoever allocates them.
type DestroyedError struct {
	Group   GroupID
	Replica ReplicaID
}

func (e *DestroyedError) Error() string {
	return fmt.Sprintf("storage: %v of %v was destroyed: no replica begins under its id again", e.Replica, e.Group)
}

// destroyedIDs are the last replicas that were destroyed: in this process, and in
// the journal that it replayed. They are not all, since a node may destroy any
// number of them: who allocates ids must not rest on it.
type destroyedIDs struct {
	known map[ReplicaID]bool
	order []ReplicaID // a ring, once it is full
	next  int
}

const maxDestroyed = 8192

func (d *destroyedIDs) add(r ReplicaID) {
	if d.known == nil {
		d.known = map[ReplicaID]bool{}
	}
	if d.known[r] {
		return
	}
	if len(d.order) < maxDestroyed {
		d.order = append(d.order, r)
	} else {
		delete(d.known, d.order[d.next])
		d.order[d.next] = r
		d.next = (d.next + 1) % maxDestroyed
	}
	d.known[r] = true
}

// progress is the end of what the journal holds of a replica.
type progress struct {
	group GroupID
	live  bool
	reset uint64
	hard  HardState
	last  Index
}

func newGate(states []ReplicaState, destroyed destroyedIDs) gate {
	g := gate{replicas: make(map[ReplicaID]*progress, len(states)), destroyed: destroyed}
	for i := range states {
		st := &states[i]
		g.replicas[st.Replica] = &progress{
			group: st.Group, live: st.Status == ReplicaLive, reset: st.Log.Reset, hard: st.Hard, last: st.lastIndex(),
		}
	}
	return g
}

// admit takes the frames of a round, in order.
func (g *gate) admit(frames []Frame) error {
	for i := range frames {
		if err := g.admitFrame(&frames[i]); err != nil {
			f := &frames[i]
			return fmt.Errorf("storage: frame of kind %d for %v in %v: %w", f.Kind, f.Replica, f.Group, err)
		}
	}
	return nil
}

func (g *gate) admitFrame(f *Frame) error {
	p := g.replicas[f.Replica]
	switch {
	case f.Kind == FrameCreated && g.destroyed.known[f.Replica]:
		return &DestroyedError{f.Group, f.Replica}
	case p == nil && f.Kind != FrameCreated:
		return errors.New("no such replica")
	case p != nil && p.group != f.Group:
		return fmt.Errorf("the replica is of %v", p.group)
	case p != nil && !p.live && f.Kind != FrameDestroyed:
		return errors.New("the replica was set aside")
	}
	switch f.Kind {
	case FrameAppend:
		return p.append(f.Hard, f.Entries)
	case FrameCreated:
		if p != nil || f.Begin == nil || f.Begin.Dir == "" || f.Begin.Reset != 0 || f.Begin.Log != nil || f.Replica == 0 {
			return errors.New("a replica begins once, by an id, with a directory")
		}
		g.replicas[f.Replica] = &progress{
			group: f.Group, live: true, hard: beginHard(HardState{}, f.Begin), last: f.Begin.Index,
		}
	case FrameReset:
		if f.Begin == nil || f.Begin.Reset == p.reset || f.Begin.Index < p.hard.Commit {
			return errors.New("a reset has an id of its own and loses nothing that is committed")
		}
		if err := f.Begin.Validate(); err != nil {
			return err
		}
		p.reset, p.last, p.hard = f.Begin.Reset, f.Begin.Index, beginHard(p.hard, f.Begin)
	case FrameDestroyed:
		delete(g.replicas, f.Replica)
		g.destroyed.add(f.Replica)
	case FrameSetAside:
		p.live = false
	default:
		return errors.New("not a kind that a caller writes")
	}
	return nil
}

func (p *progress) append(hard HardState, entries []Entry) error {
	last := p.last
	for i := range entries {
		e := &entries[i]
		if i == 0 && (e.Index > last+1 || e.Index <= p.hard.Commit) || i > 0 && e.Index != last+1 {
			return fmt.Errorf("entry %d follows %d (committed: %d)", e.Index, last, p.hard.Commit)
		}
		last = e.Index
	}
	if hard.Term < p.hard.Term || hard.Term == p.hard.Term && p.hard.Vote != 0 && hard.Vote != p.hard.Vote {
		return fmt.Errorf("term %d with vote %v follows term %d with vote %v",
			hard.Term, hard.Vote, p.hard.Term, p.hard.Vote)
	}
	if hard.Commit < p.hard.Commit || hard.Commit > last {
		return fmt.Errorf("commit %d after %d, of a log that ends at %d", hard.Commit, p.hard.Commit, last)
	}
	p.last, p.hard = last, hard
	return nil
}

// admitCapture takes the states that begin a generation. They must be those of
// all replicas, at the end of what is durable: what they lack is lost once the
// table names the generation.
func (g *gate) admitCapture(states []ReplicaState) error {
	if len(states) != len(g.replicas) {
		return fmt.Errorf("storage: the states of %d replicas were captured, there are %d", len(states), len(g.replicas))
	}
	for i := range states {
		st := &states[i]
		p := g.replicas[st.Replica]
		switch {
		case p == nil || p.group != st.Group:
			return fmt.Errorf("storage: the state of %v in %v was captured, which the journal does not know",
				st.Replica, st.Group)
		case p.live != (st.Status == ReplicaLive):
			return fmt.Errorf("storage: the state of %v was captured with status %d", st.Replica, st.Status)
		case !p.live:
		case st.lastIndex() != p.last || st.Log.Reset != p.reset ||
			st.Hard.Term != p.hard.Term || st.Hard.Vote != p.hard.Vote ||
			st.Hard.Commit < p.hard.Commit || st.Hard.Commit > p.last || st.Hard.Commit < st.Log.LastIndex:
			return fmt.Errorf("storage: the state of %v was captured at entry %d (log: %d) with %+v, the journal is at %d with %+v",
				st.Replica, st.lastIndex(), st.Log.LastIndex, st.Hard, p.last, p.hard)
		}
	}
	for i := range states {
		// What was applied is committed, whether or not a frame has said so yet.
		if p := g.replicas[states[i].Replica]; p.live {
			p.hard.Commit = states[i].Hard.Commit
		}
	}
	return nil
}
