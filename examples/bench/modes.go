//go:build unix

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/topic"
)

func produce(ctx context.Context, c cell, k *cluster) (result, error) {
	p := startPump(ctx, k, c.Inflight, 0)
	pause(ctx, min(c.duration, time.Second))
	from, before := k.sample(), p.acked.Load()
	p.phase.CompareAndSwap(warmUp, measured)
	pause(ctx, c.duration)
	after, to := p.acked.Load(), k.sample()
	if err := p.wait(); err != nil {
		return result{}, err
	}
	r := result{cell: c, P50: p.all.quantile(.5), P99: p.all.quantile(.99), P999: p.all.quantile(.999)}
	r.account(from, to, after-before)
	return r, k.readBack(ctx, &r)
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func consume(ctx context.Context, c cell, k *cluster) (result, error) {
	if err := fill(ctx, k); err != nil {
		return result{}, err
	}
	r := result{cell: c}
	from := k.sample()
	if err := k.readBack(ctx, &r); err != nil {
		return r, err
	}
	r.account(from, k.sample(), int64(r.ReadBack))
	return r, nil
}

// readBack reads all partitions, through all nodes, and compares what they hold
// with what was acknowledged.
func (k *cluster) readBack(ctx context.Context, r *result) error {
	errs := make([]error, k.Partitions)
	var reading sync.WaitGroup
	for p := range k.Partitions {
		m := k.members[p%len(k.members)]
		r.ReadBack += k.sent[p].records.Load()
		reading.Go(func() {
			if err := m.compare(ctx, uint32(p), &k.sent[p]); err != nil {
				errs[p] = fmt.Errorf("partition %d, read through %s: %w", p, m.cfg.Name, err)
			}
		})
	}
	reading.Wait()
	return errors.Join(errs...)
}

// compare reads a partition.
func (m *member) compare(ctx context.Context, partition uint32, sent *tally) error {
	reader, err := m.node.NewReader(ctx, stele.TopicPartition{Topic: topicName, Partition: partition}, stele.FromStart())
	if err != nil {
		return err
	}
	defer reader.Close()
	records, sum := uint64(0), uint64(0)
	for records < sent.records.Load() {
		view, err := fetch(ctx, reader)
		if err != nil {
			return fmt.Errorf("after %d of %d records: %w", records, sent.records.Load(), err)
		}
		for view.Next() {
			records++
			sum += binary.LittleEndian.Uint64(view.Record().Value)
		}
		if err := view.Err(); err != nil {
			return err
		}
	}
	if records != sent.records.Load() || sum != sent.sum.Load() {
		return fmt.Errorf("%d records with the sum %d were acknowledged, %d with %d were read",
			sent.records.Load(), sent.sum.Load(), records, sum)
	}
	return nil
}

// fetch does not wait for ever for records that are not there.
func fetch(ctx context.Context, r *stele.Reader) (*topic.View, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return r.Fetch(ctx, 1<<20)
}

func idle(ctx context.Context, c cell, k *cluster) (result, error) {
	p := startPump(ctx, k, min(64, k.Partitions), int64(k.Partitions))
	if err := p.wait(); err != nil {
		return result{}, err
	}
	pause(ctx, min(c.duration, time.Second))
	debug.FreeOSMemory()
	from := k.sample()
	pause(ctx, c.duration)
	to := k.sample()
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	r := result{cell: c, Goroutines: runtime.NumGoroutine(), HeapMiB: float64(mem.HeapInuse) / (1 << 20)}
	r.account(from, to, 0)
	r.IdleCPU = 100 * (to.cpu - from.cpu).Seconds() / r.Seconds
	r.IdleWritten = float64(to.written-from.written) / r.Seconds
	return r, k.readBack(ctx, &r)
}

func failover(ctx context.Context, c cell, k *cluster) (result, error) {
	leaders := k.leaders()
	victim := leaders[0]
	var survivors []*member
	for _, m := range k.members {
		if m != victim {
			survivors = append(survivors, m)
		}
	}
	gone := make(chan struct{})
	acked, errs := make([]time.Time, c.Partitions), make([]error, c.Partitions)
	var probing sync.WaitGroup
	for p := range c.Partitions {
		probing.Go(func() { acked[p], errs[p] = k.probe(ctx, survivors[p%len(survivors)], p, gone) })
	}
	pause(ctx, c.duration/2)
	began := time.Now()
	victim.producer = nil
	victim.node.Abort()
	victim.node = nil
	close(gone)
	probing.Wait()
	if err := errors.Join(errs...); err != nil {
		return result{}, err
	}
	var outages []time.Duration
	for p, m := range leaders {
		if m == victim {
			outages = append(outages, acked[p].Sub(began))
		}
	}
	slices.Sort(outages)
	r := result{cell: c, Outage: ms(outages[len(outages)/2]), WorstOutage: ms(outages[len(outages)-1])}
	began = time.Now()
	if err := victim.open(ctx, nil); err != nil {
		return r, err
	}
	if err := victim.waitReady(ctx); err != nil {
		return r, err
	}
	r.Back = ms(time.Since(began))
	return r, k.readBack(ctx, &r)
}

// probe produces one record after the other, and returns when the first one was
// acknowledged that was begun after gone was closed.
func (k *cluster) probe(ctx context.Context, via *member, partition int, gone <-chan struct{}) (time.Time, error) {
	value := newValue(k.ValueSize)
	for number := uint64(1); ; number++ {
		last := false
		select {
		case <-gone:
			last = true
		default:
		}
		binary.LittleEndian.PutUint64(value, number)
		_, err := via.producer.ProduceTo(ctx, topicName, uint32(partition), stele.Record{Value: value})
		if err != nil {
			return time.Time{}, err
		}
		k.sent[partition].add(number)
		if last {
			return time.Now(), nil
		}
	}
}

func restart(ctx context.Context, c cell, k *cluster) (result, error) {
	if err := fill(ctx, k); err != nil {
		return result{}, err
	}
	r := result{cell: c}
	began := time.Now()
	if err := k.close(); err != nil {
		return r, err
	}
	r.Close = ms(time.Since(began))
	began = time.Now()
	if err := k.reopen(ctx); err != nil {
		return r, err
	}
	r.Ready = ms(time.Since(began))
	if err := startPump(ctx, k, 1, 1).wait(); err != nil {
		return r, err
	}
	r.FirstAck = ms(time.Since(began))
	return r, k.readBack(ctx, &r)
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }
