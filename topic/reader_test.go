package topic_test

import (
	"fmt"
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

func TestReadersStartWhereTheyAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 3, 1)
		_, err := c.node(1).topics.CreateTopic(t.Context(), "orders", metastore.TopicConfig{Replicas: 1})
		require.NoError(t, err)
		p := producer(t, c.node(1), topic.ProducerConfig{Codec: topic.CodecS2})
		for i := range 20 {
			_, err := p.Produce(t.Context(), "orders", topic.Record{Key: []byte("k"), Value: fmt.Append(nil, "value value value value ", i), Headers: []topic.Header{{Key: "h", Value: fmt.Append(nil, i)}}})
			require.NoError(t, err)
		}
		for _, n := range c.running() { // with the replica and without
			for start, want := range map[topic.Start]storage.Offset{topic.FromStart(): 0, topic.FromOffset(7): 7, topic.FromOffset(20): 20, topic.FromEnd(): 20} {
				r, err := n.topics.NewReader(t.Context(), at("orders", 0), start)
				require.NoError(t, err)
				require.Equal(t, want, r.Offset())
				require.Equal(t, storage.Offset(20), r.HighWatermark())
				r.Close()
			}
			_, err := n.topics.NewReader(t.Context(), at("orders", 0), topic.FromOffset(21))
			var out *topic.OutOfRangeError
			require.ErrorAs(t, err, &out)
			require.Equal(t, topic.OutOfRangeError{Topic: "orders", Offset: 21, End: 20}, *out)
			require.ErrorIs(t, err, raftlog.ErrRefused)
			_, err = n.topics.NewReader(t.Context(), at("nothing", 0), topic.FromStart())
			require.ErrorIs(t, err, metastore.ErrTopicNotFound)

			r, err := n.topics.NewReader(t.Context(), at("orders", 0), topic.FromOffset(5))
			require.NoError(t, err)
			var kept []topic.ReadRecord
			for record, err := range r.Records(t.Context()) {
				require.NoError(t, err)
				if kept = append(kept, record); len(kept) == 8 {
					break
				}
			}
			require.Equal(t, storage.Offset(13), r.Offset())
			v, err := r.Fetch(t.Context(), 1)
			require.NoError(t, err)
			require.True(t, v.Next())
			require.Equal(t, storage.Offset(13), v.Offset())
			require.False(t, v.Next())
			require.NoError(t, v.Err())
			require.Equal(t, storage.Offset(14), v.End())
			for i, record := range kept { // they are the caller's
				require.Equal(t, storage.Offset(5+i), record.Offset)
				require.Equal(t, fmt.Sprint("value value value value ", 5+i), string(record.Value))
				require.Equal(t, fmt.Sprint(5+i), string(record.Headers[0].Value))
			}
			r.Close()
			_, err = r.Fetch(t.Context(), 1)
			require.ErrorIs(t, err, topic.ErrClosed)
			oneOutcome(t, err)
		}
	})
}

func TestReadersWaitAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 3, 1)
		_, err := c.node(1).topics.CreateTopic(t.Context(), "orders", metastore.TopicConfig{Replicas: 1})
		require.NoError(t, err)
		p := producer(t, c.node(1), topic.ProducerConfig{})
		got := make(chan string)
		for _, n := range c.running() {
			r, err := n.topics.NewReader(t.Context(), at("orders", 0), topic.FromEnd())
			require.NoError(t, err)
			defer r.Close()
			go func() {
				for record, err := range r.Records(t.Context()) {
					if err != nil {
						got <- err.Error()
						return
					}
					got <- string(record.Value)
				}
			}()
		}
		pass(time.Minute)
		begun := time.Now()
		_, err = p.Produce(t.Context(), "orders", record("news"))
		require.NoError(t, err)
		for range 3 {
			require.Equal(t, "news", <-got)
		}
		require.Less(t, time.Since(begun), 20*time.Millisecond)
		for _, n := range c.running() {
			c.crash(n.id, simfs.Kill)
		}
		for range 3 {
			require.Contains(t, <-got, "closed")
		}
	})
}

// Property: P3 (red: the reader did not keep the watermark of its start; learners: reader_learner_test.go)
func TestASessionNeverGoesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		c.config = func(cfg *topic.Config) { cfg.CallTimeout, cfg.FetchWait = time.Second, 500*time.Millisecond }
		c.startAll()
		c.create("orders", 1)
		leader := c.leader("orders", 0)
		ids := []raftlog.NodeID{1, 2, 3}
		behind := c.node(ids[int(leader.id)%3])
		reading := c.node(ids[(int(leader.id)+1)%3])
		p := producer(t, leader, topic.ProducerConfig{})
		for i := range 5 {
			_, err := p.Produce(t.Context(), "orders", record(fmt.Sprint(i)))
			require.NoError(t, err)
		}
		pass(time.Second)
		c.isolate(behind.id, true)
		for i := 5; i < 10; i++ {
			_, err := p.Produce(t.Context(), "orders", record(fmt.Sprint(i)))
			require.NoError(t, err)
		}
		r, err := reading.topics.NewReader(t.Context(), at("orders", 0), topic.FromEnd())
		require.NoError(t, err)
		defer r.Close()
		require.Equal(t, storage.Offset(10), r.HighWatermark())
		// Those that have all are gone; the one that is behind is not.
		c.crash(leader.id, simfs.Strict)
		c.isolate(reading.id, true)
		c.isolate(behind.id, false)
		pass(3 * time.Second)
		got := make(chan topic.ReadRecord, 1)
		go func() {
			for record, err := range r.Records(t.Context()) {
				if err == nil {
					got <- record
				}
				return
			}
		}()
		pass(3 * time.Second)
		require.Equal(t, storage.Offset(10), r.HighWatermark())
		c.isolate(reading.id, false)
		_, err = producer(t, reading, topic.ProducerConfig{}).Produce(t.Context(), "orders", record("10"))
		require.NoError(t, err)
		require.Equal(t, storage.Offset(10), (<-got).Offset)
	})
}

func TestOffsetsThatAreNotThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 3, 1)
		_, err := c.node(1).topics.CreateTopic(t.Context(), "orders", metastore.TopicConfig{Partitions: 2, Replicas: 1})
		require.NoError(t, err)
		for range 4 {
			_, err := producer(t, c.node(1), topic.ProducerConfig{}).ProduceTo(t.Context(), "orders", 1, record("x"))
			require.NoError(t, err)
		}
		for _, n := range c.running() { // with the replica and without
			for _, from := range []storage.Offset{-1, -1 << 60, 5, 1 << 60} {
				_, err := n.topics.NewReader(t.Context(), at("orders", 1), topic.FromOffset(from))
				var out *topic.OutOfRangeError
				require.ErrorAs(t, err, &out)
				require.Equal(t, topic.OutOfRangeError{Topic: "orders", Partition: 1, Offset: from, Start: 0, End: 4}, *out)
				saysWhere(t, err, "orders/1", "[0, 4)")
				oneOutcome(t, err)
			}
		}
	})
}

func TestPartitionsThatAreNotThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 3, 1)
		c.create("orders", 2)
		for _, n := range c.running() {
			_, produced := producer(t, n, topic.ProducerConfig{}).ProduceTo(t.Context(), "orders", 2, record("x"))
			_, opened := n.topics.NewReader(t.Context(), at("orders", 2), topic.FromStart())
			for _, err := range []error{produced, opened} {
				var none *topic.NoPartitionError
				require.ErrorAs(t, err, &none)
				require.Equal(t, topic.NoPartitionError{Topic: "orders", Partition: 2, Partitions: 2}, *none)
				saysWhere(t, err, "partition 2: orders has partitions 0 to 1")
				require.ErrorIs(t, err, raftlog.ErrRefused)
				require.NotErrorIs(t, err, metastore.ErrTopicNotFound)
				oneOutcome(t, err)
			}
		}
		// A node that has not heard of the topic's next life asks before it refuses.
		leads, _ := c.node(1).meta.Leader()
		deaf, by := c.node(leads%3+1), c.node(leads)
		p := producer(t, deaf, topic.ProducerConfig{})
		_, err := p.ProduceTo(t.Context(), "orders", 1, record("x"))
		require.NoError(t, err)
		c.isolate(deaf.id, true)
		require.NoError(t, by.topics.DeleteTopic(t.Context(), "orders"))
		_, err = by.topics.CreateTopic(t.Context(), "orders", metastore.TopicConfig{Partitions: 3})
		require.NoError(t, err)
		c.isolate(deaf.id, false)
		_, err = p.ProduceTo(t.Context(), "orders", 2, record("x"))
		require.NoError(t, err)
	})
}
