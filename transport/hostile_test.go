package transport_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/transport"
)

var joinSecret = []byte("0123456789abcdef, at random")

func withSecret(c *transport.TCPConfig) { c.Secret = joinSecret }

// recorder is a connection that remembers what was written to it.
type recorder struct {
	net.Conn
	mu      sync.Mutex
	written []byte
}

func (r *recorder) Write(b []byte) (int, error) {
	r.mu.Lock()
	r.written = append(r.written, b...)
	r.mu.Unlock()
	return r.Conn.Write(b)
}

func (r *recorder) all() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Clone(r.written)
}

// recorded is all that a dialler said to have one call answered.
func recorded(t *testing.T, p *pipes, addr string, change ...func(*transport.TCPConfig)) []byte {
	t.Helper()
	var rec *recorder
	p.wrap = func(c net.Conn) net.Conn {
		rec = &recorder{Conn: c}
		return rec
	}
	friend := p.tcp(t, "friend:1", change...)
	require.NoError(t, friend.Start(identity("friend"), &host{}))
	_, err := friend.Call(t.Context(), addr, "m", nil)
	require.NoError(t, err)
	require.NoError(t, friend.Close())
	p.wrap = nil
	return rec.all()
}

// Strangers of every kind at a node that wants proof: each is gone within the
// handshake's bound, hears nothing that tells anything, changes nothing, is
// logged once a minute and counted.
//
// Property: J16 (red: no proof demanded; a proof that is not checked; nonces that are always the same; no handshake timeout; a certificate shown to whoever speaks TLS)
func TestTCPHostilePeers(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	identified := identity("friend")
	secret := []func(*transport.TCPConfig){withSecret}
	mutual := []func(*transport.TCPConfig){ca.load(t, "a")}
	friendly := ca.load(t, "friend")
	knock, proof := wire(t, "knock"), wire(t, "proof")
	talk := func(cfg *tls.Config, says []byte) func(net.Conn) {
		return func(s net.Conn) {
			tc := tls.Client(s, cfg)
			if tc.Handshake() == nil {
				_, _ = tc.Write(says)
				_, _ = io.Copy(io.Discard, tc)
			}
		}
	}
	client := func(from *authority, name string, protocols ...string) *tls.Config {
		cfg := &tls.Config{InsecureSkipVerify: true, NextProtos: protocols}
		if from != nil {
			cfg.Certificates = []tls.Certificate{from.issue(t, name)}
		}
		return cfg
	}
	hello := transport.Hello(transport.Peer{Identity: identified})
	for name, c := range map[string]struct {
		node   []func(*transport.TCPConfig)
		says   []byte
		does   func(net.Conn) // in place of says
		hears  int            // bytes; -1: an alert of TLS, and what it encrypts
		slowly bool           // says a byte a second
		waits  bool           // only the deadline ends it
		replay []func(*transport.TCPConfig)
	}{
		"plain, slow loris":             {says: hello, slowly: true, waits: true},
		"plain, http":                   {says: []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")},
		"plain, garbage":                {says: bytes.Repeat([]byte{0x5a}, 10_000)},
		"plain, a TLS client":           {does: talk(client(ca, "friend", "stele/1"), hello)},
		"plain, one who wants a secret": {says: knock, hears: 15},

		"secret, http":                 {node: secret, says: []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")},
		"secret, garbage":              {node: secret, says: bytes.Repeat([]byte{0x5a}, 10_000)},
		"secret, slow loris":           {node: secret, says: knock, slowly: true, waits: true},
		"secret, knocks only":          {node: secret, says: knock, hears: 46, waits: true},
		"secret, slow after the knock": {node: secret, says: append(bytes.Clone(knock), proof[:20]...), hears: 46, waits: true},
		"secret, hello without proof":  {node: secret, says: hello, hears: 15},
		"secret, hello in its place":   {node: secret, says: append(bytes.Clone(knock), hello...), hears: 46},
		"secret, wrong proof":          {node: secret, says: append(bytes.Clone(knock), proof...), hears: 46 + 15},
		"secret, replayed handshake":   {node: secret, replay: secret, hears: 46 + 15},
		"secret, plain one replayed":   {node: secret, says: append(bytes.Clone(knock), wire(t, "hello-sealed")...), hears: 46},

		"TLS, http":                     {node: mutual, says: []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")},
		"TLS, garbage":                  {node: mutual, says: bytes.Repeat([]byte{0x5a}, 10_000)},
		"TLS, plain hello":              {node: mutual, says: hello},
		"TLS, slow loris":               {node: mutual, says: []byte{22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3, 0, 0}, slowly: true, waits: true},
		"TLS, https":                    {node: mutual, does: talk(client(nil, "", "h2", "http/1.1"), hello), hears: 7},
		"TLS, another protocol unnamed": {node: mutual, does: talk(client(ca, "friend"), hello), hears: 7},
		"TLS 1.2": {node: mutual, does: func(s net.Conn) {
			cfg := client(ca, "friend", "stele/1")
			cfg.MaxVersion = tls.VersionTLS12
			talk(cfg, hello)(s)
		}, hears: 7},
		"TLS, no certificate":           {node: mutual, does: talk(client(nil, "", "stele/1"), hello), hears: -1},
		"TLS, another authority":        {node: mutual, does: talk(client(other, "friend", "stele/1"), hello), hears: -1},
		"TLS, another node's name":      {node: mutual, does: talk(client(ca, "foe", "stele/1"), hello), hears: -1},
		"TLS, replayed":                 {node: mutual, replay: []func(*transport.TCPConfig){friendly}, hears: -1},
		"TLS, says nothing after it":    {node: mutual, does: talk(client(ca, "friend", "stele/1"), nil), hears: -1, waits: true},
		"TLS, a slow hello after it":    {node: mutual, does: talk(client(ca, "friend", "stele/1"), hello[:30]), hears: -1, waits: true},
		"TLS, http after the handshake": {node: mutual, does: talk(client(ca, "friend", "stele/1"), []byte("GET / HTTP/1.1\r\n\r\n")), hears: -1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				core, logs := observer.New(zap.WarnLevel)
				p := newPipes()
				p.make = bufferedPipe
				var reached atomic.Int64
				node := p.tcp(t, "a:1", append([]func(*transport.TCPConfig){func(cfg *transport.TCPConfig) { cfg.Logger = zap.New(core) }}, c.node...)...)
				start(t, node, "a", &host{call: func(context.Context, transport.Peer, string, []byte) ([]byte, error) {
					reached.Add(1)
					return nil, nil
				}})
				says := c.says
				if c.replay != nil {
					says = recorded(t, p, "a:1", c.replay...)
				}
				friends := reached.Load()
				began := node.Stats()
				visit := func() {
					now := clock.System().Now()
					heard := &hearing{Conn: p.stranger(t, "evil", "a:1")}
					var talking sync.WaitGroup
					talking.Go(func() {
						switch {
						case c.does != nil:
							c.does(heard)
							_ = heard.Close()
						case c.slowly:
							for i := range says {
								if _, err := heard.Write(says[i : i+1]); err != nil {
									return
								}
								pass(time.Second)
							}
						default:
							_, _ = heard.Write(says)
						}
					})
					if c.does == nil {
						_, _ = io.Copy(io.Discard, heard)
					}
					talking.Wait()
					took := clock.System().Now().Sub(now)
					if !c.waits {
						require.Zero(t, took)
					} else {
						require.LessOrEqual(t, took, 4*time.Second)
						require.GreaterOrEqual(t, took, 3*time.Second)
					}
					if c.hears >= 0 {
						require.Len(t, heard.all, c.hears)
					}
					for _, word := range []string{"test", "friend", "DNS"} {
						require.NotContains(t, string(heard.all), word)
					}
				}
				for range 6 {
					visit()
					synctest.Wait()
				}
				require.Equal(t, 1, logs.Len(), "%v", logs.All())
				pass(time.Minute)
				visit()
				synctest.Wait()
				require.Equal(t, 2, logs.Len())
				now := node.Stats()
				require.Equal(t, began.Refused+7, now.Refused)
				require.Equal(t, began.Accepted, now.Accepted)
				require.Equal(t, friends, reached.Load())
			})
		})
	}
}

// hearing records what is read.
type hearing struct {
	net.Conn
	all []byte
}

func (h *hearing) Read(b []byte) (int, error) {
	n, err := h.Conn.Read(b)
	h.all = append(h.all, b[:n]...)
	return n, err
}

// What answers at a member's address and is not the member learns nothing of
// the node that dialled, and is given no call.
//
// Property: J16 (red: the hello sent before the counterproof; a counterproof that is not checked; expected names that are not compared)
func TestTCPImpostors(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	expecting := func(c *transport.TCPConfig) { c.PeerName = func(string) string { return "b" } }
	for name, c := range map[string]struct {
		dialler  []func(*transport.TCPConfig)
		impostor func(t *testing.T, p *pipes) // at b:1
		want     transport.Refusal            // 0: it only hung up, or was too slow
	}{
		"another node": {[]func(*transport.TCPConfig){expecting}, node("c"), transport.RefusedName},
		"another node, secret": {
			[]func(*transport.TCPConfig){expecting, withSecret}, node("c", withSecret), transport.RefusedName,
		},
		"another secret": {
			[]func(*transport.TCPConfig){withSecret},
			node("b", func(c *transport.TCPConfig) { c.Secret = []byte("0123456789abcdef, another") }), transport.RefusedSilently,
		},
		"no secret":  {[]func(*transport.TCPConfig){withSecret}, node("b"), transport.RefusedSilently},
		"reflection": {[]func(*transport.TCPConfig){withSecret}, answering(t, reflect), transport.RefusedSecret},
		"challenge, then a proof made up": {
			[]func(*transport.TCPConfig){withSecret}, answering(t, says(wire(t, "challenge"), wire(t, "counterproof"))), transport.RefusedSecret,
		},
		"a welcome at once":       {[]func(*transport.TCPConfig){withSecret}, answering(t, says(wire(t, "welcome"))), transport.RefusedProtocol},
		"challenge, then welcome": {[]func(*transport.TCPConfig){withSecret}, answering(t, says(wire(t, "challenge"), wire(t, "welcome"))), transport.RefusedProtocol},
		"http":                    {[]func(*transport.TCPConfig){withSecret}, answering(t, says([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))), transport.RefusedProtocol},
		"silence":                 {[]func(*transport.TCPConfig){withSecret}, answering(t, says()), 0},
		"TLS, another node":       {[]func(*transport.TCPConfig){expecting, ca.load(t, "a")}, node("c", ca.load(t, "c")), transport.RefusedTLS},
		"TLS, another authority":  {[]func(*transport.TCPConfig){expecting, ca.load(t, "a")}, node("b", other.load(t, "b")), transport.RefusedTLS},
		"TLS, a plain node":       {[]func(*transport.TCPConfig){expecting, ca.load(t, "a")}, node("b"), 0},
		"TLS, a name not its own, at an unknown address": {
			[]func(*transport.TCPConfig){ca.load(t, "a")}, node("b", func(cfg *transport.TCPConfig) {
				cert := ca.issue(t, "c")
				cfg.ServerTLS = &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"stele/1"}, ClientAuth: tls.RequireAnyClientCert}
			}), transport.RefusedName,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPipes()
				p.make = bufferedPipe
				core, logs := observer.New(zap.WarnLevel)
				c.impostor(t, p)
				var rec *recorder
				p.wrap = func(c net.Conn) net.Conn {
					rec = &recorder{Conn: c}
					return rec
				}
				a := p.tcp(t, "a:1", append([]func(*transport.TCPConfig){func(cfg *transport.TCPConfig) { cfg.Logger = zap.New(core) }}, c.dialler...)...)
				start(t, a, "a", &host{})
				for range 3 {
					_, err := a.Call(t.Context(), "b:1", "m", []byte("of the request"))
					require.ErrorIs(t, err, transport.ErrUnreachable)
					var refused *transport.HandshakeError
					require.Equal(t, c.want != 0, errors.As(err, &refused), "%v", err)
					if c.want != 0 {
						require.Equal(t, c.want, refused.Reason, "%v", err)
						require.Equal(t, "b:1", refused.Addr)
					}
				}
				require.Equal(t, 1, logs.Len())
				require.NotContains(t, string(rec.all()), "of the request")
				if strings.HasPrefix(name, "another node") { // which has proven the secret, if there is one
					return
				}
				require.NotContains(t, string(rec.all()), "test", "the cluster's name")
			})
		})
	}
}

// node makes a real node, called so, at b:1.
func node(name string, change ...func(*transport.TCPConfig)) func(*testing.T, *pipes) {
	return func(t *testing.T, p *pipes) {
		tr := p.tcp(t, "b:1", change...)
		start(t, tr, name, &host{call: func(context.Context, transport.Peer, string, []byte) ([]byte, error) {
			t.Error("it was given a call")
			return nil, nil
		}})
	}
}

// answering makes a listener at b:1 that does something to whoever dials.
func answering(t *testing.T, do func(net.Conn)) func(*testing.T, *pipes) {
	return func(t *testing.T, p *pipes) {
		l := p.listen("b:1")
		var serving sync.WaitGroup
		t.Cleanup(func() {
			_ = l.Close()
			serving.Wait()
		})
		serving.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				serving.Go(func() {
					do(c)
					_ = c.Close()
				})
			}
		})
	}
}

// reflect sends a knock back as a challenge, and a proof as a counterproof.
func reflect(c net.Conn) {
	for _, kind := range []byte{5, 7} {
		b := make([]byte, 14+32)
		if _, err := io.ReadFull(c, b); err != nil {
			return
		}
		_, _ = c.Write(transport.Greeting(kind, b[14:]))
	}
	_, _ = io.Copy(io.Discard, c)
}

// says answers every 46 bytes with the next of its answers, then listens.
func says(answers ...[]byte) func(net.Conn) {
	return func(c net.Conn) {
		for _, a := range answers {
			if _, err := io.ReadFull(c, make([]byte, 46)); err != nil {
				return
			}
			_, _ = c.Write(a)
		}
		_, _ = io.Copy(io.Discard, c)
	}
}
