package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"time"
)

const (
	nodes      = 3
	partitions = 3
	topicName  = "greetings"
	patience   = time.Minute // for all of it
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, 30_000); err != nil {
		fmt.Fprintln(os.Stderr, "httptransport:", err)
		os.Exit(1)
	}
}

// run sends records through the first of three nodes, aborts another one after
// half of them, brings it back, and reads everything through that one.
func run(ctx context.Context, out io.Writer, records int) (err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c, err := startCluster(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	sent, err := c.produce(ctx, 0, records/2)
	if err != nil {
		return err
	}
	for _, h := range c.hosts {
		if err := get(ctx, out, "http://"+h.addr+"/hello"); err != nil {
			return err
		}
	}

	victim := c.busiest(1)
	if err := c.hosts[victim].abort(); err != nil {
		return err
	}
	fmt.Fprintf(out, "aborted %s\n", c.peers[victim].Name)
	more, err := c.produce(ctx, records/2, records)
	if err != nil {
		return err
	}
	if err := c.restart(ctx, victim); err != nil {
		return err
	}
	read, err := c.readAll(ctx, victim)
	if err != nil {
		return err
	}
	for p := range sent {
		want := append(sent[p], more[p]...)
		if !slices.Equal(want, read[p]) {
			return fmt.Errorf("partition %d: %d records were sent, %d came back, or others", p, len(want), len(read[p]))
		}
		fmt.Fprintf(out, "partition %d: %d records came back as they were sent\n", p, len(want))
	}
	return nil
}

// get prints a page of the host.
func get(ctx context.Context, out io.Writer, url string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	defer http.DefaultClient.CloseIdleConnections()
	_, err = io.Copy(out, resp.Body)
	return err
}
