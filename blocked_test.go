package stele_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
)

func codes(blocked []stele.Block) (all []stele.BlockCode) {
	for _, b := range blocked {
		all = append(all, b.Code)
	}
	return all
}

// A decommission that cannot come to its end is refused and says why, on every node
// alike, and changes nothing. If it is to wait, it shows what for, never goes below
// three voters, and goes on when a node joins.
//
// Property: D2 (red: a plan without the floor; the replicas not looked at)
func TestADecommissionThatIsBlocked(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Seed: 61}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "orders", 2)
		c.Sleep(5 * time.Second) // the cluster's version is raised
		leaver := c.Member(2).Name
		both := []stele.BlockCode{stele.BlockReplicas, stele.BlockVoters}
		for i := range c.Size() {
			plan, err := c.Node(i).PlanDecommission(t.Context(), leaver, stele.DecommissionOptions{})
			require.NoError(t, err)
			require.Equal(t, both, codes(plan.Blocked), "%v", plan.Blocked)
			require.Empty(t, plan.Moves)
			plan, err = c.Node(i).PlanDecommission(t.Context(), leaver, stele.DecommissionOptions{Force: true})
			require.NoError(t, err)
			require.Equal(t, both[:1], codes(plan.Blocked), "force finds no room")

			_, err = c.Node(i).Decommission(t.Context(), leaver, stele.DecommissionOptions{})
			var blocked *stele.BlockedError
			require.ErrorAs(t, err, &blocked)
			require.Equal(t, both, codes(blocked.Blocked))
			require.Equal(t, stele.OutcomeRefused, stele.OutcomeOf(err))
			require.ErrorContains(t, err, "add a node")
			require.Empty(t, c.Node(i).Decommissions(), "nothing has begun")
		}

		d, err := c.Node(2).Decommission(t.Context(), leaver, stele.DecommissionOptions{WhenPossible: true})
		require.NoError(t, err)
		for range 30 {
			c.Sleep(time.Second)
			require.Equal(t, stele.SeatVoter, seat(c, 0, 2))
		}
		for i := range c.Size() {
			at := c.Node(i).Decommissions()
			require.Len(t, at, 1)
			require.Equal(t, both, codes(at[0].Blocked), "member %d shows it", i)
		}

		fourth := c.Add()
		c.Start(fourth)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		require.NoError(t, d.Wait(ctx), "it goes on, and the node that leaves knows when it is out")
		at, err := d.Progress()
		require.NoError(t, err)
		require.True(t, at.Done)
		_, err = c.Node(0).Decommission(t.Context(), leaver, stele.DecommissionOptions{})
		var none *stele.NoMemberError
		require.ErrorAs(t, err, &none)
		require.Equal(t, at.Node, none.Left, "it was a member")
	})
}

// A dead node is not taken out unasked: it cannot say what it has answered. That is
// said at once, and shown if the node dies halfway.
func TestADeadNodeWaitsForAPerson(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Seed: 62, Nodes: 4}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		c.Sleep(5 * time.Second)
		dead := (c.MetadataLeader() + 1) % 4
		asked := (dead + 1) % 4
		name := c.Member(dead).Name
		d, err := c.Node(asked).Decommission(t.Context(), name, stele.DecommissionOptions{})
		require.NoError(t, err)
		require.NoError(t, d.Cancel(t.Context()))

		c.PowerLoss(dead)
		c.Eventually(func() bool {
			plan, err := c.Node(asked).PlanDecommission(t.Context(), name, stele.DecommissionOptions{})
			require.NoError(t, err)
			return len(plan.Blocked) == 1 && plan.Blocked[0].Code == stele.BlockDead
		}, "it is marked dead")
		var blocked *stele.BlockedError
		_, err = c.Node(asked).Decommission(t.Context(), name, stele.DecommissionOptions{})
		require.ErrorAs(t, err, &blocked)
		d, err = c.Node(asked).Decommission(t.Context(), name, stele.DecommissionOptions{WhenPossible: true})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err = d.Wait(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "force it, or bring it back")
		d, err = c.Node(asked).Decommission(t.Context(), name, stele.DecommissionOptions{Force: true})
		require.NoError(t, err)
		require.NoError(t, d.Wait(t.Context()))
	})
}

// Two of five nodes are dead, and with them two of three replicas of a partition,
// which nobody can move then. A forced decommission of one of them is refused and says
// so; it shows that it waits for that, too. When the other one is back, it comes to its
// end.
//
// Property: D2 (red: partitions without a majority were not looked at)
func TestADecommissionWaitsForPartitionsWithoutAMajority(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Seed: 63, Nodes: 5}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		_, err := c.Node(0).CreateTopic(t.Context(), "orders", stele.TopicConfig{Partitions: 1, Replicas: 3})
		require.NoError(t, err)
		c.Sleep(5 * time.Second)
		dead := map[int]bool{}
		for _, a := range partitions(c, 0, "orders")[0].Replicas[1:] {
			dead[int(a.Node)-1] = true
		}
		asked, gone := -1, []int{}
		for i := range 5 {
			if dead[i] {
				gone = append(gone, i)
			} else {
				asked = i
			}
		}
		require.Len(t, gone, 2)
		for _, i := range gone {
			c.PowerLoss(i)
		}
		name := c.Member(gone[0]).Name
		c.Eventually(func() bool {
			plan, err := c.Node(asked).PlanDecommission(t.Context(), name, stele.DecommissionOptions{Force: true})
			return err == nil && len(plan.Blocked) == 1 && plan.Blocked[0].Code == stele.BlockMajority
		}, "both are marked dead")
		var blocked *stele.BlockedError
		_, err = c.Node(asked).Decommission(t.Context(), name, stele.DecommissionOptions{Force: true})
		require.ErrorAs(t, err, &blocked)
		require.ErrorContains(t, err, "orders/0")
		d, err := c.Node(asked).Decommission(t.Context(), name, stele.DecommissionOptions{Force: true, WhenPossible: true})
		require.NoError(t, err)
		short, end := context.WithTimeout(t.Context(), 30*time.Second)
		defer end()
		require.ErrorContains(t, d.Wait(short), "bring those nodes back")
		c.Start(gone[1])
		require.NoError(t, d.Wait(t.Context()))
	})
}
