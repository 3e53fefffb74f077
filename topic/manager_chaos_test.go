package topic_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/topic"
)

// ledger is what producers were told and readers were shown.
type ledger struct {
	mu    sync.Mutex
	acked map[topic.Position]string
	shown map[topic.Position]string
	errs  []error
}

func (l *ledger) ack(at topic.Position, value string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if was, ok := l.acked[at]; ok {
		l.errs = append(l.errs, fmt.Errorf("%v was acknowledged for %q and %q", at, was, value))
	}
	l.acked[at] = value
}

// show notes what a reader saw: the same for ever.
func (l *ledger) show(at topic.Position, value string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if was, ok := l.shown[at]; ok && was != value {
		l.errs = append(l.errs, fmt.Errorf("%v was %q and then %q", at, was, value))
	}
	l.shown[at] = value
}

func (l *ledger) fail(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.errs = append(l.errs, fmt.Errorf(format, args...))
}

// chaos is load from every node while nodes fail.
type chaos struct {
	*cluster
	ledger
	partitions int
	stop       context.CancelFunc
	ctx        context.Context
	work       sync.WaitGroup
	made       int // producers
}

func newChaos(t *testing.T, seed uint64) *chaos { return newChaosWith(t, seed, func(*topic.Config) {}) }

func newChaosWith(t *testing.T, seed uint64, config func(*topic.Config)) *chaos {
	x := &chaos{cluster: newCluster(t, 3, seed), partitions: 2}
	x.acked, x.shown = map[topic.Position]string{}, map[topic.Position]string{}
	x.config = func(cfg *topic.Config) {
		cfg.CallTimeout, cfg.FetchWait = 2*time.Second, time.Second
		config(cfg)
	}
	x.ctx, x.stop = context.WithCancel(t.Context())
	x.startAll()
	x.create("orders", uint32(x.partitions))
	return x
}

// load starts producers and a reader on a node; they end with it.
func (x *chaos) load(n *node, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, uint64(x.made)))
	for part := range uint32(x.partitions) {
		x.made++
		p := producer(x.t, n, topic.ProducerConfig{MaxInFlight: 1 + rng.IntN(5), Codec: topic.Codec(rng.IntN(3)), MaxBatchBytes: 1 << (10 + rng.IntN(4))})
		who, pace := x.made, time.Duration(1+rng.IntN(20))*time.Millisecond
		x.work.Go(func() { x.produce(p, who, part, pace) })
		x.work.Go(func() { x.read(n, part) })
	}
}

// produce appends numbered records without waiting for each, in their order.
func (x *chaos) produce(p *topic.Producer, who int, partition uint32, pace time.Duration) {
	defer p.Close(x.ctx)
	window := make(chan struct{}, 32)
	var last atomic.Int64 // that was told
	for i := 0; x.ctx.Err() == nil; i++ {
		value := fmt.Sprintf("%d/%d", who, i)
		select {
		case window <- struct{}{}:
		case <-x.ctx.Done():
			return
		}
		ended := make(chan bool, 1)
		// A key that goes to the partition; all of one producer are in order.
		p.ProduceAsync(x.ctx, "orders", topic.Record{Key: keyFor(partition, x.partitions), Value: []byte(value)}, func(at topic.Position, err error) {
			<-window
			if before := last.Swap(int64(i)); int64(i) < before && x.ctx.Err() == nil && !errors.Is(err, topic.ErrClosed) { // which calls may be told at once
				x.fail("the callback of %q came after that of %d", value, before)
			}
			switch {
			case err == nil:
				x.ack(at, value)
			case errors.Is(err, topic.ErrClosed):
				ended <- true
			default:
				if err := outcomes(err); err != nil {
					x.fail("produce: %v", err)
				}
			}
		})
		select {
		case <-ended:
			return
		default:
			pass(pace)
		}
	}
}

func outcomes(err error) error {
	n := 0
	for _, o := range []error{raftlog.ErrRetry, raftlog.ErrRefused, raftlog.ErrOutcomeUnknown} {
		if errors.Is(err, o) {
			n++
		}
	}
	if n != 1 {
		return fmt.Errorf("%w has %d outcomes", err, n)
	}
	return nil
}

func keyFor(partition uint32, n int) []byte {
	for i := 0; ; i++ {
		if key := fmt.Append(nil, "key ", i); topic.PartitionOf(key, uint32(n)) == partition {
			return key
		}
	}
}

// read follows a partition in one session.
func (x *chaos) read(n *node, partition uint32) {
	r, err := n.topics.NewReader(x.ctx, topic.TopicPartition{Topic: "orders", Partition: partition}, topic.FromStart())
	if err != nil {
		return
	}
	defer r.Close()
	next, seen := r.Offset(), r.HighWatermark()
	for {
		v, err := r.Fetch(x.ctx, 1<<12)
		if err != nil {
			if x.ctx.Err() == nil && !errors.Is(err, topic.ErrClosed) {
				x.fail("read: %v", err)
			}
			return
		}
		if hw := r.HighWatermark(); hw < seen {
			x.fail("the high watermark went from %d to %d", seen, hw)
		} else {
			seen = hw
		}
		for v.Next() {
			if v.Offset() != next {
				x.fail("offset %d after %d", v.Offset(), next-1)
			}
			x.show(topic.Position{Partition: partition, Offset: v.Offset()}, string(v.Record().Value))
			next = v.Offset() + 1
		}
		if next > seen {
			x.fail("offset %d above the high watermark %d", next-1, seen)
		}
	}
}

// verify reads everything, from every node, and compares.
func (x *chaos) verify() int {
	t := x.t
	x.cluster.mu.Lock()
	x.cluster.loss = 0
	x.cluster.mu.Unlock()
	x.startAll()
	for part := range uint32(x.partitions) {
		p := producer(t, x.node(1), topic.ProducerConfig{})
		var err error
		for range 10 { // elections take their time
			if _, err = p.ProduceTo(t.Context(), "orders", part, record("last/0")); !errors.Is(err, raftlog.ErrRetry) {
				break
			}
		}
		require.NoError(t, err)
		require.NoError(t, p.Close(t.Context()))
		want := x.node(1).dump("orders", part)
		for _, n := range x.running() {
			require.Equal(t, want, n.dump("orders", part))
		}
		order := map[string]int{}
		for i, value := range want {
			who, number, _ := strings.Cut(value, "/")
			var n int
			fmt.Sscan(number, &n)
			if last, ok := order[who]; ok {
				require.Greater(t, n, last, "%s/%d at offset %d: producer %s is out of order or doubled", "orders", part, i, who)
			}
			order[who] = n
		}
		for _, told := range []map[topic.Position]string{x.acked, x.shown} {
			for at, value := range told {
				if at.Partition == part {
					require.Less(t, int(at.Offset), len(want), "%q at %v is lost", value, at)
					require.Equal(t, value, want[at.Offset], "%v", at)
				}
			}
		}
	}
	require.Empty(t, x.errs)
	return len(x.acked)
}

func runs(full int) uint64 {
	if testing.Short() {
		return uint64(max(full/5, 1))
	}
	return uint64(full)
}

// Property: P1, P3, P4, P6, P7, P8, P9 (red: offsets of calls that shared a batch not told apart; readers sent no watermark; a batch repeated with new numbers; calls queued newest first; nothing sent again after a failure; acknowledged when proposed; retention: TestRetentionByBytesUnderLoad; replicas that begin with a copy: TestReplicasMoveWhileNodesFail)
func TestNodesFailUnderLoad(t *testing.T) {
	for seed := range runs(10) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newChaos(t, seed)
				rng := rand.New(rand.NewPCG(seed, 3))
				x.loss = 0.02
				for _, n := range x.running() {
					x.load(n, seed)
				}
				for range 8 {
					pass(time.Duration(rng.IntN(1500)) * time.Millisecond)
					x.disturb(rng, seed)
				}
				pass(time.Duration(rng.IntN(1000)) * time.Millisecond)
				x.stop()
				x.work.Wait()
				t.Log("acknowledged:", x.verify())
			})
		})
	}
}

// disturb does something bad to a node, and makes it good again.
func (x *chaos) disturb(rng *rand.Rand, seed uint64) { x.disturbAmong(rng, seed, 3) }

func (x *chaos) disturbAmong(rng *rand.Rand, seed uint64, nodes int) {
	id := raftlog.NodeID(1 + rng.IntN(nodes))
	pause := time.Duration(rng.IntN(2500)) * time.Millisecond
	survivals := []simfs.Survival{simfs.Strict, simfs.Random, simfs.Lucky, simfs.Kill}
	survival := survivals[rng.IntN(len(survivals))]
	switch rng.IntN(4) {
	case 0:
		x.isolate(id, true)
		pass(pause)
		x.isolate(id, false)
	case 1:
		x.crashAll(survival, 1, 2, 3, 4)
		x.startAll()
		for _, n := range x.running() {
			x.load(n, seed)
		}
	case 2: // the leader of a partition, in good order
		n := x.leader("orders", uint32(rng.IntN(x.partitions)))
		require.NoError(x.t, n.host.Close(x.t.Context()))
		x.crash(n.id, simfs.Kill)
		pass(pause)
		x.load(x.start(n.id), seed)
	default:
		x.crash(id, survival)
		pass(pause)
		x.load(x.start(id), seed)
	}
}
