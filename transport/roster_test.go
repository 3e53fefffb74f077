package transport_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/transport"
)

// member starts a transport as a node of one cluster.
func member(t *testing.T, tr transport.Transport, node, process uint64, h *host) {
	t.Helper()
	t.Cleanup(func() { _ = tr.Close() })
	id := transport.Identity{Cluster: "test", ClusterID: [16]byte{1}, Name: "n" + string(rune('0'+node)), Node: node, Process: process}
	require.NoError(t, tr.Start(id, h))
}

// census counts calls by the process that made them.
type census struct {
	mu    sync.Mutex
	calls map[uint64]int
}

func (s *census) host() *host {
	s.calls = map[uint64]int{}
	return &host{call: func(_ context.Context, from transport.Peer, _ string, _ []byte) ([]byte, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.calls[from.Process]++
		return nil, nil
	}}
}

func (s *census) of(process uint64) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[process]
}

func errorsOnly() (*zap.Logger, *observer.ObservedLogs) {
	core, logs := observer.New(zapcore.ErrorLevel)
	return zap.New(core), logs
}

// A copied directory: two processes with one node id at the same time. The one
// that came first stays, the other one is refused for as long as that lives,
// and shown once a minute.
func TestTCPCloneIsRefusedAndShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		logger, logs := errorsOnly()
		var counts census
		b := p.tcp(t, "b:1", func(c *transport.TCPConfig) { c.Logger = logger })
		first, second := p.tcp(t, "a:1"), p.tcp(t, "elsewhere:1")
		member(t, b, 2, 1, counts.host())
		member(t, first, 1, 11, &host{})
		member(t, second, 1, 12, &host{})
		began := clock.System().Now()
		for clock.System().Now().Sub(began) < 3*time.Minute {
			_, err := first.Call(t.Context(), "b:1", "m", nil)
			require.NoError(t, err)
			_, err = second.Call(t.Context(), "b:1", "m", nil)
			var refused *transport.HandshakeError
			require.ErrorAs(t, err, &refused)
			require.Equal(t, transport.RefusedClone, refused.Reason)
			pass(100 * time.Millisecond)
		}
		require.Zero(t, counts.of(12))
		require.Equal(t, 3, logs.Len())
		require.Equal(t, map[string]any{"node_id": uint64(1), "name": "n1", "addr": "elsewhere:1", "process": uint64(12), "other_process": uint64(11)}, logs.All()[0].ContextMap())

		// The first one ends: the other one is the node from now on.
		require.NoError(t, first.Close())
		_, err := second.Call(t.Context(), "b:1", "m", nil)
		require.NoError(t, err)
	})
}

// Who answers at the node's address is the node: dialling it ends what a copy
// elsewhere has, and the copy stays out.
func TestTCPCloneElsewhereGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		logger, logs := errorsOnly()
		var counts census
		b := p.tcp(t, "b:1", func(c *transport.TCPConfig) { c.Logger = logger })
		real, clone := p.tcp(t, "a:1"), p.tcp(t, "elsewhere:1")
		member(t, b, 2, 1, counts.host())
		member(t, clone, 1, 12, &host{})
		_, err := clone.Call(t.Context(), "b:1", "m", nil)
		require.NoError(t, err, "nobody knows better yet")
		member(t, real, 1, 11, &host{})
		_, err = b.Call(t.Context(), "a:1", "m", nil)
		require.NoError(t, err)
		for range 200 {
			_, err = clone.Call(t.Context(), "b:1", "m", nil)
			require.ErrorIs(t, err, transport.ErrUnreachable)
			_, err = real.Call(t.Context(), "b:1", "m", nil)
			require.NoError(t, err)
			pass(100 * time.Millisecond)
		}
		require.Equal(t, 200, counts.of(11))
		require.Equal(t, 1, counts.of(12))
		require.Positive(t, logs.Len())
	})
}

// A copy that dials the original, or that the original dials, is known at once.
func TestTCPCloneOfThisNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		logger, logs := errorsOnly()
		a, clone := p.tcp(t, "a:1", func(c *transport.TCPConfig) { c.Logger = logger }), p.tcp(t, "elsewhere:1")
		member(t, a, 1, 11, &host{})
		member(t, clone, 1, 12, &host{})
		for from, to := range map[*transport.TCP]string{clone: "a:1", a: "elsewhere:1"} {
			_, err := from.Call(t.Context(), to, "m", nil)
			var refused *transport.HandshakeError
			require.ErrorAs(t, err, &refused)
			require.Equal(t, transport.RefusedClone, refused.Reason)
		}
		_, err := a.Call(t.Context(), "a:1", "m", nil)
		require.NoError(t, err, "a node may dial itself")
		require.Equal(t, 1, logs.Len())
	})
}

// A restart is no clone, whether the old process hung up, or its machine went
// without a word, or nobody reads what it sent last: the new one is in at once.
// At another address it has to wait until the silence of the old one is noticed.
func TestTCPRestartIsNoClone(t *testing.T) {
	for name, c := range map[string]struct {
		dies, moves, unread bool
		within              time.Duration
	}{
		"hangs up":               {within: 0},
		"hangs up, moves":        {moves: true, within: 0},
		"hangs up, with unread":  {unread: true, within: 100 * time.Millisecond},
		"without a word":         {dies: true, within: 100 * time.Millisecond},
		"without a word, moves":  {dies: true, moves: true, within: 8 * time.Second},
		"without a word, unread": {dies: true, unread: true, within: 100 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPipes()
				logger, logs := errorsOnly()
				var counts census
				release := make(chan struct{})
				serving := counts.host()
				serving.stream = func(context.Context, transport.Peer, string, transport.Stream) error {
					<-release // and does not read
					return nil
				}
				b := p.tcp(t, "b:1", func(c *transport.TCPConfig) { c.Logger = logger })
				member(t, b, 2, 1, serving)
				defer close(release)
				for process := uint64(11); process < 15; process++ {
					var holes []*blackhole
					p.wrap = func(c net.Conn) net.Conn {
						hole := &blackhole{Conn: c, stop: make(chan struct{})}
						holes = append(holes, hole)
						return hole
					}
					addr := "a:1"
					if c.moves {
						addr = fmt.Sprintf("a-%d:1", process)
					}
					a := p.tcp(t, addr)
					member(t, a, 1, process, &host{})
					began := clock.System().Now()
					for counts.of(process) == 0 {
						_, _ = a.Call(t.Context(), "b:1", "m", nil)
						require.LessOrEqual(t, clock.System().Now().Sub(began), c.within)
					}
					if c.unread {
						s, err := a.OpenStream(t.Context(), "b:1", "m")
						require.NoError(t, err)
						go func() { _, _ = s.Write(make([]byte, 1<<20)) }()
						synctest.Wait()
					}
					if !c.dies {
						require.NoError(t, a.Close())
						synctest.Wait()
						continue
					}
					for _, hole := range holes {
						hole.dead.Store(true)
					}
					delete(p.listeners, addr)
				}
				require.Zero(t, logs.Len())
			})
		})
	}
}

// A process that was stopped for longer than its peers have patience, and goes
// on, is no clone of itself.
func TestTCPFrozenProcessIsNoClone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		logger, logs := errorsOnly()
		var holes []*blackhole
		p.wrap = func(c net.Conn) net.Conn {
			hole := &blackhole{Conn: c, stop: make(chan struct{})}
			holes = append(holes, hole)
			return hole
		}
		var counts census
		a, b := p.tcp(t, "a:1"), p.tcp(t, "b:1", func(c *transport.TCPConfig) { c.Logger = logger })
		member(t, a, 1, 11, &host{})
		member(t, b, 2, 21, counts.host())
		for round := range 3 {
			_, err := a.Call(t.Context(), "b:1", "m", nil)
			require.NoError(t, err)
			_, err = b.Call(t.Context(), "a:1", "m", nil)
			require.NoError(t, err)
			for _, hole := range holes {
				hole.dead.Store(true)
			}
			pass(10 * time.Second)
			for _, hole := range holes {
				hole.dead.Store(false)
			}
			holes = nil
			pass(2 * time.Second)
			require.Equal(t, round+1, counts.of(11))
		}
		require.Zero(t, logs.Len())
	})
}

// Whoever says another node's id beside its own name keeps that node out of
// nothing.
func TestTCPForeignIDIsNoClone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		logger, logs := errorsOnly()
		var counts census
		b := p.tcp(t, "b:1", func(c *transport.TCPConfig) { c.Logger = logger })
		member(t, b, 2, 1, counts.host())
		foreign, a := p.tcp(t, "c:1"), p.tcp(t, "a:1")
		member(t, foreign, 3, 31, &host{})
		id := transport.Identity{Cluster: "test", ClusterID: [16]byte{1}, Name: "n3", Node: 1, Process: 31}
		foreign.SetIdentity(id)
		_, err := foreign.Call(t.Context(), "b:1", "m", nil)
		require.NoError(t, err, "who may do what is not the transport's to judge")
		member(t, a, 1, 11, &host{})
		for range 200 {
			_, err = a.Call(t.Context(), "b:1", "m", nil)
			require.NoError(t, err)
			pass(100 * time.Millisecond)
		}
		require.Zero(t, logs.Len())
	})
}
