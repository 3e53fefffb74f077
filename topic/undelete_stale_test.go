package topic_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/topic"
)

// Property: I11, I4 (red: it was looked up in what the node knew, and a topic that was gone was deleted at once)
//
// A node is cut off while a name is deleted and created anew. What it is asked to
// delete then, before it knows, is the topic that there is.
func TestADeletionIsOfTheTopicThatThereIs(t *testing.T) {
	for _, grace := range []time.Duration{0, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			c, _ := newUndeletes(t, 3, 1)
			old := c.create("orders", 1)
			lead, _ := c.node(1).meta.Leader()
			var n, late *node
			for _, other := range c.running() {
				switch {
				case other.id != lead && other != c.leader("orders", 0):
					late = other
				default:
					n = other
				}
			}
			c.isolate(late.id, true)
			require.NoError(t, n.topics.DeleteTopic(t.Context(), "orders"))
			top := c.createAt(n, "orders")
			c.isolate(late.id, false)
			known, err := late.meta.Topic("orders")
			require.NoError(t, err)
			require.Equal(t, old.Incarnation, known.Incarnation, "it does not know")
			require.NoError(t, late.topics.DeleteTopic(t.Context(), "orders", topic.WithGrace(grace)))
			now, err := late.topics.DescribeTopic(t.Context(), "orders")
			if grace == 0 {
				require.ErrorIs(t, err, metastore.ErrTopicNotFound)
				c.createAt(late, "orders")
				return
			}
			require.NoError(t, err)
			require.Equal(t, top.Incarnation, now.Incarnation)
			require.Equal(t, metastore.TopicRetired, now.State)
		})
	}
}

// createAt creates a topic of one partition from a node.
func (c *cluster) createAt(n *node, name string) metastore.Topic {
	c.t.Helper()
	top, err := n.topics.CreateTopic(c.t.Context(), name, metastore.TopicConfig{Partitions: 1})
	require.NoError(c.t, err)
	return top
}

// Property: I11, P9 (red: a topic that was deleted once more kept the number of its deletion; a deletion that was overtaken ended with an unknown outcome)
//
// What was asked to bring a topic back comes late, after the topic was deleted again
// while it was retired still: it changes nothing. And two deletions side by side, of
// which one overtakes the other, both end well.
func TestALateUndeleteOfARetiredTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newUndeletes(t, 3, 1)
		top := c.create("orders", 1)
		n := c.node(1)
		require.NoError(t, n.topics.DeleteTopic(t.Context(), "orders", topic.WithGrace(time.Minute)))
		first := n.describe(t, "orders").Deletion
		require.NoError(t, c.node(2).topics.DeleteTopic(t.Context(), "orders", topic.WithGrace(time.Second)))
		require.ErrorIs(t, n.meta.RestoreTopic(t.Context(), top.Incarnation, first.Number), metastore.ErrStale)
		now := c.node(2).describe(t, "orders")
		require.Equal(t, metastore.TopicRetired, now.State)
		require.Equal(t, metastore.Deletion{Number: first.Number + 1, First: first.Number, At: first.At, Until: first.Until}, now.Deletion)
		_, err := n.topics.UndeleteTopic(t.Context(), "orders")
		require.NoError(t, err)
		_, err = producer(t, n, topic.ProducerConfig{}).Produce(t.Context(), "orders", record("new"))
		require.NoError(t, err)

		ended := make(chan error, 9)
		for i := range cap(ended) {
			go func() {
				pass(time.Duration(i) * time.Millisecond)
				ended <- c.running()[i%3].topics.DeleteTopic(t.Context(), "orders", topic.WithGrace(time.Minute))
			}()
		}
		for range cap(ended) {
			require.NoError(t, <-ended)
		}
		require.Equal(t, metastore.TopicRetired, n.describe(t, "orders").State)
		require.Greater(t, n.describe(t, "orders").Deletion.Number, now.Deletion.Number+1, "one overtook another one")
	})
}

// Property: P9, I11 (red: the number that a topic is closed for followed its last deletion; the finisher began to wait anew with each number)
//
// Partitions are closed slowly, and somebody deletes the topic again and again, each
// time without waiting for the end of that: it is deleted all the same. What was asked
// meanwhile to bring it back is passed, and whoever asks now gets it.
func TestATopicIsDeletedHoweverOftenItIsAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newUndeletes(t, 3, 1)
		var top metastore.Topic
		for i, alone := 0, true; alone; i++ { // no node is to close all partitions by itself
			require.Less(t, i, 20)
			top = c.create(fmt.Sprint("orders-", i), 3)
			alone = c.leader(top.Name, 0) == c.leader(top.Name, 1) && c.leader(top.Name, 0) == c.leader(top.Name, 2)
		}
		n := c.node(1)
		c.mu.Lock()
		c.meet = func(from, _ raftlog.NodeID, method string) error {
			switch {
			case method == "topic.close" && from == n.id:
				return raftlog.Retry(errors.New("it takes longer than the caller waits"))
			case method == "topic.close":
				pass(3 * time.Second)
			}
			return nil
		}
		c.mu.Unlock()
		began := time.Now()
		for err := error(raftlog.ErrOutcomeUnknown); err != nil; {
			require.Less(t, time.Since(began), 30*time.Second)
			require.ErrorIs(t, err, raftlog.ErrOutcomeUnknown)
			ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
			err = n.topics.DeleteTopic(ctx, top.Name, topic.WithGrace(time.Hour))
			cancel()
		}
		now := n.describe(t, top.Name)
		require.Equal(t, metastore.TopicRetired, now.State)
		require.Greater(t, now.Deletion.Number, now.Deletion.First+3)
		for late := now.Deletion.First; late < now.Deletion.Number; late++ {
			require.ErrorIs(t, n.meta.RestoreTopic(t.Context(), top.Incarnation, late), metastore.ErrStale)
		}
		_, err := n.topics.UndeleteTopic(t.Context(), top.Name)
		require.NoError(t, err)
		for part := range uint32(3) {
			_, err = producer(t, n, topic.ProducerConfig{}).ProduceTo(t.Context(), top.Name, part, record("new"))
			require.NoError(t, err)
		}
	})
}

// Property: P9 (red: a partition that was sealed was asked again and again to open, until the call's time was over; one that is sealed since the topic is being deleted was taken for one of which that was lost)
//
// A partition of a topic that is retired has a seal, of which the metadata do not know:
// it cannot be brought back, which is said at once. It can be deleted; and who brings it
// back while that happens is not told that it is damaged.
func TestATopicWithASealIsNotBroughtBack(t *testing.T) {
	for _, deleting := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c, _ := newUndeletes(t, 3, 1)
			top := c.create("orders", 2)
			lead := c.leader("orders", 1)
			n := c.node(lead.id%3 + 1)
			require.NoError(t, n.topics.DeleteTopic(t.Context(), "orders", topic.WithGrace(time.Hour)))
			seal := func() {
				response, err := lead.topics.HandleCall(t.Context(), 99, "topic.seal", topic.EncodeSeal(top.Incarnation, 1))
				require.NoError(t, err)
				require.NoError(t, topic.DecodeResponse(response))
			}
			if deleting {
				c.mu.Lock()
				c.meet = func(from, to raftlog.NodeID, method string) error {
					if from == n.id && to == lead.id && method == "topic.close" {
						require.NoError(t, lead.meta.SetTopicDeleting(t.Context(), top.Incarnation))
						seal()
					}
					return nil
				}
				c.mu.Unlock()
			} else {
				seal()
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := n.topics.UndeleteTopic(ctx, "orders")
			require.NoError(t, ctx.Err())
			if deleting {
				require.Equal(t, raftlog.OutcomeUnknown, raftlog.OutcomeOf(err), "%v", err)
				require.ErrorContains(t, err, "deleted otherwise")
				return
			}
			require.Equal(t, raftlog.OutcomeRefused, raftlog.OutcomeOf(err), "%v", err)
			require.ErrorContains(t, err, "delete the topic")
			require.Equal(t, metastore.TopicRestoring, n.describe(t, "orders").State)
			require.NoError(t, n.topics.DeleteTopic(t.Context(), "orders"))
			c.createAt(n, "orders")
		})
	}
}

// Property: P9, C9 (red: the clocks were asked first)
//
// What can never be is said before it is asked whose clock is right: a cluster of
// another version does not even know the question.
func TestAGraceThatCannotBeIsRefusedWhateverTheClocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clocks := map[raftlog.NodeID]*atomic.Int64{1: {}, 2: {}, 3: {}}
		c := newMoves(t, 3, 1, func(cfg *topic.Config) { cfg.Clock = setClock{clock.System(), clocks[cfg.Node]} })
		c.create("orders", 1)
		n := c.node(1)
		clocks[1].Store(int64(2 * time.Hour))
		var version *metastore.ClusterVersionError
		require.ErrorAs(t, n.topics.DeleteTopic(t.Context(), "orders", topic.WithGrace(time.Minute)), &version)
		require.Equal(t, metastore.ClusterVersionError{Needs: 3, Has: 2}, *version)
		var invalid *metastore.InvalidError
		require.ErrorAs(t, n.topics.DeleteTopic(t.Context(), "orders", topic.WithGrace(time.Millisecond)), &invalid)
		require.Equal(t, "DeleteGrace", invalid.Field)
		require.Equal(t, metastore.TopicActive, n.describe(t, "orders").State)
	})
}

// Property: S9, X1 (red: nothing was compared; only whether it was set ahead was)
//
// The clock of a node is set while it asks the others for theirs, after they have
// answered that it is right: the grace is not counted from what it says then.
func TestAClockThatIsSetWhileTheOthersAreAsked(t *testing.T) {
	for _, by := range []time.Duration{2 * time.Hour, -2 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			c, clocks := newUndeletes(t, 5, 1)
			c.create("orders", 1)
			n := c.node(1)
			var asked atomic.Int64
			c.mu.Lock()
			c.meet = func(from, to raftlog.NodeID, method string) error {
				if from == n.id && method == "topic.time" && asked.Add(1) == 4 {
					pass(time.Second)
					clocks[n.id].Store(int64(by))
					return raftlog.Retry(errors.New("the last one says nothing"))
				}
				return nil
			}
			c.mu.Unlock()
			err := n.topics.DeleteTopic(t.Context(), "orders", topic.WithGrace(time.Minute))
			require.ErrorContains(t, err, "clock was set")
			require.Equal(t, raftlog.OutcomeRetry, raftlog.OutcomeOf(err))
			require.Equal(t, metastore.TopicActive, n.describe(t, "orders").State)
			clocks[n.id].Store(0)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			require.NoError(t, n.topics.DeleteTopic(ctx, "orders", topic.WithGrace(time.Minute)))
			require.Less(t, time.Since(n.describe(t, "orders").Deletion.At.Time()).Abs(), time.Minute)
		})
	}
}
