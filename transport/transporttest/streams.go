package transporttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/transport"
)

// echo returns every byte and then ends.
func echo(s transport.Stream) error {
	_, err := io.Copy(struct{ io.Writer }{s}, struct{ io.Reader }{s})
	return err
}

func open(t *testing.T, a, b *node, method string) transport.Stream {
	t.Helper()
	s, err := a.OpenStream(within(t), b.Addr(), method)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func streamEcho(t *testing.T, net Network) {
	a, b := two(t, net)
	for i, size := range []int{0, 1, 100_000, 4 << 20} {
		s := open(t, a, b, "echo")
		want := pattern(i, size)
		written := make(chan error, 1)
		go func() {
			_, err := s.Write(want)
			written <- errors.Join(err, s.CloseWrite())
		}()
		got, err := io.ReadAll(s)
		require.NoError(t, err)
		require.NoError(t, next(t, written))
		require.Equal(t, size, len(got))
		require.True(t, bytes.Equal(want, got), "changed on the way")
		n, err := s.Read(make([]byte, 1))
		require.Zero(t, n)
		require.Equal(t, io.EOF, err, "the end stays the end")
		require.NoError(t, s.Close())
		require.NoError(t, s.Close())
		_, err = s.Write([]byte("x"))
		require.Error(t, err)
		_, err = s.Read(make([]byte, 1))
		require.Error(t, err)
	}
}

func streamHalves(t *testing.T, net Network) {
	a, b := two(t, net, func(n *node) {
		n.stream = func(_ context.Context, _ transport.Peer, _ string, s transport.Stream) error {
			_, err := s.Write([]byte("done asking"))
			if err = errors.Join(err, s.CloseWrite()); err != nil {
				return err
			}
			got, err := io.ReadAll(s)
			n.frames <- frame{data: got}
			return err
		}
	})
	s := open(t, a, b, "m")
	got, err := io.ReadAll(s)
	require.NoError(t, err)
	require.Equal(t, "done asking", string(got))
	_, err = s.Write(pattern(1, 300_000))
	require.NoError(t, err, "the handler still reads")
	require.NoError(t, s.CloseWrite())
	require.True(t, bytes.Equal(pattern(1, 300_000), next(t, b.frames).data))
}

func streamBackPressure(t *testing.T, net Network) {
	const size = 32 << 20
	release := make(chan struct{})
	a, b := two(t, net, func(n *node) {
		n.stream = func(_ context.Context, _ transport.Peer, _ string, s transport.Stream) error {
			<-release
			n, err := io.Copy(io.Discard, s)
			if err == nil {
				_, err = fmt.Fprint(s, n)
			}
			return err
		}
	})
	s := open(t, a, b, "slow")
	var written atomic.Int64
	result := make(chan error, 1)
	go func() {
		piece := pattern(1, 32<<10)
		for range size / len(piece) {
			n, err := s.Write(piece)
			if written.Add(int64(n)); err != nil {
				result <- err
				return
			}
		}
		result <- s.CloseWrite()
	}()
	standsStill(t, a, b, &written)
	require.Less(t, written.Load(), int64(size), "nobody reads, so the writer must wait")
	close(release)
	require.NoError(t, next(t, result))
	got, err := io.ReadAll(s)
	require.NoError(t, err)
	require.Equal(t, fmt.Sprint(size), string(got))
}

// standsStill waits until a writer waits, or has written all. What is between
// the ends may take some; then nothing moves during many calls.
func standsStill(t *testing.T, a, b *node, written *atomic.Int64) {
	t.Helper()
	eventually(t, "something is written", func() bool { return written.Load() > 0 })
	for seen, still := int64(0), 0; still < 200; still++ {
		_, err := a.Call(within(t), b.Addr(), "m", pattern(1, 10_000))
		require.NoError(t, err)
		if now := written.Load(); now != seen {
			seen, still = now, 0
		}
	}
}

func streamErrors(t *testing.T, net Network) {
	a, b := two(t, net, func(n *node) {
		n.stream = func(_ context.Context, _ transport.Peer, method string, s transport.Stream) error {
			if _, err := s.Write([]byte("so far")); err != nil {
				return err
			}
			if method == "panic" {
				panic("a bug of the host")
			}
			return fmt.Errorf("then: %w", &coded{"damaged", "bad segment"})
		}
	})
	got, err := io.ReadAll(open(t, a, b, "error"))
	require.Equal(t, "so far", string(got))
	var remote *transport.RemoteError
	require.ErrorAs(t, err, &remote)
	require.Equal(t, transport.RemoteError{Code: "damaged", Message: "then: bad segment"}, *remote)

	got, err = io.ReadAll(open(t, a, b, "panic"))
	require.Equal(t, "so far", string(got))
	require.ErrorAs(t, err, &remote)
}

func streamHandlerCloses(t *testing.T, net Network) {
	a, b := two(t, net, func(n *node) {
		n.stream = func(_ context.Context, _ transport.Peer, _ string, s transport.Stream) error {
			defer s.Close()
			_, err := s.Write(pattern(1, 300_000))
			return err
		}
	})
	got, err := io.ReadAll(open(t, a, b, "m"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(pattern(1, 300_000), got))
}

func streamHandlerLeaves(t *testing.T, net Network) {
	a, b := two(t, net, func(n *node) {
		n.stream = func(context.Context, transport.Peer, string, transport.Stream) error { return nil }
	})
	s := open(t, a, b, "m")
	for err := error(nil); err == nil; {
		_, err = s.Write(pattern(1, 100_000)) // must not block for ever
	}
	n, err := s.Read(make([]byte, 1))
	require.Zero(t, n)
	require.Equal(t, io.EOF, err)
}

// readUntilError drains a stream.
func readUntilError(s transport.Stream) error {
	b := make([]byte, 32<<10)
	for {
		if _, err := s.Read(b); err != nil {
			return err
		}
	}
}

func streamBroken(t *testing.T, net Network) {
	ended := make(chan error, 1)
	a, b := two(t, net, func(n *node) {
		n.stream = func(ctx context.Context, _ transport.Peer, _ string, s transport.Stream) error {
			_, _ = s.Write([]byte("hello"))
			err := readUntilError(s)
			<-ctx.Done()
			ended <- err
			return nil // too late to matter
		}
	})
	s := open(t, a, b, "m")
	_, err := io.ReadFull(s, make([]byte, 5))
	require.NoError(t, err)
	require.NoError(t, b.Close())
	err = readUntilError(s)
	require.ErrorIs(t, err, transport.ErrInterrupted)
	require.NotErrorIs(t, err, io.EOF)
	err = next(t, ended)
	require.ErrorIs(t, err, transport.ErrInterrupted)
	require.NotErrorIs(t, err, io.EOF)
}

func streamOpenerCloses(t *testing.T, net Network) {
	ended := make(chan error, 1)
	a, b := two(t, net, func(n *node) {
		n.stream = func(ctx context.Context, _ transport.Peer, _ string, s transport.Stream) error {
			_, _ = s.Write([]byte("hello"))
			err := readUntilError(s)
			<-ctx.Done()
			ended <- err
			return err
		}
	})
	s := open(t, a, b, "m")
	_, err := io.ReadFull(s, make([]byte, 5))
	require.NoError(t, err)
	require.NoError(t, a.Close())
	err = readUntilError(s)
	require.ErrorIs(t, err, transport.ErrInterrupted)
	require.ErrorIs(t, err, transport.ErrClosed)
	require.ErrorIs(t, next(t, ended), transport.ErrInterrupted)
}

func streamContext(t *testing.T, net Network) {
	ended := make(chan error, 1)
	a, b := two(t, net, func(n *node) {
		n.stream = func(ctx context.Context, _ transport.Peer, _ string, s transport.Stream) error {
			_, _ = s.Write([]byte("hello"))
			<-ctx.Done()
			err := readUntilError(s)
			ended <- err
			return err
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s, err := a.OpenStream(ctx, b.Addr(), "m")
	require.NoError(t, err)
	_, err = io.ReadFull(s, make([]byte, 5))
	require.NoError(t, err)
	reading := make(chan error, 1)
	go func() { reading <- readUntilError(s) }()
	cancel()
	err = next(t, reading)
	require.ErrorIs(t, err, transport.ErrInterrupted)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, next(t, ended), transport.ErrInterrupted)
	require.NoError(t, s.Close())
}

func streamClosed(t *testing.T, net Network) {
	ended := make(chan error, 1)
	a, b := two(t, net, func(n *node) {
		n.stream = func(ctx context.Context, _ transport.Peer, _ string, s transport.Stream) error {
			_, _ = s.Write([]byte("hello"))
			err := readUntilError(s)
			<-ctx.Done()
			ended <- err
			return err
		}
	})
	s := open(t, a, b, "m")
	_, err := io.ReadFull(s, make([]byte, 5))
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.ErrorIs(t, next(t, ended), transport.ErrInterrupted)
}

func streamCloseFrees(t *testing.T, net Network) {
	release, ended := make(chan struct{}), make(chan error, 1)
	a, b := two(t, net, func(n *node) {
		n.stream = func(_ context.Context, _ transport.Peer, _ string, s transport.Stream) error {
			<-release // and does not read before
			ended <- readUntilError(s)
			return nil
		}
	})
	ctx, cancel := context.WithCancel(context.Background()) // nothing but Close ends it
	t.Cleanup(cancel)
	s, err := a.OpenStream(ctx, b.Addr(), "m")
	require.NoError(t, err)
	var written atomic.Int64
	errs := make(chan error, 2)
	go func() { errs <- writeUntilError(s, &written) }()
	go func() { errs <- readUntilError(s) }()
	standsStill(t, a, b, &written)
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	require.NoError(t, next(t, closed), "Close waits for the writer")
	for range 2 {
		require.NotErrorIs(t, next(t, errs), io.EOF)
	}
	close(release)
	require.ErrorIs(t, next(t, ended), transport.ErrInterrupted)
}

func handlerCloseFrees(t *testing.T, net Network) {
	var written atomic.Int64
	freed, closing := make(chan error, 1), make(chan struct{})
	a, b := two(t, net, func(n *node) {
		n.stream = func(_ context.Context, _ transport.Peer, _ string, s transport.Stream) error {
			stopped := make(chan error, 1)
			go func() { stopped <- writeUntilError(s, &written) }()
			<-closing
			_ = s.Close()
			freed <- next(t, stopped)
			return nil
		}
	})
	ctx, cancel := context.WithCancel(context.Background()) // nothing but Close ends it
	t.Cleanup(cancel)
	s, err := a.OpenStream(ctx, b.Addr(), "m")
	require.NoError(t, err)
	standsStill(t, a, b, &written)
	close(closing)
	require.Error(t, next(t, freed))
	_ = s.Close()
}

func streamEndsWhileWritten(t *testing.T, net Network) {
	flows := make(chan error, 1)
	a, b := two(t, net, func(n *node) {
		n.stream = func(_ context.Context, _ transport.Peer, _ string, s transport.Stream) error {
			_, err := io.CopyN(io.Discard, s, 100_000)
			flows <- err
			_, err = io.Copy(io.Discard, s)
			return err
		}
	})
	for range 20 {
		s := open(t, a, b, "m")
		var written atomic.Int64
		stopped := make(chan error, 1)
		go func() { stopped <- writeUntilError(s, &written) }()
		require.NoError(t, next(t, flows))
		require.NoError(t, s.CloseWrite())
		require.Error(t, next(t, stopped))
		got, err := io.ReadAll(s)
		require.NoError(t, err, "what was written after the end?")
		require.Empty(t, got)
		require.NoError(t, s.Close())
	}
}

func writeUntilError(s transport.Stream, written *atomic.Int64) error {
	for {
		n, err := s.Write(pattern(1, 1000))
		if written.Add(int64(n)); err != nil {
			return err
		}
	}
}
