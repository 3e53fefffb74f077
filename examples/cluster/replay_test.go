package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

// What was decided about entries is decided again, and a log that says otherwise
// is found out.
func TestReplay(t *testing.T) {
	life := storage.Incarnation{1}
	batch := func(of storage.Incarnation, producer topic.ProducerBatch, records int) []byte {
		var b topic.BatchBuilder
		b.Reset(time.UnixMilli(1))
		for range records {
			b.Append(&topic.Record{Value: []byte("x")})
		}
		return b.Build(topic.BatchInfo{Incarnation: of, Producer: producer})
	}
	first := batch(life, topic.ProducerBatch{ID: 5}, 2)
	r := newReplay(life)
	for i, c := range []struct {
		kind    storage.EntryKind
		data    []byte
		verdict storage.Verdict
		base    storage.Offset
	}{
		{storage.EntryNormal, nil, storage.VerdictEmpty, 0},
		{storage.EntryNormal, first, storage.VerdictData, 0},
		{storage.EntryNormal, first, storage.VerdictDuplicate, 2},
		{storage.EntryConfChangeV2, []byte("x"), storage.VerdictConfig, 2},
		{storage.EntryNormal, batch(life, topic.ProducerBatch{ID: 5, First: 9}, 1), storage.VerdictRefused, 2},
		{storage.EntryNormal, batch(storage.Incarnation{2}, topic.ProducerBatch{}, 1), storage.VerdictRefused, 2},
		{storage.EntryNormal, []byte("not a batch"), storage.VerdictRefused, 2},
		{storage.EntryNormal, batch(life, topic.ProducerBatch{ID: 5, First: 2}, 3), storage.VerdictData, 2},
	} {
		verdict, _, base := r.apply(storage.Index(i+1), c.kind, c.data)
		require.Equal(t, c.verdict, verdict, i)
		require.Equal(t, c.base, base, i)
	}
	frame := storage.FrameView{Verdict: storage.VerdictData, BaseOffset: 2, Count: 3}
	require.NoError(t, r.check(&frame, storage.VerdictData, 2))
	require.ErrorContains(t, r.check(&frame, storage.VerdictDuplicate, 2), "verdict 1")
	frame.BaseOffset = 3
	require.ErrorContains(t, r.check(&frame, storage.VerdictData, 2), "offsets [3, 6)")
}
