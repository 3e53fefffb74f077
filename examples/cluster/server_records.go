package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/topic"
)

// produce appends the records of the body, and says of each what became of it.
// Nothing is written before all are answered, so an answer that is cut off, or
// none, means unknown.
func (s *server) produce(w http.ResponseWriter, r *http.Request) error {
	p := newParams(r, "partition", "key-separator")
	partition := p.number("partition", math.MaxUint32, -1)
	separator := p.values.Get("key-separator")
	if p.err == nil && r.ContentLength > maxBody {
		p.err = &requestError{http.StatusRequestEntityTooLarge, stele.OutcomeRefused,
			fmt.Sprintf("the body has %d bytes: want at most %d", r.ContentLength, maxBody)}
	}
	ctx, cancel := p.within(r)
	defer cancel()
	if p.err != nil {
		return p.err
	}
	size := r.ContentLength
	if size < 0 {
		size = maxBody
	}
	if !s.bodies.take(size) {
		return &requestError{http.StatusServiceUnavailable, stele.OutcomeRetry, "too many records are on their way through this node"}
	}
	defer s.bodies.give(size)
	body, err := readAll(w, r, maxBody)
	if err != nil {
		return err
	}
	producer, err := s.theProducer()
	if err != nil {
		return err
	}
	if n := bytes.Count(body, []byte("\n")); n > maxRecords {
		return badRequest("the body has %d lines: want at most %d", n, maxRecords)
	}
	records := linesOf(body, separator)
	name := r.PathValue("topic")
	var results []result
	switch {
	case partition >= 0:
		results = inBatches(records, func(batch []stele.Record) ([]stele.Position, error) {
			return producer.ProduceTo(ctx, name, uint32(partition), batch...)
		})
	case separator == "":
		results = inBatches(records, func(batch []stele.Record) ([]stele.Position, error) {
			return producer.Produce(ctx, name, batch...)
		})
	default:
		results = byKey(ctx, producer, name, records)
	}
	s.explain(results, name)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	limitTime(w, r)
	s.lastOfConnection(w)
	_, _ = w.Write(encodeResults(results)) // a client that went away needs no answer
	return nil
}

// linesOf makes a record of each line. What is before the first separator is
// the key; a line without one, and all if there is no separator, has none.
func linesOf(body []byte, separator string) []stele.Record {
	var records []stele.Record
	for len(body) > 0 {
		line, rest, _ := bytes.Cut(body, []byte("\n"))
		body = rest
		record := stele.Record{Value: line}
		if separator != "" {
			if key, value, ok := bytes.Cut(line, []byte(separator)); ok {
				record.Key, record.Value = key, value
			}
		}
		records = append(records, record)
	}
	return records
}

// result is what became of one record.
type result struct {
	at  stele.Position
	err error
}

// byKey sends records where their keys belong. Each has an outcome of its own.
func byKey(ctx context.Context, p *stele.Producer, name string, records []stele.Record) []result {
	results := make([]result, len(records))
	var wg sync.WaitGroup
	wg.Add(len(records))
	for i, record := range records {
		p.ProduceAsync(ctx, name, record, func(at stele.Position, err error) {
			results[i] = result{at, err}
			wg.Done()
		})
	}
	wg.Wait()
	return results
}

// inBatches calls produce for a batch after the other, so that the records keep
// their order, a batch is in one partition, and each record has the outcome of
// its batch. What is behind a batch that failed is not sent.
func inBatches(records []stele.Record, produce func([]stele.Record) ([]stele.Position, error)) []result {
	var results []result
	for len(records) > 0 {
		n, err := topic.Fitting(records)
		var at []stele.Position
		if err == nil {
			at, err = produce(records[:n])
		}
		n = max(n, 1)
		for i := range n {
			if err == nil || i < len(at) && at[i].Offset != topic.NoOffset { // some of it, if the topic's batches are smaller
				results = append(results, result{at: at[i]})
			} else {
				results = append(results, result{err: err})
			}
		}
		if records = records[n:]; err != nil {
			for range records {
				results = append(results, result{err: errBehind})
			}
			return results
		}
	}
	return results
}

// explain adds, to what ended because there was no more time, what this node
// knows of the topic's partitions that may be why.
func (s *server) explain(results []result, topic string) {
	late := func(r result) bool { // and does not say itself what is lost
		return errors.Is(r.err, context.DeadlineExceeded) && !errors.Is(r.err, stele.ErrPartitionLost)
	}
	if !slices.ContainsFunc(results, late) {
		return
	}
	note := leaderless(s.node.Status(), topic)
	for i, r := range results {
		if late(r) {
			results[i].err = noted(r.err, note)
		}
	}
}

// lostNote says of a lost partition what is to be done.
func lostNote(at stele.TopicPartition) string {
	return fmt.Sprintf("a forced recovery left no replica of %v: copy the other partitions of its topic elsewhere, then delete it", at)
}

// leaderless says of which partitions of a topic a node sees no leader: without
// a majority of its replicas a partition has none. Empty: it sees all that it
// has a replica of.
func leaderless(st stele.Status, topic string) string {
	var without []string
	for _, p := range st.Partitions {
		if p.Topic == topic && p.Leader == 0 {
			without = append(without, fmt.Sprintf("%s/%d", p.Topic, p.Partition))
		}
	}
	for _, at := range st.Lost {
		if at.Topic == topic {
			return "lost: " + lostNote(at)
		}
	}
	if n := len(without); n > 5 {
		without = append(without[:5], fmt.Sprintf("%d more", n-5))
	}
	if st.Metadata.Group != 0 && st.MetadataLeader == 0 {
		without = append(without, "the metadata")
	}
	if len(without) == 0 {
		return ""
	}
	return fmt.Sprintf("node %s has no leader in view of %s: are a majority of the nodes up?", st.Name, strings.Join(without, ", "))
}

// notedError is an error and what else is known.
type notedError struct {
	error
	note string
}

func noted(err error, note string) error {
	if note == "" {
		return err
	}
	return &notedError{err, note}
}

func (e *notedError) Error() string { return e.error.Error() + " (" + e.note + ")" }
func (e *notedError) Unwrap() error { return e.error }

var errBehind = &requestError{http.StatusServiceUnavailable, stele.OutcomeRetry, "not sent: a record before it failed"}

// encodeResults writes runs of equal results; doc.go has the form.
func encodeResults(results []result) []byte {
	var b []byte
	for i := 0; i < len(results); {
		first, n := results[i], 1
		for i+n < len(results) && results[i+n].follows(first, n) {
			n++
		}
		if first.err == nil {
			b = fmt.Appendf(b, "ok %d %d %d\n", n, first.at.Partition, first.at.Offset)
		} else {
			text := strings.ReplaceAll(first.err.Error(), "\n", "; ")
			b = fmt.Appendf(b, "%v %d %s\n", outcomeOf(first.err), n, text)
		}
		i += n
	}
	return fmt.Appendf(b, "end %d\n", len(results))
}

// follows reports whether r is the n-th of a run that begins with first.
func (r *result) follows(first result, n int) bool {
	if first.err == nil {
		return r.err == nil && r.at.Partition == first.at.Partition && r.at.Offset == first.at.Offset+stele.Offset(n)
	}
	return r.err != nil && r.err.Error() == first.err.Error() && outcomeOf(r.err) == outcomeOf(first.err)
}

// recordLine is a record as it travels. A key or value that is not UTF-8 goes
// as base64 instead; one that is null goes not at all.
type recordLine struct {
	Partition uint32  `json:"partition"`
	Offset    int64   `json:"offset"`
	Timestamp int64   `json:"timestamp"` // ms since 1970 UTC
	Key       *string `json:"key,omitempty"`
	Key64     []byte  `json:"key64,omitempty"`
	Value     *string `json:"value,omitempty"`
	Value64   []byte  `json:"value64,omitempty"`
}

// lastLine ends an answer of records.
type lastLine struct {
	Next    *int64 `json:"next"` // the offset to go on from
	Error   string `json:"error,omitempty"`
	Outcome string `json:"outcome,omitempty"`
}

func textOrBytes(b []byte) (*string, []byte) {
	if b == nil {
		return nil, nil
	}
	if s := string(b); utf8.ValidString(s) {
		return &s, nil
	}
	return nil, b
}

// consume writes records, one JSON object a line, and a last line that says
// where to go on.
func (s *server) consume(w http.ResponseWriter, r *http.Request) error {
	p := newParams(r, "partition", "from", "n", "follow")
	tp := stele.TopicPartition{Topic: r.PathValue("topic"), Partition: uint32(p.number("partition", math.MaxUint32, 0))}
	limit := p.number("n", math.MaxInt64, math.MaxInt64)
	follow := p.flag("follow")
	from, err := parseFrom(p.values.Get("from"))
	if err != nil {
		p.fail("%v", err)
	}
	opening, cancel := p.within(r)
	defer cancel()
	if p.err != nil {
		return p.err
	}
	if slices.Contains(s.node.Status().Lost, tp) {
		return &requestError{http.StatusGone, stele.OutcomeRetry, lostNote(tp)}
	}
	end := stele.Offset(math.MaxInt64)
	if !follow { // up to all that was acknowledged before
		atEnd, err := s.node.NewReader(opening, tp, stele.FromEnd())
		if err != nil {
			return err
		}
		end = atEnd.Offset()
		atEnd.Close()
	}
	reader, err := s.node.NewReader(opening, tp, from)
	if err != nil {
		return err
	}
	defer reader.Close()
	ctx, stop := context.WithCancelCause(r.Context())
	defer stop(nil)
	defer context.AfterFunc(s.life, func() { stop(errStopping) })()

	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set(offsetHeader, itoa(reader.Offset()))
	out := &recordWriter{w: w, control: http.NewResponseController(w), partition: tp.Partition}
	next, err := out.copy(ctx, reader, end, limit)
	if context.Cause(ctx) == errStopping {
		err = errStopping
	}
	out.last(next, err)
	return nil
}

// offsetHeader says where an answer of records begins.
const offsetHeader = "Stele-Offset"

var errStopping = &requestError{http.StatusServiceUnavailable, stele.OutcomeRetry, "the node is stopping"}

// parseFrom reads start, end or an offset.
func parseFrom(s string) (stele.Start, error) {
	switch s {
	case "", "start":
		return stele.FromStart(), nil
	case "end":
		return stele.FromEnd(), nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return stele.Start{}, fmt.Errorf("from %q: want start, end or an offset from 0", s)
	}
	return stele.FromOffset(stele.Offset(n)), nil
}

// recordWriter writes lines, and sends them on after each fetch.
type recordWriter struct {
	w         http.ResponseWriter
	control   *http.ResponseController
	partition uint32
	buf       bytes.Buffer
}

// copy writes records from the reader's offset to end, at most limit, and
// returns where it came to.
func (o *recordWriter) copy(ctx context.Context, reader *stele.Reader, end stele.Offset, limit int64) (stele.Offset, error) {
	next := reader.Offset()
	for next < end && limit > 0 {
		if err := o.flush(); err != nil { // also before the first wait: the client learns that it is served
			return next, err
		}
		view, err := reader.Fetch(ctx, 1<<20)
		if err != nil {
			return next, err
		}
		for next < end && limit > 0 && view.Next() {
			o.record(view.Offset(), view.Record())
			next = view.Offset() + 1
			limit--
		}
		if err := view.Err(); err != nil {
			return next, err
		}
	}
	return next, nil
}

func (o *recordWriter) record(at stele.Offset, r *stele.Record) {
	line := recordLine{Partition: o.partition, Offset: int64(at), Timestamp: r.Timestamp.UnixMilli()}
	line.Key, line.Key64 = textOrBytes(r.Key)
	line.Value, line.Value64 = textOrBytes(r.Value)
	o.line(line)
	if o.buf.Len() >= 64<<10 {
		_ = o.send() // an error comes again with the next one
	}
}

func (o *recordWriter) line(v any) {
	enc := json.NewEncoder(&o.buf)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // these types always encode
}

func (o *recordWriter) send() error {
	if err := o.control.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	_, err := o.w.Write(o.buf.Bytes())
	o.buf.Reset()
	return err
}

func (o *recordWriter) flush() error {
	if err := o.send(); err != nil {
		return err
	}
	return o.control.Flush()
}

// last writes the last line; a client that went away does not get it.
func (o *recordWriter) last(next stele.Offset, err error) {
	n := int64(next)
	line := lastLine{Next: &n}
	if err != nil {
		line.Error, line.Outcome = err.Error(), outcomeOf(err).String()
	}
	o.line(line)
	_ = o.flush()
}
