package topic_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

// TestKeysGoWhereKafkaPutsThem: hashes as other implementations publish them.
func TestKeysGoWhereKafkaPutsThem(t *testing.T) {
	for key, hash := range map[string]int32{
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536,
		"a-little-bit-longer-string": -1486304829, "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971, "abc": 479470107,
	} {
		for _, n := range []uint32{1, 2, 7, 128} {
			require.Equal(t, uint32(hash)&0x7fffffff%n, topic.PartitionOf([]byte(key), n), "%s of %d", key, n)
		}
	}
}

func TestRecordsOfOneCallGoToTheirPartitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 3, 1)
		c.create("orders", 5)
		p := producer(t, c.node(2), topic.ProducerConfig{MaxBatchBytes: 1 << 10, Codec: topic.CodecS2})
		var records []topic.Record
		for i := range 200 {
			r := topic.Record{Value: fmt.Append(nil, "value ", i)}
			if i%3 > 0 {
				r.Key = fmt.Append(nil, "key ", i%20)
			}
			records = append(records, r)
		}
		positions, err := p.Produce(t.Context(), "orders", records...)
		require.NoError(t, err)
		require.Len(t, positions, len(records))
		var all [5][]string
		for i := range all {
			all[i] = c.node(1).dump("orders", uint32(i))
		}
		keyless := map[uint32]bool{}
		last := map[uint32]storage.Offset{}
		for i, at := range positions {
			require.Equal(t, string(records[i].Value), all[at.Partition][at.Offset])
			if records[i].Key != nil {
				require.Equal(t, topic.PartitionOf(records[i].Key, 5), at.Partition)
			} else {
				keyless[at.Partition] = true
			}
			if before, ok := last[at.Partition]; ok {
				require.Greater(t, at.Offset, before)
			}
			last[at.Partition] = at.Offset
		}
		require.Len(t, keyless, 1)
		_, err = p.ProduceTo(t.Context(), "orders", 5, record("x"))
		var none *topic.NoPartitionError
		require.ErrorAs(t, err, &none)
		_, err = p.Produce(t.Context(), "orders", record("fits"), topic.Record{Value: make([]byte, topic.MaxRecordSize+1)})
		var large *topic.TooLargeError
		require.ErrorAs(t, err, &large)
		require.ErrorIs(t, err, raftlog.ErrRefused)
		at, err := p.Produce(t.Context(), "orders", topic.Record{Value: make([]byte, 3<<20)})
		require.NoError(t, err)
		require.Len(t, at, 1)
	})
}

func TestCallsShareBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 3, 1)
		c.create("orders", 1)
		for _, n := range c.running() {
			p := producer(t, n, topic.ProducerConfig{})
			_, err := p.Produce(t.Context(), "orders", record("first"))
			require.NoError(t, err)
			before := n.topics.Stats()
			var work sync.WaitGroup
			for i := range 400 {
				work.Go(func() {
					_, err := p.Produce(t.Context(), "orders", record(fmt.Sprint(i)))
					require.NoError(t, err)
				})
			}
			work.Wait()
			after := n.topics.Stats()
			require.Equal(t, uint64(400), after.Records-before.Records)
			require.LessOrEqual(t, after.Batches-before.Batches, uint64(12))
		}
	})
}

// Property: M2 (red: records without a key went to partitions without a leader)
func TestKeylessRecordsAvoidPartitionsWithoutLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		c.config = func(cfg *topic.Config) { cfg.CallTimeout = time.Second }
		c.startAll()
		// One replica each, so that a partition goes with its node.
		_, err := c.node(1).topics.CreateTopic(t.Context(), "orders", metastore.TopicConfig{Partitions: 3, Replicas: 1})
		require.NoError(t, err)
		lost := c.leader("orders", 0)
		n := c.running()[int(lost.id)%3]
		p := producer(t, n, topic.ProducerConfig{})
		for range 6 {
			_, err := p.Produce(t.Context(), "orders", record("before"))
			require.NoError(t, err)
		}
		c.crash(lost.id, simfs.Strict)
		begun := time.Now()
		_, err = p.Produce(t.Context(), "orders", topic.Record{Key: keyFor(0, 3)})
		var noLeader *topic.NoLeaderError
		require.ErrorAs(t, err, &noLeader)
		require.Equal(t, at("orders", 0), noLeader.TopicPartition)
		oneOutcome(t, err)
		require.ErrorIs(t, err, raftlog.ErrRetry)
		require.Less(t, time.Since(begun), 2*time.Second)
		go p.Produce(t.Context(), "orders", topic.Record{Key: keyFor(0, 3)}) // keeps asking
		pass(50 * time.Millisecond)
		for range 20 {
			begun := time.Now()
			at, err := p.Produce(t.Context(), "orders", record("after"))
			require.NoError(t, err)
			require.NotZero(t, at[0].Partition)
			require.Less(t, time.Since(begun), 200*time.Millisecond)
		}
		c.start(lost.id)
		c.leader("orders", 0)
		at, err := p.Produce(t.Context(), "orders", topic.Record{Key: keyFor(0, 3)})
		require.NoError(t, err)
		require.Equal(t, uint32(0), at[0].Partition)
	})
}

// Property: P4 (red: a batch was repeated with new sequence numbers; what producers know travels with a replica: TestAReplicaMoves)
func TestAnswersThatAreLostDoubleNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		c.config = func(cfg *topic.Config) { cfg.CallTimeout = 300 * time.Millisecond }
		c.startAll()
		c.create("orders", 1)
		leader := c.leader("orders", 0)
		n := c.running()[int(leader.id)%3]
		p := producer(t, n, topic.ProducerConfig{})
		_, err := p.Produce(t.Context(), "orders", record("0"))
		require.NoError(t, err)
		c.mu.Lock()
		c.loss = 0.3
		c.mu.Unlock()
		want := []string{"0"}
		for i := 1; i < 60; i++ {
			at, err := p.Produce(t.Context(), "orders", record(fmt.Sprint(i)))
			require.NoError(t, err)
			require.Equal(t, storage.Offset(i), at[0].Offset)
			want = append(want, fmt.Sprint(i))
		}
		require.NotZero(t, n.topics.Stats().Retries)
		c.mu.Lock()
		c.loss = 0
		c.mu.Unlock()
		require.Equal(t, want, n.dump("orders", 0))
	})
}

func TestNewerProducersOfANameFenceOlderOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 3, 1)
		c.create("orders", 2)
		old := producer(t, c.node(1), topic.ProducerConfig{Name: "biller"})
		_, err := old.ProduceTo(t.Context(), "orders", 0, record("1"))
		require.NoError(t, err)
		now := producer(t, c.node(2), topic.ProducerConfig{Name: "biller"})
		_, err = now.ProduceTo(t.Context(), "orders", 0, record("2"))
		require.NoError(t, err)
		_, err = old.ProduceTo(t.Context(), "orders", 0, record("3"))
		var fenced *topic.FencedError
		require.ErrorAs(t, err, &fenced)
		oneOutcome(t, err)
		_, err = old.ProduceTo(t.Context(), "orders", 1, record("4"))
		require.ErrorAs(t, err, &fenced)
		require.Equal(t, []string{"1", "2"}, c.node(3).dump("orders", 0))
		require.Empty(t, c.node(3).dump("orders", 1))
		_, err = c.node(1).topics.NewProducer(topic.ProducerConfig{Name: "x", Anonymous: true})
		require.ErrorIs(t, err, raftlog.ErrRefused)
	})
}

// lateClock is ahead of the others.
type lateClock struct {
	clock.Clock
	by atomic.Int64
}

func (c *lateClock) Now() time.Time { return c.Clock.Now().Add(time.Duration(c.by.Load())) }

func TestProducersSurviveBeingForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, 1)
		late := &lateClock{Clock: clock.System()}
		c.config = func(cfg *topic.Config) { cfg.Clock = late }
		c.startAll()
		c.create("orders", 1)
		for _, name := range []string{"", "biller"} {
			p := producer(t, c.node(1), topic.ProducerConfig{Name: name})
			other := producer(t, c.node(1), topic.ProducerConfig{})
			_, err := p.Produce(t.Context(), "orders", record("before"))
			require.NoError(t, err)
			late.by.Add(int64(topic.ProducerExpiry + time.Hour))
			_, err = other.Produce(t.Context(), "orders", record("later"))
			require.NoError(t, err)
			_, err = p.Produce(t.Context(), "orders", record("after"))
			require.NoError(t, err)
		}
		require.Equal(t, []string{"before", "later", "after", "before", "later", "after"}, c.node(1).dump("orders", 0))
	})
}

func TestAnonymousProducersAreNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		c.config = func(cfg *topic.Config) { cfg.CallTimeout = 300 * time.Millisecond }
		c.startAll()
		c.create("orders", 1)
		leader := c.leader("orders", 0)
		n := c.running()[int(leader.id)%3]
		p := producer(t, n, topic.ProducerConfig{Anonymous: true})
		c.mu.Lock()
		c.loss = 0.3
		c.mu.Unlock()
		told, maybe := map[string]bool{}, 0
		for i := range 60 {
			_, err := p.Produce(t.Context(), "orders", record(fmt.Sprint(i)))
			if err != nil {
				require.ErrorIs(t, err, raftlog.ErrOutcomeUnknown)
				oneOutcome(t, err)
				maybe++
				continue
			}
			told[fmt.Sprint(i)] = true
		}
		c.mu.Lock()
		c.loss = 0
		c.mu.Unlock()
		require.NotZero(t, maybe)
		seen := map[string]bool{}
		for _, v := range n.dump("orders", 0) {
			require.False(t, seen[v])
			seen[v] = true
			delete(told, v)
		}
		require.Empty(t, told)
	})
}

func TestCloseFlushes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 3, 1)
		c.create("orders", 1)
		p := producer(t, c.node(1), topic.ProducerConfig{})
		var acked sync.WaitGroup
		for i := range 100 {
			acked.Add(1)
			p.ProduceAsync(t.Context(), "orders", record(fmt.Sprint(i)), func(at topic.Position, err error) {
				defer acked.Done()
				require.NoError(t, err)
				require.Equal(t, storage.Offset(i), at.Offset)
			})
		}
		require.NoError(t, p.Close(t.Context()))
		acked.Wait()
		_, err := p.Produce(t.Context(), "orders", record("late"))
		require.ErrorIs(t, err, topic.ErrClosed)
		oneOutcome(t, err)
		require.Len(t, c.node(2).dump("orders", 0), 100)

		// Without a quorum it gives up with its context, and says so.
		p = producer(t, c.node(1), topic.ProducerConfig{})
		c.isolate(1, true)
		pass(3 * time.Second)
		failed := make(chan error, 1)
		p.ProduceAsync(t.Context(), "orders", record("never"), func(_ topic.Position, err error) { failed <- err })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, p.Close(ctx), context.DeadlineExceeded)
		err = <-failed
		require.ErrorIs(t, err, topic.ErrClosed)
		oneOutcome(t, err)
		c.isolate(1, false)
	})
}

func TestAFullBufferHoldsCallsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 3, 1)
		c.create("orders", 1)
		p := producer(t, c.node(1), topic.ProducerConfig{MaxBufferedBytes: 1 << 10})
		c.isolate(1, true)
		pass(3 * time.Second)
		answered := make(chan error, 1)
		p.ProduceAsync(t.Context(), "orders", topic.Record{Value: make([]byte, 900)}, func(_ topic.Position, err error) { answered <- err })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := p.Produce(ctx, "orders", topic.Record{Value: make([]byte, 900)})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, raftlog.ErrRetry)
		c.isolate(1, false)
		require.NoError(t, <-answered)
		_, err = p.Produce(t.Context(), "orders", topic.Record{Value: make([]byte, 900)})
		require.NoError(t, err)
	})
}

// TestGivingUp: a call whose records were not sent takes them back, so that
// they are never appended; of others the outcome is unknown.
func TestGivingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 3, 1)
		c.create("orders", 1)
		leader := c.leader("orders", 0)
		p := producer(t, leader, topic.ProducerConfig{MaxInFlight: 1})
		_, err := p.Produce(t.Context(), "orders", record("first"))
		require.NoError(t, err)
		c.isolate(leader.id, true)
		results := make(chan error, 2)
		for i := range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			go func() {
				_, err := p.Produce(ctx, "orders", record(fmt.Sprint("given up ", i)))
				results <- err
			}()
			synctest.Wait()
		}
		var unknown, retry int
		for range 2 {
			err := <-results
			require.ErrorIs(t, err, context.DeadlineExceeded)
			oneOutcome(t, err)
			if errors.Is(err, raftlog.ErrRetry) {
				retry++
			} else {
				unknown++
			}
		}
		require.Equal(t, 1, unknown)
		require.Equal(t, 1, retry)
		c.isolate(leader.id, false)
		_, err = p.Produce(t.Context(), "orders", record("last"))
		require.NoError(t, err)
		got := c.running()[0].dump("orders", 0)
		require.NotContains(t, got, "given up 1")
		require.Equal(t, "last", got[len(got)-1])
	})
}

// TestCallbacks: a nil one is told nothing, and one that panics harms only
// itself, wherever it is called from.
func TestCallbacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.ErrorLevel)
		c := newCluster(t, 3, 1)
		c.config = func(cfg *topic.Config) { cfg.Logger = zap.New(core) }
		c.startAll()
		c.create("orders", 1)
		leader := c.leader("orders", 0)
		for _, n := range c.running() {
			p := producer(t, n, topic.ProducerConfig{})
			p.ProduceAsync(t.Context(), "orders", record("ignored"), nil)
			p.ProduceAsync(t.Context(), "nothing", record("ignored"), nil)
			for _, name := range []string{"orders", "nothing"} {
				told := make(chan error, 1)
				p.ProduceAsync(t.Context(), name, record("panics"), func(_ topic.Position, err error) {
					told <- err
					panic("in the host's callback")
				})
				require.Equal(t, name == "orders", <-told == nil)
			}
			synctest.Wait()
			_, err := p.Produce(t.Context(), "orders", record("after"))
			require.NoError(t, err)
			require.NoError(t, p.Close(t.Context()))
		}
		require.Equal(t, 6, logs.Len())
		for _, l := range logs.All() {
			require.Equal(t, "in the host's callback", l.ContextMap()["panic"])
			require.Contains(t, l.ContextMap()["stack"], "producer_test.go")
		}
		require.True(t, leader == c.leader("orders", 0))
		require.Len(t, leader.dump("orders", 0), 9)
	})
}
