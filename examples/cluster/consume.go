package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"sync"

	"github.com/stelelog/stele"
)

const consumeAbout = `
Consume prints the values of records, a line each, up to all that was
acknowledged before it began; with -follow it then waits for more. Without
-partition it reads all of them: one after the other, or with -follow side by
side. If its node goes away it goes on at the next one, where it was. A partition
that cannot be read is named, and the others are read all the same: then the exit
status is 1.
`

// consuming is a run of consume.
type consuming struct {
	client *client
	topic  string
	from   string
	follow bool
	json   bool
	errs   io.Writer
	cancel context.CancelFunc // when enough was printed

	mu   sync.Mutex // of what follows: partitions are read side by side
	out  *bufio.Writer
	left int64 // records to print
	err  error // of out
}

func runConsume(ctx context.Context, args []string, io console) error {
	f := newFlags("consume", consumeAbout, io)
	c := consuming{out: bufio.NewWriterSize(io.out, 64<<10), errs: io.err}
	f.StringVar(&c.topic, "topic", "", "`name` of the topic")
	partition := f.Int64("partition", -1, "`number` of the partition; -1: all")
	f.StringVar(&c.from, "from", "start", "where to begin in each partition: start, end or an `offset`")
	f.BoolVar(&c.follow, "follow", false, "wait for more at the end")
	n := f.Int64("n", 0, "print at most so many records; 0: all")
	f.BoolVar(&c.json, "json", false, "print JSON objects with partition, offset, timestamp, key and value")
	finish := clientFlags(f)
	if err := f.parse(args, false); err != nil {
		return err
	}
	var err error
	if c.client, err = finish(); err != nil {
		return err
	}
	switch {
	case c.topic == "":
		return &usageError{"-topic is missing"}
	case *partition < -1 || *partition > math.MaxUint32:
		return &usageError{fmt.Sprintf("-partition %d: want a number from 0, or -1 for all", *partition)}
	case *n < 0:
		return &usageError{fmt.Sprintf("-n %d: want a number from 0", *n)}
	}
	if _, err := parseFrom(c.from); err != nil {
		return &usageError{"-" + err.Error()}
	}
	if c.left = *n; c.left == 0 {
		c.left = math.MaxInt64
	}
	defer c.client.close()
	partitions, err := c.partitions(ctx, *partition)
	if err != nil {
		return err
	}
	return c.run(ctx, partitions)
}

// partitions are those to read.
func (c *consuming) partitions(ctx context.Context, only int64) ([]uint32, error) {
	if only >= 0 {
		return []uint32{uint32(only)}, nil
	}
	var t topicAnswer
	if err := c.client.callJSON(ctx, http.MethodGet, topicPath(c.topic, ""), nil, nil, &t); err != nil {
		return nil, err
	}
	all := make([]uint32, t.Partitions)
	for i := range all {
		all[i] = uint32(i)
	}
	return all, nil
}

func (c *consuming) run(ctx context.Context, partitions []uint32) error {
	ctx, c.cancel = context.WithCancel(ctx)
	defer c.cancel()
	bad := 0 // partitions that could not be read
	var last error
	failed := func(p uint32, err error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.left <= 0 {
			return // it was stopped by that
		}
		bad++
		last = fmt.Errorf("%s/%d: %w", c.topic, p, err)
		if len(partitions) > 1 {
			_ = c.out.Flush()
			fmt.Fprintf(c.errs, "cluster consume: %v\n", last)
		}
	}
	if c.follow {
		var wg sync.WaitGroup
		for _, p := range partitions {
			wg.Go(func() {
				if err := c.partition(ctx, p); err != nil {
					failed(p, err)
				}
			})
		}
		wg.Wait()
	} else {
		for _, p := range partitions {
			if err := c.partition(ctx, p); err != nil {
				failed(p, err)
				if !hasAnswered(err) {
					break // nobody is there for the others either
				}
			}
			if c.enough() {
				break
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if bad > 0 && len(partitions) > 1 {
		last = fmt.Errorf("%s could not be read", plural(bad, "partition", "partitions"))
	}
	return errors.Join(last, c.err, c.out.Flush())
}

// wanted is how many records are still to be printed.
func (c *consuming) wanted() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.left
}

// enough reports whether all that was asked for is printed.
func (c *consuming) enough() bool {
	return c.wanted() <= 0
}

// partition prints one partition. After each piece that any node gave it has
// the whole timeout again.
func (c *consuming) partition(ctx context.Context, partition uint32) error {
	client, at := c.client.fork(), c.from
	for {
		var got piece
		err := client.anyNode(ctx, readPatience, func(opening context.Context, addr string) error {
			var err error
			got, err = c.stream(ctx, opening, client, addr, partition, at)
			if got.next != "" && remoteOutcome(err) == stele.OutcomeRetry {
				client.goOn()
				return nil
			}
			return err
		})
		if err != nil || got.last || c.enough() {
			return err
		}
		at = got.next
	}
}

// piece is what became of a stream.
type piece struct {
	next string // where to go on; empty: it did not begin
	last bool   // there is no more
}

// stream prints what one node has to give. opening bounds only the time until
// that begins.
func (c *consuming) stream(ctx, opening context.Context, client *client, addr string, partition uint32, from string) (got piece, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	opened := context.AfterFunc(opening, cancel)
	q := url.Values{"partition": {itoa(partition)}, "from": {from}, "follow": {fmt.Sprint(c.follow)}, "n": {itoa(c.wanted())}}
	answer, err := client.do(ctx, addr, http.MethodGet, topicPath(c.topic, "/records"), q, nil)
	if err != nil {
		return got, err
	}
	defer answer.Body.Close()
	if !opened() {
		return got, &remoteError{stele.OutcomeRetry, opening.Err().Error(), false}
	}
	got.next = answer.Header.Get(offsetHeader)
	r := bufio.NewReaderSize(answer.Body, 256<<10)
	for {
		text, err := r.ReadBytes('\n')
		if err != nil {
			return got, &remoteError{stele.OutcomeRetry, fmt.Sprintf("%s: %v", addr, noEOF(err)), false}
		}
		var line struct {
			recordLine
			lastLine
		}
		if err := json.Unmarshal(text, &line); err != nil {
			return got, &remoteError{stele.OutcomeRefused, fmt.Sprintf("the answer of %s: %v", addr, err), true}
		}
		switch {
		case line.Error != "":
			return got, &remoteError{parseOutcome(line.Outcome), line.Error, true}
		case line.Next != nil:
			return piece{itoa(*line.Next), true}, nil
		}
		if !c.print(&line.recordLine, text, r.Buffered() == 0) {
			return got, nil
		}
		got.next = itoa(line.Offset + 1)
	}
}

// noEOF names the end of a stream that has no last line.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// print prints a record, and reports whether more are wanted.
func (c *consuming) print(line *recordLine, text []byte, flush bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left <= 0 {
		return false
	}
	switch {
	case c.json:
		_, c.err = c.out.Write(text)
	case line.Value != nil:
		_, c.err = c.out.WriteString(*line.Value + "\n")
	default:
		_, c.err = c.out.Write(append(line.Value64, '\n'))
	}
	if c.err == nil && flush {
		c.err = c.out.Flush()
	}
	if c.left--; c.left <= 0 || c.err != nil {
		c.left = 0
		c.cancel()
		return false
	}
	return true
}
