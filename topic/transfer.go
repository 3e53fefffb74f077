package topic

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// TransferLeadership has the leader of a partition, wherever it is, hand over to
// the replica on a node. It returns nil when that one leads. Records wait for the
// length of a round trip meanwhile, and none is lost. A partition whose preferred
// leader is another node goes back to that one after a while, unless NoHandBack.
//
// Errors: metastore.ErrTopicNotFound, *NoPartitionError; ErrNoReplica (Refused) if
// the node holds none; Retry if the partition has no leader for CallTimeout;
// ErrNotTransferred (Retry) if the other one did not take over. If
// ctx ends, or the answer is lost, the error is Unknown: the call may be repeated.
func (m *Manager) TransferLeadership(ctx context.Context, at TopicPartition, to raftlog.NodeID) error {
	ctx, cancel, err := m.whileOpen(ctx)
	defer cancel()
	if err == nil {
		err = m.transferLeadership(ctx, at, to)
	}
	return explain(ctx, err, "hand over %v to %v", at, to)
}

// ErrNotTransferred says that the chosen replica did not take over leadership:
// the last leader leads on, or another one took over. It is Retry.
var ErrNotTransferred = raftlog.Retry(errors.New("topic: the chosen replica did not take over"))

func (m *Manager) transferLeadership(ctx context.Context, at TopicPartition, to raftlog.NodeID) error {
	t, err := m.active(ctx, at.Topic)
	if err == nil {
		err = checkPartition(&t, at.Partition)
	}
	if err == nil { // who asks knows of a move that this node may not know of yet
		err = m.barrier(ctx)
	}
	if err != nil {
		return err
	}
	a := address{t.Incarnation, at.Partition}
	p := m.current(a, t.Partitions[at.Partition])
	r, err := successor(p, at, to)
	if err != nil {
		return err
	}
	bounded, cancel := within(ctx, m.cfg.Clock, m.cfg.CallTimeout)
	defer cancel()
	var b backoff
	for {
		err := m.tryTransfer(bounded, a, p, r)
		var notLeader *raftlog.NotLeaderError
		if err == nil || !errors.As(err, &notLeader) && !errors.Is(err, ErrNoReplica) {
			return err
		}
		if b.wait(bounded, m.cfg.Clock, nil); bounded.Err() != nil {
			return raftlog.Retry(withoutOutcome{fmt.Errorf("no leader of %v: %w (%w)", at, context.Cause(bounded), err)})
		}
	}
}

// successor returns the replica on a node, which is to lead.
func successor(p metastore.Partition, at TopicPartition, to raftlog.NodeID) (storage.ReplicaID, error) {
	for _, have := range p.Replicas {
		if have.Node == to {
			return have.Replica, nil
		}
	}
	if p.Target != nil && p.Target.Add.Node == to {
		return 0, raftlog.Retry(fmt.Errorf("topic: the replica of %v on %v is still being filled", at, to))
	}
	return 0, raftlog.Refused(withoutOutcome{fmt.Errorf("%w: %v holds none of %v", ErrNoReplica, to, at)})
}

// tryTransfer asks the node that is believed to lead.
func (m *Manager) tryTransfer(ctx context.Context, a address, p metastore.Partition, r storage.ReplicaID) error {
	to := m.leaderOf(a, p)
	switch {
	case to.here != nil:
		return to.here.handOver(ctx, r)
	case to.node == 0:
		return &raftlog.NotLeaderError{Group: p.Group}
	}
	response, err := m.call(ctx, to.node, methodTransfer, encodeTransfer(a, r), 0)
	if err == nil {
		_, err = decodeResponse(response)
	}
	if err == nil {
		m.noteRoute(a, p, nodeOf(p, r), nil)
		return nil
	}
	m.noteRoute(a, p, to.node, err)
	return err
}

// handOver hands leadership to another replica and waits until that one leads.
func (r *replica) handOver(ctx context.Context, to storage.ReplicaID) error {
	before := r.lead.Load()
	if !before.role.IsLeader() {
		return &raftlog.NotLeaderError{Group: r.where().Group, Leader: before.leader, Node: nodeOf(r.where(), before.leader)}
	}
	if r.id == to {
		return nil
	}
	err := r.group.TransferLeadership(ctx, to)
	switch {
	case errors.Is(err, raftlog.ErrTransferFailed), errors.Is(err, raftlog.ErrNoTarget):
		return raftlog.Retry(fmt.Errorf("%w: %w", ErrNotTransferred, withoutOutcome{err}))
	case err != nil:
		return err
	}
	for {
		changed := r.changed.wait()
		switch now := r.lead.Load(); {
		case now.failed != nil:
			return raftlog.Unknown(withoutOutcome{now.failed})
		case now.leader == to && now.term > before.term:
			return nil
		case now.leader != 0 && now.term > before.term:
			return fmt.Errorf("%w: %v did", ErrNotTransferred, now.leader)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return raftlog.UnknownCause(ctx)
		}
	}
}

func (m *Manager) serveTransfer(ctx context.Context, r *replica, _ byte, body []byte) ([]byte, error) {
	to, err := decodeTransfer(body)
	if err == nil {
		err = r.handOver(ctx, to)
	}
	if err != nil {
		return nil, err
	}
	return responseHead(0), nil
}

func encodeTransfer(a address, to storage.ReplicaID) []byte {
	return binary.LittleEndian.AppendUint64(a.append(make([]byte, 0, wireAddress+8), 0), uint64(to))
}

func decodeTransfer(body []byte) (storage.ReplicaID, error) {
	if len(body) != 8 {
		return 0, malformed("transfer of %d bytes", len(body))
	}
	to := storage.ReplicaID(binary.LittleEndian.Uint64(body))
	if to == 0 {
		return 0, malformed("transfer to no replica")
	}
	return to, nil
}
