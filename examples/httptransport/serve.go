package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strconv"
	"time"

	"github.com/stelelog/stele/transport"
)

// What is asked for is the last element of the path.
const (
	pathCall   = "call"
	pathFrames = "frames"
	pathStream = "stream"
)

// Of the statuses, two mean that a handler answered. With headerVersion, every
// other one means that none was called.
const (
	statusAnswer = http.StatusOK
	statusFailed = http.StatusUnprocessableEntity
)

const (
	upgradeTo     = "stele"
	handshakeTime = 5 * time.Second
)

// ServeHTTP is what the host mounts: mux.Handle("/stele/", t).
func (t *Transport) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set(headerVersion, version)
	if !t.enter() {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	defer t.wg.Done()
	from, refused := t.admit(r.Header)
	if refused != 0 {
		t.count(func(s *transport.Stats) { s.Refused++ })
		w.Header().Set(headerRefused, strconv.Itoa(int(refused)))
		w.WriteHeader(http.StatusForbidden)
		return
	}
	switch path.Base(r.URL.Path) {
	case pathCall:
		t.serveCall(w, r, from)
	case pathFrames:
		t.serveFrames(w, r, from)
	case pathStream:
		t.serveStream(w, r, from)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// accept upgrades a request: from its answer on, the connection is a conn. The
// deadlines that the host's server gave it end with that.
func (t *Transport) accept(w http.ResponseWriter, r *http.Request, from transport.Peer) (*conn, bool) {
	if r.Header.Get("Upgrade") != upgradeTo {
		w.WriteHeader(http.StatusUpgradeRequired)
		return nil, false
	}
	raw, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil { // HTTP/2, or a middleware that hides the connection
		t.cfg.Log.Error("cannot upgrade a connection", "error", err)
		w.WriteHeader(http.StatusNotImplemented)
		return nil, false
	}
	welcome := &http.Response{StatusCode: http.StatusSwitchingProtocols, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{}}
	welcome.Header.Set("Connection", "Upgrade")
	welcome.Header.Set("Upgrade", upgradeTo)
	t.introduce(welcome.Header)
	_ = raw.SetWriteDeadline(time.Now().Add(handshakeTime))
	err = welcome.Write(raw)
	_ = raw.SetWriteDeadline(time.Time{})
	if err != nil || buffered.Reader.Buffered() > 0 { // a peer waits for the answer
		_ = raw.Close()
		return nil, false
	}
	c, err := t.open(context.Background(), raw, from)
	if err != nil {
		return nil, false
	}
	t.count(func(s *transport.Stats) { s.Accepted++ })
	return c, true
}

// dial asks a peer for an upgrade. All that goes wrong means that nothing was
// executed. The conn ends with ctx.
func (t *Transport) dial(ctx context.Context, to, what string, h http.Header) (*conn, error) {
	t.count(func(s *transport.Stats) { s.Dials++ })
	c, err := t.dialOnce(ctx, to, what, h)
	if err != nil {
		t.count(func(s *transport.Stats) { s.DialFailures++ })
	}
	return c, err
}

func (t *Transport) dialOnce(ctx context.Context, to, what string, h http.Header) (*conn, error) {
	asking, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	defer context.AfterFunc(t.ctx, cancel)()
	r, err := http.NewRequestWithContext(asking, http.MethodGet, to+what, nil)
	if err != nil {
		return nil, err
	}
	self := t.self.Load()
	r.Header = h
	t.introduce(h)
	h.Set("Connection", "Upgrade")
	h.Set("Upgrade", upgradeTo)
	answer, err := t.cfg.HTTP.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	wire, ok := answer.Body.(io.ReadWriteCloser)
	if answer.StatusCode != http.StatusSwitchingProtocols || !ok {
		_ = answer.Body.Close()
		return nil, rejected(to, answer)
	}
	peer, refused := t.admit(answer.Header)
	if refused != 0 {
		_ = wire.Close()
		return nil, &transport.HandshakeError{Addr: to, Reason: refused}
	}
	c, err := t.open(ctx, wire, peer)
	if err == nil {
		c.self = self
	}
	return c, err
}

// rejected reads an answer that says that no handler was called. What speaks
// without headerVersion is somebody else.
func rejected(to string, answer *http.Response) error {
	switch {
	case answer.Header.Get(headerVersion) == "":
		return &transport.HandshakeError{Addr: to, Reason: transport.RefusedProtocol, Err: errors.New(answer.Status)}
	case answer.StatusCode == http.StatusForbidden:
		return &transport.HandshakeError{Addr: to, Reason: refusal(answer.Header)}
	}
	return fmt.Errorf("%w: %s", transport.ErrUnreachable, answer.Status)
}
