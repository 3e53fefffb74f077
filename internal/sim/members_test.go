package sim

import (
	"slices"
	"testing"

	"github.com/stelelog/stele/raftlog"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/raft/v3/raftpb"
)

// program shapes a run in which replicas come and go.
func program(seed uint64, seconds int) Options {
	return Options{
		Nodes: 5, Voters: []int{3, 1, 3, 2, 5}[seed%5], Groups: 1 + int(seed%2), Seconds: seconds,
		Members: true, Storm: seed%7 == 3,
	}
}

// Property: R10, R12, R16, R17, R18, R19, R20, R21, R24, R30 (red: as in TestMutantsAreFound; a change told to be
// done once it is applied, before a quorum knows; a leave that only its own leader proposes; appends after a
// resignation; and with raft itself changed: learners counted to a quorum; a joint change that skips its joint
// configuration; a change beside another, or of a leader that has committed nothing in its term, and no check of ours)
func TestPrograms(t *testing.T) {
	n, virtual := span()
	var sum Result
	for seed := *from; seed < *from+uint64(n); seed++ {
		res := run(t, seed, program(seed, max(virtual/2, 1)))
		if res.Violation != nil {
			t.Fatalf("go test ./internal/sim -run TestPrograms -sim.from=%d -sim.seeds=1 -sim.seconds=%d\n%v", seed, virtual, res.Violation)
		}
		sum.Events += res.Events
		sum.Steps += res.Steps
		sum.Elections += res.Elections
		sum.Committed += res.Committed
		sum.Crashes += res.Crashes
		sum.Changes += res.Changes
		sum.Resets += res.Resets
	}
	t.Logf("%+v", sum)
	require.NotZero(t, sum.Changes)
	require.NotZero(t, sum.Resets)
}

// Programs that found something, for as long as it took them.
func TestProgramsThatFoundSomething(t *testing.T) {
	for _, seed := range []uint64{
		81, // the last other voter was removed while the leader fell silent: it refused everything for ever
	} {
		if v := run(t, seed, program(seed, 30)).Violation; v != nil {
			t.Errorf("seed %d: %v", seed, v)
		}
	}
}

// grown is a quiet group of three voters with a learner that has caught up, on
// a fourth node.
func grown(t *testing.T, seed uint64) (w *world, leader, learner *replica) {
	w = quietWith(t, seed, Options{Nodes: 5, Voters: 3, Members: true})
	g := w.groups[0]
	leader = w.elected(t)
	w.run(100 * millisecond)
	learner = g.addReplica(w.nodes[3], false)
	w.reopen(learner)
	w.change(leader, w.wishFor(g, raftlog.Change{Learners: []raftlog.ReplicaID{learner.id}}))
	ok := w.runUntil(5*second, func() bool { return learner.applied > 1 && !g.lags() })
	w.intact(t)
	require.True(t, ok, "the learner did not catch up\n%s", w.trace.tail())
	return w, leader, learner
}

func voting(g *group) []raftlog.ReplicaID { return g.conf().Voters }

// A joint change is begun, and whoever leads dies, again and again, at any of
// its messages. Nobody asks for anything.
//
// Property: R19 (red: the leave proposed by who began alone)
func TestJointIsLeftWhoeverDies(t *testing.T) {
	for seed := uint64(1); seed <= 60; seed++ {
		w, leader, learner := grown(t, seed)
		g := w.groups[0]
		var out raftlog.ReplicaID
		for _, id := range voting(g) {
			if id != leader.id {
				out = id
			}
		}
		w.change(leader, w.wishFor(g, raftlog.Change{
			Voters: []raftlog.ReplicaID{learner.id}, Remove: []raftlog.ReplicaID{out},
		}))
		for range 3 {
			w.run(w.between(0, 12*millisecond))
			l := w.leaderOf(g)
			if l == nil {
				w.runUntil(10*electionTime, func() bool { return w.leaderOf(g) != nil })
				continue
			}
			w.crash(l.n, w.chance(0.5))
			w.run(w.between(0, 3*electionTime))
			w.start(l.n)
		}
		left := w.runUntil(10*electionTime+second, func() bool {
			l := w.leaderOf(g)
			return l != nil && l.status.ConfSafe && len(g.conf().VotersOutgoing) == 0 && l.applied == g.committed
		})
		w.intact(t)
		require.True(t, left, "seed %d: %+v", seed, g.conf())
		g.mustServe(10 * electionTime)
		g.mustBeSettled()
		w.intact(t)
	}
}

// The leader resigns, with whatever it says and whoever is there. Appends end
// at once, and somebody leads soon.
//
// Property: R16 (red: a resignation that hands over to nobody and falls not silent)
func TestResignEndsInALeader(t *testing.T) {
	for seed := uint64(1); seed <= 60; seed++ {
		w := quiet(t, seed, 5)
		g := w.groups[0]
		leader := w.elected(t)
		w.run(second)
		for range 5 {
			w.propose(leader, 16)
		}
		w.run(w.between(0, 4*millisecond))
		var successors []raftlog.ReplicaID
		for range w.rng.IntN(3) {
			successors = append(successors, g.kept[w.rng.IntN(5)].id)
		}
		down := 0
		for _, r := range g.kept { // up to two are dead, and it may not know yet
			if r != leader && down < 2 && w.chance(0.4) {
				w.crash(r.n, true)
				down++
			}
		}
		if w.chance(0.5) {
			w.run(w.between(0, electionTime))
		}
		if !leader.status.Role.IsLeader() {
			continue
		}
		require.NoError(t, w.resign(leader, successors...))
		term := leader.status.Term
		for range 20 {
			w.propose(leader, 16)
			w.run(millisecond)
		}
		ended := w.runUntil(9*electionTime, func() bool {
			l := w.leaderOf(g)
			return l != nil && l.status.Term > term
		})
		w.intact(t)
		require.True(t, ended, "seed %d", seed)
		w.run(2 * electionTime)
		w.intact(t)
		require.False(t, leader.status.Role.IsLeader() && leader.status.Term == term)
		for i := range w.props {
			if p := &w.props[i]; p.r == leader {
				require.GreaterOrEqual(t, p.state, proposalAcked, "seed %d: proposal %d has an outcome", seed, i+1)
			}
		}
	}
}

// A leader that is on its way out of the group by a change that another one
// began goes, and the group has a leader again soon.
//
// Property: R20 (red: a removed leader that stays)
func TestARemovedLeaderGoes(t *testing.T) {
	for seed := uint64(1); seed <= 60; seed++ {
		w, leader, learner := grown(t, seed)
		g := w.groups[0]
		var next *replica
		for _, id := range voting(g) {
			if id != leader.id {
				next = g.byID(uint64(id))
			}
		}
		change := raftlog.Change{Remove: []raftlog.ReplicaID{next.id}}
		if seed%2 == 0 {
			change.Voters = []raftlog.ReplicaID{learner.id}
		}
		// It reaches the one that it removes, and nobody else, and is not
		// acknowledged; that one is then elected.
		for i := range w.nodes {
			w.net.cut[i][leader.n.index] = i != leader.n.index
			w.net.cut[leader.n.index][i] = i != leader.n.index && i != next.n.index
		}
		w.change(leader, w.wishFor(g, change))
		w.run(5 * millisecond)
		w.crash(leader.n, true)
		w.net.healAll()
		w.runUntil(10*electionTime, func() bool { return w.leaderOf(g) != nil })
		w.run(w.between(0, second))
		w.start(leader.n)
		out := w.runUntil(20*electionTime, func() bool {
			l := w.leaderOf(g)
			return l != nil && l != next && l.status.ConfSafe && !inConf(g.conf(), next.id)
		})
		w.intact(t)
		require.True(t, out, "seed %d: %+v", seed, g.conf())
		g.mustServe(10 * electionTime)
		g.mustBeSettled()
		w.intact(t)
	}
}

// A leader applies a removal, alone, and dies for good. The others need the vote
// of the one that it removed, and it is there, because nobody was told that the
// change is done. Destroyed as soon as the leader had applied the change it would
// not be, and two of three could never elect.
//
// Property: R20 (red: the removed one destroyed when the leader has applied its removal)
func TestARemovedVoteIsNeededUntilAQuorumKnows(t *testing.T) {
	scene := func(seed uint64, early bool) *world {
		w := quietWith(t, seed, Options{Nodes: 4, Members: true})
		g := w.groups[0]
		leader := w.elected(t)
		w.run(100 * millisecond)
		out := g.kept[0]
		if out == leader {
			out = g.kept[1]
		}
		w.change(leader, w.wishFor(g, raftlog.Change{Remove: []raftlog.ReplicaID{out.id}}))
		w.runUntil(second, func() bool {
			// All have the entry, and nothing more of the leader gets away.
			have := !slices.ContainsFunc(g.kept, func(r *replica) bool { return r.said.last() < 3 })
			for i := range w.nodes {
				w.net.cut[leader.n.index][i] = have && i != leader.n.index
			}
			return !inConf(g.confAt(leader.members.at), out.id)
		})
		w.net.isolate(leader.n.index, true, true)
		w.run(millisecond)
		if early || w.changes[0].done {
			w.destroy(out)
		}
		w.run(w.between(0, electionTime))
		w.crash(leader.n, true)
		w.run(2 * electionTime)
		g.mustServe(10 * electionTime)
		return w
	}
	found := false
	for seed := uint64(1); seed <= 20; seed++ {
		scene(seed, false).intact(t)
		v := scene(seed, true).violation
		found = found || v != nil && v.Property == "R15"
	}
	require.True(t, found)
}

// Answers of a node's earlier stint in a group come when it is back under
// another id, with nothing: none of them vouches for it.
//
// Property: R12, R10 (red: the same id for both stints)
func TestAnswersOfAnEarlierStint(t *testing.T) {
	stint := func(t *testing.T, seed uint64, sameID bool) *world {
		w, leader, learner := grown(t, seed)
		if sameID {
			w.opts.Mutant = MutantSameStint
		}
		g := w.groups[0]
		var late []*pb.Message
		ask := func(ch raftlog.Change) {
			w.change(leader, w.wishFor(g, ch))
			w.runUntil(second, func() bool { return w.changes[len(w.changes)-1].done })
		}
		ask(raftlog.Change{Voters: []raftlog.ReplicaID{learner.id}})
		for range 5 {
			w.propose(leader, 16)
		}
		w.run(100 * millisecond)
		for i := range 40 { // what it said then
			m := &pb.Message{
				Type: pb.MsgAppResp.Enum(), From: new(uint64(learner.id)), To: new(uint64(leader.id)),
				Term: new(uint64(leader.status.Term)), Index: new(uint64(int(g.committed) + i)),
			}
			late = append(late, m)
		}
		ask(raftlog.Change{Remove: []raftlog.ReplicaID{learner.id}})
		w.destroy(learner)
		again := learner
		if sameID {
			w.comeBack(learner)
		} else {
			again = g.addReplica(w.nodes[3], false)
			w.reopen(again)
		}
		ask(raftlog.Change{Learners: []raftlog.ReplicaID{again.id}})
		ask(raftlog.Change{Voters: []raftlog.ReplicaID{again.id}})
		// The leader reaches one other voter of four: not a quorum.
		var one *replica
		for _, id := range voting(g) {
			if id != leader.id && id != again.id {
				one = g.byID(uint64(id))
			}
		}
		for i := range w.nodes {
			for j := range w.nodes {
				with := func(n int) bool { return n == leader.n.index || n == one.n.index }
				w.net.cut[i][j] = i != j && !(with(i) && with(j))
			}
		}
		w.propose(leader, 16)
		w.run(10 * millisecond)
		for _, m := range late {
			w.deliver(leader.n, event{r: leader, m: copyMessage(m)})
		}
		w.run(10 * millisecond)
		return w
	}
	for seed := uint64(1); seed <= 20; seed++ {
		w := stint(t, seed, false)
		w.intact(t)
		w.heal()
		w.groups[0].mustServe(10 * electionTime)
		w.intact(t)
	}
	require.NotNil(t, stint(t, 1, true).violation)
}
