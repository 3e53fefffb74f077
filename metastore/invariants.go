package metastore

import (
	"encoding/binary"
	"errors"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/stelelog/stele/raftlog"
)

// checkInvariants reads a whole state and returns what contradicts itself in
// it. Tests call it after every step; a restored snapshot must pass it.
//
//  1. Every key is of a known table and every value decodes.
//
//  2. Topics and names belong to each other one to one; a topic that has a
//     tombstone is gone.
//
//  3. A topic has the partitions that its config says, each on Replicas distinct
//     members or, once it was moved, on more or, since a recovery, on fewer; their groups are numbered one after
//     the other; no group or replica id is given twice.
//
//  4. Every id that is in use is below its counter.
//
//  5. A member's load is the sum of what the partitions put on it.
//
//  6. The moves are counted, and are MaxMoves or fewer. A move adds a replica on a
//     member that the partition is not on, and removes one that it has. The first
//     configuration of a partition lists as many replicas as its topic's config.
//
//  7. A node and a nonce that were removed belong to each other one to one, and
//     neither is a member's. A nonce that was refused is no member's.
//
//  8. Nonces are distinct. Of two members that have one name the newer one was
//     admitted in place of an older one that has it, or had it.
//
//  9. Liveness and load are of members.
//
//  10. A topic that is retiring, retired or restoring has a deletion, with a grace
//     that ends when it was asked for or later, and a first one of the same epoch, or
//     is that itself; one that is active has none of which it was not brought back. No deletion is of an epoch to come.
//
// 11. What came with a later version is in no state of an earlier one.
func checkInvariants(v view) error {
	c := checker{tx: newTx(v), loads: map[raftlog.NodeID]load{},
		groups: map[raftlog.GroupID]bool{}, replicas: map[raftlog.ReplicaID]bool{}, next: map[counter]uint64{}}
	epoch := c.tx.cluster().Epoch
	for _, of := range []counter{counterNode, counterGroup, counterReplica} {
		c.next[of] = makeID(epoch, must(c.tx, []byte{tableCounter, byte(of)}, (*decoder).uint))
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
	c.members(catalog)
	c.moves(catalog)
	names := 0
	err = dump(v, func(key, value []byte) error {
		switch key[0] {
		case tableName:
			names++
		case tableRecovery:
			if err := wantLength(key, 1+8); err != nil || binary.BigEndian.Uint64(key[1:]) > catalog.cluster.Epoch {
				c.tx.fail(damaged("key %q: a recovery that was not", key))
			}
		case tableLiveness, tableLoad, tableRemoved, tableOut:
			c.ofMember(key, catalog)
		}
		if !strings.Contains(tables, string(key[:1])) {
			c.tx.fail(damaged("key %q is of no table", key))
		}
		if catalog.cluster.Version < 2 && strings.Contains(tablesOfTwo, string(key[:1])) {
			c.tx.fail(damaged("key %q is in a cluster of version %d", key, catalog.cluster.Version))
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

// fingerprint is a number that states have in common only if they are equal, but
// for rare luck.
func fingerprint(v view) uint64 {
	h := fnv.New64a()
	var n [8]byte
	length := func(b []byte) []byte { binary.BigEndian.PutUint64(n[:], uint64(len(b))); return n[:] }
	err := dump(v, func(key, value []byte) error {
		for _, b := range [][]byte{key, value} {
			_, _ = h.Write(length(b)) // never fails
			_, _ = h.Write(b)
		}
		return nil
	})
	if err != nil {
		return 0
	}
	return h.Sum64()
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
	c.deletion(t, catalog)
	for i, p := range t.Partitions {
		c.id(counterGroup, uint64(p.Group))
		if p.Group != t.Partitions[0].Group+raftlog.GroupID(i) {
			c.tx.fail(damaged("%v is partition %d of a topic that begins with %v", p.Group, i, t.Partitions[0].Group))
		}
		if c.groups[p.Group] || p.Group == raftlog.MetadataGroup {
			c.tx.fail(damaged("%v is given twice", p.Group))
		}
		c.groups[p.Group] = true
		fewer := catalog.cluster.Epoch > 0 && p.Generation > 0
		if n := len(p.Replicas); n < int(t.Config.Replicas) && !fewer || p.Generation == 0 && n > int(t.Config.Replicas) {
			c.tx.fail(damaged("%v has %d replicas of %d", p.Group, len(p.Replicas), t.Config.Replicas))
		}
		if first := p.FirstReplicas(); len(first) != int(t.Config.Replicas) {
			c.tx.fail(damaged("%v began with %d replicas of %d", p.Group, len(first), t.Config.Replicas))
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
		if p.Target != nil {
			c.target(p, catalog)
		}
	}
}

// deletion checks what a topic has of deletions with a grace.
func (c *checker) deletion(t *Topic, catalog *catalog) {
	d := t.Deletion
	if d.Number != 0 && catalog.cluster.Version < 3 {
		c.tx.fail(damaged("topic %q has a deletion in a cluster of version %d", t.Name, catalog.cluster.Version))
	}
	if epoch, n := splitID(d.Number); d.Number != 0 && (n == 0 || epoch > catalog.cluster.Epoch) {
		c.tx.fail(damaged("deletion %#x of topic %q", d.Number, t.Name))
	}
	switch t.State {
	case TopicRetiring, TopicRetired, TopicRestoring:
		if d.Number == 0 || d.Until <= d.At {
			c.tx.fail(damaged("topic %q is %v, with a grace from %d to %d", t.Name, t.State, d.At, d.Until))
		}
		last, n := splitID(d.Number)
		if epoch, first := splitID(d.First); epoch != last || first == 0 || first > n {
			c.tx.fail(damaged("topic %q is %v by deletion %#x, and closed for %#x", t.Name, t.State, d.Number, d.First))
		}
	case TopicActive:
		if d.First != 0 || d.At != 0 || d.Until != 0 {
			c.tx.fail(damaged("topic %q is %v and keeps a grace", t.Name, t.State))
		}
	}
}

// target checks the move of a partition that is under way.
func (c *checker) target(p Partition, catalog *catalog) {
	to := p.Target.Add.Node
	c.replica(p.Target.Add.Replica)
	if slices.Contains(p.first, p.Target.Add.Replica) {
		c.tx.fail(damaged("%v comes to %v, which began with it", p.Target.Add.Replica, p.Group))
	}
	_, ok := catalog.member(to)
	twice := slices.ContainsFunc(p.Replicas, func(a Assignment) bool { return a.Node == to })
	if !ok || twice {
		c.tx.fail(damaged("%v comes to %v, no member or there twice", p.Target.Add.Replica, to))
	}
	if r := p.Target.Remove; r != 0 && p.place(r) < 0 {
		c.tx.fail(damaged("%v leaves %v, which has it not", r, p.Group))
	}
	l := c.loads[to]
	l.Replicas++
	c.loads[to] = l
}

func (c *checker) moves(catalog *catalog) {
	if n := c.tx.moves(); n > MaxMoves || n != uint64(len(catalog.moves)) {
		c.tx.fail(damaged("%d moves are counted, %d are under way", n, len(catalog.moves)))
	}
}

func (c *checker) members(catalog *catalog) {
	nonces := map[raftlog.Nonce]bool{}
	names := map[string]bool{}
	for _, m := range catalog.members {
		if _, out := c.tx.out(m.Nonce); out || nonces[m.Nonce] {
			c.tx.fail(damaged("%v has a nonce that is out, or another member's", m.Node))
		}
		if _, removed := c.tx.removed(m.Node); removed {
			c.tx.fail(damaged("%v is a member and was removed", m.Node))
		}
		if names[m.Name] && m.Liveness.Replaces == 0 || m.Liveness.Replaces >= m.Node {
			c.tx.fail(damaged("%v has the name %q of %v", m.Node, m.Name, m.Liveness.Replaces))
		}
		nonces[m.Nonce], names[m.Name] = true, true
	}
}

// ofMember checks what stands under a node's id or a nonce.
func (c *checker) ofMember(key []byte, catalog *catalog) {
	length := 1 + 8
	if key[0] == tableOut {
		length = 1 + len(raftlog.Nonce{})
	}
	if err := wantLength(key, length); err != nil {
		c.tx.fail(damaged("key %q: %w", key, err))
		return
	}
	if key[0] == tableOut {
		if node, _ := c.tx.out(raftlog.Nonce(key[1:])); node != 0 {
			if r, ok := c.tx.removed(node); !ok || r.Nonce != raftlog.Nonce(key[1:]) {
				c.tx.fail(damaged("nonce %x is that of %v, which was not removed", key[1:], node))
			}
		}
		return
	}
	node := raftlog.NodeID(binary.BigEndian.Uint64(key[1:]))
	_, member := catalog.member(node)
	if key[0] != tableRemoved {
		if !member {
			c.tx.fail(damaged("key %q is of no member", key))
		}
		return
	}
	c.id(counterNode, uint64(node))
	if r, ok := c.tx.removed(node); ok {
		if of, _ := c.tx.out(r.Nonce); of != node {
			c.tx.fail(damaged("%v was removed and its nonce is that of %v", node, of))
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
	if _, n := splitID(id); n == 0 || id >= c.next[of] {
		c.tx.fail(damaged("id %#x of counter %q, which is at %#x", id, byte(of), c.next[of]))
	}
}
