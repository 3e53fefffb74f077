package topic_test

import (
	"io"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

// sendAs sends a batch of one record to a partition's leader, as a producer.
func (n *node) sendAs(top metastore.Topic, p topic.ProducerBatch, value string) (storage.Offset, error) {
	t := n.cluster.t
	t.Helper()
	batch := encode(topic.BatchInfo{Incarnation: top.Incarnation, Producer: p}, time.Now(), record(value))
	response, err := n.topics.HandleCall(t.Context(), 99, "topic.produce", topic.EncodeProduce(top.Incarnation, 0, batch))
	require.NoError(t, err)
	return topic.DecodeProduced(response)
}

// hands has a node lead a partition 0.
func (c *cluster) hands(top metastore.Topic, to raftlog.NodeID) {
	c.t.Helper()
	settle(c.t, "it leads", func() bool {
		l := c.leader(top.Name, 0)
		if l.id == to {
			return true
		}
		id, _ := c.partition(top.Name, 0).On(to)
		_ = l.topics.OpenGroup(top.Incarnation, 0).TransferLeadership(c.t.Context(), id)
		return false
	})
}

// Property: R24, P4 (red: the state was left out; it was said to be of the last entry; what producers did behind it was forgotten)
//
// A log that no longer has its first entries is filled: what producers did in them
// comes with it, as of an entry, and what they did behind it is in the entries. The
// new replica leads, and knows each batch and each epoch.
func TestAFillBringsWhatProducersDid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newMoves(t, 4, 1, nil)
		c.upgradeTo(3)
		top, err := c.node(1).topics.CreateTopic(t.Context(), "orders", metastore.TopicConfig{Retention: metastore.Retention{Bytes: 2 << 20}})
		require.NoError(t, err)
		to := c.off("orders", 0)
		leader := c.leader("orders", 0)
		sent := func(n *node, p topic.ProducerBatch, value string) storage.Offset {
			t.Helper()
			got, err := n.sendAs(top, p, value)
			require.NoError(t, err)
			return got
		}
		early := sent(leader, topic.ProducerBatch{ID: 77, Epoch: 5}, "early")
		sent(leader, topic.ProducerBatch{ID: 78, Epoch: 3}, "replaced")
		sent(leader, topic.ProducerBatch{ID: 78, Epoch: 4}, "replacing")
		load := c.node(2).produceSteadily(t, "orders", 0, 20_000)
		pass(2 * time.Second)
		load.end(t)
		log := func(id raftlog.NodeID) *storage.Log { return c.node(id).topics.OpenGroup(top.Incarnation, 0).Log() }
		settle(t, "its front is gone", func() bool { return log(leader.id).Start().Offset > 10 })
		pass(10 * time.Second) // and stays as it is
		late := sent(leader, topic.ProducerBatch{ID: 77, Epoch: 5, First: 1}, "late")
		state := log(leader.id).Position()
		require.Greater(t, state.LastIndex, state.AuxIndex, "the last batch is behind the state")

		from := slices.DeleteFunc(c.on("orders", 0), func(id raftlog.NodeID) bool { return id == leader.id })[0]
		require.NoError(t, c.node(to).topics.MoveReplica(t.Context(), at("orders", 0), from, to))
		c.moved("orders", 0)
		c.awaitConf(t, top, 0)
		require.EqualValues(t, 1, c.node(to).topics.Stats().Fills)
		require.Positive(t, log(to).Start().Offset)
		require.Equal(t, state.AuxIndex, log(to).Position().AuxIndex)
		of := func(id raftlog.NodeID) []byte {
			data, err := log(id).ReadAux(state.AuxIndex)
			require.NoError(t, err)
			return data
		}
		require.Equal(t, of(leader.id), of(to))

		c.hands(top, to)
		for _, restarted := range []bool{false, true} {
			if restarted {
				c.crash(to, simfs.Strict)
				c.start(to)
				c.hands(top, to)
			}
			n := c.node(to)
			require.Equal(t, early, sent(n, topic.ProducerBatch{ID: 77, Epoch: 5}, "early"), "of before the state")
			require.Equal(t, late, sent(n, topic.ProducerBatch{ID: 77, Epoch: 5, First: 1}, "late"), "of behind it")
			_, err = n.sendAs(top, topic.ProducerBatch{ID: 78, Epoch: 3, First: 1}, "replaced")
			var fenced *topic.FencedError
			require.ErrorAs(t, err, &fenced)
			require.Equal(t, topic.FencedError{Producer: 78, Epoch: 3, Current: 4}, *fenced)
			_, err = n.sendAs(top, topic.ProducerBatch{ID: 77, Epoch: 5, First: 9}, "too early")
			require.ErrorAs(t, err, new(*topic.OutOfOrderError))
		}
		next := log(to).NextOffset()
		require.Equal(t, next, sent(c.node(to), topic.ProducerBatch{ID: 77, Epoch: 5, First: 2}, "new"))
		require.Equal(t, next+1, sent(c.node(to), topic.ProducerBatch{ID: 78, Epoch: 4, First: 1}, "new"))
	})
}

// Property: R24 (red: the entry in the state was not compared)
//
// A sender says that its producer state is of the entry before the one that it is of:
// nothing of that becomes the replica's, and another sender gives what is right.
func TestAFillWithTheStateOfAnotherEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newMoves(t, 4, 1, nil)
		top, err := c.node(1).topics.CreateTopic(t.Context(), "orders", metastore.TopicConfig{})
		require.NoError(t, err)
		load := c.node(2).produceSteadily(t, "orders", 0, 40_000)
		pass(time.Second)
		want := load.end(t)
		to, liar := c.off("orders", 0), c.leader("orders", 0).id
		aux := c.node(liar).topics.OpenGroup(top.Incarnation, 0).Log().Position().AuxIndex
		require.Greater(t, aux, storage.Index(1))
		var wrong, ended atomic.Int64
		c.onStream(func(from, _ raftlog.NodeID, w io.Writer) io.Writer {
			if from != liar {
				return w
			}
			return topic.ChangeFill(w, func(aux *storage.Index) { *aux--; wrong.Add(1) }, func() { ended.Add(1) })
		})
		require.NoError(t, c.node(to).topics.MoveReplica(t.Context(), at("orders", 0), c.on("orders", 0)[2], to))
		c.moved("orders", 0)
		c.awaitConf(t, top, 0)
		require.Positive(t, wrong.Load())
		require.Positive(t, ended.Load(), "it gave all")
		requireOn(t, c.node(to), top, 0, want)
		require.Equal(t, aux, c.node(to).topics.OpenGroup(top.Incarnation, 0).Log().Position().AuxIndex)
		require.True(t, slices.ContainsFunc(c.node(to).topics.Status(), func(s topic.PartitionStatus) bool { return s.Topic == "orders" && s.Err == nil }))
	})
}
