package transport

import (
	"context"
	"net"
	"sync"
	"time"

	"go.uber.org/zap"
)

const (
	minAcceptPause = 5 * time.Millisecond
	maxAcceptPause = time.Second
)

// accept takes connections until Close.
func (t *TCP) accept(ln net.Listener) {
	waiting := newStrangers(t.cfg.MaxHandshakes)
	pause := minAcceptPause
	for {
		raw, err := ln.Accept()
		if err == nil {
			pause = minAcceptPause
			st := waiting.admit(raw)
			if st == nil {
				t.noteRefusal(raw.RemoteAddr(), errCrowded)
			}
			if st == nil || !t.spawn(func() { t.welcome(waiting, st) }) {
				_ = raw.Close()
			}
			continue
		}
		if t.ctx.Err() != nil {
			return
		}
		// Out of descriptors, most likely: the peers' patience is longer than
		// the shortage. A listener that the host closed ends up here too, once
		// a second.
		t.notices.note("listener", "cannot accept connections", zap.Error(err))
		if !sleep(t.ctx, t.ctx, t.cfg.Clock, pause) {
			return
		}
		pause = min(2*pause, maxAcceptPause)
	}
}

// welcome shakes hands with a stranger and serves it.
func (t *TCP) welcome(waiting *strangers, st *stranger) {
	stopClose := context.AfterFunc(t.ctx, func() { waiting.drop(st, ErrClosed) })
	defer stopClose()
	timer := t.cfg.Clock.AfterFunc(t.cfg.HandshakeTimeout, func() { waiting.drop(st, errTooSlow) })
	c, err := t.greetInbound(st.raw)
	timer.Stop()
	if why := waiting.leave(st); why != nil {
		err = why
	}
	switch {
	case err != nil && c != nil:
		c.close(err)
	case err == nil && !t.track(c):
		c.close(ErrClosed)
		err = context.Cause(c.ctx)
	}
	if err != nil {
		_ = st.raw.Close()
		if t.ctx.Err() == nil {
			t.noteRefusal(st.raw.RemoteAddr(), err)
		}
		return
	}
	stopClose()
	c.rejudge()
	t.stats.accepted.Add(1)
	t.serve(c)
}

// serve uses an accepted connection until it ends.
func (t *TCP) serve(c *conn) {
	h := t.handler()
	var writer sync.WaitGroup
	writer.Go(func() {
		c.close(c.send())
		c.out.close()
	})
	switch c.lane {
	case laneCalls:
		t.serveCalls(c, h)
	case laneStream:
		c.close(t.serveStream(c, h))
	default:
		c.close(c.receive(t.cfg.MaxFrame, func(kind frameKind, payload []byte) error {
			if kind != frameMessage {
				return unexpected(kind, c.lane)
			}
			t.stats.classes[c.lane].received.add(1, len(payload))
			return h.frame(*c.peer.Load(), Class(c.lane), payload)
		}))
	}
	writer.Wait()
}

// runningCalls are the calls of one connection that its handlers execute, or
// whose answers wait for room in the queue: what they hold is bounded by
// MaxCalls, what the queue holds by its budget.
type runningCalls struct {
	mu     sync.Mutex
	cancel map[uint64]context.CancelFunc
	wg     sync.WaitGroup
}

// serveCalls returns when the connection ended and its handlers returned.
func (t *TCP) serveCalls(c *conn, h guarded) {
	running := &runningCalls{cancel: make(map[uint64]context.CancelFunc)}
	c.close(c.receive(t.cfg.MaxFrame+requestFields, func(kind frameKind, payload []byte) error {
		switch kind {
		case frameRequest:
			req, err := decodeRequest(payload)
			if err != nil {
				return err
			}
			return t.execute(c, h, running, req)
		case frameCancel:
			id, _, err := decodeID(payload)
			running.interrupt(id)
			return err
		}
		return unexpected(kind, c.lane)
	}))
	c.out.close() // handlers may wait there
	running.wg.Wait()
}

func (r *runningCalls) begin(ctx context.Context, req request, limit int) (context.Context, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.cancel) >= limit || r.cancel[req.id] != nil {
		return nil, false
	}
	ctx, cancel := withTimeout(ctx, req.timeout)
	r.cancel[req.id] = cancel
	return ctx, true
}

// interrupt tells a call that nobody waits for it. It runs until its handler
// returns.
func (r *runningCalls) interrupt(id uint64) {
	r.mu.Lock()
	cancel := r.cancel[id]
	r.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

func (r *runningCalls) end(id uint64) {
	r.mu.Lock()
	cancel := r.cancel[id]
	delete(r.cancel, id)
	r.mu.Unlock()
	cancel()
}

// execute begins a call or refuses it. An error means that the peer does not
// take even refusals.
func (t *TCP) execute(c *conn, h guarded, running *runningCalls, req request) error {
	ctx, ok := running.begin(c.ctx, req, t.cfg.MaxCalls)
	if !ok {
		busy := outcome{verdict: verdictNotExecuted, message: "peer is busy"}
		if !c.out.exceed(item{kind: frameFailure, prefix: appendOutcome(appendID(nil, req.id), busy)}) {
			return errStuck
		}
		return nil
	}
	peer := *c.peer.Load()
	running.wg.Go(func() {
		t.stats.callsServed.Add(1)
		resp, err := h.call(ctx, peer, req.method, req.body)
		if err == nil {
			err = checkAnswer(resp, t.cfg.MaxFrame)
		}
		it := item{kind: frameResponse, prefix: appendID(nil, req.id), body: resp}
		if err != nil {
			it = item{kind: frameFailure, prefix: appendOutcome(it.prefix, outcomeOf(err))}
		}
		// Nobody waits any more for an answer that gets no room in time. The
		// call ends before its answer leaves, else the caller's next one could
		// be refused because of this one.
		room := c.out.reserve(ctx, &it)
		running.end(req.id)
		if room {
			c.out.fill(it)
		}
	})
	return nil
}
