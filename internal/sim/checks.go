package sim

import (
	"slices"

	"github.com/stelelog/stele/storage"
)

type (
	frame     = storage.Frame
	hardState = storage.HardState
)

// opened checks a replica that was opened over what its disk held.
func (r *replica) opened(st storage.ReplicaState) {
	w, s := r.w, r.core.Status()
	floor := max(r.promised.Commit, s.Applied)
	switch {
	case s.Term < r.promised.Term:
		w.violate("R8", "%s: opens in term %d, promised %d", r.name, s.Term, r.promised.Term)
	case s.Term == r.promised.Term && s.Vote != r.promised.Vote:
		w.violate("R8", "%s: opens with vote %v in term %d, promised %v", r.name, s.Vote, s.Term, r.promised.Vote)
	case s.Commit < floor:
		w.violate("R8", "%s: opens with commit %d, promised %d", r.name, s.Commit, floor)
	case s.Commit > s.Last || s.LogStart > s.Commit || s.Applied > s.Commit:
		w.violate("R9", "%s: opens with start %d, applied %d, commit %d, last %d", r.name, s.LogStart, s.Applied, s.Commit, s.Last)
	case s.Readable:
		w.violate("R25", "%s: shows a high watermark before a leader taught it", r.name)
	}
	r.last.Term, r.last.Vote, r.last.Commit = s.Term, s.Vote, s.Commit
	if end := r.said.last(); end > r.said.base && !slices.Contains(r.g.logs[end], seenEntry{r.said.term(end), r.said.hash(end)}) {
		w.violate("R5", "%s: opens with a log up to %d that nobody ever had", r.name, end)
	}
}

// checkState compares what a rotation of the journal would carry over with
// what is durable.
func (r *replica) checkState() {
	if r.core == nil {
		return
	}
	st := r.core.State()
	want := r.hard
	want.Commit = max(want.Commit, st.Log.LastIndex)
	tail := r.entries[min(int(st.Log.LastIndex-r.durable.base), len(r.entries)):]
	same := func(a, b storage.Entry) bool { return a.Index == b.Index && a.Term == b.Term }
	if st.Hard != want || st.Log.LastIndex != r.logEnd() || !slices.EqualFunc(st.Tail, tail, same) {
		r.w.violate("R23", "%s: would carry %+v, log %d and %d entries; durable are %+v, log %d and %d entries",
			r.name, st.Hard, st.Log.LastIndex, len(st.Tail), want, r.logEnd(), len(tail))
	}
	if want := r.g.confAt(st.Log.LastIndex); !sameConf(st.Conf, want) {
		r.w.violate("R22", "%s: would carry the configuration %+v, that of %d is %+v", r.name, st.Conf, st.Log.LastIndex, want)
	}
}

// mustServe demands that within limit some leader accepts, commits and applies.
func (g *group) mustServe(limit int64) {
	w := g.w
	end := w.now + limit
	for w.violation == nil && w.now < end {
		l := w.leaderOf(g)
		if l == nil {
			w.run(tickTime)
			continue
		}
		id := w.propose(l, 16)
		p := &w.props[id-1]
		if w.runUntil(2*electionTime, func() bool { return p.state >= proposalAcked }) && p.state == proposalAcked {
			return
		}
	}
	w.violate("R15", "group %d: nobody served within %d ms", g.id, limit/millisecond)
}

// lags reports whether some replica of the configuration has not applied all
// there is.
func (g *group) lags() bool {
	return slices.ContainsFunc(g.kept, func(r *replica) bool { return g.counts(r) && r.applied != g.committed })
}

// mustAgree demands that every replica of the configuration has applied all
// there is.
func (g *group) mustAgree() {
	for _, r := range g.kept {
		if g.counts(r) && r.applied != g.committed {
			g.w.violate("R15", "%s: applied %d of %d long after everything healed", r.name, r.applied, g.committed)
		}
	}
}

// mustEnd demands that every call on a process that still lives has ended.
func (w *world) mustEnd() {
	for i, p := range w.props {
		if p.state < proposalAcked && p.r.core != nil && p.r.n.life == p.life {
			w.violate("R14", "%s: proposal %d has no outcome", p.r.name, i+1)
		}
	}
	for i, c := range w.reads {
		if !c.done && c.r.core != nil && c.r.n.life == c.life {
			w.violate("R25", "%s: read %d never ended", c.r.name, i+1)
		}
	}
	for i, c := range w.changes {
		if !c.done && c.r.core != nil && c.r.n.life == c.life {
			w.violate("R17", "%s: change %d never ended", c.r.name, i+1)
		}
	}
}
