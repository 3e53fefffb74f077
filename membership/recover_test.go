package membership

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/raftlog"
)

// surveyOf is a survey of node n, which has replica n of group 1 among five, and
// these replicas of partitions.
func surveyOf(n uint64, last raftlog.Index, logs ...raftlog.LogEnd) Survey {
	s := Survey{
		Version: 1, Cluster: "orders", ClusterID: ID{0xc1}, Name: string(rune('a' + n - 1)), Node: raftlog.NodeID(n), Nonce: ID{byte(n)},
		Replica: raftlog.ReplicaID(n), Metadata: SurveyedMetadata{Begun: true, Topics: []SurveyedTopic{{Name: "orders"}}},
	}
	s.Logs = append(logs, end(1, n, last, 1, 2, 3, 4, 5))
	for m := range uint64(5) {
		s.Metadata.Members = append(s.Metadata.Members, SurveyedMember{Node: raftlog.NodeID(m + 1), Nonce: ID{byte(m + 1)}, Replica: raftlog.ReplicaID(m + 1), Addr: "host:1"})
	}
	return s
}

func end(group, replica uint64, last raftlog.Index, voters ...raftlog.ReplicaID) raftlog.LogEnd {
	return raftlog.LogEnd{
		Group: raftlog.GroupID(group), Replica: raftlog.ReplicaID(replica), Term: 2, Commit: 1, Last: last,
		Terms: []raftlog.TermStart{{First: 1, Term: 2}}, Confs: []raftlog.ConfState{{Voters: voters}},
	}
}

// at says where a partition is: replica 10n on node n.
func at(group uint64, nodes ...uint64) SurveyedPartition {
	p := SurveyedPartition{Group: raftlog.GroupID(group)}
	for _, n := range nodes {
		r := raftlog.ReplicaID(10 * n)
		p.First = append(p.First, r)
		p.Replicas = append(p.Replicas, SurveyedReplica{Replica: r, Node: raftlog.NodeID(n)})
	}
	return p
}

// unopened is a partition with replicas that no journal knows.
func unopened(group uint64, nodes ...uint64) SurveyedPartition {
	p := at(group, nodes...)
	for i := range p.Replicas {
		p.Replicas[i].Replica += 1000
		p.First[i] += 1000
	}
	return p
}

// TestPlanOfARecovery: what goes on, what is set aside, what is lost.
func TestPlanOfARecovery(t *testing.T) {
	a := surveyOf(1, 20, end(2, 10, 7, 10, 30, 40), end(3, 10, 7, 10, 20, 30), end(4, 10, 7, 10, 20, 30, 40, 50))
	b := surveyOf(2, 30, end(3, 20, 9, 10, 20, 30), end(4, 20, 9, 10, 20, 30, 40, 50), end(9, 20, 4, 20, 30, 40))
	b.Metadata.Topics[0].Partitions = []SurveyedPartition{
		at(2, 1, 3, 4), at(3, 1, 2, 3), at(4, 1, 2, 3, 4, 5), at(5, 3, 4, 5), unopened(6, 1, 2, 3), at(7, 1, 3, 4), at(8),
		{Group: 9, Replicas: []SurveyedReplica{{Replica: 21, Node: 2}, {Replica: 30, Node: 3}}, First: []raftlog.ReplicaID{20, 30}},
	}
	b.SegmentBytes = 1 << 20
	plan, err := PlanRecovery([]Survey{b, a}, ID{7}, 1000)
	require.NoError(t, err)
	require.NoError(t, plan.Check())
	require.Equal(t, [2]uint64{0, 1}, [2]uint64{plan.From, plan.To})
	require.Equal(t, []PlannedGroup{{"orders", 0, 2, 10, 1}, {"orders", 2, 4, 20, 2}}, plan.Forced)
	require.Equal(t, 2, plan.Kept, "a majority of group 3 is left, and of group 6, which nobody has opened")
	lost := []raftlog.GroupID{}
	for _, g := range plan.Lost {
		lost = append(lost, g.Group)
	}
	require.Equal(t, []raftlog.GroupID{5, 7, 8, 9}, lost, "a replica that the metadata do not place does not count")
	require.Equal(t, []raftlog.NodeID{3, 4, 5}, []raftlog.NodeID{plan.LeftBehind[0].Node, plan.LeftBehind[1].Node, plan.LeftBehind[2].Node})

	first, second := plan.Nodes[0], plan.Nodes[1]
	require.False(t, first.GoesOn)
	require.Equal(t, raftlog.ReplicaID(1<<48+1), first.Replica)
	require.ElementsMatch(t, []raftlog.ReplicaID{1, 10}, first.SetAside)
	require.Equal(t, []ForcedReplica{{2, 10, 7, 2, 6, 0, 2 + 1<<32}}, first.Forced)
	require.True(t, second.GoesOn)
	require.Equal(t, raftlog.ReplicaID(2), second.Replica)
	require.Equal(t, []raftlog.ReplicaID{20}, second.SetAside, "of group 9")
	require.Equal(t, []ForcedReplica{{1, 2, 30, 2, 29, 0, 2 + 1<<32}, {4, 20, 9, 2, 8, 0, 2 + 1<<32}}, second.Forced)

	s := plan.State(State{Joined: &Joined{Node: 2}}, &second)
	place, ok := s.Place("b", raftlog.Nonce{2})
	require.True(t, ok)
	require.Equal(t, Joined{ClusterID: raftlog.ClusterID{0xc1}, Epoch: 1, Node: 2, Replica: 2, SegmentBytes: 1 << 20}, place)
	require.Len(t, s.Recovered.Members, 2)
	text, err := json.Marshal(plan)
	require.NoError(t, err)
	var again RecoveryPlan
	require.NoError(t, json.Unmarshal(text, &again))
	require.Equal(t, *plan, again)
}

// TestRecoveriesThatAreRefused: each with its code, and a reason.
func TestRecoveriesThatAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(s []Survey) []Survey
		code   RecoveryRefusal
	}{
		"nothing was surveyed": {func([]Survey) []Survey { return nil }, RefusedNothing},
		"a majority is left":   {func(s []Survey) []Survey { return append(s, surveyOf(3, 20)) }, RefusedMajority},
		"another cluster":      {func(s []Survey) []Survey { s[1].ClusterID = ID{9}; return s }, RefusedMixed},
		"another epoch":        {func(s []Survey) []Survey { s[1].Epoch = 1; return s }, RefusedMixed},
		"another way to the epoch": {func(s []Survey) []Survey {
			s[0].Plan, s[1].Plan = ID{1}, ID{2}
			return append([]Survey{surveyOf(3, 20)}, s...)
		}, RefusedMixed},
		"one that was fenced":        {func(s []Survey) []Survey { s[1].Fenced = 1; return s }, RefusedFenced},
		"one that is to be finished": {func(s []Survey) []Survey { s[1].Fenced, s[1].Awaits = 1, ID{7}; return s }, RefusedFenced},
		"another form":               {func(s []Survey) []Survey { s[1].Version = 2; return s }, RefusedMixed},
		"a node that is in none":     {func(s []Survey) []Survey { s[1].Node = 0; return s }, RefusedMixed},
		"one directory twice":        {func(s []Survey) []Survey { return append(s, s[0]) }, RefusedMixed},
		"metadata of another epoch":  {func(s []Survey) []Survey { s[1].Metadata.Epoch = 1; return s }, RefusedMixed},
		"no metadata":                {func(s []Survey) []Survey { s[1].Metadata = SurveyedMetadata{}; return s }, RefusedNothing},
		"damaged metadata alone":     {func(s []Survey) []Survey { s[1].Damaged = true; return s[1:] }, RefusedNothing},
		"who is no member":           {func(s []Survey) []Survey { s[0].Nonce = ID{77}; return s }, RefusedStranger},
		"a log that is part of none": {func(s []Survey) []Survey { s[0].Logs, s[1].Logs = nil, nil; return s }, RefusedNothing},
	} {
		_, err := PlanRecovery(c.change([]Survey{surveyOf(1, 20), surveyOf(2, 30)}), ID{7}, 1000)
		var refused *RecoveryError
		require.ErrorAs(t, err, &refused, name)
		require.Equal(t, c.code, refused.Code, "%s: %s", name, refused.Reason)
		require.NotEmpty(t, refused.Reason)
		require.ErrorIs(t, err, raftlog.ErrRefused)
	}
	three := []Survey{surveyOf(1, 20), surveyOf(2, 30), surveyOf(3, 20, end(2, 30, 7, 30, 40, 50))}
	for i := range three {
		three[i].Metadata.Topics[0].Partitions = []SurveyedPartition{at(2, 3, 4, 5)}
	}
	plan, err := PlanRecovery(three, ID{7}, 1000)
	require.NoError(t, err, "a majority is left, but of a partition")
	require.Equal(t, []PlannedGroup{{"orders", 0, 2, 30, 3}}, plan.Forced)

	three = []Survey{surveyOf(1, 20), surveyOf(2, 30), surveyOf(3, 25)}
	three[1].Damaged, three[1].Metadata = true, SurveyedMetadata{}
	plan, err = PlanRecovery(three, ID{7}, 1000)
	require.NoError(t, err, "who has damaged metadata is not counted")
	for _, n := range plan.Nodes {
		require.Equal(t, n.Node == 3, n.GoesOn, "and they do not go on")
		require.Equal(t, n.Node != 3, len(n.SetAside) == 1)
	}

	plan, err = PlanRecovery([]Survey{surveyOf(1, 20), surveyOf(2, 30)}, ID{7}, 1000)
	require.NoError(t, err)
	for name, change := range map[string]func(p *RecoveryPlan){
		"form":         func(p *RecoveryPlan) { p.Version = 2 },
		"epochs":       func(p *RecoveryPlan) { p.To++ },
		"nobody":       func(p *RecoveryPlan) { p.Nodes[1].GoesOn = false },
		"both":         func(p *RecoveryPlan) { p.Nodes[0].GoesOn = true },
		"one id twice": func(p *RecoveryPlan) { p.Nodes[0].Replica = p.Nodes[1].Replica },
	} {
		p := *plan
		p.Nodes = slices.Clone(plan.Nodes)
		change(&p)
		require.ErrorIs(t, p.Check(), raftlog.ErrRefused, name)
	}
	require.ErrorIs(t, (*RecoveryPlan)(nil).Check(), raftlog.ErrRefused)
}

// Property: R33 (red: Gone left out: the plan called it certain)
func TestAPlanSaysWhatOnlyDamagedMetadataHad(t *testing.T) {
	// Three of five are left. The second has the longest log, and knows that it is
	// committed; but what it made of it is damaged.
	three := []Survey{surveyOf(1, 20), surveyOf(2, 30), surveyOf(3, 25)}
	three[1].Logs[0].Commit = 30
	three[1].Damaged, three[1].Metadata = true, SurveyedMetadata{}
	plan, err := PlanRecovery(three, ID{7}, 1000)
	require.NoError(t, err)
	require.True(t, plan.Nodes[2].GoesOn)
	require.Equal(t, []ForcedReplica{{Group: 1, Replica: 3, Last: 25, LastTerm: 2, Gone: 5, Term: 2 + 1<<32}}, plan.Nodes[2].Forced)
}

// TestARecoveredLifeHandsOutNoGenesis: who comes too late for it joins.
func TestARecoveredLifeHandsOutNoGenesis(t *testing.T) {
	m := NewMember("orders", "a", raftlog.Nonce{1}, three, recoveredState(sampleFounding()))
	for _, kind := range []AskKind{AskGenesis, AskProbe} {
		answer, changed := m.Answer(Ask{Kind: kind, Name: "b", Nonce: raftlog.Nonce{2}, Hash: m.hash})
		require.False(t, changed)
		require.Equal(t, AnswerMember, answer.Kind)
		require.Nil(t, answer.Founding)
	}
}
