package transport

import (
	"context"
	"fmt"
	"time"

	"github.com/stelelog/stele/internal/clock"
)

// Call implements Transport.
func (m *Memory) Call(ctx context.Context, to, method string, req []byte) ([]byte, error) {
	if err := checkRequest(method, req, DefaultMaxFrame); err != nil {
		return nil, callError(ErrUnreachable, to, method, err)
	}
	ctx, cancel := withCallTimeout(ctx)
	defer cancel()
	me := m.self.Load()
	if err := m.ended(ctx); err != nil || me == nil {
		return nil, callError(ErrUnreachable, to, method, err)
	}
	m.stats.calls.Add(1)
	dst := m.net.node(to)
	resp, kind, err := m.roundTrip(ctx, me, dst, to, method, req)
	if kind != nil {
		return nil, callError(kind, to, method, err)
	}
	return resp, err
}

// ended says why a caller must not go on; nil if it may.
func (m *Memory) ended(ctx context.Context) error {
	if m.ctx.Err() != nil {
		return ErrClosed
	}
	return ctx.Err()
}

// roundTrip returns kind nil if the handler answered; else kind is
// ErrUnreachable or ErrInterrupted and err the cause.
func (m *Memory) roundTrip(ctx context.Context, me *self, dst *Memory, to, method string, req []byte) (resp []byte, kind, err error) {
	prefix := appendRequest(nil, 0, remaining(ctx, m.net.clk), method)
	encoded := appendFrame(nil, frameRequest, prefix, req)
	there := m.net.legFate(m.addr, to)
	there.apply(encoded)
	if !m.sleepUntil(ctx, there.at) {
		return nil, ErrInterrupted, m.ended(ctx)
	}
	if cut, _ := m.net.isCut(m.addr, to); there.lost || cut {
		return nil, ErrInterrupted, m.silence(ctx)
	}
	if dst == nil {
		if !m.returned(ctx, to) {
			return nil, ErrUnreachable, m.silence(ctx)
		}
		return nil, ErrUnreachable, nil
	}
	served, refusal := dst.serveCall(me, encoded)
	if served == nil {
		if !m.returned(ctx, to) {
			return nil, ErrInterrupted, m.silence(ctx)
		}
		if refusal != 0 {
			return nil, ErrUnreachable, &HandshakeError{Addr: to, Reason: refusal}
		}
		return nil, ErrInterrupted, nil
	}
	defer m.abandon(served, to)
	select {
	case answer := <-served.answer:
		return m.receive(ctx, to, answer)
	case <-dst.ctx.Done():
		if !m.returned(ctx, to) {
			return nil, ErrInterrupted, m.silence(ctx)
		}
		return nil, ErrInterrupted, nil
	case <-ctx.Done():
	case <-m.ctx.Done():
	}
	return nil, ErrInterrupted, m.ended(ctx)
}

// receive takes the way back of an encoded answer.
func (m *Memory) receive(ctx context.Context, to string, answer []byte) (resp []byte, kind, err error) {
	back := m.net.legFate(to, m.addr)
	back.apply(answer)
	if !m.sleepUntil(ctx, back.at) {
		return nil, ErrInterrupted, m.ended(ctx)
	}
	if cut, _ := m.net.isCut(to, m.addr); back.lost || cut {
		return nil, ErrInterrupted, m.silence(ctx)
	}
	k, payload, err := decodeFrame(answer, DefaultMaxFrame+requestFields)
	if err != nil {
		m.stats.corrupt.Add(1)
		return nil, ErrInterrupted, nil
	}
	if k == frameResponse {
		return payload, nil, nil
	}
	o, err := decodeOutcome(payload)
	if err != nil {
		return nil, ErrInterrupted, err
	}
	return nil, nil, o.err()
}

// returned lets a reset take the way back; false if it does not arrive.
func (m *Memory) returned(ctx context.Context, to string) bool {
	back := m.net.legFate(to, m.addr)
	return !back.lost && m.sleepUntil(ctx, back.at)
}

// silence waits until the caller gives up.
func (m *Memory) silence(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-m.ctx.Done():
	}
	return m.ended(ctx)
}

// servedCall is a call at the side that executes it.
type servedCall struct {
	cancel context.CancelFunc
	answer chan []byte // buffered; one encoded frame
}

// abandon tells the handler that nobody waits, unless the link is cut.
func (m *Memory) abandon(c *servedCall, to string) {
	if cut, _ := m.net.isCut(m.addr, to); !cut {
		c.cancel()
	}
}

// serveCall begins to execute an encoded request. A nil call was not accepted.
func (m *Memory) serveCall(from *self, encoded []byte) (*servedCall, Refusal) {
	kind, payload, err := decodeFrame(encoded, DefaultMaxFrame+requestFields)
	if err != nil || kind != frameRequest {
		m.stats.corrupt.Add(1)
		return nil, 0
	}
	req, err := decodeRequest(payload)
	if err != nil {
		return nil, 0
	}
	peer, err := decodePeer(from.encoded)
	if err != nil {
		return nil, 0
	}
	if r := Admit(m.self.Load().Identity, peer.Identity); r != 0 {
		m.stats.refused.Add(1)
		return nil, r.Told()
	}
	ctx, cancel := withTimeout(m.ctx, req.timeout)
	c := &servedCall{cancel: cancel, answer: make(chan []byte, 1)}
	ok := m.spawn(func(h guarded) {
		defer cancel()
		m.stats.callsServed.Add(1)
		resp, err := h.call(ctx, peer, req.method, req.body)
		if err == nil {
			err = checkAnswer(resp, DefaultMaxFrame)
		}
		if err != nil {
			c.answer <- appendFrame(nil, frameFailure, appendOutcome(nil, outcomeOf(err)), nil)
			return
		}
		c.answer <- appendFrame(nil, frameResponse, nil, resp)
	})
	if !ok {
		cancel()
		return nil, 0
	}
	return c, 0
}

// checkRequest refuses what no peer would accept.
func checkRequest(method string, req []byte, limit int) error {
	if len(method) > maxShort {
		return fmt.Errorf("transport: method name: %w", &TooLargeError{Size: len(method), Max: maxShort})
	}
	if len(req) > limit {
		return &TooLargeError{Size: len(req), Max: limit}
	}
	return nil
}

// answerTooLarge is a handler's answer over the limit; the caller sees it as
// a RemoteError.
type answerTooLarge struct{ TooLargeError }

func (e *answerTooLarge) ErrorCode() string { return "answer_too_large" }

func checkAnswer(resp []byte, limit int) error {
	if len(resp) > limit {
		return &answerTooLarge{TooLargeError{Size: len(resp), Max: limit}}
	}
	return nil
}

// withCallTimeout gives a call without deadline the default one.
func withCallTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, DefaultCallTimeout)
}

// withTimeout is a context with a deadline, or with none for 0.
func withTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if d == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d)
}

// remaining is the time until ctx's deadline as it travels: never 0 if there
// is one, 0 if there is none.
func remaining(ctx context.Context, clk clock.Clock) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return 0
	}
	return max(deadline.Sub(clk.Now()), 1)
}
