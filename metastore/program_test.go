package metastore

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/stelelog/stele/raftlog"
)

// program is a random program of commands over a state, its catalog and the
// model of it.
type program struct {
	*rapid.T
	model   *model
	state   memView
	catalog *catalog
	index   raftlog.Index
}

// node draws a node id that is, was, or never was a member's; mostly one of
// those that want says something of, if there are any.
func (p *program) node(want func(Member) bool) raftlog.NodeID {
	var wanted []raftlog.NodeID
	for _, m := range p.catalog.members {
		if want(m) {
			wanted = append(wanted, m.Node)
		}
	}
	if len(wanted) > 0 && rapid.IntRange(0, 7).Draw(p.T, "any") < 7 {
		return rapid.SampledFrom(wanted).Draw(p.T, "node")
	}
	return raftlog.NodeID(rapid.IntRange(1, int(p.model.node)).Draw(p.T, "node"))
}

func anyMember(Member) bool { return true }

func living(m Member) bool { return !m.Liveness.Dead && !m.Liveness.Draining() }

// nonce draws the nonce of a node, now and then a wrong one.
func (p *program) nonceOf(n raftlog.NodeID) raftlog.Nonce {
	if rapid.IntRange(0, 9).Draw(p.T, "wrong") == 9 {
		return raftlog.Nonce{99}
	}
	if was, ok := p.model.removed[n]; ok {
		return was.Nonce
	}
	return p.model.members[n].Nonce
}

// stampOf draws what was heard of a node last, now and then something else.
func (p *program) stampOf(n raftlog.NodeID) Stamp {
	s := p.model.members[n].Liveness.Stamp
	if rapid.IntRange(0, 4).Draw(p.T, "other") == 4 {
		s += Stamp(rapid.IntRange(0, 3).Draw(p.T, "more"))
	}
	return s
}

// partition draws a partition of a topic, with what is known of it; mostly one
// that is moved, if so wanted and if there is one.
func (p *program) partition(moved bool) (raftlog.Incarnation, Partition) {
	if moved && len(p.catalog.moves) > 0 && rapid.IntRange(0, 7).Draw(p.T, "any") < 7 {
		m := rapid.SampledFrom(p.catalog.moves).Draw(p.T, "move")
		return m.Incarnation, p.model.topics[m.Incarnation].partitions[m.Partition]
	}
	i := p.incarnation()
	topic := p.model.topics[i]
	if topic == nil || len(topic.partitions) == 0 {
		return i, Partition{}
	}
	at := rapid.IntRange(0, len(topic.partitions)-1).Draw(p.T, "partition")
	return i, topic.partitions[at]
}

// deletion draws a topic, mostly one that is on its way between active and deleted
// if there is one, and the number of its last deletion.
func (p *program) deletion() (raftlog.Incarnation, Deletion) {
	i := p.incarnation()
	for n := range 9 {
		topic := p.model.topics[inc(n+1)]
		if topic != nil && topic.deletion.Number > 0 && topic.state != TopicDeleting && rapid.IntRange(0, 3).Draw(p.T, "this") == 0 {
			i = inc(n + 1)
			break
		}
	}
	if topic := p.model.topics[i]; topic != nil {
		return i, topic.deletion
	}
	return i, Deletion{}
}

func (p *program) incarnation() raftlog.Incarnation {
	return inc(rapid.IntRange(1, 9).Draw(p.T, "topic"))
}

// off is 0, now and then not. Small numbers are drawn more often than others.
func (p *program) off() uint64 {
	return uint64(max(0, rapid.IntRange(0, 15).Draw(p.T, "off")-13))
}

func (p *program) draw(kind CommandType) command {
	switch kind {
	case typeCreateTopic:
		i := p.incarnation()
		name := fmt.Sprint("topic-", rapid.IntRange(1, 6).Draw(p.T, "name"))
		return createTopic{i, name, TopicConfig{Partitions: uint32(rapid.IntRange(1, 5).Draw(p.T, "n")), Replicas: uint32(rapid.IntRange(0, 4).Draw(p.T, "replicas"))}}
	case typeTopicDeleting:
		i, _ := p.partition(true)
		return topicDeleting{i}
	case typeTopicDeleted:
		i, _ := p.partition(true)
		return topicDeleted{i}
	case typeRetireTopic:
		i, last := p.deletion()
		at := Stamp(rapid.IntRange(0, 50).Draw(p.T, "stamp"))
		return retireTopic{i, last.Number + rapid.SampledFrom([]uint64{1, 1, 0, 2}).Draw(p.T, "further"), at, at + Stamp(rapid.IntRange(1000, 1010).Draw(p.T, "grace"))}
	case typeStepTopic:
		i, last := p.deletion()
		c := stepTopic{i, last.Number + p.off(), rapid.SampledFrom([]TopicState{TopicRetired, TopicRetired, TopicRestoring, TopicActive, TopicActive, TopicDeleting}).Draw(p.T, "to"), 0}
		if c.To == TopicRetired && p.off() == 0 {
			c.Number = last.First
		}
		if c.To == TopicDeleting {
			c.Now = Stamp(rapid.IntRange(1000, 1100).Draw(p.T, "now"))
		}
		return c
	case typeSetVersion:
		return setVersion{uint64(rapid.IntRange(1, 3).Draw(p.T, "version"))}
	case typeAdmit:
		holder := p.node(anyMember)
		name := fmt.Sprint("node-", holder)
		if is, ok := p.model.members[holder]; ok {
			name = is.Name
		} else {
			holder = 0
		}
		nonce := raftlog.Nonce{byte(rapid.IntRange(1, 20).Draw(p.T, "nonce"))}
		newest := p.model.needs() - CommandType(p.off())
		return admit{Admission{name, nonce, "host:1", newest, rapid.Bool().Draw(p.T, "observer"), holder, p.stampOf(holder)}, Stamp(rapid.IntRange(1, 50).Draw(p.T, "stamp"))}
	case typeHeartbeats:
		c := make(heartbeats, rapid.IntRange(1, 3).Draw(p.T, "n"))
		for i := range c {
			n := p.node(anyMember)
			c[i] = stampedHeartbeat{Heartbeat{n, p.nonceOf(n), NewestCommand}, Stamp(rapid.IntRange(0, 50).Draw(p.T, "stamp"))}
		}
		return c
	case typeMarkDead:
		c := make(markDead, rapid.IntRange(1, 2).Draw(p.T, "n"))
		for i := range c {
			n := p.node(anyMember)
			c[i] = DeadMark{n, p.stampOf(n)}
		}
		return c
	case typeSetDeparture:
		n := p.node(func(m Member) bool { return m.Node > 3 || m.Liveness.Draining() })
		d := Departure(rapid.IntRange(0, 3).Draw(p.T, "departure"))
		if p.model.members[n].Liveness.Draining() && rapid.IntRange(0, 3).Draw(p.T, "any") < 3 {
			d = Leaves
		}
		return setDeparture{n, p.nonceOf(n), d}
	case typeRemoveMember:
		return removeMember{p.node(func(m Member) bool { return m.Liveness.Departure == Leaves })}
	case typeStartMove:
		i, at := p.partition(false)
		remove := raftlog.ReplicaID(0)
		if len(at.Replicas) > 0 && rapid.Bool().Draw(p.T, "swap") {
			remove = at.Replicas[rapid.IntRange(0, len(at.Replicas)-1).Draw(p.T, "which")].Replica + raftlog.ReplicaID(p.off())
		}
		return startMove{MoveRequest{i, at.Index + uint32(p.off()), at.Generation + p.off() - p.off(), p.node(func(m Member) bool { _, on := at.On(m.Node); return !on && living(m) }), remove}, Stamp(rapid.IntRange(1, 50).Draw(p.T, "stamp"))}
	case typeFinishMove, typeCancelMove:
		i, at := p.partition(true)
		c := endMove{i, at.Index, at.Generation + p.off() - p.off(), raftlog.ReplicaID(rapid.IntRange(11, int(p.model.replica)).Draw(p.T, "add"))}
		if at.Target != nil {
			c.Add = at.Target.Add.Replica + raftlog.ReplicaID(p.off())
		}
		if kind == typeFinishMove {
			return finishMove{c}
		}
		return cancelMove{c}
	case typeSeed:
		return seed{Settings: []setSetting{{"key", "value"}}}
	}
	return noop{}
}

// step applies an entry, and compares everything with the model.
func (p *program) step(e raftlog.Entry, c command) {
	p.index++
	e.Index, e.Term = p.index, 2
	x := newTx(p.state)
	got, refusal, err := applyEntry(x, e, NewestCommand)
	require.NoError(p, err)
	now, members := x.news(), slices.SortedFunc(maps.Values(p.model.members), func(a, b Member) int { return int(a.Node) - int(b.Node) })
	loud := x.loud()
	p.state.commit(x)
	require.NoError(p, p.catalog.follow(x.changes, now))
	if c != nil {
		p.compare(c, got, refusal)
	}
	require.NoError(p, checkInvariants(p.state))
	loaded, err := loadCatalog(p.state)
	require.NoError(p, err)
	require.Equal(p, loaded, p.catalog, "what reads see is what is in the state")
	p.compareState(c, members, loud)
}

func (p *program) compare(c command, got any, refusal error) {
	want, wantErr := p.model.apply(c, got)
	if wantErr != nil {
		require.Error(p, refusal, "%T %+v: want %v, got %+v", c, c, wantErr, got)
		requireMatches(p, wantErr, refusal)
	} else {
		require.NoError(p, refusal, "%T %+v", c, c)
		if each, ok := want.([]error); ok {
			for i, err := range each {
				requireMatches(p, err, got.([]error)[i])
			}
		} else {
			require.Equal(p, want, got, "%T %+v", c, c)
		}
	}
	encoded := encodeAnswer(answer{index: p.index, value: got, err: refusal})
	require.Equal(p, encoded, encodeAnswer(decodeAnswer(encoded)), "the answer travels")
}

// requireMatches: the model says which refusal, not in which words.
func requireMatches(t require.TestingT, want, got error) {
	switch want.(type) {
	case nil, *RemovedError, *ClusterVersionError, *OlderReleaseError, *TopicRetiredError:
		require.Equal(t, want, got)
	default:
		require.ErrorIs(t, got, want)
	}
	outcomes := 0
	for _, o := range []error{raftlog.ErrRetry, raftlog.ErrRefused, raftlog.ErrOutcomeUnknown} {
		if errors.Is(got, o) {
			outcomes++
		}
	}
	require.Equal(t, want != nil, outcomes == 1, "%v has one outcome", got)
}

// compareState compares all of the model; before is the members that there were.
func (p *program) compareState(c command, before []Member, loud bool) {
	members := slices.SortedFunc(maps.Values(p.model.members), func(a, b Member) int { return int(a.Node) - int(b.Node) })
	require.Equal(p, members, p.catalog.members)
	require.Equal(p, p.model.version, p.catalog.cluster.Version)
	require.Equal(p, uint64(p.model.replica), p.catalog.nextReplica)
	require.Len(p, p.catalog.topics, len(p.model.topics))
	x := newTx(p.state)
	for i, topic := range p.model.topics {
		require.Equal(p, topic.state, p.catalog.topics[i].State)
		require.Equal(p, topic.deletion, p.catalog.topics[i].Deletion)
		require.Equal(p, topic.partitions, p.catalog.topics[i].Partitions)
	}
	for n := range p.model.members {
		require.Equal(p, p.model.load(n), x.load(n))
	}
	for n, was := range p.model.removed {
		out, ok := x.out(was.Nonce)
		require.True(p, ok && out == n, "the tombstone of %v stays", n)
	}
	for nonce := range p.model.refused {
		out, ok := x.out(nonce)
		require.True(p, ok && out == 0, "%v stays refused", nonce)
	}
	require.NoError(p, x.err)
	for i := range before { // what is not for those who route
		before[i].Liveness.Stamp, before[i].Liveness.Newest = 0, 0
	}
	for i := range members {
		members[i].Liveness.Stamp, members[i].Liveness.Newest = 0, 0
	}
	differ := !slices.Equal(before, members)
	if differ {
		require.True(p, loud, "who routes is told: %+v, were %+v", members, before)
	}
	if _, ok := c.(heartbeats); ok {
		require.Equal(p, differ, loud, "and not of what says nothing new")
	}
}

// TestCommandsDoWhatTheModelSays: random programs of all commands, and changes
// of the configuration, against a plain model: values, refusals, the state, and
// every invariant after every step.
//
// Property: H4, H6, H7, J5, J17, D5, M1 (red: a heartbeat that ends a dead mark was quiet; all others were loud; marks and admissions did not compare stamps; nonces were not looked up; a refused one was not kept; a removed one got no tombstone; generations were not compared; finishMove left the load of what went; topicDeleted left its moves; beyond the state: the stories of membership, and of whole nodes)
func TestCommandsDoWhatTheModelSays(t *testing.T) {
	kinds := []CommandType{
		typeCreateTopic, typeCreateTopic, typeTopicDeleting, typeTopicDeleted, typeSetVersion, typeAdmit, typeAdmit, typeHeartbeats,
		typeMarkDead, typeSetDeparture, typeSetDeparture, typeRemoveMember, typeRemoveMember, typeStartMove, typeStartMove, typeStartMove,
		typeFinishMove, typeFinishMove, typeCancelMove, typeSeed, typeNoop,
		typeRetireTopic, typeStepTopic, typeStepTopic, typeStepTopic,
	}
	rapid.Check(t, func(t *rapid.T) {
		p := newProgram(t)
		if raised := uint64(rapid.IntRange(0, 19).Draw(t, "raised")); raised > 1 {
			to := setVersion{2 + raised%2}
			p.step(raftlog.Entry{Data: encodeCommand(to)}, to)
		}
		for range rapid.IntRange(20, 80).Draw(t, "steps") {
			if kind := rapid.SampledFrom(kinds).Draw(t, "kind"); kind != typeNoop {
				c := p.draw(kind)
				p.step(raftlog.Entry{Data: encodeCommand(c)}, c)
			} else {
				p.configure()
			}
		}
	})
}

func newProgram(t *rapid.T) *program {
	g := testGenesis(3)
	p := &program{T: t, model: newModel(g), state: memView{}, index: genesisIndex}
	x := newTx(p.state)
	_, refusal, err := decide(x, g)
	require.NoError(t, errors.Join(refusal, err))
	p.state.commit(x)
	p.catalog, err = loadCatalog(p.state)
	require.NoError(t, err)
	return p
}

// configure changes the configuration: some vote, mostly none of those that
// leave.
func (p *program) configure() {
	conf := raftlog.ConfState{}
	p.model.conf = map[raftlog.ReplicaID]bool{}
	for _, m := range p.catalog.members {
		if rapid.IntRange(0, 5).Draw(p.T, "votes") < 5 != (m.Liveness.Departure == Leaves) {
			conf.Voters = append(conf.Voters, m.Replica)
			p.model.conf[m.Replica] = true
		}
	}
	p.step(raftlog.Entry{Kind: 2, Conf: &conf}, nil)
}
