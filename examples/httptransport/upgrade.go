package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/stelelog/stele/transport"
)

const (
	upgradeTo     = "stele"
	handshakeTime = 5 * time.Second
)

// doorway is the listener of a transport.TCP that listens nowhere: it gives it
// the connections that the host's server upgraded.
type doorway struct {
	addr   urlAddr
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// urlAddr is a URL in the place of host:port.
type urlAddr string

func (urlAddr) Network() string  { return "tcp" }
func (a urlAddr) String() string { return string(a) }

func newDoorway(addr string) *doorway {
	return &doorway{addr: urlAddr(addr), conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (d *doorway) Addr() net.Addr { return d.addr }

func (d *doorway) Accept() (net.Conn, error) {
	select {
	case c := <-d.conns:
		return c, nil
	case <-d.closed:
		return nil, net.ErrClosed
	}
}

func (d *doorway) Close() error {
	d.once.Do(func() { close(d.closed) })
	return nil
}

// pass hands a connection over, which belongs to whoever accepts from then on.
func (d *doorway) pass(c net.Conn) {
	select {
	case d.conns <- c:
	case <-d.closed:
		_ = c.Close()
	}
}

// serveLink upgrades a request: from its answer on, the connection is no longer
// HTTP's. The deadlines that the host's server gave it end with that.
func (t *Transport) serveLink(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != upgradeTo {
		w.WriteHeader(http.StatusUpgradeRequired)
		return
	}
	raw, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil { // HTTP/2, or a middleware that hides the connection
		t.cfg.Log.Error("cannot upgrade a connection", "error", err)
		w.WriteHeader(http.StatusNotImplemented)
		return
	}
	welcome := &http.Response{StatusCode: http.StatusSwitchingProtocols, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{
		"Connection": {"Upgrade"}, "Upgrade": {upgradeTo}, headerVersion: {version},
	}}
	_ = raw.SetWriteDeadline(time.Now().Add(handshakeTime))
	err = welcome.Write(raw)
	_ = raw.SetWriteDeadline(time.Time{})
	if err != nil || buffered.Reader.Buffered() > 0 { // a peer waits for the answer
		_ = raw.Close()
		return
	}
	t.doorway.pass(raw)
}

// dial is the dialer of the transport.TCP: it asks a peer for an upgrade.
func (t *Transport) dial(ctx context.Context, _, to string) (net.Conn, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, to+pathLink, nil)
	if err != nil {
		return nil, err
	}
	r.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {upgradeTo}}
	t.introduce(r.Header)
	answer, err := t.cfg.HTTP.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	wire, ok := answer.Body.(io.ReadWriteCloser)
	switch {
	case answer.StatusCode != http.StatusSwitchingProtocols || !ok:
		_ = answer.Body.Close()
		return nil, rejected(to, answer)
	case answer.Header.Get(headerVersion) != version:
		_ = wire.Close()
		return nil, &transport.HandshakeError{Addr: to, Reason: transport.RefusedVersion}
	}
	return upgraded{wire, urlAddr(to)}, nil
}

// upgraded is what the host's client has of a connection. A transport.TCP ends
// waiting by closing, and needs no deadlines.
type upgraded struct {
	io.ReadWriteCloser
	to urlAddr
}

func (u upgraded) LocalAddr() net.Addr              { return urlAddr("") }
func (u upgraded) RemoteAddr() net.Addr             { return u.to }
func (u upgraded) SetDeadline(time.Time) error      { return errNoDeadlines }
func (u upgraded) SetReadDeadline(time.Time) error  { return errNoDeadlines }
func (u upgraded) SetWriteDeadline(time.Time) error { return errNoDeadlines }

var errNoDeadlines = fmt.Errorf("httptransport: %w", http.ErrNotSupported)
