package stele_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
)

// A node leaves that took a record in which it cannot deliver: it does not reach who
// leads the partition. It takes in no more and stays a member, whoever leads the
// metadata, and every node says what it waits for; once it reaches the partition the
// record is answered, and it goes.
//
// Property: D1 (red: a node that drains said that nothing is left; it went on to take records in; Progress left out the step, or what the leader, or the node itself, knows of it)
func TestANodeThatLeavesDeliversWhatItTookIn(t *testing.T) {
	all := newChronicle()
	config := func(cfg *stele.Config) { cfg.NoLeaderRebalance, cfg.Events = true, all.events(cfg.Name) }
	testcluster.Run(t, testcluster.Options{Nodes: 5, Seed: 106, Config: config}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "orders", 1)
		c.Sleep(20 * time.Second) // the cluster's version is raised
		orders := stele.TopicPartition{Topic: "orders"}
		var holder, without []int
		for i := range c.Size() {
			if holds(c, i, "orders") > 0 {
				holder = append(holder, i)
			} else {
				without = append(without, i)
			}
		}
		require.Len(t, without, 2)
		leaver, leader, asked := without[0], holder[0], holder[1]
		require.NoError(t, c.Node(leader).TransferLeadership(t.Context(), orders, c.Member(leader).Name))
		require.NoError(t, c.Node(leader).TransferLeadership(t.Context(), stele.TopicPartition{}, c.Member(without[1]).Name))

		p, err := c.Node(leaver).NewProducer(stele.ProducerConfig{})
		require.NoError(t, err)
		_, err = p.Produce(t.Context(), "orders", stele.Record{Value: []byte("first")})
		require.NoError(t, err)
		reach := func(change func(from, to string)) {
			change(c.Member(leaver).Addr, c.Member(leader).Addr)
			change(c.Member(leader).Addr, c.Member(leaver).Addr)
		}
		reach(c.Net.Cut)
		answered := make(chan error, 1)
		go func() {
			_, err := p.Produce(t.Context(), "orders", stele.Record{Value: []byte("second")})
			answered <- err
		}()
		c.Sleep(time.Second)

		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		d := decommission(ctx, c, asked, leaver, stele.DecommissionOptions{})
		for range 2 {
			c.Sleep(time.Minute)
			at, err := d.Progress()
			require.NoError(t, err)
			require.False(t, at.Done, "it has a record to deliver")
			require.Equal(t, stele.Drains, at.Departure, "that can be taken back")
			require.Zero(t, at.Replicas)
			_, err = p.Produce(ctx, "orders", stele.Record{Value: []byte("third")})
			require.ErrorIs(t, err, stele.ErrDraining)
			require.Equal(t, stele.OutcomeRetry, stele.OutcomeOf(err))
			require.Empty(t, answered)
			require.Equal(t, stele.StepBacklog, at.Step)
			for i := range c.Size() {
				shown := c.Node(i).Decommissions()
				require.Len(t, shown, 1)
				require.Equal(t, stele.StepBacklog, shown[0].Step, "member %d shows it", i)
				if i == leaver || i == c.MetadataLeader() {
					require.Regexp(t, "drains, with 0 replicas; next: deliver its backlog: it accepted [0-9]+ bytes of records that it has not answered$", shown[0].String())
				} else {
					require.Regexp(t, "; next: deliver its backlog$", shown[0].String(), "member %d does not know more", i)
				}
			}
			steps := all.noticed(stele.NoticeStep)
			require.Contains(t, steps[len(steps)-1].Reason, "deliver its backlog: it accepted")
			require.NoError(t, c.Node(asked).TransferLeadership(ctx, stele.TopicPartition{}, c.Member(asked).Name))
		}
		reach(c.Net.Heal)
		require.NoError(t, d.Wait(ctx))
		select {
		case err := <-answered:
			require.NoError(t, err)
		default:
			require.Fail(t, "it is gone, and has not answered")
		}
		c.Eventually(func() bool { return c.Node(leaver).Readiness().Code == stele.Removed }, "it knows")
		require.Equal(t, []string{"first", "second"}, c.ReadAll(ctx, leader, orders))
	})
}
