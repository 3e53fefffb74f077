package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

type linkTo struct {
	addr string
	lane lane
}

// link is what this side sends to one peer in one lane: a queue that outlives
// connections. A goroutine tends it only while something waits or a connection
// is up. When the peer cannot be reached, what waited is lost at once (old
// heartbeats help nobody); what comes during the back-off waits for the next
// attempt.
type link struct {
	t *TCP
	linkTo
	q sendQueue

	mu    sync.Mutex
	calls map[uint64]*call // begun and not finished

	// Of the goroutine that tends it; the queue's lock hands them on.
	failures  int
	notBefore time.Time
	connected bool      // once at least
	missing   time.Time // since when nobody listens there, before anybody did
}

// The states of a call. Only a waiting one certainly was not executed.
const (
	callWaiting uint32 = iota
	callSent
	callGivenUp
)

// call is one Call of this side. Whoever removes it from its link settles it.
type call struct {
	id    uint64
	state atomic.Uint32
	done  chan struct{}
	// Valid after done closed: kind is nil if the handler answered.
	resp      []byte
	kind, err error
}

func (c *call) settle(resp []byte, kind, err error) {
	c.resp, c.kind, c.err = resp, kind, err
	close(c.done)
}

func (t *TCP) link(addr string, l lane) *link {
	key := linkTo{addr, l}
	t.links.RLock()
	k := t.links.m[key]
	t.links.RUnlock()
	if k != nil {
		return k
	}
	t.links.Lock()
	defer t.links.Unlock()
	if k = t.links.m[key]; k == nil {
		k = &link{t: t, linkTo: key, calls: make(map[uint64]*call)}
		k.q.init(t.cfg.QueueBytes.of(l))
		k.q.closed = t.ctx.Err() != nil
		t.links.m[key] = k
	}
	return k
}

// offer queues an item and sees to it that somebody sends it.
func (l *link) offer(it item) bool {
	ok, start := l.q.offer(it)
	if start && !l.t.spawn(l.tend) {
		l.q.close()
		l.lose(ErrClosed)
		return false
	}
	return ok
}

// busy reports whether a caller waits.
func (l *link) busy() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.calls) > 0
}

func (l *link) begin() *call {
	c := &call{id: l.t.callIDs.Add(1), done: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls[c.id] = c
	return c
}

// finish removes a call; the one who gets it settles it.
func (l *link) finish(id uint64) *call {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.calls[id]
	delete(l.calls, id)
	return c
}

// giveUp withdraws a call that was not sent; false if it was.
func (l *link) giveUp(c *call) bool {
	if !c.state.CompareAndSwap(callWaiting, callGivenUp) {
		return false
	}
	return l.finish(c.id) != nil
}

// lose drops what waits, because of an error.
func (l *link) lose(err error) {
	for _, it := range l.q.empty() {
		switch {
		case it.kind == frameMessage:
			l.t.stats.classes[l.lane].dropped.add(1, len(it.body))
		case it.call != nil:
			l.abandon(it.call, err)
		}
	}
}

// abandon settles a call that was not sent and will not be.
func (l *link) abandon(c *call, err error) {
	if l.finish(c.id) != nil {
		c.settle(nil, ErrUnreachable, err)
	}
}

// interrupt settles the calls that were sent over a connection that ended.
func (l *link) interrupt(err error) {
	l.mu.Lock()
	var sent []*call
	for id, c := range l.calls {
		if c.state.Load() == callSent {
			sent = append(sent, c)
			delete(l.calls, id)
		}
	}
	l.mu.Unlock()
	for _, c := range sent {
		c.settle(nil, ErrInterrupted, err)
	}
}

func (l *link) tend() {
	for !l.q.rest() {
		c, err := l.connect()
		if err != nil {
			l.fail(err)
			continue
		}
		l.connection(c)
	}
	if l.t.ctx.Err() != nil {
		l.lose(ErrClosed)
	}
}

// connect waits out the back-off and dials.
func (l *link) connect() (*conn, error) {
	clk := l.t.cfg.Clock
	if !sleep(l.t.ctx, l.t.ctx, clk, l.notBefore.Sub(clk.Now())) {
		return nil, ErrClosed
	}
	return l.t.dial(l.t.ctx, l.linkTo, &l.q, l.busy)
}

// backOff sets when the next attempt may be made.
func (l *link) backOff() {
	b := l.t.cfg.Backoff
	d := b.Max
	if l.failures < 30 {
		d = min(b.Min<<l.failures, b.Max)
	}
	l.failures++
	l.notBefore = l.t.cfg.Clock.Now().Add(l.t.jitter(d))
}

// startsWithin is how long after this node a peer may come up before it is said that
// it cannot be reached: nodes are started one after the other.
const startsWithin = 10 * time.Second

// early reports whether it is too early to complain of a peer that nobody has met
// and that does not listen yet.
func (l *link) early(err error) bool {
	var dial *net.OpError
	if l.connected || !errors.As(err, &dial) || dial.Op != "dial" {
		return false
	}
	now := l.t.cfg.Clock.Now()
	if l.missing.IsZero() {
		l.missing = now
	}
	return now.Sub(l.missing) < startsWithin
}

func (l *link) fail(err error) {
	l.backOff()
	l.lose(err)
	if l.t.ctx.Err() == nil && !l.early(err) {
		l.t.notices.note(l.addr, "cannot reach peer", zap.Error(err))
	}
}

// connection uses c until it ends.
func (l *link) connection(c *conn) {
	clk := l.t.cfg.Clock
	if l.connected {
		l.t.stats.reconnects.Add(1)
	}
	l.connected = true
	began := clk.Now()
	var reader sync.WaitGroup
	reader.Go(func() { c.close(c.receive(l.t.answerLimit(), l.take)) })
	c.close(c.send())
	reader.Wait()
	why := context.Cause(c.ctx)
	l.interrupt(why)
	for _, call := range c.unsent {
		l.abandon(call, why)
	}
	if clk.Now().Sub(began) >= l.t.cfg.PeerTimeout {
		l.failures = 0
	}
	// Even a connection that was accepted and dropped counts as a failure,
	// else a peer that does so would be dialled in a tight loop.
	l.backOff()
}

// answerLimit bounds what the accepting side sends back on a link.
func (t *TCP) answerLimit() int { return t.cfg.MaxFrame + requestFields }

// take handles what the accepting side of a link sends.
func (l *link) take(kind frameKind, payload []byte) error {
	if l.lane != laneCalls || kind != frameResponse && kind != frameFailure {
		return unexpected(kind, l.lane)
	}
	id, rest, err := decodeID(payload)
	if err != nil {
		return err
	}
	var o outcome
	if kind == frameFailure {
		if o, err = decodeOutcome(rest); err != nil {
			return err
		}
		rest = nil
	}
	c := l.finish(id)
	if c == nil {
		return nil // its caller gave up
	}
	var failure error
	if o.verdict == verdictNotExecuted {
		failure = ErrUnreachable
	}
	c.settle(rest, failure, o.err())
	return nil
}

// dial connects, shakes hands and returns a connection that writes from out.
// All errors match ErrUnreachable.
func (t *TCP) dial(ctx context.Context, to linkTo, out *sendQueue, busy func() bool) (*conn, error) {
	t.stats.dials.Add(1)
	ctx, cancel := context.WithTimeout(ctx, t.cfg.DialTimeout)
	defer cancel()
	c, err := t.dialAndGreet(ctx, to.addr, to.lane)
	if err == nil {
		c.out, c.busy = out, busy
		if err = t.roster.enter(c); err == nil && t.track(c) {
			c.rejudge()
			return c, nil
		}
		c.close(ErrClosed)
		err = context.Cause(c.ctx)
	}
	t.stats.dialFailures.Add(1)
	if ctx.Err() != nil && !errors.Is(err, ErrClosed) {
		err = fmt.Errorf("%w (%v)", err, ctx.Err())
	}
	if errors.Is(err, ErrUnreachable) {
		return nil, err
	}
	return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
}

func (t *TCP) dialAndGreet(ctx context.Context, addr string, l lane) (*conn, error) {
	under, err := t.cfg.Dialer(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	// From here on, only closing the connection ends what blocks.
	stop := context.AfterFunc(ctx, func() { _ = under.Close() })
	c, err := t.greetOutbound(ctx, under, addr, l)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = under.Close()
		return nil, err
	}
	return c, nil
}
