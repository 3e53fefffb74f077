package raftlog

import (
	"time"

	"github.com/stelelog/stele/storage"
)

// journalQueue collects frames into rounds. One round is with the writer at
// most; what comes meanwhile is the next.
type journalQueue struct {
	rounds      chan *round // to the writer
	flying      bool        // a round is with the writer
	flyingTicks int         // since it was handed over
	filling     *round
	number      uint64 // of filling, from 1
	spare       *round

	// A rotation is due when the generation reached its size, but not before
	// the last one's checkpoint is done, nor before as much was written as the
	// last one carried over: the tail of a group that does not apply any more
	// may alone be larger than a generation. Or CutJournal asked for it (cut).
	full          bool
	cut           bool
	checkpointing bool
	carried       int64
	grown         int64

	// A round is proven durable by the one behind it, so an idle journal gets
	// one more, which also takes the commit indexes that were waiting for one
	// to ride along with.
	idleTicks int
	unproven  bool
}

// markAfterTicks without a round an unproven one gets a successor.
const markAfterTicks = 4

// round is one write and one sync of the journal.
type round struct {
	frames  []storage.Frame
	acks    []ack
	waiters []func(error) // called by the loop when the round is durable, or never will be
	bytes   int64         // of entries
	urgent  bool          // somebody waits for it

	// A rotation: a new generation begins with the states as of now.
	rotate     bool
	states     []storage.ReplicaState
	generation uint64

	err  error
	full bool
	took time.Duration
}

// ack is what becomes durable of one group with a round.
type ack struct {
	group *Group
	seq   Seq
	bytes int64
}

func newJournalQueue() journalQueue {
	return journalQueue{rounds: make(chan *round, 1), filling: new(round), number: 1, spare: new(round)}
}

// add puts an append effect into the next round. Frames of one group without
// entries only say what the next one says better: rounds are atomic, so its
// hard state can go into the frame before.
func (q *journalQueue) add(g *Group, a *Append) {
	r, at := q.filling, &g.loop
	size := int64(0)
	for i := range a.Frame.Entries {
		size += int64(len(a.Frame.Entries[i].Data))
	}
	r.bytes += size
	r.urgent = r.urgent || a.Sync
	g.holdUnwritten(size)
	if at.round != q.number {
		at.round, at.frame, at.ack = q.number, len(r.frames), len(r.acks)
		r.frames = append(r.frames, a.Frame)
		r.acks = append(r.acks, ack{group: g, seq: a.Seq, bytes: size})
		return
	}
	r.acks[at.ack].seq = a.Seq
	r.acks[at.ack].bytes += size
	switch last := &r.frames[at.frame]; {
	case len(a.Frame.Entries) == 0:
		last.Hard = a.Frame.Hard
	case len(last.Entries) == 0:
		*last = a.Frame
	default:
		at.frame = len(r.frames)
		r.frames = append(r.frames, a.Frame)
	}
}

// afterAll calls f, in the loop, when all that was added so far is durable, or
// never will be; at once if the node has failed.
func (l *loop) afterAll(f func(error)) {
	if err := l.h.Failed(); err != nil {
		f(err)
		return
	}
	q := &l.journal
	q.filling.urgent = true
	q.filling.waiters = append(q.filling.waiters, f)
}

// startRound hands the next round to the writer if it is free and the round is
// worth a sync.
func (l *loop) startRound() {
	q := &l.journal
	r := q.filling
	if q.flying || l.h.failed.Load() != nil {
		return
	}
	mark := q.idleTicks >= markAfterTicks && (q.unproven || len(r.frames) > 0)
	if !r.urgent && !mark {
		return
	}
	if (q.full && q.grown >= q.carried || q.cut) && !q.checkpointing {
		q.cut = false
		r.rotate, r.states = true, l.capture()
		r.raiseCommits()
	}
	q.unproven = r.urgent || r.rotate
	q.idleTicks = 0
	q.flying = true
	q.filling, q.spare = q.spare, nil
	q.number++
	q.rounds <- r
}

// What a frame and a round take in the journal, about.
const (
	frameOverhead = 64
	roundAtLeast  = 4 << 10
)

func frameSize(entries []storage.Entry) int64 {
	size := int64(frameOverhead)
	for i := range entries {
		size += int64(len(entries[i].Data) + entryOverhead)
	}
	return size
}

// size is what the round takes in the journal.
func (r *round) size() int64 {
	size := int64(0)
	for i := range r.frames {
		size += frameSize(r.frames[i].Entries)
	}
	return max(size, roundAtLeast)
}

// carrySize is what a rotation writes of the states.
func carrySize(states []storage.ReplicaState) int64 {
	size := int64(0)
	for i := range states {
		size += frameSize(states[i].Tail)
	}
	return size
}

// capture returns the durable state of all replicas, open or not.
func (l *loop) capture() []storage.ReplicaState {
	states := make([]storage.ReplicaState, 0, len(l.groups)+len(l.parked)+len(l.dormant))
	for _, g := range l.groups {
		states = append(states, g.loop.state())
	}
	for _, g := range l.parked {
		states = append(states, g.loop.state())
	}
	for _, st := range l.dormant {
		states = append(states, st)
	}
	return states
}

// raiseCommits gives the frames behind a capture at least the commit index that
// the capture has: a frame may have been made before what it waits behind was
// applied, and a commit index never goes back in the journal.
func (r *round) raiseCommits() {
	commits := make(map[ReplicaID]Index, len(r.states))
	for i := range r.states {
		commits[r.states[i].Replica] = r.states[i].Hard.Commit
	}
	for i := range r.frames {
		if f := &r.frames[i]; f.Kind == storage.FrameAppend {
			f.Hard.Commit = max(f.Hard.Commit, commits[f.Replica])
		}
	}
}

// state is what is durable of the group.
func (g *groupLoop) state() storage.ReplicaState {
	if g.frozen != nil {
		return *g.frozen
	}
	return g.core.State()
}

func (g *groupLoop) stateWithoutTail() storage.ReplicaState {
	if g.frozen == nil {
		return g.core.stateWithoutTail()
	}
	st := *g.frozen
	st.Tail = nil
	return st
}

// write is the writer goroutine: it writes the rounds, one at a time.
func (h *Host) write(rounds <-chan *round) {
	store := h.cfg.Store
	for r := range rounds {
		start := h.cfg.Clock.Now()
		if r.rotate {
			r.generation, r.err = store.Rotate(r.states, r.frames)
		} else {
			r.err = store.WriteRound(r.frames)
		}
		r.took = h.cfg.Clock.Now().Sub(start)
		r.full = r.err == nil && store.NeedsRotation()
		h.mailbox.post(func(in *inbox) { in.round = r })
	}
}

// roundDone releases what waited for a round.
func (l *loop) roundDone(r *round) {
	q := &l.journal
	q.flying = false
	l.journalAnswers()
	for _, a := range r.acks {
		a.group.holdUnwritten(-a.bytes)
	}
	if r.err != nil {
		l.failHost(r.err)
	}
	if err := l.h.Failed(); err != nil {
		// Also after a failure elsewhere: what is not acknowledged is not promised.
		r.end(err)
		return
	}
	l.countRound(r)
	for _, a := range r.acks {
		l.durable(a, r.frames)
	}
	r.end(nil)
	q.full = r.full
	q.grown += r.size()
	if r.rotate {
		q.checkpointing = true
		q.carried, q.grown = carrySize(r.states), 0
		generation, states := r.generation, r.states
		l.h.wg.Go(func() { l.h.checkpoint(generation, states) })
	}
	clear(r.frames)
	clear(r.acks)
	*r = round{frames: r.frames[:0], acks: r.acks[:0], waiters: r.waiters[:0]}
	q.spare = r
}

// durable tells a core what became durable of it.
func (l *loop) durable(a ack, frames []storage.Frame) {
	lg := &a.group.loop
	lg.core.Appended(a.seq)
	if lg.core.Failed() == nil {
		if lg.open(l) {
			l.touch(a.group)
		}
		return
	}
	// A core that failed follows no more, perhaps since the middle of this
	// round; but what the journal holds is never forgotten.
	lg.freeze()
	for i := range frames {
		thaw(lg.frozen, &frames[i])
	}
}

// freeze notes the durable state of a failed core, to be kept current by thaw.
func (g *groupLoop) freeze() {
	if g.frozen == nil {
		st := g.core.State()
		g.frozen = &st
	}
}

// end tells who waits.
func (r *round) end(err error) {
	for i, f := range r.waiters {
		r.waiters[i] = nil
		f(err)
	}
	r.waiters = r.waiters[:0]
}

func (l *loop) countRound(r *round) {
	s := &l.h.stats
	s.rounds.Add(1)
	s.roundFrames.Add(uint64(len(r.frames)))
	s.roundBytes.Add(uint64(r.bytes))
	if r.rotate {
		s.rotations.Add(1)
	}
	s.observeSync(r.took)
}

// thaw takes a durable frame into a frozen state. Frames that it holds already
// change nothing if they are taken in order.
func thaw(st *storage.ReplicaState, f *storage.Frame) {
	if f.Replica != st.Replica || f.Kind != storage.FrameAppend {
		return
	}
	st.Hard = f.Hard
	st.Hard.Commit = max(st.Hard.Commit, st.Log.LastIndex)
	if len(f.Entries) > 0 {
		keep := int(f.Entries[0].Index - st.Log.LastIndex - 1)
		st.Tail = append(st.Tail[:keep:keep], f.Entries...)
	}
}
