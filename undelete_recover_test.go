package stele_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/topic"
)

// Codes of answers, as package topic has them.
const (
	done   byte = 0
	passed byte = 12
)

// tell has the leader of a partition close or open it, whichever node that is.
func tell(c *testcluster.Cluster, t stele.Topic, partition uint32, kind topic.Kind, number uint64) (code byte) {
	c.T.Helper()
	c.Eventually(func() bool {
		for i := range c.Size() {
			if c.Node(i) == nil {
				continue
			}
			got, err := c.Node(i).Tell(c.T.Context(), t, partition, kind, number)
			require.NoError(c.T, err)
			if got == done || got == passed {
				code = got
				return true
			}
		}
		return false
	}, "a leader answers")
	return code
}

// Property: I11, P9, R33 (red: deletions went on under their old numbers; a partition of a topic that lives was not opened, and records for it were refused as those of a deleted one; UndeleteTopic of one asked no partition)
//
// The metadata lose their end in a forced recovery, and the partitions do not: of
// two topics that live one has a partition that was closed, which opens when somebody
// writes, the other one when it is brought back; one that is retired, and one that is
// being brought back, have partitions that have heard of more. All of them go on, and
// what is deleted stays closed.
func TestTheMetadataLoseWhatPartitionsHeardOfADeletion(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Nodes: 3, Seed: 1}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		c.Eventually(func() bool { return version(c, 0) == metastore.NewestVersion }, "the version is raised")
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
		defer cancel()
		made := map[string]stele.Topic{}
		for _, name := range []string{"written", "asked", "back", "gone", "open"} {
			mustCreate(c, 0, name, 2)
			top, err := c.Node(0).DescribeTopic(ctx, name)
			require.NoError(t, err)
			made[name] = top
			produceTo(c, 0, name, 1, 1)
		}
		const grace = time.Hour
		for _, name := range []string{"asked", "back", "gone", "open"} {
			require.NoError(t, c.Node(0).DeleteTopic(ctx, name, stele.WithGrace(grace)))
		}
		_, err := c.Node(0).UndeleteTopic(ctx, "asked")
		require.NoError(t, err)
		// What the metadata know no more.
		require.Equal(t, done, tell(c, made["written"], 1, topic.KindRetire, 1))
		require.Equal(t, done, tell(c, made["asked"], 1, topic.KindRetire, 2))
		for _, name := range []string{"back", "gone"} {
			require.Equal(t, done, tell(c, made[name], 1, topic.KindRetire, 3))
		}
		require.Equal(t, done, tell(c, made["open"], 1, topic.KindRestore, 1))
		c.PowerLossAll()
		recoverFrom(c, 0)
		c.Start(0)
		c.WaitReady()

		produceTo(c, 0, "written", 1, 2)
		top, err := c.Node(0).UndeleteTopic(ctx, "asked")
		require.NoError(t, err)
		require.Equal(t, passed, tell(c, made["asked"], 1, topic.KindRetire, 2), "it was opened")
		require.Equal(t, stele.TopicActive, top.State)
		produceTo(c, 0, "asked", 1, 2)
		short, end := context.WithTimeout(ctx, time.Minute)
		defer end()
		_, err = c.Node(0).UndeleteTopic(short, "back")
		require.NoError(t, err)
		require.Equal(t, []string{"back/1: 1", produceTo(c, 0, "back", 1, 2)}, readAll(c, 0, "back", 1))

		c.Eventually(func() bool {
			for _, name := range []string{"gone", "open"} {
				top, err := c.Node(0).DescribeTopic(ctx, name)
				require.NoError(t, err)
				if top.State != stele.TopicRetired || top.Deletion.Number>>48 != 1 {
					return false
				}
			}
			return true
		}, "the partitions of what is deleted are closed, in the new epoch")
		for _, name := range []string{"gone", "open"} {
			require.Equal(t, passed, tell(c, made[name], 1, topic.KindRestore, 1<<48), "nobody opens it who knows less")
		}
		require.NoError(t, c.Node(0).DeleteTopic(ctx, "written", stele.WithGrace(grace)))
		for _, name := range []string{"gone", "open", "written"} {
			_, err = c.Node(0).UndeleteTopic(ctx, name)
			require.NoError(t, err)
			produceTo(c, 0, name, 1, 3)
		}
	})
}

// Property: P9, R33 (red: a partition that was sealed was asked again and again to open, until the call's time was over, and the error said that it is one of Retry)
//
// The metadata lose a deletion without a grace in a forced recovery, of which a
// partition has the seal. The topic lives, its records are there, and nobody can write
// to that partition. UndeleteTopic says at once what can be done, and that is so.
func TestTheMetadataLoseADeletionWithoutAGrace(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Nodes: 3, Seed: 1}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		c.Eventually(func() bool { return version(c, 0) == metastore.NewestVersion }, "the version is raised")
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
		defer cancel()
		mustCreate(c, 0, "orders", 2)
		top, err := c.Node(0).DescribeTopic(ctx, "orders")
		require.NoError(t, err)
		kept := []string{produceTo(c, 0, "orders", 1, 1)}
		require.Equal(t, done, tell(c, top, 1, topic.KindSeal, 0))
		c.Sleep(2 * time.Second) // all replicas have it
		c.PowerLossAll()
		recoverFrom(c, 0)
		c.Start(0)
		c.WaitReady()

		p, err := c.Node(0).NewProducer(stele.ProducerConfig{})
		require.NoError(t, err)
		_, err = p.ProduceTo(ctx, "orders", 1, stele.Record{Value: []byte("late")})
		require.ErrorIs(t, err, stele.ErrTopicDeleted)
		require.NoError(t, p.Close(ctx))
		began := time.Now()
		_, err = c.Node(0).UndeleteTopic(ctx, "orders")
		require.Equal(t, stele.OutcomeRefused, stele.OutcomeOf(err), "%v", err)
		require.ErrorContains(t, err, "its records can be read")
		require.ErrorContains(t, err, "delete the topic")
		require.Less(t, time.Since(began), 30*time.Second)
		require.Equal(t, kept, readAll(c, 0, "orders", 1))
		produceTo(c, 0, "orders", 0, 1)
		require.NoError(t, c.Node(0).DeleteTopic(ctx, "orders"))
		mustCreate(c, 0, "orders", 2)
		produceTo(c, 0, "orders", 1, 2)
	})
}
