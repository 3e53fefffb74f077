package stele_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
)

// probe asks a node's handler, and checks that it says what Readiness says.
func probe(t *testing.T, n *stele.Node) (status int, code stele.ReadinessCode) {
	w := httptest.NewRecorder()
	n.ReadyHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/ready", nil))
	var body struct {
		Code   stele.ReadinessCode
		Reason string
	}
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &body))
	require.Equal(t, n.Readiness().Code, body.Code)
	require.Equal(t, body.Code == stele.Ready, w.Code == http.StatusOK)
	require.Equal(t, body.Code != stele.Ready, body.Reason != "")
	return w.Code, body.Code
}

// heard takes what a channel of readiness has, and nothing more.
func heard(changes <-chan stele.Readiness) (codes []stele.ReadinessCode) {
	for {
		select {
		case r, ok := <-changes:
			if !ok {
				return codes
			}
			codes = append(codes, r.Code)
		default:
			return codes
		}
	}
}

// A node is ready when it hears a leader and has caught up, and no other way: not
// because time passes, and never after it was removed. Probes and a channel say so.
//
// Property: H8, H9 (red: a node without a leader was ready; a removed one said no more than that it had no leader)
func TestReadinessOfANode(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Seed: 71}, func(c *testcluster.Cluster) {
		t := c.T
		c.Start(0)
		first := c.Node(0).ReadinessChanges(t.Context())
		c.Sleep(time.Minute)
		status, code := probe(t, c.Node(0))
		require.Equal(t, http.StatusServiceUnavailable, status)
		require.Equal(t, stele.WaitingForMembers, code, "silence makes nobody ready")
		c.StartAll()
		c.Sleep(2 * time.Second)
		require.Equal(t, stele.Ready, (<-first).Code)

		apart := (c.MetadataLeader() + 1) % 3
		changes := c.Node(apart).ReadinessChanges(t.Context())
		c.Sleep(time.Second)
		require.Equal(t, []stele.ReadinessCode{stele.Ready}, heard(changes))
		c.Isolate(apart)
		cut := time.Now()
		c.Eventually(func() bool { return !c.Node(apart).Readiness().Ready() }, "it misses its leader")
		require.LessOrEqual(t, time.Since(cut), lost+100*time.Millisecond, "the leader's silence")
		for range 120 {
			c.Sleep(500 * time.Millisecond)
			status, _ := probe(t, c.Node(apart))
			require.Equal(t, http.StatusServiceUnavailable, status)
		}
		require.NotContains(t, heard(changes), stele.Ready)
		c.Rejoin(apart)
		c.Eventually(func() bool { return c.Node(apart).Readiness().Ready() }, "it hears a leader again")
		c.Sleep(2 * time.Second)
		require.Contains(t, heard(changes), stele.Ready)

		d, err := c.Node((apart+1)%3).Decommission(t.Context(), c.Member(apart).Name, stele.DecommissionOptions{Force: true})
		require.NoError(t, err)
		require.NoError(t, d.Wait(t.Context()))
		out := time.Now()
		c.Eventually(func() bool { return c.Node(apart).Readiness().Code == stele.Removed }, "it knows")
		require.Less(t, time.Since(out), 8*time.Second)
		var removed *stele.RemovedError
		require.ErrorAs(t, c.Node(apart).WaitReady(t.Context()), &removed)
		for range 120 {
			c.Sleep(500 * time.Millisecond)
			status, code := probe(t, c.Node(apart))
			require.Equal(t, http.StatusServiceUnavailable, status)
			require.Equal(t, stele.Removed, code)
		}
		all := heard(changes)
		require.Equal(t, stele.Removed, all[len(all)-1])

		node := c.Node(apart)
		ctx, cancel := context.WithCancel(t.Context())
		given := node.ReadinessChanges(ctx)
		<-given
		cancel()
		_, open := <-given
		require.False(t, open, "its context ended")
		c.Close(apart)
		_, code = probe(t, node)
		require.Equal(t, stele.Closed, code)
		require.Equal(t, []stele.ReadinessCode{stele.Closed}, heard(node.ReadinessChanges(t.Context())))
	})
}

// lost is the time after which a member that hears no leader has none in view: two
// election timeouts, at most. That is sooner than the time of contact.
const lost = time.Second

// A node that hears no more of its leader is ready no longer than the rule says: until
// it has no leader in view, or has not heard it for the time of contact, whichever comes
// first. Time makes it ready never; the next heartbeat does. It is the same for one that
// does not vote.
//
// Property: H8 (red: no leader needed)
func TestReadinessFollowsTheLeader(t *testing.T) {
	const heartbeat, travels = 100 * time.Millisecond, 20 * time.Millisecond
	testcluster.Run(t, testcluster.Options{Seed: 72}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		observer := c.Add()
		c.StartWith(observer, func(cfg *stele.Config) { cfg.Observer = true })
		c.WaitReady()
		for _, i := range []int{observer, (c.MetadataLeader() + 1) % 3} {
			c.Sleep(2 * time.Second)
			changes := c.Node(i).ReadinessChanges(t.Context())
			require.True(t, (<-changes).Ready())
			c.Isolate(i)
			cut := time.Now()
			for c.Node(i).Readiness().Ready() {
				require.LessOrEqual(t, time.Since(cut), lost+travels)
				c.Sleep(time.Millisecond)
			}
			require.Equal(t, stele.NoLeader, c.Node(i).Readiness().Code)
			require.GreaterOrEqual(t, time.Since(cut), lost/2-heartbeat-travels, "a heartbeat that is late")
			c.Sleep(20 * time.Second)
			status, _ := probe(t, c.Node(i))
			require.Equal(t, http.StatusServiceUnavailable, status)
			require.NotContains(t, heard(changes), stele.Ready)
			c.Rejoin(i)
			back := time.Now()
			c.Eventually(func() bool { return c.Node(i).Readiness().Ready() }, "it hears the leader")
			require.LessOrEqual(t, time.Since(back), 2*lost)
		}
	})
}
