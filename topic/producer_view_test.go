package topic_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/topic"
)

// What producers know of a topic, on each node, outlives any number of heartbeats
// that are recorded. A member that moved, is dead, lives again or drains has them
// look anew.
//
// Property: H7 (red: every heartbeat was loud; the end of a dead mark was quiet)
func TestHeartbeatsKeepTheViewsOfProducers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newMoves(t, 3, 1, nil)
		c.create("orders", 2)
		var producers []*topic.Producer
		for _, n := range c.running() {
			producers = append(producers, producer(t, n, topic.ProducerConfig{}))
		}
		learn := func() {
			t.Helper()
			for _, p := range producers {
				_, err := p.Produce(t.Context(), "orders", record("a"))
				require.NoError(t, err)
			}
		}
		know := func() (n int) {
			synctest.Wait()
			for _, p := range producers {
				if p.Knows("orders") {
					n++
				}
			}
			return n
		}
		leader := func() *metastore.Store {
			var found *metastore.Store
			settle(t, "who leads", func() bool {
				for _, n := range c.running() {
					if id, _ := n.meta.Leader(); id == n.id {
						found = n.meta
					}
				}
				return found != nil
			})
			return found
		}
		member := func(id raftlog.NodeID) metastore.Member {
			m, ok := leader().Member(id)
			require.True(t, ok)
			return m
		}
		hear := func(id raftlog.NodeID) {
			t.Helper()
			m := member(id)
			errs, err := leader().RecordHeartbeats(t.Context(), []metastore.Heartbeat{{Node: id, Nonce: m.Nonce, Newest: metastore.NewestOf(2)}})
			require.NoError(t, err)
			require.NoError(t, errs[0])
			for _, n := range c.running() { // everywhere
				require.NoError(t, n.meta.Barrier(t.Context()))
				now, _ := n.meta.Member(id)
				require.Greater(t, now.Liveness.Stamp, m.Liveness.Stamp)
			}
		}
		hear(2) // says first which release it is
		learn()
		require.Equal(t, 3, know())
		for range 10 {
			hear(2)
			require.Equal(t, 3, know())
		}
		learn()
		for _, change := range []struct {
			what string
			do   func()
		}{
			{"it moved", func() { require.NoError(t, leader().SetAddress(t.Context(), 2, member(2).Nonce, "moved:1")) }},
			{"it is dead", func() { c.markDead(2) }},
			{"it lives", func() { hear(2) }},
			{"it drains", func() { c.depart(2, metastore.Drains) }},
		} {
			learn()
			require.Equal(t, 3, know())
			change.do()
			for _, n := range c.running() {
				require.NoError(t, n.meta.Barrier(t.Context()))
			}
			require.Zero(t, know(), change.what)
		}
		learn()
	})
}
