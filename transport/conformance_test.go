package transport_test

import (
	"context"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/transport"
	"github.com/stelelog/stele/transport/transporttest"
)

// Property: L1, L2, L3, L4 (red: handlers called without recover; calls counted in a package variable; Close without waiting, or without severing streams; a call that does not look at its context)
func TestMemoryConformance(t *testing.T) {
	transporttest.Run(t, transporttest.Suite{
		In: func(t *testing.T, body func(t *testing.T)) { synctest.Test(t, body) },
		Make: func(*testing.T) transporttest.Network {
			n, made := transport.NewNetwork(1, nil), 0
			n.SetFaults(transport.Faults{MinLatency: time.Millisecond, MaxLatency: 5 * time.Millisecond})
			return transporttest.Network{
				New: func() transport.Transport {
					made++
					return n.Transport(fmt.Sprint("node-", made))
				},
				Again:    func(addr string) transport.Transport { return n.Transport(addr) },
				Nobody:   "nobody",
				MaxFrame: transport.DefaultMaxFrame,
			}
		},
	})
}

// Property: L1, L2, L3 (red: handlers called without recover; calls counted in a package variable; Close without closing connections, without waiting, or done twice)
func TestTCPConformance(t *testing.T) {
	transporttest.Run(t, transporttest.Suite{
		Make: func(t *testing.T) transporttest.Network {
			return transporttest.Network{
				New:      func() transport.Transport { return loopback(t, "127.0.0.1:0") },
				Again:    func(addr string) transport.Transport { return loopback(t, addr) },
				Nobody:   closedPort(t),
				MaxFrame: 8 << 20,
			}
		},
	})
}

// closedPort is an address at which nobody listens (any more).
func closedPort(t *testing.T) string {
	ln, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	return ln.Addr().String()
}
