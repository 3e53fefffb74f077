package transport

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
)

const (
	readBuffer = 32 << 10
	// writeBatch is about how many bytes one look at the queue takes; pings
	// wait for no more than that.
	writeBatch = 1 << 20
)

var (
	errHungUp = errors.New("transport: peer hung up")
	errSilent = errors.New("transport: peer is silent")
	errStuck  = errors.New("transport: peer accepts nothing")
	errIdle   = errors.New("transport: idle")
	errUnfit  = errors.New("transport: identities no longer fit")
	// errReplaced ends what a process has here that is not at its address.
	errReplaced = errors.New("transport: another process of this node is at its address")
	errVisited  = errors.New("transport: only looked who is there")
)

// conn is a connection after its handshake. One goroutine reads, one writes;
// both have ended when its owner (a link, an accepting goroutine, a stream)
// lets it go.
type conn struct {
	t      *TCP
	wire   net.Conn // TLS if configured
	under  net.Conn // closed to end it: closing TLS might wait for the peer
	br     *bufio.Reader
	lane   lane
	dialed bool
	out    *sendQueue
	// ctx ends with the connection; its cause is the reason. It is no child
	// of the transport's, so that the reason is always there first.
	ctx    context.Context
	cancel context.CancelCauseFunc
	// busy, if not nil, reports that the connection is needed though idle.
	busy func() bool
	peer atomic.Pointer[Peer]
	// seals are nil without a join secret, and after the handshake; certified
	// are the names that the peer's certificate is for, nil if TLS is not ours
	// to judge; expected is whom the dialled address belongs to, if known.
	seals     *seals
	certified []string
	expected  string
	said      *self // the identity last written; the writer's
	header    [frameHeaderSize]byte
	// unsent are the calls that left the queue and were not begun to be written
	// when writing broke; whoever ran send settles them.
	unsent []*call

	closing sync.Once

	reads, writes, used atomic.Uint64 // progress
	reading, writing    atomic.Bool   // in the system call
	watched             struct {      // the watch's
		reads, writes, used uint64
		silent, stuck, idle int
	}
}

func (t *TCP) newConn(wire, under net.Conn) *conn {
	c := &conn{t: t, wire: wire, under: under}
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	c.br = bufio.NewReaderSize((*metered)(c), readBuffer)
	return c
}

// metered is the connection's reader as the watch sees it.
type metered conn

func (m *metered) Read(b []byte) (int, error) {
	m.reading.Store(true)
	n, err := m.wire.Read(b)
	m.reading.Store(false)
	m.reads.Add(1)
	return n, err
}

// close ends the connection; the first reason stays. It never blocks.
func (c *conn) close(why error) {
	c.closing.Do(func() {
		if why == nil {
			why = ErrClosed // of the queue, which only Close does
		}
		c.cancel(why)
		_ = c.under.Close() // nothing to do about it
		if c.out != nil {
			c.out.kick()
		}
		c.t.untrack(c)
		c.t.roster.leave(c)
	})
}

func (c *conn) closed() bool { return c.ctx.Err() != nil }

// rejudge drops the connection if the identities stopped fitting.
func (c *conn) rejudge() {
	if c.judge(*c.peer.Load()) != 0 {
		c.close(errUnfit)
	}
}

// tick is the watch's look at the connection, every KeepAlive.
func (c *conn) tick() {
	c.out.ping()
	w, limit := &c.watched, int(c.t.cfg.PeerTimeout/c.t.cfg.KeepAlive)
	// A reader that is not in its system call is busy with a handler, or holds
	// a stream back: that is no silence of the peer.
	w.silent = stagnant(w.silent, &w.reads, &c.reads, c.reading.Load())
	// A stream may be held back for as long as its reader likes.
	w.stuck = stagnant(w.stuck, &w.writes, &c.writes, c.writing.Load() && c.lane != laneStream)
	w.idle = stagnant(w.idle, &w.used, &c.used, c.busy != nil && !c.busy())
	switch {
	case w.silent >= limit:
		c.close(errSilent)
	case w.stuck >= limit:
		c.close(errStuck)
	case w.idle >= int(c.t.cfg.IdleTimeout/c.t.cfg.KeepAlive):
		c.close(errIdle)
	}
}

// stagnant counts the looks at which a counter stood still although it counts.
func stagnant(looks int, seen *uint64, counter *atomic.Uint64, counts bool) int {
	now := counter.Load()
	same := now == *seen
	*seen = now
	if same && counts {
		return looks + 1
	}
	return 0
}

// receive reads frames until the connection ends and hands them over; pings
// and new identities it takes itself.
func (c *conn) receive(limit int, take func(kind frameKind, payload []byte) error) error {
	for {
		kind, payload, err := readFrame(c.br, &c.header, limit)
		switch {
		case errors.Is(err, errChecksum):
			c.t.stats.corrupt.Add(1)
			return err
		case errors.Is(err, io.EOF):
			return errHungUp // nobody may take it for the end of a stream
		case err != nil:
			return err
		case kind == framePing:
		case kind == frameIdentity && !c.dialed:
			err = c.reidentify(payload)
		default:
			c.used.Add(1)
			err = take(kind, payload)
		}
		if err != nil {
			return err
		}
	}
}

func (c *conn) reidentify(payload []byte) error {
	p, err := decodePeer(payload)
	if err != nil {
		return err
	}
	if err = c.accept(p); err == nil {
		err = c.t.roster.enter(c)
	}
	if err != nil {
		c.t.noteRefusal(c.under.RemoteAddr(), err)
		return err
	}
	if c.closed() {
		c.t.roster.leave(c) // closed before it entered
	}
	return nil
}

func unexpected(kind frameKind, l lane) error {
	return fmt.Errorf("%w: frame kind %d on the %v lane", errFormat, kind, l)
}

// send writes what the queue holds until the connection or the queue closes.
func (c *conn) send() error {
	w := frameWriter{c: c, scratch: make([]byte, 0, scratchSize)}
	var items []item
	for {
		var ok bool
		if items, ok = c.out.take(items[:0], writeBatch, c.closed); !ok {
			return nil
		}
		err := w.writeAll(items)
		c.out.release(items)
		c.countWritten(items, err)
		if err != nil {
			c.unsent = callsWaiting(items)
			return err
		}
		clear(items)
	}
}

// callsWaiting are the calls of items of which no byte can have been written.
func callsWaiting(items []item) []*call {
	var calls []*call
	for i := range items {
		if c := items[i].call; c != nil && c.state.Load() == callWaiting {
			calls = append(calls, c)
		}
	}
	return calls
}

func (c *conn) countWritten(items []item, err error) {
	if len(items) > 1 || items[0].kind != framePing {
		c.used.Add(1)
	}
	if c.lane >= laneCalls {
		return
	}
	frames, bytes := 0, 0
	for i := range items {
		if items[i].kind == frameMessage {
			frames++
			bytes += len(items[i].body)
		}
	}
	k := &c.t.stats.classes[c.lane]
	if err != nil {
		k.dropped.add(frames, bytes)
		return
	}
	k.sent.add(frames, bytes)
}

const (
	scratchSize = 64 << 10
	// copyBelow is the size below which copying a body is cheaper than a
	// vector of its own in the system call (and than a TLS record).
	copyBelow = 8 << 10
	// maxVector keeps a batch below the system's limit of 1024 vectors.
	maxVector = 256
	// maxWrite bounds one write, so that a slow link shows progress.
	maxWrite = 1 << 20
)

// frameWriter gathers frames: small ones are copied into one buffer, large
// ones are referred to, and as much as possible goes out in one system call.
type frameWriter struct {
	c       *conn
	scratch []byte
	from    int // scratch before it is in vec already
	size    int
	vec     net.Buffers
	writing net.Buffers // what is left of vec during a write
}

func (w *frameWriter) writeAll(items []item) error {
	if err := w.introduce(); err != nil {
		return err
	}
	for i := range items {
		it := &items[i]
		if it.call != nil && !it.call.state.CompareAndSwap(callWaiting, callSent) {
			continue // given up meanwhile
		}
		if err := w.add(it); err != nil {
			return err
		}
	}
	return w.flush()
}

// introduce writes the node's identity if it changed since it was last said.
func (w *frameWriter) introduce() error {
	me := w.c.t.self.Load()
	if me == w.c.said || !w.c.dialed || w.c.lane == laneStream {
		return nil
	}
	w.c.said = me
	return w.add(&item{kind: frameIdentity, body: me.encoded})
}

func (w *frameWriter) add(it *item) error {
	small := len(it.body) < copyBelow
	need := frameHeaderSize + len(it.prefix)
	if small {
		need += len(it.body)
	}
	if len(w.scratch)+need > cap(w.scratch) || len(w.vec) >= maxVector || w.size >= maxWrite {
		if err := w.flush(); err != nil {
			return err
		}
	}
	w.scratch = appendFrameHeader(w.scratch, it.kind, it.prefix, it.body)
	w.scratch = append(w.scratch, it.prefix...)
	w.size += need
	if small {
		w.scratch = append(w.scratch, it.body...)
		return nil
	}
	for rest := it.body; len(rest) > 0; {
		part := rest[:min(len(rest), maxWrite)]
		rest = rest[len(part):]
		w.cut()
		w.vec = append(w.vec, part)
		w.size += len(part)
		if len(rest) > 0 {
			if err := w.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// cut makes what was copied since the last vector a vector.
func (w *frameWriter) cut() {
	if len(w.scratch) > w.from {
		w.vec = append(w.vec, w.scratch[w.from:])
		w.from = len(w.scratch)
	}
}

func (w *frameWriter) flush() error {
	w.cut()
	if len(w.vec) == 0 {
		return nil
	}
	w.c.writing.Store(true)
	w.writing = w.vec
	_, err := w.writing.WriteTo(w.c.wire)
	w.c.writing.Store(false)
	w.c.writes.Add(1)
	clear(w.vec)
	w.vec, w.scratch, w.from, w.size = w.vec[:0], w.scratch[:0], 0, 0
	return err
}
