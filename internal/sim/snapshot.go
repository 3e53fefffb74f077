package sim

import (
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// snapshot is what a replica had applied at an index, as it travels beside
// raft.
type snapshot struct {
	index raftlog.Index
	term  raftlog.Term
	hash  uint64 // of the log up to index
	state uint64 // of the machine
	conf  raftlog.ConfState

	sender raftlog.Term // of the sender, after it was taken
}

// snapshot takes one, or nil if there is nothing.
func (r *replica) snapshot() *snapshot {
	i := r.applied
	if i == 0 {
		return nil
	}
	s := &snapshot{index: i, term: r.durable.term(i), hash: r.g.hashes[i], state: r.states[len(r.states)-1], conf: r.g.confAt(i), sender: r.core.Status().Term}
	if r.w.opts.Mutant == MutantLateConf {
		s.conf = r.g.conf()
	}
	r.g.members.old = append(r.g.members.old, s)
	return s
}

// behind has a leader tell a replica that it needs a snapshot.
func (w *world) behind(r *replica, id raftlog.ReplicaID) {
	to, leader, term, start := r.g.byID(uint64(id)), r.id, r.status.Term, r.core.Status().LogStart
	w.trace.note(w.now, r.name, "says behind", uint64(id), uint64(term), 0, 0)
	w.tell(r.n, to, func() {
		if to.core.NeedsSnapshot(leader, term, start) && !to.fetching {
			w.fetch(to, r)
		}
		w.pump(to)
	})
}

// fetch gets a snapshot, begun to be taken now or when it comes, and now and
// then an old one instead.
func (w *world) fetch(to, from *replica) {
	to.fetching = true
	opening, life := to.opening, to.n.life
	var early *snapshot
	if from.core != nil && w.chance(0.5) {
		early = from.snapshot()
	}
	w.after(w.between(5*millisecond, 300*millisecond), event{kind: evHeal, heal: func() {
		if to.core == nil || to.opening != opening || to.n.life != life {
			return
		}
		to.fetching = false
		s := early
		if s == nil && from.core != nil {
			s = from.snapshot()
		}
		if s != nil && !w.net.cut[from.n.index][to.n.index] {
			w.install(to, s)
		}
	}})
}

// oldSnapshot brings any snapshot that ever was taken to anyone.
func (w *world) oldSnapshot(g *group) {
	to := g.kept[w.rng.IntN(len(g.kept))]
	if old := g.members.old; len(old) > 0 && to.core != nil {
		w.install(to, old[w.rng.IntN(len(old))])
	}
}

// install closes a replica and, once all that it handed out is durable, begins
// its log anew, or not.
func (w *world) install(r *replica, s *snapshot) {
	w.trace.note(w.now, r.name, "gets a snapshot", uint64(s.index), uint64(s.term), 0, 0)
	r.close()
	r.logSynced = r.logEnd()
	if r.g.own {
		r.ownSynced = r.applied
	}
	w.write(r, write{then: func() { w.reset(r, s) }})
}

// write has something of a closed replica written, in one round.
func (w *world) write(r *replica, all ...write) {
	for _, wr := range all {
		wr.r, wr.sync = r, true
		r.n.disk.waiting = append(r.n.disk.waiting, wr)
	}
	w.startRound(r.n)
}

func (w *world) reset(r *replica, s *snapshot) {
	st, machine := r.recovered()
	if machine != nil {
		st.Hard.Commit = max(st.Hard.Commit, machine.Index)
	}
	begin := raftlog.Begin{Reset: r.reset + 1, Index: s.index, Term: s.term, Conf: s.conf}
	frames, err := raftlog.ResetFrames(st, begin, s.sender)
	w.trace.note(w.now, r.name, "resets", uint64(s.index), uint64(len(frames)), boolBit(err != nil), 0)
	if w.opts.Mutant == MutantAnySnapshot {
		frames, err = []storage.Frame{{Kind: storage.FrameReset, Begin: &begin}}, nil
	}
	if err != nil || len(frames) == 0 {
		w.reopen(r)
		return
	}
	var all []write
	for _, f := range frames {
		if f.Kind == storage.FrameReset {
			all = append(all, write{begin: s})
		} else {
			all = append(all, write{frame: f})
		}
	}
	all[len(all)-1].then = func() { w.reopen(r) }
	w.write(r, all...)
}

// beginAnew is a reset that became durable.
func (r *replica) beginAnew(s *snapshot) {
	w := r.w
	w.result.Resets++
	if r.durable.last() > s.index && r.durable.holds(s.index, s.hash) {
		w.violate("R24", "%s: begins anew at %d and loses what may be committed behind it, up to %d", r.name, s.index, r.durable.last())
	}
	r.reset++
	r.baseConf = &s.conf
	r.durable = historyAt(s.index, s.term, s.hash)
	r.entries, r.log, r.states = nil, nil, []uint64{s.state}
	r.logSynced, r.ownSynced, r.startSynced, r.applied = s.index, s.index, s.index, s.index
	hard := r.hard
	if s.term > hard.Term {
		hard.Term, hard.Vote = s.term, 0
	}
	hard.Commit = s.index
	if hard.Commit < r.promised.Commit {
		w.violate("R8", "%s: begins anew at %d, %d was promised", r.name, s.index, r.promised.Commit)
	}
	r.durableVote(hard)
	r.hard, r.entryHard = hard, hard
}

func (w *world) reopen(r *replica) {
	if !r.n.up || r.gone || r.core != nil {
		return
	}
	r.open()
	if w.violation != nil {
		return
	}
	if told := r.n.disk.told; told != raftlog.DiskGood {
		r.core.SetDisk(told)
	}
	w.pump(r)
}

// trim lets the front of a log go, as far as nobody here needs it.
func (w *world) trim(r *replica) {
	if !w.faults.trim || !w.chance(0.3) {
		return
	}
	end := r.logSynced
	if r.g.own {
		end = min(end, r.ownSynced)
	}
	r.start = max(r.start, raftlog.Index(w.between(int64(r.start), int64(end)+1)))
	r.startSynced = r.start
}
