package stele_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
	"github.com/stelelog/stele/raftlog"
)

// departure is how far a member is on its way out, as another one knows it.
func departure(c *testcluster.Cluster, at int, node stele.NodeID) stele.Departure {
	c.T.Helper()
	for _, m := range c.Node(at).Members() {
		if m.Node == node {
			return m.Liveness.Departure
		}
	}
	c.T.Fatalf("%v is no member", node)
	return 0
}

// A decommission is taken back at each of its steps, under load: before anything
// moved; while a replica that comes in the node's place learns, and while both are of
// a joint configuration; when the node has no partition any more; when it waits for the
// node, which is dead, to say that it has answered all; when the node handed the
// metadata over; and when its removal would be next. Each time the node stays a voter,
// takes in records, and gets its share of the partitions again; nobody is on the way
// out, no move is left over, and nothing that was acknowledged is lost.
//
// Property: D1, D3 (red: the door of a node that is called back stayed shut; a dead node that was not asked counted as one that has answered)
func TestADecommissionIsTakenBackAtEachStep(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Seed: 113}, func(c *testcluster.Cluster) {
		t := c.T
		fourth, l, load := grown(c)
		load.Stop()
		load = l.StartLoad(1, 4, 200*time.Millisecond)
		settled := func(at, leaver int) bool {
			return holds(c, leaver, "orders") == 3 && moving(c, at, "orders") == 0
		}
		c.Eventually(func() bool { return settled(0, fourth) }, "all have their share")
		var groups []raftlog.GroupID
		for _, p := range partitions(c, 0, "orders") {
			groups = append(groups, p.Group)
		}
		until := func(is func(raftlog.ConfState) bool) {
			t.Helper()
			for begun := time.Now(); !slices.ContainsFunc(groups, func(g raftlog.GroupID) bool { return is(c.Conf(g)) }); c.Sleep(100 * time.Microsecond) {
				require.Less(t, time.Since(begun), time.Minute)
			}
		}
		learns := func(conf raftlog.ConfState) bool { return len(conf.Learners) > 0 }
		joint := func(conf raftlog.ConfState) bool { return len(conf.VotersOutgoing) > 0 }
		for _, step := range []struct {
			name  string
			leads bool // the metadata; else who is asked does
			until func(d *stele.Decommission, leaver int)
		}{
			{"it has just begun", true, func(*stele.Decommission, int) {}},
			{"a learner is filled", true, func(*stele.Decommission, int) { until(learns) }},
			{"a configuration is joint", false, func(*stele.Decommission, int) { until(joint) }},
			{"no partition is left", false, func(d *stele.Decommission, _ int) {
				progresses(c, d, func(at stele.Progress) bool { return at.Replicas == 0 })
			}},
			{"it is dead, and has not answered", false, func(d *stele.Decommission, leaver int) {
				c.PowerLoss(leaver) // before it was asked
				progresses(c, d, func(at stele.Progress) bool { return at.Replicas == 0 })
				c.Sleep(40 * time.Second)
			}},
			{"it has handed the metadata over", true, func(_ *stele.Decommission, leaver int) {
				for at := leaver; at == leaver || at < 0; at = c.MetadataLeader() {
					c.Sleep(time.Millisecond)
				}
			}},
			{"its removal is next", false, func(d *stele.Decommission, _ int) {
				progresses(c, d, func(at stele.Progress) bool { return at.Step == stele.StepMark })
			}},
		} {
			leaver := c.MetadataLeader()
			asked := (leaver + 1) % c.Size()
			if !step.leads {
				asked, leaver = leaver, asked
			}
			node := c.Node(leaver).Status().Node
			d := decommission(t.Context(), c, asked, leaver, stele.DecommissionOptions{})
			step.until(d, leaver)
			require.Equal(t, stele.Drains, departure(c, asked, node), step.name)
			require.NoError(t, d.Cancel(t.Context()), step.name)
			require.ErrorIs(t, d.Wait(t.Context()), stele.ErrDecommissionCancelled, step.name)
			if c.Node(leaver) == nil {
				c.Start(leaver)
			}
			c.Eventually(func() bool { return c.Node(leaver).Readiness().Ready() && settled(asked, leaver) }, step.name+": it has its share again")
			c.Sleep(5 * time.Second)
			for i := range c.Size() {
				require.Equal(t, stele.Stays, departure(c, i, node), step.name)
				require.Empty(t, c.Node(i).Decommissions(), step.name)
				require.Equal(t, stele.SeatVoter, seat(c, i, leaver), step.name)
			}
			require.True(t, settled(asked, leaver), "%s: it lost them again", step.name)
			p, err := c.Node(leaver).NewProducer(stele.ProducerConfig{})
			require.NoError(t, err)
			for partition := range uint32(len(groups)) {
				_, err := p.ProduceTo(t.Context(), "orders", partition, stele.Record{Value: fmt.Appendf(nil, "%s %d", step.name, partition)})
				require.NoError(t, err, "%s: %s takes records in", step.name, c.Member(leaver).Name)
			}
			require.NoError(t, p.Close(t.Context()))
		}
		load.Stop()
		for i := range c.Size() {
			l.Verify(i)
		}
	})
}

// progresses waits until a decommission, which goes on, is as far as that.
func progresses(c *testcluster.Cluster, d *stele.Decommission, is func(stele.Progress) bool) {
	c.T.Helper()
	for begun := time.Now(); ; c.Sleep(time.Millisecond) {
		at, err := d.Progress()
		require.NoError(c.T, err)
		require.False(c.T, at.Done, "it was missed")
		if is(at) {
			return
		}
		require.Less(c.T, time.Since(begun), 2*time.Minute, "%v", at)
	}
}
