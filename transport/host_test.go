package transport_test

import (
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/transport"
)

// host is a handler made of functions; what is nil does nothing.
type host struct {
	frame  func(from transport.Peer, class transport.Class, frame []byte)
	call   func(ctx context.Context, from transport.Peer, method string, req []byte) ([]byte, error)
	stream func(ctx context.Context, from transport.Peer, method string, s transport.Stream) error
}

func (h *host) HandleFrame(from transport.Peer, class transport.Class, frame []byte) {
	if h.frame != nil {
		h.frame(from, class, frame)
	}
}

func (h *host) HandleCall(ctx context.Context, from transport.Peer, method string, req []byte) ([]byte, error) {
	if h.call != nil {
		return h.call(ctx, from, method, req)
	}
	return req, nil
}

func (h *host) HandleStream(ctx context.Context, from transport.Peer, method string, s transport.Stream) error {
	if h.stream != nil {
		return h.stream(ctx, from, method, s)
	}
	_, err := io.Copy(io.Discard, s)
	return err
}

func identity(name string) transport.Identity {
	return transport.Identity{Cluster: "test", Name: name, Process: 1}
}

// start starts a transport and closes it at the end.
func start(t *testing.T, tr transport.Transport, name string, h *host) {
	t.Helper()
	t.Cleanup(func() { _ = tr.Close() })
	require.NoError(t, tr.Start(identity(name), h))
}
