package metastore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/stelelog/stele/raftlog"
)

// A forced recovery begins another recovery epoch of the cluster. Its command is
// the last of the entries that are written behind the log of the one replica of
// group 1 that goes on (raftlog.ForcedEntries), so it is committed, applied once
// and replayed like any other, before that replica can lead and answer anything.
//
//	ids         of nodes, groups, replicas and producers are of the new epoch from
//	            now on: whatever the lost part of the log gave out is of the old
//	            one, and does not come again
//	names of    are forgotten: a producer that starts under its name gets an id that
//	producers   was never used, so that no epoch of the old id, which the lost part
//	            may have granted, is granted twice
//	who is      goes on being a member, under its node id and nonce, with a replica
//	left        of group 1 whose id was never used
//	who is not  is dead and drains by force. What it holds of partitions that go on
//	            is moved off it; then it is removed and its nonce has a tombstone.
//	            Nothing that it says counts: it speaks for an older epoch
//	partitions  that lost their majority have the one replica that goes on, or, if
//	            none is left, none at all. Their topics can be deleted
//	deletions   with a grace that are not over go on under a number of the new epoch,
//	            so that all partitions are closed, or opened, for them anew: see
//	            settleDeletions
//	destruction is held: a person has not looked at what was kept, and may yet
//	            find that a lost node can be read. See EndHold
type recovery struct {
	Epoch  uint64
	Plan   [16]byte
	Stamp  Stamp
	Left   []RecoveredMember // by node
	Forced []ForcedGroup     // by group
	Lost   []raftlog.GroupID // ascending
}

// RecoveredMember is a member that a forced recovery keeps.
type RecoveredMember struct {
	Node    raftlog.NodeID
	Nonce   raftlog.Nonce
	Replica raftlog.ReplicaID // of group 1, in the new epoch
}

// ForcedGroup is a partition's group that goes on from one replica.
type ForcedGroup struct {
	Group   raftlog.GroupID
	Replica raftlog.ReplicaID
}

// Recovery is a forced recovery that the cluster went through.
type Recovery struct {
	Epoch uint64   // that it began
	Plan  [16]byte // its plan's id
	Stamp Stamp    // when it was planned
	// DestructionHeld: nothing that is in quarantine or set aside may be destroyed
	// until a person has looked at it. See Store.EndHold.
	DestructionHeld bool
	LeftBehind      []raftlog.NodeID  // members then that did not come along
	Forced          []ForcedGroup     // partitions that went on from one replica
	Lost            []raftlog.GroupID // partitions of which no replica was left
}

// RecoverySpec is what a recovery does to the metadata.
type RecoverySpec struct {
	Epoch  uint64
	Plan   [16]byte
	Stamp  Stamp
	Left   []RecoveredMember
	Forced []ForcedGroup
	Lost   []raftlog.GroupID
}

// EncodeRecovery returns the command of a recovery, as the log of group 1 holds
// it. *InvalidError.
func EncodeRecovery(r RecoverySpec) ([]byte, error) {
	c := recovery(r)
	if err := c.check(); err != nil {
		return nil, err
	}
	return encodeCommand(c), nil
}

// RecoveryID makes the id that number n of a recovery gives out itself, from 1 on:
// those of the replicas of group 1 in the new epoch.
func RecoveryID(epoch, n uint64) uint64 { return makeID(epoch, n) }

// versionOfRecovery is the version to which a recovery raises the cluster: never
// another one, since what is applied does not depend on who applies it.
const versionOfRecovery = 2

func (recovery) kind() CommandType { return typeRecover }

func (c recovery) appendBody(b []byte) []byte {
	b = append(appendUint(b, c.Epoch), c.Plan[:]...)
	b = appendUint(appendUint(b, uint64(c.Stamp)), uint64(len(c.Left)))
	for _, m := range c.Left {
		b = append(appendUint(b, uint64(m.Node)), m.Nonce[:]...)
		b = appendUint(b, uint64(m.Replica))
	}
	return appendGroups(b, c.Forced, c.Lost)
}

func (d *decoder) recovery() (c recovery) {
	c.Epoch, c.Plan, c.Stamp = d.uintMax(maxEpoch), d.id16(), Stamp(d.uint())
	for range d.count(1 + 16 + 1) {
		c.Left = append(c.Left, RecoveredMember{raftlog.NodeID(d.uint()), d.id16(), raftlog.ReplicaID(d.uint())})
	}
	c.Forced, c.Lost = d.groups()
	return c
}

func appendGroups(b []byte, forced []ForcedGroup, lost []raftlog.GroupID) []byte {
	b = appendUint(b, uint64(len(forced)))
	for _, f := range forced {
		b = appendUint(appendUint(b, uint64(f.Group)), uint64(f.Replica))
	}
	b = appendUint(b, uint64(len(lost)))
	for _, g := range lost {
		b = appendUint(b, uint64(g))
	}
	return b
}

func (d *decoder) groups() (forced []ForcedGroup, lost []raftlog.GroupID) {
	for range d.count(2) {
		forced = append(forced, ForcedGroup{raftlog.GroupID(d.uint()), raftlog.ReplicaID(d.uint())})
	}
	for range d.count(1) {
		lost = append(lost, raftlog.GroupID(d.uint()))
	}
	return forced, lost
}

func (c recovery) check() error {
	if c.Epoch < 1 || c.Epoch > maxEpoch {
		return invalid("Recovery.Epoch", c.Epoch, "1 to %d", maxEpoch)
	}
	if len(c.Left) == 0 {
		return invalid("Recovery.Left", 0, "one member or more")
	}
	for i, m := range c.Left {
		epoch, n := splitID(uint64(m.Replica))
		twice := slices.ContainsFunc(c.Left[:i], func(o RecoveredMember) bool { return o.Replica == m.Replica })
		switch {
		case i > 0 && c.Left[i-1].Node >= m.Node:
			return invalid("Recovery.Left.Node", m.Node, "node ids that rise")
		case n == 0 || epoch > c.Epoch || twice:
			return invalid("Recovery.Left.Replica", m.Replica, "an id of its own, of an epoch up to %d", c.Epoch)
		}
	}
	if !slices.IsSortedFunc(c.Forced, func(a, b ForcedGroup) int { return int(a.Group) - int(b.Group) }) || !slices.IsSorted(c.Lost) {
		return invalid("Recovery.Forced", len(c.Forced), "groups that rise")
	}
	return nil
}

// apply: what an older epoch proposes comes too late, and so does a second copy.
func (c recovery) apply(t *tx) (any, error) {
	k := t.cluster()
	if k.Epoch >= c.Epoch {
		return nil, fmt.Errorf("%w: the recovery epoch is %d, that of the recovery %d", ErrStale, k.Epoch, c.Epoch)
	}
	k.Epoch, k.Version = c.Epoch, max(k.Version, versionOfRecovery)
	t.put([]byte{tableCluster}, k.encode())
	record := Recovery{Epoch: c.Epoch, Plan: c.Plan, Stamp: c.Stamp, DestructionHeld: true, Forced: c.Forced, Lost: c.Lost}
	record.LeftBehind = c.settleMembers(t)
	if err := errors.Join(c.settleTopics(t), c.settleDeletions(t)); err != nil {
		t.fail(err)
		return nil, nil
	}
	err := t.scan([]byte{tableProducer}, func(key, _ []byte) error {
		t.remove(slices.Clone(key))
		return nil
	})
	if err != nil {
		t.fail(err)
	}
	t.putRecovery(record)
	t.changes = append(t.changes, change{members: true, cluster: true})
	return nil, nil
}

// settleMembers says of each member whether it is left, and returns who is not.
func (c recovery) settleMembers(t *tx) (behind []raftlog.NodeID) {
	next := must(t, []byte{tableCounter, byte(counterReplica)}, (*decoder).uint)
	for _, m := range t.members() {
		i := slices.IndexFunc(c.Left, func(l RecoveredMember) bool { return l.Node == m.Node && l.Nonce == m.Nonce })
		if i < 0 {
			behind = append(behind, m.Node)
			m.Liveness.Dead = true
			if m.Liveness.Departure != Leaves {
				m.Liveness.Departure = DrainsForced
			}
			t.putLiveness(m)
			continue
		}
		if m.Replica != c.Left[i].Replica {
			m.Replica = c.Left[i].Replica
			t.put(keyNode(tableMember, m.Node), encodeMember(m))
		}
		if epoch, n := splitID(uint64(m.Replica)); epoch == c.Epoch {
			next = max(next, n+1)
		}
		m.Liveness.Dead = false
		t.putLiveness(m)
	}
	t.put([]byte{tableCounter, byte(counterReplica)}, appendUint(nil, next))
	return behind
}

// settleTopics leaves each partition that lost its majority the replica that goes
// on, or none.
func (c recovery) settleTopics(t *tx) error {
	goesOn := make(map[raftlog.GroupID]raftlog.ReplicaID, len(c.Forced)+len(c.Lost))
	for _, g := range c.Lost {
		goesOn[g] = 0
	}
	for _, f := range c.Forced {
		goesOn[f.Group] = f.Replica
	}
	if len(goesOn) == 0 {
		return nil
	}
	return t.scan([]byte{tablePartition}, func(key, value []byte) error {
		if err := wantLength(key, 1+16+4); err != nil {
			return damaged("key %q: %w", key, err)
		}
		d := decoder{b: value}
		p := d.partition(binary.BigEndian.Uint32(key[17:]))
		if err := d.end(); err != nil {
			return damaged("key %q: %w", key, err)
		}
		if r, ok := goesOn[p.Group]; ok {
			t.leave([16]byte(key[1:17]), p, r)
		}
		return nil
	})
}

// leave takes all replicas but one, or all, from a partition; r 0: all.
func (t *tx) leave(i raftlog.Incarnation, p Partition, r raftlog.ReplicaID) {
	if p.Generation == 0 {
		p.first = p.FirstReplicas()
	}
	var left []Assignment
	for n, a := range p.Replicas {
		leads := 0
		if n == 0 {
			leads = 1
		}
		if a.Replica != r {
			t.charge(a.Node, -1, -leads)
			continue
		}
		left = []Assignment{a}
		t.charge(a.Node, 0, 1-leads)
	}
	if p.Target != nil {
		if add := p.Target.Add; add.Replica == r {
			left = []Assignment{add}
			t.charge(add.Node, 0, 1)
		} else {
			t.charge(add.Node, -1, 0)
		}
		p.Target = nil
		t.putMoves(t.moves() - 1)
	}
	p.Replicas = left
	p.Generation++
	t.putPartition(i, p)
}

func keyRecovery(epoch uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{tableRecovery}, epoch)
}

func (t *tx) putRecovery(r Recovery) {
	b := append(appendFlag([]byte{recordVersion}, r.DestructionHeld), r.Plan[:]...)
	b = appendUint(appendUint(b, uint64(r.Stamp)), uint64(len(r.LeftBehind)))
	for _, n := range r.LeftBehind {
		b = appendUint(b, uint64(n))
	}
	t.put(keyRecovery(r.Epoch), appendGroups(b, r.Forced, r.Lost))
}

// recoveryRecord reads a recovery's value; its epoch is in the key.
func (d *decoder) recoveryRecord() (r Recovery) {
	d.version(recordVersion)
	r.DestructionHeld, r.Plan, r.Stamp = d.flag(), d.id16(), Stamp(d.uint())
	for range d.count(1) {
		r.LeftBehind = append(r.LeftBehind, raftlog.NodeID(d.uint()))
	}
	r.Forced, r.Lost = d.groups()
	return r
}

// recoveries returns all recoveries, by epoch.
func (t *tx) recoveries() (all []Recovery) {
	if t.err != nil {
		return nil
	}
	err := t.scan([]byte{tableRecovery}, func(key, value []byte) error {
		if err := wantLength(key, 1+8); err != nil {
			return damaged("key %q: %w", key, err)
		}
		d := decoder{b: value}
		r := d.recoveryRecord()
		if err := d.end(); err != nil {
			return damaged("key %q: %w", key, err)
		}
		r.Epoch = binary.BigEndian.Uint64(key[1:])
		all = append(all, r)
		return nil
	})
	if err != nil {
		t.fail(err)
	}
	return all
}

// endHold ends the hold on destruction of all recoveries up to an epoch: the
// person who asks for it has seen no later one.
type endHold struct{ Epoch uint64 }

func (endHold) kind() CommandType            { return typeEndHold }
func (c endHold) appendBody(b []byte) []byte { return appendUint(b, c.Epoch) }

func (c endHold) check() error {
	if c.Epoch > maxEpoch {
		return invalid("Epoch", c.Epoch, "0 to %d", maxEpoch)
	}
	return nil
}

func (c endHold) apply(t *tx) (any, error) {
	if k := t.cluster(); c.Epoch > k.Epoch {
		return nil, invalid("Epoch", c.Epoch, "0 to %d, the recovery epoch of the cluster", k.Epoch)
	}
	for _, r := range t.recoveries() {
		if r.Epoch <= c.Epoch && r.DestructionHeld {
			r.DestructionHeld = false
			t.putRecovery(r)
			t.changes = append(t.changes, change{cluster: true})
		}
	}
	return nil, nil
}

// EndHold ends the hold on destruction that forced recoveries up to an epoch left:
// a person has looked at what was set aside, and needs no more of it. It may be
// called again. *InvalidError for an epoch that the cluster has not reached.
func (s *Store) EndHold(ctx context.Context, epoch uint64) error {
	_, err := s.propose(ctx, endHold{epoch})
	return err
}

// Recoveries returns the forced recoveries that the cluster went through, by
// epoch, as this node knows them (stale). What it points to must not be changed.
func (s *Store) Recoveries() (all []Recovery) {
	s.machine.read(func(c *catalog) { all = slices.Clone(c.recoveries) })
	return all
}

// Epoch returns the recovery epoch of the cluster, as this node knows it (stale).
func (s *Store) Epoch() (epoch uint64) {
	s.machine.read(func(c *catalog) { epoch = c.cluster.Epoch })
	return epoch
}
