package transport_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/transport"
)

var errSnapped = errors.New("broken pipe")

// snapping is a connection whose first write, the hello, waits for a gate and
// whose write number at fails.
type snapping struct {
	net.Conn
	gate       chan struct{}
	writes, at int
}

func (s *snapping) Write(b []byte) (int, error) {
	switch s.writes++; s.writes {
	case 1:
		<-s.gate
	case s.at:
		_ = s.Conn.Close()
		return 0, errSnapped
	}
	return s.Conn.Write(b)
}

// When writing breaks in the middle of a batch, every call of the batch ends at
// once, and those called unreachable were not executed.
func TestTCPBrokenBatchSettlesItsCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const count = 100
		p, gate := newPipes(), make(chan struct{})
		p.wrap = func(c net.Conn) net.Conn { return &snapping{Conn: c, gate: gate, at: 3} }
		a, b := p.tcp(t, "a:1"), p.tcp(t, "b:1")
		var mu sync.Mutex
		executed := make(map[uint64]bool)
		start(t, a, "a", &host{})
		start(t, b, "b", &host{call: func(_ context.Context, _ transport.Peer, _ string, req []byte) ([]byte, error) {
			mu.Lock()
			defer mu.Unlock()
			executed[binary.BigEndian.Uint64(req)] = true
			return nil, nil
		}})
		began := clock.System().Now()
		errs := make([]error, count)
		var calls sync.WaitGroup
		for i := range errs {
			calls.Go(func() {
				req := make([]byte, 4<<10) // a write takes a part of them
				binary.BigEndian.PutUint64(req, uint64(i))
				_, errs[i] = a.Call(context.Background(), "b:1", "m", req)
			})
		}
		synctest.Wait() // all wait for the handshake: one batch
		close(gate)
		calls.Wait()
		require.Zero(t, clock.System().Now().Sub(began), "nobody waited for a deadline")
		synctest.Wait()
		unreachable := 0
		for i, err := range errs {
			if errors.Is(err, transport.ErrUnreachable) {
				unreachable++
				// Whoever sees it first says what it was: the writer, or the reader.
				require.True(t, errors.Is(err, errSnapped) || errors.Is(err, io.ErrClosedPipe), "%v", err)
				require.False(t, executed[uint64(i)], i)
			} else if err != nil {
				require.ErrorIs(t, err, transport.ErrInterrupted)
			}
		}
		require.NotEmpty(t, executed, "what the first write took")
		require.Greater(t, unreachable, count/2)
	})
}

// deaf is a connection whose reader can stop listening; it counts what it hears.
type deaf struct {
	net.Conn
	resume atomic.Pointer[chan struct{}] // closed: it listens again
	heard  atomic.Int64
}

func (d *deaf) Read(b []byte) (int, error) {
	n, err := d.Conn.Read(b)
	d.heard.Add(int64(n))
	if resume := d.resume.Load(); resume != nil {
		<-*resume
	}
	return n, err
}

// Answers that a caller does not take hold their calls' places, until the
// calls' contexts end; then they are dropped.
func TestTCPUntakenAnswersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, maxCalls = 1 << 20, 4
		p := newPipes()
		var line *deaf
		p.wrap = func(c net.Conn) net.Conn {
			line = &deaf{Conn: c}
			return line
		}
		a := p.tcp(t, "a:1")
		b := p.tcp(t, "b:1", func(c *transport.TCPConfig) { c.MaxCalls, c.QueueBytes.Answers = maxCalls, size })
		var made atomic.Int64
		start(t, a, "a", &host{})
		start(t, b, "b", &host{call: func(_ context.Context, _ transport.Peer, method string, _ []byte) ([]byte, error) {
			if method == "greet" {
				return nil, nil
			}
			made.Add(1)
			return make([]byte, size), nil
		}})
		_, err := a.Call(context.Background(), "b:1", "greet", nil)
		require.NoError(t, err)

		resume := make(chan struct{})
		line.resume.Store(&resume)
		var calls sync.WaitGroup
		defer calls.Wait()
		listen := sync.OnceFunc(func() { close(resume) })
		defer listen()
		call := func() (giveUp func()) {
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
			calls.Go(func() {
				defer cancel()
				_, _ = a.Call(ctx, "b:1", "m", nil) // the deaf side learns nothing
			})
			synctest.Wait()
			return cancel
		}
		cancels := make([]func(), 0, 50)
		for range cap(cancels) {
			cancels = append(cancels, call())
		}
		require.EqualValues(t, 1+maxCalls, made.Load(), "one in the queue, the others wait for room")

		cancels[2]()
		synctest.Wait()
		call()
		call()
		require.EqualValues(t, 1+maxCalls+1, made.Load(), "a cancelled call gives its place back")

		pass(3 * time.Second)
		call()
		require.EqualValues(t, 1+maxCalls+2, made.Load(), "so does one whose deadline passed")

		heard := line.heard.Load()
		listen()
		_, err = a.Call(context.Background(), "b:1", "greet", nil)
		require.NoError(t, err)
		require.Less(t, line.heard.Load()-heard, int64(3*size), "the answers of calls that ended are dropped")
	})
}

// A call counts until its handler returned, whatever its caller does.
func TestTCPCancelledCallCountsWhileItRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		a, b := p.tcp(t, "a:1"), p.tcp(t, "b:1", func(c *transport.TCPConfig) { c.MaxCalls = 1 })
		release := make(chan struct{})
		hurry := sync.OnceFunc(func() { close(release) })
		defer hurry()
		start(t, a, "a", &host{})
		start(t, b, "b", &host{call: func(ctx context.Context, _ transport.Peer, _ string, _ []byte) ([]byte, error) {
			<-ctx.Done()
			<-release // it does not hurry
			return nil, nil
		}})
		for _, want := range []error{transport.ErrInterrupted, transport.ErrUnreachable} {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			_, err := a.Call(ctx, "b:1", "m", nil)
			cancel()
			require.ErrorIs(t, err, want)
			synctest.Wait()
		}
		hurry()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := a.Call(ctx, "b:1", "m", nil)
		require.ErrorIs(t, err, transport.ErrInterrupted, "executed again")
	})
}

// A caller that sends on and on, and takes not even refusals, is hung up on.
func TestTCPUntakenRefusalsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		var line *deaf
		p.wrap = func(c net.Conn) net.Conn {
			line = &deaf{Conn: c}
			return line
		}
		a := p.tcp(t, "a:1")
		b := p.tcp(t, "b:1", func(c *transport.TCPConfig) { c.MaxCalls, c.QueueBytes.Answers = 1, 1 })
		start(t, a, "a", &host{})
		start(t, b, "b", &host{call: func(ctx context.Context, _ transport.Peer, method string, _ []byte) ([]byte, error) {
			if method != "greet" {
				<-ctx.Done()
			}
			return nil, nil
		}})
		_, err := a.Call(context.Background(), "b:1", "greet", nil)
		require.NoError(t, err)
		resume := make(chan struct{})
		line.resume.Store(&resume)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		var calls sync.WaitGroup
		for range 15_000 {
			calls.Go(func() { _, _ = a.Call(ctx, "b:1", "m", nil) })
		}
		synctest.Wait()
		hungUp := false
		select {
		case <-p.dialed[0].closed: // its writer saw it
			hungUp = true
		default:
		}
		close(resume)
		calls.Wait()
		require.True(t, hungUp)
	})
}
