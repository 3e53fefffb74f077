package topic

import (
	"context"
	"errors"
	"sync"
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
	if ctx == nil {
		return Fetched{}, explain(ctx, ErrNoContext, "read %v", r)
	}
	ctx, end := r.m.cfg.Trace.begin(ctx, Operation{Name: OpFetch, Topic: r.name, Partition: int(r.partition), Bytes: maxBytes})
	ctx, cancel := until(ctx, r.life)
	defer cancel()
	f, err := r.await(ctx, maxBytes)
	err = explain(ctx, err, "read %v from offset %d on", r, r.next)
	end(err)
	return f, err
}

func (r *Reader) await(ctx context.Context, maxBytes int) (Fetched, error) {
	var b backoff
	var last error
	for {
		if err := r.closed(ctx); err != nil {
			return Fetched{}, because(err, last)
		}
		req := FetchRequest{From: r.next, MaxBytes: maxBytes, Seen: r.HighWatermark()}
		f, err := r.fetchHere(ctx, req)
		switch {
		case err == nil && len(f.Data) == 0 && r.closed(ctx) == nil:
			f, err = r.compare(ctx, req)
		case err != nil && !final(err):
			f, err = r.fetchAway(ctx, req)
		}
		if err == nil {
			err = checkFetched(f, r.next)
		}
		switch {
		case err == nil:
			r.seen.Store(int64(max(r.HighWatermark(), f.HighWatermark)))
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
				last = r.m.orLost(r.place, err)
			}
			b.wait(ctx, r.m.cfg.Clock, nil)
		}
	}
}

// compare asks another node after a wait in vain for records on this one: a
// replica whose disk hangs, or that is cut off, does not know that it is behind.
// All others are asked in turn, because they may be as well. Where no other one
// answers, there is nothing new; nor is it waited for when the one here moves.
func (r *Reader) compare(ctx context.Context, req FetchRequest) (Fetched, error) {
	nothing := Fetched{Next: req.From, HighWatermark: r.HighWatermark()}
	replica := r.m.replica(r.address)
	if replica == nil {
		return nothing, nil
	}
	moved := replica.part.Changed()
	if end, err := replica.part.HighWatermark(); err != nil || end > req.From {
		return nothing, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-moved:
			cancel()
		case <-ctx.Done():
		}
	})
	f, err := r.fetchFrom(ctx, req, 0)
	cancel()
	watch.Wait()
	if err != nil && !final(err) {
		return nothing, nil
	}
	r.behind = err == nil && len(f.Data) > 0
	r.away++
	return f, err
}

// fetchHere asks the replica on this node. It waits for records, and much less
// for the replica itself, or not at all as long as that is known to be behind.
func (r *Reader) fetchHere(ctx context.Context, req FetchRequest) (Fetched, error) {
	replica := r.m.replica(r.address)
	if replica == nil {
		return Fetched{}, ErrNoReplica
	}
	timer := r.m.cfg.Clock.NewTimer(patience)
	defer timer.Stop()
	ctx, cancel := within(ctx, r.m.cfg.Clock, r.m.cfg.FetchWait)
	defer cancel()
	for {
		changed := replica.part.Changed()
		f, err := replica.fetch(ctx, req, r.buf)
		r.buf = f.Buf
		var behind *BehindError
		switch {
		case err == nil:
			r.behind = false
			if len(f.Data) > 0 {
				r.m.stats.fetchedLocal.Add(1)
			}
			return f, nil
		case r.behind:
			return Fetched{}, err
		case !errors.As(err, &behind) && !errors.Is(err, ErrNotReadable):
			return Fetched{}, err
		}
		select {
		case <-changed:
		case <-timer.C():
			r.behind = true
			return Fetched{}, err
		case <-ctx.Done():
			return Fetched{}, err
		}
	}
}

// fetchAway asks another node, which holds the question for a while.
func (r *Reader) fetchAway(ctx context.Context, req FetchRequest) (Fetched, error) {
	wait := r.m.cfg.FetchWait
	if r.m.replica(r.address) != nil {
		wait = patience // the one here is to have its turn soon
	}
	return r.fetchFrom(ctx, req, wait)
}

// fetchFrom asks another node, which holds the question for as long as wait.
func (r *Reader) fetchFrom(ctx context.Context, req FetchRequest, wait time.Duration) (Fetched, error) {
	node := r.elsewhere()
	if node == 0 {
		return Fetched{}, ErrNoReplica
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
	place := r.m.current(r.address, r.place)
	nodes := make([]storage.NodeID, 0, len(place.Replicas)+1)
	if to := r.m.leaderOf(r.address, place); to.here == nil && to.node != 0 {
		nodes = append(nodes, to.node)
	}
	for _, at := range place.Replicas {
		if at.Node != r.m.cfg.Node && (len(nodes) == 0 || at.Node != nodes[0]) {
			nodes = append(nodes, at.Node)
		}
	}
	if len(nodes) == 0 {
		return 0
	}
	return nodes[r.away%len(nodes)]
}

// query asks a replica what it shows.
type query struct {
	linearizable bool  // not less than what any replica had shown before the call
	searches     bool  // for the first offset of the stamp or a later one; linearizable
	stamp        int64 // ms
}

// request makes the call of another node that asks the same.
func (q query) request(a address) (method string, request []byte, decode func([]byte) (offsets, error)) {
	switch {
	case q.searches:
		return methodSince, encodeSince(a, q.stamp), decodeSinceIs
	case q.linearizable:
		return methodOffsets, a.append(nil, flagLinearizable), decodeOffsets
	}
	return methodOffsets, a.append(nil, 0), decodeOffsets
}

// offsets returns what a replica shows, until ctx ends.
func (r *Reader) offsets(ctx context.Context, q query) (offsets, error) {
	ctx, cancel := until(ctx, r.life)
	defer cancel()
	var b backoff
	var last error
	for {
		if err := r.closed(ctx); err != nil {
			return offsets{}, because(err, last)
		}
		o, err := r.offsetsHere(ctx, q)
		if err == nil {
			return o, nil
		}
		if node := r.elsewhere(); node != 0 {
			method, request, decode := q.request(r.address)
			var response []byte
			response, err = r.m.call(ctx, node, method, request, 0)
			if err == nil {
				o, err = decode(response)
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
			last = r.m.orLost(r.place, err)
		}
		b.wait(ctx, r.m.cfg.Clock, nil)
	}
}

func (r *Reader) offsetsHere(ctx context.Context, q query) (offsets, error) {
	replica := r.m.replica(r.address)
	switch {
	case replica == nil:
		return offsets{}, ErrNoReplica
	case replica.ending.Load():
		return offsets{}, ErrTopicDeleted
	case replica.shut.Load():
		return offsets{}, errNotYet
	}
	ctx, cancel := within(ctx, r.m.cfg.Clock, r.m.cfg.CallTimeout)
	defer cancel()
	o, err := replica.offsets(ctx, q.linearizable)
	if err == nil && q.searches {
		err = replica.since(&o, q.stamp)
	}
	if err != nil && raftlog.OutcomeOf(err) == raftlog.OutcomeUnknown {
		err = readError(err)
	}
	return o, err
}
