package topic

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// A replica of whose log some is damaged gets those entries from another replica,
// over a stream "topic.frames". It asks with the 50 bytes of a fill's request, where
// next is the first entry that it wants, and is answered by one message of a fill
// (fill_format.go): 3, frames, from that entry on and at least one, or 1, refused.
const methodFrames = "topic.frames"

// sendRange answers a question for frames.
func (m *Manager) sendRange(ctx context.Context, r *replica, q fillRequest, w io.Writer) error {
	buf := m.borrow()
	defer m.giveBack(buf)
	log := r.group.Log()
	var frames []byte
	var err error
	for _, most := range [...]int{fillChunk, 1} { // some of what follows the first may be damaged here
		frames, _, err = log.Frames(q.next, log.Position().LastIndex+1, most, buf.bytes[:0])
		if buf.bytes = frames; !errors.As(err, new(*storage.DamageError)) {
			break
		}
	}
	switch {
	case err != nil:
		return raftlog.Retry(fmt.Errorf("topic: entry %d of %v: %w", q.next, r.address, err))
	case len(frames) == 0:
		return raftlog.Retry(fmt.Errorf("topic: entry %d of %v: %w", q.next, r.address, storage.ErrBeyond))
	}
	if err := m.fillOut.take(ctx, len(frames)); err != nil {
		return raftlog.Retry(err)
	}
	m.stats.filledOut.Add(uint64(len(frames)))
	return writeFill(w, fillFrames, frames)
}

// patient is a replica of this node of whose log some is damaged.
type patient struct {
	address
	group   storage.GroupID
	replica storage.ReplicaID
	others  []raftlog.NodeID // that may have what is missing, the likeliest first
	agreed  bool             // a majority has what any of the others has
}

// repair gets what is damaged at a verifier's place from other replicas. It returns
// how many bytes were written. storage.ErrCompacted: it is not of the log any more.
func (m *Manager) repair(ctx context.Context, p patient, log *storage.Log, v *storage.Verifier) (int64, error) {
	var frames []byte
	if v.Next() <= log.Position().LastIndex { // else what is there too much is cut
		var err error
		if frames, err = m.vouched(ctx, p, v); err != nil {
			return 0, err
		}
	}
	if err := v.Repair(frames); err != nil {
		return 0, err
	}
	m.stats.repaired.Add(uint64(len(frames)))
	return int64(len(frames)), nil
}

// vouched gets the frames at a verifier's place that two other replicas have, or the
// only one that can be asked and has them. One of them alone is not believed where
// there is a second: that its frames are whole does not say that they are right, and
// with this replica's it would be a majority for the audit.
func (m *Manager) vouched(ctx context.Context, p patient, v *storage.Verifier) ([]byte, error) {
	var answers [][]byte
	last := error(ErrNoReplica)
	for _, node := range p.others {
		frames, err := m.framesFrom(ctx, node, p, v.Next())
		if err == nil {
			err = v.Fits(frames)
		}
		if err != nil {
			last = err
			continue
		}
		if p.agreed {
			return frames, nil
		}
		for _, other := range answers {
			// Each ends behind a frame, where its sender's damage begins or enough was sent.
			if n := min(len(frames), len(other)); bytes.Equal(frames[:n], other[:n]) {
				return frames[:n], nil
			}
		}
		answers = append(answers, frames)
	}
	switch len(answers) {
	case 0:
		return nil, last
	case 1:
		return answers[0], nil
	}
	return nil, fmt.Errorf("topic: entry %d of %v: %d other replicas have it, each something else: a person has to look", v.Next(), p.address, len(answers))
}

// framesFrom gets frames of a replica's log, from an entry on, from another node.
func (m *Manager) framesFrom(ctx context.Context, node raftlog.NodeID, p patient, next storage.Index) (frames []byte, err error) {
	err = m.ask(ctx, node, methodFrames, p, next, fillSilence, func(s Stream) error {
		kind, body, err := readFill(s, nil)
		switch {
		case err != nil:
			return err
		case kind == fillRefused:
			return fillError(body)
		case kind != fillFrames:
			return malformed("frames as a message of kind %d", kind)
		}
		frames = body
		return nil
	})
	if err != nil {
		return nil, err
	}
	m.stats.filledIn.Add(uint64(len(frames)))
	return frames, m.fillIn.take(ctx, len(frames))
}

// ask opens a stream to a node that may have what a replica's log is missing, and has
// the answer read, for no longer than limit.
func (m *Manager) ask(ctx context.Context, node raftlog.NodeID, method string, p patient, next storage.Index, limit time.Duration, read func(Stream) error) error {
	if m.cfg.Streamer == nil {
		return ErrNoReplica
	}
	ctx, cancel := within(ctx, m.cfg.Clock, limit)
	defer cancel()
	s, err := m.cfg.Streamer.OpenStream(ctx, node, method)
	if err != nil {
		return err
	}
	defer s.Close()
	q := fillRequest{address: p.address, group: p.group, replica: p.replica, next: next}
	if _, err := s.Write(q.encode()); err != nil {
		return err
	}
	if err := read(s); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return err
	}
	return nil
}

// others are the nodes of a partition's replicas but for this one, the leader's first.
func (m *Manager) others(p metastore.Partition, leader raftlog.NodeID) (nodes []raftlog.NodeID) {
	for _, a := range p.Replicas {
		switch a.Node {
		case m.cfg.Node:
		case leader:
			nodes = slices.Insert(nodes, 0, a.Node)
		default:
			nodes = append(nodes, a.Node)
		}
	}
	return nodes
}
