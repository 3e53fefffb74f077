package topic_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

// setClock is a clock that can be set.
type setClock struct {
	clock.Clock
	by *atomic.Int64
}

func (c setClock) Now() time.Time { return c.Clock.Now().Add(time.Duration(c.by.Load())) }

// newUndeletes starts nodes whose topics can be brought back. The clocks of their
// managers can be set.
func newUndeletes(t *testing.T, n int, seed uint64) (*cluster, map[raftlog.NodeID]*atomic.Int64) {
	clocks := map[raftlog.NodeID]*atomic.Int64{}
	for i := 1; i <= n; i++ {
		clocks[raftlog.NodeID(i)] = new(atomic.Int64)
	}
	c := newMoves(t, n, seed, func(cfg *topic.Config) { cfg.Clock = setClock{clock.System(), clocks[cfg.Node]} })
	c.upgradeTo(3)
	return c, clocks
}

// batchOf is a batch of producer 77, which begins anew with each sequence.
func (n *node) batchOf(t *testing.T, top metastore.Topic, first int, value string) (storage.Offset, error) {
	info := topic.BatchInfo{Incarnation: top.Incarnation, Producer: topic.ProducerBatch{ID: 77, First: topic.Sequence(first)}}
	response, err := n.topics.HandleCall(t.Context(), 99, "topic.produce", topic.EncodeProduce(top.Incarnation, 0, encode(info, time.Now(), record(value))))
	require.NoError(t, err)
	return topic.DecodeProduced(response)
}

// describe returns what a node says of a topic.
func (n *node) describe(t *testing.T, name string) metastore.Topic {
	t.Helper()
	top, err := n.topics.DescribeTopic(t.Context(), name)
	require.NoError(t, err)
	return top
}

// Property: I11, I1, I3, P1, P2, P4, P6, C6 (red: DeleteTopic closed nothing; replicas of a topic that was brought back refused on; its partitions were not opened; a restart in the grace forgot the deletion)
//
// A topic is deleted with a grace under load, and brought back, twice. Between the two
// calls nothing is acknowledged or shown, whichever node is asked, and the name is
// taken. Behind them all is as it was: the incarnation, the records and their offsets,
// what is known of a producer; a reader goes on where one ended.
func TestATopicIsDeletedAndBroughtBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newUndeletes(t, 3, 1)
		top := c.create("orders", 1)
		var want []string
		first, err := c.leader("orders", 0).batchOf(t, top, 0, "once")
		require.NoError(t, err)
		want = append(want, "once")
		for round := range 2 {
			var mu sync.Mutex
			var last time.Time
			var work sync.WaitGroup
			got := map[storage.Offset]string{}
			for _, n := range c.running() {
				p := producer(t, n, topic.ProducerConfig{})
				work.Go(func() {
					for i := 0; i < 10_000; i++ {
						value := fmt.Sprint(round, " ", n.id, " ", i)
						at, err := p.Produce(t.Context(), "orders", record(value))
						mu.Lock()
						if err == nil {
							got[at[0].Offset], last = value, time.Now()
							mu.Unlock()
							continue
						}
						mu.Unlock()
						require.NoError(t, outcomes(err))
						require.NotErrorIs(t, err, raftlog.ErrOutcomeUnknown)
						_, err = p.Produce(t.Context(), "orders", record("refused"))
						var retired *metastore.TopicRetiredError
						require.ErrorAs(t, err, &retired)
						require.Equal(t, raftlog.OutcomeRefused, raftlog.OutcomeOf(err))
						return
					}
				})
			}
			reader, err := c.node(1).topics.NewReader(t.Context(), at("orders", 0), topic.FromStart())
			require.NoError(t, err)
			pass(200 * time.Millisecond)
			by := c.running()[round]
			began := time.Now()
			require.NoError(t, by.topics.DeleteTopic(t.Context(), "orders", topic.WithGrace(time.Minute)))
			deleted := time.Now()
			work.Wait()
			require.False(t, last.After(deleted), "acknowledged %v after the deletion", last.Sub(deleted))
			for len(got) > 0 {
				value, ok := got[storage.Offset(len(want))]
				require.True(t, ok, "no gap")
				delete(got, storage.Offset(len(want)))
				want = append(want, value)
			}
			var ended error
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			for _, ended = range reader.Records(ctx) {
				if ended != nil {
					break
				}
			}
			require.ErrorIs(t, ended, topic.ErrTopicDeleted)
			next := reader.Offset()

			if round == 1 {
				c.crashAll(simfs.Strict, 1, 2, 3)
				c.startAll()
			}
			for _, n := range c.running() {
				settle(t, "it has caught up", n.meta.AppliedCaughtUp)
				shown := n.describe(t, "orders")
				require.Equal(t, metastore.TopicRetired, shown.State)
				require.Equal(t, top.Incarnation, shown.Incarnation)
				require.Less(t, began.Sub(shown.Deletion.At.Time()).Abs(), time.Second)
				require.Equal(t, time.Minute, shown.Deletion.Until.Time().Sub(shown.Deletion.At.Time()))
				listed, err := n.topics.ListTopics(t.Context())
				require.NoError(t, err)
				require.Equal(t, []metastore.Topic{shown}, listed)
				var retired *metastore.TopicRetiredError
				_, err = n.topics.NewReader(t.Context(), at("orders", 0), topic.FromStart())
				require.ErrorAs(t, err, &retired)
				_, err = n.topics.CreateTopic(t.Context(), "ORDERS", metastore.TopicConfig{})
				require.ErrorAs(t, err, &retired)
				require.Equal(t, shown.Deletion.Until, retired.Until)
			}
			l := c.leader("orders", 0)
			_, err = l.batchOf(t, top, 0, "once")
			require.ErrorIs(t, err, topic.ErrTopicDeleted)
			response, err := l.topics.HandleCall(t.Context(), 99, "topic.fetch", topic.EncodeFetch(top.Incarnation, 0, 0))
			require.NoError(t, err)
			_, err = topic.DecodeFetched(response)
			require.ErrorIs(t, err, topic.ErrTopicDeleted)

			pass(20 * time.Second)
			back, err := c.running()[2-round].topics.UndeleteTopic(t.Context(), "orders")
			require.NoError(t, err)
			require.Equal(t, metastore.TopicActive, back.State)
			require.Equal(t, top.Incarnation, back.Incarnation)
			require.Equal(t, metastore.Deletion{Number: uint64(round + 1)}, back.Deletion)
			again, err := c.running()[round].topics.UndeleteTopic(t.Context(), "orders")
			require.NoError(t, err, "once more changes nothing")
			require.Equal(t, back, again)
			for _, n := range c.running() {
				settle(t, "it shows", func() bool {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					r, err := n.topics.NewReader(ctx, at("orders", 0), topic.FromEnd())
					if err == nil {
						r.Close()
					}
					return err == nil
				})
				require.Equal(t, want, n.dump("orders", 0))
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				at, err := producer(t, n, topic.ProducerConfig{}).Produce(ctx, "orders", record("more"))
				cancel()
				require.NoError(t, err)
				require.Equal(t, storage.Offset(len(want)), at[0].Offset)
				want = append(want, "more")
			}
			r, err := c.node(1).topics.NewReader(t.Context(), at("orders", 0), topic.FromOffset(next))
			require.NoError(t, err)
			r.Close()
			settle(t, "all take records", func() bool {
				offset, err := c.leader("orders", 0).batchOf(t, top, 0, "once")
				return err == nil && offset == first
			})
			require.Len(t, c.node(1).dump("orders", 0), len(want), "it was a repetition")
		}
	})
}

// Property: I11, C4 (red: nothing was closed; a node that had not heard that a topic was brought back said that it was deleted)
//
// A leader that looks at nothing misses the deletion, and its log refuses. Then one
// misses that the topic was brought back, and who asks it hears that it is to ask
// again, and not that the topic is deleted.
func TestALeaderThatMissesADeletionWithAGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newUndeletes(t, 3, 1)
		top := c.create("orders", 1)
		deaf := c.leader("orders", 0)
		others := slices.DeleteFunc(c.running(), func(n *node) bool { return n == deaf })
		_, err := deaf.batchOf(t, top, 0, "x")
		require.NoError(t, err)
		busy := func(name string) (release func()) {
			blocked := make(chan struct{})
			for _, disk := range c.disks {
				disk.SetHook(func(op simfs.Op) error {
					if strings.Contains(op.Path, name+"@") {
						<-blocked
					}
					return nil
				})
			}
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			_, err := others[0].topics.CreateTopic(ctx, name, metastore.TopicConfig{})
			require.ErrorIs(t, err, context.DeadlineExceeded)
			return sync.OnceFunc(func() { close(blocked) })
		}
		release := busy("one")
		defer release()
		require.NoError(t, others[0].topics.DeleteTopic(t.Context(), "orders", topic.WithGrace(time.Minute)))
		_, err = deaf.batchOf(t, top, 1, "y")
		require.ErrorIs(t, err, topic.ErrRetired)
		release()
		settle(t, "it knows", func() bool {
			_, err = deaf.batchOf(t, top, 1, "y")
			return errors.Is(err, topic.ErrTopicDeleted)
		})

		release = busy("two")
		defer release()
		_, err = others[0].topics.UndeleteTopic(t.Context(), "orders")
		require.NoError(t, err)
		_, err = deaf.batchOf(t, top, 1, "y")
		require.ErrorIs(t, err, topic.ErrNotYet)
		require.Equal(t, raftlog.OutcomeRetry, raftlog.OutcomeOf(err))
		p := producer(t, others[1], topic.ProducerConfig{})
		produced := make(chan error, 1)
		go func() {
			_, err := p.Produce(t.Context(), "orders", record("waits"))
			produced <- err
		}()
		pass(time.Second)
		release()
		require.NoError(t, <-produced)
		require.Equal(t, []string{"x", "waits"}, others[0].dump("orders", 0))
	})
}

// Property: I4, I5, C7, M4 (red: a topic in its grace was not wanted by nodes, and purged as one that is gone)
//
// A node is down while a topic is deleted and brought back: it goes on with it. It is
// down while one is deleted, purged, and created anew: what it has is not shown.
func TestANodeMissesWhatBecameOfADeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newUndeletes(t, 3, 1)
		kept, lost := c.create("kept", 1), c.create("lost", 1)
		send := func(n *node, name, value string) {
			_, err := producer(t, n, topic.ProducerConfig{}).Produce(t.Context(), name, record(value))
			require.NoError(t, err)
		}
		for _, name := range []string{"kept", "lost"} {
			send(c.node(1), name, "old")
		}
		c.crash(3, simfs.Strict)
		n := c.node(1)
		for _, name := range []string{"kept", "lost"} {
			require.NoError(t, n.topics.DeleteTopic(t.Context(), name, topic.WithGrace(30*time.Second)))
		}
		_, err := n.topics.UndeleteTopic(t.Context(), "kept")
		require.NoError(t, err)
		send(n, "kept", "new")
		pass(50 * time.Second)
		_, err = n.topics.UndeleteTopic(t.Context(), "lost")
		require.ErrorIs(t, err, metastore.ErrTopicNotFound)
		again := c.create("lost", 1)
		require.NotEqual(t, lost.Incarnation, again.Incarnation)
		send(n, "lost", "young")

		c.start(3)
		require.Equal(t, []string{"old", "new"}, c.node(3).dump("kept", 0))
		require.Equal(t, []string{"young"}, c.node(3).dump("lost", 0))
		settle(t, "what it had of it is gone", func() bool { return c.node(3).clean() && len(c.node(3).dirs()) == 2 })
		require.Equal(t, kept.Incarnation, c.node(3).describe(t, "kept").Incarnation)

		// And down at the deletion, back in the grace.
		c.crash(3, simfs.Strict)
		require.NoError(t, n.topics.DeleteTopic(t.Context(), "kept", topic.WithGrace(time.Minute)))
		c.start(3)
		settle(t, "it holds it", func() bool { return c.node(3).topics.OpenGroup(kept.Incarnation, 0) != nil })
		pass(5 * time.Second)
		require.True(t, c.node(3).clean())
		_, err = c.node(3).topics.UndeleteTopic(t.Context(), "kept")
		require.NoError(t, err)
		require.Equal(t, []string{"old", "new"}, c.node(3).dump("kept", 0))
	})
}

// Property: S9, X1, I11, P9 (red: the purge asked no clock; the deletion asked none)
//
// The leader's clock jumps ahead, past the end of the grace: nothing is purged, and it
// deletes nothing else with a grace. It jumps back: the grace lasts longer. When it is
// right again the topic goes, not before its time.
func TestAGraceEndsByAClockThatIsRight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, clocks := newUndeletes(t, 3, 1)
		top := c.create("orders", 1)
		c.create("other", 1)
		leads := func() *node {
			for _, n := range c.running() {
				if leader, _ := n.meta.Leader(); leader == n.id {
					return n
				}
			}
			return nil
		}
		l := leads()
		other := c.running()[int(l.id)%3]
		require.NoError(t, other.topics.DeleteTopic(t.Context(), "orders", topic.WithGrace(time.Minute)))
		until := other.describe(t, "orders").Deletion.Until.Time()
		clocks[l.id].Store(int64(2 * time.Hour))
		pass(30 * time.Second)
		require.Equal(t, l, leads())
		require.Equal(t, metastore.TopicRetired, other.describe(t, "orders").State)
		err := l.topics.DeleteTopic(t.Context(), "other", topic.WithGrace(time.Minute))
		require.ErrorContains(t, err, "this node's clock is 2h0m0s off that of the others")
		require.Equal(t, raftlog.OutcomeRetry, raftlog.OutcomeOf(err))
		require.Equal(t, metastore.TopicActive, other.describe(t, "other").State)

		clocks[l.id].Store(-int64(2 * time.Hour))
		pass(time.Until(until) + 30*time.Second)
		require.Equal(t, l, leads())
		require.Equal(t, metastore.TopicRetired, other.describe(t, "orders").State, "nobody else purges")
		clocks[l.id].Store(0)
		settle(t, "gone", func() bool { _, err := l.meta.Topic("orders"); return errors.Is(err, metastore.ErrTopicNotFound) })

		// Of a leader whose clock is right it ends in time.
		require.NoError(t, other.topics.DeleteTopic(t.Context(), "other", topic.WithGrace(20*time.Second)))
		require.NoError(t, other.topics.DeleteTopic(t.Context(), "other", topic.WithGrace(40*time.Second)), "the later end counts")
		require.NoError(t, l.topics.DeleteTopic(t.Context(), "other", topic.WithGrace(time.Second)))
		until = other.describe(t, "other").Deletion.Until.Time()
		require.Greater(t, time.Until(until), 35*time.Second)
		pass(time.Until(until) - time.Second)
		require.Equal(t, metastore.TopicRetired, l.describe(t, "other").State)
		pass(20 * time.Second)
		_, err = other.topics.DescribeTopic(t.Context(), "other")
		require.ErrorIs(t, err, metastore.ErrTopicNotFound)
		_, err = other.topics.UndeleteTopic(t.Context(), "other")
		require.ErrorIs(t, err, metastore.ErrTopicNotFound)
		for _, n := range c.running() {
			settle(t, "the files are gone", n.clean)
			require.Empty(t, n.dirs())
		}
		_ = top
	})
}

// Property: I11, X1 (red: the partitions of a topic that was brought back were not opened; that a purge leaves one alone that is being brought back, the table of package metastore shows)
//
// Topics are brought back at all moments around the end of their grace, from all
// nodes: each is either as it was or gone, as the call said.
func TestUndeleteAgainstPurge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newUndeletes(t, 3, 1)
		const topics = 24
		name := func(i int) string { return fmt.Sprintf("topic-%02d", i) }
		p := producer(t, c.node(1), topic.ProducerConfig{})
		for i := range topics {
			c.create(name(i), 1)
			_, err := p.Produce(t.Context(), name(i), record("kept"))
			require.NoError(t, err)
		}
		var work sync.WaitGroup
		var back, gone atomic.Int64
		for i := range topics {
			require.NoError(t, c.node(1).topics.DeleteTopic(t.Context(), name(i), topic.WithGrace(10*time.Second)))
		}
		until := time.Now().Add(10 * time.Second)
		for i := range topics {
			work.Go(func() {
				pass(time.Until(until) + time.Duration(i)*620*time.Millisecond)
				var calls sync.WaitGroup
				for _, n := range c.running() {
					calls.Go(func() {
						_, err := n.topics.UndeleteTopic(t.Context(), name(i))
						switch {
						case err == nil:
							back.Add(1)
							_, err = producer(t, n, topic.ProducerConfig{}).Produce(t.Context(), name(i), record("more"))
							require.NoError(t, err)
						case errors.Is(err, topic.ErrTopicDeleted), errors.Is(err, metastore.ErrTopicNotFound):
							require.Equal(t, raftlog.OutcomeRefused, raftlog.OutcomeOf(err))
							gone.Add(1)
						default:
							require.NoError(t, err)
						}
					})
				}
				calls.Wait()
			})
		}
		work.Wait()
		pass(20 * time.Second)
		require.EqualValues(t, 3*topics, back.Load()+gone.Load())
		require.Positive(t, back.Load())
		require.Positive(t, gone.Load())
		t.Log("brought back:", back.Load()/3, "gone:", gone.Load()/3)
		lives := 0
		for i := range topics {
			if _, err := c.node(1).meta.Topic(name(i)); err == nil {
				require.Equal(t, []string{"kept", "more", "more", "more"}, c.node(2).dump(name(i), 0))
				lives++
			}
		}
		require.EqualValues(t, 3*lives, back.Load(), "all nodes were told the same")
	})
}

// Property: D1, M1, M4 (red: a topic in its grace was not planned for; its leaders began no moves; they refused to fill)
//
// A node is emptied while a topic that it holds is in its grace: the replica moves, and
// what it brought is there when the topic is brought back. A leader is emptied, too.
func TestANodeIsEmptiedOfATopicInItsGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newUndeletes(t, 4, 1)
		top := c.create("orders", 2)
		p := producer(t, c.node(1), topic.ProducerConfig{})
		var want [2][]string
		for i := range 40 {
			value := fmt.Sprint(i, strings.Repeat("x", 20_000))
			_, err := p.ProduceTo(t.Context(), "orders", uint32(i%2), record(value))
			require.NoError(t, err)
			want[i%2] = append(want[i%2], value)
		}
		require.NoError(t, c.node(2).topics.DeleteTopic(t.Context(), "orders", topic.WithGrace(5*time.Minute)))
		leaving := c.leader("orders", 0).id
		c.depart(leaving, metastore.Drains)
		settle(t, "it is empty", func() bool {
			replicas, _, err := c.node(leaving).meta.Load(leaving)
			return err == nil && replicas == 0
		})
		for i := range want {
			c.awaitConf(t, top, uint32(i))
			require.NotContains(t, c.on("orders", uint32(i)), leaving)
		}
		require.Equal(t, metastore.TopicRetired, c.node(2).describe(t, "orders").State)
		c.crash(leaving, simfs.Strict)
		_, err := c.running()[0].topics.UndeleteTopic(t.Context(), "orders")
		require.NoError(t, err)
		for i := range want {
			for _, n := range c.running() {
				require.Equal(t, want[i], n.dump("orders", uint32(i)))
			}
		}
		_, err = producer(t, c.running()[0], topic.ProducerConfig{}).ProduceTo(t.Context(), "orders", 0, record("more"))
		require.NoError(t, err)
	})
}

// Property: I11, P9 (red: a topic that was retiring could not be brought back; a late close ended what was open again)
//
// Of two partitions one has no quorum: the deletion is unknown, and so is what brings
// the topic back. It takes no records until the quorum is there. Then all goes on by
// itself, and what was asked of the partition before changes nothing.
func TestADeletionIsTakenBackWithoutAQuorum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newUndeletes(t, 5, 1)
		var top metastore.Topic
		var down []raftlog.NodeID
		for i := 0; down == nil; i++ {
			top = c.create(fmt.Sprint("orders-", i), 2)
			a, b := c.on(top.Name, 0), c.on(top.Name, 1)
			for x := range a {
				for _, y := range a[x+1:] {
					if !slices.Contains(b, a[x]) || !slices.Contains(b, y) {
						down = []raftlog.NodeID{a[x], y}
					}
				}
			}
		}
		p := producer(t, c.node(1), topic.ProducerConfig{})
		for part := range uint32(2) {
			_, err := p.ProduceTo(t.Context(), top.Name, part, record("old"))
			require.NoError(t, err)
		}
		c.crashAll(simfs.Strict, down...)
		n := c.running()[0]
		settle(t, "the metadata have a leader", func() bool { leader, _ := n.meta.Leader(); return c.node(leader) != nil })
		within := func(d time.Duration) context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			t.Cleanup(cancel)
			return ctx
		}
		err := n.topics.DeleteTopic(within(20*time.Second), top.Name, topic.WithGrace(5*time.Minute))
		require.ErrorIs(t, err, raftlog.ErrOutcomeUnknown)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, metastore.TopicRetiring, n.describe(t, top.Name).State)
		_, err = n.topics.UndeleteTopic(within(5*time.Second), top.Name)
		require.ErrorIs(t, err, raftlog.ErrOutcomeUnknown)
		require.Equal(t, metastore.TopicRestoring, n.describe(t, top.Name).State)
		_, err = producer(t, n, topic.ProducerConfig{}).ProduceTo(t.Context(), top.Name, 1, record("early"))
		require.ErrorIs(t, err, metastore.ErrTopicRestoring)
		require.Equal(t, raftlog.OutcomeRetry, raftlog.OutcomeOf(err))
		_, err = n.topics.CreateTopic(t.Context(), top.Name, metastore.TopicConfig{})
		require.ErrorIs(t, err, metastore.ErrTopicExists)

		c.startAll()
		settle(t, "it is back", func() bool { return n.describe(t, top.Name).State == metastore.TopicActive })
		pass(20 * time.Second)
		for part := range uint32(2) {
			l := c.leader(top.Name, part)
			late, err := l.topics.HandleCall(t.Context(), 99, "topic.close", topic.EncodeClose(top.Incarnation, part, topic.KindRetire, 1))
			require.NoError(t, err)
			require.ErrorIs(t, topic.DecodeResponse(late), topic.ErrPassed)
			_, err = producer(t, n, topic.ProducerConfig{}).ProduceTo(t.Context(), top.Name, part, record("new"))
			require.NoError(t, err)
			require.Equal(t, []string{"old", "new"}, n.dump(top.Name, part))
		}

		// What cannot be brought back for want of a quorum can be deleted for good.
		require.NoError(t, n.topics.DeleteTopic(t.Context(), top.Name, topic.WithGrace(5*time.Minute)))
		require.NoError(t, n.topics.DeleteTopic(t.Context(), top.Name))
		_, err = n.topics.DescribeTopic(t.Context(), top.Name)
		require.ErrorIs(t, err, metastore.ErrTopicNotFound)
	})
}

// Property: C9, P9 (red: at version 2 it was deleted without a grace)
//
// What a grace may be, and what a cluster of version 2 says of one: nothing happens.
func TestAGraceThatCannotBe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newMoves(t, 1, 1, func(cfg *topic.Config) { cfg.DeleteGrace = 10 * time.Second })
		c.create("orders", 1)
		n := c.node(1)
		var version *metastore.ClusterVersionError
		require.ErrorAs(t, n.topics.DeleteTopic(t.Context(), "orders"), &version)
		require.EqualValues(t, 3, version.Needs)
		c.upgradeTo(3)
		for _, grace := range []time.Duration{-1, time.Second - 1, metastore.MaxDeleteGrace + 1} {
			err := n.topics.DeleteTopic(t.Context(), "orders", topic.WithGrace(grace))
			var invalid *metastore.InvalidError
			require.ErrorAs(t, err, &invalid)
			require.Equal(t, "DeleteGrace", invalid.Field)
		}
		require.Equal(t, metastore.TopicActive, n.describe(t, "orders").State)
		require.NoError(t, n.topics.DeleteTopic(t.Context(), "orders"), "with that of Config")
		require.Equal(t, 10*time.Second, n.describe(t, "orders").Deletion.Until.Time().Sub(n.describe(t, "orders").Deletion.At.Time()))
		require.NoError(t, n.topics.DeleteTopic(t.Context(), "orders", topic.WithGrace(0)))
		require.ErrorIs(t, n.topics.DeleteTopic(t.Context(), "orders"), metastore.ErrTopicNotFound)
	})
	for _, grace := range []time.Duration{-1, time.Millisecond, metastore.MaxDeleteGrace + 1} {
		_, err := topic.Open(topic.Config{DeleteGrace: grace})
		require.Error(t, err)
	}
}

// Property: I11, P1, P4, P6, P7, P9, R11 (red: partitions of a topic that was brought back were not opened; open: forced recovery)
//
// Topics are deleted with a grace, brought back and written to from all nodes, while
// calls get lost and nodes lose power. Nothing is acknowledged between a deletion that
// returned and the next call that brings the topic back; at the end it is brought back
// and has what was acknowledged, once, in the order in which it was.
func TestDeletionsAreTakenBackInTrouble(t *testing.T) {
	for seed := range runs(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { deletionsInTrouble(t, seed) })
		})
	}
}

func deletionsInTrouble(t *testing.T, seed uint64) {
	c, _ := newUndeletes(t, 3, seed)
	c.mu.Lock()
	c.loss = 0.02
	c.mu.Unlock()
	top := c.create("orders", 1)
	rng := rand.New(rand.NewPCG(seed, 11))
	ctx, stop := context.WithCancel(t.Context())
	var (
		mu     sync.Mutex
		acked  = map[storage.Offset]string{}
		closed bool // a deletion returned, and nobody has begun to bring it back
		work   sync.WaitGroup
	)
	load := func(n *node) {
		p, err := n.topics.NewProducer(topic.ProducerConfig{})
		require.NoError(t, err)
		work.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				value := fmt.Sprint(n.id, "/", time.Now().UnixMilli(), "/", i)
				at, err := p.Produce(ctx, "orders", record(value))
				if errors.Is(err, raftlog.ErrClosed) {
					return
				}
				mu.Lock()
				if err == nil {
					require.False(t, closed, "%q was acknowledged at %v", value, at)
					require.NotContains(t, acked, at[0].Offset)
					acked[at[0].Offset] = value
				} else {
					require.NoError(t, outcomes(err))
				}
				mu.Unlock()
				pass(time.Duration(5+len(value)%7) * time.Millisecond)
			}
		})
	}
	for _, n := range c.running() {
		load(n)
	}
	// An undelete whose outcome is unknown may come about at any time, but for later
	// deletions.
	var doubt uint64
	number := func() (highest uint64) {
		for _, n := range c.running() {
			for _, top := range n.meta.Topics() {
				highest = max(highest, top.Deletion.Number)
			}
		}
		return highest
	}
	var deleted, back int
	for range 14 {
		pass(time.Duration(100+rng.IntN(900)) * time.Millisecond)
		n := c.running()[rng.IntN(len(c.running()))]
		call, cancel := context.WithTimeout(ctx, time.Duration(200+rng.IntN(6000))*time.Millisecond)
		switch rng.IntN(8) {
		case 0, 1, 2:
			if err := n.topics.DeleteTopic(call, "orders", topic.WithGrace(10*time.Minute)); err == nil {
				mu.Lock()
				closed = n.meta.Topics()[0].State == metastore.TopicRetired && number() > doubt
				mu.Unlock()
				deleted++
			} else {
				require.NoError(t, outcomes(err))
			}
		case 3, 4, 5:
			mu.Lock()
			closed = false
			mu.Unlock()
			if _, err := n.topics.UndeleteTopic(call, "orders"); err == nil {
				back++
			} else {
				require.NoError(t, outcomes(err))
				doubt = number()
			}
		default:
			c.crash(n.id, []simfs.Survival{simfs.Kill, simfs.Strict, simfs.Random}[rng.IntN(3)])
			pass(time.Duration(rng.IntN(1500)) * time.Millisecond)
			load(c.start(n.id))
		}
		cancel()
	}
	c.mu.Lock()
	c.loss = 0
	c.mu.Unlock()
	mu.Lock()
	closed = false
	mu.Unlock()
	settle(t, "it is back", func() bool {
		got, err := c.node(1).topics.UndeleteTopic(t.Context(), "orders")
		return err == nil && got.Incarnation == top.Incarnation
	})
	_, err := producer(t, c.node(2), topic.ProducerConfig{}).Produce(t.Context(), "orders", record("last"))
	require.NoError(t, err)
	stop()
	work.Wait()
	t.Log("deleted:", deleted, "brought back:", back, "acknowledged:", len(acked))
	all := c.node(1).dump("orders", 0)
	require.Equal(t, all, c.node(3).dump("orders", 0))
	seen := map[string]bool{}
	for i, value := range all {
		require.False(t, seen[value], "%q twice", value)
		seen[value] = true
		if want, ok := acked[storage.Offset(i)]; ok {
			require.Equal(t, want, value)
			delete(acked, storage.Offset(i))
		}
	}
	require.Empty(t, acked, "all that was acknowledged is there")
}
