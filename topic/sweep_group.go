package topic

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// versionOfLeft is the version of the cluster from which on a node can be asked
// whether a replica has left its group.
const versionOfLeft = 3

// LongerCopyError keeps the copy of a replica that moved away: it has committed entries
// that the partition's group, asked by a linearizable read, does not have. So the group
// has lost what was acknowledged, or the copy is not what it should be; a person has to
// look at both. It matches raftlog.ErrRetry.
type LongerCopyError struct {
	TopicPartition
	Replica storage.ReplicaID
	Last    storage.Index // that the copy applied
	Term    storage.Term  // of Last
	Commit  storage.Index // that the copy knew to be committed
}

func (e *LongerCopyError) Error() string {
	return fmt.Sprintf("topic: the copy of %v that moved away from %v has entries up to %d (of term %d, committed up to %d) that its group does not have",
		e.Replica, e.TopicPartition, e.Last, e.Term, e.Commit)
}

// Is gives the error its outcome: retry.
func (e *LongerCopyError) Is(target error) bool { return target == raftlog.ErrRetry }

// errListed: the group has the replica, or may.
var errListed = raftlog.Retry(errors.New("topic: the partition's group still lists the replica"))

// hasLeft returns nil if the group of a partition says, by a linearizable read of
// its own, that it does not list a replica, and that it has all that the replica's copy
// has; a *LongerCopyError says that it has not. Every node that holds the partition may
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
		var word leftWord
		if r := m.replica(a); node == m.cfg.Node && r != nil {
			word, err = r.left(ctx, what.group, what.replica, what.end)
		} else {
			word, err = m.askLeft(ctx, node, a, what)
		}
		switch {
		case err == nil && word == leftListed:
			return errListed
		case err == nil && word == leftLonger:
			return &LongerCopyError{TopicPartition{t.Name, what.partition}, what.replica, what.end.last, what.end.term, what.end.commit}
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

func (m *Manager) askLeft(ctx context.Context, node storage.NodeID, a address, what remains) (leftWord, error) {
	response, err := m.call(ctx, node, methodLeft, encodeLeft(a, what.group, what.replica, what.end), 0)
	if err != nil {
		return 0, err
	}
	return decodeLeftIs(response)
}

// leftWord is what a group says of a replica that is said to have left.
type leftWord byte

const (
	leftWhole  leftWord = 0 // it is not listed, and the group has all that its copy has
	leftListed leftWord = 1
	leftLonger leftWord = 2 // it is not listed, and its copy has what the group has not
)

// left says whether the group lists a replica, by a linearizable read: in its
// configuration as of an entry that is not older than the call, in any half; and
// whether its log has what the copy has.
func (r *replica) left(ctx context.Context, g storage.GroupID, id storage.ReplicaID, end copyEnd) (leftWord, error) {
	if have := r.where().Group; have != g {
		return 0, raftlog.Refused(fmt.Errorf("topic: this is %v, asked for is %v", have, g))
	}
	read, err := r.group.ReadIndex(ctx) // what was ever known to be committed is not above it
	if err != nil {
		return 0, readError(err)
	}
	st, err := r.group.State(ctx)
	switch {
	case err != nil:
		return 0, err
	case listsReplica(&st.Conf, id):
		return leftListed, nil
	case end.commit > read:
		return leftLonger, nil
	}
	term, err := r.group.Log().Term(end.last)
	switch {
	case errors.Is(err, storage.ErrCompacted): // retention removed it, with the group's consent
		return leftWhole, nil
	case err != nil:
		return 0, raftlog.Retry(fmt.Errorf("topic: the term of entry %d: %w", end.last, err))
	case term != end.term:
		return leftLonger, nil
	}
	return leftWhole, nil
}

// holdCopy moves a copy that has more than its group to quarantine, where it is held.
func (sw *sweeper) holdCopy(what remains, longer *LongerCopyError) error {
	for _, st := range sw.cfg.Host.Replicas() {
		if st.Replica != what.replica {
			continue
		}
		why := storage.Reason{Kind: storage.ReasonLonger, Text: longer.Error(), At: sw.cfg.Clock.Now()}
		if err := sw.cfg.Store.QuarantineReplica(st, why); err != nil {
			return raftlog.Retry(withoutOutcome{errors.Join(longer, err)})
		}
		sw.cfg.Logger.Error("a copy that moved away has more than its group: it is held in quarantine", zap.Error(longer))
	}
	return longer
}

func (m *Manager) serveLeft(ctx context.Context, r *replica, _ byte, body []byte) ([]byte, error) {
	g, id, end, err := decodeLeft(body)
	if err != nil {
		return nil, err
	}
	ctx, cancel := within(ctx, m.cfg.Clock, m.cfg.CallTimeout)
	defer cancel()
	word, err := r.left(ctx, g, id, end)
	if err != nil {
		return nil, err
	}
	return append(responseHead(1), byte(word)), nil
}

// A question of "topic.left" is, behind the address, group, replica, and of its copy
// the last applied entry, its term, and the commit, 8 bytes each; the answer a byte,
// the leftWord.
const leftSize = 40

func encodeLeft(a address, g storage.GroupID, r storage.ReplicaID, end copyEnd) []byte {
	b := a.append(make([]byte, 0, wireAddress+leftSize), 0)
	for _, v := range [...]uint64{uint64(g), uint64(r), uint64(end.last), uint64(end.term), uint64(end.commit)} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

func decodeLeft(body []byte) (g storage.GroupID, r storage.ReplicaID, end copyEnd, err error) {
	if len(body) != leftSize {
		return 0, 0, end, malformed("left of %d bytes", len(body))
	}
	at := func(i int) uint64 { return binary.LittleEndian.Uint64(body[8*i:]) }
	g, r = storage.GroupID(at(0)), storage.ReplicaID(at(1))
	end = copyEnd{storage.Index(at(2)), storage.Term(at(3)), storage.Index(at(4))}
	if g == 0 || r == 0 || end.commit < end.last {
		return 0, 0, end, malformed("replica %d of group %d, applied %d of %d", r, g, end.last, end.commit)
	}
	return g, r, end, nil
}

func decodeLeftIs(response []byte) (leftWord, error) {
	body, err := decodeResponse(response)
	if err != nil {
		return 0, err
	}
	if len(body) != 1 || leftWord(body[0]) > leftLonger {
		return 0, raftlog.Retry(malformed("left in %d bytes", len(body)))
	}
	return leftWord(body[0]), nil
}
