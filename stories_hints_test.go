package stele_test

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
	"github.com/stelelog/stele/membership"
	"github.com/stelelog/stele/transport"
)

// A new node was told of one member, which has left the cluster since and knows
// nobody who leads: a node leads that came later. That one names a member which it
// knew, that one the leader, and the new node is taken in by its first attempt.
//
// Property: J7 (red: one hint of an attempt followed; none)
func TestTheLeaderIsFoundOverAChainOfHints(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Seed: 131}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		fourth := c.Add()
		c.Start(fourth)
		c.WaitReady()
		c.Eventually(func() bool { return seat(c, 0, fourth) == stele.SeatVoter }, "four vote")
		const left = 0
		d, err := c.Node(fourth).Decommission(t.Context(), c.Member(left).Name, stele.DecommissionOptions{})
		require.NoError(t, err)
		require.NoError(t, d.Wait(t.Context()))
		c.Eventually(func() bool { return c.Node(left).Readiness().Code == stele.Removed }, "it knows")

		leader := c.Add()
		c.StartWith(leader, func(cfg *stele.Config) { cfg.Join = []string{c.Member(fourth).Addr} })
		c.Eventually(func() bool { return seat(c, fourth, leader) == stele.SeatVoter }, "it gets a vote")
		require.NoError(t, c.Node(fourth).TransferLeadership(t.Context(), stele.TopicPartition{}, c.Member(leader).Name))
		c.Eventually(func() bool { return c.MetadataLeader() == leader }, "who came last leads")
		for _, m := range c.Node(left).Members() {
			require.NotEqual(t, c.Member(leader).Name, m.Name, "it was there, and does not know of it")
		}
		require.Zero(t, c.Node(left).Status().MetadataLeader)
		c.Sleep(5 * time.Second) // the new leader takes up its work

		late := c.Add()
		c.StartWith(late, func(cfg *stele.Config) { cfg.Join = []string{c.Member(left).Addr} })
		begun := time.Now()
		c.Eventually(func() bool { return len(lives(c, leader, late)) == 1 }, "it is taken in")
		require.Less(t, time.Since(begun), 2*time.Second, "by its first attempt")
		c.Eventually(func() bool { return c.Node(late).Readiness().Ready() }, "it is ready")
	})
}

// hinter answers that the leader is at an address.
type hinter struct {
	at string

	mu    sync.Mutex
	asked int
}

func (*hinter) HandleFrame(transport.Peer, transport.Class, []byte) {}

func (h *hinter) HandleCall(_ context.Context, _ transport.Peer, method string, _ []byte) ([]byte, error) {
	if method == membership.MethodJoin {
		h.mu.Lock()
		h.asked++
		h.mu.Unlock()
	}
	return membership.Reply{Kind: membership.ReplyNotLeader, Leader: 7, Addr: h.at}.Encode(), nil
}

func (*hinter) HandleStream(context.Context, transport.Peer, string, transport.Stream) error {
	return nil
}

// Over TCP, peers name leaders at what is no address: none of these is dialled, and
// none counts as one of the four hints that an attempt follows. The fifth names one
// that is.
//
// Property: J7 (red: addresses that peers give not looked at; a port of 0 let in; no host; the unspecified one)
func TestAHintThatCannotBeDialledIsIgnored(t *testing.T) {
	listen := func(h *hinter) (addr string) {
		ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		peer, err := transport.NewTCP(transport.TCPConfig{Listener: ln})
		require.NoError(t, err)
		t.Cleanup(func() { _ = peer.Close() })
		require.NoError(t, peer.Start(transport.Identity{Cluster: "orders", Name: ln.Addr().String()}, h))
		return ln.Addr().String()
	}
	last := &hinter{}
	good := listen(last)
	bad := []string{"127.0.0.1:0", "0.0.0.0:7942", ":7942", "nowhere", "127.0.0.1:70000", strings.Repeat("n", 257) + ":7942"}
	var peers []string
	for _, at := range append(slices.Clone(bad), good) {
		peers = append(peers, listen(&hinter{at: at}))
	}
	var mu sync.Mutex
	dialled := map[string]bool{}
	n, err := stele.Open(t.Context(), stele.Config{
		Cluster: "orders", Name: "new", Dir: t.TempDir(), Join: peers, Listen: "127.0.0.1:0", Advertise: "127.0.0.1:7942",
		JournalBytes: 1 << 20,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			mu.Lock()
			dialled[addr] = true
			mu.Unlock()
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		},
	})
	require.NoError(t, err)
	defer n.Abort()
	require.Eventually(t, func() bool {
		last.mu.Lock()
		defer last.mu.Unlock()
		return last.asked > 0 && len(n.Tried()) > 0
	}, time.Minute, time.Millisecond, "the good hint is followed")
	mu.Lock()
	defer mu.Unlock()
	for _, addr := range bad {
		require.False(t, dialled[addr], addr)
	}
	require.Equal(t, append(peers, good), n.Tried())
}
