package transporttest

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/transport"
)

// countAll counts everything that reaches a handler.
func countAll(reached *atomic.Int64) func(*node) {
	return func(n *node) {
		n.frame = func(transport.Peer, transport.Class, []byte) { reached.Add(1) }
		n.call = func(context.Context, transport.Peer, string, []byte) ([]byte, error) {
			reached.Add(1)
			return nil, nil
		}
		n.stream = func(context.Context, transport.Peer, string, transport.Stream) error {
			reached.Add(1)
			return nil
		}
	}
}

// refused tries everything and returns what a call is told.
func refused(t *testing.T, from, to *node) *transport.HandshakeError {
	t.Helper()
	for _, class := range classes() {
		from.Send(to.Addr(), class, []byte("intruder"))
	}
	_, err := from.OpenStream(within(t), to.Addr(), "m")
	require.ErrorIs(t, err, transport.ErrUnreachable)
	_, err = from.Call(within(t), to.Addr(), "m", nil)
	require.ErrorIs(t, err, transport.ErrUnreachable)
	var handshake *transport.HandshakeError
	require.ErrorAs(t, err, &handshake)
	require.NotContains(t, err.Error(), "secret", "the answer reveals something")
	return handshake
}

func otherCluster(t *testing.T, net Network) {
	var reached atomic.Int64
	other := transport.Identity{Cluster: "secret-orders", Name: "secret-1", ClusterID: [16]byte{7}}
	a := begin(t, net.New(), identity("a"))
	b := begin(t, net.New(), other, countAll(&reached))
	e := refused(t, a, b)
	require.Equal(t, transport.RefusedSilently, e.Reason)
	eventually(t, "b counts the refusals", func() bool { return b.Stats().Refused >= 2 })
	require.Zero(t, reached.Load())
}

func clusterIDs(t *testing.T, net Network) {
	withID := func(name string, id byte) transport.Identity {
		i := identity(name)
		i.ClusterID[0] = id
		return i
	}
	var reached atomic.Int64
	one := begin(t, net.New(), withID("one", 1))
	none := begin(t, net.New(), withID("none", 0))
	two := begin(t, net.New(), withID("two", 2), countAll(&reached))
	require.Equal(t, transport.RefusedClusterID, refused(t, one, two).Reason)
	require.Zero(t, reached.Load())
	for _, pair := range [][2]*node{{one, none}, {none, one}, {none, two}} {
		_, err := pair[0].Call(within(t), pair[1].Addr(), "m", nil)
		require.NoError(t, err)
	}
}

func identityLater(t *testing.T, net Network) {
	froms := make(chan transport.Peer, 100)
	a, b := two(t, net, func(n *node) {
		n.call = func(_ context.Context, from transport.Peer, _ string, _ []byte) ([]byte, error) {
			froms <- from
			return nil, nil
		}
	})
	call := func() error {
		_, err := a.Call(within(t), b.Addr(), "m", nil)
		return err
	}
	require.NoError(t, call())
	require.Equal(t, identity("a"), next(t, froms).Identity)
	a.Send(b.Addr(), transport.Append, nil)
	require.Equal(t, identity("a"), next(t, b.frames).from.Identity)

	known := identity("a")
	known.ClusterID[0], known.Node, known.Epoch = 1, 77, 3
	a.SetIdentity(known)
	require.NoError(t, call())
	require.Equal(t, known, next(t, froms).Identity, "what is sent after SetIdentity carries it")
	a.Send(b.Addr(), transport.Append, nil)
	require.Equal(t, known, next(t, b.frames).from.Identity)

	// b learns that it belongs elsewhere: a is no longer welcome.
	elsewhere := identity("b")
	elsewhere.ClusterID[0] = 2
	b.SetIdentity(elsewhere)
	eventually(t, "a is refused", func() bool { return call() != nil })
	for len(froms) > 0 {
		<-froms
	}
	require.Equal(t, transport.RefusedClusterID, refused(t, a, b).Reason)
	require.Empty(t, froms)

	// And found again.
	b.SetIdentity(identity("b"))
	eventually(t, "a is welcome", func() bool { return call() == nil })
}
