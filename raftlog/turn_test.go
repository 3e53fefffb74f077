package raftlog_test

import (
	"testing"
	"time"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/raftlog"
	"github.com/stretchr/testify/require"
)

// What is called in a turn comes before the proposals of that turn, unless it
// takes too long: then they are not held up.
func TestOnTurn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 1, 1)
		defer c.stopAll()
		g := c.nodes[0].groups[1]
		told := make(chan string, 10)
		tell := func(what string) func() { return func() { told <- what } }
		held, release := make(chan struct{}), make(chan struct{})
		require.True(t, g.OnTurn(func() { close(held); <-release }))
		<-held
		propose := func() {
			g.Propose(nil, func(p raftlog.Proposal) { told <- p.Err.Error() }) // refused when it is taken in
		}
		require.True(t, g.OnTurn(propose))
		require.True(t, g.OnTurn(tell("second")))
		close(release)
		require.Equal(t, "second", <-told)
		require.Contains(t, <-told, raftlog.ErrEmptyProposal.Error())

		require.True(t, g.OnTurn(func() {
			require.True(t, g.OnTurn(propose))
			require.True(t, g.OnTurn(func() { <-clock.System().NewTimer(time.Second).C() }))
			require.True(t, g.OnTurn(tell("fourth")))
		}))
		require.Contains(t, <-told, raftlog.ErrEmptyProposal.Error())
		require.Equal(t, "fourth", <-told)
		require.Empty(t, told)
	})
}

// What was accepted is called once, however the host ends.
//
// Property: P9 (red: what was due at the end forgotten)
func TestOnTurnAtTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 1, 1)
		defer c.stopAll()
		n := c.nodes[0]
		g := n.groups[1]
		held, release := make(chan struct{}), make(chan struct{})
		require.True(t, g.OnTurn(func() { close(held); <-release }))
		<-held
		called, ended := make(chan error, 30), make(chan error, 30)
		for range 10 {
			require.True(t, g.OnTurn(func() {
				called <- nil
				g.Propose([]byte("x"), func(p raftlog.Proposal) { ended <- p.Err })
				<-clock.System().NewTimer(time.Second).C() // a turn has room for one of these
			}))
		}
		closed := make(chan struct{})
		go func() { n.host.Abort(); close(closed) }()
		close(release)
		<-closed
		for range 10 {
			require.NoError(t, <-called)
			if err := <-ended; err != nil {
				c.outcome(err)
			}
		}
		require.Empty(t, called)
		require.False(t, g.OnTurn(func() { t.Error("called") }))
	})
}

// One that panics is a bug of one group's user.
//
// Property: L1 (red: no recover around it)
func TestOnTurnPanics(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 1, 2)
		defer c.stopAll()
		n := c.nodes[0]
		done := make(chan struct{})
		require.True(t, n.groups[1].OnTurn(func() { panic("a bug") }))
		require.True(t, n.groups[2].OnTurn(func() { close(done) }))
		<-done
		c.must(2, "x")
		require.Equal(t, raftlog.RoleResigned, n.groups[1].Status().Role)
		require.NoError(t, n.host.Failed())
	})
}
