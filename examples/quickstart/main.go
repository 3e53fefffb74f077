// Quickstart runs a cluster of three nodes in this process, over loopback TCP
// and real files in a temporary directory, and shows that losing leaders loses
// no record.
//
//	go run ./examples/quickstart            # a text of its own, many times
//	go run ./examples/quickstart FILE       # the lines of a file
//	some-command | go run ./examples/quickstart -
//
// It sends every line as a record, spread over several partitions. When a third
// is sent, it aborts the node that leads the most partitions, as a crash would;
// when that node is back, it aborts the node that leads the metadata. Then it
// reads everything back through a node that was never closed and compares count
// and hash of each partition. The exit status is 1 if anything differs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"
)

func main() {
	// Interrupted, it still removes its directory.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

const usage = `Quickstart runs three nodes in this process, sends lines as records, aborts the
leaders in the middle as a crash would, and compares what comes back with what
was sent. It keeps nothing.

  quickstart            sends a text of its own, many times
  quickstart FILE       sends the lines of a file
  quickstart -          sends the lines of standard input

The exit status is 1 if anything differs or fails.
`

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	flags.Usage = func() { fmt.Fprint(flags.Output(), usage) }
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return err
	}
	lines, err := input(flags.Args())
	if err != nil {
		return err
	}
	c, err := startCluster(ctx)
	if err != nil {
		return err
	}
	defer c.close()

	w, err := newWriter(ctx, c, lines)
	if err != nil {
		return err
	}
	progress := startProgress(w, len(lines))
	report, err := drive(ctx, c, w)
	progress.stop()
	if err != nil {
		return err
	}
	if err := verify(ctx, w, report); err != nil {
		return err
	}
	fmt.Print(report)
	if !report.ok() {
		return fmt.Errorf("what came back is not what was sent")
	}
	return nil
}

// drive sends all lines in three parts and aborts a node at the beginning of
// the second and of the third.
func drive(ctx context.Context, c *cluster, w *writer) (*report, error) {
	r := &report{nodes: len(c.members), partitions: partitions, records: len(w.lines), bytes: w.bytes}
	start := time.Now()
	for part := range 3 {
		sent := w.send(ctx, part, 3)
		if part > 0 {
			outage, err := c.crash(ctx, w, part)
			if err != nil {
				return nil, err
			}
			r.outages = append(r.outages, outage)
		}
		if err := <-sent; err != nil {
			return nil, err
		}
	}
	r.elapsed = time.Since(start)
	return r, nil
}
