//go:build unix

package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stelelog/stele"
)

// tally counts records of a partition and adds up the numbers in their values.
type tally struct{ records, sum atomic.Uint64 }

func (t *tally) add(number uint64) {
	t.records.Add(1)
	t.sum.Add(number)
}

// pump is a closed loop of producers.
type pump struct {
	k       *cluster
	limit   int64 // records; 0: until it is stopped
	phase   atomic.Int32
	issued  atomic.Int64
	acked   atomic.Int64 // in all phases
	running sync.WaitGroup

	mu  sync.Mutex
	all latencies // of the measured phase
	err error     // the first one
}

const (
	warmUp int32 = iota
	measured
	over
)

// lane is a share of the load: the partitions that a goroutine of its own
// produces to in turn, and how many records it has on their way.
type lane struct {
	partitions []int
	window     int
}

// lanes divides what is to be in flight.
func lanes(partitions, inflight int) (ls []lane) {
	n := min(partitions, inflight)
	for i := range n {
		l := lane{window: max(1, inflight/partitions)}
		for p := i; p < partitions; p += n {
			l.partitions = append(l.partitions, p)
		}
		ls = append(ls, l)
	}
	return ls
}

func startPump(ctx context.Context, k *cluster, inflight int, limit int64) *pump {
	p := &pump{k: k, limit: limit}
	ways := k.ways()
	for _, l := range lanes(k.Partitions, inflight) {
		p.running.Go(func() {
			own := new(latencies)
			if l.window == 1 {
				p.one(ctx, ways, l, own)
			} else {
				p.many(ctx, ways, l, own)
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			p.all.merge(own)
		})
	}
	return p
}

// more takes a number for the next record; false: there is none.
func (p *pump) more() (uint64, bool) {
	if p.phase.Load() == over {
		return 0, false
	}
	n := p.issued.Add(1)
	return uint64(n), p.limit == 0 || n <= p.limit
}

// answered counts a record. false: the lane is to end.
func (p *pump) answered(own *latencies, partition int, number uint64, took time.Duration, err error) bool {
	if err != nil {
		p.phase.Store(over)
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.err == nil {
			p.err = err
		}
		return false
	}
	p.k.sent[partition].add(number)
	p.acked.Add(1)
	if p.phase.Load() == measured {
		own.add(took)
	}
	return true
}

// one has one record on its way, and waits.
func (p *pump) one(ctx context.Context, ways []*member, l lane, own *latencies) {
	value := newValue(p.k.ValueSize)
	for i := 0; ; i++ {
		number, ok := p.more()
		if !ok {
			return
		}
		partition := l.partitions[i%len(l.partitions)]
		binary.LittleEndian.PutUint64(value, number)
		began := time.Now()
		_, err := ways[partition].producer.ProduceTo(ctx, topicName, uint32(partition), stele.Record{Value: value})
		if !p.answered(own, partition, number, time.Since(began), err) {
			return
		}
	}
}

// slot is one of the records that are on their way: the callback fills in what
// became of it and hands it back. Nothing is allocated for a record here.
type slot struct {
	value     []byte
	number    uint64
	partition int // -1: it was not used yet
	began     time.Time
	took      time.Duration
	err       error
	done      func(stele.Position, error)
}

// many keeps a window of records on their way.
func (p *pump) many(ctx context.Context, ways []*member, l lane, own *latencies) {
	free := make(chan *slot, l.window)
	for range l.window {
		s := &slot{value: newValue(p.k.ValueSize), partition: -1}
		s.done = func(_ stele.Position, err error) {
			s.took, s.err = time.Since(s.began), err
			free <- s // there is room for all of them
		}
		free <- s
	}
	out := l.window
	for i := 0; out > 0; i++ {
		s := <-free
		goOn := s.partition < 0 || p.answered(own, s.partition, s.number, s.took, s.err)
		number, ok := uint64(0), false
		if goOn {
			number, ok = p.more()
		}
		if !ok {
			out--
			continue
		}
		s.number, s.partition = number, l.partitions[i%len(l.partitions)]
		binary.LittleEndian.PutUint64(s.value, number)
		s.began = time.Now()
		ways[s.partition].producer.ProduceToAsync(ctx, topicName, uint32(s.partition), stele.Record{Value: s.value}, s.done)
	}
}

// wait ends the load, or waits for its limit, and returns its first error.
func (p *pump) wait() error {
	if p.limit == 0 {
		p.phase.Store(over)
	}
	p.running.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// fill produces about -load bytes, and waits for them.
func fill(ctx context.Context, k *cluster) error {
	p := startPump(ctx, k, max(512, 2*k.Partitions), max(1, k.load/int64(k.ValueSize)))
	return p.wait()
}

func newValue(size int) []byte {
	v := make([]byte, size)
	_, _ = rand.Read(v) // never fails
	return v
}
