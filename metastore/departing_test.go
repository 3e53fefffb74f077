package metastore

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/raftlog"
)

// TestAMarkIsOfItsJudgement: a member was judged to have answered all; then it stays
// after all, takes records in, and drains again. What was judged before does not mark
// it, whoever leads, and whatever the judge knows of it by then.
//
// Property: D1 (red: Departures not compared; those under way not counted; proposed in any term; taken in from another node)
func TestAMarkIsOfItsJudgement(t *testing.T) {
	nonce := raftlog.Nonce{3}
	back := []command{setDeparture{3, nonce, Stays}, setDeparture{3, nonce, Drains}}
	for name, c := range map[string]struct {
		meanwhile func(t *testing.T, c *fakeCluster, n *fakeNode)
		is        func(error) bool
	}{
		"it knows": {func(t *testing.T, c *fakeCluster, n *fakeNode) {
			c.append(back...)
			require.NoError(t, n.catchUp())
		}, func(err error) bool { return errors.Is(err, ErrStale) }},
		"it has them in its log": {func(t *testing.T, _ *fakeCluster, n *fakeNode) {
			n.set(func(n *fakeNode) { n.hold, n.late = true, true })
			for _, cmd := range back {
				answered := make(chan answer, 1)
				go func() { answered <- n.store.proposeHere(t.Context(), encodeCommand(cmd)) }()
				synctest.Wait()
				require.Empty(t, answered)
			}
		}, func(err error) bool { return errors.Is(err, ErrStale) }},
		"another one led, and it leads again": {func(_ *testing.T, c *fakeCluster, n *fakeNode) {
			n.set(func(n *fakeNode) { n.hold = true })
			c.elect(2)
			c.append(back...)
			c.elect(1)
		}, func(err error) bool { return errors.Is(err, raftlog.ErrLeadershipLost) }},
		"another one leads": {func(_ *testing.T, c *fakeCluster, n *fakeNode) {
			n.set(func(n *fakeNode) { n.hold = true })
			c.elect(2)
			c.append(back...)
		}, func(err error) bool { return errors.As(err, new(*raftlog.NotLeaderError)) }},
	} {
		t.Run(name, func(t *testing.T) {
			inRaisedCluster(t, 3, func(t *testing.T, cluster *fakeCluster) {
				n := cluster.nodes[1]
				require.NoError(t, n.store.SetDeparture(t.Context(), 3, nonce, Drains))
				of := Judged{n.Status().Term, n.store.Departures()}
				c.meanwhile(t, cluster, n)
				last := cluster.last()
				err := n.store.MarkLeaving(t.Context(), 3, nonce, of)
				require.True(t, c.is(err), "%v", err)
				require.Equal(t, last, cluster.last(), "nothing was proposed")
				n.set(func(n *fakeNode) { n.hold = false })
				m, _ := n.store.Member(3)
				require.Equal(t, Drains, m.Liveness.Departure)
			})
		})
	}
	inRaisedCluster(t, 3, func(t *testing.T, c *fakeCluster) {
		s, ctx := c.nodes[1].store, t.Context()
		judged := func() Judged { return Judged{s.GroupStatus().Term, s.Departures()} }
		require.ErrorIs(t, s.MarkLeaving(ctx, 3, nonce, judged()), ErrNotDraining)
		require.NoError(t, s.SetDeparture(ctx, 3, nonce, Drains))
		last := c.last()
		var invalid *InvalidError
		require.ErrorAs(t, s.SetDeparture(ctx, 3, nonce, Leaves), &invalid)
		require.ErrorAs(t, s.MarkLeaving(ctx, 3, nonce, Judged{}), &invalid)
		b, err := s.HandleCall(ctx, 2, MethodPropose, encodeCommand(setDeparture{3, nonce, Leaves}))
		require.NoError(t, err)
		a := decodeAnswer(b)
		requireOneOutcome(t, raftlog.OutcomeRefused, a.err)
		require.Equal(t, last, c.last(), "nothing was proposed")
		require.NoError(t, s.MarkLeaving(ctx, 3, nonce, judged()))
		m, _ := s.Member(3)
		require.Equal(t, Leaves, m.Liveness.Departure)
		require.NoError(t, s.MarkLeaving(ctx, 3, nonce, judged()), "it is that already")
	})
}
