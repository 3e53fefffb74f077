package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/stelelog/stele"
)

// Lines are sent in calls of up to batchLines and about batchBytes.
const (
	batchLines = 1000
	batchBytes = 512 << 10
)

// writer sends line i to partition i % partitions, in order, through one node.
type writer struct {
	lines [][]byte
	bytes int64
	sent  atomic.Int64 // acknowledged

	mu       sync.RWMutex // held to read while a call is under way
	via      *member
	producer *stele.Producer
}

// newWriter chooses a node that leads as little as possible.
func newWriter(ctx context.Context, c *cluster, lines [][]byte) (*writer, error) {
	w := &writer{lines: lines}
	for _, l := range lines {
		w.bytes += int64(len(l))
	}
	first := c.members[0]
	victims := map[*member]bool{c.mostPartitions(first): true, c.metadataLeader(first): true}
	for _, m := range c.members {
		if !victims[m] {
			return w, w.move(ctx, m)
		}
	}
	return w, w.move(ctx, c.other(c.mostPartitions(first)))
}

// move goes on through another node once no call is under way.
func (w *writer) move(ctx context.Context, to *member) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.producer != nil {
		if err := w.producer.Close(ctx); err != nil {
			return err
		}
	}
	p, err := to.node.NewProducer(stele.ProducerConfig{})
	if err != nil {
		return err
	}
	w.via, w.producer = to, p
	return nil
}

// send sends one of so many parts of the lines; the channel gets the first
// error, or nil when all is acknowledged.
func (w *writer) send(ctx context.Context, part, parts int) <-chan error {
	from, to := len(w.lines)*part/parts, len(w.lines)*(part+1)/parts
	errs := make(chan error, partitions)
	var wg sync.WaitGroup
	for p := range partitions {
		wg.Go(func() { errs <- w.sendPartition(ctx, p, from, to) })
	}
	done := make(chan error, 1)
	go func() {
		wg.Wait()
		close(errs)
		var first error
		for err := range errs {
			if first == nil {
				first = err
			}
		}
		done <- first
	}()
	return done
}

// sendPartition sends the lines of [from, to) that are partition p's.
func (w *writer) sendPartition(ctx context.Context, p, from, to int) error {
	var batch []stele.Record
	size := 0
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		if err := w.produce(ctx, p, batch); err != nil {
			return fmt.Errorf("partition %d: %w", p, err)
		}
		w.sent.Add(int64(len(batch)))
		batch, size = batch[:0], 0
		return nil
	}
	for i := from + (p-from%partitions+partitions)%partitions; i < to; i += partitions {
		if len(batch) == batchLines || size > 0 && size+len(w.lines[i]) > batchBytes {
			if err := flush(); err != nil {
				return err
			}
		}
		batch = append(batch, stele.Record{Value: w.lines[i]})
		size += len(w.lines[i])
	}
	return flush()
}

func (w *writer) produce(ctx context.Context, p int, batch []stele.Record) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	w.mu.RLock()
	defer w.mu.RUnlock()
	_, err := w.producer.ProduceTo(ctx, topicName, uint32(p), batch...)
	return err
}
