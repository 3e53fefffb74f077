package transporttest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/stelelog/stele/transport"
)

func starting(t *testing.T, net Network) {
	a := net.New()
	t.Cleanup(func() { _ = a.Close() })
	n := &node{Transport: a}
	a.Send(net.Nobody, transport.Control, nil) // lost, no harm
	_, err := a.Call(within(t), net.Nobody, "m", nil)
	require.ErrorIs(t, err, transport.ErrUnreachable)
	for _, bad := range []transport.Identity{{Name: "a"}, {Cluster: "c"}, {Cluster: strings.Repeat("c", 256), Name: "a"}} {
		require.Error(t, a.Start(bad, n))
	}
	a.SetIdentity(identity("too early"))
	require.NoError(t, a.Start(identity("a"), n))
	a.SetIdentity(transport.Identity{})
	require.Error(t, a.Start(identity("a"), n), "once")
	_, err = a.Call(within(t), a.Addr(), "m", nil)
	require.NoError(t, err, "the failed starts did no harm")

	never := net.New()
	require.NoError(t, never.Close())
	require.NoError(t, never.Close())
	require.ErrorIs(t, never.Start(identity("b"), n), transport.ErrClosed)
}

func useAfterClose(t *testing.T, net Network) {
	a, b := two(t, net)
	_, err := a.Call(within(t), b.Addr(), "m", nil)
	require.NoError(t, err)
	require.NoError(t, a.Close())
	require.NoError(t, a.Close())
	for _, to := range []string{b.Addr(), net.Nobody} {
		a.Send(to, transport.Control, []byte("x"))
		_, err = a.Call(within(t), to, "m", nil)
		require.ErrorIs(t, err, transport.ErrClosed)
		require.ErrorIs(t, err, transport.ErrUnreachable)
		_, err = a.OpenStream(within(t), to, "m")
		require.ErrorIs(t, err, transport.ErrClosed)
	}
	a.SetIdentity(identity("a"))
	_ = a.Stats()
	require.ErrorIs(t, a.Start(identity("a"), a), transport.ErrClosed)
}

func peerRestarts(t *testing.T, net Network) {
	a, b := two(t, net)
	for restart := uint64(2); restart < 5; restart++ {
		_, err := a.Call(within(t), b.Addr(), "m", nil)
		require.NoError(t, err)
		a.Send(b.Addr(), transport.Append, []byte("before"))
		next(t, b.frames)
		require.NoError(t, b.Close())
		_, err = a.Call(within(t), b.Addr(), "m", nil)
		require.Error(t, err)
		a.Send(b.Addr(), transport.Append, []byte("lost"))

		again := identity("b")
		again.Process = restart
		b = begin(t, net.Again(b.Addr()), again)
		eventually(t, "calls reach the new process", func() bool {
			_, err := a.Call(within(t), b.Addr(), "m", nil)
			return err == nil
		})
		eventually(t, "frames reach the new process", func() bool {
			a.Send(b.Addr(), transport.Append, []byte("after"))
			return len(b.frames) > 0
		})
		eventually(t, "the new process is known by its number", func() bool {
			b.Send(a.Addr(), transport.Control, []byte("from b"))
			return len(a.frames) > 0 && next(t, a.frames).from.Process == restart
		})
		for len(b.frames) > 0 {
			next(t, b.frames)
		}
		// Frames that are still on their way must not disturb the next round.
		mark := fmt.Sprint("mark ", restart)
		a.Send(b.Addr(), transport.Append, []byte(mark))
		for string(next(t, b.frames).data) != mark {
		}
	}
}

func manyUsers(t *testing.T, net Network) {
	var frames atomic.Int64
	var nodes []*node
	for i := range 3 {
		nodes = append(nodes, begin(t, net.New(), identity(name(i)), func(n *node) {
			n.frame = func(transport.Peer, transport.Class, []byte) { frames.Add(1) }
		}))
	}
	const users, rounds = 9, 60
	errs := make(chan error, users)
	together(users, func(i int) {
		from, to := nodes[i%3], nodes[(i+1+i/3%2)%3]
		for r := range rounds {
			from.Send(to.Addr(), classes()[r%3], pattern(i, r*10))
			want := fmt.Sprintf("m%d:%d", i, r)
			resp, err := from.Call(within(t), to.Addr(), fmt.Sprint("m", i), fmt.Append(nil, r))
			if err != nil || string(resp) != want {
				errs <- fmt.Errorf("got %q, want %q: %w", resp, want, err)
				return
			}
		}
		errs <- nil
	})
	for range users {
		require.NoError(t, next(t, errs))
	}
	eventually(t, "all frames", func() bool { return frames.Load() == users*rounds })
}

func closeWaits(t *testing.T, net Network) {
	for _, what := range []struct {
		name string
		ask  func(a *node, to string)
	}{
		{"frame", func(a *node, to string) {
			for range 10 {
				a.Send(to, transport.Append, []byte("f"))
			}
		}},
		{"call", func(a *node, to string) { _, _ = a.Call(within(t), to, "m", nil) }},
		{"stream", func(a *node, to string) {
			if s, err := a.OpenStream(within(t), to, "m"); err == nil {
				_ = readUntilError(s)
				_ = s.Close()
			}
		}},
	} {
		closeWaitsFor(t, net, what.name, what.ask)
	}
}

// closeWaitsFor closes a transport while a handler, of whichever kind, runs.
func closeWaitsFor(t *testing.T, net Network, what string, ask func(a *node, to string)) {
	began, release := make(chan struct{}, 100), make(chan struct{})
	var returned, over, late atomic.Bool
	handle := func() {
		late.Store(late.Load() || over.Load())
		began <- struct{}{}
		<-release // a handler that takes its time, and does not look at its context
		returned.Store(true)
	}
	a, b := two(t, net, func(n *node) {
		n.frame = func(transport.Peer, transport.Class, []byte) { handle() }
		n.call = func(context.Context, transport.Peer, string, []byte) ([]byte, error) {
			handle()
			return nil, nil
		}
		n.stream = func(context.Context, transport.Peer, string, transport.Stream) error {
			handle()
			return nil
		}
	})
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		ask(a, b.Addr())
	}()
	next(t, began)
	closed := make(chan bool, 2)
	for range 2 {
		go func() {
			_ = b.Close()
			over.Store(true)
			closed <- returned.Load()
		}()
	}
	eventually(t, "closing has begun", func() bool {
		_, err := b.Call(within(t), a.Addr(), "m", nil)
		return errors.Is(err, transport.ErrClosed)
	})
	for range 1000 {
		runtime.Gosched()
	}
	close(release)
	require.True(t, next(t, closed), "Close returned before the handler of a %s", what)
	require.True(t, next(t, closed), "the second Close returned before the handler of a %s", what)
	next(t, asked)
	require.False(t, late.Load(), "a handler of a %s was called after Close", what)
}

func closeWhileBusy(t *testing.T, net Network) {
	ignore := goleak.IgnoreCurrent()
	a, b := two(t, net, func(n *node) {
		n.frame = func(transport.Peer, transport.Class, []byte) {}
	})
	stop := make(chan struct{})
	var users sync.WaitGroup
	use := func(f func()) {
		users.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					f()
				}
			}
		})
	}
	var times atomic.Int64
	busy := make(chan struct{})
	worked := func() {
		if times.Add(1) == 50 {
			close(busy)
		}
	}
	for _, pair := range [][2]*node{{a, b}, {b, a}} {
		from, to := pair[0], pair[1].Addr()
		use(func() {
			if _, err := from.Call(within(t), to, "m", pattern(1, 1000)); err == nil {
				worked()
			}
		})
		use(func() {
			s, err := from.OpenStream(within(t), to, "m")
			if err != nil {
				return
			}
			_, _ = s.Write(pattern(1, 100_000))
			_, _ = s.Read(make([]byte, 100))
			_ = s.Close()
			worked()
		})
		use(func() {
			from.Send(to, transport.Append, pattern(1, 1000))
			_, _ = from.Call(within(t), to, "pace", nil)
		})
	}
	next(t, busy)
	together(4, func(i int) {
		if err := []*node{a, b}[i%2].Close(); err != nil {
			t.Error(err)
		}
	})
	close(stop)
	users.Wait()
	require.NoError(t, goleak.Find(ignore), "Close left goroutines")
}

func shareNothing(t *testing.T, net Network) {
	a, b := two(t, net)
	c := begin(t, net.New(), identity("c"))
	_, err := a.Call(within(t), b.Addr(), "m", nil)
	require.NoError(t, err)
	require.Zero(t, c.Stats(), "counters of a bystander")
	a.SetIdentity(transport.Identity{Cluster: "conformance", Name: "a", Node: 5})
	froms := make(chan transport.Peer, 1)
	d := begin(t, net.New(), identity("d"), func(n *node) {
		n.call = func(_ context.Context, from transport.Peer, _ string, _ []byte) ([]byte, error) {
			froms <- from
			return nil, nil
		}
	})
	_, err = c.Call(within(t), d.Addr(), "m", nil)
	require.NoError(t, err)
	require.Equal(t, identity("c"), next(t, froms).Identity)
	require.NoError(t, a.Close())
	_, err = c.Call(within(t), b.Addr(), "m", nil)
	require.NoError(t, err, "closing one leaves others alone")
	require.EqualValues(t, 2, c.Stats().Calls)
	require.Zero(t, c.Stats().CallsServed)
}
