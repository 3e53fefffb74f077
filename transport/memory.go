package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/stelelog/stele/internal/clock"
)

// DefaultMaxFrame is the limit of a frame, a request and an answer, in bytes.
const DefaultMaxFrame = 32 << 20

// Memory is a Transport of a Network. What crosses the network is encoded as
// on a wire and decoded again, so no pointer does. Each peer and class that
// sends here has a goroutine that delivers in the order of arrival; each call
// and stream that is served has one. All of them end with Close.
type Memory struct {
	net  *Network
	addr string
	// ctx ends when Close begins.
	ctx    context.Context
	cancel context.CancelFunc
	self   atomic.Pointer[self] // nil before Start
	stats  counters

	mu struct {
		sync.Mutex
		closed  bool
		h       guarded
		inboxes map[inboxKey]*inbox
		conns   map[*memConn]struct{} // both ends
	}
	wg sync.WaitGroup
}

// self is an identity and its encoding.
type self struct {
	Peer
	encoded []byte
}

func newSelf(addr string, id Identity) *self {
	p := Peer{Addr: addr, Identity: id}
	return &self{Peer: p, encoded: appendPeer(nil, p)}
}

func newMemory(n *Network, addr string) *Memory {
	m := &Memory{net: n, addr: addr}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.mu.inboxes = make(map[inboxKey]*inbox)
	m.mu.conns = make(map[*memConn]struct{})
	return m
}

// Start implements Transport.
func (m *Memory) Start(id Identity, h Handler) error {
	if err := id.Validate(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.closed {
		return ErrClosed
	}
	if m.self.Load() != nil {
		return errStarted
	}
	m.mu.h = guarded{h: h, log: zap.NewNop()}
	m.self.Store(newSelf(m.addr, id)) // before anyone can find this node
	if err := m.net.register(m); err != nil {
		m.self.Store(nil)
		return err
	}
	return nil
}

// errStarted: Start was called twice.
var errStarted = errors.New("transport: already started")

// SetIdentity implements Transport.
func (m *Memory) SetIdentity(id Identity) {
	if id.Validate() != nil || m.self.Load() == nil {
		return
	}
	m.self.Store(newSelf(m.addr, id))
	for _, c := range m.openConns() {
		if Admit(id, c.otherThan(m).self.Load().Identity) != 0 {
			c.sever(ErrInterrupted)
		}
	}
}

// Addr implements Transport.
func (m *Memory) Addr() string { return m.addr }

// Stats implements Transport.
func (m *Memory) Stats() Stats { return m.stats.snapshot() }

// Close implements Transport.
func (m *Memory) Close() error {
	m.mu.Lock()
	m.mu.closed = true
	m.mu.Unlock()
	m.net.unregister(m)
	m.cancel()
	for _, c := range m.openConns() {
		c.sever(fmt.Errorf("%w: %w", ErrInterrupted, ErrClosed))
	}
	m.wg.Wait()
	return nil
}

func (m *Memory) openConns() []*memConn {
	m.mu.Lock()
	defer m.mu.Unlock()
	conns := make([]*memConn, 0, len(m.mu.conns))
	for c := range m.mu.conns {
		conns = append(conns, c)
	}
	return conns
}

// spawn starts a goroutine that Close waits for; false after Close.
func (m *Memory) spawn(f func(h guarded)) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.closed {
		return false
	}
	h := m.mu.h
	m.wg.Go(func() { f(h) })
	return true
}

// Send implements Transport.
func (m *Memory) Send(to string, class Class, frame []byte) {
	if class >= NumClasses {
		return
	}
	me, dst := m.self.Load(), m.net.node(to)
	if me == nil || dst == nil || m.ctx.Err() != nil || len(frame) > DefaultMaxFrame {
		m.stats.classes[class].dropped.add(1, len(frame))
		return
	}
	m.stats.classes[class].sent.add(1, len(frame))
	for _, ft := range m.net.frameFates(m.addr, to, class) {
		encoded := appendFrame(make([]byte, 0, frameHeaderSize+len(frame)), frameMessage, nil, frame)
		ft.apply(encoded)
		dst.inbox(m.addr, class).put(delivery{at: ft.at, src: m, sender: me.encoded, frame: encoded})
	}
}

type inboxKey struct {
	from  string
	class Class
}

// inbox delivers what one address sends in one class, in order of arrival.
type inbox struct {
	m    *Memory
	key  inboxKey
	wake chan struct{} // buffered

	mu      sync.Mutex
	waiting []delivery // by arrival, equal ones by order of put

	// What the goroutine knows of the sender: its last identity, decoded.
	sender []byte
	peer   Peer
}

type delivery struct {
	at     time.Time
	src    *Memory
	sender []byte // its identity, encoded
	frame  []byte
}

// inbox returns the queue of a sender and starts its goroutine. After Close it
// returns one that nobody reads.
func (m *Memory) inbox(from string, class Class) *inbox {
	key := inboxKey{from, class}
	m.mu.Lock()
	defer m.mu.Unlock()
	in := m.mu.inboxes[key]
	if in == nil {
		in = &inbox{m: m, key: key, wake: make(chan struct{}, 1)}
		if m.mu.closed {
			return in
		}
		m.mu.inboxes[key] = in
		h := m.mu.h
		m.wg.Go(func() { in.run(h) })
	}
	return in
}

func (in *inbox) put(d delivery) {
	in.mu.Lock()
	i := len(in.waiting)
	for i > 0 && in.waiting[i-1].at.After(d.at) {
		i--
	}
	in.waiting = append(in.waiting, delivery{})
	copy(in.waiting[i+1:], in.waiting[i:])
	in.waiting[i] = d
	in.mu.Unlock()
	poke(in.wake)
}

// poke wakes the one that waits on a channel with a buffer of one.
func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

func (in *inbox) run(h guarded) {
	for in.m.ctx.Err() == nil {
		d, wait, ok := in.next()
		switch {
		case !ok:
			select {
			case <-in.wake:
			case <-in.m.ctx.Done():
			}
		case wait > 0:
			t := in.m.net.clk.NewTimer(wait)
			select {
			case <-t.C():
			case <-in.wake: // something may arrive earlier
			case <-in.m.ctx.Done():
			}
			t.Stop()
		default:
			in.deliver(h, d)
		}
	}
}

// next takes the next delivery, or says how long until it arrives.
func (in *inbox) next() (d delivery, wait time.Duration, ok bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.waiting) == 0 {
		return d, 0, false
	}
	d = in.waiting[0]
	if wait = d.at.Sub(in.m.net.clk.Now()); wait > 0 {
		return d, wait, true
	}
	in.waiting[0] = delivery{}
	in.waiting = in.waiting[1:]
	return d, 0, true
}

func (in *inbox) deliver(h guarded, d delivery) {
	if cut, _ := in.m.net.isCut(in.key.from, in.m.addr); cut || d.src.ctx.Err() != nil {
		return
	}
	_, frame, err := decodeFrame(d.frame, DefaultMaxFrame)
	if err != nil {
		in.m.stats.corrupt.Add(1)
		return
	}
	if !bytes.Equal(in.sender, d.sender) {
		if in.peer, err = decodePeer(d.sender); err != nil {
			return
		}
		in.sender = d.sender
	}
	if Admit(in.m.self.Load().Identity, in.peer.Identity) != 0 {
		in.m.stats.refused.Add(1)
		return
	}
	in.m.stats.classes[in.key.class].received.add(1, len(frame))
	// guarded has logged a panic; the frame is lost, as it would be with a
	// connection.
	_ = h.frame(in.peer, in.key.class, frame)
}

// sleepUntil waits until t, ctx or Close; false if not t.
func (m *Memory) sleepUntil(ctx context.Context, t time.Time) bool {
	return sleep(ctx, m.ctx, m.net.clk, t.Sub(m.net.clk.Now()))
}

// sleep waits for d unless one of the contexts ends; false if so.
func sleep(a, b context.Context, clk clock.Clock, d time.Duration) bool {
	if d <= 0 {
		return a.Err() == nil && b.Err() == nil
	}
	t := clk.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C():
		return true
	case <-a.Done():
	case <-b.Done():
	}
	return false
}
