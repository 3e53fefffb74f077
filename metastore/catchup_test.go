package metastore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
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
)

// stream is one end of a pair of pipes between two nodes.
type stream struct {
	*io.PipeReader
	*io.PipeWriter
}

func (s *stream) CloseWrite() error { return s.PipeWriter.Close() }

func (s *stream) Close() error {
	_ = s.PipeReader.CloseWithError(errBroken)
	return s.PipeWriter.CloseWithError(errBroken)
}

var errBroken = errors.New("the stream broke")

// OpenStream is the node's metastore.Streamer.
func (n *node) OpenStream(ctx context.Context, to raftlog.NodeID, method string) (metastore.Stream, error) {
	target := n.cluster.node(to)
	if target == nil || n.cluster.noStreams.Load() {
		return nil, raftlog.Retry(errors.New("it cannot be reached"))
	}
	fromUs, toThem := io.Pipe()
	fromThem, toUs := io.Pipe()
	here, there := &stream{fromThem, toThem}, &stream{fromUs, toUs}
	if n.cluster.streams != nil {
		there = n.cluster.streams(to, there)
	}
	ctx, cancel := context.WithCancel(ctx)
	context.AfterFunc(ctx, func() { here.Close(); there.Close() })
	go func() {
		if err := target.meta.HandleStream(ctx, n.id, method, there); err != nil {
			cancel()
		} else {
			there.CloseWrite() // what was written still arrives
		}
	}()
	return here, nil
}

// fill makes the state some chunks long.
func (c *cluster) fill(via raftlog.NodeID, keys int) {
	c.t.Helper()
	for i := range keys {
		require.NoError(c.t, c.node(via).meta.SetSetting(c.t.Context(), fmt.Sprintf("key-%03d", i), strings.Repeat("v", 16<<10)))
	}
}

// requireEqualTo checks that a node has the state of another one, and takes part.
func (c *cluster) requireEqualTo(a, b raftlog.NodeID, keys int) {
	c.t.Helper()
	x, y := c.node(a).meta, c.node(b).meta
	<-x.CaughtUp()
	require.NoError(c.t, x.Barrier(c.t.Context()))
	require.NoError(c.t, y.Barrier(c.t.Context()))
	require.Equal(c.t, y.Topics(), x.Topics())
	require.Equal(c.t, y.Members(), x.Members())
	require.Equal(c.t, y.GroupStatus().Conf, x.GroupStatus().Conf)
	for i := range keys {
		key := fmt.Sprintf("key-%03d", i)
		want, ok, err := y.Setting(key)
		require.NoError(c.t, err)
		require.True(c.t, ok)
		got, ok, err := x.Setting(key)
		require.NoError(c.t, err)
		require.True(c.t, ok, key)
		require.Equal(c.t, want, got)
	}
	require.NoError(c.t, x.Failed())
}

// newJoin has three of four nodes run; the fourth begins empty. That the
// genesis lists it stands for the change that adds it.
func newJoin(t *testing.T, seed uint64) *cluster {
	c := newCluster(t, 4, seed)
	c.joins = map[raftlog.NodeID]bool{4: true}
	for id := raftlog.NodeID(1); id <= 3; id++ {
		c.start(id)
	}
	return c
}

// Property: R32 (red: a node that joined began with a configuration)
// Property: C6 (red: the name of the database's directory was not synced)
//
// A replica that starts empty says nothing of what it does not know, gets the
// state as a whole, then follows the log, and needs no second snapshot.
func TestAnEmptyReplicaGetsTheStateThenTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newJoin(t, 1)
		c.fill(1, 20)
		topic, err := c.node(2).meta.CreateTopic(t.Context(), metastore.TopicSpec{Name: "orders"})
		require.NoError(t, err)
		opened := 0
		c.streams = func(_ raftlog.NodeID, s *stream) *stream { opened++; return s }
		n := c.start(4)
		_, err = n.meta.Topic("orders")
		require.ErrorIs(t, err, metastore.ErrUnavailable)
		_, changed := n.meta.Watch()
		<-changed
		<-n.meta.CaughtUp()
		got, err := n.meta.Topic("orders")
		require.NoError(t, err)
		require.Equal(t, topic, got)
		c.requireEqualTo(4, 1, 20)
		_, err = n.meta.CreateTopic(t.Context(), metastore.TopicSpec{Name: "made-by-4"})
		require.NoError(t, err)
		require.Equal(t, 1, opened)
		for _, survival := range []simfs.Survival{simfs.Strict, simfs.Kill, simfs.Random} {
			c.crash(4, survival)
			_, err := c.node(1).meta.CreateTopic(t.Context(), metastore.TopicSpec{Name: fmt.Sprint("while-away-", survival)})
			require.NoError(t, err)
			c.start(4)
			c.requireEqualTo(4, 1, 20)
		}
		require.Equal(t, 1, opened, "the log leads on")
		c.crash(1, simfs.Strict) // 4 votes by now
		require.NoError(t, c.node(4).meta.Touch(t.Context()))
	})
}

// Property: R24 (red: a replica waited for a sender that was gone; what came of a stream that was cut was thrown away; a broken chunk was taken)
//
// A stream that is cut goes on; one that falls silent or brings damage is given
// up; a sender that dies is replaced by the next leader. Nothing of it shows.
func TestSnapshotsThroughBrokenStreams(t *testing.T) {
	for name, fault := range map[string]func(s *stream, b []byte) (int, error){
		"cut": func(s *stream, b []byte) (int, error) { s.Close(); return 0, errBroken },
		"silent": func(s *stream, b []byte) (int, error) {
			pass(20 * time.Second)
			return 0, errBroken
		},
		"damaged": func(s *stream, b []byte) (int, error) {
			b = append([]byte(nil), b...)
			b[len(b)/2] ^= 1
			return s.PipeWriter.Write(b)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newJoin(t, 2)
				c.fill(1, 20)
				tries, sent := 0, 0
				var mu sync.Mutex
				c.streams = func(_ raftlog.NodeID, s *stream) *stream {
					mu.Lock()
					defer mu.Unlock()
					tries++
					broken, left := tries <= 3, 90<<10
					return s.through(func(b []byte) (int, error) {
						mu.Lock()
						sent += len(b)
						mu.Unlock()
						if left -= len(b); broken && left < 0 {
							return fault(s, b)
						}
						return s.PipeWriter.Write(b)
					})
				}
				begun := clock.System().Now()
				c.start(4)
				c.requireEqualTo(4, 1, 20)
				require.Less(t, clock.System().Now().Sub(begun), time.Minute)
				pass(30 * time.Second) // who is silent goes
				mu.Lock()
				defer mu.Unlock()
				require.Equal(t, 4, tries)
				if name == "cut" {
					require.Less(t, sent, 3*90<<10+20*16<<10, "each went on where the last one was cut")
				}
			})
		})
	}
}

// through returns the stream with another way to write.
func (s *stream) through(write func([]byte) (int, error)) *stream {
	r, w := io.Pipe()
	go func() {
		buf := make([]byte, 128<<10)
		for {
			n, err := r.Read(buf)
			if n > 0 {
				if _, err := write(buf[:n]); err != nil {
					_ = r.CloseWithError(err)
					_ = s.Close()
					return
				}
			}
			if err == io.EOF {
				_ = s.CloseWrite()
				return
			} else if err != nil {
				_ = s.Close()
				return
			}
		}
	}()
	return &stream{s.PipeReader, w}
}

// The sender dies in the middle, and takes the leadership with it.
func TestASnapshotsSenderDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newJoin(t, 3)
		c.fill(1, 20)
		reached := make(chan raftlog.NodeID, 1)
		var dying atomic.Bool
		c.streams = func(to raftlog.NodeID, s *stream) *stream {
			left := 90 << 10
			return s.through(func(b []byte) (int, error) {
				if left -= len(b); left < 0 && dying.CompareAndSwap(false, true) {
					reached <- to
					pass(time.Second)
				}
				return s.PipeWriter.Write(b)
			})
		}
		n := c.start(4)
		sender := <-reached
		// Without the sender three of four are left, one of them empty: it counts
		// once it has the state.
		c.crash(sender, simfs.Strict)
		<-n.meta.CaughtUp()
		c.start(sender)
		c.requireEqualTo(4, sender, 20)
		pass(2 * time.Second) // the dead one's last word
	})
}

// Property: C6, R24, R31 (red: the state was used before the reset was durable; the log was begun anew without a mark; a mark that the journal named was dropped)
//
// The node that gets a snapshot loses power at every moment of it.
func TestARestartAtAnyMomentOfASnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newJoin(t, 4)
		c.fill(1, 10)
		var mu sync.Mutex
		var images []*simfs.FS
		disk := c.disks[4]
		stride := int64(9)
		if testing.Short() {
			stride = 40
		}
		disk.SetHook(func(op simfs.Op) error {
			mu.Lock()
			defer mu.Unlock()
			if op.Seq%stride == 0 || op.Kind == simfs.OpSync && op.Seq%3 == 0 {
				images = append(images, disk.Image(simfs.Random))
			}
			return nil
		})
		c.start(4)
		c.requireEqualTo(4, 1, 10)
		disk.SetHook(nil)
		mu.Lock()
		defer mu.Unlock()
		t.Logf("%d moments", len(images))
		require.Greater(t, len(images), 5)
		for i, image := range images {
			// A leader that heard of the node's later state would be misled by the
			// earlier one: no disk goes back like that. A new leader knows nothing.
			for id := range c.disks {
				c.crash(id, simfs.Kill)
			}
			c.disks[4] = image
			for id := range c.disks {
				c.start(id)
			}
			c.requireEqualTo(4, 1, 10)
			if i%4 == 0 { // and again, now that it is through
				c.crash(4, simfs.Strict)
				c.start(4)
				c.requireEqualTo(4, 1, 10)
			}
		}
	})
}

// Property: R24 (red: nothing was trimmed; all of the log was; it was at version 1, too)
//
// A log that is long begins later, and who was away for all of it gets a
// snapshot; who was away for a while does not.
func TestAFollowerBehindTheStartOfTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 5)
		opened := 0
		c.change = func(config *metastore.Config) { config.TrimLogBytes = 256 << 10 }
		c.streams = func(_ raftlog.NodeID, s *stream) *stream { opened++; return s }
		for id := range c.disks {
			c.start(id)
		}
		require.NoError(t, c.node(3).meta.Touch(t.Context()))
		c.fill(1, 30)
		time.Sleep(time.Minute)
		for id := range c.disks {
			require.Equal(t, raftlog.Index(1), c.node(id).meta.GroupStatus().LogStart, "builds of version 1 could not take the state")
		}
		require.Eventually(t, func() bool {
			return slices.ContainsFunc([]raftlog.NodeID{1, 2, 3}, func(id raftlog.NodeID) bool { return c.node(id).meta.SetVersion(t.Context(), 2) == nil })
		}, time.Minute, time.Second)
		for round := range 3 {
			c.crash(3, simfs.Strict)
			if round == 1 {
				c.fill(1, 2)
			} else {
				c.fill(1, 30)
			}
			before := opened
			c.start(3)
			c.requireEqualTo(3, 1, 2)
			require.Equal(t, round != 1, opened > before, "round %d", round)
			for id := range c.disks {
				var st raftlog.Status
				trimmed := func() bool { // beside the entries, in its own time
					st = c.node(id).meta.GroupStatus()
					return st.LogStart > 1
				}
				for end := time.Now().Add(time.Minute); !trimmed() && time.Now().Before(end); {
					time.Sleep(10 * time.Millisecond)
				}
				require.Greater(t, st.LogStart, raftlog.Index(1), "%v", id)
				require.LessOrEqual(t, st.LogStart, st.Applied)
			}
		}
		for id := range c.disks { // and all restart over their shorter logs
			c.crash(id, simfs.Strict)
		}
		for id := range c.disks {
			c.start(id)
		}
		for id := range c.disks {
			c.requireEqualTo(id, 1, 30)
		}
	})
}

// Property: R24 (red: a default of 32 MiB; of 128 MiB)
//
// Who configures nothing has the log cut past 64 MiB of it, and a quarter of that stays.
func TestTheLogIsCutPast64MiB(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, 7)
		c.start(1)
		c.fill(1, 1)
		require.NoError(t, c.node(1).meta.SetVersion(t.Context(), 2))
		const size = 64 << 10
		value := strings.Repeat("v", size)
		start := func() raftlog.Index { return c.node(1).meta.GroupStatus().LogStart }
		for n := 0; start() == 1; n += size {
			require.Less(t, n, 72<<20, "it was not cut")
			require.NoError(t, c.node(1).meta.SetSetting(t.Context(), "key", value))
			if n%(4<<20) == 0 {
				time.Sleep(10 * time.Second) // the database writes what it holds
				require.False(t, n < 60<<20 && start() > 1, "it was cut at %d bytes", n)
			}
		}
		kept := int64(c.node(1).meta.GroupStatus().Last-start()) * size
		require.InDelta(t, 16<<20, kept, 2<<20)
	})
}

// Property: R24 (red: the state was held for ever; no chunk waited)
//
// A state is held for a minute for who lost its stream, and given away no faster
// than is allowed.
func TestSnapshotsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, 6)
		c.joins = map[raftlog.NodeID]bool{4: true}
		c.change = func(config *metastore.Config) { config.SnapshotRate = 64 << 10 }
		for id := raftlog.NodeID(1); id <= 3; id++ {
			c.start(id)
		}
		c.fill(1, 20)
		const all = 20 * 16 << 10
		var mu sync.Mutex
		var sent []int // of each stream
		c.streams = func(_ raftlog.NodeID, s *stream) *stream {
			mu.Lock()
			defer mu.Unlock()
			try := len(sent)
			sent = append(sent, 0)
			return s.through(func(b []byte) (int, error) {
				mu.Lock()
				sent[try] += len(b)
				n := sent[try]
				mu.Unlock()
				if try < 2 && n > 150<<10 {
					c.noStreams.Store(true)
					s.Close()
					return 0, errBroken
				}
				return s.PipeWriter.Write(b)
			})
		}
		begun := clock.System().Now()
		c.start(4)
		broke := func() {
			for !c.noStreams.Load() {
				pass(100 * time.Millisecond)
			}
		}
		broke()
		pass(50 * time.Second)
		c.noStreams.Store(false) // the rest is still held
		broke()
		pass(70 * time.Second)
		c.noStreams.Store(false) // and now no longer
		c.requireEqualTo(4, 1, 20)
		mu.Lock()
		defer mu.Unlock()
		require.Len(t, sent, 3)
		require.GreaterOrEqual(t, sent[2], all, "it began anew")
		took := clock.System().Now().Sub(begun) - 120*time.Second
		require.Greater(t, took, time.Duration(sent[0]+sent[1]+sent[2]-4*80<<10)*time.Second/(64<<10))
	})
}
