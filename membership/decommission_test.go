package membership

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// Property: D1, D2, D3, D4, J18 (red: partitions not awaited; no floor; an unanswered question taken for zero; the leader marked itself; the leave of a marked one always forced; never forced)
func TestNextStep(t *testing.T) {
	zero := Backlog{Known: true}
	at := func(n, voters, leaver int, d metastore.Departure, change func(f *Facts, k *Known)) *Facts {
		f := factsOf(n, voters)
		k := &f.Members[leaver-1]
		k.Liveness.Departure = d
		change(f, k)
		return f
	}
	none := func(*Facts, *Known) {}
	leave := func(r int) raftlog.Change { return raftlog.Change{Remove: []raftlog.ReplicaID{replicaOf(r)}} }
	for _, c := range []struct {
		name   string
		node   raftlog.NodeID
		facts  *Facts
		b      Backlog
		want   Step
		change raftlog.Change
		why    string
	}{
		{"who stays", 4, at(4, 4, 4, metastore.Stays, none), zero, StepNone, raftlog.Change{}, ""},
		{"who is no member", 9, factsOf(3, 3), zero, StepNone, raftlog.Change{}, ""},
		{"asked of who does not lead", 4, at(4, 4, 4, metastore.Drains, func(f *Facts, _ *Known) { f.Leads = false }), zero, StepNone, raftlog.Change{}, ""},
		{"partitions first", 4, at(4, 4, 4, metastore.Drains, func(_ *Facts, k *Known) { k.Assigned = 2 }), Backlog{}, StepMove, raftlog.Change{}, "2 partition"},
		{"then the backlog: not asked yet", 4, at(4, 4, 4, metastore.Drains, none), Backlog{}, StepBacklog, raftlog.Change{}, "not said"},
		{"not zero", 4, at(4, 4, 4, metastore.Drains, none), Backlog{true, true, 7}, StepBacklog, raftlog.Change{}, "7 bytes"},
		{"then the mark", 4, at(4, 4, 4, metastore.Drains, none), zero, StepMark, raftlog.Change{}, ""},
		{"then the configuration", 4, at(4, 4, 4, metastore.Leaves, none), Backlog{}, StepLeave, leave(4), ""},
		{"not while a majority may need its vote", 4, at(4, 3, 4, metastore.Leaves, func(f *Facts, k *Known) {
			k.Seat, f.ConfSafe = SeatNone, false
		}), Backlog{}, StepWait, raftlog.Change{}, "durably"},
		{"then the record", 4, at(4, 3, 4, metastore.Leaves, func(f *Facts, k *Known) { k.Seat = SeatNone }), Backlog{}, StepRemove, raftlog.Change{}, ""},
		{"one that was never seated", 4, at(4, 3, 4, metastore.Drains, func(f *Facts, k *Known) { k.Seat = SeatNone }), zero, StepMark, raftlog.Change{}, ""},

		// D2: the floor.
		{"three voters", 3, at(3, 3, 3, metastore.Drains, none), zero, StepWait, raftlog.Change{}, "at least 3"},
		{"three voters, forced", 3, at(3, 3, 3, metastore.DrainsForced, none), zero, StepMark, raftlog.Change{}, ""},
		{"a learner counts to no floor", 4, at(4, 3, 4, metastore.Drains, none), zero, StepMark, raftlog.Change{}, ""},
		{"three voters and a standby, which takes the vote", 3, at(4, 3, 3, metastore.Leaves, none), zero, StepLeave,
			raftlog.Change{Voters: []raftlog.ReplicaID{104}, Remove: []raftlog.ReplicaID{103}}, ""},
		// the mark counted on a vote that does not come yet
		{"a standby, of a new leader", 3, at(4, 3, 3, metastore.Leaves, func(f *Facts, _ *Known) { f.LedFor = 0 }), zero, StepWait, raftlog.Change{}, "about to get its vote"},
		{"a standby that does not ask", 3, at(4, 3, 3, metastore.Leaves, func(f *Facts, _ *Known) { f.Members[3].Abstains = true }), zero, StepWait, raftlog.Change{}, "about to get its vote"},
		{"a standby that died since the mark", 3, at(4, 3, 3, metastore.Leaves, func(f *Facts, _ *Known) { dead(&f.Members[3]) }), zero, StepLeave, leave(3), ""},
		{"a learner that takes another one's vote", 3, at(4, 3, 3, metastore.Leaves, func(f *Facts, _ *Known) { f.Members[3].Liveness.Replaces = 2 }), zero, StepLeave, leave(3), ""},
		{"none was there: it was forced", 3, at(3, 3, 3, metastore.Leaves, none), zero, StepLeave, leave(3), ""},
		{"another one is leaving", 4, at(4, 4, 4, metastore.Drains, func(f *Facts, _ *Known) { f.Members[2].Liveness.Departure = metastore.Leaves }), zero, StepWait, raftlog.Change{}, "2 voters would be left"},
		{"two at once of five", 5, at(5, 5, 5, metastore.Drains, func(f *Facts, _ *Known) { f.Members[3].Liveness.Departure = metastore.Leaves }), zero, StepMark, raftlog.Change{}, ""},
		{"the last voter, forced", 1, at(1, 1, 1, metastore.DrainsForced, none), zero, StepWait, raftlog.Change{}, "last voter"},
		{"too few would be alive, forced or not", 3, at(4, 4, 3, metastore.DrainsForced, func(f *Facts, _ *Known) { dead(&f.Members[1]); dead(&f.Members[3]) }), zero, StepWait, raftlog.Change{}, "alive"},

		// D3: a question without an answer.
		{"dead and asked", 4, at(4, 4, 4, metastore.Drains, func(_ *Facts, k *Known) { dead(k) }), Backlog{}, StepBacklog, raftlog.Change{}, "force"},
		{"dead and forced", 4, at(4, 4, 4, metastore.DrainsForced, func(_ *Facts, k *Known) { dead(k) }), Backlog{Asked: true}, StepMark, raftlog.Change{}, ""},
		{"forced, and not even asked", 4, at(4, 4, 4, metastore.DrainsForced, func(_ *Facts, k *Known) { dead(k) }), Backlog{}, StepBacklog, raftlog.Change{}, "not said"},
		{"forced, and it has produces to answer", 4, at(4, 4, 4, metastore.DrainsForced, none), Backlog{true, true, 7}, StepBacklog, raftlog.Change{}, "7 bytes"},
		{"forced, and it does not answer", 4, at(4, 4, 4, metastore.DrainsForced, none), Backlog{Asked: true}, StepMark, raftlog.Change{}, ""},

		// D4: the leader.
		{"the leader hands over", 1, at(4, 4, 1, metastore.Drains, none), zero, StepTransfer, raftlog.Change{}, ""},
		{"not before it could go", 1, at(3, 3, 1, metastore.Drains, none), zero, StepWait, raftlog.Change{}, "at least 3"},
		{"not before its backlog is delivered", 1, at(4, 4, 1, metastore.Drains, none), Backlog{}, StepBacklog, raftlog.Change{}, ""},
		{"who became the leader after it was marked", 1, at(4, 4, 1, metastore.Leaves, none), Backlog{}, StepTransfer, raftlog.Change{}, ""},
		{"while joint", 4, at(4, 4, 4, metastore.Leaves, func(f *Facts, _ *Known) { f.Conf.VotersOutgoing = f.Conf.Voters }), zero, StepWait, raftlog.Change{}, "joint"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := NextStep(c.facts, c.node, c.b)
			require.Equal(t, c.want, got.Step, "%v %s", got.Step, got.Reason)
			require.Equal(t, c.change, got.Change)
			require.Contains(t, got.Reason, c.why)
			require.NotEmpty(t, got.Step.String())
		})
	}
}

// Property: J17 (red: a life that speaks was sent off)
func TestAReplacedLifeGoesByItself(t *testing.T) {
	// d is the new life of c, which votes and is silent.
	f := factsOf(4, 3)
	c, d := &f.Members[2], &f.Members[3]
	d.Name, d.Liveness.Replaces = "c", c.Node
	c.Silent, c.Assigned = time.Minute, 5
	next := func() Next { return NextStep(f, c.Node, Backlog{}) }

	require.Equal(t, StepDrain, next().Step)
	c.Silent = time.Second
	require.Equal(t, StepWait, next().Step, "it speaks")
	c.Silent, c.Liveness.Departure = time.Minute, metastore.Drains
	require.Equal(t, StepMark, next().Step, "nobody is there to be asked")
	c.Liveness.Departure = metastore.Leaves
	require.Contains(t, next().Reason, "vote passes", "by Promote")
	require.Equal(t, StatusPromoted, Promote(f, d.Node, d.Nonce).Status)

	d.Liveness.Observer = true // no heir
	require.Equal(t, raftlog.Change{Remove: []raftlog.ReplicaID{103}}, next().Change)
	c.Silent = time.Second
	require.Equal(t, StepWait, next().Step, "it speaks")

	c.Seat = SeatNone
	require.Equal(t, StepMove, next().Step, "its partitions")
	c.Assigned = 0
	require.Equal(t, StepRemove, next().Step)
}

// Property: D2 (red: the facts themselves changed)
func TestPlanDecommission(t *testing.T) {
	steps := func(f *Facts, node raftlog.NodeID, force bool) Plan {
		before := f.Members[node-1]
		p, err := PlanDecommission(f, node, force)
		require.NoError(t, err)
		require.Equal(t, before, f.Members[node-1], "a plan changes nothing")
		return p
	}
	require.Equal(t, Plan{Node: 4, Steps: []Step{StepMove, StepBacklog, StepMark, StepLeave, StepRemove}},
		steps(factsOf(4, 4).with(func(f *Facts) { f.Members[3].Assigned = 3 }), 4, false))
	require.Equal(t, Plan{Node: 1, Steps: []Step{StepBacklog, StepTransfer, StepMark, StepLeave, StepRemove}}, steps(factsOf(4, 4), 1, false))
	require.Equal(t, Plan{Node: 3, Steps: []Step{StepBacklog, StepMark, StepLeave, StepRemove}, Blocked: []Block{
		{BlockVoters, "2 voters would be left, at least 3 must be: add a node, or force it"},
	}}, steps(factsOf(3, 3), 3, false))
	require.Equal(t, []Step{StepBacklog, StepMark, StepLeave, StepRemove}, steps(factsOf(3, 3), 3, true).Steps)
	dying := factsOf(4, 4).with(func(f *Facts) { dead(&f.Members[3]) })
	require.Len(t, steps(dying, 4, false).Blocked, 1)
	require.Empty(t, steps(dying, 4, true).Blocked)
	// One that has joined is not caught up yet, and gets its vote by itself: nobody
	// has to do anything.
	soon := factsOf(4, 3).with(func(f *Facts) { f.Members[2].Liveness.Departure, f.Members[3].CaughtUp = metastore.Drains, false })
	next := NextStep(soon, 3, Backlog{true, true, 0})
	require.Equal(t, Next{Step: StepWait, Reason: "2 voters would be left, at least 3 must be: one that has joined is about to get its vote"}, next)
	for _, never := range []func(k *Known){
		dead, func(k *Known) { k.Liveness.Observer = true }, func(k *Known) { k.Unreachable = 0 }, func(k *Known) { k.Liveness.Departure = metastore.Drains },
	} {
		f := factsOf(4, 3).with(func(f *Facts) { f.Members[2].Liveness.Departure, f.Members[3].CaughtUp = metastore.Drains, false })
		never(&f.Members[3])
		require.Equal(t, BlockVoters, NextStep(f, 3, Backlog{true, true, 0}).Blocked)
	}
	require.Equal(t, "1 voter would be left, at least 3 must be: add a node, or force it", steps(factsOf(2, 2), 2, false).Blocked[0].Reason)
	joint := factsOf(4, 4).with(func(f *Facts) { f.Conf.VotersOutgoing = f.Conf.Voters })
	require.Equal(t, BlockBusy, steps(joint, 4, false).Blocked[0].Code)
	require.Contains(t, steps(joint, 4, false).Blocked[0].Reason, "joint")

	codes := func(p Plan) (codes []BlockCode) {
		for _, b := range p.Blocked {
			codes = append(codes, b.Code)
		}
		return codes
	}
	both := factsOf(3, 3).with(func(f *Facts) { dead(&f.Members[2]) })
	require.Equal(t, []BlockCode{BlockDead, BlockVoters}, codes(steps(both, 3, false)), "all that a person has to do")
	require.Empty(t, codes(steps(both, 3, true)))
	two := factsOf(4, 4).with(func(f *Facts) { f.Members[3].Liveness.Departure = metastore.Drains })
	require.Equal(t, []BlockCode{BlockVoters}, codes(steps(two, 3, false)), "another one goes before")
	require.Empty(t, codes(steps(two, 4, false)), "which is not held up by who stays")
	require.Equal(t, []BlockCode{BlockLastVoter}, codes(steps(factsOf(1, 1), 1, true)))
	few := factsOf(4, 4).with(func(f *Facts) { dead(&f.Members[1]); dead(&f.Members[2]) })
	require.Equal(t, []BlockCode{BlockQuorum}, codes(steps(few, 4, true)))

	_, err := PlanDecommission(factsOf(3, 3), 9, false)
	require.ErrorIs(t, err, ErrNoMember)
	names := map[string]bool{}
	for b := BlockVoters; b <= BlockMajority; b++ {
		require.False(t, names[b.String()])
		names[b.String()] = true
	}
	require.Equal(t, raftlog.OutcomeRefused, raftlog.OutcomeOf(err))
}

// Property: D6 (red: assignments not asked; a member forgotten)
func TestForget(t *testing.T) {
	f := factsOf(4, 4)
	f.Conf.Learners = []raftlog.ReplicaID{170}
	f.Conf.Voters = append(f.Conf.Voters, 171)
	c, err := Forget(f, 170, 0)
	require.NoError(t, err)
	require.Equal(t, raftlog.Change{Remove: []raftlog.ReplicaID{170}}, c)
	c, err = Forget(f, 171, 0)
	require.NoError(t, err)
	require.Equal(t, raftlog.Change{Remove: []raftlog.ReplicaID{171}}, c)

	var refused *ForgetError
	for _, r := range []struct {
		replica  raftlog.ReplicaID
		assigned uint64
	}{{104, 0}, {170, 1}, {199, 0}} {
		_, err = Forget(f, r.replica, r.assigned)
		require.ErrorAs(t, err, &refused)
		require.ErrorIs(t, err, raftlog.ErrRefused)
	}
	dead(&f.Members[1])
	dead(&f.Members[2])
	_, err = Forget(f, 171, 0)
	require.ErrorIs(t, err, raftlog.ErrRetry, "two of four would be alive")
	f.Conf.VotersOutgoing = f.Conf.Voters
	_, err = Forget(f, 170, 0)
	require.ErrorIs(t, err, raftlog.ErrRetry)
}

// What any member tells from the metadata is what the leader finds, but for what
// only the leader knows.
func TestOutline(t *testing.T) {
	f := factsOf(5, 4)
	var members []metastore.Member
	for i := range f.Members {
		members = append(members, f.Members[i].Member)
	}
	load := func(raftlog.NodeID) uint64 { return 2 }
	plan := func(force bool) Plan {
		p, err := PlanDecommission(Outline(Rules{MinVoters: 4}, members, f.Conf, 1, load), 4, force)
		require.NoError(t, err)
		return p
	}
	require.Equal(t, Plan{Node: 4, Steps: []Step{StepMove, StepBacklog, StepMark, StepLeave, StepRemove}}, plan(false), "a learner takes the vote")
	members[4].Liveness.Dead = true
	require.Equal(t, BlockVoters, plan(false).Blocked[0].Code)
	require.Empty(t, plan(true).Blocked)
	members[3].Liveness.Dead = true
	require.Equal(t, BlockDead, plan(false).Blocked[0].Code)
}
