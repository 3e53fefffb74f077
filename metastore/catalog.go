package metastore

import (
	"cmp"
	"encoding/binary"
	"errors"
	"slices"
	"strings"

	"github.com/stelelog/stele/raftlog"
)

// catalog is the topics and members of the state, decoded, as of one applied
// index. It is what reads are answered from: a lookup costs a map access.
// Tombstones are not in it, so its size follows the topics that exist.
//
// Topics in it never change; a change replaces them.
type catalog struct {
	names  map[string]*Topic // by folded name
	topics map[raftlog.Incarnation]*Topic
	groups []groupRange // of all topics with partitions, ascending
	moves  []Move       // under way, by group
	news
}

// groupRange is the groups of a topic's partitions, which were numbered one
// after the other when it was created.
type groupRange struct {
	first raftlog.GroupID
	of    raftlog.Incarnation
}

// loadCatalog reads the catalog of a state.
func loadCatalog(v view) (*catalog, error) {
	c := &catalog{names: map[string]*Topic{}, topics: map[raftlog.Incarnation]*Topic{}}
	t := newTx(v)
	c.news = t.news()
	c.members, c.recoveries = t.members(), t.recoveries()
	if t.err != nil {
		return nil, t.err
	}
	err := v.scan([]byte{tableTopic}, func(key, value []byte) error {
		d := decoder{b: value}
		head := d.topicRecord()
		if err := errors.Join(d.end(), wantLength(key, 1+16)); err != nil {
			return damaged("key %q: %w", key, err)
		}
		topic := &Topic{Name: head.Name, Incarnation: [16]byte(key[1:]), State: head.State, Config: head.Config, Deletion: head.Deletion}
		if head.Config.Partitions > MaxPartitions {
			return damaged("topic %q has %d partitions", head.Name, head.Config.Partitions)
		}
		topic.Partitions = make([]Partition, 0, head.Config.Partitions)
		c.show(topic)
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = v.scan([]byte{tablePartition}, c.loadPartition)
	if err != nil {
		return nil, err
	}
	for _, topic := range c.topics {
		if len(topic.Partitions) != int(topic.Config.Partitions) {
			return nil, damaged("topic %q has %d of %d partitions", topic.Name, len(topic.Partitions), topic.Config.Partitions)
		}
		c.number(topic)
		for _, p := range topic.Partitions {
			c.follows(topic.Incarnation, p)
		}
	}
	return c, nil
}

func (c *catalog) loadPartition(key, value []byte) error {
	if err := wantLength(key, 1+16+4); err != nil {
		return damaged("key %q: %w", key, err)
	}
	topic := c.topics[[16]byte(key[1:17])]
	index := binary.BigEndian.Uint32(key[17:])
	if topic == nil || int(index) != len(topic.Partitions) {
		return damaged("key %q: a partition that no topic has", key)
	}
	d := decoder{b: value}
	topic.Partitions = append(topic.Partitions, d.partition(index))
	if err := d.end(); err != nil {
		return damaged("key %q: %w", key, err)
	}
	return nil
}

func wantLength(key []byte, n int) error {
	if len(key) != n {
		return errMalformed
	}
	return nil
}

// show makes a topic the one that is found.
func (c *catalog) show(t *Topic) {
	c.topics[t.Incarnation] = t
	c.names[foldName(t.Name)] = t
}

// number makes the groups of a new topic known.
func (c *catalog) number(t *Topic) {
	if len(t.Partitions) > 0 {
		r := groupRange{t.Partitions[0].Group, t.Incarnation}
		at, _ := slices.BinarySearchFunc(c.groups, r.first, groupRange.compare)
		c.groups = slices.Insert(c.groups, at, r)
	}
}

func (r groupRange) compare(g raftlog.GroupID) int { return cmp.Compare(r.first, g) }

// drop forgets a topic that is gone.
func (c *catalog) drop(t *Topic) {
	delete(c.topics, t.Incarnation)
	delete(c.names, foldName(t.Name))
	c.groups = without(c.groups, func(r groupRange) bool { return r.of == t.Incarnation })
	c.moves = without(c.moves, func(m Move) bool { return m.Incarnation == t.Incarnation })
}

// without removes from a list what is true of f; an empty one is nil.
func without[T any](list []T, f func(T) bool) []T {
	if list = slices.DeleteFunc(list, f); len(list) == 0 {
		return nil
	}
	return list
}

// follows keeps the moves under way, after what happened to a partition.
func (c *catalog) follows(i raftlog.Incarnation, p Partition) {
	c.moves = without(c.moves, func(m Move) bool { return m.Group == p.Group })
	if m, ok := moveOf(i, p); ok {
		at, _ := slices.BinarySearchFunc(c.moves, m.Group, func(m Move, g raftlog.GroupID) int { return cmp.Compare(m.Group, g) })
		c.moves = slices.Insert(c.moves, at, m)
	}
}

// follow makes the catalog that of the state after the changes, whose news are
// these.
func (c *catalog) follow(changes []change, now news) error {
	if now.members == nil {
		now.members = c.members
	}
	if now.recoveries == nil {
		now.recoveries = c.recoveries
	}
	c.news = now
	for _, ch := range changes {
		switch {
		case ch.members, ch.cluster:
		case ch.created != nil:
			c.show(ch.created)
			c.number(ch.created)
		default:
			topic := c.topics[ch.of]
			if topic == nil {
				return damaged("topic %v is in the state and not in the catalog", ch.of)
			}
			if ch.state == TopicDeleted {
				c.drop(topic)
				continue
			}
			changed := *topic
			switch {
			case ch.config != nil:
				changed.Config = *ch.config
			case ch.moved != nil:
				changed.Partitions = slices.Clone(topic.Partitions)
				changed.Partitions[ch.moved.Index] = *ch.moved
				c.follows(ch.of, *ch.moved)
			default:
				changed.State, changed.Deletion = ch.state, ch.deletion
			}
			c.show(&changed)
		}
	}
	return nil
}

// sorted returns the topics by name.
func (c *catalog) sorted() []*Topic {
	all := make([]*Topic, 0, len(c.topics))
	for _, t := range c.topics {
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b *Topic) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// assignments returns what node has to hold, by topic name and partition.
func (c *catalog) assignments(node raftlog.NodeID) (all []NodeAssignment) {
	for _, t := range c.sorted() {
		for _, p := range t.Partitions {
			if a := assignmentOn(t, p, node); a.Replica != 0 {
				all = append(all, a)
			}
		}
	}
	return all
}

// assignmentOn returns what a node has to hold of a partition; a zero Replica:
// nothing.
func assignmentOn(t *Topic, p Partition, node raftlog.NodeID) NodeAssignment {
	r, _ := p.On(node)
	return NodeAssignment{t, p, r, p.Target != nil && p.Target.Add.Replica == r}
}

// replicaDead: ids are given out in ascending order, each with its place, and a
// place that is given up is given up for good. An id of an older recovery epoch
// that nobody has was given up, or lost with that epoch's end.
func (c *catalog) replicaDead(g raftlog.GroupID, r raftlog.ReplicaID) bool {
	epoch, n := splitID(uint64(r))
	if n == 0 || epoch > c.cluster.Epoch || epoch == c.cluster.Epoch && n >= c.nextReplica {
		return false
	}
	if g == raftlog.MetadataGroup {
		return c.nodeOf(r) == 0
	}
	p := c.partition(g)
	return p.place(r) < 0 && (p.Target == nil || p.Target.Add.Replica != r)
}

// partition returns the partition of a group, the zero one if there is none.
func (c *catalog) partition(g raftlog.GroupID) Partition {
	at, found := slices.BinarySearchFunc(c.groups, g, groupRange.compare)
	if !found {
		at--
	}
	if at < 0 {
		return Partition{}
	}
	r := c.groups[at]
	if all := c.topics[r.of].Partitions; g-r.first < raftlog.GroupID(len(all)) {
		return all[g-r.first]
	}
	return Partition{}
}

func (c *catalog) member(node raftlog.NodeID) (Member, bool) {
	i, ok := slices.BinarySearchFunc(c.members, node, func(m Member, n raftlog.NodeID) int { return cmp.Compare(m.Node, n) })
	if !ok {
		return Member{}, false
	}
	return c.members[i], true
}

// nodeOf returns the node that has the replica of the metadata group; 0: none.
func (c *catalog) nodeOf(replica raftlog.ReplicaID) raftlog.NodeID {
	for _, m := range c.members {
		if m.Replica == replica {
			return m.Node
		}
	}
	return 0
}
