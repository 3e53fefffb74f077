package topic_test

import (
	"fmt"
	"sort"
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

// TestStampsNeverStepBack: what a leader stamped with a clock that is behind is
// refused by all replicas alike, and sent again.
//
// Property: P1, R11 (red: it was appended)
func TestStampsNeverStepBack(t *testing.T) {
	m := newMachine()
	m.send(0, 0, 0, 3)
	stamped := func(by time.Duration) topic.Decision {
		m.index++
		return m.state.Apply(m.index, storage.EntryNormal, encode(topic.BatchInfo{Incarnation: someIncarnation}, m.now.Add(by), record("x")))
	}
	d := stamped(-time.Millisecond)
	require.Equal(t, storage.VerdictRefused, d.Verdict)
	require.ErrorIs(t, d.Err, raftlog.ErrRetry)
	m.reopen(t)
	require.Equal(t, storage.VerdictRefused, stamped(-time.Millisecond).Verdict)
	require.Equal(t, data(3, 1), stamped(0))
	require.Equal(t, data(4, 1), stamped(time.Hour))
	require.Equal(t, storage.VerdictRefused, stamped(time.Minute).Verdict)
}

// stamped is a batch of a partition.
type stamped struct {
	base  storage.Offset
	stamp time.Time
}

// batches returns all batches of a partition, as a node shows them.
func (n *node) batches(at topic.TopicPartition) (all []stamped, end storage.Offset) {
	t := n.cluster.t
	t.Helper()
	r, err := n.topics.NewReader(t.Context(), at, topic.FromEnd())
	require.NoError(t, err)
	end = r.Offset()
	r.Close()
	r, err = n.topics.NewReader(t.Context(), at, topic.FromStart())
	require.NoError(t, err)
	defer r.Close()
	for r.Offset() < end {
		v, err := r.Fetch(t.Context(), 1<<20)
		require.NoError(t, err)
		for data := v.Bytes(); len(data) > 0; {
			var b topic.Batch
			b, data, err = topic.ReadBatch(data)
			require.NoError(t, err)
			all = append(all, stamped{b.BaseOffset(), time.UnixMilli(b.Stamp())})
		}
	}
	return all, end
}

// TestReadersBeginAtATime: at every node, with a replica or without, after
// changes of leaders whose clocks differ, and after a restart.
//
// Property: P1, P8 (red: leaders stamped by their own clock alone; red: the search took a replica's word for its end; retention: TestRetentionByAgeWaitsForTheClock)
func TestReadersBeginAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, 1)
		c.config = func(cfg *topic.Config) {
			late := &lateClock{Clock: clock.System()}
			late.by.Store(int64(cfg.Node%3) * int64(40*time.Second))
			cfg.Clock = late
		}
		c.startAll()
		made, err := c.node(1).topics.CreateTopic(t.Context(), "orders", metastore.TopicConfig{Replicas: 3})
		require.NoError(t, err)
		where := at("orders", 0)
		outside := c.outside(made.Partitions[0])
		begun := func(n *node, when time.Time) storage.Offset {
			r, err := n.topics.NewReader(t.Context(), where, topic.FromTime(when))
			require.NoError(t, err)
			defer r.Close()
			return r.Offset()
		}
		require.Zero(t, begun(outside, time.Time{}), "an empty partition")
		require.Zero(t, begun(outside, time.Now().Add(time.Hour)))

		p := producer(t, outside, topic.ProducerConfig{MaxBatchBytes: 1 << 10})
		leaders := map[raftlog.NodeID]bool{}
		for round := range 12 {
			for i := range 20 {
				records := make([]topic.Record, 1+i%4)
				for j := range records {
					records[j] = record(fmt.Sprint(round, " ", i))
				}
				_, err := p.ProduceTo(t.Context(), "orders", 0, records...)
				require.NoError(t, err)
				pass(time.Duration(i*37) * time.Millisecond)
			}
			lead := c.leader("orders", 0)
			leaders[lead.id] = true
			require.NoError(t, lead.host.Close(t.Context()))
			c.crash(lead.id, simfs.Strict)
			c.start(lead.id)
		}
		require.Greater(t, len(leaders), 1)
		// A follower that does not know what others have acknowledged.
		cut := c.follower(made.Partitions[0], c.leader("orders", 0))
		settle(t, "readable", func() bool { s := cut.topics.Status(); return len(s) == 1 && s[0].Readable })
		c.isolate(cut.id, true)
		_, err = p.ProduceTo(t.Context(), "orders", 0, record("behind"))
		require.NoError(t, err)
		newest, end := outside.batches(where)
		opened := make(chan storage.Offset, 1)
		go func() { opened <- begun(cut, newest[len(newest)-1].stamp.Add(time.Millisecond)) }()
		pass(500 * time.Millisecond)
		c.isolate(cut.id, false)
		require.Equal(t, end, <-opened)

		all, end := outside.batches(where)
		require.Greater(t, len(all), 200)
		require.True(t, sort.SliceIsSorted(all, func(i, j int) bool { return all[i].stamp.Before(all[j].stamp) }))
		for _, n := range c.running() {
			for i := 0; i < len(all); i += 7 {
				for _, when := range []time.Time{all[i].stamp, all[i].stamp.Add(-time.Microsecond), all[i].stamp.Add(time.Microsecond)} {
					want := end
					if k := sort.Search(len(all), func(k int) bool { return !all[k].stamp.Before(when) }); k < len(all) {
						want = all[k].base
					}
					require.Equal(t, want, begun(n, when), "%v of batch %d at node %v", when, i, n.id)
				}
			}
			require.Zero(t, begun(n, time.Unix(0, 0)))
			require.Equal(t, end, begun(n, time.Now().Add(time.Hour)))
		}
		r, err := outside.topics.NewReader(t.Context(), where, topic.FromTime(all[100].stamp))
		require.NoError(t, err)
		defer r.Close()
		for got, err := range r.Records(t.Context()) {
			require.NoError(t, err)
			require.LessOrEqual(t, got.Offset, all[100].base)
			break
		}
	})
}

// TestASearchForATimeReadsLittle: frames, not segments, and nothing at opening; as much
// of a log that is four times as long.
//
// Property: S10 (red: the search read on from where it looked; it looked at one batch after the other)
func TestASearchForATimeReadsLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 1, 1)
		c.create("orders", 1)
		var read atomic.Int64
		counts := func(op simfs.Op) error {
			if op.Kind == simfs.OpRead {
				read.Add(op.Length)
			}
			return nil
		}
		searched := func(batches int) (most, whole int64) {
			p := producer(t, c.node(1), topic.ProducerConfig{})
			for range batches {
				_, err := p.Produce(t.Context(), "orders", topic.Record{Value: make([]byte, 5000)})
				require.NoError(t, err)
				pass(time.Second)
			}
			c.crash(1, simfs.Strict)
			n := c.start(1)
			settle(t, "readable", func() bool { s := n.topics.Status(); return len(s) == 1 && s[0].Readable })
			c.disks[1].SetHook(counts)
			defer c.disks[1].SetHook(nil)
			all, _ := n.batches(at("orders", 0))
			whole = read.Swap(0)
			for _, i := range []int{len(all) / 7, len(all) / 3, len(all) - 10} {
				r, err := n.topics.NewReader(t.Context(), at("orders", 0), topic.FromTime(all[i].stamp))
				require.NoError(t, err)
				require.Equal(t, all[i].base, r.Offset())
				r.Close()
				most = max(most, read.Swap(0))
			}
			t.Logf("read %d bytes to search a log of %d", most, whole)
			return most, whole
		}
		few, _ := searched(750)
		many, whole := searched(2250) // 3,000 by now
		require.Less(t, many, whole/8)
		require.Positive(t, few)
		require.Less(t, many, few*3/2)
	})
}
