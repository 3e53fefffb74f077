package topic_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
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

func at(name string, partition uint32) topic.TopicPartition {
	return topic.TopicPartition{Topic: name, Partition: partition}
}

// settle waits until a condition holds.
func settle(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for range 600 {
		if holds() {
			return
		}
		pass(50 * time.Millisecond)
	}
	require.FailNow(t, "never", what)
}

func (n *node) dirs() (names []string) {
	dirs, err := n.store.TopicDirs()
	require.NoError(n.cluster.t, err)
	for _, d := range dirs {
		names = append(names, d.Dir)
	}
	return names
}

func TestTopicsAreListedAndDescribed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 3, 1)
		made := c.create("orders", 4)
		for _, n := range c.running() {
			got, err := n.topics.DescribeTopic(t.Context(), "orders")
			require.NoError(t, err)
			require.Equal(t, made, got)
			all, err := n.topics.ListTopics(t.Context())
			require.NoError(t, err)
			require.Equal(t, []metastore.Topic{made}, all)
			settle(t, "four open replicas", func() bool {
				s := n.topics.Status()
				return len(s) == 4 && s[3].Partition == 3 && s[3].Leader != 0 && s[3].Readable
			})
			require.Regexp(t, `Topic:orders Partition:3 .*Leader:n\d .*Readable:true`, fmt.Sprintf("%+v", n.topics.Status()[3]))
		}
		_, err := c.node(2).topics.CreateTopic(t.Context(), "orders", metastore.TopicConfig{})
		require.ErrorIs(t, err, metastore.ErrTopicExists)
	})
}

func TestManyPartitionsOpenQuickly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 3, 1)
		<-c.node(1).meta.CaughtUp()
		begun := time.Now()
		c.create("orders", 300)
		require.Less(t, time.Since(begun), 3*time.Second) // virtual: elections, not one by one
		c.crash(3, simfs.Strict)
		n := c.start(3)
		<-n.meta.CaughtUp()
		settle(t, "reopened", func() bool {
			s := n.topics.Status()
			return len(s) == 300 && s[0].Role != 0 && s[299].Role != 0
		})
	})
}

// Property: C1 (red: the reconciler opened what the old state of the metadata listed)
func TestNothingIsOpenedBeforeTheMetadataHasCaughtUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 3, 1)
		c.create("orders", 2)
		c.crashAll(simfs.Strict, 1, 2, 3)
		n := c.start(1) // alone: no quorum tells it what it missed
		pass(30 * time.Second)
		require.Empty(t, n.topics.Status())
		require.Zero(t, n.host.Stats().Groups-1, "only the metadata's group is open")
		p := producer(t, n, topic.ProducerConfig{})
		_, err := p.Produce(t.Context(), "orders", record("early"))
		require.ErrorIs(t, err, metastore.ErrUnavailable)
		require.ErrorIs(t, err, raftlog.ErrRetry)
		_, err = n.topics.NewReader(t.Context(), at("orders", 0), topic.FromStart())
		require.ErrorIs(t, err, metastore.ErrUnavailable)
		c.startAll()
		_, err = p.Produce(t.Context(), "orders", record("now"))
		require.NoError(t, err)
	})
}

// TestALeaderThatMissesTheDeletionTakesNoRecords: what replicas do not know,
// their log knows.
//
// Property: I11 (red: DeleteTopic sealed nothing; moves: TestATopicIsDeletedWhileAReplicaMoves)
func TestALeaderThatMissesTheDeletionTakesNoRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 3, 1)
		orders := c.create("orders", 1)
		deaf := c.leader("orders", 0)
		others := slices.DeleteFunc(c.running(), func(n *node) bool { return n == deaf })
		produce := func() error {
			batch := encode(topic.BatchInfo{Incarnation: orders.Incarnation}, time.Now(), record("x"))
			response, err := deaf.topics.HandleCall(t.Context(), others[0].id, "topic.produce", topic.EncodeProduce(orders.Incarnation, 0, batch))
			require.NoError(t, err)
			_, err = topic.DecodeProduced(response)
			return err
		}
		require.NoError(t, produce())
		// All are busy with the directory of another topic, and look at nothing else.
		blocked := make(chan struct{})
		release := sync.OnceFunc(func() { close(blocked) })
		defer release()
		for _, disk := range c.disks {
			disk.SetHook(func(op simfs.Op) error {
				if strings.Contains(op.Path, "blocker@") {
					<-blocked
				}
				return nil
			})
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, err := others[0].topics.CreateTopic(ctx, "blocker", metastore.TopicConfig{})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, others[0].topics.DeleteTopic(t.Context(), "orders"))
		require.ErrorIs(t, produce(), topic.ErrSealed)
		release()
		settle(t, "purged", func() bool { return len(deaf.dirs()) == 1 })
		require.ErrorIs(t, produce(), topic.ErrTopicDeleted)
	})
}

func TestDeletedTopicsTakeNoRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 3, 1)
		c.create("orders", 3)
		var mu sync.Mutex
		var last time.Time // of an acknowledgement
		var work sync.WaitGroup
		for _, n := range c.running() {
			p := producer(t, n, topic.ProducerConfig{})
			work.Go(func() {
				for i := 0; ; i++ {
					_, err := p.ProduceTo(t.Context(), "orders", uint32(i%3), record(fmt.Sprint(i)))
					if err != nil {
						require.NotErrorIs(t, err, raftlog.ErrOutcomeUnknown)
						require.NoError(t, outcomes(err))
						return
					}
					mu.Lock()
					last = time.Now()
					mu.Unlock()
				}
			})
		}
		// A node that hears nothing of the deletion still leads, or believes so.
		deaf := c.leader("orders", 0)
		r, err := deaf.topics.NewReader(t.Context(), at("orders", 0), topic.FromStart())
		require.NoError(t, err)
		defer r.Close()
		pass(300 * time.Millisecond)
		by := c.running()[int(deaf.id)%3]
		require.NoError(t, by.topics.DeleteTopic(t.Context(), "orders"))
		deleted := time.Now()
		work.Wait()
		require.False(t, last.After(deleted), "acknowledged %v after the deletion", last.Sub(deleted))
		for _, err = range r.Records(t.Context()) {
			if err != nil {
				break
			}
		}
		require.ErrorIs(t, err, topic.ErrTopicDeleted)
		for _, n := range c.running() {
			_, err = producer(t, n, topic.ProducerConfig{}).Produce(t.Context(), "orders", record("late"))
			require.ErrorIs(t, err, metastore.ErrTopicNotFound)
			settle(t, "quarantined", func() bool { return len(n.dirs()) == 0 })
			q, err := n.store.Quarantined()
			require.NoError(t, err)
			require.Len(t, q, 1)
			require.Equal(t, storage.ReasonDeleted, q[0].Reason.Kind)
			require.False(t, q[0].Reason.At.IsZero())
		}
		require.ErrorIs(t, by.topics.DeleteTopic(t.Context(), "orders"), metastore.ErrTopicNotFound)
	})
}

func TestDeletionWaitsForAQuorum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 3, 1)
		c.create("orders", 1)
		// The partition's group has no quorum, the metadata has one.
		c.mu.Lock()
		c.meet = func(_, _ raftlog.NodeID, method string) error {
			if method == "topic.seal" {
				return raftlog.Retry(errors.New("not now"))
			}
			return nil
		}
		c.mu.Unlock()
		leader := c.leader("orders", 0)
		other := c.running()[int(leader.id)%3]
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := other.topics.DeleteTopic(ctx, "orders")
		require.ErrorIs(t, err, raftlog.ErrOutcomeUnknown)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		_, err = producer(t, other, topic.ProducerConfig{}).Produce(t.Context(), "orders", record("late"))
		require.ErrorIs(t, err, metastore.ErrTopicDeleting)
		_, err = other.topics.CreateTopic(t.Context(), "orders", metastore.TopicConfig{})
		require.ErrorIs(t, err, metastore.ErrTopicDeleting)
		// Whoever leads the partition finishes what the caller left.
		settle(t, "deleted", func() bool {
			_, err := other.topics.DescribeTopic(t.Context(), "orders")
			return errors.Is(err, metastore.ErrTopicNotFound)
		})
	})
}

// TestCallsEndWhenOthersDeletedTheTopic: what they wait for never comes.
func TestCallsEndWhenOthersDeletedTheTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 3, 1)
		c.create("orders", 1)
		n := c.running()[int(c.leader("orders", 0).id)%3]
		c.mu.Lock()
		c.meet = func(from, _ raftlog.NodeID, method string) error {
			if from == n.id && strings.HasPrefix(method, "topic.") {
				return raftlog.Retry(errors.New("not from you"))
			}
			return nil
		}
		c.mu.Unlock()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.NoError(t, n.topics.DeleteTopic(ctx, "orders")) // whoever leads has sealed it

		// Partitions without a replica here never have a leader that answers.
		created := make(chan error, 1)
		go func() {
			_, err := n.topics.CreateTopic(ctx, "more", metastore.TopicConfig{Partitions: 3, Replicas: 1})
			created <- err
		}()
		other := c.running()[int(n.id)%3]
		pass(time.Second)
		require.NoError(t, other.topics.DeleteTopic(ctx, "more"))
		err := <-created
		require.ErrorIs(t, err, topic.ErrTopicDeleted)
		require.NoError(t, outcomes(err))
	})
}

// Property: I4 (red: no sweep of what earlier processes left; reclaiming: sweep_test.go; open: consumers)
func TestRecreatedTopicsShareNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 3, 1)
		c.create("orders", 1)
		p := producer(t, c.node(1), topic.ProducerConfig{})
		for i := range 10 {
			_, err := p.Produce(t.Context(), "orders", record(fmt.Sprint("old ", i)))
			require.NoError(t, err)
		}
		c.crash(3, simfs.Strict) // it will know nothing of all this
		for life := range 3 {
			require.NoError(t, c.node(2).topics.DeleteTopic(t.Context(), "orders"))
			c.create("orders", 1)
			for i := range 3 {
				at, err := p.Produce(t.Context(), "orders", record(fmt.Sprint("new ", life, " ", i)))
				for errors.Is(err, topic.ErrTopicIncarnationMismatch) || errors.Is(err, topic.ErrTopicDeleted) {
					at, err = p.Produce(t.Context(), "orders", record(fmt.Sprint("new ", life, " ", i)))
				}
				require.NoError(t, err)
				require.Equal(t, storage.Offset(i), at[0].Offset)
			}
		}
		n := c.start(3)
		for _, n := range c.running() {
			require.Equal(t, []string{"new 2 0", "new 2 1", "new 2 2"}, n.dump("orders", 0))
		}
		settle(t, "the old directory was moved", func() bool { return len(n.dirs()) == 1 })
		q, err := n.store.Quarantined()
		require.NoError(t, err)
		require.Len(t, q, 1)
		// The replica that went is not damage to the next process.
		c.crash(3, simfs.Strict)
		c.start(3)
		require.Len(t, c.node(3).dump("orders", 0), 3)
	})
}

func TestStrangeDirectoriesAreMovedAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 1, 1)
		c.create("orders", 1)
		c.crash(1, simfs.Strict)
		fs := c.disks[1]
		require.NoError(t, fs.MkdirAll("data/topics/whatever", 0o755))
		store, err := storage.Open(storage.Config{FS: fs, Dir: "data", Name: "node-n1", Cluster: "test", JournalFileSize: 256 << 10, SegmentSize: 256 << 10})
		require.NoError(t, err)
		_, err = store.CreateTopicDir("restored", storage.Incarnation{9})
		require.NoError(t, err)
		require.NoError(t, store.Close())
		n := c.start(1)
		settle(t, "moved", func() bool { return len(n.dirs()) == 1 })
		require.True(t, strings.HasPrefix(n.dirs()[0], "topics/orders@"))
		q, err := n.store.Quarantined()
		require.NoError(t, err)
		require.Len(t, q, 2)
	})
}

// Property: L4 (red: a produce waited for its answer alone)
func TestCallsEndWithTheirContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 3, 1)
		c.create("orders", 1)
		n := c.node(1)
		<-n.meta.CaughtUp()
		r, err := n.topics.NewReader(t.Context(), at("orders", 0), topic.FromEnd())
		require.NoError(t, err)
		c.isolate(1, true)
		pass(5 * time.Second)
		p := producer(t, n, topic.ProducerConfig{})
		for name, f := range map[string]func(context.Context) error{
			"produce": func(ctx context.Context) error { _, err := p.Produce(ctx, "orders", record("x")); return err },
			"read":    func(ctx context.Context) error { _, err := r.Fetch(ctx, 1); return err },
			"open": func(ctx context.Context) error {
				_, err := n.topics.NewReader(ctx, at("orders", 0), topic.FromEnd())
				return err
			},
			"create": func(ctx context.Context) error {
				_, err := n.topics.CreateTopic(ctx, "more", metastore.TopicConfig{})
				return err
			},
			"delete":   func(ctx context.Context) error { return n.topics.DeleteTopic(ctx, "orders") },
			"describe": func(ctx context.Context) error { _, err := n.topics.DescribeTopic(ctx, "none"); return err },
			"list":     func(ctx context.Context) error { _, err := n.topics.ListTopics(ctx); return err },
		} {
			ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
			begun := time.Now()
			err := f(ctx)
			require.ErrorIs(t, err, context.DeadlineExceeded, name)
			oneOutcome(t, err)
			require.Equal(t, 700*time.Millisecond, time.Since(begun), name)
			cancel()
		}
		c.isolate(1, false)
		ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
		defer cancel()
		for _, err = range r.Records(ctx) {
			require.ErrorIs(t, err, context.DeadlineExceeded)
			oneOutcome(t, err)
		}
		require.Error(t, err)
	})
}
