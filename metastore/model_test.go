package metastore

import (
	"fmt"
	"slices"

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
	deletion   Deletion
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
	defer func() { m.newest = max(m.newest, c.kind()) }() // refused or not
	if c.kind() >= typeRetireTopic && m.version < 3 {
		return nil, &ClusterVersionError{Needs: 3, Has: m.version}
	}
	if c.kind() > typeSetVersion && m.version < 2 {
		return nil, &ClusterVersionError{Needs: 2, Has: m.version}
	}
	switch c := c.(type) {
	case retireTopic:
		return m.retire(c, got)
	case stepTopic:
		return nil, m.stepTopic(c)
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
	case c.Newest < m.needs():
		return nil, &OlderReleaseError{c.Newest, m.needs()}
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

// needs is what a joiner is to apply; the cluster is at version 2 or higher.
func (m *model) needs() CommandType {
	if m.version < 3 {
		return max(m.newest, typeEndHold)
	}
	return NewestCommand
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
	case topic.state == TopicDeleting:
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
	var staying, live, dead, count int
	for node, is := range m.members {
		replaced := false
		for _, o := range m.members {
			replaced = replaced || o.Liveness.Replaces == node
		}
		switch {
		case replaced, is.Liveness.Departure == Leaves, is.Liveness.Departure == DrainsForced && is.Liveness.Dead:
		default:
			count++
		}
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
		replicas = min(3, count)
	}
	if m.gone[c.Incarnation] {
		return nil, ErrTopicNotFound
	}
	for i, topic := range m.topics {
		switch {
		case i == c.Incarnation && topic.name == c.Name:
			return &Topic{Name: c.Name, Incarnation: i, State: topic.state, Config: got.(*Topic).Config, Partitions: topic.partitions, Deletion: topic.deletion}, nil
		case i == c.Incarnation:
			return nil, raftlog.ErrRefused
		}
	}
	for i, topic := range m.topics {
		if topic.name == c.Name && topic.state == TopicDeleting {
			return nil, ErrTopicDeleting
		} else if topic.name == c.Name && (topic.state == TopicRetiring || topic.state == TopicRetired) {
			return nil, &TopicRetiredError{topic.name, i, topic.deletion.At, topic.deletion.Until}
		} else if topic.name == c.Name {
			return nil, ErrTopicExists
		}
	}
	switch {
	case replicas < 1 || replicas > max(staying, count):
		return nil, raftlog.ErrRefused
	case replicas > staying || live < replicas/2+1:
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
	m.topics[c.Incarnation] = &modelTopic{c.Name, TopicActive, Deletion{}, slices.Clone(topic.Partitions)}
	return topic, nil
}

// retire says it in the words of its promise: a deletion is a new one only if it
// names the number after the last.
func (m *model) retire(c retireTopic, got any) (any, error) {
	topic := m.topics[c.Incarnation]
	if topic == nil {
		return nil, ErrTopicNotFound
	}
	is := topic.state == TopicRetiring || topic.state == TopicRetired
	switch {
	case topic.state == TopicDeleting:
		return nil, ErrTopicDeleting
	case is && c.Number == topic.deletion.Number:
		topic.deletion.Until = max(topic.deletion.Until, c.Until)
	case is && c.Number == topic.deletion.Number+1:
		topic.deletion.Number++
		topic.deletion.Until = max(topic.deletion.Until, c.Until)
	case !is && c.Number == topic.deletion.Number+1:
		topic.state, topic.deletion = TopicRetiring, Deletion{c.Number, c.Number, c.At, c.Until}
	default:
		return nil, ErrStale
	}
	return &Topic{Name: topic.name, Incarnation: c.Incarnation, State: topic.state, Config: got.(*Topic).Config, Partitions: topic.partitions, Deletion: topic.deletion}, nil
}

// steps is where a topic goes from where.
var steps = map[[2]TopicState]bool{
	{TopicRetiring, TopicRetired}: true, {TopicRetiring, TopicRestoring}: true, {TopicRetired, TopicRestoring}: true,
	{TopicRestoring, TopicActive}: true, {TopicRetiring, TopicDeleting}: true, {TopicRetired, TopicDeleting}: true,
}

func (m *model) stepTopic(c stepTopic) error {
	topic := m.topics[c.Incarnation]
	switch {
	case topic == nil && m.gone[c.Incarnation] && c.To == TopicDeleting:
		return nil
	case topic == nil:
		return ErrTopicNotFound
	case topic.state == TopicDeleting && c.To != TopicDeleting:
		return ErrTopicDeleting
	case c.Number == 0, c.To != TopicRetired && c.Number != topic.deletion.Number, c.To == TopicRetired && c.Number != topic.deletion.First:
		return ErrStale
	case topic.state == c.To, topic.state == TopicActive && c.To == TopicRestoring:
		return nil
	case !steps[[2]TopicState{topic.state, c.To}], c.To == TopicDeleting && c.Now < topic.deletion.Until:
		return ErrStale
	}
	topic.state = c.To
	if c.To == TopicActive {
		topic.deletion = Deletion{Number: c.Number}
	}
	return nil
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
