package stele_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
	"github.com/stelelog/stele/membership"
	"github.com/stelelog/stele/transport"
)

// capped says how high the version of the cluster may be for each member, by
// name, and keeps what the members log at warn or above.
type capped struct {
	versions map[string]uint64
	logs     map[string]*observer.ObservedLogs
}

func (k *capped) config(cfg *stele.Config) {
	cfg.MaxVersion = k.versions[cfg.Name]
	if k.logs == nil {
		k.logs = map[string]*observer.ObservedLogs{}
	}
	core, logs := observer.New(zapcore.WarnLevel)
	cfg.Logger, k.logs[cfg.Name] = zap.New(core), logs
}

// version is what a member says of the cluster's.
func version(c *testcluster.Cluster, i int) uint64 {
	at, err := c.Node(i).DescribeCluster(c.T.Context())
	require.NoError(c.T, err)
	return at.Version
}

// notReady returns why a member is not, after half a minute.
func notReady(c *testcluster.Cluster, i int) error {
	ctx, cancel := context.WithTimeout(c.T.Context(), 30*time.Second)
	defer cancel()
	err := c.Node(i).WaitReady(ctx)
	require.Error(c.T, err)
	return err
}

// firstRelease is the network of a node as builds of version 1 used it: they know
// no call that came later, and refuse a form that they cannot read.
type firstRelease struct {
	transport.Transport
	refused atomic.Int64
}

func (r *firstRelease) Start(id transport.Identity, h transport.Handler) error {
	return r.Transport.Start(id, firstReleaseHandler{h, r})
}

func (r *firstRelease) Call(ctx context.Context, to, method string, req []byte) ([]byte, error) {
	if strings.HasPrefix(method, "member.") {
		return nil, transport.ErrUnreachable
	}
	if method == membership.Method {
		req[0] = 1
	}
	return r.Transport.Call(ctx, to, method, req)
}

type firstReleaseHandler struct {
	transport.Handler
	r *firstRelease
}

func (h firstReleaseHandler) HandleCall(ctx context.Context, from transport.Peer, method string, req []byte) ([]byte, error) {
	if strings.HasPrefix(method, "member.") || method == membership.Method && req[0] != 1 {
		h.r.refused.Add(1)
		return nil, refusedCall{}
	}
	return h.Handler.HandleCall(ctx, from, method, req)
}

func (firstReleaseHandler) HandleStream(context.Context, transport.Peer, string, transport.Stream) error {
	return refusedCall{}
}

type refusedCall struct{}

func (refusedCall) Error() string     { return "no call" }
func (refusedCall) ErrorCode() string { return "refused" }

// A member that takes part in version 1 only holds the cluster at that. It serves,
// and what needs more is refused with that member's name. When it is started
// without its limit the version rises by itself. It may be one that announces
// nothing, and cannot read what the others send first.
//
// Property: C9, J15 (red: the newest announcement decided; heartbeats were not told who holds it back; a plain refusal ended the attempt)
func TestAMemberHoldsTheVersionBack(t *testing.T) {
	t.Run("which announces that", func(t *testing.T) { holdsBack(t, nil) })
	t.Run("of the first release", func(t *testing.T) { holdsBack(t, new(firstRelease)) })
}

func holdsBack(t *testing.T, older *firstRelease) {
	k := &capped{versions: map[string]uint64{"node-2": 1}}
	config := func(cfg *stele.Config) {
		if k.config(cfg); cfg.MaxVersion == 1 && older != nil {
			older.Transport, cfg.Transport = cfg.Transport, older
		}
	}
	testcluster.Run(t, testcluster.Options{Seed: 51, Config: config}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		if older != nil {
			require.Positive(t, older.refused.Load(), "it was asked in forms that it does not know")
		}
		mustCreate(c, 0, "orders", 2)
		l := c.NewLedger("orders")
		load := l.StartLoad(1, 2, 50*time.Millisecond)
		c.Close(1)
		c.Start(1) // now another one leads, which could raise the version
		c.WaitReady()
		c.Sleep(20 * time.Second)
		for i := range 3 {
			require.Equal(t, uint64(1), version(c, i))
			if i == 1 && older != nil {
				continue // it does not know what a decommission is
			}
			_, err := c.Node(i).Decommission(t.Context(), "node-3", stele.DecommissionOptions{})
			var behind *stele.ClusterVersionError
			require.ErrorAs(t, err, &behind)
			require.Equal(t, &stele.ClusterVersionError{Needs: 2, Has: 1, Behind: []string{"node-2"}}, behind)
			require.Equal(t, stele.OutcomeRetry, stele.OutcomeOf(err))
		}
		joiner := c.Add()
		c.Start(joiner)
		require.ErrorContains(t, notReady(c, joiner), "node-2 has not said that its build can")

		load.Stop()
		c.Close(1)
		k.versions["node-2"] = 0
		c.Start(1)
		c.WaitReady() // the joiner, too
		for i := range c.Size() {
			require.Equal(t, uint64(3), version(c, i))
			l.Verify(i)
		}
	})
}

// Once commands of version 2 were applied, who cannot apply them stays out: a node
// that would join, and one that was a member, whose directory is left as it is.
//
// Property: C9, J13 (red: the newest applied was not compared; it was not looked up when the directory was opened; the joiner said it each time; so did the leader)
func TestAnOlderNodeStaysOut(t *testing.T) {
	k := &capped{versions: map[string]uint64{"node-4": 1}}
	testcluster.Run(t, testcluster.Options{Seed: 52, Config: k.config}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "orders", 2)
		c.Eventually(func() bool { return version(c, 0) == 3 }, "the version is raised")
		joiner := c.Add()
		c.Start(joiner)
		require.ErrorContains(t, notReady(c, joiner), "start a newer build")
		c.Sleep(2 * time.Minute)
		said := func(i int, level zapcore.Level, what string) (n int) {
			for _, e := range k.logs[c.Member(i).Name].All() {
				if e.Level == level && strings.Contains(e.Message, what) {
					n++
				}
			}
			return n
		}
		require.Equal(t, 1, said(joiner, zapcore.ErrorLevel, "does not take this node in"), "the joiner says it once")
		leader := c.MetadataLeader()
		require.Contains(t, []int{2, 3}, said(leader, zapcore.WarnLevel, "older build"), "it goes on to ask; the leader says it once a minute")
		require.Len(t, c.Node(0).Members(), 3)
		c.Close(joiner)

		k.versions["node-3"] = 1
		c.Close(2)
		err := c.Open(2)
		var newer *stele.NewerStateError
		require.ErrorAs(t, err, &newer)
		require.Equal(t, stele.OutcomeRefused, stele.OutcomeOf(err))
		k.versions = nil
		for _, i := range []int{2, joiner} {
			c.Start(i)
		}
		c.WaitReady()
		l := c.NewLedger("orders")
		l.Verify(2)
		require.Len(t, c.Node(2).Members(), 4)
	})
}
