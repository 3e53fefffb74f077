package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/stelelog/stele/internal/clock"
)

const (
	// memWindow is how many bytes of a stream wait for a reader.
	memWindow = 256 << 10
	memChunk  = 32 << 10
	// memPeerTimeout is how long a stream survives a cut.
	memPeerTimeout = 5 * time.Second
)

// memConn is one stream: two pipes and a common fate.
type memConn struct {
	net          *Network
	client       *Memory
	server       *Memory
	there, back  memPipe // client to server, server to client
	severed      chan struct{}
	serverCtx    context.Context
	cancelServer context.CancelFunc

	mu           sync.Mutex
	why          error         // set once, before severed closes
	stopWatching func() bool   // of the client's context
	deadline     clock.Stopper // guarded by net.mu: running while cut
}

func (c *memConn) otherThan(m *Memory) *Memory {
	if c.client == m {
		return c.server
	}
	return c.client
}

// runs reports whether the stream needs this direction of the network.
func (c *memConn) runs(from, to string) bool {
	d := direction{from, to}
	return d == direction{c.there.from, c.there.to} || d == direction{c.back.from, c.back.to}
}

// isCutLocked reports a cut in either direction; the network is locked.
func (c *memConn) isCutLocked() bool {
	return c.net.mu.cuts[direction{c.there.from, c.there.to}] || c.net.mu.cuts[direction{c.back.from, c.back.to}]
}

// suspectLocked gives a cut stream its time; the network is locked.
func (c *memConn) suspectLocked() {
	if c.deadline != nil {
		c.deadline.Stop()
	}
	c.deadline = c.net.clk.AfterFunc(memPeerTimeout, func() {
		c.net.mu.Lock()
		cut := c.isCutLocked()
		c.net.mu.Unlock()
		if cut {
			c.sever(fmt.Errorf("%w: peer silent", ErrInterrupted))
		}
	})
}

// sever ends the stream at both sides at once. The first reason stays.
func (c *memConn) sever(why error) {
	c.mu.Lock()
	if c.why != nil {
		c.mu.Unlock()
		return
	}
	c.why = why
	close(c.severed)
	stop := c.stopWatching
	c.mu.Unlock()
	c.cancelServer()
	stop()
	c.net.mu.Lock()
	delete(c.net.mu.streams, c)
	if c.deadline != nil {
		c.deadline.Stop()
	}
	c.net.mu.Unlock()
	for _, m := range []*Memory{c.client, c.server} {
		m.mu.Lock()
		delete(m.mu.conns, c)
		m.mu.Unlock()
	}
}

func (c *memConn) reason() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.why
}

// memPipe is one direction, with one reader and one writer.
type memPipe struct {
	net                *Network
	from, to           string
	readable, writable chan struct{} // buffered

	mu       sync.Mutex
	chunks   []memPiece
	bytes    int
	last     time.Time // arrival of the latest piece
	finished bool      // the writer said the end
	unwanted bool      // the reader is gone for good
}

// memPiece is bytes under way, or the end with its error.
type memPiece struct {
	at   time.Time
	data []byte
	end  error
}

func (p *memPipe) init(n *Network, from, to string) {
	p.net, p.from, p.to = n, from, to
	p.readable, p.writable = make(chan struct{}, 1), make(chan struct{}, 1)
}

// push queues a piece if there is room or it is an end.
func (p *memPipe) push(piece memPiece) (bool, error) {
	piece.at = p.net.streamArrival(p.from, p.to)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.finished || p.unwanted:
		return false, io.ErrClosedPipe
	case piece.end == nil && p.bytes >= memWindow:
		return false, nil
	}
	if piece.at.Before(p.last) {
		piece.at = p.last
	}
	p.last = piece.at
	p.chunks = append(p.chunks, piece)
	p.bytes += len(piece.data)
	p.finished = piece.end != nil
	poke(p.readable)
	return true, nil
}

// pull copies bytes that have arrived; else it says how long to wait, 0 for
// until there is something.
func (p *memPipe) pull(b []byte) (n int, wait time.Duration, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.chunks) == 0 {
		return 0, 0, nil
	}
	head := &p.chunks[0]
	if wait := head.at.Sub(p.net.clk.Now()); wait > 0 {
		return 0, wait, nil
	}
	if head.end != nil {
		return 0, 0, head.end
	}
	n = copy(b, head.data)
	head.data = head.data[n:]
	p.bytes -= n
	if len(head.data) == 0 {
		p.chunks = p.chunks[1:]
	}
	poke(p.writable)
	return n, 0, nil
}

// refuse makes the writer fail from now on.
func (p *memPipe) refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unwanted = true
	p.chunks, p.bytes = nil, 0
	poke(p.writable)
	poke(p.readable)
}

// memStream is one end.
type memStream struct {
	c       *memConn
	in, out *memPipe
	server  bool
	closed  context.Context // ends with Close of this end
	close   context.CancelFunc
}

// Read implements Stream.
func (s *memStream) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	for {
		if err := s.ended(); err != nil {
			return 0, err
		}
		cut, healed := s.c.net.isCut(s.in.from, s.in.to)
		if cut {
			waitFor(s, healed)
			continue
		}
		n, wait, err := s.in.pull(b)
		if n > 0 || err != nil {
			return n, err
		}
		if wait == 0 {
			waitFor(s, s.in.readable)
			continue
		}
		t := s.c.net.clk.NewTimer(wait)
		waitFor(s, t.C())
		t.Stop()
	}
}

// Write implements Stream.
func (s *memStream) Write(b []byte) (int, error) {
	written := 0
	for written < len(b) {
		if err := s.ended(); err != nil {
			return written, err
		}
		piece := append([]byte(nil), b[written:min(len(b), written+memChunk)]...)
		ok, err := s.out.push(memPiece{data: piece})
		if err != nil {
			return written, err
		}
		if ok {
			written += len(piece)
			continue
		}
		waitFor(s, s.out.writable)
	}
	return written, s.ended()
}

// waitFor returns when c fires or the stream ends.
func waitFor[T any](s *memStream, c <-chan T) {
	select {
	case <-c:
	case <-s.c.severed:
	case <-s.closed.Done():
	}
}

// ended says why this end is of no use any more; nil if it is.
func (s *memStream) ended() error {
	if s.closed.Err() != nil {
		return io.ErrClosedPipe
	}
	return s.c.reason()
}

// CloseWrite implements Stream.
func (s *memStream) CloseWrite() error {
	if err := s.ended(); err != nil {
		return err
	}
	if _, err := s.out.push(memPiece{end: io.EOF}); err != nil && !errors.Is(err, io.ErrClosedPipe) {
		return err
	}
	return nil
}

// Close implements Stream.
func (s *memStream) Close() error {
	if s.closed.Err() != nil {
		return nil
	}
	if s.server {
		_ = s.CloseWrite() // a severed stream has nothing to end
		s.in.refuse()
		s.close()
		return nil
	}
	s.close()
	s.c.sever(ErrInterrupted)
	return nil
}

// OpenStream implements Transport.
func (m *Memory) OpenStream(ctx context.Context, to, method string) (Stream, error) {
	fail := func(cause error) (Stream, error) { return nil, callError(ErrUnreachable, to, method, cause) }
	if err := checkRequest(method, nil, 0); err != nil {
		return fail(err)
	}
	me := m.self.Load()
	if err := m.ended(ctx); err != nil || me == nil {
		return fail(err)
	}
	dst := m.net.node(to)
	if err := m.shakeHands(ctx, to); err != nil {
		return fail(err)
	}
	if dst == nil || dst.ctx.Err() != nil {
		return fail(nil)
	}
	if r := Admit(dst.self.Load().Identity, me.Identity); r != 0 {
		dst.stats.refused.Add(1)
		return fail(&HandshakeError{Addr: to, Reason: r.Told()})
	}
	s, err := m.connect(ctx, me, dst, method)
	if err != nil {
		return fail(err)
	}
	m.stats.streams.Add(1)
	return s, nil
}

// shakeHands takes the way to a peer and back.
func (m *Memory) shakeHands(ctx context.Context, to string) error {
	ctx, cancel := context.WithTimeout(ctx, DefaultDialTimeout)
	defer cancel()
	for _, way := range []direction{{m.addr, to}, {to, m.addr}} {
		at := m.net.streamArrival(way.from, way.to)
		if !m.sleepUntil(ctx, at) {
			return m.ended(ctx)
		}
		if cut, _ := m.net.isCut(way.from, way.to); cut {
			return m.silence(ctx)
		}
	}
	return nil
}

func (m *Memory) connect(ctx context.Context, me *self, dst *Memory, method string) (Stream, error) {
	peer, err := decodePeer(me.encoded)
	if err != nil {
		return nil, err
	}
	c := &memConn{net: m.net, client: m, server: dst, severed: make(chan struct{})}
	c.there.init(m.net, m.addr, dst.addr)
	c.back.init(m.net, dst.addr, m.addr)
	c.serverCtx, c.cancelServer = withTimeout(dst.ctx, remaining(ctx, m.net.clk))
	c.stopWatching = func() bool { return true }
	m.net.mu.Lock()
	m.net.mu.streams[c] = struct{}{}
	if c.isCutLocked() {
		c.suspectLocked()
	}
	m.net.mu.Unlock()
	for _, side := range []*Memory{m, dst} {
		side.mu.Lock()
		side.mu.conns[c] = struct{}{}
		closed := side.mu.closed
		side.mu.Unlock()
		if closed {
			c.sever(ErrInterrupted)
			return nil, m.ended(ctx)
		}
	}
	srv := &memStream{c: c, in: &c.there, out: &c.back, server: true}
	srv.closed, srv.close = context.WithCancel(context.Background())
	if !dst.spawn(func(h guarded) { dst.serveStream(h, peer, method, srv) }) {
		c.sever(ErrInterrupted)
		return nil, m.ended(ctx)
	}
	stop := context.AfterFunc(ctx, func() { c.sever(fmt.Errorf("%w: %w", ErrInterrupted, ctx.Err())) })
	c.mu.Lock()
	c.stopWatching = stop
	severed := c.why != nil
	c.mu.Unlock()
	if severed {
		stop()
	}
	cl := &memStream{c: c, in: &c.back, out: &c.there}
	cl.closed, cl.close = context.WithCancel(context.Background())
	return cl, nil
}

func (m *Memory) serveStream(h guarded, from Peer, method string, s *memStream) {
	m.stats.streamsServed.Add(1)
	err := h.stream(s.c.serverCtx, from, method, s)
	s.c.cancelServer()
	end := outcomeOf(err).err()
	if end == nil {
		end = io.EOF
	}
	_, _ = s.out.push(memPiece{end: end}) // after CloseWrite the peer has its end
	s.in.refuse()
	s.close()
	m.mu.Lock()
	delete(m.mu.conns, s.c)
	m.mu.Unlock()
}
