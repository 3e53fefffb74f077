package transport_test

import (
	"io"
	"net"
	"sync"
)

// bufferedPipe is net.Pipe whose writes do not wait for reads, as TLS needs it
// when both sides have something to say.
func bufferedPipe() (net.Conn, net.Conn) {
	x, y := newHalf(), newHalf()
	return &bufferedConn{in: x, out: y}, &bufferedConn{in: y, out: x}
}

type half struct {
	mu      sync.Mutex
	changed sync.Cond
	buf     []byte
	ended   bool // nothing more is written
	dead    bool // nothing more is read
}

func newHalf() *half {
	h := &half{}
	h.changed.L = &h.mu
	return h
}

type bufferedConn struct {
	net.Conn // none: deadlines are not used
	in, out  *half
}

func (c *bufferedConn) Read(b []byte) (int, error) {
	h := c.in
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(h.buf) == 0 && !h.ended && !h.dead {
		h.changed.Wait()
	}
	switch {
	case h.dead:
		return 0, net.ErrClosed
	case len(h.buf) == 0:
		return 0, io.EOF
	}
	n := copy(b, h.buf)
	h.buf = h.buf[n:]
	return n, nil
}

func (c *bufferedConn) Write(b []byte) (int, error) {
	h := c.out
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended || h.dead {
		return 0, net.ErrClosed
	}
	h.buf = append(h.buf, b...)
	h.changed.Broadcast()
	return len(b), nil
}

func (c *bufferedConn) Close() error {
	c.out.end(func(h *half) { h.ended = true })
	c.in.end(func(h *half) { h.dead = true })
	return nil
}

func (h *half) end(how func(*half)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	how(h)
	h.changed.Broadcast()
}
