package transport_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"os"
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
	"github.com/stelelog/stele/transport/transporttest"
)

// The whole suite over a host's own dialer and listener, in virtual time.
//
// Property: L4 (red: a sent call that does not look at its context, a stream that does not)
func TestTCPConformanceOverPipes(t *testing.T) {
	transporttest.Run(t, transporttest.Suite{
		In: func(t *testing.T, body func(t *testing.T)) { synctest.Test(t, body) },
		Make: func(t *testing.T) transporttest.Network {
			p, made := newPipes(), 0
			small := func(c *transport.TCPConfig) { c.MaxFrame = 2 << 20 }
			return transporttest.Network{
				New: func() transport.Transport {
					made++
					return p.tcp(t, fmt.Sprintf("host-%d:1", made), small)
				},
				Again:    func(addr string) transport.Transport { return p.tcp(t, addr, small) },
				Nobody:   "nobody:1",
				MaxFrame: 2 << 20,
			}
		},
	})
}

// wire returns a line of the golden file.
func wire(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/wire-v1.golden")
	require.NoError(t, err)
	for line := range strings.Lines(string(b)) {
		if n, h, _ := strings.Cut(strings.TrimSpace(line), " "); n == name {
			raw, err := hex.DecodeString(h)
			require.NoError(t, err)
			return raw
		}
	}
	require.FailNow(t, "no such line", name)
	return nil
}

// Strangers of every kind get no answer that tells anything, and one line a
// minute each.
//
// Property: J16 (red: the reason told to other clusters; a line for every refusal)
func TestTCPStrangers(t *testing.T) {
	future := wire(t, "hello")
	future[4], future[5] = 9, 9
	damaged := wire(t, "hello")
	damaged[20] ^= 1
	endless := wire(t, "hello")
	endless[8], endless[9] = 0xff, 0xff
	for name, c := range map[string]struct {
		says, hears []byte
		incomplete  bool // only its deadline ends it
	}{
		"http":                {says: []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")},
		"tls":                 {says: []byte{22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3, 0, 0}},
		"damaged hello":       {says: damaged},
		"a hello too long":    {says: endless[:14]},
		"a frame before":      {says: wire(t, "message")},
		"another release":     {says: future, hears: []byte{byte(transport.RefusedVersion)}},
		"another cluster":     {says: wire(t, "hello"), hears: []byte{byte(transport.RefusedSilently)}},
		"welcome, not hello":  {says: wire(t, "welcome")},
		"half of the magic":   {says: wire(t, "hello")[:2], incomplete: true},
		"nothing at all":      {incomplete: true},
		"half of a hello":     {says: wire(t, "hello")[:30], incomplete: true},
		"a refusal, unasked":  {says: wire(t, "refuse")},
		"hello and then more": {says: append(wire(t, "hello"), wire(t, "request")...), hears: []byte{byte(transport.RefusedSilently)}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				core, logs := observer.New(zap.WarnLevel)
				p := newPipes()
				var reached atomic.Int64
				tr := p.tcp(t, "a:1", func(c *transport.TCPConfig) { c.Logger = zap.New(core) })
				start(t, tr, "a", &host{call: func(context.Context, transport.Peer, string, []byte) ([]byte, error) {
					reached.Add(1)
					return nil, nil
				}})
				visit := func() []byte {
					began := clock.System().Now()
					s := p.stranger(t, "evil", "a:1")
					go func() { _, _ = s.Write(c.says) }()
					heard := answer(s)
					took := time.Duration(0)
					if c.incomplete {
						took = 3 * time.Second
					}
					require.Equal(t, took, clock.System().Now().Sub(began))
					synctest.Wait()
					return heard
				}
				heard := visit()
				if len(c.hears) == 0 {
					require.Empty(t, heard)
				} else {
					require.Len(t, heard, 15)
					require.Equal(t, c.hears, heard[14:])
				}
				require.Equal(t, 1, logs.Len())
				for range 5 {
					visit()
				}
				require.Equal(t, 1, logs.Len(), "once a minute")
				pass(time.Minute)
				visit()
				require.Equal(t, 2, logs.Len())
				require.Equal(t, uint64(7), tr.Stats().Refused)
				require.Zero(t, reached.Load())
			})
		})
	}
}

// Connections that say nothing hold at most MaxHandshakes places, and cannot
// keep an honest peer out.
func TestTCPCrowdOfSilentStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		a, b := p.tcp(t, "a:1"), p.tcp(t, "b:1", func(c *transport.TCPConfig) { c.MaxHandshakes = 4 })
		start(t, a, "a", &host{})
		start(t, b, "b", &host{})
		began := clock.System().Now()
		var crowd []net.Conn
		for range 40 {
			crowd = append(crowd, p.stranger(t, "evil", "b:1"))
		}
		_, err := a.Call(context.Background(), "b:1", "m", nil)
		require.NoError(t, err)
		for _, c := range crowd[:30] {
			require.Empty(t, answer(c))
		}
		require.Zero(t, clock.System().Now().Sub(began), "the oldest went at once")
		for _, c := range crowd {
			require.Empty(t, answer(c))
		}
		require.Equal(t, 3*time.Second, clock.System().Now().Sub(began))
	})
}

// blackhole is a connection that can go dead without a word.
type blackhole struct {
	net.Conn
	dead atomic.Bool
	stop chan struct{}
	once sync.Once
}

func (c *blackhole) Write(b []byte) (int, error) {
	if c.dead.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *blackhole) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.dead.Load() {
		<-c.stop
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *blackhole) Close() error {
	c.once.Do(func() { close(c.stop) })
	return c.Conn.Close()
}

func TestTCPDropsSilentPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		var hole *blackhole
		p.wrap = func(c net.Conn) net.Conn {
			hole = &blackhole{Conn: c, stop: make(chan struct{})}
			return hole
		}
		a, b := p.tcp(t, "a:1"), p.tcp(t, "b:1")
		start(t, a, "a", &host{})
		arrived, ended := make(chan struct{}), make(chan struct{})
		start(t, b, "b", &host{call: func(ctx context.Context, _ transport.Peer, method string, _ []byte) ([]byte, error) {
			if method == "wait" {
				close(arrived)
				<-ctx.Done()
				close(ended)
			}
			return nil, nil
		}})
		result := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
			defer cancel()
			_, err := a.Call(ctx, "b:1", "wait", nil)
			result <- err
		}()
		<-arrived
		pass(10 * time.Minute) // the connection lives although only the call needs it
		require.Empty(t, result)
		began := clock.System().Now()
		hole.dead.Store(true)
		require.ErrorIs(t, <-result, transport.ErrInterrupted)
		<-ended
		require.LessOrEqual(t, clock.System().Now().Sub(began), 7*time.Second)
		_, err := a.Call(context.Background(), "b:1", "again", nil)
		require.NoError(t, err)
		require.EqualValues(t, 1, a.Stats().Reconnects)
	})
}

// A peer that takes nothing is dropped, what waits for it is bounded, and what
// is lost is counted.
func TestTCPStuckPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		const budget, size, count = 100_000, 10_000, 100
		a, b := p.tcp(t, "a:1", func(c *transport.TCPConfig) { c.QueueBytes.Append = budget }), p.tcp(t, "b:1")
		var got atomic.Int64 // connections may overlap
		release := make(chan struct{})
		start(t, a, "a", &host{})
		start(t, b, "b", &host{frame: func(transport.Peer, transport.Class, []byte) {
			<-release
			got.Add(1)
		}})
		for range count {
			a.Send("b:1", transport.Append, make([]byte, size))
		}
		dropped := a.Stats().Classes[transport.Append].FramesDropped
		require.GreaterOrEqual(t, dropped, uint64(count-budget/size))
		a.Send("b:1", transport.Control, nil)
		pass(time.Minute) // it is stuck, and dropped after PeerTimeout
		require.Equal(t, uint64(count), a.Stats().Classes[transport.Append].FramesDropped, "all lost, all counted")
		close(release)
		pass(time.Minute)
		got.Store(0)
		a.Send("b:1", transport.Append, nil)
		pass(time.Second)
		require.EqualValues(t, 1, got.Load())
		require.EqualValues(t, 1, a.Stats().Classes[transport.Append].FramesSent)
	})
}

func TestTCPClosesIdleConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		a, b := p.tcp(t, "a:1"), p.tcp(t, "b:1")
		start(t, a, "a", &host{})
		start(t, b, "b", &host{})
		_, err := a.Call(context.Background(), "b:1", "m", nil)
		require.NoError(t, err)
		for range 10 {
			pass(4 * time.Minute) // used again before it is idle for long enough
			_, err := a.Call(context.Background(), "b:1", "m", nil)
			require.NoError(t, err)
		}
		require.Len(t, p.dialed, 1)
		began := clock.System().Now()
		<-p.dialed[0].closed
		require.InDelta(t, 5*time.Minute, clock.System().Now().Sub(began), float64(2*time.Second))
		_, err = a.Call(context.Background(), "b:1", "m", nil)
		require.NoError(t, err)
		require.Len(t, p.dialed, 2)
	})
}

// Attempts to reach a peer become rarer, with jitter from the configuration.
func TestTCPBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dials []time.Duration
		began := clock.System().Now()
		tr, err := transport.NewTCP(transport.TCPConfig{
			Rand: func() uint64 { return 0 }, // no jitter
			Dialer: func(context.Context, string, string) (net.Conn, error) {
				dials = append(dials, clock.System().Now().Sub(began))
				return nil, errNobody
			},
		})
		require.NoError(t, err)
		start(t, tr, "a", &host{})
		for range 8 {
			_, err := tr.Call(context.Background(), "b:1", "m", nil)
			require.ErrorIs(t, err, transport.ErrUnreachable)
			require.ErrorIs(t, err, errNobody)
		}
		ms := time.Millisecond
		require.Equal(t, []time.Duration{0, 20 * ms, 60 * ms, 140 * ms, 300 * ms, 620 * ms, 1260 * ms, 2260 * ms}, dials)
		require.EqualValues(t, 8, tr.Stats().DialFailures)

		ctx, cancel := context.WithTimeout(context.Background(), 100*ms)
		defer cancel()
		_, err = tr.Call(ctx, "b:1", "m", nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, transport.ErrUnreachable, "it was never sent")
		require.Len(t, dials, 8)
	})
}

// Property: L4 (red: a stream dialled without its context)
func TestTCPDialHonoursContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, err := transport.NewTCP(transport.TCPConfig{Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}})
		require.NoError(t, err)
		start(t, tr, "a", &host{})
		began := clock.System().Now()
		took := func() time.Duration { return clock.System().Now().Sub(began) }
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err = tr.OpenStream(ctx, "b:1", "m")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Second, took())
		_, err = tr.OpenStream(context.Background(), "b:1", "m")
		require.ErrorIs(t, err, transport.ErrUnreachable)
		require.Equal(t, time.Second+transport.DefaultDialTimeout, took())
		result := make(chan error)
		go func() {
			_, err := tr.OpenStream(context.Background(), "b:1", "m")
			result <- err
		}()
		synctest.Wait()
		require.NoError(t, tr.Close())
		require.ErrorIs(t, <-result, transport.ErrClosed)
		require.Equal(t, time.Second+transport.DefaultDialTimeout, took())
	})
}

// flipper damages one byte of what is written after the handshake.
type flipper struct {
	net.Conn
	writes, at int
}

func (f *flipper) Write(b []byte) (int, error) {
	if f.writes++; f.writes == f.at {
		b = append([]byte(nil), b...)
		b[len(b)-1] ^= 0x10
	}
	return f.Conn.Write(b)
}

func TestTCPChecksumEndsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		p.wrap = func(c net.Conn) net.Conn { return &flipper{Conn: c, at: 3} }
		a, b := p.tcp(t, "a:1"), p.tcp(t, "b:1")
		var got []string
		start(t, a, "a", &host{})
		start(t, b, "b", &host{frame: func(_ transport.Peer, _ transport.Class, f []byte) { got = append(got, string(f)) }})
		for i := range 3 {
			a.Send("b:1", transport.Append, fmt.Append(nil, "frame ", i))
			pass(100 * time.Millisecond)
		}
		require.Equal(t, []string{"frame 0", "frame 2"}, got)
		require.EqualValues(t, 1, b.Stats().Corrupt)
		require.EqualValues(t, 1, a.Stats().Reconnects)
	})
}

func TestTCPTooManyCallsAreNotExecuted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		a, b := p.tcp(t, "a:1"), p.tcp(t, "b:1", func(c *transport.TCPConfig) { c.MaxCalls = 3 })
		release, executed := make(chan struct{}), 0
		var mu sync.Mutex
		start(t, a, "a", &host{})
		start(t, b, "b", &host{call: func(context.Context, transport.Peer, string, []byte) ([]byte, error) {
			mu.Lock()
			executed++
			mu.Unlock()
			<-release
			return nil, nil
		}})
		results := make(chan error, 3)
		for range 3 {
			go func() {
				_, err := a.Call(context.Background(), "b:1", "m", nil)
				results <- err
			}()
		}
		synctest.Wait()
		_, err := a.Call(context.Background(), "b:1", "m", nil)
		require.ErrorIs(t, err, transport.ErrUnreachable)
		require.ErrorContains(t, err, "busy")
		close(release)
		for range 3 {
			require.NoError(t, <-results)
		}
		require.Equal(t, 3, executed)
	})
}

func TestTCPConfigRefusals(t *testing.T) {
	p := newPipes()
	for want, cfg := range map[string]transport.TCPConfig{
		"TCPConfig.Listen is":             {Listen: "7942"},
		"TCPConfig.Listen is \"":          {Listen: "127.0.0.1:1", Listener: p.listen("a:1")},
		"because Listen \":7942\"":        {Listen: ":7942"},
		"because Listen \"0.0.0.0:7942\"": {Listen: "0.0.0.0:7942"},
		"because Listen \"[::]:7942\"":    {Listen: "[::]:7942"},
		"TCPConfig.Advertise is \"x\"":    {Listen: "127.0.0.1:0", Advertise: "x"},
		"Advertise is \"x:0\"":            {Listen: "127.0.0.1:0", Advertise: "x:0"},
		"Advertise is 302 bytes":          {Listen: "127.0.0.1:0", Advertise: strings.Repeat("x", 300) + ":1"},
		"MaxFrame is 100, want":           {MaxFrame: 100},
		"QueueBytes.Bulk is -1":           {QueueBytes: transport.QueueBytes{Bulk: -1}},
		"MaxCalls is -5":                  {MaxCalls: -5},
		"KeepAlive is -1s":                {KeepAlive: -time.Second},
		"PeerTimeout is 1s":               {KeepAlive: time.Second, PeerTimeout: time.Second},
		"Backoff.Max is 1ms":              {Backoff: transport.Backoff{Max: time.Millisecond}},
	} {
		_, err := transport.NewTCP(cfg)
		require.ErrorContains(t, err, want)
	}
}

func TestTCPAddressInUse(t *testing.T) {
	cfg := transport.TCPConfig{Listen: "127.0.0.1:0"}
	a, err := transport.NewTCP(cfg)
	require.NoError(t, err)
	start(t, a, "a", &host{})
	cfg.Listen = a.Addr()
	b, err := transport.NewTCP(cfg)
	require.NoError(t, err)
	require.ErrorContains(t, b.Start(identity("b"), &host{}), "address already in use")
	require.NoError(t, b.Close())
}
