//go:build versus

// Package main is this library's side of a comparison with other replicated
// logs: stele.go is a subject of a benchmark that lives outside this module,
// because its other subjects have dependencies that this module shall not have.
// The benchmark copies stele.go beside its own files; this file stands in for
// those, so that stele.go compiles and is vetted here:
//
//	go vet -tags versus ./internal/versus
package main

import (
	"context"
	"errors"
	"time"
)

// Subject is one library with nodes replicas in this process, and partitions
// logs that are replicated over all of them.
type Subject interface {
	Name() string
	// Start opens the cluster, again if dir has data, and returns when every
	// partition has a leader.
	Start(ctx context.Context, dir string, nodes, partitions int, durable bool) error
	// Produce returns when a quorum has committed the value and, if durable,
	// synced it.
	Produce(ctx context.Context, partition int, value []byte) error
	// Consume reads n records from offset from on, and counts them and the bytes
	// of their values.
	Consume(ctx context.Context, partition int, from, n int64) (records, bytes int64, err error)
	Close() error
}

// Future is a record that was not answered yet.
type Future interface {
	Wait(ctx context.Context) error
}

// The optional parts of a Subject.
type (
	// AsyncProducer sends without waiting for the answer.
	AsyncProducer interface {
		ProduceAsync(ctx context.Context, partition int, value []byte) (Future, error)
	}
	// BatchProducer commits several records together.
	BatchProducer interface {
		ProduceBatch(ctx context.Context, partition int, values [][]byte) error
	}
	// LeaderKiller stops the leader of a partition as abruptly as it can be, and
	// says how.
	LeaderKiller interface {
		KillLeader(ctx context.Context, partition int) (how string, err error)
	}
	// Noter says what the figures stand for.
	Noter interface{ Note(durable bool) string }

	refresher interface {
		Refresh(ctx context.Context, partition int) error
	}
)

// ErrUnsupported is what a subject does not have.
var ErrUnsupported = errors.New("unsupported by this subject")

func register(string, func() Subject) {}

// ports returns n free ports, the same ones for the same dir.
func ports(string, int) ([]int, error) { return nil, ErrUnsupported }

func sleepCtx(ctx context.Context, d time.Duration) error {
	pause, end := context.WithTimeout(ctx, d)
	defer end()
	<-pause.Done()
	return ctx.Err()
}

func main() {}
