package transporttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/transport"
)

func callAnswered(t *testing.T, net Network) {
	type asked struct {
		from   transport.Peer
		method string
	}
	seen := make(chan asked, 1)
	a, b := two(t, net, func(n *node) {
		n.call = func(_ context.Context, from transport.Peer, method string, req []byte) ([]byte, error) {
			seen <- asked{from, method}
			return req, nil
		}
	})
	for i, size := range []int{0, 1, 100_000, min(4<<20, net.MaxFrame)} {
		req := pattern(i, size)
		resp, err := a.Call(within(t), b.Addr(), name(i), bytes.Clone(req))
		require.NoError(t, err)
		require.Equal(t, len(req), len(resp))
		require.True(t, bytes.Equal(req, resp), "changed on the way")
		require.Equal(t, asked{transport.Peer{Addr: a.Addr(), Identity: identity("a")}, name(i)}, next(t, seen))
	}
}

func callSelf(t *testing.T, net Network) {
	a := begin(t, net.New(), identity("a"))
	resp, err := a.Call(within(t), a.Addr(), "me", []byte("x"))
	require.NoError(t, err)
	require.Equal(t, "me:x", string(resp))
	a.Send(a.Addr(), transport.Control, []byte("y"))
	require.Equal(t, "y", string(next(t, a.frames).data))
}

func callTooLarge(t *testing.T, net Network) {
	a, b := two(t, net)
	_, err := a.Call(within(t), b.Addr(), "m", make([]byte, net.MaxFrame+1))
	var tooLarge *transport.TooLargeError
	require.ErrorAs(t, err, &tooLarge)
	require.Equal(t, transport.TooLargeError{Size: net.MaxFrame + 1, Max: net.MaxFrame}, *tooLarge)
	require.ErrorIs(t, err, transport.ErrUnreachable)
}

func answerTooLarge(t *testing.T, net Network) {
	a, b := two(t, net, func(n *node) {
		n.call = func(_ context.Context, _ transport.Peer, method string, _ []byte) ([]byte, error) {
			if method == "big" {
				return make([]byte, net.MaxFrame+1), nil
			}
			return []byte(method), nil
		}
	})
	_, err := a.Call(within(t), b.Addr(), "big", nil)
	var remote *transport.RemoteError
	require.ErrorAs(t, err, &remote)
	resp, err := a.Call(within(t), b.Addr(), "small", nil)
	require.NoError(t, err)
	require.Equal(t, "small", string(resp))
}

// patientCall makes a handler that says when its context ended.
func patientCall(began chan<- context.Context, ended chan<- error) func(*node) {
	return func(n *node) {
		n.call = func(ctx context.Context, _ transport.Peer, _ string, _ []byte) ([]byte, error) {
			began <- ctx
			<-ctx.Done()
			ended <- ctx.Err()
			return nil, ctx.Err()
		}
	}
}

func callDeadline(t *testing.T, net Network) {
	began, ended := make(chan context.Context, 1), make(chan error, 1)
	a, b := two(t, net, patientCall(began, ended))
	var err error
	// As short as this machine reaches the handler in.
	for d := 100 * time.Millisecond; len(began) == 0 && d < time.Minute; d *= 2 {
		ctx, cancel := context.WithTimeout(context.Background(), d)
		_, err = a.Call(ctx, b.Addr(), "m", nil)
		cancel()
		require.Error(t, err)
	}
	// Either side may notice first.
	var remote *transport.RemoteError
	if !errors.As(err, &remote) {
		require.ErrorIs(t, err, transport.ErrInterrupted)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	_, ok := next(t, began).Deadline()
	require.True(t, ok, "the handler has the deadline")
	require.Error(t, next(t, ended))
}

func callDeadlines(t *testing.T, net Network) {
	deadlines := make(chan time.Time, 1)
	a, b := two(t, net, func(n *node) {
		n.call = func(ctx context.Context, _ transport.Peer, _ string, _ []byte) ([]byte, error) {
			deadline, _ := ctx.Deadline()
			deadlines <- deadline
			return nil, nil
		}
	})
	const slack = time.Minute // for slow machines
	for _, allowed := range []time.Duration{time.Hour, 0} {
		ctx, cancel, want := context.Background(), context.CancelFunc(func() {}), transport.DefaultCallTimeout
		if allowed > 0 {
			ctx, cancel = context.WithTimeout(ctx, allowed)
			want = allowed
		}
		due := clock.System().Now().Add(want)
		_, err := a.Call(ctx, b.Addr(), "m", nil)
		cancel()
		require.NoError(t, err)
		require.WithinDuration(t, due, next(t, deadlines), slack)
	}
}

func callCancelled(t *testing.T, net Network) {
	began, ended := make(chan context.Context, 1), make(chan error, 1)
	a, b := two(t, net, patientCall(began, ended))
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() {
		_, err := a.Call(ctx, b.Addr(), "m", nil)
		result <- err
	}()
	next(t, began)
	cancel()
	err := next(t, result)
	require.ErrorIs(t, err, transport.ErrInterrupted)
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, transport.ErrUnreachable)
	require.ErrorIs(t, next(t, ended), context.Canceled)
}

func callEnded(t *testing.T, net Network) {
	var calls atomic.Int64
	a, b := two(t, net, func(n *node) {
		n.call = func(context.Context, transport.Peer, string, []byte) ([]byte, error) {
			calls.Add(1)
			return nil, nil
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := a.Call(ctx, b.Addr(), "m", nil)
	require.ErrorIs(t, err, transport.ErrUnreachable)
	require.ErrorIs(t, err, context.Canceled)
	_, err = a.OpenStream(ctx, b.Addr(), "m")
	require.ErrorIs(t, err, transport.ErrUnreachable)
	require.ErrorIs(t, err, context.Canceled)
	_, err = a.Call(within(t), b.Addr(), "m", nil)
	require.NoError(t, err)
	require.EqualValues(t, 1, calls.Load())
}

func callErrors(t *testing.T, net Network) {
	failures := map[string]error{
		"plain":   errors.New("it broke"),
		"coded":   &coded{"not_leader", "ask n2"},
		"wrapped": fmt.Errorf("while serving: %w", &coded{"gone", "no topic"}),
		"passed":  fmt.Errorf("forwarded: %w", &transport.RemoteError{Code: "behind", Message: "at 7"}),
	}
	want := map[string]transport.RemoteError{
		"plain":   {Message: "it broke"},
		"coded":   {Code: "not_leader", Message: "ask n2"},
		"wrapped": {Code: "gone", Message: "while serving: no topic"},
		"passed":  {Code: "behind", Message: "at 7"},
	}
	a, b := two(t, net, func(n *node) {
		n.call = func(_ context.Context, _ transport.Peer, method string, _ []byte) ([]byte, error) {
			return []byte("ignored"), failures[method]
		}
	})
	for method, w := range want {
		_, err := a.Call(within(t), b.Addr(), method, nil)
		var remote *transport.RemoteError
		require.ErrorAs(t, err, &remote, method)
		require.Equal(t, w, *remote)
		require.NotErrorIs(t, err, transport.ErrUnreachable)
		require.NotErrorIs(t, err, transport.ErrInterrupted)
	}
}

func callPanics(t *testing.T, net Network) {
	a, b := two(t, net, func(n *node) {
		n.call = func(_ context.Context, _ transport.Peer, method string, _ []byte) ([]byte, error) {
			if method == "bad" {
				panic("a bug of the host")
			}
			return []byte(method), nil
		}
	})
	_, err := a.Call(within(t), b.Addr(), "bad", nil)
	var remote *transport.RemoteError
	require.ErrorAs(t, err, &remote)
	resp, err := a.Call(within(t), b.Addr(), "good", nil)
	require.NoError(t, err)
	require.Equal(t, "good", string(resp))
}

func callsOverlap(t *testing.T, net Network) {
	const slow = 50
	arrived, release := make(chan struct{}, slow), make(chan struct{})
	a, b := two(t, net, func(n *node) {
		n.call = func(_ context.Context, _ transport.Peer, method string, req []byte) ([]byte, error) {
			if method == "slow" {
				arrived <- struct{}{}
				<-release
			}
			return req, nil
		}
	})
	results := make(chan error, slow)
	for i := range slow {
		go func() {
			resp, err := a.Call(within(t), b.Addr(), "slow", []byte{byte(i)})
			if err == nil && (len(resp) != 1 || resp[0] != byte(i)) {
				err = fmt.Errorf("call %d got the answer %v", i, resp)
			}
			results <- err
		}()
	}
	for range slow {
		next(t, arrived)
	}
	_, err := a.Call(within(t), b.Addr(), "fast", nil)
	require.NoError(t, err)
	close(release)
	for range slow {
		require.NoError(t, next(t, results))
	}
}

func unreachable(t *testing.T, net Network) {
	a := begin(t, net.New(), identity("a"))
	for range 3 {
		a.Send(net.Nobody, transport.Append, []byte("lost"))
		_, err := a.Call(within(t), net.Nobody, "m", nil)
		require.ErrorIs(t, err, transport.ErrUnreachable)
		require.NotErrorIs(t, err, transport.ErrInterrupted)
		_, err = a.OpenStream(within(t), net.Nobody, "m")
		require.ErrorIs(t, err, transport.ErrUnreachable)
	}
}

func closeServer(t *testing.T, net Network) {
	began, ended := make(chan context.Context, 1), make(chan error, 1)
	a, b := two(t, net, patientCall(began, ended))
	result := make(chan error, 1)
	go func() {
		_, err := a.Call(within(t), b.Addr(), "m", nil)
		result <- err
	}()
	next(t, began)
	require.NoError(t, b.Close())
	require.Error(t, next(t, ended), "Close ends the contexts of handlers")
	err := next(t, result)
	require.ErrorIs(t, err, transport.ErrInterrupted)
	require.NotErrorIs(t, err, context.Canceled, "the caller's context did not end")
}

// A transport that sends again what it had no answer to, because the connection
// was an old one, executes twice.
func callOnce(t *testing.T, net Network) {
	began, ended := make(chan context.Context, 1), make(chan error, 1)
	patient := patientCall(began, ended)
	a, b := two(t, net, func(n *node) {
		patient(n)
		wait := n.call
		n.call = func(ctx context.Context, from transport.Peer, method string, req []byte) ([]byte, error) {
			if method == "first" {
				return nil, nil
			}
			return wait(ctx, from, method, req)
		}
	})
	_, err := a.Call(within(t), b.Addr(), "first", nil)
	require.NoError(t, err)
	result := make(chan error, 1)
	go func() {
		_, err := a.Call(within(t), b.Addr(), "once", nil)
		result <- err
	}()
	next(t, began)
	require.NoError(t, b.Close())
	methods := make(chan string, 1000)
	begin(t, net.Again(b.Addr()), identity("b"), func(n *node) {
		n.call = func(_ context.Context, _ transport.Peer, method string, _ []byte) ([]byte, error) {
			methods <- method
			return nil, nil
		}
	})
	err = next(t, result)
	require.ErrorIs(t, err, transport.ErrInterrupted)
	require.NotErrorIs(t, err, transport.ErrUnreachable, "it was executed")
	eventually(t, "calls reach the new process", func() bool {
		_, err := a.Call(within(t), b.Addr(), "next", nil)
		return err == nil
	})
	for len(methods) > 0 {
		require.Equal(t, "next", <-methods)
	}
}

func closeCaller(t *testing.T, net Network) {
	began, ended := make(chan context.Context, 1), make(chan error, 1)
	a, b := two(t, net, patientCall(began, ended))
	result := make(chan error, 1)
	go func() {
		_, err := a.Call(within(t), b.Addr(), "m", nil)
		result <- err
	}()
	next(t, began)
	require.NoError(t, a.Close())
	err := next(t, result)
	require.ErrorIs(t, err, transport.ErrInterrupted)
	require.ErrorIs(t, err, transport.ErrClosed)
	require.Error(t, next(t, ended), "the handler learns that nobody waits")
}
