package stele_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/internal/testcluster"
	"github.com/stelelog/stele/storage"
)

// TestASurvivorThatWasNotAppliedIsToldSo: two of five are in the plan, which is
// applied to one. The other is started as it is. It is kept out, by whoever meets it
// first: one that the plan is about, or one that joined since. But it is told to apply
// the plan, and nothing else is possible with its directory; those that are not in the
// plan are told that the cluster went on without them, and are not surveyed into another
// cluster. In the end it has what it had.
//
// Property: R33 (red: the log of metadata that a recovery set aside was looked for where the new one is; whoever is of an older epoch was said to be left behind; a fenced directory was planned with; the plan that includes the node was not noted in its directory)
func TestASurvivorThatWasNotAppliedIsToldSo(t *testing.T) {
	var met sync.Map // whether those that came back are in the plan, by name
	config := func(cfg *stele.Config) {
		cfg.Events.PeerFenced = func(p stele.FencedPeer) { met.Store(p.Name, p.Included) }
	}
	testcluster.Run(t, testcluster.Options{Nodes: 5, Seed: 8, Config: config}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
		defer cancel()
		mustCreate(c, 0, "orders", 2)
		want := []string{produceTo(c, 0, "orders", 0, 1)}
		c.Sleep(time.Second)
		c.Close(1) // with what it has in its files, and not only in the journal
		c.Sleep(time.Second)
		c.Close(0) // later: its metadata go on
		c.PowerLossAll()
		plan := planFrom(c, 0, 1)
		require.True(t, plan.Nodes[0].GoesOn)
		require.NoError(t, stele.ApplyRecovery(c.Config(0), plan))
		c.Recovered(0, 1)
		c.Start(0)
		c.WaitReady()
		joined := c.Add()
		c.Start(joined)
		c.WaitReady()

		refused := func(i int, code stele.RecoveryRefusal, says string) {
			t.Helper()
			s, err := stele.SurveyDir(c.Config(i))
			require.NoError(t, err)
			carried(t, &s)
			_, err = stele.PlanRecovery(s)
			var no *stele.RecoveryError
			require.ErrorAs(t, err, &no)
			require.Equal(t, code, no.Code)
			require.ErrorContains(t, err, says)
		}
		before := c.Member(1).FS
		for _, away := range []int{0, joined} {
			c.Member(1).FS = before.Image(simfs.Kill)
			c.Isolate(away) // so that it meets the other one; the one that joined looks for a leader
			c.Start(1)
			c.Eventually(func() bool { return c.Node(1).Readiness().Code == stele.NotRecovered }, "it is told that it is in the plan")
			var fenced *stele.EpochFencedError
			require.ErrorAs(t, c.Node(1).WaitReady(ctx), &fenced)
			require.Equal(t, [2]uint64{0, 1}, [2]uint64{fenced.Epoch, fenced.Current})
			require.Equal(t, [16]byte(plan.ID), fenced.Plan)
			require.ErrorContains(t, fenced, "do not empty it")
			included, _ := met.LoadAndDelete(c.Member(1).Name)
			require.Equal(t, true, included, "an event says so, too")
			c.Close(1)
			_, err := stele.Open(ctx, c.Config(1))
			var unfinished *stele.RecoveringError
			require.ErrorAs(t, err, &unfinished)
			require.True(t, unfinished.Met)
			require.Equal(t, [16]byte(plan.ID), unfinished.Plan)
			c.Rejoin(away)
		}
		refused(1, stele.RefusedFenced, "apply that plan to it")

		c.Start(2)
		c.Eventually(func() bool { return c.Node(2).Readiness().Code == stele.Fenced }, "it is not in the plan")
		var fenced *stele.EpochFencedError
		require.ErrorAs(t, c.Node(2).WaitReady(ctx), &fenced)
		require.Zero(t, fenced.Plan)
		included, _ := met.Load(c.Member(2).Name)
		require.Equal(t, false, included)
		c.Close(2)
		refused(2, stele.RefusedFenced, "another cluster of the same id")

		require.NoError(t, stele.ApplyRecovery(c.Config(1), plan))
		c.Start(1)
		c.WaitReady()
		want = append(want, produceTo(c, 1, "orders", 0, 2))
		require.Equal(t, want, readAll(c, 1, "orders", 0))

		// Whose metadata are another's by now has the files of those alone.
		c.Sleep(time.Minute)
		for i := range 2 {
			c.Close(i)
			off, err := storage.ReadOffline(c.Member(i).FS, c.Config(i).Dir)
			require.NoError(t, err)
			for _, st := range off.Replicas {
				for _, err := range off.Frames(st.Replica) {
					require.NoError(t, err, "%v of %v", st.Replica, st.Group)
				}
				require.NoError(t, off.SideFiles(st.Replica))
			}
		}
	})
}
