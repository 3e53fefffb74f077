package transport

import (
	"fmt"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/stelelog/stele/internal/clock"
)

// from is a connection from an address.
type from struct {
	net.Conn
	addr   string
	closed bool
}

func (c *from) Network() string      { return "tcp" }
func (c *from) String() string       { return c.addr }
func (c *from) RemoteAddr() net.Addr { return c }
func (c *from) Close() error         { c.closed = true; return nil }

// Whoever holds the most places makes room, its oldest connection first; a host
// with few is never pushed out by one with many, however many it tries.
func TestStrangersMakeRoomFairly(t *testing.T) {
	s := newStrangers(8)
	honest := []*from{{addr: "10.0.0.1:1"}, {addr: "10.0.0.2:1"}, {addr: "10.0.0.2:2"}}
	for _, c := range honest {
		s.admit(c)
	}
	var crowd []*from
	for i := range 40 {
		c := &from{addr: fmt.Sprintf("[2001:db8::%x]:%d", i, i+1)} // one network, many addresses
		crowd = append(crowd, c)
		s.admit(c)
	}
	for _, c := range honest {
		require.False(t, c.closed, c.addr)
	}
	for i, c := range crowd {
		require.Equal(t, i < 35, c.closed, "%d", i)
	}
	late := &from{addr: "10.0.0.3:1"}
	st := s.admit(late)
	require.True(t, crowd[35].closed)
	require.NoError(t, s.leave(st))
	require.Len(t, s.byHost, 3)
}

// Dropped strangers whose goroutines have not ended are bounded too.
func TestStrangersEnding(t *testing.T) {
	s := newStrangers(2)
	var admitted []*stranger
	for range crowd * 2 {
		admitted = append(admitted, s.admit(&from{addr: "10.0.0.1:1"}))
	}
	require.Nil(t, s.admit(&from{addr: "10.0.0.2:1"}))
	require.ErrorIs(t, s.leave(admitted[0]), errCrowded)
	require.NotNil(t, s.admit(&from{addr: "10.0.0.2:1"}))
}

func TestHostOf(t *testing.T) {
	for addr, want := range map[string]string{
		"10.1.2.3:4": "10.1.2.3", "[::ffff:10.1.2.3]:4": "10.1.2.3", "[2001:db8:1:2:3:4:5:6]:7": "2001:db8:1:2::/64",
		"[fe80::1%eth0]:7": "fe80::/64", "a-host:5": "a-host", "a pipe": "a pipe",
	} {
		require.Equal(t, want, hostOf(&from{addr: addr}))
	}
	require.Equal(t, "unknown", hostOf(nil))
}

// Memory and lines of the log are bounded however many peers are refused, and
// that more are refused is said.
//
// Property: J16 (red: no bound of the peers that are remembered)
func TestRefusalLogIsBounded(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	l := newRefusalLog(zap.New(core), clock.System())
	for i := range 10 * maxRefusalPeers {
		l.note(fmt.Sprint("peer ", i), "refused")
	}
	require.Len(t, l.logged, maxRefusalPeers)
	require.Equal(t, maxRefusalPeers+1, logs.Len())
	require.Equal(t, 1, logs.FilterMessageSnippet("more peers").Len())
}

// scripted is a connection on which the peer says what it likes.
type scripted struct {
	net.Conn
	says []byte
	sent int
}

func (s *scripted) Read(b []byte) (int, error) {
	if len(s.says) == 0 {
		return 0, net.ErrClosed
	}
	n := copy(b, s.says)
	s.says = s.says[n:]
	return n, nil
}

func (s *scripted) Write(b []byte) (int, error) { s.sent += len(b); return len(b), nil }
func (s *scripted) RemoteAddr() net.Addr        { return &from{addr: "10.0.0.1:1"} }
func (s *scripted) Close() error                { return nil }

// Nothing that a stranger says is taken for a proof, in either role, and the
// answer has one of the few lengths that tell nothing.
//
// Property: J16, S11 (red: a proof that is not checked)
func FuzzSecretHandshake(f *testing.F) {
	all := sealedGreetings(appendPeer(nil, Peer{Identity: Identity{Cluster: "orders", Name: "x"}}))
	for dialer := range 2 {
		var script []byte
		for i := dialer; i < len(all); i += 2 {
			script = append(script, all[i]...)
			f.Add(script, dialer == 1)
		}
	}
	f.Add(samples()[0].b, false)
	f.Fuzz(func(t *testing.T, says []byte, dials bool) {
		tr, err := NewTCP(TCPConfig{Secret: []byte("the secret of the golden file")})
		require.NoError(t, err)
		tr.self.Store(newSelf("a:1", Identity{Cluster: "orders", Name: "n1"}))
		wire := &scripted{says: says}
		if dials {
			_, err = tr.greetOutbound(t.Context(), wire, "a:1", laneCalls)
			require.Contains(t, []int{46, 92}, wire.sent)
		} else {
			_, err = tr.greetInbound(wire)
			require.Contains(t, []int{0, 15, 46, 61}, wire.sent)
		}
		require.Error(t, err)
	})
}
