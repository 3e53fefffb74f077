package topic

import (
	"context"
	"errors"
	"time"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// patience is how long a reader waits for the replica on this node to answer,
// or to catch up with what it has seen elsewhere, before it asks another node.
const patience = 200 * time.Millisecond

// fetch returns records from the reader's offset on, at least one, in a buffer
// that it uses again. It waits until ctx ends.
func (r *Reader) fetch(ctx context.Context, maxBytes int) (Fetched, error) {
	ctx, cancel := until(ctx, r.life)
	defer cancel()
	f, err := r.await(ctx, maxBytes)
	return f, explain(ctx, err, "read %v from offset %d on", r, r.next)
}

func (r *Reader) await(ctx context.Context, maxBytes int) (Fetched, error) {
	var b backoff
	var last error
	for {
		if err := r.closed(ctx); err != nil {
			return Fetched{}, because(err, last)
		}
		req := FetchRequest{From: r.next, MaxBytes: maxBytes, Seen: r.seen}
		f, err := r.fetchHere(ctx, req)
		if err != nil && !final(err) {
			f, err = r.fetchAway(ctx, req)
		}
		if err == nil {
			err = checkFetched(f, r.next)
		}
		switch {
		case err == nil:
			r.seen = max(r.seen, f.HighWatermark)
			if len(f.Data) > 0 {
				return f, nil
			}
		case final(err):
			var out *OutOfRangeError
			if errors.As(err, &out) { // perhaps from another node, without names
				err = r.outOfRange(out.Offset, out.Start, out.End)
			}
			return Fetched{}, err
		default:
			if ctx.Err() == nil {
				last = err
			}
			b.wait(ctx, r.m.cfg.Clock, nil)
		}
	}
}

// fetchHere asks the replica on this node. It waits for records as long as ctx
// lasts, and for the replica itself only so long.
func (r *Reader) fetchHere(ctx context.Context, req FetchRequest) (Fetched, error) {
	replica := r.m.replica(r.address)
	if replica == nil {
		return Fetched{}, ErrNoReplica
	}
	timer := r.m.cfg.Clock.NewTimer(patience)
	defer timer.Stop()
	for {
		changed := replica.part.Changed()
		f, err := replica.fetch(ctx, req, r.buf)
		r.buf = f.Buf
		var behind *BehindError
		switch {
		case err == nil:
			if len(f.Data) > 0 {
				r.m.stats.fetchedLocal.Add(1)
			}
			return f, nil
		case !errors.As(err, &behind) && !errors.Is(err, ErrNotReadable):
			return Fetched{}, err
		}
		select {
		case <-changed:
		case <-timer.C():
			return Fetched{}, err
		case <-ctx.Done():
			return Fetched{}, err
		}
	}
}

// fetchAway asks another node, which holds the question for a while.
func (r *Reader) fetchAway(ctx context.Context, req FetchRequest) (Fetched, error) {
	node := r.elsewhere()
	if node == 0 {
		return Fetched{}, ErrNoReplica
	}
	wait := r.m.cfg.FetchWait
	if r.m.replica(r.address) != nil {
		wait = patience // the one here is to have its turn soon
	}
	request := encodeFetch(r.address, fetchCall{req, uint32(wait.Milliseconds())})
	response, err := r.m.call(ctx, node, methodFetch, request, wait)
	var f Fetched
	if err == nil {
		f, err = decodeFetched(response)
	}
	if err != nil {
		r.away++ // another one next time
		return Fetched{}, readError(err)
	}
	if len(f.Data) > 0 {
		r.m.stats.fetchedAway.Add(1)
	}
	return f, nil
}

// elsewhere returns the node to ask: at first where the leader is believed to
// be, then one after the other; 0: this node alone holds the partition.
func (r *Reader) elsewhere() storage.NodeID {
	nodes := make([]storage.NodeID, 0, len(r.place.Replicas))
	if to := r.m.leaderOf(r.address, r.place); to.here == nil && to.node != 0 {
		nodes = append(nodes, to.node)
	}
	for _, at := range r.place.Replicas {
		if at.Node != r.m.cfg.Node && (len(nodes) == 0 || at.Node != nodes[0]) {
			nodes = append(nodes, at.Node)
		}
	}
	if len(nodes) == 0 {
		return 0
	}
	return nodes[r.away%len(nodes)]
}

// offsets returns what a replica shows, until ctx ends. Linearizable: not less
// than what any replica had shown before the call.
func (r *Reader) offsets(ctx context.Context, linearizable bool) (offsets, error) {
	ctx, cancel := until(ctx, r.life)
	defer cancel()
	var flags byte
	if linearizable {
		flags = flagLinearizable
	}
	var b backoff
	var last error
	for {
		if err := r.closed(ctx); err != nil {
			return offsets{}, because(err, last)
		}
		o, err := r.offsetsHere(ctx, linearizable)
		if err == nil {
			return o, nil
		}
		if node := r.elsewhere(); node != 0 {
			var response []byte
			response, err = r.m.call(ctx, node, methodOffsets, r.append(nil, flags), 0)
			if err == nil {
				o, err = decodeOffsets(response)
			}
			if err == nil {
				return o, nil
			}
			r.away++
		}
		if final(err) {
			return offsets{}, err
		}
		if ctx.Err() == nil {
			last = err
		}
		b.wait(ctx, r.m.cfg.Clock, nil)
	}
}

func (r *Reader) offsetsHere(ctx context.Context, linearizable bool) (offsets, error) {
	replica := r.m.replica(r.address)
	switch {
	case replica == nil:
		return offsets{}, ErrNoReplica
	case replica.ending.Load():
		return offsets{}, ErrTopicDeleted
	}
	ctx, cancel := within(ctx, r.m.cfg.Clock, r.m.cfg.CallTimeout)
	defer cancel()
	o, err := replica.offsets(ctx, linearizable)
	if err != nil && raftlog.OutcomeOf(err) == raftlog.OutcomeUnknown {
		err = readError(err)
	}
	return o, err
}
