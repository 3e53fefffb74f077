package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

// quarantineAnswer is what is in quarantine on a node.
type quarantineAnswer struct {
	Node        string            `json:"node"`
	Quarantined []quarantinedInfo `json:"quarantined"`
}

// quarantinedInfo is a directory in quarantine.
type quarantinedInfo struct {
	Dir         string               `json:"dir"` // below quarantine/
	Kind        string               `json:"kind"`
	Reason      string               `json:"reason"`
	Since       *time.Time           `json:"since,omitempty"` // by the node's clock; none: not known
	Topic       string               `json:"topic,omitempty"`
	Incarnation string               `json:"incarnation,omitempty"`
	Fate        string               `json:"fate,omitempty"` // what the metadata of the node say of it; none of a stopped node
	Marker      string               `json:"marker,omitempty"`
	Kept        string               `json:"kept,omitempty"` // why it was not reclaimed, when that was tried last
	Bytes       int64                `json:"bytes"`
	Logs        []quarantinedLogInfo `json:"logs"`
}

type quarantinedLogInfo struct {
	Partition uint32 `json:"partition"`
	Replica   uint64 `json:"replica"`
	Bytes     int64  `json:"bytes"`
	Start     int64  `json:"start_offset"`
}

func quarantinedOf(q *stele.Quarantined) quarantinedInfo {
	info := quarantinedInfo{
		Dir: strings.TrimPrefix(q.Dir, "quarantine/"), Kind: string(q.Reason.Kind), Reason: q.Reason.Text,
		Fate: string(q.Fate), Topic: q.Topic, Bytes: q.Bytes, Logs: []quarantinedLogInfo{},
	}
	if q.ReasonErr != nil {
		info.Reason = "not known: " + q.ReasonErr.Error()
	}
	if !q.Reason.At.IsZero() {
		info.Since = &q.Reason.At
	}
	if !q.Incarnation.IsZero() {
		info.Incarnation = q.Incarnation.String()
		if q.Foreign != nil {
			info.Marker = q.Foreign.Error()
		}
	}
	if q.Kept != nil {
		info.Kept = q.Kept.Error()
	}
	for _, l := range q.Logs {
		info.Logs = append(info.Logs, quarantinedLogInfo{l.Partition, uint64(l.Replica), l.Bytes, int64(l.Start)})
	}
	return info
}

func (s *server) listQuarantine(w http.ResponseWriter, r *http.Request) error {
	p := newParams(r)
	ctx, cancel := p.within(r)
	defer cancel()
	if p.err != nil {
		return p.err
	}
	all, err := s.node.Quarantine(ctx)
	if err != nil {
		return err
	}
	answer := quarantineAnswer{Node: s.flags.config.Name, Quarantined: []quarantinedInfo{}}
	for i := range all {
		answer.Quarantined = append(answer.Quarantined, quarantinedOf(&all[i]))
	}
	writeJSON(w, http.StatusOK, answer)
	return nil
}

// readQuarantined answers records as consume does.
func (s *server) readQuarantined(w http.ResponseWriter, r *http.Request) error {
	p := newParams(r, "partition", "replica", "from", "n")
	from := stele.QuarantineSource{
		Dir: r.PathValue("dir"), Partition: uint32(p.number("partition", math.MaxUint32, 0)),
		Replica: storage.ReplicaID(p.number("replica", math.MaxInt64, 0)), From: stele.Offset(p.number("from", math.MaxInt64, 0)),
	}
	limit := p.number("n", math.MaxInt64, math.MaxInt64)
	if p.err != nil {
		return p.err
	}
	reader, err := s.node.ReadQuarantined(r.Context(), from)
	if err != nil {
		return err
	}
	defer reader.Close()
	ctx, stop := context.WithCancelCause(r.Context())
	defer stop(nil)
	defer context.AfterFunc(s.life, func() { stop(errStopping) })()
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set(offsetHeader, itoa(reader.Offset()))
	out := &recordWriter{w: w, control: http.NewResponseController(w), partition: from.Partition}
	err = out.quarantined(ctx, reader, limit)
	if context.Cause(ctx) == errStopping {
		err = errStopping
	}
	out.last(reader.Offset(), err)
	return nil
}

// quarantined writes records, at most limit.
func (o *recordWriter) quarantined(ctx context.Context, reader *topic.QuarantineReader, limit int64) error {
	if limit == 0 {
		return nil
	}
	for record, err := range reader.Records(ctx) {
		if err != nil {
			return err
		}
		o.record(record.Offset, &record.Record)
		if limit--; limit == 0 {
			return nil
		}
	}
	return nil
}

// restoreRequest says what is restored to which topic.
type restoreRequest struct {
	Dirs       []string `json:"dirs"`
	Topic      string   `json:"topic"`
	Partitions uint32   `json:"partitions,omitempty"` // 0: as many as are known
	Replicas   uint32   `json:"replicas,omitempty"`
	Partial    bool     `json:"partial,omitempty"`
	Resume     bool     `json:"resume,omitempty"`
}

// restoreAnswer is what was restored, all or a part: then there is an error.
type restoreAnswer struct {
	Topic       string              `json:"topic"`
	Incarnation string              `json:"incarnation"` // of which the records were
	Records     uint64              `json:"records"`     // in the topic
	Partitions  []restoredPartition `json:"partitions"`
	Error       string              `json:"error,omitempty"`
	Outcome     string              `json:"outcome,omitempty"`
}

type restoredPartition struct {
	Partition uint32   `json:"partition"`
	Dir       string   `json:"dir,omitempty"` // none: it was in none of the directories
	Start     int64    `json:"start_offset"`  // of what was there
	End       int64    `json:"end_offset"`
	Records   uint64   `json:"records"` // that can be read
	Restored  uint64   `json:"restored"`
	Found     uint64   `json:"found,omitempty"` // that an earlier call has restored
	Lost      []string `json:"lost,omitempty"`
}

func restoredOf(done *stele.Restored) restoreAnswer {
	a := restoreAnswer{Topic: done.Topic.Name, Incarnation: done.Incarnation.String(), Records: done.Records, Partitions: []restoredPartition{}}
	for _, p := range done.Partitions {
		out := restoredPartition{p.Partition, p.Dir, int64(p.Start), int64(p.End), p.Records, p.Restored, p.Found, nil}
		for _, l := range p.Lost {
			to := "the end"
			if l.To != topic.NoOffset {
				to = fmt.Sprint("before ", l.To)
			}
			out.Lost = append(out.Lost, fmt.Sprintf("from offset %d to %s: %v", l.From, to, l.Err))
		}
		a.Partitions = append(a.Partitions, out)
	}
	return a
}

// restoreQuarantined answers 200 as soon as a topic is there, with how far it came.
func (s *server) restoreQuarantined(w http.ResponseWriter, r *http.Request) error {
	p := newParams(r)
	ctx, cancel := p.within(r)
	defer cancel()
	if p.err != nil {
		return p.err
	}
	var q restoreRequest
	if err := readJSON(w, r, &q); err != nil {
		return err
	}
	done, err := s.node.RestoreQuarantined(ctx, stele.RestoreConfig{
		Dirs: q.Dirs, Topic: q.Topic, Partial: q.Partial, Resume: q.Resume,
		Config: stele.TopicConfig{Partitions: q.Partitions, Replicas: q.Replicas},
	})
	answer := restoredOf(&done)
	var failed *stele.RestoreError
	switch {
	case errors.As(err, &failed) && done.Topic.Name != "":
		answer.Error, answer.Outcome = err.Error(), outcomeOf(err).String()
	case err != nil:
		return err
	}
	writeJSON(w, http.StatusOK, answer)
	return nil
}

func (s *server) reclaimQuarantined(w http.ResponseWriter, r *http.Request) error {
	p := newParams(r)
	ctx, cancel := p.within(r)
	defer cancel()
	if p.err != nil {
		return p.err
	}
	got, err := s.node.ReclaimQuarantined(ctx, r.PathValue("dir"))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, orderAnswer{fmt.Sprintf("%s is gone: %d bytes", strings.Join(got.Dirs, ", "), got.Bytes)})
	return nil
}
