package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/stelelog/stele"
)

const produceAbout = `
Produce appends each line of standard input as a record; an empty line is an
empty record. A line holds at most 16 MiB, and any byte but the line feed.

What no node took is sent to the next one. If the connection breaks while an
answer is awaited nobody knows whether those lines were appended: produce stops
and says which they are, unless -at-least-once is given.
`

// A request carries as many lines as are there, up to these.
const (
	batchLines = 5000
	batchBytes = 1 << 20
)

// producing is a run of produce.
type producing struct {
	client      *client
	topic       string
	partition   int64 // -1: any
	separator   string
	atLeastOnce bool

	lines   int64 // read
	acked   int64
	bytes   int64 // acknowledged
	repeats int64 // lines sent again though they may have been appended
}

// line is a line and its number, from 1.
type line struct {
	number int64
	text   []byte
}

func runProduce(ctx context.Context, args []string, io console) error {
	f := newFlags("produce", produceAbout, io)
	var p producing
	f.StringVar(&p.topic, "topic", "", "`name` of the topic")
	f.Int64Var(&p.partition, "partition", -1, "`number` of the partition; -1: by key, and without one any")
	f.StringVar(&p.separator, "key-separator", "", "what is before the first `separator` of a line is its key (default none: lines have no keys)")
	f.BoolVar(&p.atLeastOnce, "at-least-once", false, "send again what may have been appended; it may be there twice then")
	finish := clientFlags(f)
	if err := f.parse(args, false); err != nil {
		return err
	}
	var err error
	if p.client, err = finish(); err != nil {
		return err
	}
	switch {
	case p.topic == "":
		return &usageError{"-topic is missing"}
	case p.partition < -1:
		return &usageError{fmt.Sprintf("-partition %d: want a number from 0, or -1 for any", p.partition)}
	}
	defer p.client.close()
	start := time.Now()
	err = p.run(ctx, io.in)
	seconds := max(time.Since(start).Seconds(), 1e-9)
	fmt.Fprintf(io.out, "%d records acknowledged, %.1f MB, in %.2fs: %.0f records/s\n", p.acked, float64(p.bytes)/1e6, seconds, float64(p.acked)/seconds)
	if p.repeats > 0 {
		fmt.Fprintf(io.out, "%d of them were sent again and may be there twice\n", p.repeats)
	}
	return err
}

// run sends what there is to read until the end.
func (p *producing) run(ctx context.Context, in io.Reader) error {
	r := bufio.NewReaderSize(in, 256<<10)
	for {
		batch, err := p.readBatch(r)
		if len(batch) > 0 {
			if err := p.sendAll(ctx, batch); err != nil {
				return err
			}
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
	}
}

// readBatch reads one line, and then those that can be read without waiting.
func (p *producing) readBatch(r *bufio.Reader) (batch []line, err error) {
	size := 0
	for len(batch) < batchLines && size < batchBytes {
		text, err := readLine(r)
		if err == io.EOF {
			return batch, err
		}
		p.lines++
		if err == nil && len(text) > maxRecord {
			// The key's separator is no part of the record.
			if key, value, ok := bytes.Cut(text, []byte(p.separator)); p.separator == "" || !ok || len(key)+len(value) > maxRecord {
				err = errors.New("it is too long")
			}
		}
		if err != nil {
			return batch, fmt.Errorf("line %d: %w: a record holds at most %d bytes; it and what follows was not sent", p.lines, err, maxRecord)
		}
		batch = append(batch, line{p.lines, text})
		size += len(text) + 1
		if ready, _ := r.Peek(r.Buffered()); bytes.IndexByte(ready, '\n') < 0 {
			break
		}
	}
	return batch, nil
}

// readLine reads up to a line feed, or the end if there is anything before it.
// It stops reading where a line cannot be a record any more.
func readLine(r *bufio.Reader) ([]byte, error) {
	var text []byte
	for {
		piece, err := r.ReadSlice('\n')
		text = append(text, piece...)
		switch {
		case err == nil:
			return text[:len(text)-1], nil
		case err == io.EOF && len(text) > 0:
			return text, nil
		case err != bufio.ErrBufferFull:
			return nil, err
		case len(text) > maxBody:
			return nil, errors.New("it is too long")
		}
	}
}

// sendAll sends lines until each is acknowledged. It gives up when for the
// client's timeout none was.
func (p *producing) sendAll(ctx context.Context, batch []line) error {
	pause := 50 * time.Millisecond
	until := time.Now().Add(p.client.timeout)
	for {
		// A node that hangs is to leave time for another one.
		attempt, cancel := context.WithTimeout(ctx, min(p.client.timeout/3, time.Until(until)))
		rest, why, err := p.send(attempt, batch)
		cancel()
		switch {
		case err != nil || len(rest) == 0:
			return err
		case len(rest) < len(batch):
			until = time.Now().Add(p.client.timeout)
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, time.Second)
		case <-ctx.Done():
		}
		if ctx.Err() != nil || !time.Now().Before(until) {
			return fmt.Errorf("%s not appended: %w", describe(rest), why)
		}
		batch = rest
	}
}

// send makes one request and returns the lines that are to be sent again, and
// why.
func (p *producing) send(ctx context.Context, batch []line) (rest []line, why, err error) {
	results, err := p.request(ctx, batch)
	if err != nil {
		results = make([]result, len(batch))
		for i := range results {
			results[i].err = err
		}
	}
	var lost, refused []line
	for i, r := range results {
		switch outcome := remoteOutcome(r.err); {
		case r.err == nil:
			p.acked++
			p.bytes += int64(len(batch[i].text))
			continue
		case outcome == stele.OutcomeRefused:
			refused = append(refused, batch[i])
		case outcome == stele.OutcomeUnknown && !p.atLeastOnce:
			lost = append(lost, batch[i])
		default:
			if outcome == stele.OutcomeUnknown {
				p.repeats++
			}
			rest = append(rest, batch[i])
		}
		if why == nil || remoteOutcome(r.err) != stele.OutcomeRetry {
			why = r.err
		}
	}
	switch {
	case len(lost) > 0:
		return nil, nil, fmt.Errorf("%s may or may not have been appended (-at-least-once sends such lines again): %w", describe(lost), why)
	case len(refused) > 0:
		return nil, nil, fmt.Errorf("%s refused: %w", describe(refused), why)
	}
	if err == nil && len(rest) > 0 { // it answered, and did not take them: perhaps another one does
		p.client.goOn()
	}
	return rest, why, nil
}

// describe names lines.
func describe(lines []line) string {
	first, last := lines[0].number, lines[len(lines)-1].number
	switch {
	case first == last:
		return fmt.Sprintf("line %d", first)
	case last-first == int64(len(lines)-1):
		return fmt.Sprintf("lines %d to %d", first, last)
	}
	return fmt.Sprintf("%d lines from %d to %d", len(lines), first, last)
}

// request sends lines to the first node that takes them.
func (p *producing) request(ctx context.Context, batch []line) (results []result, err error) {
	q := url.Values{}
	if p.partition >= 0 {
		q.Set("partition", itoa(p.partition))
	}
	if p.separator != "" {
		q.Set("key-separator", p.separator)
	}
	var body []byte
	for _, l := range batch {
		body = append(append(body, l.text...), '\n')
	}
	err = p.client.anyNode(ctx, 0, func(ctx context.Context, addr string) error {
		answer, err := p.client.do(ctx, addr, http.MethodPost, topicPath(p.topic, "/records"), q, body)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		results, err = decodeResults(answer.Body, len(batch))
		return err
	})
	return results, err
}

// decodeResults reads what encodeResults wrote, for n records. Whatever else it
// is given, it takes nothing for acknowledged: the error is unknown.
func decodeResults(r io.Reader, n int) ([]result, error) {
	broken := func(format string, args ...any) error {
		return &remoteError{stele.OutcomeUnknown, "the answer: " + fmt.Sprintf(format, args...), true}
	}
	var results []result
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		word, rest, _ := bytes.Cut(lines.Bytes(), []byte(" "))
		number, rest, _ := bytes.Cut(rest, []byte(" "))
		count, err := strconv.Atoi(string(number))
		if err != nil || count < 0 || count > n {
			return nil, broken("line %q", lines.Text())
		}
		switch string(word) {
		case "end":
			if count != n || len(results) != n {
				return nil, broken("it is about %d records of %d", len(results), n)
			}
			return results, nil
		case "ok":
			var at stele.Position
			if _, err := fmt.Sscanf(string(rest), "%d %d", &at.Partition, &at.Offset); err != nil {
				return nil, broken("line %q", lines.Text())
			}
			for range count {
				results = append(results, result{at: at})
				at.Offset++
			}
		default:
			err := &remoteError{parseOutcome(string(word)), string(rest), true}
			for range count {
				results = append(results, result{err: err})
			}
		}
		if len(results) > n {
			return nil, broken("it is about more than %d records", n)
		}
	}
	return nil, broken("it ends early: %v", lines.Err())
}
