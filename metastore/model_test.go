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

// model is what the commands mean, said once more in the plainest way: maps, and
// no bytes. Where new partitions go it takes from the state, and checks.
type model struct {
	version  uint64
	newest   CommandType
	members  map[raftlog.NodeID]Member
	removed  map[raftlog.NodeID]Member
	refused  map[raftlog.Nonce]bool
	topics   map[raftlog.Incarnation]*modelTopic
	gone     map[raftlog.Incarnation]bool
	conf     map[raftlog.ReplicaID]bool
	seeded   bool
	node     raftlog.NodeID    // next
	replica  raftlog.ReplicaID // next
	group    raftlog.GroupID   // next
	settings map[string]string
}

type modelTopic struct {
	name       string
	state      TopicState
	partitions []Partition
}

func newModel(g Genesis) *model {
	m := &model{version: 1, newest: typeGenesis, members: map[raftlog.NodeID]Member{}, removed: map[raftlog.NodeID]Member{},
		refused: map[raftlog.Nonce]bool{}, topics: map[raftlog.Incarnation]*modelTopic{}, gone: map[raftlog.Incarnation]bool{},
		conf: map[raftlog.ReplicaID]bool{}, settings: map[string]string{}, group: 2}
	for _, member := range g.Members {
		m.members[member.Node] = member
		m.conf[member.Replica] = true
		m.node, m.replica = member.Node+1, member.Replica+1
	}
	return m
}

// life returns a member by both of its names, or the refusal.
func (m *model) life(n raftlog.NodeID, nonce raftlog.Nonce) (Member, error) {
	if was, ok := m.removed[n]; ok {
		return Member{}, &RemovedError{n, was.Name}
	}
	if is, ok := m.members[n]; ok && is.Nonce == nonce {
		return is, nil
	}
	return Member{}, ErrMemberNotFound
}

func (m *model) update(n raftlog.NodeID, f func(*Member)) {
	member := m.members[n]
	f(&member)
	m.members[n] = member
}

func (m *model) load(n raftlog.NodeID) (l load) {
	for _, topic := range m.topics {
		for _, p := range topic.partitions {
			if _, on := p.On(n); on {
				l.Replicas++
			}
			if p.Replicas[0].Node == n {
				l.Leads++
			}
		}
	}
	return l
}

func (m *model) moves() (n int) {
	for _, topic := range m.topics {
		for _, p := range topic.partitions {
			if p.Target != nil {
				n++
			}
		}
	}
	return n
}

// apply is the model's decision: the value, or the refusal.
func (m *model) apply(c command, got any) (any, error) {
	if c.kind() > typeSetVersion && m.version < 2 {
		return nil, &ClusterVersionError{2, m.version}
	}
	switch c := c.(type) {
	case setVersion:
		m.version = max(m.version, c.Version)
	case admit:
		return m.admit(c)
	case heartbeats:
		return m.each(len(c), func(i int) error {
			_, err := m.life(c[i].Node, c[i].Nonce)
			if err == nil {
				m.update(c[i].Node, func(is *Member) {
					is.Liveness.Stamp = max(c[i].Stamp, is.Liveness.Stamp+1)
					is.Liveness.Newest, is.Liveness.Dead = c[i].Newest, false
				})
			}
			return err
		}), nil
	case markDead:
		return m.each(len(c), func(i int) error {
			is, err := m.life(c[i].Node, m.members[c[i].Node].Nonce)
			if err == nil && is.Liveness.Stamp != c[i].Judged {
				err = ErrStale
			}
			if err == nil {
				m.update(c[i].Node, func(is *Member) { is.Liveness.Dead = true })
			}
			return err
		}), nil
	case setDeparture:
		is, err := m.life(c.Node, c.Nonce)
		switch {
		case err != nil:
			return nil, err
		case is.Liveness.Departure == Leaves && c.Departure != Leaves:
			return nil, ErrMemberLeaving
		case is.Liveness.Departure == Stays && c.Departure == Leaves:
			return nil, ErrNotDraining
		}
		m.update(c.Node, func(is *Member) { is.Liveness.Departure = c.Departure })
	case removeMember:
		return nil, m.remove(c.Node)
	case startMove:
		return m.start(c)
	case finishMove:
		return nil, m.end(c.endMove, true)
	case cancelMove:
		return nil, m.end(c.endMove, false)
	case seed:
		if m.seeded {
			return false, nil
		}
		m.seeded = true
		return true, nil
	case createTopic:
		return m.create(c, got)
	case topicDeleting:
		return nil, m.delete(c.Incarnation, TopicDeleting)
	case topicDeleted:
		return nil, m.delete(c.Incarnation, TopicDeleted)
	}
	return nil, nil
}

func (m *model) each(n int, f func(int) error) []error {
	each := make([]error, n)
	for i := range each {
		each[i] = f(i)
	}
	return each
}

func (m *model) admit(c admit) (any, error) {
	if m.refused[c.Nonce] {
		return nil, ErrNonceRefused
	}
	for n, was := range m.removed {
		if was.Nonce == c.Nonce {
			return nil, &RemovedError{n, was.Name}
		}
	}
	var holder Member
	for _, is := range m.members {
		if is.Nonce == c.Nonce {
			if is.Name != c.Name {
				return nil, raftlog.ErrRefused
			}
			return is, nil
		}
		if is.Name == c.Name && is.Node > holder.Node {
			holder = is
		}
	}
	switch {
	case c.Newest < NewestCommand:
		return nil, &OlderReleaseError{c.Newest, NewestCommand}
	case holder.Node != 0 && holder.Node != c.Replaces:
		return nil, ErrNameTaken
	case holder.Node != 0 && holder.Liveness.Stamp != c.Seen:
		m.refused[c.Nonce] = true
		return nil, ErrNonceRefused
	}
	is := Member{m.node, c.Name, c.Nonce, m.replica, c.Addr, Liveness{c.Stamp, c.Newest, false, c.Observer, Stays, holder.Node}}
	m.members[is.Node] = is
	m.node++
	m.replica++
	return is, nil
}

func (m *model) remove(n raftlog.NodeID) error {
	if _, ok := m.removed[n]; ok {
		return nil
	}
	is, ok := m.members[n]
	switch {
	case !ok:
		return ErrMemberNotFound
	case is.Liveness.Departure != Leaves:
		return ErrNotLeaving
	case m.load(n).Replicas > 0 || m.conf[is.Replica]:
		return ErrMemberInUse
	}
	delete(m.members, n)
	m.removed[n] = is
	return nil
}

func (m *model) start(c startMove) (any, error) {
	topic := m.topics[c.Incarnation]
	if topic == nil || int(c.Partition) >= len(topic.partitions) {
		return nil, ErrTopicNotFound
	}
	p := &topic.partitions[c.Partition]
	if p.Target != nil && p.Generation == c.Generation+1 && p.Target.Add.Node == c.To && p.Target.Remove == c.Remove {
		return *p, nil
	}
	holds := func(f func(Assignment) bool) bool { return slices.ContainsFunc(p.Replicas, f) }
	to, err := m.life(c.To, m.members[c.To].Nonce)
	switch {
	case topic.state != TopicActive:
		return nil, ErrTopicDeleting
	case p.Target != nil && p.Generation == c.Generation:
		return nil, ErrMovePending
	case p.Generation != c.Generation, c.Remove != 0 && !holds(func(a Assignment) bool { return a.Replica == c.Remove }):
		return nil, ErrStale
	case err != nil:
		return nil, err
	case holds(func(a Assignment) bool { return a.Node == c.To }):
		return nil, ErrReplicaExists
	case to.Liveness.Dead:
		return nil, ErrMemberDead
	case to.Liveness.Departure != Stays:
		return nil, ErrMemberDraining
	case m.moves() == MaxMoves:
		return nil, ErrTooManyMoves
	}
	p.first = p.FirstReplicas()
	p.Generation++
	p.Target = &Target{Assignment{m.replica, c.To}, c.Remove, c.Stamp}
	m.replica++
	return *p, nil
}

func (m *model) end(c endMove, finish bool) error {
	topic := m.topics[c.Incarnation]
	if topic == nil || int(c.Partition) >= len(topic.partitions) {
		return ErrTopicNotFound
	}
	p := &topic.partitions[c.Partition]
	in := slices.ContainsFunc(p.Replicas, func(a Assignment) bool { return a.Replica == c.Add })
	if p.Target == nil && p.Generation == c.Generation+1 && in == finish {
		return nil
	}
	if p.Target == nil || p.Generation != c.Generation || p.Target.Add.Replica != c.Add {
		return ErrStale
	}
	if finish {
		replicas := []Assignment{}
		for _, a := range p.Replicas {
			if a.Replica == p.Target.Remove {
				a = p.Target.Add
			}
			replicas = append(replicas, a)
		}
		if p.Target.Remove == 0 {
			replicas = append(replicas, p.Target.Add)
		}
		p.Replicas = replicas
	}
	p.Target = nil
	p.Generation++
	return nil
}

// create believes a topic that the state made if it is one that may be.
func (m *model) create(c createTopic, got any) (any, error) {
	var staying, live, dead int
	for _, is := range m.members {
		if is.Liveness.Departure == Stays {
			staying++
			if is.Liveness.Dead {
				dead++
			} else {
				live++
			}
		}
	}
	replicas := int(c.Config.Replicas)
	if replicas == 0 {
		replicas = min(3, staying)
	}
	if m.gone[c.Incarnation] {
		return nil, ErrTopicNotFound
	}
	for i, topic := range m.topics {
		switch {
		case i == c.Incarnation && topic.name == c.Name:
			return &Topic{Name: c.Name, Incarnation: i, State: topic.state, Config: got.(*Topic).Config, Partitions: topic.partitions}, nil
		case i == c.Incarnation:
			return nil, raftlog.ErrRefused
		}
	}
	for _, topic := range m.topics {
		if topic.name == c.Name && topic.state == TopicDeleting {
			return nil, ErrTopicDeleting
		} else if topic.name == c.Name {
			return nil, ErrTopicExists
		}
	}
	switch {
	case replicas < 1 || replicas > staying:
		return nil, raftlog.ErrRefused
	case live < replicas/2+1:
		return nil, ErrTooFewNodes
	}
	topic, ok := got.(*Topic)
	if !ok {
		return nil, fmt.Errorf("a topic: %d replicas on %d members", replicas, staying)
	}
	for i, p := range topic.Partitions {
		nodes := map[raftlog.NodeID]bool{}
		for k, a := range p.Replicas {
			is := m.members[a.Node]
			short := live < replicas
			if a.Replica != m.replica || is.Liveness.Departure != Stays || is.Liveness.Dead && (!short || k == 0) {
				return nil, fmt.Errorf("not %v on %+v", a, is)
			}
			nodes[a.Node] = true
			m.replica++
		}
		if len(nodes) != replicas || p.Group != m.group || int(p.Index) != i {
			return nil, fmt.Errorf("not %+v", p)
		}
		m.group++
	}
	m.topics[c.Incarnation] = &modelTopic{c.Name, TopicActive, slices.Clone(topic.Partitions)}
	return topic, nil
}

func (m *model) delete(i raftlog.Incarnation, to TopicState) error {
	topic := m.topics[i]
	switch {
	case m.gone[i]:
		return nil
	case topic == nil:
		return ErrTopicNotFound
	case to == TopicDeleting:
		topic.state = TopicDeleting
	case topic.state != TopicDeleting:
		return raftlog.ErrRefused
	default:
		delete(m.topics, i)
		m.gone[i] = true
	}
	return nil
}

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
	case typeSetVersion:
		return setVersion{uint64(rapid.IntRange(1, 2).Draw(p.T, "version"))}
	case typeAdmit:
		holder := p.node(anyMember)
		name := fmt.Sprint("node-", holder)
		if is, ok := p.model.members[holder]; ok {
			name = is.Name
		} else {
			holder = 0
		}
		nonce := raftlog.Nonce{byte(rapid.IntRange(1, 20).Draw(p.T, "nonce"))}
		newest := NewestCommand - CommandType(p.off())
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
	case nil, *RemovedError, *ClusterVersionError, *OlderReleaseError:
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
// Property: H4, H6, H7, J5, J17, D5, M1 (red: a heartbeat that ends a dead mark was quiet; all others were loud; marks and admissions did not compare stamps; nonces were not looked up; a refused one was not kept; a removed one got no tombstone; generations were not compared; finishMove left the load of what went; topicDeleted left its moves; open: everything beyond the state)
func TestCommandsDoWhatTheModelSays(t *testing.T) {
	kinds := []CommandType{
		typeCreateTopic, typeCreateTopic, typeTopicDeleting, typeTopicDeleted, typeSetVersion, typeAdmit, typeAdmit, typeHeartbeats,
		typeMarkDead, typeSetDeparture, typeSetDeparture, typeRemoveMember, typeRemoveMember, typeStartMove, typeStartMove, typeStartMove,
		typeFinishMove, typeFinishMove, typeCancelMove, typeSeed, typeNoop,
	}
	rapid.Check(t, func(t *rapid.T) {
		p := newProgram(t)
		if rapid.IntRange(0, 9).Draw(t, "raised") < 9 {
			p.step(raftlog.Entry{Data: encodeCommand(setVersion{2})}, setVersion{2})
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
