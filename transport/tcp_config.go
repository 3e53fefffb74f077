package transport

import (
	"context"
	crand "crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"go.uber.org/zap"

	"github.com/stelelog/stele/internal/clock"
)

// DefaultDialTimeout bounds dialling with its handshakes.
const DefaultDialTimeout = 3 * time.Second

// TCPConfig configures NewTCP. The zero value of a field means its default.
type TCPConfig struct {
	// Listen is host:port; port 0 lets the system choose. With neither Listen
	// nor Listener the transport only dials.
	Listen string
	// Advertise is the address that peers dial, default the listener's. It is
	// required when Listen names no single host.
	Advertise string
	// Listener replaces Listen. Close closes it. Its address is what peers dial,
	// if Advertise is not set, and may have any form that Dialer understands, in
	// at most 255 bytes.
	Listener net.Listener
	// Dialer opens connections; it must honour ctx. Default a net.Dialer.
	Dialer func(ctx context.Context, network, addr string) (net.Conn, error)
	// TLS turns on mutual TLS with the names of nodes in certificates. Its files
	// are read by Start. Default none.
	TLS *TLS
	// ServerTLS and ClientTLS are for experts, in place of TLS: they are used as
	// they are for accepted and dialled connections, and nothing compares names
	// of nodes with certificates. A ClientTLS without ServerName gets the host
	// of the dialled address.
	ServerTLS, ClientTLS *tls.Config
	// Secret, equal on all nodes, is proven by both sides of every connection
	// before either says who it is. It must be drawn at random, since whoever
	// gets a node to dial it can try guesses at leisure: 32 bytes are good,
	// MinSecret to MaxSecret allowed. It says who may connect and no more: what
	// follows the handshake is neither encrypted nor protected from somebody
	// who can change it on its way. That is what TLS is for; both together are
	// bound to each other. Default none.
	Secret []byte
	// PeerName, if not nil, says which node should be at an address, "" if that
	// is not known; whoever else answers there is refused. It is called when
	// dialling and must not block.
	PeerName func(addr string) string

	// Logger, default none.
	Logger *zap.Logger
	// Clock, default the system's.
	Clock clock.Clock
	// Rand gives the jitter of back-off; it is called by one goroutine at a
	// time. Default seeded by the system.
	Rand func() uint64

	// MaxFrame limits a frame, a request and an answer, in bytes, default
	// DefaultMaxFrame. All nodes should have the same.
	MaxFrame int
	// QueueBytes bounds what waits for a peer, for each class, for calls, for
	// the answers of calls and for a direction of a stream. One frame is always let in.
	// Defaults 16 MiB, 64 MiB, 64 MiB, 64 MiB, 64 MiB, 256 KiB.
	QueueBytes QueueBytes

	// DialTimeout bounds dialling with its handshakes, default
	// DefaultDialTimeout; HandshakeTimeout bounds the accepting side's, default 3 s.
	DialTimeout, HandshakeTimeout time.Duration
	// Backoff is waited between attempts to reach a peer, doubling, with
	// jitter, default 20 ms to 1 s.
	Backoff Backoff
	// KeepAlive is how often an idle connection says that it lives, default
	// 1 s; one that stays silent, or accepts nothing, for PeerTimeout, default
	// 5 s, is dropped.
	KeepAlive, PeerTimeout time.Duration
	// IdleTimeout closes a connection that carried nothing for so long,
	// default 5 min.
	IdleTimeout time.Duration

	// MaxHandshakes bounds connections that have not said who they are; the
	// oldest of the host that has the most makes room. Default 128.
	MaxHandshakes int
	// MaxCalls bounds the calls that one peer has running here, default 16384;
	// more are refused as not executed.
	MaxCalls int
}

// QueueBytes are budgets in bytes.
type QueueBytes struct {
	Control, Append, Bulk, Calls, Answers, Stream int
}

// Backoff bounds an exponential back-off.
type Backoff struct{ Min, Max time.Duration }

func (c TCPConfig) withDefaults() TCPConfig {
	setDefault(&c.Logger, zap.NewNop())
	if c.Clock == nil {
		c.Clock = clock.System()
	}
	if c.Rand == nil {
		c.Rand = seededRand()
	}
	if c.Dialer == nil {
		c.Dialer = (&net.Dialer{}).DialContext
	}
	setDefault(&c.MaxFrame, DefaultMaxFrame)
	setDefault(&c.QueueBytes.Control, 16<<20)
	setDefault(&c.QueueBytes.Append, 64<<20)
	setDefault(&c.QueueBytes.Bulk, 64<<20)
	setDefault(&c.QueueBytes.Calls, 64<<20)
	setDefault(&c.QueueBytes.Answers, 64<<20)
	setDefault(&c.QueueBytes.Stream, 256<<10)
	setDefault(&c.DialTimeout, DefaultDialTimeout)
	setDefault(&c.HandshakeTimeout, 3*time.Second)
	setDefault(&c.Backoff.Min, 20*time.Millisecond)
	setDefault(&c.Backoff.Max, max(time.Second, c.Backoff.Min))
	setDefault(&c.KeepAlive, time.Second)
	setDefault(&c.PeerTimeout, 5*c.KeepAlive)
	setDefault(&c.IdleTimeout, max(5*time.Minute, c.PeerTimeout))
	setDefault(&c.MaxHandshakes, 128)
	setDefault(&c.MaxCalls, 16384)
	return c
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

func seededRand() func() uint64 {
	var seed [16]byte
	_, _ = crand.Read(seed[:]) // never fails
	return rand.NewPCG(binary.LittleEndian.Uint64(seed[:]), binary.LittleEndian.Uint64(seed[8:])).Uint64
}

const maxMaxFrame = 1 << 30

// validate checks a configuration with defaults.
func (c TCPConfig) validate() error {
	bad := func(field string, value any, want string) error {
		return fmt.Errorf("transport: TCPConfig.%s is %v, want %s", field, value, want)
	}
	if err := c.validateAddresses(bad); err != nil {
		return err
	}
	if err := c.validateTrust(bad); err != nil {
		return err
	}
	for _, f := range []struct {
		name       string
		v, lo, hi  int
		unitIsByte bool
	}{
		{"MaxFrame", c.MaxFrame, 4 << 10, maxMaxFrame, true},
		{"QueueBytes.Control", c.QueueBytes.Control, 1, maxMaxFrame, true},
		{"QueueBytes.Append", c.QueueBytes.Append, 1, maxMaxFrame, true},
		{"QueueBytes.Bulk", c.QueueBytes.Bulk, 1, maxMaxFrame, true},
		{"QueueBytes.Calls", c.QueueBytes.Calls, 1, maxMaxFrame, true},
		{"QueueBytes.Answers", c.QueueBytes.Answers, 1, maxMaxFrame, true},
		{"QueueBytes.Stream", c.QueueBytes.Stream, 1, maxMaxFrame, true},
		{"MaxHandshakes", c.MaxHandshakes, 1, 1 << 16, false},
		{"MaxCalls", c.MaxCalls, 1, 1 << 20, false},
	} {
		if f.v < f.lo || f.v > f.hi {
			unit := ""
			if f.unitIsByte {
				unit = " bytes"
			}
			return bad(f.name, f.v, fmt.Sprintf("%d to %d%s", f.lo, f.hi, unit))
		}
	}
	for _, f := range []struct {
		name      string
		v, lo, hi time.Duration
	}{
		{"DialTimeout", c.DialTimeout, time.Millisecond, time.Hour},
		{"HandshakeTimeout", c.HandshakeTimeout, time.Millisecond, time.Hour},
		{"Backoff.Min", c.Backoff.Min, time.Millisecond, time.Minute},
		{"Backoff.Max", c.Backoff.Max, c.Backoff.Min, time.Hour},
		{"KeepAlive", c.KeepAlive, time.Millisecond, time.Hour},
		{"PeerTimeout", c.PeerTimeout, 2 * c.KeepAlive, 24 * time.Hour},
		{"IdleTimeout", c.IdleTimeout, c.PeerTimeout, 1000 * time.Hour},
	} {
		if f.v < f.lo || f.v > f.hi {
			return bad(f.name, f.v, fmt.Sprintf("%v to %v", f.lo, f.hi))
		}
	}
	return nil
}

func (c TCPConfig) validateTrust(bad func(field string, value any, want string) error) error {
	if n := len(c.Secret); c.Secret != nil && (n < MinSecret || n > MaxSecret) {
		return bad("Secret", fmt.Sprintf("%d bytes long", n), fmt.Sprintf("%d to %d bytes, or nil", MinSecret, MaxSecret))
	}
	if c.TLS == nil {
		return nil
	}
	if c.ServerTLS != nil || c.ClientTLS != nil {
		return bad("TLS", "set", "none beside ServerTLS and ClientTLS")
	}
	for _, f := range c.TLS.files() {
		if c.TLS.Load != nil && f.path != "" {
			return bad("TLS."+f.field, fmt.Sprintf("%q", f.path), "none beside Load")
		}
		if c.TLS.Load == nil && f.path == "" {
			return bad("TLS."+f.field, `""`, "a file, or Load")
		}
	}
	return nil
}

func (c TCPConfig) validateAddresses(bad func(field string, value any, want string) error) error {
	if len(c.Advertise) > maxShort {
		return bad("Advertise", fmt.Sprintf("%d bytes long", len(c.Advertise)), fmt.Sprintf("at most %d", maxShort))
	}
	if c.Advertise != "" {
		if host, port, err := net.SplitHostPort(c.Advertise); err != nil || host == "" || port == "" || port == "0" {
			return bad("Advertise", fmt.Sprintf("%q", c.Advertise), "host:port that peers can dial")
		}
	}
	if c.Listener != nil {
		if c.Listen != "" {
			return bad("Listen", fmt.Sprintf("%q", c.Listen), "none beside Listener")
		}
		return nil
	}
	if c.Listen == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return bad("Listen", fmt.Sprintf("%q", c.Listen), "host:port")
	}
	ip, err := netip.ParseAddr(host)
	if everywhere := host == "" || err == nil && ip.IsUnspecified(); everywhere && c.Advertise == "" {
		return bad("Advertise", `""`, fmt.Sprintf("host:port that peers can dial, because Listen %q is no single host", c.Listen))
	}
	return nil
}

func (q QueueBytes) of(l lane) int {
	switch l {
	case lane(Control):
		return q.Control
	case lane(Append):
		return q.Append
	case lane(Bulk):
		return q.Bulk
	case laneCalls:
		return q.Calls
	}
	return q.Stream
}
