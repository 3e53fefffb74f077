// Httptransport is a transport.Transport that a host wrote itself, so that its
// own http.ServeMux, http.Server and http.Transport are the only network that a
// node has: one address, one port, one place for TLS and for middleware. It
// needs nothing but the standard library. Copy every file but main.go, cluster.go
// and host.go, which show it at work:
//
//	go run ./examples/httptransport
//
// # How one maps to the other
//
//	Addr         the URL at which the handler is mounted: http://10.0.0.7:8080/stele/
//	Identity     a header of every request; 403 if the two do not fit
//	Call         POST /stele/call, method and timeout in headers, 200 answers;
//	             422 is the handler's error; the caller hangs up to cancel
//	Send         GET /stele/frames, upgraded: a connection for each peer and
//	             class, so that bulk never delays a heartbeat
//	OpenStream   GET /stele/stream, upgraded: a connection for each stream
//
// An upgraded connection carries messages (conn.go), pings among them, so that
// a peer that vanished is noticed in seconds, and an end is never mistaken for
// a break. TCP holds back who writes to a reader that does not read.
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
// The server's, one for each call, stream and inbound connection of frames;
// for each connection that was upgraded one that waits for its end and one that
// pings; for each link (peer and class) one that writes and one that listens;
// for each stream one that reads. All end with Close, which waits for them.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stelelog/stele/transport"
)

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
	cfg    Config
	self   atomic.Pointer[transport.Identity] // nil before Start
	ctx    context.Context                    // ends when Close begins
	cancel context.CancelFunc

	mu struct {
		sync.Mutex
		closed  bool
		handler transport.Handler // set once, before self
		links   map[linkTo]*link
		conns   map[*conn]struct{}
		stats   transport.Stats
	}
	// wg counts all goroutines, requests that are served and calls that are
	// made. It only grows under mu while not closed.
	wg sync.WaitGroup
}

var _ transport.Transport = (*Transport)(nil)

// New makes a Transport. Mount it, then give it to the node, which starts and
// closes it; between requests that come too early or too late are told so.
func New(cfg Config) *Transport {
	if cfg.HTTP == nil {
		cfg.HTTP = NewHTTP()
	}
	if cfg.MaxFrame == 0 {
		cfg.MaxFrame = transport.DefaultMaxFrame
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	t := &Transport{cfg: cfg}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.mu.links = make(map[linkTo]*link)
	t.mu.conns = make(map[*conn]struct{})
	return t
}

// Start implements transport.Transport. The host's server listens already.
func (t *Transport) Start(id transport.Identity, h transport.Handler) error {
	if err := validate(id); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return transport.ErrClosed
	}
	if t.self.Load() != nil {
		return errors.New("httptransport: started already")
	}
	t.mu.handler = h
	t.self.Store(&id)
	return nil
}

// SetIdentity implements transport.Transport. Links see that it changed and
// introduce themselves again.
func (t *Transport) SetIdentity(id transport.Identity) {
	if validate(id) != nil || t.self.Load() == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.self.Store(&id)
	for c := range t.mu.conns {
		if judge(id, c.peer.Identity) != 0 {
			c.close(errUnfit)
		}
	}
}

// Addr implements transport.Transport.
func (t *Transport) Addr() string { return t.cfg.Addr }

// Stats implements transport.Transport.
func (t *Transport) Stats() transport.Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.stats
}

func (t *Transport) count(what func(s *transport.Stats)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	what(&t.mu.stats)
}

// Close implements transport.Transport. Everything that can block looks at
// t.ctx, or at a connection that is closed because of it.
func (t *Transport) Close() error {
	t.mu.Lock()
	t.mu.closed = true
	t.cancel()
	t.mu.Unlock()
	t.wg.Wait()
	t.cfg.HTTP.CloseIdleConnections()
	return nil
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

// callError says what became of a request: kind is ErrUnreachable (certainly
// not executed) or ErrInterrupted (perhaps executed). That Close or the
// caller's context ended it says more than what HTTP saw of that.
func (t *Transport) callError(ctx context.Context, kind error, to, method string, cause error) error {
	switch {
	case t.ctx.Err() != nil:
		cause = transport.ErrClosed
	case ctx.Err() != nil:
		cause = ctx.Err()
	}
	if errors.Is(cause, kind) {
		return fmt.Errorf("%s of %s: %w", method, to, cause)
	}
	return fmt.Errorf("%s of %s: %w: %w", method, to, kind, cause)
}

// panicError is the error of a handler that panicked: a bug in one handler is
// no reason to end the host, nor for the peer to wait.
type panicError struct{ value any }

func (e *panicError) Error() string     { return fmt.Sprintf("handler panicked: %v", e.value) }
func (e *panicError) ErrorCode() string { return "panic" }

// guard calls a handler.
func (t *Transport) guard(what string, call func(h transport.Handler) error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{v}
			t.cfg.Log.Error("handler panicked", "in", what, "panic", v, "stack", string(debug.Stack()))
		}
	}()
	return call(t.mu.handler) // set before anything could come in
}
