package main

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// report is what a run found.
type report struct {
	nodes, partitions int
	records           int
	bytes             int64
	elapsed           time.Duration // of sending, crashes included
	outages           []outage
	readVia           string
	lost, duplicated  int
	different         []string // partitions that do not match
}

func (r *report) ok() bool { return r.lost == 0 && r.duplicated == 0 && len(r.different) == 0 }

func (r *report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d nodes, %d partitions, every record synced on a quorum\n", r.nodes, r.partitions)
	seconds := max(r.elapsed.Seconds(), 1e-9)
	fmt.Fprintf(&b, "  sent        %s, %.1f MB, in %.2fs: %.0f records/s, %.1f MB/s\n",
		count(r.records, "record"), float64(r.bytes)/1e6, seconds, float64(r.records)/seconds, float64(r.bytes)/1e6/seconds)
	for _, o := range r.outages {
		fmt.Fprintf(&b, "  aborted     %s, which %s: %.2fs without a leader, ready again after %.2fs\n",
			o.node, o.why, o.leaderFor.Seconds(), o.back.Seconds())
	}
	fmt.Fprintf(&b, "  read back   through %s, which was never closed\n", r.readVia)
	fmt.Fprintf(&b, "  lost        %d\n", r.lost)
	fmt.Fprintf(&b, "  duplicated  %d\n", r.duplicated)
	for _, d := range r.different {
		fmt.Fprintf(&b, "  DIFFERENT   %s\n", d)
	}
	if r.ok() {
		fmt.Fprintf(&b, "  count and hash of every partition match\n")
	}
	return b.String()
}

// count is a number of things.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// progress is a line on standard error that says how far sending is: again and
// again on a terminal, once elsewhere.
type progress struct{ done, stopped chan struct{} }

func startProgress(w *writer, total int) *progress {
	p := &progress{make(chan struct{}), make(chan struct{})}
	again := ""
	if info, err := os.Stderr.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
		again = "\r"
	}
	go func() {
		defer close(p.stopped)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if again != "" {
					fmt.Fprintf(os.Stderr, "%ssent %d of %s ", again, w.sent.Load(), count(total, "record"))
				}
			case <-p.done:
				fmt.Fprintf(os.Stderr, "%ssent %d of %s\n", again, w.sent.Load(), count(total, "record"))
				return
			}
		}
	}()
	return p
}

func (p *progress) stop() {
	close(p.done)
	<-p.stopped
}
