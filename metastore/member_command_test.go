package metastore

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/raftlog"
)

// do applies commands that must be granted.
func (v memView) do(t *testing.T, commands ...command) (last any) {
	t.Helper()
	for _, c := range commands {
		value, err := v.decided(t, c)
		require.NoError(t, err, "%T %+v", c, c)
		last = value
	}
	return last
}

// refuses checks that a command is refused and, but for the newest type,
// changes nothing.
func (v memView) refuses(t *testing.T, c command) error {
	t.Helper()
	noted := newTx(v)
	noteType(noted, c.kind())
	v.commit(noted)
	before, err := stateHash(v)
	require.NoError(t, err)
	_, refusal := v.decided(t, c)
	require.Error(t, refusal, "%T %+v", c, c)
	after, err := stateHash(v)
	require.NoError(t, err)
	require.Equal(t, before, after, "%T %+v", c, c)
	requireSameError(t, refusal, decodeAnswer(encodeAnswer(answer{index: 1, err: refusal})).err)
	return refusal
}

// joins is the admission of a node whose name is free.
func joins(n int) admit {
	return admit{Admission{fmt.Sprint("node-", n), raftlog.Nonce{byte(n)}, fmt.Sprintf("node-%d:7942", n), NewestCommand, false, 0, 0}, Stamp(100 * n)}
}

// beats is a heartbeat of a node whose nonce is that of tests.
func beats(n int, stamp Stamp) heartbeats {
	return heartbeats{{Heartbeat{raftlog.NodeID(n), raftlog.Nonce{byte(n)}, NewestCommand}, stamp}}
}

// departs takes a member to the end of its way out.
func departs(n int) []command {
	node, nonce := raftlog.NodeID(n), raftlog.Nonce{byte(n)}
	return []command{setDeparture{node, nonce, Drains}, setDeparture{node, nonce, Leaves}, removeMember{node}}
}

func (v memView) liveness(n raftlog.NodeID) Liveness { return newTx(v).liveness(n) }

// TestVersionOneKnowsNothingOfVersionTwo: whatever is proposed, a cluster that
// was not raised stays what the first release can go on from.
//
// Property: C9 (red: decide without allowedAt; real older builds: internal/campaign -story upgrade)
func TestVersionOneKnowsNothingOfVersionTwo(t *testing.T) {
	for _, c := range goldenCommands() {
		if c.kind() <= typeSetVersion || c.kind() == typeRecover { // which raises it
			continue
		}
		v := seeded(t, testGenesis(3))
		err := v.refuses(t, c)
		require.Equal(t, &ClusterVersionError{Needs: c.kind().needs(), Has: 1}, err)
		require.ErrorIs(t, err, raftlog.ErrRetry)
	}
	v := seeded(t, testGenesis(3)).atTwo(t)
	v.do(t, setVersion{1}, setVersion{2}, setVersion{2})
	require.EqualValues(t, 2, newTx(v).cluster().Version, "it does not go back")
	require.ErrorIs(t, v.refuses(t, setVersion{0}), raftlog.ErrRefused)
	_, _, err := decide(newTx(v), setVersion{NewestVersion + 1})
	var newer *NewerStateError
	require.ErrorAs(t, err, &newer, "a version that this build does not know stops it")
}

func TestWhatABuildCanBePartOf(t *testing.T) {
	for newest, version := range map[CommandType]uint64{0: 1, typeCreateLimited: 1, typeSeed: 1, typeRecover: 1, typeEndHold: 2, NewestCommand: 3, NewestCommand + 1: 3} {
		require.Equal(t, version, VersionOf(newest), "%d", newest)
	}
	require.Equal(t, uint64(NewestVersion), VersionOf(NewestCommand))
	for version := uint64(firstVersion); version <= NewestVersion; version++ {
		require.Equal(t, version, VersionOf(NewestOf(version)))
	}
	for kind := typeGenesis; kind <= NewestCommand; kind++ {
		if kind != typeSetVersion && kind != typeRecover { // they raise the version
			require.LessOrEqual(t, kind, NewestOf(kind.needs()), "a build of version %d applies type %d", kind.needs(), kind)
		}
	}
}

// TestALifeGetsOneNodeID: however often it asks, and whatever it says the second
// time.
//
// Property: J5 (red: nonces not looked up)
func TestALifeGetsOneNodeID(t *testing.T) {
	v := seeded(t, testGenesis(3)).atTwo(t)
	first := v.do(t, joins(4)).(Member)
	require.Equal(t, Member{4, "node-4", raftlog.Nonce{4}, 14, "node-4:7942", Liveness{Stamp: 400, Newest: NewestCommand}}, first)
	moved := joins(4)
	moved.Addr, moved.Observer, moved.Stamp, moved.Newest = "elsewhere:1", true, 900, typeNoop
	require.Equal(t, first, v.do(t, moved), "as it is")
	v.do(t, setAddress{4, raftlog.Nonce{4}, "elsewhere:1"}, setDeparture{4, raftlog.Nonce{4}, Drains})
	again := v.do(t, joins(4)).(Member)
	require.Equal(t, "elsewhere:1", again.Addr, "a copy that comes late takes nothing back")
	require.Equal(t, Drains, again.Liveness.Departure)
	require.Equal(t, Member{5, "node-5", raftlog.Nonce{5}, 15, "node-5:7942", Liveness{Stamp: 500, Newest: NewestCommand}}, v.do(t, joins(5)))

	renamed := joins(4)
	renamed.Name = "other"
	var invalid *InvalidError
	require.ErrorAs(t, v.refuses(t, renamed), &invalid)
	require.Equal(t, "Admission.Name", invalid.Field)
	for field, change := range map[string]func(*admit){
		"Member.Name":  func(c *admit) { c.Name = "" },
		"Member.Nonce": func(c *admit) { c.Nonce = raftlog.Nonce{} },
		"Member.Addr":  func(c *admit) { c.Addr = strings.Repeat("x", 262) },
	} {
		c := joins(6)
		change(&c)
		require.ErrorAs(t, v.refuses(t, c), &invalid)
		require.Equal(t, field, invalid.Field)
	}
	older := joins(6)
	older.Newest = typeEndHold - 1
	require.Equal(t, &OlderReleaseError{typeEndHold - 1, typeEndHold}, v.refuses(t, older))
}

// TestANameIsTakenOverOnlyFromASilentLife: what is heard of the old life first
// shuts the new one out, for good.
//
// Property: J17 (red: the stamp was not compared; the refused nonce was not kept)
func TestANameIsTakenOverOnlyFromASilentLife(t *testing.T) {
	v := seeded(t, testGenesis(3)).atTwo(t)
	v.do(t, beats(3, 700))
	fresh := admit{Admission{"node-3", raftlog.Nonce{33}, "node-3:7942", NewestCommand, false, 0, 0}, 1000}
	require.ErrorIs(t, v.refuses(t, fresh), ErrNameTaken, "nobody judged the old life")
	fresh.Replaces, fresh.Seen = 2, 700
	require.ErrorIs(t, v.refuses(t, fresh), ErrNameTaken, "another one was judged")
	alike := fresh
	alike.Name, alike.Replaces = "Node-3", 3
	require.ErrorIs(t, v.refuses(t, alike), ErrNameTaken, "it differs only in the case of letters")

	fresh.Replaces = 3
	v.do(t, beats(3, 800)) // between the judgement and the admission
	_, err := v.decided(t, fresh)
	require.ErrorIs(t, err, ErrNonceRefused)
	require.ErrorIs(t, err, raftlog.ErrRefused)
	fresh.Seen = 800
	require.ErrorIs(t, v.refuses(t, fresh), ErrNonceRefused, "for good")
	require.Len(t, newTx(v).members(), 3)

	other := fresh
	other.Nonce = raftlog.Nonce{34} // another disk, after a silence
	got := v.do(t, other).(Member)
	require.Equal(t, raftlog.NodeID(3), got.Liveness.Replaces)
	require.Equal(t, raftlog.NodeID(4), got.Node)
	third := fresh
	third.Nonce = raftlog.Nonce{35}
	require.ErrorIs(t, v.refuses(t, third), ErrNameTaken, "the newest life has the name")
	third.Replaces, third.Seen = 4, 1000
	require.Equal(t, raftlog.NodeID(4), v.do(t, third).(Member).Liveness.Replaces)
}

// TestARemovedLifeNeverReturns: neither by its node id nor by its nonce. Its name
// does.
//
// Property: J17, D5, D7, H6 (red: no tombstone by nonce; none by node)
func TestARemovedLifeNeverReturns(t *testing.T) {
	v := seeded(t, testGenesis(3)).atTwo(t)
	v.do(t, joins(4))
	v.do(t, departs(4)...)
	removed := &RemovedError{4, "node-4"}
	require.Equal(t, removed, v.refuses(t, joins(4)), "a join that was delayed")
	require.Equal(t, removed, v.refuses(t, setAddress{4, raftlog.Nonce{4}, "back:1"}))
	require.Equal(t, removed, v.refuses(t, setDeparture{4, raftlog.Nonce{4}, Stays}))
	before, err := stateHash(v)
	require.NoError(t, err)
	require.Equal(t, []error{removed}, v.do(t, beats(4, 9000)))
	require.Equal(t, []error{removed}, v.do(t, markDead{{4, 400}}))
	v.do(t, removeMember{4}) // again: it is done
	after, err := stateHash(v)
	require.NoError(t, err)
	require.Equal(t, before, after)

	again := joins(4)
	again.Nonce = raftlog.Nonce{44}
	got := v.do(t, again).(Member)
	require.Equal(t, raftlog.NodeID(5), got.Node, "a new life under the name is a new node")
	require.Equal(t, raftlog.ReplicaID(15), got.Replica)
	require.Zero(t, got.Liveness.Replaces)
	require.Equal(t, removed, v.refuses(t, joins(4)), "the tombstone stays")
}

// Property: H6 (red: a heartbeat left the dead mark; took the departure back; one with the wrong nonce counted)
func TestHeartbeats(t *testing.T) {
	v := seeded(t, testGenesis(3)).atTwo(t)
	require.Zero(t, v.liveness(1), "a genesis has heard nobody")
	all := append(append(beats(1, 500), beats(2, 501)...), beats(7, 502)...)
	all = append(all, stampedHeartbeat{Heartbeat{3, raftlog.Nonce{9}, NewestCommand}, 503})
	require.Equal(t, []error{nil, nil, ErrMemberNotFound, ErrMemberNotFound}, v.do(t, all), "one does not stop the others")
	require.Equal(t, Liveness{Stamp: 500, Newest: NewestCommand}, v.liveness(1))
	require.Zero(t, v.liveness(3), "another life's nonce")

	v.do(t, markDead{{1, 500}}, setDeparture{1, raftlog.Nonce{1}, Drains})
	require.True(t, v.liveness(1).Dead)
	v.do(t, beats(1, 300))
	require.Equal(t, Liveness{Stamp: 501, Newest: NewestCommand, Departure: Drains}, v.liveness(1), "alive, still draining, and later than before whatever the leader's clock says")

	require.ErrorIs(t, v.refuses(t, heartbeats{}), raftlog.ErrRefused)
	require.ErrorIs(t, v.refuses(t, make(heartbeats, maxBatch+1)), raftlog.ErrRefused)
}

// Property: H4 (red: the stamp was not compared; a lower one of a leader whose clock is behind did not count)
func TestADeadMarkOfAnOlderHeartbeatIsRefused(t *testing.T) {
	v := seeded(t, testGenesis(3)).atTwo(t)
	v.do(t, beats(1, 500))
	each := v.do(t, markDead{{1, 400}, {2, 0}, {7, 0}}).([]error)
	require.ErrorIs(t, each[0], ErrStale)
	require.NoError(t, each[1], "it was never heard, which is what was judged")
	require.Equal(t, ErrMemberNotFound, each[2])
	require.False(t, v.liveness(1).Dead)
	require.True(t, v.liveness(2).Dead)
	v.do(t, beats(1, 450)) // of a leader whose clock is behind
	require.ErrorIs(t, v.do(t, markDead{{1, 500}}).([]error)[0], ErrStale)
	require.Equal(t, []error{nil}, v.do(t, markDead{{1, 501}}))
	require.Equal(t, []error{nil}, v.do(t, markDead{{1, 501}}), "again")
	require.True(t, v.liveness(1).Dead)
	require.ErrorIs(t, v.refuses(t, markDead{}), raftlog.ErrRefused)
}

// TestTheWayOut: a member can be called back until it leaves; only then may it
// be taken out of the configuration and be removed.
//
// Property: D1 (red: a member that stays could be removed; one that leaves could be called back; the configuration was not looked at)
func TestTheWayOut(t *testing.T) {
	v := seeded(t, testGenesis(3)).atTwo(t)
	depart := func(d Departure) setDeparture { return setDeparture{3, raftlog.Nonce{3}, d} }
	require.ErrorIs(t, v.refuses(t, depart(Leaves)), ErrNotDraining)
	require.ErrorIs(t, v.refuses(t, removeMember{3}), ErrNotLeaving)
	v.do(t, depart(Drains), depart(Drains), depart(DrainsForced), depart(Stays))
	require.ErrorIs(t, v.refuses(t, depart(Leaves)), ErrNotDraining, "it was called back first")
	v.do(t, depart(DrainsForced))
	require.ErrorIs(t, v.refuses(t, removeMember{3}), ErrNotLeaving)
	v.do(t, depart(Leaves), depart(Leaves))
	for _, d := range []Departure{Stays, Drains, DrainsForced} {
		require.ErrorIs(t, v.refuses(t, depart(d)), ErrMemberLeaving)
	}
	require.ErrorIs(t, v.refuses(t, setDeparture{3, raftlog.Nonce{9}, Drains}), ErrMemberNotFound)
	require.ErrorIs(t, v.refuses(t, setDeparture{8, raftlog.Nonce{8}, Drains}), ErrMemberNotFound)
	require.ErrorIs(t, v.refuses(t, setDeparture{3, raftlog.Nonce{3}, 4}), raftlog.ErrRefused)

	for _, c := range []raftlog.ConfState{
		{Voters: []raftlog.ReplicaID{11, 12, 13}}, {Voters: []raftlog.ReplicaID{11}, Learners: []raftlog.ReplicaID{13}},
		{Voters: []raftlog.ReplicaID{11}, VotersOutgoing: []raftlog.ReplicaID{11, 13}},
		{Voters: []raftlog.ReplicaID{11}, VotersOutgoing: []raftlog.ReplicaID{11, 13}, LearnersNext: []raftlog.ReplicaID{13}},
	} {
		v.configured(t, c)
		require.ErrorIs(t, v.refuses(t, removeMember{3}), ErrMemberInUse, "%+v", c)
	}
	v.configured(t, raftlog.ConfState{Voters: []raftlog.ReplicaID{11, 12}})
	v.do(t, removeMember{3})
	require.Len(t, newTx(v).members(), 2)
	require.ErrorIs(t, v.refuses(t, removeMember{9}), ErrMemberNotFound)
}

// Property: D6 (red: the load was not looked at; the target of a move did not count)
func TestAMemberThatHoldsSomethingIsNotRemoved(t *testing.T) {
	v := seeded(t, testGenesis(3)).atTwo(t)
	v.do(t, joins(4), createTopic{inc(1), "orders", TopicConfig{Partitions: 1, Replicas: 1}}, createTopic{inc(2), "mails", TopicConfig{Partitions: 1, Replicas: 1}})
	on := newTx(v).partition(inc(1), 0).Replicas[0]
	to := v.do(t, startMove{MoveRequest{inc(1), 0, 0, 4, on.Replica}, 1}).(Partition).Target.Add
	for _, n := range []raftlog.NodeID{on.Node, 4} {
		v.do(t, setDeparture{n, raftlog.Nonce{byte(n)}, Drains}, setDeparture{n, raftlog.Nonce{byte(n)}, Leaves})
	}
	v.configured(t, raftlog.ConfState{Voters: []raftlog.ReplicaID{13}})
	require.ErrorIs(t, v.refuses(t, removeMember{4}), ErrMemberInUse, "a move brings something to it")
	require.ErrorIs(t, v.refuses(t, removeMember{on.Node}), ErrMemberInUse)
	v.do(t, finishMove{endMove{inc(1), 0, 1, to.Replica}}, removeMember{on.Node})
	require.ErrorIs(t, v.refuses(t, removeMember{4}), ErrMemberInUse)
	v.do(t, topicDeleting{inc(1)}, topicDeleted{inc(1)}, removeMember{4})
}

// TestPlacementLeavesOutWhoIsOnTheWayOut: and the dead, as long as there are
// enough others.
//
// Property: M1 (red: draining members got replicas; dead ones did)
func TestPlacementLeavesOutWhoIsOnTheWayOut(t *testing.T) {
	create := func(n int, config TopicConfig) createTopic {
		return createTopic{inc(n), fmt.Sprint("topic-", n), config}
	}
	nodes := func(topic any) map[raftlog.NodeID]bool {
		on := map[raftlog.NodeID]bool{}
		for _, p := range topic.(*Topic).Partitions {
			for _, a := range p.Replicas {
				on[a.Node] = true
			}
		}
		return on
	}
	v := seeded(t, testGenesis(5)).atTwo(t)
	v.do(t, setDeparture{5, raftlog.Nonce{5}, Drains}, markDead{{4, 0}})
	require.Equal(t, map[raftlog.NodeID]bool{1: true, 2: true, 3: true}, nodes(v.do(t, create(1, TopicConfig{Partitions: 20}))))

	topic := v.do(t, create(2, TopicConfig{Partitions: 20, Replicas: 4})).(*Topic)
	require.Len(t, nodes(topic), 4, "a dead one makes up the number")
	for _, p := range topic.Partitions {
		require.NotEqual(t, raftlog.NodeID(4), p.Replicas[0].Node, "and leads nothing")
	}
	require.ErrorIs(t, v.refuses(t, create(3, TopicConfig{Replicas: 5})), ErrTooFewNodes, "one may stay, or be replaced")
	var invalid *InvalidError
	require.ErrorAs(t, v.refuses(t, create(3, TopicConfig{Replicas: 6})), &invalid)
	require.Equal(t, "1 to 5, the number of members that can hold one", invalid.Allowed)

	v.do(t, markDead{{1, 0}, {2, 0}})
	err := v.refuses(t, create(3, TopicConfig{Replicas: 3}))
	require.ErrorIs(t, err, ErrTooFewNodes)
	require.ErrorIs(t, err, raftlog.ErrRetry)
	require.Equal(t, map[raftlog.NodeID]bool{3: true}, nodes(v.do(t, create(3, TopicConfig{Replicas: 1}))))
	v.do(t, setDeparture{4, raftlog.Nonce{4}, Drains}, setDeparture{3, raftlog.Nonce{3}, Drains})
	require.ErrorIs(t, v.refuses(t, create(4, TopicConfig{})), ErrTooFewNodes, "three is the default still")
	v.do(t, setDeparture{4, raftlog.Nonce{4}, Stays}, setDeparture{3, raftlog.Nonce{3}, Stays})
	v.do(t, beats(1, 5), beats(2, 5), setDeparture{5, raftlog.Nonce{5}, Stays})
	require.Equal(t, map[raftlog.NodeID]bool{1: true, 2: true, 3: true, 5: true}, nodes(v.do(t, create(4, TopicConfig{Partitions: 20}))))
}
