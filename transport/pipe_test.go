package transport_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/transport"
)

// pipes is a network of net.Pipe: a host's own dialer and listener, and one
// that works in virtual time.
type pipes struct {
	mu        sync.Mutex
	listeners map[string]*pipeListener
	dialed    []*pipeConn
	// wrap, if set, changes what a dialler gets.
	wrap func(net.Conn) net.Conn
	// make makes a connection, net.Pipe unless changed.
	make func() (net.Conn, net.Conn)
}

func newPipes() *pipes { return &pipes{listeners: make(map[string]*pipeListener), make: net.Pipe} }

type pipeAddr string

func (pipeAddr) Network() string  { return "tcp" }
func (a pipeAddr) String() string { return string(a) }

type pipeListener struct {
	p      *pipes
	addr   pipeAddr
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// pipeConn is one end; it remembers being closed.
type pipeConn struct {
	net.Conn
	remote pipeAddr
	closed chan struct{}
	once   sync.Once
}

func (c *pipeConn) RemoteAddr() net.Addr { return c.remote }

func (c *pipeConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

func (p *pipes) listen(addr string) *pipeListener {
	l := &pipeListener{p: p, addr: pipeAddr(addr), conns: make(chan net.Conn), closed: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listeners[addr] = l
	return l
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Addr() net.Addr { return l.addr }

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

var errNobody = errors.New("connection refused")

// dialFrom makes a dialer for a host.
func (p *pipes) dialFrom(host string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, _, addr string) (net.Conn, error) {
		p.mu.Lock()
		l := p.listeners[addr]
		p.mu.Unlock()
		if l == nil {
			return nil, errNobody
		}
		x, y := p.make()
		mine := &pipeConn{Conn: x, remote: pipeAddr(addr), closed: make(chan struct{})}
		theirs := &pipeConn{Conn: y, remote: pipeAddr(host + ":5555"), closed: make(chan struct{})}
		select {
		case l.conns <- theirs:
		case <-l.closed:
			return nil, errNobody
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.dialed = append(p.dialed, mine)
		if p.wrap != nil {
			return p.wrap(mine), nil
		}
		return mine, nil
	}
}

// tcp makes a transport that listens at addr, with changes to its configuration.
func (p *pipes) tcp(t *testing.T, addr string, change ...func(*transport.TCPConfig)) *transport.TCP {
	t.Helper()
	cfg := transport.TCPConfig{Listener: p.listen(addr), Dialer: p.dialFrom(addr)}
	for _, c := range change {
		c(&cfg)
	}
	tr, err := transport.NewTCP(cfg)
	require.NoError(t, err)
	return tr
}

// stranger connects without a transport.
func (p *pipes) stranger(t *testing.T, host, addr string) net.Conn {
	t.Helper()
	c, err := p.dialFrom(host)(context.Background(), "tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// answer reads what the other side says until it hangs up.
func answer(c net.Conn) []byte {
	b, _ := io.ReadAll(c)
	return b
}
