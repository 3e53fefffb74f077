package transport_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/transport"
)

// arrival is a numbered frame and when it came.
type arrival struct {
	n     uint32
	after time.Duration
}

// simulated sends count numbered frames, one every interval, through a network
// with faults and returns what arrived.
func simulated(t *testing.T, seed uint64, f transport.Faults, count int, every time.Duration) (got []arrival, stats transport.Stats) {
	synctest.Test(t, func(t *testing.T) {
		n := transport.NewNetwork(seed, nil)
		n.SetFaults(f)
		a, b := n.Transport("a"), n.Transport("b")
		began := clock.System().Now()
		start(t, a, "a", &host{})
		start(t, b, "b", &host{frame: func(_ transport.Peer, _ transport.Class, frame []byte) {
			got = append(got, arrival{binary.BigEndian.Uint32(frame), clock.System().Now().Sub(began)})
		}})
		for i := range count {
			a.Send("b", transport.Append, append(binary.BigEndian.AppendUint32(nil, uint32(i)), make([]byte, 60)...))
			pass(every)
		}
		pass(time.Minute)
		stats = b.Stats()
	})
	return got, stats
}

// pass lets virtual time pass.
func pass(d time.Duration) {
	if d > 0 {
		<-clock.System().NewTimer(d).C()
	}
	synctest.Wait()
}

func TestMemoryLatency(t *testing.T) {
	const low, high, every = 10 * time.Millisecond, 30 * time.Millisecond, 100 * time.Millisecond
	got, _ := simulated(t, 1, transport.Faults{MinLatency: low, MaxLatency: high}, 100, every)
	require.Len(t, got, 100)
	fastest, slowest := time.Hour, time.Duration(0)
	for i, a := range got {
		require.EqualValues(t, i, a.n)
		took := a.after - time.Duration(i)*every
		fastest, slowest = min(fastest, took), max(slowest, took)
	}
	require.GreaterOrEqual(t, fastest, low)
	require.LessOrEqual(t, slowest, high)
	require.Less(t, fastest, low+3*time.Millisecond, "the whole range is used")
	require.Greater(t, slowest, high-3*time.Millisecond)
}

func TestMemoryLosesAndDuplicates(t *testing.T) {
	got, _ := simulated(t, 2, transport.Faults{Loss: 0.2, Duplicate: 0.1}, 2000, 0)
	times := map[uint32]int{}
	for _, a := range got {
		times[a.n]++
	}
	require.InDelta(t, 1600, len(times), 100)
	twice := 0
	for _, n := range times {
		require.LessOrEqual(t, n, 2)
		twice += n - 1
	}
	require.InDelta(t, 160, twice, 50)
}

func TestMemoryReordersOnlyWhenAsked(t *testing.T) {
	f := transport.Faults{MinLatency: time.Millisecond, MaxLatency: 20 * time.Millisecond}
	got, _ := simulated(t, 3, f, 500, time.Millisecond)
	require.True(t, slices.IsSortedFunc(got, func(a, b arrival) int { return int(a.n) - int(b.n) }))
	f.Reorder = 0.2
	got, _ = simulated(t, 3, f, 500, time.Millisecond)
	require.Len(t, got, 500)
	overtaken := 0
	for i := 1; i < len(got); i++ {
		if got[i].n < got[i-1].n {
			overtaken++
		}
	}
	require.Greater(t, overtaken, 20)
}

func TestMemoryChecksumFindsCorruption(t *testing.T) {
	got, stats := simulated(t, 4, transport.Faults{Corrupt: 0.3}, 1000, 0)
	require.InDelta(t, 700, len(got), 80)
	require.EqualValues(t, 1000-len(got), stats.Corrupt)
	require.True(t, slices.IsSortedFunc(got, func(a, b arrival) int { return int(a.n) - int(b.n) }), "none was changed")
}

func TestMemorySameSeedSameFaults(t *testing.T) {
	f := transport.Faults{MinLatency: time.Millisecond, MaxLatency: 9 * time.Millisecond, Loss: 0.1, Duplicate: 0.1, Reorder: 0.1, Corrupt: 0.1}
	first, _ := simulated(t, 5, f, 500, time.Millisecond)
	again, _ := simulated(t, 5, f, 500, time.Millisecond)
	other, _ := simulated(t, 6, f, 500, time.Millisecond)
	require.Equal(t, first, again)
	require.NotEqual(t, first, other)
}

func TestMemoryCutsOneWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := transport.NewNetwork(1, nil)
		n.SetFaults(transport.Faults{MinLatency: 10 * time.Millisecond})
		a, b := n.Transport("a"), n.Transport("b")
		var atA, atB []string
		calls := 0
		start(t, a, "a", &host{frame: func(_ transport.Peer, _ transport.Class, f []byte) { atA = append(atA, string(f)) }})
		start(t, b, "b", &host{
			frame: func(_ transport.Peer, _ transport.Class, f []byte) { atB = append(atB, string(f)) },
			call: func(_ context.Context, _ transport.Peer, _ string, req []byte) ([]byte, error) {
				calls++
				return req, nil
			},
		})
		both := func(s string) {
			a.Send("b", transport.Control, []byte(s))
			b.Send("a", transport.Control, []byte(s))
			pass(time.Second)
		}
		both("before")
		a.Send("b", transport.Control, []byte("in flight"))
		n.Cut("a", "b")
		both("during")
		n.Heal("a", "b")
		both("after")
		require.Equal(t, []string{"before", "during", "after"}, atA)
		require.Equal(t, []string{"before", "after"}, atB)

		silent := func(from, to string, executed int) {
			n.Cut(from, to)
			before, began := calls, clock.System().Now()
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
			defer cancel()
			_, err := a.Call(ctx, "b", "m", nil)
			require.ErrorIs(t, err, transport.ErrInterrupted)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, 3*time.Second, clock.System().Now().Sub(began))
			require.Equal(t, executed, calls-before)
			n.HealAll()
		}
		silent("a", "b", 0)
		silent("b", "a", 1)
		_, err := a.Call(context.Background(), "b", "m", nil)
		require.NoError(t, err)
	})
}

func TestMemoryCallWithoutDeadlineEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := transport.NewNetwork(1, nil)
		n.SetFaults(transport.Faults{CallLoss: 1})
		a, b := n.Transport("a"), n.Transport("b")
		start(t, a, "a", &host{})
		start(t, b, "b", &host{})
		began := clock.System().Now()
		_, err := a.Call(context.Background(), "b", "m", nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, transport.DefaultCallTimeout, clock.System().Now().Sub(began))
		n.SetFaults(transport.Faults{Corrupt: 1})
		_, err = a.Call(context.Background(), "b", "m", nil)
		require.ErrorIs(t, err, transport.ErrInterrupted)
		require.Equal(t, transport.DefaultCallTimeout, clock.System().Now().Sub(began), "a broken connection is known at once")
	})
}

func TestMemoryCrashLosesWhatIsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := transport.NewNetwork(1, nil)
		n.SetFaults(transport.Faults{MinLatency: 10 * time.Millisecond})
		a, b := n.Transport("a"), n.Transport("b")
		var mu sync.Mutex
		var got []string
		record := &host{frame: func(from transport.Peer, _ transport.Class, f []byte) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, fmt.Sprint(string(f), " of ", from.Name))
		}}
		start(t, a, "a", record)
		start(t, b, "b", record)
		require.Error(t, n.Transport("b").Start(identity("b"), record), "address in use")

		a.Send("b", transport.Append, []byte("to the dead"))
		b.Send("a", transport.Append, []byte("of the dead"))
		require.NoError(t, b.Close())
		b = n.Transport("b")
		start(t, b, "b2", record)
		pass(time.Second)
		require.Empty(t, got)
		b.Send("a", transport.Append, []byte("alive"))
		a.Send("b", transport.Append, []byte("alive"))
		pass(time.Second)
		slices.Sort(got)
		require.Equal(t, []string{"alive of a", "alive of b2"}, got)
	})
}

func TestMemoryStreamsMeetCuts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := transport.NewNetwork(1, nil)
		n.SetFaults(transport.Faults{MinLatency: time.Millisecond})
		a, b := n.Transport("a"), n.Transport("b")
		start(t, a, "a", &host{})
		start(t, b, "b", &host{stream: func(_ context.Context, _ transport.Peer, _ string, s transport.Stream) error {
			_, err := io.Copy(struct{ io.Writer }{s}, s)
			return err
		}})
		s, err := a.OpenStream(context.Background(), "b", "echo")
		require.NoError(t, err)
		roundTrip := func() (time.Duration, error) {
			began := clock.System().Now()
			if _, err := s.Write([]byte("x")); err != nil {
				return 0, err
			}
			_, err := s.Read(make([]byte, 1))
			return clock.System().Now().Sub(began), err
		}
		took, err := roundTrip()
		require.NoError(t, err)
		require.Equal(t, 2*time.Millisecond, took)

		// A short cut is a delay.
		n.Cut("b", "a")
		clock.System().AfterFunc(time.Second, func() { n.Heal("b", "a") })
		took, err = roundTrip()
		require.NoError(t, err)
		require.Equal(t, time.Second, took)
		pass(time.Minute) // and has no late effect

		// A long one breaks it, at both sides.
		n.Cut("b", "a")
		_, err = roundTrip()
		require.ErrorIs(t, err, transport.ErrInterrupted)
		_, err = s.Write([]byte("x"))
		require.ErrorIs(t, err, transport.ErrInterrupted)
		require.NoError(t, s.Close())

		began := clock.System().Now()
		_, err = a.OpenStream(context.Background(), "b", "echo")
		require.ErrorIs(t, err, transport.ErrUnreachable)
		require.Equal(t, transport.DefaultDialTimeout, clock.System().Now().Sub(began))
	})
}
