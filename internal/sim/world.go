package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/stelelog/stele/raftlog"
)

const (
	microsecond = int64(1)
	millisecond = 1000 * microsecond
	second      = 1000 * millisecond

	tickTime       = 50 * millisecond
	electionTicks  = 10
	heartbeatTicks = 2
	electionTime   = electionTicks * tickTime
)

// world is one run.
type world struct {
	opts   Options
	seed   uint64
	rng    *rand.Rand
	now    int64
	seq    uint64
	events eventHeap
	trace  trace

	nodes  []*node
	groups []*group
	net    network
	faults faults
	props  []proposal // by id-1
	reads  []readCall // by id-1

	changes []changeCall // by id-firstChange

	result    Result
	violation *Violation
}

// Run runs one seed. Faults and clients act for Options.Seconds; then all
// heals, and within a bound everything must have settled.
func Run(seed uint64, opts Options) Result {
	w := newWorld(seed, opts)
	w.run(int64(w.opts.Seconds) * second)
	w.settle()
	return w.finish()
}

func newWorld(seed uint64, opts Options) *world {
	opts = opts.withDefaults()
	w := &world{opts: opts, seed: seed, rng: rand.New(rand.NewPCG(seed, 0x73696d))}
	w.trace.hash = mix(0, seed)
	w.net.init(w)
	w.drawFaults()
	for i := range opts.Groups {
		w.groups = append(w.groups, newGroup(w, i))
	}
	for i := range opts.Nodes {
		w.nodes = append(w.nodes, newNode(w, i))
	}
	for _, g := range w.groups {
		for _, n := range w.nodes[:opts.Voters] {
			g.addReplica(n, true)
		}
	}
	for _, n := range w.nodes {
		w.start(n)
	}
	if !opts.Quiet {
		w.after(tickTime, event{kind: evClient})
		w.after(w.exp(w.faults.every), event{kind: evFault})
		if opts.Members {
			w.after(w.exp(w.faults.memberEvery), event{kind: evMember})
		}
	}
	return w
}

func (w *world) finish() Result {
	w.result.Seed, w.result.TraceHash, w.result.Violation = w.seed, w.trace.hash, w.violation
	for _, g := range w.groups {
		w.result.Committed += int(g.committed)
	}
	return w.result
}

// after schedules e d from now.
func (w *world) after(d int64, e event) {
	w.seq++
	e.at, e.seq = w.now+max(d, 0), w.seq
	w.events.push(e)
}

// exp draws from an exponential distribution.
func (w *world) exp(mean int64) int64 { return int64(w.rng.ExpFloat64() * float64(mean)) }

// between draws from [lo, hi).
func (w *world) between(lo, hi int64) int64 { return lo + w.rng.Int64N(max(hi-lo, 1)) }

func (w *world) chance(p float64) bool { return p > 0 && w.rng.Float64() < p }

// run lets the world go on for d, or until a violation.
func (w *world) run(d int64) { w.runUntil(d, func() bool { return false }) }

// runUntil lets the world go on until done, for at most d. It reports whether
// done became true.
func (w *world) runUntil(d int64, done func() bool) bool {
	end := w.now + d
	for len(w.events) > 0 && w.violation == nil && w.events[0].at <= end {
		e := w.events.pop()
		w.now = e.at
		w.result.Events++
		w.handle(e)
		if done() {
			return true
		}
	}
	w.now = max(w.now, end)
	return false
}

func (w *world) handle(e event) {
	if e.kind >= evClient {
		w.handleWorld(e)
		return
	}
	n := w.nodes[e.node]
	if e.life != n.life || !n.up {
		if e.kind == evDeliver && e.life == 0 && n.up {
			w.deliver(n, e)
		}
		return
	}
	if n.pausedUntil > w.now {
		if e.kind == evTick {
			w.after(n.tick, e) // lost, as a stopped process loses them
		} else {
			w.postpone(n, e)
		}
		return
	}
	switch e.kind {
	case evTick:
		w.tick(n)
		w.after(n.tick, e)
	case evDisk:
		w.synced(n)
	case evApplied:
		w.applyDone(e.r)
	case evPump:
		e.r.pumpDue = false
		w.pumpNow(e.r)
	}
}

func (w *world) handleWorld(e event) {
	switch e.kind {
	case evClient:
		w.client()
	case evFault:
		w.fault()
	case evMember:
		w.member()
	case evHeal:
		e.heal()
	case evRestart:
		w.start(w.nodes[e.node])
	case evCheckpoint:
		w.checkpoint(w.nodes[e.node], e)
	case evCheckpointed:
		w.checkpointed(w.nodes[e.node], e)
	case evGhost:
		w.net.ghost()
	case evTold:
		w.told(e)
	}
}

// postpone brings e back when a paused node goes on, or to look again: the
// pause may end early.
func (w *world) postpone(n *node, e event) {
	w.after(min(n.pausedUntil-w.now, 100*millisecond), e)
}

// deliver hands over a message, now or when a paused node goes on.
func (w *world) deliver(n *node, e event) {
	if n.pausedUntil > w.now {
		w.postpone(n, e)
		return
	}
	r, m := e.r, e.m
	w.stranger(r, m)
	if r.core == nil {
		return
	}
	w.trace.note(w.now, r.name, "gets "+m.GetType().String(), m.GetFrom(), m.GetTerm(), m.GetIndex(), uint64(len(m.GetEntries())))
	w.result.Steps++
	r.gets(m)
	r.core.Step(m)
	w.pump(r)
}

func (w *world) tick(n *node) {
	w.watchDisk(n)
	for _, r := range n.replicas {
		if r.core != nil {
			w.result.Steps++
			r.core.Tick()
			w.pump(r)
		}
	}
}

// pump takes the effects of a replica, at once or after some more inputs.
func (w *world) pump(r *replica) {
	if !r.n.lazy {
		w.pumpNow(r)
		return
	}
	if !r.pumpDue {
		r.pumpDue = true
		w.after(w.between(0, 2*millisecond), event{kind: evPump, node: r.n.index, life: r.n.life, r: r})
	}
}

func (w *world) pumpNow(r *replica) {
	for n := 0; r.core != nil && w.violation == nil && r.core.HasEffects(); n++ {
		if n > 10_000 {
			w.violate("R22", "%s does not come to rest", r.name)
		}
		r.core.Effects(&r.fx)
		w.effects(r)
		r.members.seen()
	}
}

func (w *world) effects(r *replica) {
	fx := &r.fx
	if err := r.core.Failed(); err != nil {
		w.violate("R22", "%s failed: %v", r.name, err)
		return
	}
	before := r.status
	if fx.Status != nil {
		r.status = *fx.Status
	}
	if a := fx.Append; a != nil {
		r.journalled(a.Frame, before)
		r.n.disk.waiting = append(r.n.disk.waiting, write{r: r, seq: a.Seq, opening: r.opening, frame: a.Frame, sync: a.Sync})
		w.mutateAppend(r, a)
	}
	if fx.Status != nil {
		r.changed(before)
	}
	for _, m := range fx.Send {
		r.sends(m)
		w.net.send(r, m)
	}
	if len(fx.Apply) > 0 {
		w.enqueueApply(r, batch{entries: fx.Apply, owners: fx.Owners})
	}
	for _, ev := range fx.Proposals {
		w.proposalEvent(r, ev)
	}
	for _, ev := range fx.Reads {
		w.readEvent(r, ev)
	}
	for _, ev := range fx.Changes {
		w.changeEvent(r, ev)
	}
	for _, to := range fx.Behind {
		w.behind(r, to)
	}
	w.startRound(r.n)
}

func (w *world) violate(property, format string, args ...any) {
	if w.violation != nil || slices.Contains(w.opts.Ignore, property) {
		return
	}
	w.violation = &Violation{
		Property: property, Seed: w.seed, At: w.now, Text: fmt.Sprintf(format, args...), Trace: w.trace.tail(),
	}
}

// settle heals everything and demands that all comes to rest: leaders, equal
// logs, an end of every call.
func (w *world) settle() {
	if w.violation != nil || w.opts.Quiet {
		return
	}
	w.heal()
	w.run(5 * second) // what waited is sent, read and applied
	for _, g := range w.groups {
		if w.violation != nil {
			return
		}
		g.mustServe(10 * electionTime)
	}
	w.runUntil(30*second, func() bool { return !slices.ContainsFunc(w.groups, (*group).lags) })
	if w.violation != nil {
		return
	}
	for _, g := range w.groups {
		g.mustAgree()
		g.mustBeSettled()
	}
	w.mustEnd()
}

// heal ends all faults and the clients.
func (w *world) heal() {
	f := &w.faults
	w.faults = faults{every: f.every, applyTime: 300 * microsecond, checkpointEvery: f.checkpointEvery, core: f.core}
	w.net.healAll()
	for _, n := range w.nodes {
		n.pausedUntil, n.disk.stalledUntil, n.disk.slow, n.disk.full, n.lazy = 0, 0, 0, false, false
		if !n.up {
			w.start(n)
		}
		n.restarting = true // events of planned restarts find it running
		w.kickDisk(n)
	}
}

func (w *world) leaderOf(g *group) *replica {
	var best *replica
	for _, r := range g.kept {
		if r.core != nil && r.status.Role == raftlog.RoleLeaderActive && (best == nil || r.status.Term > best.status.Term) {
			best = r
		}
	}
	return best
}

// deposedOf finds a replica that leads and, for all it knows, is the leader,
// while others have moved on.
func (w *world) deposedOf(g *group) *replica {
	for _, r := range g.kept {
		if l := w.leaderOf(g); r.core != nil && r.status.Role.IsLeader() && l != r {
			return r
		}
	}
	return nil
}
