package sim

import "github.com/stelelog/stele/raftlog"

// faults says what may go wrong in a run. All of it is drawn from the seed.
type faults struct {
	every       int64   // mean time between two faults
	lastFor     []int64 // mean times that one lasts
	clientEvery int64

	crash, power, pause, cutOne, partition, slow, stall bool

	drop, double, late float64 // per message
	ghostEvery         int64   // old messages come back; 0: never
	olderError         float64 // per read of the partition log
	transfer           bool
	skew, lazy         bool

	applyTime       int64
	checkpointEvery int64
	memberEvery     int64
	trim            bool
	stallTicks      int // a round that takes longer counts as stalled; 0: never
	core            raftlog.CoreOptions
}

// drawFaults picks the kinds of faults of this run: each alone has runs in
// which it dominates, since faults hide each other.
func (w *world) drawFaults() {
	f := &w.faults
	f.applyTime, f.checkpointEvery = 300*microsecond, 500*millisecond
	f.core = raftlog.CoreOptions{ElectionTicks: electionTicks, HeartbeatTicks: heartbeatTicks, KeepBytes: 1}
	f.stallTicks = []int{0, 2, 5, 20}[w.seed%4]
	if w.opts.Quiet {
		return
	}
	if w.opts.Storm {
		f.every, f.clientEvery, f.lastFor = 50*millisecond, 20*millisecond, []int64{2 * millisecond, 50 * millisecond, 300 * millisecond}
		f.power, f.partition, f.slow, f.stall = true, true, true, true
		if w.chance(0.5) { // longer, so that others are elected meanwhile
			f.every, f.lastFor = 300*millisecond, []int64{5 * millisecond, 700 * millisecond}
		}
		return
	}
	f.lastFor = []int64{50 * millisecond, 500 * millisecond, 2 * second}
	some := func() bool { return w.chance(0.5) }
	f.every = []int64{200 * millisecond, second, 3 * second}[w.rng.IntN(3)]
	f.clientEvery = []int64{10 * millisecond, 30 * millisecond, 100 * millisecond}[w.rng.IntN(3)]
	f.crash, f.power, f.pause, f.cutOne = some(), some(), some(), some()
	f.partition, f.slow, f.stall, f.transfer = some(), some(), some(), some()
	f.skew, f.lazy = some(), some()
	if some() {
		f.drop = 0.2 * w.rng.Float64() * w.rng.Float64()
	}
	if some() {
		f.double = 0.1 * w.rng.Float64()
	}
	if some() {
		f.late = 0.05 * w.rng.Float64()
	}
	if some() {
		f.ghostEvery = w.between(5*millisecond, 200*millisecond)
	}
	if some() {
		f.olderError = 0.2
	}
	if some() {
		f.applyTime = w.between(millisecond, 20*millisecond)
	}
	if some() {
		f.checkpointEvery = w.between(50*millisecond, 5*second)
	}
	sizes := []int{1, 200, 2000, 1 << 20}
	f.core.MaxMessageBytes = sizes[w.rng.IntN(len(sizes))]
	f.core.MaxInflightBytes = max(f.core.MaxMessageBytes, sizes[w.rng.IntN(len(sizes))])
	f.core.MaxInflightMessages = []int{1, 4, 256}[w.rng.IntN(3)]
	f.core.MaxApplyBytes = sizes[w.rng.IntN(len(sizes))]
	f.core.KeepBytes = sizes[w.rng.IntN(len(sizes))]
	f.core.MaxUncommittedBytes = []int{200, 5000, 1 << 20}[w.rng.IntN(3)]
	if w.opts.Members {
		f.memberEvery = []int64{50 * millisecond, 300 * millisecond, second}[w.rng.IntN(3)]
		f.trim = w.chance(0.7)
	}
	if f.ghostEvery > 0 {
		w.after(f.ghostEvery, event{kind: evGhost})
	}
}

// fault breaks something and plans its repair.
func (w *world) fault() {
	if w.faults.clientEvery == 0 {
		return // all is healed
	}
	w.after(w.exp(w.faults.every), event{kind: evFault})
	f, n := &w.faults, w.nodes[w.rng.IntN(len(w.nodes))]
	if w.chance(0.3) {
		if l := w.leaderOf(w.groups[w.rng.IntN(len(w.groups))]); l != nil {
			n = l.n
		}
	}
	d := w.exp(f.lastFor[w.rng.IntN(len(f.lastFor))])
	switch w.rng.IntN(7) {
	case 0:
		if f.crash {
			w.crashFor(n, true, d)
		}
	case 1:
		if f.power {
			w.crashFor(n, w.chance(0.3), d)
			if w.chance(0.2) { // the whole rack
				for _, o := range w.nodes {
					w.crashFor(o, w.chance(0.3), d)
				}
			}
		}
	case 2:
		if f.pause {
			w.trace.note(w.now, n.name(), "pauses", uint64(d), 0, 0, 0)
			n.pausedUntil = max(n.pausedUntil, w.now+d)
		}
	case 3:
		if f.cutOne {
			from, to := w.rng.IntN(len(w.nodes)), w.rng.IntN(len(w.nodes))
			w.cutFor(d, func() { w.net.cut[from][to] = true })
		}
	case 4:
		if f.partition {
			in, out := w.chance(0.8), w.chance(0.8)
			w.cutFor(d, func() { w.net.isolate(n.index, in, out) })
		}
	case 5:
		if f.slow {
			n.disk.slow = w.between(5*millisecond, 150*millisecond)
			n.disk.full = w.faults.stallTicks > 0
			w.after(d, event{kind: evHeal, heal: func() { n.disk.slow, n.disk.full = 0, false }})
		}
	case 6:
		if f.stall {
			w.trace.note(w.now, n.name(), "disk stalls", uint64(d), 0, 0, 0)
			n.disk.stalledUntil = max(n.disk.stalledUntil, w.now+d)
		}
	}
}

// cutFor cuts, and later heals all cuts at once.
func (w *world) cutFor(d int64, cut func()) {
	cut()
	w.trace.note(w.now, "net", "cuts", uint64(d), 0, 0, 0)
	w.after(d, event{kind: evHeal, heal: func() {
		w.trace.note(w.now, "net", "heals", 0, 0, 0, 0)
		w.net.healAll()
	}})
}

func (w *world) crashFor(n *node, keep bool, d int64) {
	if !n.up || n.restarting {
		return
	}
	w.crash(n, keep)
	n.restarting = true
	w.after(d, event{kind: evRestart, node: n.index})
}
