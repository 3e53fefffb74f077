package stele_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
)

// A node whose name differs from a member's only in the case of letters is not let
// in, however long that member is heard or not, and says why.
//
// Property: J17 (red: it was refused for good with the name of a member that it does not have, which let it in)
func TestANameThatLooksLikeAnothersIsNotLetIn(t *testing.T) {
	config := func(cfg *stele.Config) {
		if cfg.Name == "node-4" {
			cfg.Name = "NODE-1"
		}
	}
	testcluster.Run(t, testcluster.Options{Seed: 66, Config: config}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		c.Sleep(5 * time.Second) // the cluster's version is raised
		fourth := c.Add()
		c.Start(fourth)
		for range 10 {
			c.Sleep(10 * time.Second)
			r := c.Node(fourth).Readiness()
			require.Equal(t, stele.Joining, r.Code)
			require.Contains(t, r.Reason, "differs only in the case of letters")
			require.Len(t, c.Node(1).Members(), 3)
		}
		c.PowerLoss(0) // also when the other one is dead
		c.Sleep(2 * time.Minute)
		require.Len(t, c.Node(1).Members(), 3)
		require.Equal(t, stele.Joining, c.Node(fourth).Readiness().Code)
	})
}
