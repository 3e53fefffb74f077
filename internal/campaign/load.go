//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// load is the writers and readers.
type load struct {
	cluster *cluster
	ledger  *ledger
	topic   string
	http    *http.Client
	pause   time.Duration // of a writer between two requests

	writing, reading         sync.WaitGroup
	stopWriting, stopReading context.CancelFunc
	stopPulse                context.CancelFunc // nil: there is none
}

const (
	writers = 4
	// readersEach is how many readers follow each partition, each through
	// another node.
	readersEach = 2
	// patience is how long a writer waits for an answer, and a reader for a
	// record, before it goes to the next node: the one that it asked may be
	// paused, or cut off.
	patience = 8 * time.Second
	// pulses is how many there are for each partition, and pulseEvery the pause
	// of each between two records.
	pulses     = 2
	pulseEvery = 5 * time.Millisecond
)

func startLoad(ctx context.Context, c *cluster, l *ledger, topic string, seed uint64, pause time.Duration) *load {
	w := &load{cluster: c, ledger: l, topic: topic, pause: pause, http: &http.Client{
		Transport: &http.Transport{DialContext: (&net.Dialer{Timeout: time.Second}).DialContext, MaxIdleConnsPerHost: 8},
	}}
	writing, stopWriting := context.WithCancel(ctx)
	reading, stopReading := context.WithCancel(ctx)
	w.stopWriting, w.stopReading = stopWriting, stopReading
	for i := range writers {
		rng := rand.New(rand.NewPCG(seed, uint64(1000+i)))
		w.writing.Go(func() { w.write(writing, i, rng) })
	}
	for p := range l.partitions {
		for i := range readersEach {
			w.reading.Go(func() { w.follow(reading, p, i) })
		}
	}
	return w
}

// pulse has small records written to each partition through two nodes, one after
// the other and with hardly a pause, so that a pause of the partition shows. It
// ends with the writers.
func (w *load) pulse(ctx context.Context) {
	ctx, w.stopPulse = context.WithCancel(ctx)
	for p := range w.ledger.partitions {
		for i := range pulses {
			w.writing.Go(func() {
				at := w.cluster.after(p + i)
				for ctx.Err() == nil {
					numbers := w.ledger.issue(1)
					if !w.produce(ctx, unordered, at, p, numbers, fmt.Appendf(nil, "%d pulse\n", numbers[0])) {
						at = w.cluster.after(at)
					}
					if wait(ctx, pulseEvery) != nil {
						return
					}
				}
			})
		}
	}
}

// endWriting stops the writers, and waits for the last answers.
func (w *load) endWriting() {
	w.stopWriting()
	if w.stopPulse != nil {
		w.stopPulse()
	}
	w.writing.Wait()
}

// end stops all and waits.
func (w *load) end() {
	w.endWriting()
	w.stopReading()
	w.reading.Wait()
	w.http.CloseIdleConnections()
}

// write sends records through one node after the other. Half of the writers
// name the partition, the others leave it to the producer.
func (w *load) write(ctx context.Context, writer int, rng *rand.Rand) {
	at := w.cluster.after(rng.IntN(len(w.cluster.nodes)))
	for ctx.Err() == nil {
		partition := -1
		if writer%2 == 0 {
			partition = rng.IntN(len(w.ledger.partitions))
		}
		numbers := w.ledger.issue(1 + rng.IntN(50))
		var body bytes.Buffer
		for _, n := range numbers {
			size := rng.IntN(200)
			if rng.IntN(2000) == 0 {
				size = 100_000
			}
			fmt.Fprintf(&body, "%d %s\n", n, strings.Repeat("x", size))
		}
		clean := w.produce(ctx, writer, at, partition, numbers, body.Bytes())
		if !clean || rng.IntN(20) == 0 {
			at = w.cluster.after(at)
		}
		pause := w.pause
		if !clean {
			pause *= 10 // nobody may be there
		}
		if wait(ctx, pause) != nil {
			return
		}
	}
}

// produce sends records and tells the ledger what became of them. It returns
// whether the node took all of them.
func (w *load) produce(ctx context.Context, writer, node, partition int, numbers []number, body []byte) bool {
	// An answer is waited for even if the campaign ends.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience+2*time.Second)
	defer cancel()
	url := fmt.Sprintf("http://%s/topics/%s/records?timeout=%v", w.cluster.nodes[node].http, w.topic, patience)
	if partition >= 0 {
		url += fmt.Sprintf("&partition=%d", partition)
	}
	since := w.ledger.now()
	text, nothing, f := w.post(ctx, w.cluster.nodes[node].name, url, body)
	if f == nil {
		return w.settle(since, w.cluster.nodes[node].name, writer, numbers, text)
	}
	w.ledger.failed(since, f, len(numbers))
	for _, n := range numbers {
		if nothing || f.kind == typed && f.outcome != "unknown" {
			w.ledger.reject(n)
		} else {
			w.ledger.unknown(n)
		}
	}
	return false
}

// post sends a request. Nothing: nobody was reached, so nothing can have happened.
func (w *load) post(ctx context.Context, node, url string, body []byte) (text string, nothing bool, f *failure) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return "", true, broken(node, ctx, err)
	}
	req.GetBody = nil // sent once: another attempt is another set of records
	answer, err := w.http.Do(req)
	if err != nil {
		return "", isDial(err), broken(node, ctx, err)
	}
	defer answer.Body.Close()
	all, err := io.ReadAll(answer.Body)
	switch {
	case err != nil:
		return "", false, broken(node, ctx, err)
	case answer.StatusCode != http.StatusOK:
		return "", false, told(node, answer.Status, all)
	}
	return string(all), false, nil
}

// settle reads an answer as examples/cluster describes it. One that is not
// whole says nothing.
func (w *load) settle(since int, node string, writer int, numbers []number, text string) bool {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if lines[len(lines)-1] != fmt.Sprintf("end %d", len(numbers)) {
		w.ledger.failed(since, &failure{kind: garbled, node: node, sentence: fmt.Sprintf("%.100q", text)}, len(numbers))
		for _, n := range numbers {
			w.ledger.unknown(n)
		}
		return false
	}
	clean := true
	for _, line := range lines[:len(lines)-1] {
		words := strings.SplitN(line, " ", 4)
		count, err := strconv.Atoi(words[1])
		if err != nil || count > len(numbers) {
			w.ledger.unexpected("an answer has the line %q", line)
			return false
		}
		run := numbers[:count]
		numbers = numbers[count:]
		if words[0] == "ok" {
			partition, err1 := strconv.Atoi(words[2])
			offset, err2 := strconv.ParseInt(words[3], 10, 64)
			if err := errors.Join(err1, err2); err != nil {
				w.ledger.unexpected("an answer has the line %q", line)
				return false
			}
			for i, n := range run {
				w.ledger.acknowledge(writer, n, place{partition, offset + int64(i)})
			}
			continue
		}
		clean = false
		w.ledger.failed(since, &failure{typed, node, words[0], strings.Join(words[2:], " ")}, count)
		for _, n := range run {
			if words[0] == "unknown" {
				w.ledger.unknown(n)
			} else {
				w.ledger.reject(n)
			}
		}
	}
	return clean
}

// follow reads a partition from its start and to its end, through one node
// after the other. The last reader of each begins again now and then: what was
// read before must be there, the same. The first always goes on, so that what is
// new is read soon.
func (w *load) follow(ctx context.Context, partition, at int) {
	next, lives := int64(0), 0
	for node := w.cluster.after(at); ctx.Err() == nil; node = w.cluster.after(node) {
		since := w.ledger.now()
		reached, err := w.read(ctx, node, partition, next)
		var f *failure
		if errors.As(err, &f) && ctx.Err() == nil {
			w.ledger.failed(since, f, 0)
		}
		if reached > next {
			lives++
		}
		next = reached
		if at == readersEach-1 && lives == 10 {
			next, lives = 0, 0
		}
		if err != nil && wait(ctx, 50*time.Millisecond) != nil {
			return
		}
	}
}

// read follows a partition through a node until that breaks, is silent for too
// long, or has nothing new for a while. It returns the next offset.
func (w *load) read(ctx context.Context, node, partition int, from int64) (int64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	n := w.cluster.nodes[node]
	url := fmt.Sprintf("http://%s/topics/%s/records?partition=%d&from=%d&follow=true", n.http, w.topic, partition, from)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return from, err
	}
	silence := time.AfterFunc(patience/2, cancel)
	defer silence.Stop()
	answer, err := w.http.Do(req)
	if err != nil {
		return from, broken(n.name, ctx, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			return from, broken(n.name, ctx, err)
		}
		return from, told(n.name, answer.Status, text)
	}
	lines := bufio.NewReaderSize(answer.Body, 256<<10)
	for {
		text, err := lines.ReadBytes('\n')
		if err != nil {
			return from, broken(n.name, ctx, err)
		}
		silence.Reset(patience / 2)
		var line struct {
			Offset         int64
			Value          string
			Next           *int64
			Error, Outcome string
		}
		if err := json.Unmarshal(text, &line); err != nil {
			return from, &failure{kind: garbled, node: n.name, sentence: fmt.Sprintf("%.100q", text)}
		}
		if line.Next != nil {
			return from, &failure{kind: typed, node: n.name, outcome: line.Outcome, sentence: line.Error}
		}
		word, _, _ := strings.Cut(line.Value, " ")
		id, err := strconv.ParseUint(word, 10, 64)
		if err != nil || line.Offset != from {
			w.ledger.unexpected("%s sent offset %d of partition %d with %.40q, where offset %d was to come", n.name, line.Offset, partition, line.Value, from)
			return from, errors.New("unexpected")
		}
		w.ledger.read(number(id), place{partition, line.Offset}, n.name)
		from++
	}
}
