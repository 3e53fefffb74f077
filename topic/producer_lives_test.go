package topic_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/topic"
)

// TestALateLookUpChangesNothing: a goroutine found the topic's first life and
// goes on in the second one.
//
// Property: P4 (red: a view was replaced by whatever was found; named ones: TestAWayThatEndedIsNotBegunAgain)
func TestALateLookUpChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 3, 1)
		first := c.create("orders", 1)
		n := c.node(1)
		p := producer(t, n, topic.ProducerConfig{})
		_, err := p.Produce(t.Context(), "orders", record("of the first life"))
		require.NoError(t, err)
		require.NoError(t, n.topics.DeleteTopic(t.Context(), "orders"))
		require.False(t, p.See(first), "it is gone")
		second := c.create("orders", 1)
		want := []string{"1", "2", "3"}
		for _, value := range want {
			_, err = p.Produce(t.Context(), "orders", record(value))
			require.NoError(t, err)
			require.False(t, p.See(first), "there is a newer one")
		}
		require.True(t, p.See(second))
		require.Equal(t, want, n.dump("orders", 0))
	})
}

// TestAWayThatEndedIsNotBegunAgain: what numbered batches of a partition once
// does not number others from the beginning.
//
// Property: P4 (red: the next lane of a partition began with the identity of the last; fail-over: TestNodesFailUnderLoad)
func TestAWayThatEndedIsNotBegunAgain(t *testing.T) {
	for _, name := range []string{"", "biller"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := startCluster(t, 3, 1)
				c.create("orders", 1)
				leader := c.leader("orders", 0)
				p := producer(t, c.node(leader.id%3+1), topic.ProducerConfig{Name: name})
				var wrong atomic.Bool
				c.mu.Lock()
				c.meet = func(_, _ raftlog.NodeID, method string) error {
					if method == "topic.produce" && wrong.Swap(false) {
						return topic.ErrTopicDeleted // which it is not
					}
					return nil
				}
				c.mu.Unlock()
				_, err := p.Produce(t.Context(), "orders", record("1"))
				require.NoError(t, err)
				for _, value := range []string{"2", "3"} {
					wrong.Store(true)
					_, err = p.Produce(t.Context(), "orders", record("lost"))
					require.ErrorIs(t, err, topic.ErrTopicDeleted)
					_, err = p.Produce(t.Context(), "orders", record(value))
					require.NoError(t, err)
				}
				require.Equal(t, []string{"1", "2", "3"}, leader.dump("orders", 0))
			})
		})
	}
}

// Property: I10 (red: a producer forgot a topic only when its name was looked up again; 100,000 of them, files, metrics: TestChurn of the root)
func TestProducersForgetDeletedTopics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 3, 1)
		c.create("kept", 1)
		p := producer(t, c.node(1), topic.ProducerConfig{})
		_, err := p.Produce(t.Context(), "kept", record("x"))
		require.NoError(t, err)
		require.Equal(t, 2, p.Remembers())
		for i := range 10 {
			name := fmt.Sprint("passing-", i)
			c.create(name, 2)
			for at := range uint32(2) {
				_, err := p.ProduceTo(t.Context(), name, at, record("x"))
				require.NoError(t, err)
			}
			require.NoError(t, c.node(2).topics.DeleteTopic(t.Context(), name))
		}
		settle(t, "forgotten", func() bool { return p.Remembers() == 2 })
	})
}
