package stele_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
	"github.com/stelelog/stele/metastore"
)

// Property: R33, X5 (red: the survey did not say that they are damaged; the plan did not look at that)
//
// Of three nodes one is lost for good, and one has stopped since its metadata are
// damaged: no node is opened with those. They are no majority, and no metadata to go
// on from. The recovery goes on from the third node's, and the one that had stopped is
// part of the cluster again, with the records that it has.
func TestARecoveryDoesNotGoOnFromDamagedMetadata(t *testing.T) {
	const bad, lost = 1, 2
	config := func(cfg *stele.Config) { cfg.MetadataCheckInterval = 10 * time.Second }
	testcluster.Run(t, testcluster.Options{Nodes: 3, Seed: 7, Config: config}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		c.Eventually(func() bool { return version(c, 0) == metastore.NewestVersion }, "the version is raised")
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
		defer cancel()
		buried := created(c, "buried")
		mustCreate(c, 0, "orders", 1)
		want := []string{produceTo(c, 0, "orders", 0, 1)}
		c.Sleep(5 * time.Second)
		c.Close(bad)
		c.Damaged(bad)
		bury(t, c.Member(bad).FS, buried.Incarnation, "buried")
		c.Start(bad)
		c.EventuallyLong(func() bool { return c.Node(bad).Readiness().Code == stele.Failed }, "it has stopped")
		require.ErrorIs(t, c.Node(bad).WaitReady(ctx), metastore.ErrStateDiverged)
		c.PowerLossAll()

		own, err := stele.SurveyDir(c.Config(bad))
		require.NoError(t, err)
		require.True(t, own.Damaged)
		_, err = stele.PlanRecovery(own)
		var refused *stele.RecoveryError
		require.ErrorAs(t, err, &refused)
		require.Equal(t, stele.RefusedNothing, refused.Code)
		require.Contains(t, refused.Reason, "survey one that has, too")

		plan := recoverFrom(c, 0, bad)
		text, err := json.Marshal(plan)
		require.NoError(t, err)
		require.Len(t, plan.LeftBehind, 1)
		for _, n := range plan.Nodes {
			require.Equal(t, n.Name == c.Member(0).Name, n.GoesOn, "%s", text)
		}
		c.Start(0)
		c.Start(bad)
		c.WaitReadyBut(lost)
		want = append(want, produceTo(c, bad, "orders", 0, 2))
		for _, i := range []int{0, bad} {
			require.Equal(t, want, readAll(c, i, "orders", 0))
			_, err := c.Node(i).DescribeTopic(ctx, "buried")
			require.NoError(t, err)
		}
	})
}
