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
	names   map[string]*Topic // by folded name
	topics  map[raftlog.Incarnation]*Topic
	members []Member // by node; replaced as a whole
}

// loadCatalog reads the catalog of a state.
func loadCatalog(v view) (*catalog, error) {
	c := &catalog{names: map[string]*Topic{}, topics: map[raftlog.Incarnation]*Topic{}}
	t := newTx(v)
	c.members = t.members()
	if t.err != nil {
		return nil, t.err
	}
	err := v.scan([]byte{tableTopic}, func(key, value []byte) error {
		d := decoder{b: value}
		head := d.topicRecord()
		if err := errors.Join(d.end(), wantLength(key, 1+16)); err != nil {
			return damaged("key %q: %w", key, err)
		}
		topic := &Topic{Name: head.Name, Incarnation: [16]byte(key[1:]), State: head.State, Config: head.Config}
		if head.Config.Partitions > MaxPartitions {
			return damaged("topic %q has %d partitions", head.Name, head.Config.Partitions)
		}
		topic.Partitions = make([]Partition, 0, head.Config.Partitions)
		c.add(topic)
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

func (c *catalog) add(t *Topic) {
	c.topics[t.Incarnation] = t
	c.names[foldName(t.Name)] = t
}

// follow makes the catalog that of the state after the changes, which has these
// members if they are among what changed.
func (c *catalog) follow(changes []change, members []Member) error {
	for _, ch := range changes {
		switch {
		case ch.members:
			c.members = members
		case ch.created != nil:
			c.add(ch.created)
		default:
			topic := c.topics[ch.of]
			if topic == nil {
				return damaged("topic %v is in the state and not in the catalog", ch.of)
			}
			delete(c.topics, ch.of)
			delete(c.names, foldName(topic.Name))
			if ch.state != TopicDeleted {
				changed := *topic
				changed.State = ch.state
				c.add(&changed)
			}
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
			if r, ok := p.On(node); ok {
				all = append(all, NodeAssignment{t, p, r})
			}
		}
	}
	return all
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
