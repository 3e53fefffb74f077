package stele_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
)

// A learner gets its vote when the leader has led for 12 s, not before, and whoever
// asks why learns it on any node. An observer never gets one.
//
// Property: J10, J11 (red: a leader of one second promoted; an observer was promoted)
func TestAVoteHasToWait(t *testing.T) {
	observer := ""
	testcluster.Run(t, testcluster.Options{Seed: 81, Config: func(c *stele.Config) { c.Observer = c.Name == observer }}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		c.Sleep(5 * time.Second)
		why := func(at, of int) stele.Deferral {
			var no *stele.NoVoteError
			if err := c.Node(at).Promote(t.Context(), c.Member(of).Name); err != nil {
				require.ErrorAs(t, err, &no)
				return no.Why
			}
			return 0
		}
		fourth := c.Add()
		c.Start(fourth)
		c.WaitReady()
		leader := (c.MetadataLeader() + 1) % 3
		require.NoError(t, c.Node(fourth).TransferLeadership(t.Context(), stele.TopicPartition{}, c.Member(leader).Name))
		began := time.Now()
		for time.Since(began) < 11900*time.Millisecond {
			require.Equal(t, stele.SeatLearner, seat(c, leader, fourth), "after %v", time.Since(began))
			require.Equal(t, stele.DeferredNewLeader, why((leader+1)%3, fourth))
			c.Sleep(100 * time.Millisecond)
		}
		c.Kill(fourth)
		c.Start(fourth) // it asks after a restart, too
		c.Eventually(func() bool { return seat(c, leader, fourth) == stele.SeatVoter }, "it has a vote")
		require.Zero(t, why((leader+2)%3, fourth), "a voter may be asked for again")

		fifth := c.Add()
		observer = c.Member(fifth).Name
		c.Start(fifth)
		c.WaitReady()
		for range 60 {
			c.Sleep(time.Second)
			require.Equal(t, stele.SeatLearner, seat(c, leader, fifth))
		}
		require.Equal(t, stele.DeferredObserver, why(fourth, fifth))
		err := c.Node(0).Promote(t.Context(), observer)
		require.Equal(t, stele.OutcomeRefused, stele.OutcomeOf(err))
	})
}

// A voter that no member is does not go by itself, and is not passed over in
// silence. Forget takes it out, asked for on any node; it takes out nothing else.
//
// Property: D6 (red: a member was forgotten)
func TestAStrayIsForgotten(t *testing.T) {
	core, logs := observer.New(zap.ErrorLevel)
	testcluster.Run(t, testcluster.Options{Seed: 82, Logger: zap.New(core)}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "orders", 2)
		c.Sleep(15 * time.Second)
		const stray = stele.ReplicaID(4242)
		leader := c.MetadataLeader()
		require.NoError(t, c.Node(leader).AddStray(t.Context(), stray))
		c.Sleep(time.Minute)
		asked := (leader + 1) % 3
		at, err := c.Node(asked).DescribeCluster(t.Context())
		require.NoError(t, err)
		require.Equal(t, []stele.ReplicaID{stray}, at.Strays, "nothing takes it out by itself")
		require.Equal(t, 1, logs.FilterMessageSnippet("no member is").Len(), "logged once")

		for _, m := range at.Members {
			var refused *stele.ForgetError
			require.ErrorAs(t, c.Node(asked).Forget(t.Context(), m.Replica), &refused)
		}
		var refused *stele.ForgetError
		require.ErrorAs(t, c.Node(asked).Forget(t.Context(), 777), &refused, "it is in no configuration")

		done := make(chan error, 1)
		go func() { done <- c.Node(asked).Forget(t.Context(), stray) }()
		c.Sleep(time.Millisecond)
		c.PowerLoss(leader)
		if err := <-done; err != nil { // the leader died over it: it may have happened
			require.NotEqual(t, stele.OutcomeRefused, stele.OutcomeOf(err), "%v", err)
		}
		c.Start(leader)
		c.WaitReady()
		c.Eventually(func() bool {
			err := c.Node(asked).Forget(t.Context(), stray)
			var out *stele.ForgetError
			return err == nil || stele.OutcomeOf(err) == stele.OutcomeRefused && errors.As(err, &out)
		}, "asked again it is done, or was")
		at, err = c.Node(asked).DescribeCluster(t.Context())
		require.NoError(t, err)
		require.Empty(t, at.Strays)
	})
}
