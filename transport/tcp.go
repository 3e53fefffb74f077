package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// TCP is a Transport over TCP, or over whatever the host's dialer and listener
// give. Connections belong to the side that dialled: it sends frames or
// requests of one lane to one peer. The package comment lists the goroutines.
type TCP struct {
	cfg      TCPConfig
	refusals *refusalLog // of strangers
	notices  *refusalLog // of what this side knows by itself: nobody can crowd them out
	roster   roster
	keys     *keyring        // nil without TLS of ours; set before self
	ctx      context.Context // ends when Close begins
	cancel   context.CancelFunc
	self     atomic.Pointer[self] // nil before Start
	addr     atomic.Pointer[string]
	callIDs  atomic.Uint64
	stats    counters

	randMu sync.Mutex // of cfg.Rand

	// links is read for every frame, written once per peer and lane.
	links struct {
		sync.RWMutex
		m map[linkTo]*link
	}

	mu struct {
		sync.Mutex
		closed   bool
		h        guarded
		listener net.Listener
		conns    map[*conn]struct{}
	}
	wg sync.WaitGroup
}

// NewTCP checks the configuration; nothing runs before Start.
func NewTCP(cfg TCPConfig) (*TCP, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg.Secret = bytes.Clone(cfg.Secret)
	t := &TCP{cfg: cfg, refusals: newRefusalLog(cfg.Logger, cfg.Clock), notices: newRefusalLog(cfg.Logger, cfg.Clock)}
	t.roster = roster{t: t, byNode: make(map[nodeName]*presence)}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.links.m = make(map[linkTo]*link)
	t.mu.conns = make(map[*conn]struct{})
	addr := cfg.Advertise
	if addr == "" && cfg.Listener != nil {
		addr = cfg.Listener.Addr().String()
	}
	if addr == "" {
		addr = cfg.Listen
	}
	t.addr.Store(&addr)
	return t, nil
}

// Start implements Transport. An error of Listen is returned wrapped.
func (t *TCP) Start(id Identity, h Handler) error {
	if err := id.Validate(); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return ErrClosed
	}
	if t.self.Load() != nil {
		return errStarted
	}
	if t.cfg.TLS != nil {
		var err error
		if t.keys, err = newKeyring(t, id.Name); err != nil {
			return err
		}
	}
	ln := t.cfg.Listener
	if ln == nil && t.cfg.Listen != "" {
		var err error
		if ln, err = (&net.ListenConfig{}).Listen(t.ctx, "tcp", t.cfg.Listen); err != nil {
			return fmt.Errorf("transport: listen: %w", err)
		}
		if t.cfg.Advertise == "" {
			addr := ln.Addr().String()
			t.addr.Store(&addr)
		}
	}
	t.mu.h = guarded{h: h, log: t.cfg.Logger}
	t.mu.listener = ln
	t.self.Store(newSelf(t.Addr(), id))
	if ln != nil {
		t.wg.Go(func() { t.accept(ln) })
	}
	t.wg.Go(t.watch)
	return nil
}

// SetIdentity implements Transport.
func (t *TCP) SetIdentity(id Identity) {
	if id.Validate() != nil || t.self.Load() == nil {
		return
	}
	t.self.Store(newSelf(t.Addr(), id))
	for _, c := range t.openConns() {
		c.rejudge()
	}
}

// Addr implements Transport.
func (t *TCP) Addr() string { return *t.addr.Load() }

// Stats implements Transport.
func (t *TCP) Stats() Stats { return t.stats.snapshot() }

// Close implements Transport.
func (t *TCP) Close() error {
	t.mu.Lock()
	first := !t.mu.closed
	t.mu.closed = true
	ln := t.mu.listener
	t.mu.Unlock()
	var err error
	if first {
		t.cancel()
		if ln == nil {
			ln = t.cfg.Listener // given, never started
		}
		if ln != nil {
			err = ln.Close()
		}
		for _, l := range t.allLinks() {
			l.q.close()
		}
		for _, c := range t.openConns() {
			c.close(ErrClosed)
		}
	}
	t.wg.Wait()
	if first {
		for _, l := range t.allLinks() {
			l.lose(ErrClosed) // what was queued while nobody tended
		}
	}
	return err
}

// spawn starts a goroutine that Close waits for; false after Close.
func (t *TCP) spawn(f func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return false
	}
	t.wg.Go(f)
	return true
}

func (t *TCP) handler() guarded {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.h
}

func (t *TCP) openConns() []*conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	conns := make([]*conn, 0, len(t.mu.conns))
	for c := range t.mu.conns {
		conns = append(conns, c)
	}
	return conns
}

func (t *TCP) allLinks() []*link {
	t.links.RLock()
	defer t.links.RUnlock()
	links := make([]*link, 0, len(t.links.m))
	for _, l := range t.links.m {
		links = append(links, l)
	}
	return links
}

// track lets Close and the watch see a connection; false after Close, its own
// or the transport's.
func (t *TCP) track(c *conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed || c.closed() {
		return false
	}
	t.mu.conns[c] = struct{}{}
	return true
}

func (t *TCP) untrack(c *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.mu.conns, c)
}

// watch pings, and drops the connections that are silent, stuck or idle.
func (t *TCP) watch() {
	ticker := t.cfg.Clock.NewTicker(t.cfg.KeepAlive)
	defer ticker.Stop()
	for {
		select {
		case <-t.ctx.Done():
			return
		case <-ticker.C():
		}
		for _, c := range t.openConns() {
			c.tick()
		}
	}
}

// jitter is d, less up to half of it.
func (t *TCP) jitter(d time.Duration) time.Duration {
	t.randMu.Lock()
	defer t.randMu.Unlock()
	return d - time.Duration(t.cfg.Rand()%uint64(d/2+1))
}

// Send implements Transport.
func (t *TCP) Send(to string, class Class, frame []byte) {
	if class >= NumClasses {
		return
	}
	if len(frame) <= t.cfg.MaxFrame && t.self.Load() != nil && t.link(to, lane(class)).offer(item{kind: frameMessage, body: frame}) {
		return
	}
	t.stats.classes[class].dropped.add(1, len(frame))
}

// Call implements Transport.
func (t *TCP) Call(ctx context.Context, to, method string, req []byte) ([]byte, error) {
	fail := func(kind, cause error) ([]byte, error) { return nil, callError(kind, to, method, cause) }
	if err := checkRequest(method, req, t.cfg.MaxFrame); err != nil {
		return fail(ErrUnreachable, err)
	}
	ctx, cancel := withCallTimeout(ctx)
	defer cancel()
	if err := t.ended(ctx); err != nil {
		return fail(ErrUnreachable, err)
	}
	t.stats.calls.Add(1)
	l := t.link(to, laneCalls)
	c := l.begin()
	prefix := appendRequest(make([]byte, 0, 17+len(method)), c.id, remaining(ctx, t.cfg.Clock), method)
	if !l.offer(item{kind: frameRequest, prefix: prefix, body: req, call: c}) {
		l.finish(c.id)
		if err := t.ended(ctx); err != nil {
			return fail(ErrUnreachable, err)
		}
		return fail(ErrUnreachable, errQueueFull)
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		if l.giveUp(c) {
			return fail(ErrUnreachable, ctx.Err())
		}
		if l.finish(c.id) != nil {
			l.offer(item{kind: frameCancel, prefix: appendID(nil, c.id)})
			return fail(ErrInterrupted, ctx.Err())
		}
		<-c.done // the answer came at the same moment
	}
	if c.kind != nil {
		return fail(c.kind, c.err)
	}
	return c.resp, c.err
}

var (
	errQueueFull  = errors.New("send queue is full")
	errNotStarted = errors.New("transport not started")
)

// ended says why a caller must not begin; nil if it may.
func (t *TCP) ended(ctx context.Context) error {
	switch {
	case t.ctx.Err() != nil:
		return ErrClosed
	case t.self.Load() == nil:
		return errNotStarted
	}
	return ctx.Err()
}

// noteRefusal logs and counts a peer that this side turned away.
func (t *TCP) noteRefusal(remote net.Addr, err error) {
	t.stats.refused.Add(1)
	t.refusals.note(hostOf(remote), "refused a connection", zap.Error(err))
}
