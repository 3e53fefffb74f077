package metastore

import (
	"fmt"
	"slices"

	"github.com/stelelog/stele/raftlog"
)

// MaxMoves is how many moves can be under way in a cluster at a time: each
// copies a partition.
const MaxMoves = 8

// MoveRequest asks for a partition to get a replica on another node.
type MoveRequest struct {
	Incarnation raftlog.Incarnation
	Partition   uint32
	Generation  uint64 // of the partition, as the caller saw it
	To          raftlog.NodeID
	Remove      raftlog.ReplicaID // goes in exchange; 0: none
}

// Move is a move that is under way.
type Move struct {
	Incarnation raftlog.Incarnation
	Partition   uint32
	Group       raftlog.GroupID
	Generation  uint64 // of the partition while it is under way
	Target      Target
}

// moveOf returns the move of a topic's partition that is under way.
func moveOf(i raftlog.Incarnation, p Partition) (Move, bool) {
	if p.Target == nil {
		return Move{}, false
	}
	return Move{i, p.Index, p.Group, p.Generation, *p.Target}, true
}

// startMove gives a partition a target: a replica id on a node. All changes of
// a partition's replicas compare and swap its generation.
type startMove struct {
	MoveRequest
	Stamp Stamp
}

func (startMove) kind() CommandType { return typeStartMove }
func (startMove) check() error      { return nil }

func (c startMove) appendBody(b []byte) []byte {
	b = appendUint(append(b, c.Incarnation[:]...), uint64(c.Partition))
	b = appendUint(appendUint(b, c.Generation), uint64(c.To))
	return appendUint(appendUint(b, uint64(c.Remove)), uint64(c.Stamp))
}

func (d *decoder) startMove() (c startMove) {
	c.Incarnation, c.Partition, c.Generation = d.id16(), d.uint32(), d.uint()
	c.To, c.Remove, c.Stamp = raftlog.NodeID(d.uint()), raftlog.ReplicaID(d.uint()), Stamp(d.uint())
	return c
}

// made reports whether p is what this command made of it, or one that asked for
// the same.
func (c startMove) made(p Partition) bool {
	return p.Generation == c.Generation+1 && p.Target != nil &&
		p.Target.Add.Node == c.To && p.Target.Remove == c.Remove
}

func (c startMove) apply(t *tx) (any, error) {
	head, p, err := t.partitionOf(c.Incarnation, c.Partition)
	if err != nil {
		return nil, err
	}
	if c.made(p) {
		return p, nil
	}
	m, known := t.member(c.To)
	_, holds := p.On(c.To)
	underWay := t.moves()
	switch {
	case !head.State.Kept():
		return nil, named(ErrTopicDeleting, head.Name)
	case p.Target != nil && p.Generation == c.Generation:
		return nil, named(ErrMovePending, fmt.Sprintf("%s/%d", head.Name, p.Index))
	case p.Generation != c.Generation:
		return nil, stale(head, p, c.Generation)
	case c.Remove != 0 && p.place(c.Remove) < 0:
		return nil, fmt.Errorf("%w: %s/%d has no %v", ErrStale, head.Name, p.Index, c.Remove)
	case !known:
		return nil, t.noMember(c.To)
	case holds:
		return nil, named(ErrReplicaExists, m.Name)
	case m.Liveness.Dead:
		return nil, named(ErrMemberDead, m.Name)
	case m.Liveness.Draining():
		return nil, named(ErrMemberDraining, m.Name)
	case underWay >= MaxMoves:
		return nil, ErrTooManyMoves
	}
	if p.Generation == 0 {
		p.first = p.FirstReplicas()
	}
	p.Generation++
	p.Target = &Target{Assignment{raftlog.ReplicaID(t.next(counterReplica)), c.To}, c.Remove, c.Stamp}
	t.charge(c.To, 1, 0)
	t.putMoves(underWay + 1)
	t.putPartition(c.Incarnation, p)
	return p, nil
}

// endMove says which move ends: Add was never part of another one.
type endMove struct {
	Incarnation raftlog.Incarnation
	Partition   uint32
	Generation  uint64 // while the move is under way
	Add         raftlog.ReplicaID
}

func (endMove) check() error { return nil }

func (c endMove) appendBody(b []byte) []byte {
	b = appendUint(append(b, c.Incarnation[:]...), uint64(c.Partition))
	return appendUint(appendUint(b, c.Generation), uint64(c.Add))
}

func (d *decoder) endMove() endMove {
	return endMove{d.id16(), d.uint32(), d.uint(), raftlog.ReplicaID(d.uint())}
}

// under returns the partition whose move this is, with the move under way; or
// ended, if it was ended already, and whether what it brought in is there.
func (c endMove) under(t *tx) (p Partition, ended, in bool, err error) {
	head, p, err := t.partitionOf(c.Incarnation, c.Partition)
	if err != nil {
		return p, false, false, err
	}
	if p.Generation == c.Generation+1 && p.Target == nil {
		return p, true, p.place(c.Add) >= 0, nil
	}
	if p.Generation != c.Generation || p.Target == nil || p.Target.Add.Replica != c.Add {
		return p, false, false, stale(head, p, c.Generation)
	}
	return p, false, false, nil
}

// end writes the partition without its move.
func (c endMove) end(t *tx, p Partition) {
	p.Target = nil
	p.Generation++
	t.putMoves(t.moves() - 1)
	t.putPartition(c.Incarnation, p)
}

// finishMove: the partition's group has the new configuration.
type finishMove struct{ endMove }

func (finishMove) kind() CommandType { return typeFinishMove }

// apply: the new replica takes the place of the one that goes, so that it is the
// preferred leader if that was.
func (c finishMove) apply(t *tx) (any, error) {
	p, ended, in, err := c.under(t)
	if ended && !in {
		err = fmt.Errorf("%w: the move was cancelled", ErrStale)
	}
	if err != nil || ended {
		return nil, err
	}
	p.Replicas = slices.Clone(p.Replicas)
	at := p.place(p.Target.Remove)
	if at < 0 {
		p.Replicas = append(p.Replicas, p.Target.Add)
	} else {
		leads := 0
		if at == 0 {
			leads = 1
		}
		t.charge(p.Replicas[at].Node, -1, -leads)
		t.charge(p.Target.Add.Node, 0, leads)
		p.Replicas[at] = p.Target.Add
	}
	c.end(t, p)
	return nil, nil
}

// cancelMove: the partition's group does not have the new replica, and will not
// get it.
type cancelMove struct{ endMove }

func (cancelMove) kind() CommandType { return typeCancelMove }

func (c cancelMove) apply(t *tx) (any, error) {
	p, ended, in, err := c.under(t)
	if ended && in {
		err = fmt.Errorf("%w: the move was finished", ErrStale)
	}
	if err != nil || ended {
		return nil, err
	}
	t.charge(p.Target.Add.Node, -1, 0)
	c.end(t, p)
	return nil, nil
}

func stale(head topicHead, p Partition, seen uint64) error {
	return fmt.Errorf("%w: %s/%d is at generation %d, asked for is %d", ErrStale, head.Name, p.Index, p.Generation, seen)
}

// partitionOf returns a partition of a topic that may not be there.
func (t *tx) partitionOf(i raftlog.Incarnation, index uint32) (topicHead, Partition, error) {
	head, ok := t.topic(i)
	if !ok {
		return head, Partition{}, ErrTopicNotFound
	}
	if index >= head.Config.Partitions {
		return head, Partition{}, named(ErrTopicNotFound, fmt.Sprintf("%s/%d", head.Name, index))
	}
	return head, t.partition(i, index), nil
}

// putPartition writes a partition of a topic that exists.
func (t *tx) putPartition(i raftlog.Incarnation, p Partition) {
	t.put(keyPartition(i, p.Index), appendPartition(nil, p))
	t.changes = append(t.changes, change{of: i, moved: &p})
}

// charge adds to what a member holds.
func (t *tx) charge(n raftlog.NodeID, replicas, leads int) {
	l := t.load(n)
	l.Replicas += uint64(replicas)
	l.Leads += uint64(leads)
	t.putLoad(n, l)
}

// moves counts the moves under way.
func (t *tx) moves() uint64 {
	n, _ := record(t, []byte{tableMoves}, (*decoder).uint)
	return n
}

func (t *tx) putMoves(n uint64) {
	if n == 0 {
		t.remove([]byte{tableMoves})
		return
	}
	t.put([]byte{tableMoves}, appendUint(nil, n))
}
