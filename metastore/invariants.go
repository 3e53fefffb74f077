package metastore

import (
	"bytes"
	"errors"

	"github.com/stelelog/stele/raftlog"
)

// checkInvariants reads a whole state and returns what contradicts itself in
// it. Tests call it after every step; a restored snapshot must pass it.
//
//  1. Every key is of a known table and every value decodes.
//  2. Topics and names belong to each other one to one; a topic that has a
//     tombstone is gone.
//  3. A topic has the partitions that its config says, each on Replicas distinct
//     members, and no group or replica id is given twice.
//  4. Every id that is in use is below its counter.
//  5. A member's load is the sum of what the partitions put on it.
func checkInvariants(v view) error {
	c := checker{tx: newTx(v), loads: map[raftlog.NodeID]load{},
		groups: map[raftlog.GroupID]bool{}, replicas: map[raftlog.ReplicaID]bool{}, next: map[counter]uint64{}}
	for _, of := range []counter{counterNode, counterGroup, counterReplica} {
		c.next[of] = must(c.tx, []byte{tableCounter, byte(of)}, (*decoder).uint)
	}
	catalog, err := loadCatalog(v)
	if err != nil {
		return err
	}
	for _, m := range catalog.members {
		c.id(counterNode, uint64(m.Node))
		c.replica(m.Replica)
	}
	for _, t := range catalog.topics {
		c.topic(t, catalog)
	}
	names := 0
	err = dump(v, func(key, value []byte) error {
		if !bytes.Contains([]byte("acdfiklmnpst"), key[:1]) {
			c.tx.fail(damaged("key %q is of no table", key))
		}
		if key[0] == tableName {
			names++
		}
		return nil
	})
	if names != len(catalog.topics) {
		c.tx.fail(damaged("%d names for %d topics", names, len(catalog.topics)))
	}
	for _, m := range catalog.members {
		if got := c.tx.load(m.Node); got != c.loads[m.Node] {
			c.tx.fail(damaged("the load of %v is %v, counted are %v", m.Node, got, c.loads[m.Node]))
		}
	}
	return errors.Join(err, c.tx.err)
}

// checker is one walk over a state.
type checker struct {
	tx       *tx
	loads    map[raftlog.NodeID]load
	groups   map[raftlog.GroupID]bool
	replicas map[raftlog.ReplicaID]bool
	next     map[counter]uint64
}

func (c *checker) topic(t *Topic, catalog *catalog) {
	if i, ok := c.tx.named(t.Name); !ok || i != t.Incarnation {
		c.tx.fail(damaged("topic %q is %v, its name says %v", t.Name, t.Incarnation, i))
	}
	if _, dead := c.tx.tombstone(t.Incarnation); dead {
		c.tx.fail(damaged("topic %v lives and has a tombstone", t.Incarnation))
	}
	for _, p := range t.Partitions {
		c.id(counterGroup, uint64(p.Group))
		if c.groups[p.Group] || p.Group == raftlog.MetadataGroup {
			c.tx.fail(damaged("%v is given twice", p.Group))
		}
		c.groups[p.Group] = true
		if len(p.Replicas) != int(t.Config.Replicas) {
			c.tx.fail(damaged("%v has %d replicas of %d", p.Group, len(p.Replicas), t.Config.Replicas))
		}
		nodes := map[raftlog.NodeID]bool{}
		for i, a := range p.Replicas {
			c.replica(a.Replica)
			if _, ok := catalog.member(a.Node); !ok || nodes[a.Node] {
				c.tx.fail(damaged("%v is on %v, no member or there twice", a.Replica, a.Node))
			}
			nodes[a.Node] = true
			l := c.loads[a.Node]
			l.Replicas++
			if i == 0 {
				l.Leads++
			}
			c.loads[a.Node] = l
		}
	}
}

func (c *checker) replica(r raftlog.ReplicaID) {
	c.id(counterReplica, uint64(r))
	if c.replicas[r] {
		c.tx.fail(damaged("%v is given twice", r))
	}
	c.replicas[r] = true
}

func (c *checker) id(of counter, id uint64) {
	if _, n := splitID(id); n == 0 || n >= c.next[of] {
		c.tx.fail(damaged("id %#x of counter %q, which is at %d", id, byte(of), c.next[of]))
	}
}
