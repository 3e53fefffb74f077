package metastore

import (
	"fmt"
	"math"

	"github.com/stelelog/stele/raftlog"
)

// decide applies one command: (state, command) to (writes in t, result). It is
// a pure function: every replica that decides about the same command over the
// same state writes the same bytes and gives the same result.
//
// A refusal is a result; it leaves t as it was but for the newest type, and for
// what a refusal has to remember. err means damage: the group must stop here.
func decide(t *tx, c command) (value any, refusal, err error) {
	one := newTx(t)
	refusal = c.check()
	if refusal == nil && c.kind() != typeGenesis {
		refusal = c.kind().allowedAt(one.cluster().Version)
	}
	if refusal == nil {
		value, refusal = c.apply(one)
	}
	if one.err != nil {
		return nil, nil, one.err
	}
	if refusal == nil || one.keep {
		one.mergeInto(t)
	}
	if c.kind() != typeGenesis {
		noteType(t, c.kind())
	}
	return value, refusal, t.err
}

// noteType remembers the newest command type that was applied, refused or not:
// a build that does not know it must not go on from here.
func noteType(t *tx, kind CommandType) {
	f := t.format()
	if t.err == nil && kind > f.Newest {
		f.Newest = kind
		t.put([]byte{tableFormat}, f.encode())
	}
}

// apply makes the state at index 1. The genesis is no entry of the log: every
// replica that the genesis lists makes it by itself, with equal content, and
// all others get it in a snapshot. So there is no moment at which the metadata
// has a leader and no members, and it is made exactly once.
func (g Genesis) apply(t *tx) (any, error) {
	if _, ok := t.applied(); ok {
		return nil, invalid("Genesis", g.ClusterID, "only for an empty state")
	}
	t.put([]byte{tableFormat}, format{layoutVersion, typeGenesis}.encode())
	t.put([]byte{tableCluster}, cluster{g.ClusterID, g.Epoch, firstVersion}.encode())
	next := map[counter]uint64{counterNode: 1, counterReplica: 1, counterGroup: firstGroup, counterProducer: 1}
	for _, m := range g.Members {
		t.put(keyNode(tableMember, m.Node), encodeMember(m))
		t.putLoad(m.Node, load{})
		_, node := splitID(uint64(m.Node))
		_, replica := splitID(uint64(m.Replica))
		next[counterNode] = max(next[counterNode], node+1)
		next[counterReplica] = max(next[counterReplica], replica+1)
	}
	for c, n := range next {
		t.put([]byte{tableCounter, byte(c)}, appendUint(nil, n))
	}
	t.put([]byte{tableApplied}, applied{genesisIndex, genesisTerm, g.Begin().Conf}.encode())
	t.changes = append(t.changes, change{members: true})
	return nil, nil
}

func (c createTopic) apply(t *tx) (any, error) {
	if _, dead := t.tombstone(c.Incarnation); dead {
		return nil, ErrTopicNotFound // a late retry: it was created and deleted
	}
	if head, ok := t.topic(c.Incarnation); ok {
		return again(t, c, head)
	}
	if i, taken := t.named(c.Name); taken {
		return nil, nameTaken(t, c.Name, i)
	}
	members := t.members()
	staying := stayingOf(members)
	config := c.Config.withDefaults(countOf(members))
	if err := config.validate(max(len(staying), countOf(members))); err != nil {
		return nil, err
	}
	if err := roomFor(t, members, config.Partitions); err != nil {
		return nil, err
	}
	nodes, err := candidatesOf(t, staying, int(config.Replicas))
	if err != nil {
		return nil, err
	}
	topic := &Topic{Name: c.Name, Incarnation: c.Incarnation, State: TopicActive, Config: config}
	topic.Partitions = placePartitions(t, nodes, config)
	t.put(keyIncarnation(tableTopic, c.Incarnation), topicHead{State: TopicActive, Name: c.Name, Config: config}.encode())
	t.put(keyName(c.Name), c.Incarnation[:])
	for _, p := range topic.Partitions {
		t.put(keyPartition(c.Incarnation, p.Index), appendPartition(nil, p))
	}
	t.changes = append(t.changes, change{created: topic})
	return topic, nil
}

// again answers a creation that was applied before: the same topic, as it is
// now. The incarnation is the proposer's own, so a retry after an unknown
// outcome finds its own work.
func again(t *tx, c createTopic, head topicHead) (any, error) {
	if head.Name != c.Name {
		return nil, invalid("TopicSpec.Incarnation", c.Incarnation, "one that no other topic has")
	}
	topic := &Topic{Name: head.Name, Incarnation: c.Incarnation, State: head.State, Config: head.Config, Deletion: head.Deletion}
	for i := range head.Config.Partitions {
		topic.Partitions = append(topic.Partitions, t.partition(c.Incarnation, i))
	}
	return topic, nil
}

// roomFor refuses what would be too many partitions of all topics together: each
// has one preferred leader.
func roomFor(t *tx, members []Member, partitions uint32) error {
	var have uint64
	for _, m := range members {
		have += t.load(m.Node).Leads
	}
	if have+uint64(partitions) > MaxClusterPartitions {
		return invalid("TopicConfig.Partitions", partitions, "1 to %d: the cluster has %d, and up to %d in all topics together",
			MaxClusterPartitions-min(have, MaxClusterPartitions), have, MaxClusterPartitions)
	}
	return nil
}

func nameTaken(t *tx, name string, i raftlog.Incarnation) error {
	head, ok := t.topic(i)
	if !ok {
		t.fail(damaged("name of topic %v, which is missing", i))
	}
	switch head.State {
	case TopicDeleting, TopicRetiring, TopicRetired:
		return refusedBy(i, head)
	}
	if head.Name != name {
		return fmt.Errorf("%w; names that differ only in case are one name", named(ErrTopicExists, head.Name))
	}
	return named(ErrTopicExists, head.Name)
}

// placePartitions chooses nodes, takes ids from the counters, and counts the
// new replicas.
func placePartitions(t *tx, nodes []candidate, config TopicConfig) []Partition {
	places := place(nodes, int(config.Partitions), int(config.Replicas))
	partitions := make([]Partition, len(places))
	for i, on := range places {
		p := Partition{Index: uint32(i), Group: raftlog.GroupID(t.next(counterGroup))}
		for _, node := range on {
			p.Replicas = append(p.Replicas, Assignment{raftlog.ReplicaID(t.next(counterReplica)), node})
		}
		partitions[i] = p
	}
	for _, n := range nodes { // place counted what it placed
		t.putLoad(n.Node, n.load)
	}
	return partitions
}

func (c topicDeleting) apply(t *tx) (any, error) {
	head, ok := t.topic(c.Incarnation)
	if !ok {
		if _, dead := t.tombstone(c.Incarnation); dead {
			return nil, nil
		}
		return nil, ErrTopicNotFound
	}
	if head.State != TopicDeleting {
		head.State = TopicDeleting
		t.putHead(c.Incarnation, head)
	}
	return nil, nil
}

func (c topicDeleted) apply(t *tx) (any, error) {
	head, ok := t.topic(c.Incarnation)
	if !ok {
		if _, dead := t.tombstone(c.Incarnation); dead {
			return nil, nil
		}
		return nil, ErrTopicNotFound
	}
	if head.State != TopicDeleting {
		return nil, invalid("Topic.State", head.State, "%v", TopicDeleting)
	}
	for i := range head.Config.Partitions {
		p := t.partition(c.Incarnation, i)
		for n, a := range p.Replicas {
			leads := 0
			if n == 0 {
				leads = 1
			}
			t.charge(a.Node, -1, -leads)
		}
		if p.Target != nil {
			t.charge(p.Target.Add.Node, -1, 0)
			t.putMoves(t.moves() - 1)
		}
		t.remove(keyPartition(c.Incarnation, i))
	}
	t.remove(keyIncarnation(tableTopic, c.Incarnation))
	t.remove(keyName(head.Name))
	t.put(keyIncarnation(tableTombstone, c.Incarnation), encodeTombstone(head.Name))
	t.changes = append(t.changes, change{of: c.Incarnation, state: TopicDeleted})
	return nil, nil
}

func (c allocateProducer) apply(t *tx) (any, error) {
	if c.Name == "" {
		return producer{ID: ProducerID(t.next(counterProducer))}, nil
	}
	key := keyString(tableProducer, c.Name)
	last, known := record(t, key, (*decoder).namedProducer)
	mine := known && last.Token == c.Token
	if mine && (!c.Holds || last.Epoch == c.Held+1) {
		return last.producer, nil // granted before: a retry
	}
	if c.Holds && !(mine && last.Epoch == c.Held) {
		return nil, &ProducerFencedError{c.Name, c.Held, last.Epoch}
	}
	next := namedProducer{last.producer, c.Token}
	if !known || last.Epoch == math.MaxUint32 { // there is none yet, or its epochs are used up
		next.producer = producer{ID: ProducerID(t.next(counterProducer))}
	} else {
		next.Epoch++
	}
	t.put(key, next.encode())
	return next.producer, nil
}

func (c setAddress) apply(t *tx) (any, error) {
	m, err := t.life(c.Node, c.Nonce)
	if err != nil {
		return nil, err
	}
	if m.Addr != c.Addr {
		m.Addr = c.Addr
		t.put(keyNode(tableMember, c.Node), encodeMember(m))
		t.changes = append(t.changes, change{members: true})
	}
	return nil, nil
}

func (c setSetting) apply(t *tx) (any, error) {
	if c.Value == "" {
		t.remove(keyString(tableSetting, c.Key))
	} else {
		t.put(keyString(tableSetting, c.Key), []byte(c.Value))
	}
	return nil, nil
}
