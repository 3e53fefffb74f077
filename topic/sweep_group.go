package topic

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// versionOfLeft is the version of the cluster from which on a node can be asked
// whether a replica has left its group.
const versionOfLeft = 3

// errListed: the group has the replica, or may.
var errListed = raftlog.Retry(errors.New("topic: the partition's group still lists the replica"))

// hasLeft returns nil if the group of a partition says, by a linearizable read of
// its own, that it does not list a replica. Every node that holds the partition may
// be asked: the read is confirmed by its leader.
//
// The metadata say that a replica has no place only after its group left it out.
// But the two are different groups: should the word of the metadata come from a
// damaged state, or from a bug in a move, the one whose data it is has the last
// one.
func (m *Manager) hasLeft(ctx context.Context, what remains) error {
	if err := m.cfg.Meta.Require(versionOfLeft); err != nil {
		return err
	}
	t, err := m.cfg.Meta.TopicByIncarnation(what.incarnation)
	if err != nil {
		return err
	}
	if int(what.partition) >= len(t.Partitions) || t.Partitions[what.partition].Group != what.group {
		return raftlog.Retry(fmt.Errorf("topic: partition %d of %q is not that of %v", what.partition, t.Name, what.group))
	}
	a, p := address{what.incarnation, what.partition}, t.Partitions[what.partition]
	failed := raftlog.Retry(fmt.Errorf("topic: no replica of %s/%d can be asked", t.Name, what.partition))
	for _, node := range m.whoHolds(a, p) {
		var listed bool
		if r := m.replica(a); node == m.cfg.Node && r != nil {
			listed, err = r.lists(ctx, what.group, what.replica)
		} else {
			listed, err = m.askLeft(ctx, node, a, what)
		}
		switch {
		case err == nil && listed:
			return errListed
		case err == nil:
			return nil
		}
		failed = raftlog.Retry(withoutOutcome{fmt.Errorf("topic: has %v left %s/%d? %w", what.replica, t.Name, what.partition, err)})
		if ctx.Err() != nil {
			break
		}
	}
	return failed
}

// whoHolds returns the nodes that hold a partition, who is believed to lead first.
func (m *Manager) whoHolds(a address, p metastore.Partition) (nodes []storage.NodeID) {
	lead := m.leaderOf(a, p)
	if lead.here != nil {
		nodes = append(nodes, m.cfg.Node)
	}
	for _, at := range p.Replicas {
		if at.Node == lead.node {
			nodes = slices.Insert(nodes, 0, at.Node)
		} else if !slices.Contains(nodes, at.Node) {
			nodes = append(nodes, at.Node)
		}
	}
	return nodes
}

func (m *Manager) askLeft(ctx context.Context, node storage.NodeID, a address, what remains) (listed bool, err error) {
	response, err := m.call(ctx, node, methodLeft, encodeLeft(a, what.group, what.replica), 0)
	if err != nil {
		return false, err
	}
	return decodeLeftIs(response)
}

// lists reports whether the group lists a replica, by a linearizable read: in its
// configuration as of an entry that is not older than the call, in any half.
func (r *replica) lists(ctx context.Context, g storage.GroupID, id storage.ReplicaID) (bool, error) {
	if have := r.where().Group; have != g {
		return false, raftlog.Refused(fmt.Errorf("topic: this is %v, asked for is %v", have, g))
	}
	if _, err := r.group.ReadIndex(ctx); err != nil {
		return false, readError(err)
	}
	st, err := r.group.State(ctx)
	if err != nil {
		return false, err
	}
	c := st.Conf
	return slices.Contains(slices.Concat(c.Voters, c.Learners, c.VotersOutgoing, c.LearnersNext), id), nil
}

func (m *Manager) serveLeft(ctx context.Context, r *replica, _ byte, body []byte) ([]byte, error) {
	g, id, err := decodeLeft(body)
	if err != nil {
		return nil, err
	}
	ctx, cancel := within(ctx, m.cfg.Clock, m.cfg.CallTimeout)
	defer cancel()
	listed, err := r.lists(ctx, g, id)
	if err != nil {
		return nil, err
	}
	return encodeLeftIs(listed), nil
}

func encodeLeft(a address, g storage.GroupID, r storage.ReplicaID) []byte {
	b := a.append(make([]byte, 0, wireAddress+16), 0)
	b = binary.LittleEndian.AppendUint64(b, uint64(g))
	return binary.LittleEndian.AppendUint64(b, uint64(r))
}

func decodeLeft(body []byte) (g storage.GroupID, r storage.ReplicaID, err error) {
	if len(body) != 16 {
		return 0, 0, malformed("left of %d bytes", len(body))
	}
	g, r = storage.GroupID(binary.LittleEndian.Uint64(body)), storage.ReplicaID(binary.LittleEndian.Uint64(body[8:]))
	if g == 0 || r == 0 {
		return 0, 0, malformed("replica %d of group %d", r, g)
	}
	return g, r, nil
}

func encodeLeftIs(listed bool) []byte {
	if listed {
		return append(responseHead(1), 1)
	}
	return append(responseHead(1), 0)
}

func decodeLeftIs(response []byte) (listed bool, err error) {
	body, err := decodeResponse(response)
	if err != nil {
		return true, err
	}
	if len(body) != 1 || body[0] > 1 {
		return true, raftlog.Retry(malformed("left in %d bytes", len(body)))
	}
	return body[0] == 1, nil
}
