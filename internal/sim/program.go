package sim

import (
	"encoding/binary"
	"slices"

	"github.com/stelelog/stele/raftlog"
)

// member takes a step of a program of changes: it asks for one, sensible or
// not, asks again, makes a leader resign, or brings an old snapshot.
func (w *world) member() {
	if w.faults.memberEvery == 0 {
		return
	}
	w.after(w.exp(w.faults.memberEvery), event{kind: evMember})
	g := w.groups[w.rng.IntN(len(w.groups))]
	if w.chance(0.03) {
		w.oldSnapshot(g)
		return
	}
	l := w.leaderOf(g)
	if l == nil || w.chance(0.05) {
		l = g.kept[w.rng.IntN(len(g.kept))]
	}
	if l.core == nil || l.n.pausedUntil > w.now {
		return
	}
	m := &g.members
	switch p := w.rng.Float64(); {
	case p < 0.05:
		_ = w.resign(l, g.kept[w.rng.IntN(len(g.kept))].id)
	case p < 0.15 && len(m.wishes) > 0:
		// Of what came to pass long ago nobody knows any more, so one asks soon.
		n := min(len(m.wishes), 10)
		wi := m.wishes[len(m.wishes)-1-w.rng.IntN(n)]
		if (!wi.committed || wi == m.wishes[len(m.wishes)-1]) && !slices.ContainsFunc(wi.change.Learners, g.wasOut) {
			w.change(l, wi)
		}
	default:
		w.change(l, w.newWish(g, l.core.Status().Conf))
	}
}

// wishFor makes a wish of a change.
func (w *world) wishFor(g *group, ch raftlog.Change) *wish {
	binary.LittleEndian.PutUint64(ch.ID[:], w.rng.Uint64())
	binary.LittleEndian.PutUint64(ch.ID[8:], w.rng.Uint64())
	wi := &wish{change: ch}
	g.members.wishes = append(g.members.wishes, wi)
	return wi
}

func (w *world) newWish(g *group, conf raftlog.ConfState) *wish {
	one := func(ids []raftlog.ReplicaID) []raftlog.ReplicaID {
		if len(ids) == 0 {
			return nil
		}
		i := w.rng.IntN(len(ids))
		return slices.Clone(ids[i : i+1])
	}
	var ch raftlog.Change
	switch p := w.rng.Float64(); {
	case p < 0.35 || len(conf.Learners) == 0 && p < 0.7:
		if id := w.newcomer(g); id != 0 {
			ch.Learners = []raftlog.ReplicaID{id}
		}
	case p < 0.55 && len(conf.Voters) < 5:
		ch.Voters = one(conf.Learners)
	case p < 0.75:
		ch.Voters, ch.Remove = one(conf.Learners), one(conf.Voters)
	case p < 0.85:
		ch.Remove = one(everyone(conf))
	case p < 0.92:
		ch.Learners = one(conf.Voters)
	default: // whatever comes to mind
		known := slices.DeleteFunc(slices.Clone(g.members.listed), g.wasOut) // ids are never used again
		ch = raftlog.Change{Learners: one(known), Voters: one(everyone(conf)), Remove: one(everyone(conf))}
	}
	return w.wishFor(g, ch)
}

// newcomer finds a replica that could be added, or makes one with nothing; 0: on
// that node there is one that takes part.
func (w *world) newcomer(g *group) raftlog.ReplicaID {
	n := w.nodes[w.rng.IntN(len(w.nodes))]
	for _, r := range g.kept {
		switch {
		case r.n != n:
		case inConf(g.conf(), r.id):
			return 0
		case !g.wasOut(r.id):
			return r.id // it was made before, and never added as far as is known
		case !g.members.dead[r.id]:
			return 0 // it is on its way out
		default:
			w.destroy(r)
		}
	}
	if w.opts.Mutant == MutantSameStint {
		for _, r := range g.replicas {
			if r.n == n && g.members.dead[r.id] {
				w.comeBack(r)
				return r.id
			}
		}
	}
	r := g.addReplica(n, false)
	w.trace.note(w.now, r.name, "is made", uint64(r.id), 0, 0, 0)
	w.reopen(r)
	return r.id
}

// mustBeSettled demands that a group of which replicas came and went comes to
// rest: no joint configuration, all voters know of the last change, and those
// that are out have heard so if they had a vote, and disturb nobody.
func (g *group) mustBeSettled() {
	w := g.w
	if !w.opts.Members || w.violation != nil {
		return
	}
	settled := w.runUntil(10*second, func() bool {
		l := w.leaderOf(g)
		return l != nil && l.status.Settled
	})
	if !settled {
		w.violate("R21", "group %d: not all voters know of %+v long after everything healed", g.id, g.conf())
		return
	}
	if len(g.conf().VotersOutgoing) > 0 {
		w.violate("R19", "group %d: still joint: %+v", g.id, g.conf())
	}
	believes := func(r *replica) bool {
		conf := g.confAt(r.members.at)
		return g.members.dead[r.id] && r.core != nil && slices.Contains(voters(conf), r.id) && r.status.Role != raftlog.RoleRemoved
	}
	w.runUntil(20*second, func() bool { return !slices.ContainsFunc(g.kept, believes) })
	for _, r := range g.kept {
		if believes(r) {
			w.violate("R20", "%s: is out, and %v", r.name, r.status.Role)
		}
	}
	l := w.leaderOf(g)
	if l == nil {
		w.violate("R20", "group %d: its leader went, though nothing happened", g.id)
		return
	}
	term := l.status.Term
	w.run(5 * second)
	if now := w.leaderOf(g); now != l || l.status.Term != term {
		w.violate("R20", "%s: led term %d, and does so no more, though nothing happened", l.name, term)
	}
}
