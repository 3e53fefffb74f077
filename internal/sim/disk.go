package sim

import (
	"slices"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// disk is a node's journal: frames gather, a round writes and syncs them, and
// the next round starts when the sync returned.
type disk struct {
	waiting []write // in order
	round   []write // being written
	writing bool

	slow         int64 // mean time of a round; 0: fast
	stalledUntil int64
	ticks        int  // that the round being written is under way
	full         bool // the node thinks so
	told         raftlog.DiskState
}

type write struct {
	r       *replica
	seq     raftlog.Seq
	opening int // of the replica, that waits for it
	frame   storage.Frame
	sync    bool
	begin   *snapshot // a reset
	then    func()    // of a replica that is closed: what follows once this is durable
}

func (d *disk) restart() {
	d.waiting, d.round, d.writing = nil, nil, false
	d.ticks, d.told = 0, raftlog.DiskGood
}

// watchDisk is called at each tick: a round that takes long stalls the disk.
func (w *world) watchDisk(n *node) {
	if n.disk.writing {
		n.disk.ticks++
	}
	w.tellDisk(n)
}

// tellDisk tells the cores what the disk is good for.
func (w *world) tellDisk(n *node) {
	d, now := &n.disk, raftlog.DiskGood
	switch {
	case w.faults.stallTicks > 0 && d.ticks >= w.faults.stallTicks:
		now = raftlog.DiskStalled
	case d.full:
		now = raftlog.DiskFull
	}
	if now == d.told {
		return
	}
	d.told = now
	w.trace.note(w.now, n.name(), "disk", uint64(now), 0, 0, 0)
	for _, r := range n.replicas {
		if r.core != nil {
			w.result.Steps++
			r.core.SetDisk(now)
			w.pump(r)
		}
	}
}

// holdsEntriesOf reports whether entries of r wait to be durable.
func (d *disk) holdsEntriesOf(r *replica) bool {
	for _, writes := range [2][]write{d.round, d.waiting} {
		for _, wr := range writes {
			if wr.r == r && len(wr.frame.Entries) > 0 {
				return true
			}
		}
	}
	return false
}

// startRound begins a round if one is wanted and none is under way. Frames
// that nobody waits for ride along.
func (w *world) startRound(n *node) {
	d := &n.disk
	if d.writing || len(d.waiting) == 0 {
		return
	}
	wanted := false
	for _, wr := range d.waiting {
		wanted = wanted || wr.sync
	}
	if !wanted {
		return
	}
	d.writing = true
	d.round, d.waiting = d.waiting, nil
	w.after(w.roundTime(d), event{kind: evDisk, node: n.index, life: n.life})
}

func (w *world) roundTime(d *disk) int64 {
	t := w.between(100*microsecond, 1500*microsecond)
	if d.slow > 0 {
		t = w.exp(d.slow)
	}
	return t + max(0, d.stalledUntil-w.now)
}

// kickDisk ends the round of a disk that was stalled.
func (w *world) kickDisk(n *node) {
	if n.up && n.disk.writing {
		w.after(millisecond, event{kind: evDisk, node: n.index, life: n.life})
	}
}

// synced is the return of a round's sync.
func (w *world) synced(n *node) {
	d := &n.disk
	if !d.writing || d.stalledUntil > w.now {
		if d.writing {
			w.after(d.stalledUntil-w.now, event{kind: evDisk, node: n.index, life: n.life})
		}
		return
	}
	round := d.round
	d.writing, d.round, d.ticks = false, nil, 0
	w.tellDisk(n)
	w.trace.note(w.now, n.name(), "synced", uint64(len(round)), 0, 0, 0)
	for _, wr := range round {
		wr.keep()
	}
	for i, wr := range round {
		if lastOf(round, i) && wr.tells() {
			w.result.Steps++
			wr.r.core.Appended(w.mutateSynced(wr))
		}
	}
	for i, wr := range round {
		if lastOf(round, i) && wr.tells() {
			w.pump(wr.r)
		}
	}
	for _, wr := range round {
		if wr.then != nil && !wr.r.gone {
			wr.then()
		}
	}
	w.startRound(n)
}

// tells reports whether the replica waits to hear of it: it may be closed, or
// open anew.
func (wr *write) tells() bool { return wr.r.core != nil && wr.seq != 0 && wr.opening == wr.r.opening }

// lastOf reports whether round[i] is its replica's last frame there.
func lastOf(round []write, i int) bool {
	for _, later := range round[i+1:] {
		if later.r == round[i].r {
			return false
		}
	}
	return true
}

// keep makes what was written durable.
func (wr *write) keep() {
	switch {
	case wr.r.gone:
	case wr.begin != nil:
		wr.r.beginAnew(wr.begin)
	case wr.frame.Kind != 0:
		wr.r.keep(wr.frame)
	}
}

// keep makes a frame durable: an entry at i discards all from i on.
func (r *replica) keep(f storage.Frame) {
	r.durableVote(f.Hard)
	r.hard = f.Hard
	if len(f.Entries) > 0 {
		r.entryHard = f.Hard
	}
	for _, e := range f.Entries {
		at := int(e.Index-r.durable.base) - 1
		if r.w.opts.Mutant == MutantNoTruncation && at < len(r.entries) {
			r.entries[at] = e
			r.durable.rewrite(e)
			continue
		}
		r.entries = append(r.entries[:at], e)
		r.durable.set(e)
	}
}

// checkpoint captures how far logs are, as a rotation does; checkpointed is
// when they and the table are synced.
func (w *world) checkpoint(n *node, e event) {
	if !n.up || n.life != e.life {
		return
	}
	type point struct{ reset, index uint64 }
	captured := make([]point, len(n.replicas))
	replicas := slices.Clone(n.replicas)
	for i, r := range replicas {
		captured[i] = point{r.reset, uint64(r.logEnd())}
		r.checkState()
	}
	w.after(w.exp(20*millisecond), event{kind: evCheckpointed, node: n.index, life: n.life, heal: func() {
		for i, r := range replicas {
			if r.gone || r.core == nil || r.reset != captured[i].reset {
				continue
			}
			r.logSynced = max(r.logSynced, raftlog.Index(captured[i].index))
			w.trim(r)
			if r.g.own {
				// Its database syncs when it likes: behind the log or ahead of it.
				r.ownSynced = max(r.ownSynced, raftlog.Index(w.between(int64(r.ownSynced), int64(r.applied)+1)))
			}
		}
	}})
	w.after(w.exp(w.faults.checkpointEvery), e)
}

func (w *world) checkpointed(n *node, e event) {
	if n.up && n.life == e.life {
		e.heal()
	}
}
