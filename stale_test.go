package stele_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/internal/testcluster"
	"github.com/stelelog/stele/storage"
)

// Stories of nodes that believe an old world. In each one a step is about to be taken
// that is right by what the node knows, and wrong; each fails if that step is taken
// without its proof: the reds.

// below lists the directories in one of a member's directories, of one life of a topic.
func below(c *testcluster.Cluster, i int, dir, life string) (dirs []string) {
	names, _ := c.Member(i).FS.List(filepath.Join(testcluster.Dir, dir))
	for _, name := range names {
		if strings.Contains(name, life) {
			dirs = append(dirs, name)
		}
	}
	return dirs
}

// knows reports whether a member's own state has a life of a topic, and it alone.
func knows(c *testcluster.Cluster, i int, life string) bool {
	for _, t := range c.Node(i).Topics() {
		if t.Incarnation.String() == life {
			return true
		}
	}
	return false
}

// endsInCreate makes a topic, and ends members at the moment at which its directory is
// durable on the last of them, and nothing more. It returns the topic's life.
func endsInCreate(c *testcluster.Cluster, members ...int) (life string) {
	var traps []*testcluster.Trap
	for _, i := range members {
		traps = append(traps, c.Trap(i, simfs.Strict))
	}
	last := members[len(members)-1]
	old, _ := c.Member(last).FS.List(filepath.Join(testcluster.Dir, "topics"))
	var named, durable atomic.Bool
	c.Member(last).FS.SetHook(func(op simfs.Op) error {
		switch in := filepath.Dir(op.To); {
		case durable.Load():
			for _, t := range traps {
				t.Strike()
			}
		case named.Load() && op.Kind == simfs.OpSyncDir && filepath.Base(op.Path) == "topics":
			durable.Store(true)
		case op.Kind == simfs.OpRename && filepath.Base(in) == "topics" && !slices.Contains(old, filepath.Base(op.To)):
			named.Store(true)
		}
		return nil
	})
	node := c.Node(0)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = node.CreateTopic(c.T.Context(), "orders", stele.TopicConfig{Partitions: 2})
	}()
	for _, t := range traps {
		require.True(c.T, t.Await(time.Minute))
	}
	<-ended
	names, err := c.Member(last).FS.List(filepath.Join(testcluster.Dir, "topics"))
	require.NoError(c.T, err)
	for _, name := range names {
		if !slices.Contains(old, name) {
			_, life, _ = strings.Cut(name, "@")
		}
	}
	require.NotEmpty(c.T, life, "%q", names)
	return life
}

// A node loses power, and its metadata are older than its topics' directories then: what
// it had applied was not synced. It starts alone. It takes no stock by this old set of
// topics, in which the life of a topic that it holds is unknown; it moves nothing aside,
// and once it hears the others it goes on with the files that it has.
//
// Property: X1, X4, C1 (red: the gate open at once, and the sweep at the start without its barrier; each alone holds)
func TestAStartupSweepGoesByNoOldTopics(t *testing.T) {
	s := newSweeps()
	testcluster.Run(t, testcluster.Options{Seed: 151, Config: s.config}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		c.Eventually(func() bool { return version(c, 0) == 3 }, "the version")
		created(c, "orders")
		produceMany(c, "orders", 40)
		require.NoError(t, c.Node(0).DeleteTopic(t.Context(), "orders"))
		second := endsInCreate(c, 2)
		before := s.reclaimed(c.Member(2).Name)
		c.Isolate(2)
		c.Start(2)
		require.False(t, knows(c, 2, second), "its metadata are old")
		c.Sleep(9 * time.Minute) // the sweep at the start is given up after one
		require.False(t, knows(c, 2, second), "its metadata are old")
		whole := func() {
			t.Helper()
			require.NotEmpty(t, below(c, 2, "topics", second))
			require.Empty(t, below(c, 2, "quarantine", second))
			require.Equal(t, before, s.reclaimed(c.Member(2).Name))
		}
		whole()
		c.Rejoin(2)
		c.Eventually(func() bool { return knows(c, 2, second) }, "it catches up")
		whole()
		c.WaitReady()
		wholeAgain(c)
	})
}

// All lose power in the moment in which a topic was made, and the one whose metadata are
// older than its directories is elected, and cut off before it could commit in its term.
// Until its term of office is over it believes that it leads, with a state in which the
// life of a topic that it holds is unknown. It is told of nobody that this is so, itself
// included.
//
// Property: X1, X3, C5, C7 (red: a leader's reads answered from its own state, and no look at whether it has committed in its term)
func TestAFreshLeaderGoesByNoOldTopics(t *testing.T) {
	for seed := range uint64(32) { // in every second one it is not elected
		if freshLeader(t, 152+seed) {
			return
		}
	}
	require.FailNow(t, "it was never elected")
}

// freshLeader tells the story, and reports whether it came to the election.
func freshLeader(t *testing.T, seed uint64) (elected bool) {
	s := newSweeps()
	testcluster.Run(t, testcluster.Options{Seed: seed, Config: s.config}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		c.Eventually(func() bool { return version(c, 0) == 3 }, "the version")
		created(c, "orders")
		produceMany(c, "orders", 40)
		require.NoError(t, c.Node(0).DeleteTopic(t.Context(), "orders"))
		old := c.MetadataLeader()
		second := endsInCreate(c, (old+1)%3, (old+2)%3, old)
		c.Start((old + 1) % 3)
		c.Start(old)
		for c.MetadataLeader() < 0 {
			c.Sleep(100 * time.Microsecond)
		}
		if elected = c.MetadataLeader() == old; !elected {
			return
		}
		c.Isolate(old)
		unmoved := func() {
			t.Helper()
			require.NotEmpty(t, below(c, old, "topics", second))
			require.Empty(t, below(c, old, "quarantine", second))
		}
		for c.MetadataLeader() == old {
			require.False(t, knows(c, old, second), "its metadata are old")
			unmoved()
			c.Sleep(20 * time.Millisecond)
		}
		c.Start((old + 2) % 3)
		c.Rejoin(old)
		c.WaitReady()
		unmoved()
		wholeAgain(c)
	})
	return elected
}

// wholeAgain checks that the topic takes and gives records on all members.
func wholeAgain(c *testcluster.Cluster) {
	l := c.NewLedger("orders")
	load := l.StartLoad(2, 2, 50*time.Millisecond)
	c.Sleep(2 * time.Second)
	load.Stop()
	for i := range 3 {
		l.Verify(i)
	}
}

// A copy moved away and back. Of the node that has it the metadata are damaged then, so
// that they say of the partition what was true while the copy was away: the replica of
// today has no place in them, and its id was given out. It sets its copy aside. It
// destroys nothing of it, as the others do not confirm that this replica is removed, and
// its own group lists it.
//
// Property: M5, X1, X5 (red: reclaim by its own word alone: neither hasLeft nor the tally of Confirm; each alone holds)
func TestACopyThatMovedAwayAndBackIsKept(t *testing.T) {
	s := newSweeps()
	config := func(cfg *stele.Config) { s.config(cfg); cfg.MetadataCheckInterval = 24 * time.Hour }
	testcluster.Run(t, testcluster.Options{Nodes: 4, Seed: 190, Config: config}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		c.Eventually(func() bool { return version(c, 0) == 3 }, "the version")
		made, err := c.Node(0).CreateTopic(t.Context(), "orders", stele.TopicConfig{Partitions: 1})
		require.NoError(t, err)
		l := c.NewLedger("orders")
		write := func() {
			load := l.StartLoad(1, 1, 20*time.Millisecond)
			c.Sleep(2 * time.Second)
			load.Stop()
		}
		write()
		bad, free := -1, -1
		for _, m := range c.Node(0).Members() {
			i := slices.IndexFunc([]int{0, 1, 2, 3}, func(i int) bool { return c.Member(i).Name == m.Name })
			if on(c, 0, "orders", m.Node) == 0 {
				free = i
			} else if i > 0 {
				bad = i
			}
		}
		place := func() string { return fmt.Sprint(partitions(c, 0, "orders")[0].Replicas) }
		move := func(from, to int) {
			before := place()
			of := stele.TopicPartition{Topic: "orders"}
			require.NoError(t, c.Node(0).MoveReplica(t.Context(), of, c.Member(from).Name, c.Member(to).Name))
			c.EventuallyLong(func() bool { return place() != before && moving(c, 0, "orders") == 0 }, "moved")
		}
		move(bad, free)
		c.EventuallyLong(func() bool { return segments(t, c.Member(bad).FS, made.Incarnation) == 0 }, "the copy is gone")
		c.Close(bad)
		away := placeOf(t, c.Member(bad).FS, made.Incarnation, nil)
		c.Start(bad)
		c.WaitReady()
		move(free, bad)
		write()
		c.Eventually(func() bool { return segments(t, c.Member(bad).FS, made.Incarnation) > 0 }, "the copy is back")
		c.Sleep(time.Minute)
		name := c.Member(bad).Name
		reclaimed, kept := s.reclaimed(name), segments(t, c.Member(bad).FS, made.Incarnation)
		c.Close(bad)
		c.Damaged(bad)
		require.NotEqual(t, away, placeOf(t, c.Member(bad).FS, made.Incarnation, away))
		c.Start(bad)
		c.Eventually(func() bool { return len(s.reasons(name)) > 0 }, "refused")
		c.Sleep(5 * time.Minute)
		require.Equal(t, reclaimed, s.reclaimed(name))
		require.GreaterOrEqual(t, segments(t, c.Member(bad).FS, made.Incarnation), kept)
		for i := range 4 {
			if i != bad {
				l.Verify(i)
			}
		}
	})
}

// placeOf returns what the metadata of a closed node say of where partition 0 of a topic
// is, and has them say something else then, if that is given.
func placeOf(t *testing.T, fs *simfs.FS, inc storage.Incarnation, say []byte) (said []byte) {
	t.Helper()
	db, err := pebble.Open(testcluster.Dir+"/meta/db", &pebble.Options{FS: fs, FormatMajorVersion: pebble.FormatNewest, Logger: quietPebble{}})
	require.NoError(t, err)
	key := append(stateOf(t, db), 'p')
	key = append(append(key, inc[:]...), 0, 0, 0, 0)
	value, closer, err := db.Get(key)
	require.NoError(t, err)
	said = slices.Clone(value)
	require.NoError(t, closer.Close())
	if say != nil {
		require.NoError(t, db.Set(key, say, pebble.Sync))
	}
	require.NoError(t, db.Close())
	return said
}

// A node misses that a topic is deleted, that its bytes are given back, and that another
// one gets its name. It comes back alone, and believes that the first one lives, of which
// it has every record. It shows none of them; and once it hears the others it gives back
// the bytes of the first, and has the second.
//
// Property: I4, C1 (red: the gate open at once, the sweep at the start without its barrier, and every replica readable after a restart)
func TestANodeThatMissedALifeShowsNothingOfIt(t *testing.T) {
	s := newSweeps()
	testcluster.Run(t, testcluster.Options{Seed: 191, Config: s.config}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		c.Eventually(func() bool { return version(c, 0) == 3 }, "the version")
		first := created(c, "orders")
		produceMany(c, "orders", 40)
		c.Eventually(func() bool { return segments(t, c.Member(2).FS, first.Incarnation) > 0 }, "written")
		c.Sleep(5 * time.Second)
		c.Kill(2)
		require.NoError(t, c.Node(0).DeleteTopic(t.Context(), "orders"))
		for i := range 2 {
			c.Eventually(func() bool { return segments(t, c.Member(i).FS, first.Incarnation) == 0 }, "given back")
		}
		created(c, "orders")
		l := c.NewLedger("orders")
		load := l.StartLoad(2, 2, 50*time.Millisecond)
		c.Sleep(2 * time.Second)

		c.Isolate(2)
		c.Start(2)
		c.Eventually(func() bool { return knows(c, 2, first.Incarnation.String()) }, "it replays")
		for p := range uint32(2) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			r, err := c.Node(2).NewReader(ctx, stele.TopicPartition{Topic: "orders", Partition: p}, stele.FromStart())
			for err == nil {
				view, failed := r.Fetch(ctx, 64<<10)
				if err = failed; err == nil {
					require.False(t, view.Next(), "a record of the first")
				}
			}
			require.NotEqual(t, stele.OutcomeRefused, stele.OutcomeOf(err), "%v", err)
			cancel()
		}
		require.Positive(t, segments(t, c.Member(2).FS, first.Incarnation))
		c.Rejoin(2)
		c.Eventually(func() bool { return segments(t, c.Member(2).FS, first.Incarnation) == 0 }, "given back")
		load.Stop()
		for i := range 3 {
			l.Verify(i)
		}
	})
}
