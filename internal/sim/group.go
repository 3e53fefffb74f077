package sim

import (
	"fmt"

	"github.com/stelelog/stele/raftlog"
	pb "go.etcd.io/raft/v3/raftpb"
)

// group is one raft group and all that was ever seen of it.
type group struct {
	w        *world
	index    int
	id       raftlog.GroupID
	own      bool       // its state machine keeps a state of its own
	replicas []*replica // every stint there ever was, by id
	kept     []*replica // that were not destroyed
	members  membership

	leaders   map[raftlog.Term]reign
	votes     map[ballot]raftlog.ReplicaID
	logs      [][]seenEntry // by index: every (term, hash) that any log ever had there
	committed raftlog.Index // known to be committed by anyone
	hashes    []uint64      // of committed entries, by index
	states    []uint64      // of the state machine, by index
	acked     raftlog.Index // highest entry reported applied to its proposer
}

// reign is who leads a term: a process, not just a replica.
type reign struct {
	replica raftlog.ReplicaID
	life    uint64
}

type ballot struct {
	voter raftlog.ReplicaID
	term  raftlog.Term
}

type seenEntry struct {
	term raftlog.Term
	hash uint64
}

func newGroup(w *world, index int) *group {
	g := &group{
		w: w, index: index, id: raftlog.GroupID(index + 1), own: index%2 == 1,
		leaders: map[raftlog.Term]reign{}, votes: map[ballot]raftlog.ReplicaID{},
		logs: make([][]seenEntry, 2), committed: 1, hashes: []uint64{0, 1}, states: []uint64{0, 1}, acked: 1,
	}
	var conf raftlog.ConfState
	for i := range w.opts.Voters {
		conf.Voters = append(conf.Voters, g.replicaID(i))
	}
	g.members.init(conf)
	return g
}

// replicaID is the id of the stint of that number, from 0.
func (g *group) replicaID(stint int) raftlog.ReplicaID {
	return raftlog.ReplicaID(1000*(g.index+1) + stint + 1)
}

func (g *group) byID(id uint64) *replica {
	i := int(id) - 1000*(g.index+1) - 1
	if i < 0 || i >= len(g.replicas) {
		return nil
	}
	return g.replicas[i]
}

// addReplica begins a stint: with the group's creation, or with nothing.
func (g *group) addReplica(n *node, created bool) *replica {
	stint := len(g.replicas)
	r := &replica{w: g.w, n: n, g: g, id: g.replicaID(stint), name: fmt.Sprintf("n%d.g%d", n.index+1, g.index+1)}
	if created {
		r.durable, r.states = newHistory(), []uint64{1}
		r.hard.Term, r.hard.Commit = 1, 1
	} else {
		r.name += fmt.Sprintf("#%d", stint+1)
		r.durable, r.states = historyAt(0, 0, 0), []uint64{0}
	}
	at := r.durable.base
	r.said, r.logSynced, r.ownSynced, r.startSynced, r.start, r.applied = r.durable.clone(), at, at, at, at, at
	r.promised, r.entryHard, r.last = r.hard, r.hard, r.hard
	g.replicas = append(g.replicas, r)
	g.kept = append(g.kept, r)
	n.replicas = append(n.replicas, r)
	return r
}

// journalled checks a frame as it is handed out, against all that its replica
// said before and against every other log.
func (r *replica) journalled(f frame, before raftlog.Status) {
	w, g := r.w, r.g
	w.trace.note(w.now, r.name, "journals", uint64(f.Hard.Term), uint64(f.Hard.Vote), uint64(f.Hard.Commit), uint64(len(f.Entries)))
	switch {
	case f.Hard.Term < r.last.Term:
		w.violate("R8", "%s: term falls from %d to %d", r.name, r.last.Term, f.Hard.Term)
	case f.Hard.Term == r.last.Term && r.last.Vote != 0 && f.Hard.Vote != r.last.Vote:
		w.violate("R8", "%s: vote of term %d changes from %d to %d", r.name, f.Hard.Term, r.last.Vote, f.Hard.Vote)
	case f.Hard.Commit < r.last.Commit:
		w.violate("R8", "%s: commit falls from %d to %d", r.name, r.last.Commit, f.Hard.Commit)
	}
	leads := before.Role.IsLeader() && r.status.Role.IsLeader() && before.Term == r.status.Term
	for i, e := range f.Entries {
		if i == 0 {
			r.checkCut(e.Index, e.Term, leads)
		}
		if w.violation != nil {
			return
		}
		r.said.set(e)
		g.seen(r, e.Index)
		r.members.appended(r, e, leads)
	}
	if w.violation != nil {
		return
	}
	if f.Hard.Commit > r.said.last() {
		w.violate("R9", "%s: commit %d beyond its log, which ends at %d", r.name, f.Hard.Commit, r.said.last())
		return
	}
	if f.Hard.Commit > r.last.Commit {
		r.commits(f.Hard.Commit)
	}
	r.last = f.Hard
}

// checkCut looks at the first entry of a frame, which cuts what is behind it.
func (r *replica) checkCut(at raftlog.Index, term raftlog.Term, leads bool) {
	last := r.said.last()
	switch {
	case at <= r.said.base:
		r.w.violate("R12", "%s: entry %d is cut, below the snapshot at %d", r.name, at, r.said.base)
	case at > last+1:
		r.w.violate("R5", "%s: entry %d follows %d", r.name, at, last)
	case at <= last && leads:
		r.w.violate("R4", "%s: leads and rewrites its entry %d", r.name, at)
	case at <= last && r.said.term(at) == term:
		r.w.violate("R12", "%s: entry %d of term %d is cut by itself", r.name, at, term)
	case at <= r.last.Commit:
		r.w.violate("R12", "%s: committed entry %d is cut", r.name, at)
	}
}

// seen compares an entry with every other log: equal index and term mean equal
// logs up to there.
func (g *group) seen(r *replica, i raftlog.Index) {
	for int(i) >= len(g.logs) {
		g.logs = append(g.logs, nil)
	}
	term, hash := r.said.term(i), r.said.hash(i)
	for _, s := range g.logs[i] {
		if s.term == term {
			if s.hash != hash {
				g.w.violate("R5", "%s: its log up to entry %d of term %d is not what another has", r.name, i, term)
			}
			return
		}
	}
	g.logs[i] = append(g.logs[i], seenEntry{term, hash})
}

// commits checks a commit index that moved, against the durable logs of a
// quorum if nobody knew it before, else against what was committed.
func (r *replica) commits(to raftlog.Index) {
	w, g := r.w, r.g
	hash := r.said.hash(to)
	if to <= g.committed {
		if g.hashes[to] != hash {
			w.violate("R5", "%s: commits another entry %d than was committed", r.name, to)
		}
		return
	}
	if !r.said.holds(g.committed, g.hashes[g.committed]) {
		w.violate("R6", "%s: commits %d over a log without the committed entry %d", r.name, to, g.committed)
		return
	}
	if !r.members.quorum(r, func(v *replica) bool { return v.durable.holds(to, hash) }) {
		w.violate("R7", "%s: commits %d without a quorum of durable copies, as of %+v", r.name, to, g.confAt(r.members.at))
	}
	if r.status.Role.IsLeader() && r.said.term(to) != r.status.Term {
		w.violate("R7", "%s: leads term %d and commits entry %d of term %d by counting", r.name, r.status.Term, to, r.said.term(to))
	}
	for i := g.committed + 1; i <= to; i++ {
		g.hashes = append(g.hashes, r.said.hash(i))
	}
	g.committed = to
}

// sends checks a message as it leaves, against what is durable.
func (r *replica) sends(m *pb.Message) {
	w, g := r.w, r.g
	term := raftlog.Term(m.GetTerm())
	switch m.GetType() {
	case pb.MsgPreVote, pb.MsgReadIndex:
		return
	case pb.MsgPreVoteResp:
		if m.GetReject() && term > r.promised.Term {
			w.violate("R3", "%s: tells of term %d, term %d is durable", r.name, term, r.promised.Term)
		}
		return
	}
	if term > r.promised.Term {
		w.violate("R3", "%s: %s of term %d leaves, term %d is durable", r.name, m.GetType(), term, r.promised.Term)
		return
	}
	switch {
	case m.GetType() == pb.MsgVote:
		r.votes(term, r.id)
	case m.GetType() == pb.MsgVoteResp && !m.GetReject():
		r.votes(term, raftlog.ReplicaID(m.GetTo()))
	case m.GetType() == pb.MsgAppResp && !m.GetReject() && m.GetIndex() != 0 && term == r.promised.Term:
		i := raftlog.Index(m.GetIndex())
		if i > r.durable.last() {
			w.violate("R3", "%s: acknowledges entry %d, %d is durable", r.name, i, r.durable.last())
			return
		}
		l := g.byID(m.GetTo())
		if l == nil || l.core == nil || !l.status.Role.IsLeader() || l.status.Term != term {
			return
		}
		if !l.said.holds(i, r.durable.hash(i)) {
			w.violate("R12", "%s: acknowledges entry %d to %s, which has another", r.name, i, l.name)
		}
	}
}

// votes notes a vote that leaves: it is durable, and the only one of its term.
func (r *replica) votes(term raftlog.Term, who raftlog.ReplicaID) {
	w := r.w
	if term == r.promised.Term && r.promised.Vote != who {
		w.violate("R3", "%s: vote of term %d for %v leaves, the one for %v is durable", r.name, term, who, r.promised.Vote)
		return
	}
	b := ballot{r.id, term}
	if old := r.g.votes[b]; old != 0 && old != who {
		w.violate("R2", "%s: votes in term %d for %v and for %v", r.name, term, old, who)
	}
	r.g.votes[b] = who
}

// durableVote checks a hard state as it becomes durable.
func (r *replica) durableVote(h hardState) {
	if h.Term == r.promised.Term && r.promised.Vote != 0 && h.Vote != r.promised.Vote {
		r.w.violate("R2", "%s: the durable vote of term %d changes from %v to %v", r.name, h.Term, r.promised.Vote, h.Vote)
	}
	if h.Term < r.promised.Term {
		r.w.violate("R8", "%s: the durable term falls from %d to %d", r.name, r.promised.Term, h.Term)
	}
	r.promised = h
}

// changed checks what observers are told.
func (r *replica) changed(before raftlog.Status) {
	w, g, now := r.w, r.g, r.status
	w.trace.note(w.now, r.name, now.Role.String(), uint64(now.Term), uint64(now.Leader), uint64(now.Commit), uint64(now.Last))
	if before.Role != 0 && !raftlog.LegalTransition(before.Role, now.Role) {
		w.violate("R29", "%s: goes from %v to %v", r.name, before.Role, now.Role)
	}
	if now.Role == raftlog.RoleCandidate && before.Role != raftlog.RoleCandidate {
		if before.Role != raftlog.RoleProspective && !r.handedOver {
			w.violate("R13", "%s: %v becomes candidate without having asked", r.name, before.Role)
		}
		r.handedOver = false
	}
	r.members.told(r)
	if !now.Role.IsLeader() {
		r.placed = 0
		return
	}
	if was, ok := g.leaders[now.Term]; ok && was != (reign{r.id, r.n.life}) {
		w.violate("R1", "%s in its life %d leads term %d, which %v led in its life %d", r.name, r.n.life, now.Term, was.replica, was.life)
		return
	} else if !ok {
		w.result.Elections++
		g.leaders[now.Term] = reign{r.id, r.n.life}
		if !r.said.holds(g.committed, g.hashes[g.committed]) {
			w.violate("R6", "%s: leads term %d without the committed entry %d", r.name, now.Term, g.committed)
		}
	}
}

// appliedTo checks an entry that a state machine applied.
func (g *group) appliedTo(r *replica, e raftlog.Entry) {
	w := g.w
	if e.Index > g.committed {
		w.violate("R9", "%s: applies %d, committed is %d", r.name, e.Index, g.committed)
		return
	}
	state := r.states[len(r.states)-1]
	if e.Conf != nil {
		defer func() { g.members.agrees(r, e) }()
	}
	if int(e.Index) < len(g.states) {
		if g.states[e.Index] != state {
			w.violate("R11", "%s: its state at %d is another than that of others", r.name, e.Index)
		}
		return
	}
	if int(e.Index) != len(g.states) {
		w.violate("R11", "%s: nobody applied entry %d before %d", r.name, len(g.states), e.Index)
		return
	}
	g.states = append(g.states, state)
	w.committedProposal(e)
	g.members.committed(g, e)
}
