package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"slices"

	"github.com/stelelog/stele"
)

// tally is the count and the hash of a partition's records, in order.
type tally struct {
	count int
	hash  hash.Hash
	each  map[[32]byte]int // how often each record
}

func newTally() *tally { return &tally{hash: sha256.New(), each: map[[32]byte]int{}} }

func (t *tally) add(value []byte) {
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(len(value)))
	t.hash.Write(n[:])
	t.hash.Write(value)
	t.count++
	t.each[sha256.Sum256(value)]++
}

// verify reads every partition back and compares it with what was sent.
func verify(ctx context.Context, w *writer, r *report) error {
	for p := range partitions {
		want := newTally()
		for i := p; i < len(w.lines); i += partitions {
			want.add(w.lines[i])
		}
		got, err := readBack(ctx, w.via, p)
		if err != nil {
			return fmt.Errorf("read partition %d: %w", p, err)
		}
		for record, n := range want.each {
			r.lost += max(0, n-got.each[record])
		}
		for record, n := range got.each {
			r.duplicated += max(0, n-want.each[record])
		}
		if got.count != want.count || !bytes.Equal(got.hash.Sum(nil), want.hash.Sum(nil)) {
			r.different = append(r.different, fmt.Sprintf("partition %d: sent %d records, hash %.8x; read %d, hash %.8x",
				p, want.count, want.hash.Sum(nil), got.count, got.hash.Sum(nil)))
		}
	}
	r.readVia = w.via.cfg.Name
	slices.Sort(r.different)
	return nil
}

// readBack reads a partition from its start to the end that a reader sees now.
func readBack(ctx context.Context, via *member, partition int) (*tally, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tp := stele.TopicPartition{Topic: topicName, Partition: uint32(partition)}
	end, err := via.node.NewReader(ctx, tp, stele.FromEnd())
	if err != nil {
		return nil, err
	}
	last := end.Offset()
	end.Close()
	reader, err := via.node.NewReader(ctx, tp, stele.FromStart())
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	t := newTally()
	for reader.Offset() < last {
		view, err := reader.Fetch(ctx, 1<<20)
		if err != nil {
			return nil, err
		}
		for view.Next() {
			t.add(view.Record().Value)
		}
		if err := view.Err(); err != nil {
			return nil, err
		}
	}
	return t, nil
}
