package main

import (
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/stelelog/stele/transport"
	"github.com/stelelog/stele/transport/transporttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Every promise of transport.Transport holds over a host's server.
func TestConformance(t *testing.T) {
	transporttest.Run(t, transporttest.Suite{
		Make: func(t *testing.T) transporttest.Network {
			return transporttest.Network{
				New:      func() transport.Transport { return mount(t, "127.0.0.1:0") },
				Again:    func(addr string) transport.Transport { return mount(t, hostPort(addr)) },
				Nobody:   "http://" + closedPort(t) + "/stele/",
				MaxFrame: maxFrame,
			}
		},
	})
}

const maxFrame = 8 << 20

// mounted is a Transport with the server that it is mounted on, so that both
// are closed together: as when a process ends.
type mounted struct {
	*Transport
	server *http.Server
	served chan struct{}
}

func mount(t *testing.T, addr string) *mounted {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	tr, err := New(Config{Addr: "http://" + l.Addr().String() + "/stele/", MaxFrame: maxFrame, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	m := &mounted{Transport: tr, served: make(chan struct{})}
	mux := http.NewServeMux()
	mux.Handle("/stele/", m.Transport)
	m.server = &http.Server{Handler: mux}
	go func() {
		defer close(m.served)
		_ = m.server.Serve(l) // ErrServerClosed
	}()
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func (m *mounted) Close() error {
	err := m.Transport.Close()
	_ = m.server.Close()
	<-m.served
	return err
}

func hostPort(addr string) string {
	return strings.TrimSuffix(strings.TrimPrefix(addr, "http://"), "/stele/")
}

// closedPort is an address at which nobody listens any more.
func closedPort(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}
