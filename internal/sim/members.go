package sim

import (
	"errors"
	"slices"

	"github.com/stelelog/stele/internal/invariant"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// membership is the history of a group's configuration, and who is in it.
type membership struct {
	confs  []confPoint // as applied by the first that applied it
	wishes []*wish
	listed []raftlog.ReplicaID // that ever were in a configuration
	dead   map[raftlog.ReplicaID]bool
	old    []*snapshot // that were taken
}

// confPoint is an entry and the configuration that it led to.
type confPoint struct {
	index raftlog.Index
	conf  raftlog.ConfState
}

// wish is a change that somebody asked for, once or again.
type wish struct {
	change    raftlog.Change
	index     raftlog.Index // where it was applied; 0: it was not
	open      int           // calls that did not end as "nothing happened"
	committed bool
}

// changeCall is one call of Change.
type changeCall struct {
	r    *replica
	life uint64
	wish *wish
	done bool
}

// firstChange is the id of the first call; proposals have lower ones.
const firstChange raftlog.ProposalID = 1 << 40

func (m *membership) init(conf raftlog.ConfState) {
	m.confs = []confPoint{{1, conf}}
	m.listed = slices.Clone(conf.Voters)
	m.dead = map[raftlog.ReplicaID]bool{}
}

// confAt is the configuration as of an index.
func (g *group) confAt(i raftlog.Index) raftlog.ConfState { return g.confPoint(i).conf }

func (g *group) confPoint(i raftlog.Index) confPoint {
	confs := g.members.confs
	for at := len(confs) - 1; at >= 0; at-- {
		if confs[at].index <= i {
			return confs[at]
		}
	}
	return confPoint{}
}

// conf is the newest configuration.
func (g *group) conf() raftlog.ConfState { return g.confAt(g.committed) }

// counts reports whether a replica is open and in the newest configuration.
func (g *group) counts(r *replica) bool { return r.core != nil && inConf(g.conf(), r.id) }

// committed notes an entry as it is applied for the first time.
func (m *membership) committed(g *group, e raftlog.Entry) {
	before := m.confs[len(m.confs)-1].conf
	if e.Conf == nil || sameConf(before, *e.Conf) {
		return
	}
	w, now := g.w, *e.Conf
	w.result.Changes++
	m.confs = append(m.confs, confPoint{e.Index, now})
	if !intersect(before, now) {
		w.violate("R30", "group %d: entry %d leads from %+v to %+v", g.id, e.Index, before, now)
	}
	for _, id := range everyone(now) {
		if !slices.Contains(m.listed, id) {
			m.listed = append(m.listed, id)
		}
	}
	var cc pb.ConfChangeV2
	if proto.Unmarshal(e.Data, &cc) != nil || len(cc.GetContext()) != 17 {
		return
	}
	for _, wi := range m.wishes {
		if string(wi.change.ID[:]) != string(cc.GetContext()[1:]) {
			continue
		}
		if wi.committed {
			w.violate("R17", "group %d: a change is applied at %d and at %d", g.id, wi.index, e.Index)
		}
		wi.committed, wi.index = true, e.Index
		if wi.open == 0 {
			w.violate("R17", "group %d: a change that was told not to have happened is applied at %d", g.id, e.Index)
		}
	}
}

// wasOut reports whether a replica was in a configuration and is not any more:
// it never comes back.
func (g *group) wasOut(id raftlog.ReplicaID) bool {
	return slices.Contains(g.members.listed, id) && !inConf(g.conf(), id)
}

// agrees compares what a replica is told with what all are.
func (m *membership) agrees(r *replica, e raftlog.Entry) {
	if want := r.g.confAt(e.Index); !sameConf(want, *e.Conf) {
		r.w.violate("R11", "%s: entry %d leads to %+v here, elsewhere to %+v", r.name, e.Index, *e.Conf, want)
	}
}

// bury notes that a replica is out of its group for good, as those know who ask
// a leader. Some are destroyed then, some run on.
func (m *membership) bury(g *group, id raftlog.ReplicaID) {
	if m.dead[id] {
		return
	}
	w := g.w
	m.dead[id] = true
	r := g.byID(uint64(id))
	w.trace.note(w.now, r.name, "is out", uint64(id), 0, 0, 0)
	if w.chance(0.5) {
		w.after(w.exp(300*millisecond), event{kind: evHeal, heal: func() {
			if m.dead[id] {
				w.destroy(r)
			}
		}})
	}
}

// destroy takes a replica and its bytes away.
func (w *world) destroy(r *replica) {
	if r.gone {
		return
	}
	w.trace.note(w.now, r.name, "is destroyed", uint64(r.id), 0, 0, 0)
	r.gone = true
	r.close()
	is := func(o *replica) bool { return o == r }
	r.n.replicas = slices.DeleteFunc(slices.Clone(r.n.replicas), is)
	r.g.kept = slices.DeleteFunc(slices.Clone(r.g.kept), is)
}

// memberView is what the checker keeps of one replica's configuration.
type memberView struct {
	at    raftlog.Index   // applied by its core
	since []raftlog.Index // where that stood, since effects were last looked at
	confs []raftlog.Index // configuration entries in its log

	resigned   raftlog.Term // that it led when it resigned
	resignedAt raftlog.Index
}

// open begins with what a core begins with.
func (v *memberView) open(r *replica) {
	*v = memberView{at: r.logSynced}
	if r.g.own {
		v.at = min(v.at, r.ownSynced)
	}
	for _, e := range r.entries {
		if e.Kind != storage.EntryNormal {
			v.confs = append(v.confs, e.Index)
		}
	}
}

func (v *memberView) applied(last raftlog.Index) { v.since, v.at = append(v.since, v.at), last }

func (v *memberView) seen() { v.since = v.since[:0] }

// quorum reports whether a quorum of a configuration that the replica had since
// it was last looked at is as it should be.
func (v *memberView) quorum(r *replica, is func(*replica) bool) bool {
	if r.g.quorum(r.g.confAt(v.at), is) {
		return true
	}
	return slices.ContainsFunc(v.since, func(i raftlog.Index) bool { return r.g.quorum(r.g.confAt(i), is) })
}

func (g *group) quorum(conf raftlog.ConfState, is func(*replica) bool) bool {
	return quorum(conf, func(id raftlog.ReplicaID) bool { return is(g.byID(uint64(id))) })
}

// appended checks an entry as a replica hands it out.
func (v *memberView) appended(r *replica, e storage.Entry, leads bool) {
	for n := len(v.confs); n > 0 && v.confs[n-1] >= e.Index; n-- {
		v.confs = v.confs[:n-1]
	}
	if len(voters(r.g.confAt(v.at))) == 1 {
		v.resigned = 0 // the last other voter went: there is nobody to resign to
	}
	if leads && v.resigned == r.status.Term && e.Index > v.resignedAt {
		r.w.violate("R16", "%s: appends entry %d to term %d, from which it resigned at %d", r.name, e.Index, r.status.Term, v.resignedAt)
	}
	if e.Kind == storage.EntryNormal {
		return
	}
	if leads {
		if n := len(v.confs); n > 0 && v.confs[n-1] > v.at {
			r.w.violate("R18", "%s: changes the configuration at %d, the change at %d is not applied", r.name, e.Index, v.confs[n-1])
		}
		if c := max(r.last.Commit, r.said.base); r.said.term(c) != r.status.Term {
			r.w.violate("R18", "%s: changes the configuration at %d and has committed nothing in term %d", r.name, e.Index, r.status.Term)
		}
	}
	v.confs = append(v.confs, e.Index)
}

// told checks what a leader says of its configuration, and lets those act on it
// who wait for that.
func (v *memberView) told(r *replica) {
	s, g := &r.status, r.g
	if !s.Role.IsLeader() || !s.ConfSafe {
		return
	}
	index := g.confPoint(v.at).index
	if s.ConfIndex != 0 && s.ConfIndex != index {
		r.w.violate("R17", "%s: says that %d made its configuration, it was %d", r.name, s.ConfIndex, index)
	}
	knows := func(o *replica) bool { return o.promised.Commit >= index }
	if !g.quorum(s.Conf, knows) {
		r.w.violate("R20", "%s: says that a quorum of %+v knows of %d", r.name, s.Conf, index)
	}
	if s.Settled {
		for _, id := range voters(s.Conf) {
			if !knows(g.byID(uint64(id))) {
				r.w.violate("R21", "%s: says that all voters of %+v know of %d, %v does not", r.name, s.Conf, index, id)
			}
		}
	}
	for _, id := range g.members.listed {
		if !inConf(s.Conf, id) && !inConf(g.conf(), id) {
			g.members.bury(g, id)
		}
	}
}

// changeEvent holds a leader to its word.
func (w *world) changeEvent(r *replica, ev raftlog.ChangeEvent) {
	c := &w.changes[ev.ID-firstChange]
	w.trace.note(w.now, r.name, "change ends", uint64(ev.ID-firstChange)+1, boolBit(ev.Err == nil), 0, 0)
	if c.done || c.r != r || c.life != r.n.life {
		w.violate("R17", "%s: change %d ends twice or elsewhere", r.name, ev.ID-firstChange+1)
		return
	}
	c.done = true
	switch wi := c.wish; {
	case ev.Err == nil:
		v := &r.members
		at := r.g.confPoint(v.at)
		switch {
		case !wi.committed || wi.index > v.at:
			w.violate("R17", "%s: change %d is told to be applied and is not", r.name, ev.ID-firstChange+1)
		case len(at.conf.VotersOutgoing) > 0:
			w.violate("R17", "%s: change %d is told to be done in a joint configuration", r.name, ev.ID-firstChange+1)
		case !r.g.quorum(at.conf, func(o *replica) bool { return o.promised.Commit >= at.index }):
			w.violate("R20", "%s: change %d is told to be done before a quorum knows", r.name, ev.ID-firstChange+1)
		}
		for _, id := range wi.change.Remove {
			if !inConf(r.g.conf(), id) {
				r.g.members.bury(r.g, id)
			}
		}
	case errors.Is(ev.Err, raftlog.ErrRetry), errors.Is(ev.Err, raftlog.ErrRefused):
		wi.open--
		if wi.open == 0 && wi.committed {
			w.violate("R17", "%s: change %d is told not to have happened, it is applied at %d", r.name, ev.ID-firstChange+1, wi.index)
		}
	case !errors.Is(ev.Err, raftlog.ErrOutcomeUnknown):
		w.violate("R17", "%s: change %d ends with %v", r.name, ev.ID-firstChange+1, ev.Err)
	}
}

// change asks a replica to change its group's configuration.
func (w *world) change(r *replica, wi *wish) {
	if r.core == nil {
		return // it made room for another
	}
	wi.open++
	w.changes = append(w.changes, changeCall{r: r, life: r.n.life, wish: wi})
	n := len(w.changes)
	w.trace.note(w.now, r.name, "changes", uint64(n), uint64(len(wi.change.Learners)), uint64(len(wi.change.Voters)), uint64(len(wi.change.Remove)))
	w.result.Steps++
	r.core.Change(firstChange+raftlog.ProposalID(n-1), wi.change)
	w.pump(r)
}

// resign ends a leadership.
func (w *world) resign(r *replica, successors ...raftlog.ReplicaID) error {
	w.trace.note(w.now, r.name, "resigns", uint64(len(successors)), 0, 0, 0)
	w.result.Steps++
	err := r.core.Resign(successors...)
	if err == nil && r.members.resigned != r.status.Term {
		r.members.resigned, r.members.resignedAt = r.status.Term, r.said.last()
	}
	w.pump(r)
	return err
}

// stranger has a replica that speaks up and is out told so, by a node where
// nobody knows it.
func (w *world) stranger(r *replica, m *pb.Message) {
	g := r.g
	from := g.byID(m.GetFrom())
	if from == nil || !g.members.dead[from.id] || w.opts.Mutant == MutantNotTold {
		return
	}
	if !r.gone && (r.core == nil || inConf(g.confAt(r.members.at), from.id)) {
		return
	}
	w.tell(r.n, from, func() {
		from.core.Remove()
		w.pump(from)
	})
}

// tell sends what nodes tell each other beside raft.
func (w *world) tell(from *node, to *replica, do func()) {
	if w.net.cut[from.index][to.n.index] || w.chance(w.faults.drop) {
		return
	}
	d := w.between(200*microsecond, 2*millisecond)
	if w.chance(w.faults.late) {
		d = w.exp(200 * millisecond)
	}
	w.after(d, event{kind: evTold, node: to.n.index, r: to, heal: do})
}

func (w *world) told(e event) {
	switch n := w.nodes[e.node]; {
	case !n.up || e.r.core == nil:
	case n.pausedUntil > w.now:
		w.postpone(n, e)
	default:
		e.heal()
	}
}

// The sets of replicas that a configuration has, under the names that the checks
// use.
var (
	voters    = invariant.Voters
	everyone  = invariant.Everyone
	sameConf  = invariant.Same
	quorum    = invariant.Quorum
	intersect = invariant.Intersect
)

func inConf(c raftlog.ConfState, id raftlog.ReplicaID) bool {
	return slices.Contains(everyone(c), id)
}
