package transport_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/transport"
)

// sink counts frames and answers calls with what came.
type sink struct {
	left atomic.Int64
	done chan struct{}
}

func (s *sink) HandleFrame(transport.Peer, transport.Class, []byte) {
	if s.left.Add(-1) == 0 {
		s.done <- struct{}{}
	}
}

func (s *sink) HandleCall(_ context.Context, _ transport.Peer, _ string, req []byte) ([]byte, error) {
	return req, nil
}

func (s *sink) HandleStream(context.Context, transport.Peer, string, transport.Stream) error {
	return nil
}

func benchPair(b *testing.B) (from *transport.TCP, to string, s *sink) {
	s = &sink{done: make(chan struct{}, 1)}
	var ts [2]*transport.TCP
	for i := range ts {
		t, err := transport.NewTCP(transport.TCPConfig{Listen: "127.0.0.1:0", QueueBytes: transport.QueueBytes{Append: 1 << 30}})
		require.NoError(b, err)
		require.NoError(b, t.Start(transport.Identity{Cluster: "c", Name: fmt.Sprint(i)}, s))
		b.Cleanup(func() { _ = t.Close() })
		ts[i] = t
	}
	return ts[0], ts[1].Addr(), s
}

// BenchmarkSend sends rounds of 1000 frames and waits for their arrival.
func BenchmarkSend(b *testing.B) {
	for _, size := range []int{128, 4 << 10, 256 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			from, to, s := benchPair(b)
			frame := make([]byte, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			b.ResetTimer()
			for left := b.N; left > 0; left -= 1000 {
				n := min(left, 1000)
				s.left.Store(int64(n))
				for range n {
					from.Send(to, transport.Append, frame)
				}
				<-s.done
			}
		})
	}
}

// BenchmarkCall asks one after the other, and 256 at once.
func BenchmarkCall(b *testing.B) {
	for _, users := range []int{1, 256} {
		b.Run(fmt.Sprint(users, "-users"), func(b *testing.B) {
			from, to, _ := benchPair(b)
			ctx, req := context.Background(), make([]byte, 1024)
			b.SetParallelism(users)
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := from.Call(ctx, to, "m", req); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}
