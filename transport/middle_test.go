package transport_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"hash/crc32"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/transport"
)

// With TLS that proves nothing about the peer, the secret still does: a man in
// the middle has two TLS connections, and the seals are bound to one.
//
// Property: J16 (red: seals that are not bound to the TLS connection)
func TestTCPSecretIsBoundToTLS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := newAuthority(t)
		p := newPipes()
		p.make = bufferedPipe
		trusting := func(c *transport.TCPConfig) {
			withSecret(c)
			c.ServerTLS = &tls.Config{Certificates: []tls.Certificate{ca.issue(t, "b")}, MinVersion: tls.VersionTLS13}
			c.ClientTLS = &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}
		}
		a, b := p.tcp(t, "a:1", trusting), p.tcp(t, "b:1", trusting)
		start(t, a, "a", &host{})
		start(t, b, "b", &host{})
		_, err := a.Call(t.Context(), "b:1", "m", nil)
		require.NoError(t, err, "it works without one")

		middle := p.listen("middle:1")
		var passing sync.WaitGroup
		defer passing.Wait()
		passing.Go(func() {
			from, err := middle.Accept()
			if err != nil {
				return
			}
			to, err := p.dialFrom("middle")(t.Context(), "tcp", "b:1")
			if err != nil {
				return
			}
			in := tls.Server(from, &tls.Config{Certificates: []tls.Certificate{ca.issue(t, "middle")}})
			out := tls.Client(to, &tls.Config{InsecureSkipVerify: true})
			passing.Go(func() {
				_, _ = io.Copy(out, in)
				_ = to.Close()
			})
			_, _ = io.Copy(in, out)
			_ = from.Close()
		})
		_, err = a.Call(t.Context(), "middle:1", "m", nil)
		var refused *transport.HandshakeError
		require.ErrorAs(t, err, &refused)
		require.Equal(t, transport.RefusedSilently, refused.Reason)
		require.EqualValues(t, 1, b.Stats().CallsServed)
		_ = middle.Close()
	})
}

// A host may bring connections that are TLS already, or will be, on one side
// only as far as the transport sees: the secret is proven over them as over any
// other.
func TestTCPSecretOverTLSOfTheHost(t *testing.T) {
	ca := newAuthority(t)
	cfg := &tls.Config{Certificates: []tls.Certificate{ca.issue(t, "b")}, InsecureSkipVerify: true}
	for name, client := range map[string]func(*tls.Conn) net.Conn{
		"before its handshake": func(c *tls.Conn) net.Conn { return c },
		"after it":             func(c *tls.Conn) net.Conn { _ = c.Handshake(); return c },
		"hidden":               func(c *tls.Conn) net.Conn { return struct{ net.Conn }{c} },
	} {
		t.Run(name, func(t *testing.T) {
			a := loopback(t, "127.0.0.1:0", withSecret, func(c *transport.TCPConfig) {
				c.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
					under, err := (&net.Dialer{}).DialContext(ctx, network, addr)
					if err != nil {
						return nil, err
					}
					return client(tls.Client(under, cfg)), nil
				}
			})
			b := loopback(t, "", withSecret, func(c *transport.TCPConfig) {
				ln, err := tls.Listen("tcp", "127.0.0.1:0", cfg)
				require.NoError(t, err)
				c.Listener = ln
			})
			start(t, a, "a", &host{})
			start(t, b, "b", &host{})
			_, err := a.Call(t.Context(), b.Addr(), "m", nil)
			require.NoError(t, err)
		})
	}
}

// A man in the middle who passes the proofs on cannot change who was proven,
// in either direction.
//
// Property: J16 (red: the seals of hello and welcome not checked)
func TestTCPSecretSealsIdentities(t *testing.T) {
	for name, kind := range map[string]byte{"hello": 1, "welcome": 2, "nothing": 0} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPipes()
				a, b := p.tcp(t, "a:1", withSecret), p.tcp(t, "b:1", withSecret)
				start(t, a, "alice", &host{})
				start(t, b, "alibi", &host{})
				inTheMiddle(t, p, "b:1", func(g []byte) []byte {
					if g[6] != kind {
						return g
					}
					return transport.Greeting(kind, bytes.ReplaceAll(g[14:], []byte("ali"), []byte("eve")))
				})
				_, err := a.Call(t.Context(), "middle:1", "m", nil)
				if kind == 0 {
					require.NoError(t, err)
					return
				}
				var refused *transport.HandshakeError
				require.ErrorAs(t, err, &refused)
				require.Contains(t, []transport.Refusal{transport.RefusedSilently, transport.RefusedSecret}, refused.Reason)
				require.Zero(t, b.Stats().CallsServed)
			})
		})
	}
}

// A man in the middle who passes the proofs on cannot change for which lane or
// protocol version they were made, in any greeting: nobody takes the connection
// for made.
//
// Property: J16 (red: the heads of greetings not compared)
func TestTCPSecretSealsHeads(t *testing.T) {
	const newest, lane = 4, 7
	for name, c := range map[string]struct {
		kind byte
		at   int
	}{
		"lane of knock": {4, lane}, "lane of proof": {6, lane}, "lane of hello": {1, lane},
		"version of knock": {4, newest}, "version of challenge": {5, newest}, "version of proof": {6, newest},
		"version of counterproof": {7, newest}, "version of hello": {1, newest}, "version of welcome": {2, newest},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPipes()
				a, b := p.tcp(t, "a:1", withSecret), p.tcp(t, "b:1", withSecret)
				start(t, a, "a", &host{})
				start(t, b, "b", &host{})
				inTheMiddle(t, p, "b:1", func(g []byte) []byte {
					if g[6] != c.kind {
						return g
					}
					g[c.at]++
					binary.LittleEndian.PutUint32(g[10:], crc32.Update(crc32.Checksum(g[:10], castagnoli), castagnoli, g[14:]))
					return g
				})
				_, err := a.Call(t.Context(), "middle:1", "m", nil)
				require.ErrorIs(t, err, transport.ErrUnreachable)
				synctest.Wait()
				require.Zero(t, b.Stats().CallsServed)
				if c.kind != 2 { // before which the acceptor has all that it needs
					require.Zero(t, b.Stats().Accepted)
				}
			})
		})
	}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// inTheMiddle listens at middle:1 for one connection and passes it on to an
// address, its greetings changed.
func inTheMiddle(t *testing.T, p *pipes, to string, change func(greeting []byte) []byte) {
	middle := p.listen("middle:1")
	var passing sync.WaitGroup
	t.Cleanup(func() {
		_ = middle.Close()
		passing.Wait()
	})
	passing.Go(func() {
		from, err := middle.Accept()
		if err != nil {
			return
		}
		on, err := p.dialFrom("middle")(t.Context(), "tcp", to)
		if err != nil {
			return
		}
		passing.Go(func() {
			passGreetings(on, from, change)
			_ = on.Close()
		})
		passGreetings(from, on, change)
		_ = from.Close()
	})
}

// passGreetings passes greetings on, changed, then everything.
func passGreetings(dst, src net.Conn, change func(greeting []byte) []byte) {
	for last := byte(0); last != 1 && last != 2; {
		head := make([]byte, 14)
		if _, err := io.ReadFull(src, head); err != nil {
			return
		}
		body := make([]byte, int(head[8])|int(head[9])<<8)
		if _, err := io.ReadFull(src, body); err != nil {
			return
		}
		last = head[6]
		_, _ = dst.Write(change(append(head, body...)))
	}
	_, _ = io.Copy(dst, src)
}
