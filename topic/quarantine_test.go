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

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

var strange = storage.Incarnation{0xaa, 0xbb}

// leftover is a log that is left in quarantine of a topic that nobody knows.
type leftover struct {
	partition uint32
	replica   storage.ReplicaID
	batches   [][]topic.Record
}

// leave puts a topic's directory with logs into quarantine on a node, and returns it.
// Between the batches are entries that are no records: empty ones, changes of the
// configuration, duplicates, and what was refused.
func (n *node) leave(name string, inc storage.Incarnation, logs ...leftover) string {
	pass(time.Minute) // the sweep of the start is over, which would move it, too
	t := n.cluster.t
	t.Helper()
	dir, err := n.store.CreateTopicDir(name, inc)
	require.NoError(t, err)
	for _, l := range logs {
		log, err := n.store.OpenLog(storage.ReplicaState{
			Group: storage.GroupID(1000 + l.partition), Replica: l.replica, Status: storage.ReplicaLive, Dir: storage.ReplicaDir(dir, l.partition, l.replica),
			Log: storage.LogPosition{StartIndex: 1, StartTerm: 1, LastIndex: 1, LastTerm: 1},
		})
		require.NoError(t, err)
		index, next := storage.Index(2), storage.Offset(0)
		add := func(v storage.Verdict, kind storage.EntryKind, data []byte, count uint32) {
			e := storage.LogEntry{Entry: storage.Entry{Index: index, Term: 1, Kind: kind, Data: data}, Verdict: v, BaseOffset: next, Count: count}
			require.NoError(t, log.Append([]storage.LogEntry{e}))
			index, next = index+1, next+storage.Offset(count)
		}
		for i, records := range l.batches {
			data := encode(topic.BatchInfo{Incarnation: inc, Codec: topic.Codec(i % 3)}, someTime, records...)
			add(storage.VerdictEmpty, storage.EntryNormal, nil, 0)
			add(storage.VerdictData, storage.EntryNormal, data, uint32(len(records)))
			add(storage.VerdictDuplicate, storage.EntryNormal, data, 0)
			add(storage.VerdictConfig, storage.EntryConfChangeV2, []byte("x"), 0)
			add(storage.VerdictRefused, storage.EntryNormal, encode(topic.BatchInfo{Incarnation: storage.Incarnation{1}}, someTime, record("refused")), 0)
		}
		require.NoError(t, log.Close())
	}
	before, _ := n.quarantined()
	require.NoError(t, n.store.QuarantineTopic(storage.TopicDir{Dir: dir}, storage.Reason{Kind: storage.ReasonForeign, Text: "a test left it"}))
	after, _ := n.quarantined()
	for _, d := range after {
		if !slices.Contains(before, d) {
			return d
		}
	}
	require.FailNow(t, "it is not there")
	return ""
}

// variety are n batches of records of all kinds.
func variety(who string, n int) (batches [][]topic.Record) {
	for i := range n {
		at := someTime.Add(time.Duration(i) * time.Minute)
		batches = append(batches, []topic.Record{
			{Key: []byte(fmt.Sprint(who, " ", i)), Value: []byte(strings.Repeat("a lot ", 500)), Timestamp: at},
			{Value: []byte{}, Timestamp: at.Add(-time.Hour), Headers: []topic.Header{{Key: "h", Value: []byte("1")}, {Key: "h"}, {Key: "", Value: []byte{}}}},
			{Key: []byte{}, Timestamp: at},
		})
	}
	return batches
}

func copies(batches [][]topic.Record) (all []topic.Record) {
	for _, records := range batches {
		for i := range records {
			all = append(all, clone(&records[i]))
		}
	}
	return all
}

// records reads a whole partition through a node.
func (n *node) records(name string, partition uint32) (all []topic.Record) {
	t := n.cluster.t
	t.Helper()
	at := topic.TopicPartition{Topic: name, Partition: partition}
	end, err := n.topics.NewReader(t.Context(), at, topic.FromEnd())
	require.NoError(t, err)
	defer end.Close()
	r, err := n.topics.NewReader(t.Context(), at, topic.FromStart())
	require.NoError(t, err)
	defer r.Close()
	for r.Offset() < end.Offset() {
		v, err := r.Fetch(t.Context(), 1<<20)
		require.NoError(t, err)
		for v.Next() {
			require.EqualValues(t, len(all), v.Offset())
			all = append(all, clone(v.Record()))
		}
		require.NoError(t, v.Err())
	}
	return all
}

// read reads a log in quarantine to its end or to the first error.
func (n *node) read(from topic.QuarantineSource) (all []topic.Record, err error) {
	t := n.cluster.t
	t.Helper()
	r, err := n.topics.ReadQuarantined(t.Context(), from)
	require.NoError(t, err)
	defer r.Close()
	next := from.From
	for record, err := range r.Records(t.Context()) {
		if err != nil {
			return all, err
		}
		require.Equal(t, next, record.Offset)
		next++
		all = append(all, record.Record)
		require.Equal(t, next, r.Offset())
	}
	return all, nil
}

// What is in quarantine is listed, looked at, and restored as another topic: exactly
// the records, with all that they have, and nothing of what was no record. What
// nobody can prove to be dead stays.
//
// Property: X1 (red: reclaimable took the unknown for dead, which Confirm refused)
func TestRecordsAreRestoredFromQuarantine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := startSwept(t, 1, 71, nil)
		n := c.node(1)
		settle(t, "caught up", func() bool { return n.meta.Barrier(t.Context()) == nil })
		zero, two := variety("zero", 40), variety("two", 3)
		dir := n.leave("orders", strange, leftover{0, 7, zero}, leftover{2, 8, two}, leftover{2, 9, two[:2]})

		all, err := n.topics.Quarantine(t.Context())
		require.NoError(t, err)
		require.Len(t, all, 1)
		require.Equal(t, topic.FateUnknown, all[0].Fate)
		require.Equal(t, storage.ReasonForeign, all[0].Reason.Kind)
		require.Len(t, all[0].Logs, 3)
		require.NoError(t, all[0].Kept)

		got, err := n.read(topic.QuarantineSource{Dir: dir})
		require.NoError(t, err)
		require.Equal(t, copies(zero), got)
		got, err = n.read(topic.QuarantineSource{Dir: dir, From: 100})
		require.NoError(t, err)
		require.Equal(t, copies(zero)[100:], got)
		got, err = n.read(topic.QuarantineSource{Dir: dir, Partition: 2, Replica: 9})
		require.NoError(t, err)
		require.Equal(t, copies(two[:2]), got)
		r, err := n.topics.ReadQuarantined(t.Context(), topic.QuarantineSource{Dir: dir, Partition: 2})
		require.NoError(t, err)
		require.EqualValues(t, 8, r.Source().Replica, "the longer one")
		for i, want := range copies(two) { // one at a time
			for record, err := range r.Records(t.Context()) {
				require.NoError(t, err)
				require.EqualValues(t, i, record.Offset)
				require.Equal(t, want, record.Record)
				break
			}
		}
		require.Equal(t, strange, r.Incarnation())
		r.Close()

		restore := func(cfg topic.RestoreConfig) (topic.Restored, *topic.RestoreError) {
			t.Helper()
			got, err := n.topics.RestoreQuarantined(t.Context(), cfg)
			var failed *topic.RestoreError
			if err != nil {
				oneOutcome(t, err)
				require.ErrorAs(t, err, &failed)
			}
			return got, failed
		}
		_, failed := restore(topic.RestoreConfig{Dirs: []string{dir}, Topic: "back"})
		require.Equal(t, topic.RestoreLost, failed.Reason)
		require.Equal(t, 1, failed.Partition)
		_, failed = restore(topic.RestoreConfig{Topic: "back"})
		require.Equal(t, topic.RestoreNothing, failed.Reason)
		_, err = n.topics.RestoreQuarantined(t.Context(), topic.RestoreConfig{Dirs: []string{dir}, Topic: "b/ck"})
		require.ErrorIs(t, err, raftlog.ErrRefused)
		_, err = n.topics.RestoreQuarantined(t.Context(), topic.RestoreConfig{Dirs: []string{"../topics/x~1"}, Topic: "back"})
		require.ErrorIs(t, err, storage.ErrNotQuarantined)
		require.ErrorIs(t, err, raftlog.ErrRefused)
		var invalid *metastore.InvalidError
		_, err = n.topics.RestoreQuarantined(t.Context(), topic.RestoreConfig{Dirs: []string{dir}, Topic: "back", Partial: true, Config: metastore.TopicConfig{Partitions: 2}})
		require.ErrorAs(t, err, &invalid)
		topics, err := n.topics.ListTopics(t.Context())
		require.NoError(t, err)
		require.Empty(t, topics, "nothing was made")

		done, failed := restore(topic.RestoreConfig{Dirs: []string{dir}, Topic: "back", Partial: true, Config: metastore.TopicConfig{Partitions: 4}})
		require.Nil(t, failed)
		require.Equal(t, strange, done.Incarnation)
		require.NotEqual(t, strange, done.Topic.Incarnation)
		require.EqualValues(t, 129, done.Records)
		require.Len(t, done.Partitions, 4)
		require.Equal(t, topic.RestoredPartition{Partition: 2, Dir: dir + "/2.8", End: 9, Records: 9, Restored: 9}, done.Partitions[2])
		require.Empty(t, done.Partitions[1].Dir)
		require.Equal(t, copies(zero), n.records("back", 0))
		require.Empty(t, n.records("back", 1))
		require.Equal(t, copies(two), n.records("back", 2))
		require.EqualValues(t, 129, n.topics.Stats().Restored)

		_, err = n.topics.RestoreQuarantined(t.Context(), topic.RestoreConfig{Dirs: []string{dir}, Topic: "back", Partial: true})
		require.ErrorIs(t, err, metastore.ErrTopicExists)
		again, failed := restore(topic.RestoreConfig{Dirs: []string{dir}, Topic: "back", Partial: true, Resume: true, Config: metastore.TopicConfig{Partitions: 4}})
		require.Nil(t, failed)
		require.Equal(t, done.Topic.Incarnation, again.Topic.Incarnation)
		require.EqualValues(t, 120, again.Partitions[0].Found)
		require.Equal(t, copies(zero), n.records("back", 0))
		_, failed = restore(topic.RestoreConfig{Dirs: []string{dir}, Topic: "back", Partial: true, Resume: true})
		require.Equal(t, topic.RestoreDiffers, failed.Reason, "another number of partitions")

		other := n.leave("orders", storage.Incarnation{0xcc}, leftover{1, 905, variety("one", 1)})
		_, failed = restore(topic.RestoreConfig{Dirs: []string{dir, other}, Topic: "mixed"})
		require.Equal(t, topic.RestoreMixed, failed.Reason)
		for _, d := range []string{dir, other} {
			_, err = n.topics.ReclaimQuarantined(t.Context(), d)
			var refused *topic.ReclaimError
			require.ErrorAs(t, err, &refused)
			require.Equal(t, topic.QuarantineUnknown, refused.Reason)
			require.ErrorIs(t, err, raftlog.ErrRefused)
		}
		dirs, _ := n.quarantined()
		require.Len(t, dirs, 2)
	})
}

// Damage is told with its place. What can be read before and behind it is restored if
// that is asked for, and the answer says what was lost.
func TestDamageInQuarantineIsToldAndRestoredAround(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, 72)
		c.segment = 8 << 10
		c.startAll()
		n := c.node(1)
		settle(t, "caught up", func() bool { return n.meta.Barrier(t.Context()) == nil })
		want := variety("zero", 40)
		dir := n.leave("orders", strange, leftover{0, 7, want})
		fs, path := c.disks[1], "data/"+dir+"/0.7/"
		names, err := fs.List(path)
		require.NoError(t, err)
		names = slices.DeleteFunc(names, func(s string) bool { return !strings.HasSuffix(s, ".seg") })
		slices.Sort(names)
		require.Greater(t, len(names), 4)
		require.NoError(t, fs.Flip(path+names[1], 5000, 3))
		last := names[len(names)-1]
		info, err := fs.Stat(path + last)
		require.NoError(t, err)
		require.NoError(t, fs.Truncate(path+last, info.Size()-1))

		got, err := n.read(topic.QuarantineSource{Dir: dir})
		var damage *topic.QuarantineDamageError
		require.ErrorAs(t, err, &damage)
		require.ErrorIs(t, err, raftlog.ErrRefused)
		require.EqualValues(t, len(got), damage.Offset)
		require.NotEmpty(t, got)
		require.Equal(t, copies(want)[:len(got)], got)
		var bytes *storage.DamageError
		require.ErrorAs(t, err, &bytes)
		require.True(t, strings.HasSuffix(bytes.Path, names[1]))

		cfg := topic.RestoreConfig{Dirs: []string{dir}, Topic: "back"}
		_, err = n.topics.RestoreQuarantined(t.Context(), cfg)
		var failed *topic.RestoreError
		require.ErrorAs(t, err, &failed)
		require.Equal(t, topic.RestoreLost, failed.Reason)
		require.ErrorAs(t, err, &damage)
		cfg.Partial = true
		done, err := n.topics.RestoreQuarantined(t.Context(), cfg)
		require.NoError(t, err)
		p := done.Partitions[0]
		require.Len(t, p.Lost, 2)
		require.EqualValues(t, len(got), p.Lost[0].From)
		require.Equal(t, topic.NoOffset, p.Lost[1].To)
		readable := append(copies(want)[:p.Lost[0].From:p.Lost[0].From], copies(want)[p.Lost[0].To:p.Lost[1].From]...)
		require.Equal(t, readable, n.records("back", 0))
		require.EqualValues(t, len(readable), p.Records)
	})
}

// A restore whose quorum is lost says so, and goes on later with what is missing, and
// not with a topic to which somebody else appended.
//
// Property: P4 (red: Resume without compare; append without its look at the offset)
func TestARestoreGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newMoves(t, 3, 73, nil)
		n := c.node(1)
		want := variety("zero", 60)
		for i := range want { // batches of their own
			want[i][0].Value = slices.Repeat([]byte("large "), 4_000)
		}
		dir := n.leave("orders", strange, leftover{0, 7, want})
		cfg := topic.RestoreConfig{Dirs: []string{dir}, Topic: "back", Config: metastore.TopicConfig{MaxBatchBytes: 64 << 10}}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stop := make(chan struct{})
		go func() {
			defer close(stop)
			for ctx.Err() == nil && n.topics.Stats().Records < 20 {
				pass(time.Millisecond)
			}
			c.isolate(2, true)
			c.isolate(3, true)
			pass(5 * time.Second)
			cancel()
		}()
		done, err := n.topics.RestoreQuarantined(ctx, cfg)
		<-stop
		var failed *topic.RestoreError
		require.ErrorAs(t, err, &failed)
		require.Equal(t, topic.RestoreInterrupted, failed.Reason)
		require.ErrorIs(t, err, context.Canceled)
		oneOutcome(t, err)
		require.ErrorIs(t, err, raftlog.ErrOutcomeUnknown)
		require.EqualValues(t, 180, done.Partitions[0].Records)
		require.Less(t, done.Records, uint64(180))
		require.Positive(t, done.Records)
		c.isolate(2, false)
		c.isolate(3, false)
		c.leader("back", 0)
		cfg.Resume = true
		again, err := n.topics.RestoreQuarantined(t.Context(), cfg)
		require.NoError(t, err)
		require.GreaterOrEqual(t, again.Partitions[0].Found, done.Records)
		require.EqualValues(t, 180, again.Records)
		for _, n := range c.running() {
			require.Equal(t, copies(want), n.records("back", 0))
		}
		p := producer(t, n, topic.ProducerConfig{})
		_, err = p.Produce(t.Context(), "back", record("mine"))
		require.NoError(t, err)
		_, err = n.topics.RestoreQuarantined(t.Context(), cfg)
		require.ErrorAs(t, err, &failed)
		require.Equal(t, topic.RestoreDiffers, failed.Reason)
		require.ErrorIs(t, err, raftlog.ErrRefused)

		// Somebody appends while it runs.
		meddled := make(chan error, 1)
		go func() {
			for {
				_, err := p.Produce(t.Context(), "meddled", record("mine"))
				if !errors.Is(err, metastore.ErrTopicNotFound) {
					meddled <- err
					return
				}
				pass(time.Millisecond)
			}
		}()
		_, err = n.topics.RestoreQuarantined(t.Context(), topic.RestoreConfig{Dirs: []string{dir}, Topic: "meddled", Config: cfg.Config})
		require.NoError(t, <-meddled)
		require.ErrorAs(t, err, &failed)
		require.Equal(t, topic.RestoreDiffers, failed.Reason)
	})
}

// A call reclaims what is confirmed to be over, one directory and no other, and says
// why it does not.
//
// Property: X1, X2 (red: reclaimQuarantined without hasLeft; without Confirm's error)
func TestReclaimNamesOneDirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, told := startSwept(t, 4, 74, nil)
		made := c.create("orders", 1)
		from, to := c.on("orders", 0)[2], c.off("orders", 0)
		old := c.partition("orders", 0).Replicas[2].Replica
		stays := c.partition("orders", 0).Replicas[1].Replica
		require.NoError(t, c.node(1).topics.MoveReplica(t.Context(), at("orders", 0), from, to))
		c.moved("orders", 0)
		n := c.node(from)
		settle(t, "its copy is reclaimed", n.clean)

		// Directories of single replicas of a topic that lives: one has left, one is there.
		fs := c.disks[from]
		marker := fileOf(t, fs, "data/topics/orders@"+made.Incarnation.String()+"/INCARNATION")
		byHand := func(name string, marker []byte) string {
			path := "data/quarantine/" + name
			require.NoError(t, fs.MkdirAll(path, 0o755))
			putFile(t, fs, path+"/bytes", []byte("x"))
			if marker != nil {
				putFile(t, fs, path+"/INCARNATION", marker)
			}
			return "quarantine/" + name
		}
		base := "orders@" + made.Incarnation.String()
		gone := byHand(fmt.Sprintf("%s.0.%d~1", base, old), marker)
		there := byHand(fmt.Sprintf("%s.0.%d~1", base, stays), marker)
		lives, unmarked, meta := byHand(base+"~1", marker), byHand(base+"~2", nil), byHand("meta~1", nil)
		reclaim := func(dir string) (topic.Reclaimed, *topic.ReclaimError) {
			t.Helper()
			got, err := n.topics.ReclaimQuarantined(t.Context(), dir)
			var refused *topic.ReclaimError
			if dir == gone && errors.Is(err, storage.ErrNotQuarantined) {
				return got, nil // a pass of the sweeper was faster
			}
			if err != nil {
				oneOutcome(t, err)
				require.ErrorAs(t, err, &refused)
				require.Equal(t, refused.Reason == topic.QuarantineUnconfirmed || refused.Reason == topic.QuarantineBusy, errors.Is(err, raftlog.ErrRetry))
				require.Empty(t, got.Dirs)
			}
			return got, refused
		}
		meet := func(broken string) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.meet = func(_, _ raftlog.NodeID, method string) error {
				if broken != "" && strings.HasSuffix(method, broken) {
					return errors.New("the connection broke")
				}
				return nil
			}
		}
		for dir, why := range map[string]topic.QuarantineReason{
			there: topic.QuarantineUnconfirmed, lives: topic.QuarantineLives, unmarked: topic.QuarantineForeign, meta: topic.QuarantineNameless,
		} {
			_, refused := reclaim(dir)
			require.Equal(t, why, refused.Reason, dir)
		}
		for _, broken := range []string{".left", metastore.MethodConfirm} {
			meet(broken)
			if _, refused := reclaim(gone); refused != nil {
				require.Equal(t, topic.QuarantineUnconfirmed, refused.Reason)
			}
		}
		meet("")
		got, refused := reclaim(gone)
		require.Nil(t, refused)
		if len(got.Dirs) > 0 {
			require.Equal(t, []string{gone}, got.Dirs)
			require.Equal(t, old, got.Replica)
		}
		dirs, _ := n.quarantined()
		require.Len(t, dirs, 4)

		// The topic is deleted.
		meet(metastore.MethodConfirm)
		require.NoError(t, c.node(1).topics.DeleteTopic(t.Context(), "orders"))
		own := "quarantine/" + base + "~3"
		settle(t, "moved aside", func() bool { dirs, _ := n.quarantined(); return slices.Contains(dirs, own) })
		var noMajority *metastore.ConfirmError
		_, refused = reclaim(own)
		require.ErrorAs(t, refused, &noMajority)
		require.Equal(t, metastore.ConfirmNoMajority, noMajority.Reason)
		settle(t, "the sweeper says so, too", func() bool {
			all, err := n.topics.Quarantine(t.Context())
			require.NoError(t, err)
			i := slices.IndexFunc(all, func(q topic.Quarantined) bool { return q.Dir == own })
			return all[i].Fate == topic.FateDeleted && errors.As(all[i].Kept, &noMajority)
		})
		require.NoError(t, fs.MkdirAll("data/"+own+"/0.5", 0o755))
		pass(3*time.Minute + 10*time.Millisecond) // the sweeper tries once a minute by now
		r, err := n.topics.ReadQuarantined(t.Context(), topic.QuarantineSource{Dir: own})
		require.NoError(t, err)
		meet("")
		_, refused = reclaim(own)
		require.Equal(t, topic.QuarantineBusy, refused.Reason)
		got, refused = reclaim(there)
		require.Nil(t, refused)
		require.Equal(t, []string{there}, got.Dirs, "and no other")
		dirs, _ = n.quarantined()
		require.Subset(t, dirs, []string{own, unmarked, meta})
		r.Close()
		settle(t, "what waits for nobody goes", func() bool { dirs, aside := n.quarantined(); return len(dirs) == 2 && aside == 0 })
		dirs, _ = n.quarantined()
		require.ElementsMatch(t, []string{unmarked, meta}, dirs)
		_, err = n.topics.ReclaimQuarantined(t.Context(), own)
		require.ErrorIs(t, err, storage.ErrNotQuarantined)
		require.ErrorIs(t, err, raftlog.ErrRefused)
		reclaimed, _ := told.told()
		var all []string
		for _, r := range reclaimed {
			all = append(all, r.Dirs...)
		}
		require.Subset(t, all, []string{gone, there, own})
	})
}

func fileOf(t *testing.T, fs storage.FS, path string) []byte {
	f, err := fs.Open(path)
	require.NoError(t, err)
	defer f.Close()
	info, err := f.Stat()
	require.NoError(t, err)
	b := make([]byte, info.Size())
	_, err = f.ReadAt(b, 0)
	require.NoError(t, err)
	return b
}

func putFile(t *testing.T, fs storage.FS, path string, b []byte) {
	f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	_, err = f.Write(b)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

// reclaimedBut reports whether one directory is all that is in quarantine.
func (n *node) reclaimedBut(dir string) func() bool {
	return func() bool {
		dirs, aside := n.quarantined()
		return slices.Equal(dirs, []string{dir}) && aside == 0
	}
}

// Each directory is told once by a process, those too that it found, and counted by
// its kind until it is gone.
func TestTheQuarantineIsToldAndCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var seen []topic.Quarantined
		var restored []topic.Restored
		c, _ := startSwept(t, 1, 75, func(cfg *topic.Config) {
			cfg.OnQuarantined = func(q topic.Quarantined) {
				mu.Lock()
				defer mu.Unlock()
				seen = append(seen, q)
			}
			cfg.OnRestored = func(r topic.Restored) {
				mu.Lock()
				defer mu.Unlock()
				restored = append(restored, r)
			}
		})
		n := c.node(1)
		told := func(want ...string) {
			t.Helper()
			mu.Lock()
			defer mu.Unlock()
			var dirs []string
			for _, q := range seen {
				if q.Topic == "orders" { // the other is told if a sweep meets it before it goes
					dirs = append(dirs, q.Dir)
				}
			}
			require.Equal(t, want, dirs)
			seen = nil
		}
		first := n.leave("orders", strange, leftover{0, 7, variety("zero", 3)})
		pass(11 * time.Minute) // a sweep is every ten
		told(first)
		total := n.topics.QuarantineTotals()
		require.Len(t, total, 1)
		require.Equal(t, 1, total[storage.ReasonForeign].Dirs)
		require.Positive(t, total[storage.ReasonForeign].Bytes)
		c.create("payments", 1)
		require.NoError(t, n.topics.DeleteTopic(t.Context(), "payments"))
		settle(t, "reclaimed", n.reclaimedBut(first))
		c.crash(1, simfs.Strict)
		n = c.start(1)
		pass(11 * time.Minute)
		told(first)
		require.Equal(t, total, n.topics.QuarantineTotals())
		_, err := n.topics.RestoreQuarantined(t.Context(), topic.RestoreConfig{Dirs: []string{first}, Topic: "back"})
		require.NoError(t, err)
		require.Len(t, restored, 1)
		require.EqualValues(t, 9, restored[0].Records)
	})
}
