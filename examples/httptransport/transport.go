// Httptransport is a transport.Transport that a host wrote itself, so that its
// own http.ServeMux, http.Server and http.Transport are the only network that a
// node has: one address, one port, one place for TLS and for middleware. Copy
// every file but main.go, cluster.go and host.go, which show it at work:
//
//	go run ./examples/httptransport
//
// # How one maps to the other
//
//	Addr         the URL at which the handler is mounted: http://10.0.0.7:8080/stele/
//	Call         POST /stele/call, who calls, method and timeout in headers, 200
//	             answers; 403 if the two nodes do not fit; 422 is the handler's
//	             error; the caller hangs up to cancel
//	Send         GET /stele/link, upgraded: a connection for each peer and
//	             class, so that bulk never delays a heartbeat
//	OpenStream   GET /stele/link, upgraded: a connection for each stream
//
// Calls are requests like others, which the host's middleware, logs and figures
// see. An upgraded connection is as good as one of TCP, so a transport.TCP is
// given them, by its Dialer and Listener, and does the rest: queues, pings,
// back-off, back-pressure (upgrade.go). Who is content to see no calls gives it
// those too, and needs upgrade.go only.
//
// # What an error of a call says
//
// No connection, or a status that says so: certainly not executed. An answer:
// executed. Anything between: perhaps. So nothing here may make a call twice;
// net/http repeats a POST only if no byte of it was written.
//
// # What the host must know
//
// HTTP/1.1 on both sides: an upgrade needs it. Middleware must let a
// ResponseController find the connection (method Unwrap). The timeouts of the
// server, meant for pages, are lifted for these requests. The identity keeps
// strangers out by mistake, not by malice: for that, give the server and
// Config.HTTP certificates, and use https in the addresses.
//
// # Goroutines
//
// The server's, one for each call that is served, and those of transport.TCP.
// All end with Close, which waits for them.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/transport"
)

// maxAddr is what a handshake can carry of an address, in bytes.
const maxAddr = 255

// Config configures New. Addr has no default.
type Config struct {
	// Addr is the URL at which peers reach this Transport: where the host
	// mounted it, with a slash at the end, like http://10.0.0.7:8080/stele/.
	Addr string
	// HTTP opens connections. It must speak HTTP/1.1, and belongs to this
	// Transport: Close closes its idle connections. It is what http.Client
	// wraps; the client itself would add redirects, cookies and a timeout, and
	// a call must be made once, and a stream must last. Default: NewHTTP().
	HTTP *http.Transport
	// MaxFrame limits a frame, a request and an answer, in bytes; it must be
	// equal on all nodes. Default transport.DefaultMaxFrame, which a Node needs.
	MaxFrame int
	// Log receives the panics of handlers. Default slog.Default().
	Log *slog.Logger
}

// NewHTTP returns the default of Config.HTTP.
func NewHTTP() *http.Transport {
	h1 := new(http.Protocols)
	h1.SetHTTP1(true)
	return &http.Transport{
		Protocols:           h1,
		DialContext:         (&net.Dialer{Timeout: handshakeTime}).DialContext,
		TLSHandshakeTimeout: handshakeTime,
		MaxIdleConnsPerHost: 64, // calls that overlap each need one
		IdleConnTimeout:     time.Minute,
		DisableCompression:  true,
	}
}

// Transport is a transport.Transport that is also an http.Handler.
type Transport struct {
	cfg     Config
	doorway *doorway
	links   *transport.TCP                     // frames and streams
	handler transport.Handler                  // set once, before self
	self    atomic.Pointer[transport.Identity] // nil before Start
	ctx     context.Context                    // ends when Close begins
	cancel  context.CancelFunc

	mu struct {
		sync.Mutex
		closed bool
		stats  transport.Stats // of what is not the links'
	}
	// wg counts requests that are served and calls that are made. It only grows
	// under mu while not closed.
	wg sync.WaitGroup
}

var _ transport.Transport = (*Transport)(nil)

// New makes a Transport. Mount it, then give it to the node, which starts and
// closes it; between requests that come too early or too late are told so.
func New(cfg Config) (*Transport, error) {
	if cfg.HTTP == nil {
		cfg.HTTP = NewHTTP()
	}
	if cfg.MaxFrame == 0 {
		cfg.MaxFrame = transport.DefaultMaxFrame
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if n := len(cfg.Addr); n > maxAddr {
		return nil, fmt.Errorf("httptransport: Config.Addr has %d bytes, want at most %d", n, maxAddr)
	}
	t := &Transport{cfg: cfg, doorway: newDoorway(cfg.Addr)}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	var err error
	t.links, err = transport.NewTCP(transport.TCPConfig{
		Listener: t.doorway, Dialer: t.dial, MaxFrame: cfg.MaxFrame,
		Logger: zap.New(stele.NewSlogCore(cfg.Log.Handler())),
	})
	return t, err
}

// Start implements transport.Transport. The host's server listens already.
func (t *Transport) Start(id transport.Identity, h transport.Handler) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.links.Start(id, h); err != nil {
		return err
	}
	t.handler = h
	t.self.Store(&id)
	return nil
}

// SetIdentity implements transport.Transport.
func (t *Transport) SetIdentity(id transport.Identity) {
	if id.Validate() != nil || t.self.Load() == nil {
		return
	}
	t.self.Store(&id)
	t.links.SetIdentity(id)
}

// Addr implements transport.Transport.
func (t *Transport) Addr() string { return t.cfg.Addr }

// Send implements transport.Transport.
func (t *Transport) Send(to string, class transport.Class, frame []byte) {
	t.links.Send(to, class, frame)
}

// OpenStream implements transport.Transport.
func (t *Transport) OpenStream(ctx context.Context, to, method string) (transport.Stream, error) {
	return t.links.OpenStream(ctx, to, method)
}

// Stats implements transport.Transport.
func (t *Transport) Stats() transport.Stats {
	s := t.links.Stats()
	t.mu.Lock()
	defer t.mu.Unlock()
	s.Calls += t.mu.stats.Calls
	s.CallsServed += t.mu.stats.CallsServed
	s.Refused += t.mu.stats.Refused
	s.Corrupt += t.mu.stats.Corrupt
	return s
}

func (t *Transport) count(what func(s *transport.Stats)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	what(&t.mu.stats)
}

// Close implements transport.Transport. Everything that can block looks at
// t.ctx, or at the doorway, which the links close.
func (t *Transport) Close() error {
	t.mu.Lock()
	t.mu.closed = true
	t.cancel()
	t.mu.Unlock()
	err := t.links.Close()
	t.wg.Wait()
	t.cfg.HTTP.CloseIdleConnections()
	return err
}

// enter makes Close wait for a t.wg.Done; false after Close, and before Start.
func (t *Transport) enter() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed || t.self.Load() == nil {
		return false
	}
	t.wg.Add(1)
	return true
}

// mayBegin is enter with the reason.
func (t *Transport) mayBegin(ctx context.Context) error {
	switch {
	case ctx.Err() != nil && t.ctx.Err() == nil:
		return ctx.Err()
	case t.enter():
		return nil
	case t.ctx.Err() != nil:
		return transport.ErrClosed
	}
	return errors.New("httptransport: not started")
}
