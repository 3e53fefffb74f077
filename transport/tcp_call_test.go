package transport_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"

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
				require.ErrorIs(t, err, errSnapped)
				require.False(t, executed[uint64(i)], i)
			} else if err != nil {
				require.ErrorIs(t, err, transport.ErrInterrupted)
			}
		}
		require.NotEmpty(t, executed, "what the first write took")
		require.Greater(t, unreachable, count/2)
	})
}
