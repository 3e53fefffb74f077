package topic

import (
	"context"
	"fmt"
	"io"
	"slices"

	"go.uber.org/zap"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// Stream is a pair of byte pipes between two nodes. One goroutine may read and
// another write at the same time. A Read returns io.EOF only when the other end
// has said that it is at its end; Close may lose what was written.
type Stream interface {
	io.Reader
	io.Writer
	CloseWrite() error
	io.Closer
}

// Streamer opens streams to the managers of other nodes, where they arrive at
// HandleStream. ctx bounds the life of the stream, not only its opening.
type Streamer interface {
	OpenStream(ctx context.Context, to raftlog.NodeID, method string) (Stream, error)
}

// fillsServed is how many replicas of other nodes are filled from here at a
// time.
const fillsServed = 8

// HandleStream serves a stream of another node's manager ("topic.fill",
// "topic.frames", "topic.aside"), until it is done or ctx ends. What went wrong is in
// the stream; an error means that the stream itself was wrong (Refused) or broke. The
// caller closes the stream.
func (m *Manager) HandleStream(ctx context.Context, from raftlog.NodeID, method string, s Stream) error {
	send := map[string]func(context.Context, *replica, fillRequest, io.Writer) error{
		methodFill: m.sendFill, methodFrames: m.sendRange, methodAside: m.sendAside,
	}[method]
	switch {
	case send == nil:
		return &metastore.UnsupportedError{Call: method}
	case ctx == nil:
		return fmt.Errorf("stream of %v: %w", from, ErrNoContext)
	}
	ctx, cancel := until(ctx, m.life)
	defer cancel()
	request := make([]byte, fillRequestSize)
	if _, err := io.ReadFull(s, request); err != nil {
		return raftlog.Retry(fmt.Errorf("topic: fill of %v: %w", from, err))
	}
	q, err := decodeFillRequest(request)
	if err != nil {
		return fmt.Errorf("stream of %v: %w", from, err)
	}
	r, done, err := m.filler(from, q)
	if err == nil {
		err = send(ctx, r, q, s)
		done()
	}
	if err != nil {
		m.cfg.Logger.Debug("a replica elsewhere was not filled from here",
			zap.Stringer("other", from), zap.Stringer("replica", q.replica), zap.Error(err))
		if err := writeFill(s, fillRefused, encodeError(err)); err != nil {
			return raftlog.Retry(err)
		}
	}
	return s.CloseWrite()
}

// filler returns the replica that another node's is filled from, or repaired, if it
// is one of the same partition. done is called when nothing is sent any more.
func (m *Manager) filler(from raftlog.NodeID, q fillRequest) (r *replica, done func(), err error) {
	select {
	case m.filling <- struct{}{}:
	default:
		return nil, nil, raftlog.Retry(fmt.Errorf("%w: %d replicas are being filled from here", ErrOverloaded, fillsServed))
	}
	done = func() { <-m.filling }
	if r, err = m.serving(q.address); err == nil {
		err = r.gives(from, q)
	}
	if err != nil {
		done()
		return nil, nil, err
	}
	return r, done, nil
}

// gives reports why a replica gives nothing to another node's; nil: it does.
func (r *replica) gives(from raftlog.NodeID, q fillRequest) error {
	place := r.where()
	switch {
	case r.ending.Load():
		return ErrTopicDeleted
	case place.Group != q.group:
		return malformed("fill of %v, the partition's group is %v", q.group, place.Group)
	case nodeOf(place, q.replica) != from:
		return raftlog.Retry(fmt.Errorf("topic: fill %v: no assignment known here says that it is on %v", q.replica, from))
	}
	return nil
}

func (m *Manager) sendFill(ctx context.Context, r *replica, q fillRequest, w io.Writer) error {
	cut, err := r.cut(ctx, q)
	if err != nil {
		return err
	}
	var state []byte
	if cut.aux != 0 {
		// Now: while the entries are under way it may be replaced by a newer one.
		if state, err = r.group.Log().ReadAux(cut.aux); err != nil {
			return raftlog.Retry(fmt.Errorf("topic: producer state of %v: %w", r.address, err))
		}
	}
	if err := writeFill(w, fillIsCut, cut.encode()); err != nil {
		return err
	}
	if err := m.sendFrames(ctx, r, &cut, w); err != nil {
		return err
	}
	for len(state) > 0 {
		part := state[:min(len(state), fillChunk)]
		state = state[len(part):]
		if err := writeFill(w, fillState, part); err != nil {
			return err
		}
	}
	return writeFill(w, fillEnd, nil)
}

// cut decides what to send: all that this replica has applied, as of one look at
// its group, so that configuration and log are of the same index. Nothing is
// sent to one that this configuration does not list: it would not take a log in
// which it does not occur yet, and a stint that is over must not come back.
func (r *replica) cut(ctx context.Context, q fillRequest) (fillCut, error) {
	start := r.group.Log().Start() // before the rest: it only rises
	st, err := r.group.State(ctx)
	if err != nil {
		return fillCut{}, err
	}
	if !listsReplica(&st.Conf, q.replica) {
		return fillCut{}, raftlog.Retry(fmt.Errorf("topic: fill %v: it is not in the configuration as of entry %d", q.replica, st.Log.LastIndex))
	}
	first := max(q.next, start.Index+1)
	if first > st.Log.LastIndex+1 {
		return fillCut{}, raftlog.Retry(fmt.Errorf("topic: fill %v: it has entries up to %d, those here end at %d", q.replica, first-1, st.Log.LastIndex))
	}
	return fillCut{
		replica: r.id, term: st.Hard.Term, start: start,
		last: st.Log.LastIndex, lastIn: st.Log.LastTerm, next: st.Log.NextOffset, aux: st.Log.AuxIndex,
		first: first, conf: st.Conf,
	}, nil
}

// sendFrames sends the log up to the cut, without holding it.
func (m *Manager) sendFrames(ctx context.Context, r *replica, cut *fillCut, w io.Writer) error {
	buf := m.borrow()
	defer m.giveBack(buf)
	log := r.group.Log()
	for at := cut.first; at <= cut.last; {
		frames, next, err := log.Frames(at, cut.last+1, fillChunk, buf.bytes[:0])
		buf.bytes = frames
		if err != nil {
			return raftlog.Retry(fmt.Errorf("topic: entry %d of %v: %w", at, r.address, err))
		}
		if err := m.fillOut.take(ctx, len(frames)); err != nil {
			return raftlog.Retry(err)
		}
		if err := writeFill(w, fillFrames, frames); err != nil {
			return err
		}
		m.stats.filledOut.Add(uint64(len(frames)))
		at = next
	}
	return nil
}

// listsReplica reports whether a configuration lists a replica.
func listsReplica(c *storage.ConfState, r storage.ReplicaID) bool {
	return slices.Contains(slices.Concat(c.Voters, c.Learners, c.VotersOutgoing, c.LearnersNext), r)
}
