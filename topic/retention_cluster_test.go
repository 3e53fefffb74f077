package topic_test

import (
	"errors"
	"strings"
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

// newRetaining starts nodes that may remove records, whose clocks are off by so
// much.
func newRetaining(t *testing.T, n int, seed uint64, off map[raftlog.NodeID]time.Duration) *cluster {
	c := newMoves(t, n, seed, func(cfg *topic.Config) { cfg.Clock = offClock{clock.System(), off[cfg.Node]} })
	c.upgradeTo(3)
	return c
}

// offClock is a clock that is off.
type offClock struct {
	clock.Clock
	by time.Duration
}

func (c offClock) Now() time.Time { return c.Clock.Now().Add(c.by) }

// starts returns where the replicas of orders/0 begin, on the nodes that hold
// one.
func (c *cluster) starts(top metastore.Topic) (all map[raftlog.NodeID]storage.LogStart) {
	all = map[raftlog.NodeID]storage.LogStart{}
	for _, id := range c.on("orders", 0) {
		if n := c.node(id); n != nil && n.topics.OpenGroup(top.Incarnation, 0) != nil {
			all[id] = n.topics.Group(top.Incarnation, 0).Log().Start()
		}
	}
	return all
}

// awaitStart waits until all replicas of orders/0 begin with the same record, at
// least this one.
func (c *cluster) awaitStart(top metastore.Topic, least storage.Offset) (same storage.LogStart) {
	c.t.Helper()
	settle(c.t, "all begin alike", func() bool {
		all := c.starts(top)
		if len(all) < 3 {
			return false
		}
		for _, s := range all {
			same = s
		}
		for _, s := range all {
			if s != same || s.Offset < least {
				return false
			}
		}
		return true
	})
	return same
}

// status returns what a node says of its replica of orders/0.
func (n *node) status() topic.PartitionStatus {
	for _, s := range n.topics.Status() {
		if s.Topic == "orders" {
			return s
		}
	}
	return topic.PartitionStatus{}
}

// bytesOf is the size of the files of a node's replicas of a topic.
func (c *cluster) bytesOf(id raftlog.NodeID, top metastore.Topic) (size int64) {
	for _, p := range c.files(id, ".seg") {
		if info, err := c.disks[id].Stat(p); err == nil && strings.HasPrefix(p, "data/topics/"+top.Name+"@"+top.Incarnation.String()) {
			size += info.Size()
		}
	}
	return size
}

// transfer makes a node lead orders/0.
func (c *cluster) transfer(top metastore.Topic, to raftlog.NodeID) {
	c.t.Helper()
	settle(c.t, "it leads", func() bool {
		l := c.leader("orders", 0)
		if l.id == to {
			return true
		}
		id, _ := c.partition("orders", 0).On(to)
		_ = l.topics.OpenGroup(top.Incarnation, 0).TransferLeadership(c.t.Context(), id)
		return false
	})
}

// Property: S9, P1, P2, P4, R9, R24, X1 (red: the leader removed by itself; files went with the log start, before a checkpoint; an idle journal was not asked)
//
// A partition keeps half a megabyte under load: a follower is cut off until its log
// ends below the start, another one loses power, so does the leader, and a replica
// comes on a fourth node. All begin with the same record, whoever asks for an
// earlier one is told, and a batch whose records are gone is still known to be a
// repetition. At the end no disk holds more than it has to.
func TestRetentionByBytesUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newRetaining(t, 4, 1, nil)
		const keep, segment = 512 << 10, 256 << 10
		top, err := c.node(1).topics.CreateTopic(t.Context(), "orders", metastore.TopicConfig{Retention: metastore.Retention{Bytes: keep}})
		require.NoError(t, err)
		leader := c.leader("orders", 0)
		send := func(n *node) (storage.Offset, error) {
			info := topic.BatchInfo{Incarnation: top.Incarnation, Producer: topic.ProducerBatch{ID: 77, First: 0}}
			response, err := n.topics.HandleCall(t.Context(), 99, "topic.produce", topic.EncodeProduce(top.Incarnation, 0, encode(info, time.Now(), record("once"))))
			require.NoError(t, err)
			return topic.DecodeProduced(response)
		}
		first, err := send(leader)
		require.NoError(t, err)
		var followers []raftlog.NodeID
		for _, id := range c.on("orders", 0) {
			if id != leader.id {
				followers = append(followers, id)
			}
		}
		reader, err := c.node(c.off("orders", 0)).topics.NewReader(t.Context(), at("orders", 0), topic.FromStart())
		require.NoError(t, err)
		defer reader.Close()

		lost, fourth := followers[0], c.off("orders", 0)
		c.isolate(lost, true)
		load := c.node(fourth).produceEvery(t, 20*time.Millisecond, "orders", 0, 16_000)
		settle(t, "the leader begins later", func() bool { return leader.status().Start > 0 })
		gone := leader.status().Start
		_, err = reader.Fetch(t.Context(), 1000)
		var out *topic.OutOfRangeError
		require.ErrorAs(t, err, &out, "it had not begun to read")
		require.Equal(t, "orders", out.Topic)
		require.GreaterOrEqual(t, out.Start, gone)
		require.Equal(t, raftlog.OutcomeRefused, raftlog.OutcomeOf(err))
		c.isolate(lost, false)
		settle(t, "the one that lacks what is gone is filled", func() bool { return c.node(lost).topics.Stats().Fills > 0 })

		c.crash(followers[1], simfs.Strict)
		pass(time.Second)
		c.start(followers[1])
		pass(2 * time.Second)
		c.crash(leader.id, simfs.Random)
		c.leader("orders", 0)
		pass(2 * time.Second)
		c.start(leader.id)
		require.NoError(t, c.node(fourth).topics.MoveReplica(t.Context(), at("orders", 0), followers[1], fourth))
		c.moved("orders", 0)
		pass(11 * time.Second)
		want := load.end(t)
		c.awaitConf(t, top, 0)
		pass(11 * time.Second) // what is due now goes

		start := c.awaitStart(top, gone+1)
		for _, id := range c.on("orders", 0) {
			requireFrom(t, c.node(id), top, start.Offset, want)
			status := c.node(id).status()
			require.Equal(t, start.Offset, status.Start)
			require.GreaterOrEqual(t, status.LogBytes, int64(keep))
			require.Less(t, status.LogBytes, int64(keep+segment))
			r, err := c.node(id).topics.NewReader(t.Context(), at("orders", 0), topic.FromStart())
			require.NoError(t, err)
			require.Equal(t, start.Offset, r.Offset())
			r.Close()
			_, err = c.node(id).topics.NewReader(t.Context(), at("orders", 0), topic.FromOffset(start.Offset-1))
			require.ErrorAs(t, err, &out)
			require.Equal(t, start.Offset, out.Start)
		}
		again, err := send(c.leader("orders", 0))
		require.NoError(t, err)
		require.Equal(t, first, again, "a batch that is gone is known")
		require.Positive(t, c.leader("orders", 0).topics.Stats().Removed)

		pass(160 * time.Second) // without load nothing else frees what was let go
		for _, id := range c.on("orders", 0) {
			require.Zero(t, c.node(id).store.TrimmedBytes())
			require.Less(t, c.bytesOf(id, top), int64(keep+segment))
		}
		var ids []raftlog.NodeID
		for _, n := range c.running() {
			ids = append(ids, n.id)
		}
		c.crashAll(simfs.Strict, ids...)
		c.startAll()
		require.Equal(t, start, c.awaitStart(top, start.Offset))
		for _, id := range c.on("orders", 0) {
			requireFrom(t, c.node(id), top, start.Offset, want)
		}
		again, err = send(c.leader("orders", 0))
		require.NoError(t, err)
		require.Equal(t, first, again, "after a restart too")
	})
}

// Property: S9, R24 (red: what the first sender had more of stayed)
//
// A fill breaks off, and goes on from another sender after all replicas have removed
// some of what had come: the copy begins where they do.
func TestAFillGoesOnBehindALogStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newMoves(t, 4, 3, func(cfg *topic.Config) { cfg.FillBytesPerSecond = 1 << 20 })
		c.upgradeTo(3)
		top, err := c.node(1).topics.CreateTopic(t.Context(), "orders", metastore.TopicConfig{})
		require.NoError(t, err)
		load := c.node(2).produceEvery(t, 5*time.Millisecond, "orders", 0, 40_000)
		pass(500 * time.Millisecond)
		want := load.end(t)
		c.leader("orders", 0)
		to := c.off("orders", 0)
		var got atomic.Int64
		reached, removed := make(chan struct{}), make(chan struct{})
		c.onFlow(func(_, _ raftlog.NodeID, b []byte) error {
			n := got.Add(int64(len(b)))
			if n >= 1_500_000 && n-int64(len(b)) < 1_500_000 {
				close(reached)
				<-removed
				return errors.New("the stream broke")
			}
			return nil
		})
		require.NoError(t, c.node(to).topics.MoveReplica(t.Context(), at("orders", 0), c.on("orders", 0)[2], to))
		<-reached
		size := int64(len(want)) * 40_000
		_, err = c.node(1).topics.SetRetention(t.Context(), "orders", metastore.Retention{Bytes: size - 700_000})
		require.NoError(t, err)
		start := storage.LogStart{}
		settle(t, "the others begin later", func() bool {
			same := 0
			for id, s := range c.starts(top) {
				if id != to && s.Offset > 0 && (start == storage.LogStart{} || s == start) {
					start, same = s, same+1
				}
			}
			return same == 3
		})
		close(removed)
		c.moved("orders", 0)
		c.awaitConf(t, top, 0)
		require.Equal(t, start, c.awaitStart(top, 1))
		requireFrom(t, c.node(to), top, start.Offset, want)
		require.EqualValues(t, 1, c.node(to).topics.Stats().Fills)
		require.Less(t, got.Load(), size*3/2, "nothing came twice")
		c.crash(to, simfs.Strict)
		c.start(to)
		require.Equal(t, start, c.awaitStart(top, 1))
		requireFrom(t, c.node(to), top, start.Offset, want)
	})
}

// Property: S9, P8 (red: no clock was asked; this node's own was the only one in the median)
//
// Records are kept for a minute and a half. A leader whose clock is an hour ahead
// takes over: by it all is due, and nothing goes before another one leads.
func TestRetentionByAgeWaitsForTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		off := map[raftlog.NodeID]time.Duration{}
		c := newRetaining(t, 3, 2, off)
		const age = 90 * time.Second
		top, err := c.node(1).topics.CreateTopic(t.Context(), "orders", metastore.TopicConfig{})
		require.NoError(t, err)
		sound := c.leader("orders", 0)
		ahead := c.on("orders", 0)[0]
		if ahead == sound.id {
			ahead = c.on("orders", 0)[1]
		}
		c.crash(ahead, simfs.Kill)
		off[ahead] = time.Hour
		c.start(ahead)
		began := time.Now()
		load := sound.produceSteadily(t, "orders", 0, 8000)
		pass(time.Second)
		want := load.end(t)

		changed, err := c.node(1).topics.SetRetention(t.Context(), "orders", metastore.Retention{Age: age})
		require.NoError(t, err)
		require.Equal(t, age, changed.Config.Retention.Age)
		c.transfer(top, ahead)
		pass(30 * time.Second)
		require.Contains(t, c.node(ahead).status().RetentionWaits, "this node's clock is 1h0m0s off")
		require.Zero(t, c.awaitStart(top, 0).Offset)
		requireFrom(t, c.node(ahead), top, 0, want)

		c.transfer(top, sound.id)
		pass(time.Until(began.Add(age - 12*time.Second)))
		require.Zero(t, c.awaitStart(top, 0).Offset, "not before")
		require.Empty(t, sound.status().RetentionWaits)
		pass(35 * time.Second)
		start := c.awaitStart(top, 1)
		segments, err := sound.topics.Group(top.Incarnation, 0).Log().Segments()
		require.NoError(t, err)
		require.Len(t, segments, 1, "the one that is written stays")
		requireFrom(t, sound, top, start.Offset, want)
		r, err := c.node(ahead).topics.NewReader(t.Context(), at("orders", 0), topic.FromTime(began.Add(-time.Hour)))
		require.NoError(t, err)
		require.Equal(t, start.Offset, r.Offset())
		r.Close()

		_, err = c.node(1).topics.SetRetention(t.Context(), "orders", metastore.Retention{})
		require.NoError(t, err)
		load = sound.produceSteadily(t, "orders", 0, 8000)
		pass(time.Second)
		load.end(t)
		pass(2 * age)
		require.Equal(t, start, c.awaitStart(top, 0), "all is kept now")
	})
}

// Before version 3 of the cluster a topic cannot have a retention, nor get one.
//
// Property: C9 (red: a command of version 2 set it)
func TestRetentionNeedsAVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newMoves(t, 1, 3, nil)
		keep := metastore.Retention{Bytes: 1}
		var version *metastore.ClusterVersionError
		_, err := c.node(1).topics.CreateTopic(t.Context(), "kept", metastore.TopicConfig{Retention: keep})
		require.ErrorAs(t, err, &version)
		require.EqualValues(t, 3, version.Needs)
		_, err = c.node(1).topics.CreateTopic(t.Context(), "orders", metastore.TopicConfig{})
		require.NoError(t, err)
		_, err = c.node(1).topics.SetRetention(t.Context(), "orders", keep)
		require.ErrorAs(t, err, &version)
		c.upgradeTo(3)
		for _, bad := range []metastore.Retention{{Age: time.Second - 1}, {Age: -1}, {Bytes: -1}, {Age: metastore.MaxRetentionAge + 1}, {Bytes: 1<<60 + 1}} {
			var invalid *metastore.InvalidError
			_, err = c.node(1).topics.SetRetention(t.Context(), "orders", bad)
			require.ErrorAs(t, err, &invalid, "%+v", bad)
			require.Contains(t, invalid.Field, "Retention.")
			_, err = c.node(1).topics.CreateTopic(t.Context(), "kept", metastore.TopicConfig{Retention: bad})
			require.ErrorAs(t, err, &invalid, "%+v", bad)
		}
		_, err = c.node(1).topics.SetRetention(t.Context(), "none", keep)
		require.ErrorIs(t, err, metastore.ErrTopicNotFound)
		got, err := c.node(1).topics.SetRetention(t.Context(), "orders", metastore.Retention{Age: time.Second + 1})
		require.NoError(t, err)
		require.Equal(t, metastore.Retention{Age: time.Second + time.Millisecond}, got.Config.Retention)
		got, err = c.node(1).topics.DescribeTopic(t.Context(), "orders")
		require.NoError(t, err)
		require.Equal(t, metastore.Retention{Age: time.Second + time.Millisecond}, got.Config.Retention)
	})
}
