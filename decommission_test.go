package stele_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
)

// grown is a cluster of three with a fourth that has a vote, and a load.
func grown(c *testcluster.Cluster) (fourth int, l *testcluster.Ledger, load *testcluster.Load) {
	c.StartAll()
	mustCreate(c, 0, "orders", 4)
	l = c.NewLedger("orders")
	fourth = c.Add()
	c.Start(fourth)
	c.WaitReady()
	load = l.StartLoad(1, 4, 50*time.Millisecond)
	c.Eventually(func() bool { return seat(c, 0, fourth) == stele.SeatVoter }, "it gets a vote")
	return fourth, l, load
}

// A node is taken out under load, whatever it is: its partitions go to others,
// nothing that was acknowledged is lost, and its directory never comes back.
//
// Property: D4, D5 (red: a leader that does not hand over before it leaves; tombstones not looked at)
func TestANodeIsDecommissioned(t *testing.T) {
	for name, leads := range map[string]bool{"one that leads the metadata": true, "one that does not": false} {
		t.Run(name, func(t *testing.T) {
			testcluster.Run(t, testcluster.Options{Seed: 31}, func(c *testcluster.Cluster) {
				t := c.T
				fourth, l, load := grown(c)
				leaver := c.MetadataLeader()
				if !leads {
					leaver = (leaver + 1) % fourth
				}
				asked := (leaver + 1) % fourth
				node := c.Node(leaver).Status().Node
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				d, err := c.Node(asked).Decommission(ctx, c.Member(leaver).Name, stele.DecommissionOptions{})
				require.NoError(t, err)
				require.NoError(t, d.Wait(ctx))
				require.Len(t, c.Node(asked).Members(), 3)
				require.Equal(t, stele.SeatNone, seat(c, asked, leaver))
				c.Eventually(func() bool { return c.Node(leaver).Readiness().Code == stele.Removed }, "it knows")
				before := l.Acked()
				c.Eventually(func() bool { return l.Acked() > before+50 }, "the others go on")
				load.Stop()
				for i := range c.Size() {
					if i != leaver {
						l.Verify(i)
					}
				}

				c.Kill(leaver)
				c.Start(leaver) // with its old disk
				c.Eventually(func() bool { return c.Node(leaver).Readiness().Code == stele.Removed }, "it never comes back")
				var removed *stele.RemovedError
				require.ErrorAs(t, c.Node(leaver).WaitReady(ctx), &removed)
				require.Len(t, c.Node(asked).Members(), 3)
				c.Kill(leaver)
				oldDisk := c.Member(leaver).FS
				c.Wipe(leaver)
				c.Start(leaver) // a new node under the old name
				c.Eventually(func() bool { return c.Node(leaver).Readiness().Ready() }, "its name does")
				require.NotEqual(t, node, c.Node(leaver).Status().Node)
				c.Kill(leaver)
				c.Member(leaver).FS = oldDisk
				c.Start(leaver)
				c.Eventually(func() bool { return c.Node(leaver).Readiness().Code == stele.Removed }, "its tombstone stays")
				require.Len(t, lives(c, asked, leaver), 1)
			})
		})
	}
}

// A decommission that was begun although it would leave fewer than three voters
// waits, and may be taken back.
func TestADecommissionIsTakenBack(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Seed: 32}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "orders", 2)
		c.Sleep(5 * time.Second) // the cluster's version is raised
		_, err := c.Node(0).Decommission(t.Context(), "nobody", stele.DecommissionOptions{})
		var none *stele.NoMemberError
		require.ErrorAs(t, err, &none)
		d, err := c.Node(0).Decommission(t.Context(), c.Member(1).Name, stele.DecommissionOptions{WhenPossible: true})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err = d.Wait(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, stele.OutcomeUnknown, stele.OutcomeOf(err))
		require.NoError(t, d.Cancel(t.Context()))
		require.ErrorIs(t, d.Wait(t.Context()), stele.ErrDecommissionCancelled)
		l := c.NewLedger("orders")
		load := l.StartLoad(1, 2, 50*time.Millisecond)
		c.Eventually(func() bool { return l.Acked() > 50 }, "it takes in records again")
		load.Stop()
		l.Verify(1)
	})
}

// What a plan says, and what a decommission waits for, follows what changes.
//
// Property: D2 (red: a plan was kept though the metadata had changed)
func TestAPlanIsAsNewAsTheMetadata(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Seed: 68}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "orders", 2)
		c.Sleep(20 * time.Second) // the cluster's version is raised
		stuck := func(blocked []stele.Block) bool {
			return slices.ContainsFunc(blocked, func(b stele.Block) bool { return b.Code == stele.BlockReplicas })
		}
		plan := func() []stele.Block {
			p, err := c.Node(0).PlanDecommission(t.Context(), "node-3", stele.DecommissionOptions{Force: true})
			require.NoError(t, err)
			return p.Blocked
		}
		require.True(t, stuck(plan()))
		d, err := c.Node(0).Decommission(t.Context(), "node-3", stele.DecommissionOptions{Force: true, WhenPossible: true})
		require.NoError(t, err)
		at, err := d.Progress()
		require.NoError(t, err)
		require.True(t, stuck(at.Blocked))
		require.NoError(t, d.Cancel(t.Context()))
		c.Start(c.Add())
		c.WaitReady()
		require.False(t, stuck(plan()), "there is another node now")
	})
}
