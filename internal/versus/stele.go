//go:build versus

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stelelog/stele"
)

func init() { register("stele", func() Subject { return &steleSubject{} }) }

// steleSubject is a cluster with one topic, which has all the partitions. A
// record goes through the producer of the node that leads its partition, as
// the other subjects have it: one of them has its client connected to the
// leader's server, two are called on the leader.
type steleSubject struct {
	members []*steleMember
	lead    []atomic.Pointer[steleMember]
}

// steleMember is one node and its producer.
type steleMember struct {
	node     *stele.Node
	producer *stele.Producer
	dead     atomic.Bool
}

const steleTopic = "versus"

var (
	_ Subject       = (*steleSubject)(nil)
	_ AsyncProducer = (*steleSubject)(nil)
	_ BatchProducer = (*steleSubject)(nil)
	_ LeaderKiller  = (*steleSubject)(nil)
	_ Noter         = (*steleSubject)(nil)
	_ refresher     = (*steleSubject)(nil)
)

func (s *steleSubject) Name() string { return "stele" }

func (s *steleSubject) Note(bool) string {
	return "one topic, all nodes hold all partitions, default configuration, built-in TCP over loopback; " +
		"records go through a producer (idempotent, no compression) of the node that leads the partition, in process; " +
		"journal synced on a quorum before the ack; " +
		"Consume reads through any node"
}

func (s *steleSubject) Start(ctx context.Context, dir string, nodes, partitions int, durable bool) error {
	if !durable {
		return fmt.Errorf("produce without sync: %w", ErrUnsupported)
	}
	numbers, err := ports(dir, nodes)
	if err != nil {
		return err
	}
	var peers []stele.Peer
	for i, port := range numbers {
		peers = append(peers, stele.Peer{Name: fmt.Sprintf("n%d", i), Addr: fmt.Sprintf("127.0.0.1:%d", port)})
	}
	for _, p := range peers {
		node, err := stele.Open(ctx, stele.Config{Cluster: "versus", Name: p.Name, Dir: filepath.Join(dir, p.Name), InitialMembers: peers})
		if err != nil {
			return err
		}
		s.members = append(s.members, &steleMember{node: node})
	}
	for _, m := range s.members {
		if err := m.node.WaitReady(ctx); err != nil {
			return err
		}
		if m.producer, err = m.node.NewProducer(stele.ProducerConfig{}); err != nil {
			return err
		}
	}
	_, err = s.members[0].node.CreateTopic(ctx, steleTopic, stele.TopicConfig{Partitions: uint32(partitions), Replicas: uint32(nodes)})
	if err != nil && !errors.Is(err, stele.ErrTopicExists) {
		return err
	}
	s.lead = make([]atomic.Pointer[steleMember], partitions)
	for s.look() < partitions {
		if err := sleepCtx(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// look notes the leader of every partition that has one, and counts those.
func (s *steleSubject) look() (led int) {
	for _, m := range s.members {
		if m.dead.Load() {
			continue
		}
		for _, p := range m.node.Status().Partitions {
			if p.Role.IsLeader() && p.Readable && int(p.Partition) < len(s.lead) {
				s.lead[p.Partition].Store(m)
				led++
			}
		}
	}
	return led
}

func (s *steleSubject) Produce(ctx context.Context, p int, v []byte) error {
	_, err := s.lead[p].Load().producer.ProduceTo(ctx, steleTopic, uint32(p), stele.Record{Value: v})
	return err
}

// steleFuture is used again once it was waited for.
type steleFuture struct {
	result chan error
	done   func(stele.Position, error)
}

var steleFutures = sync.Pool{New: func() any {
	f := &steleFuture{result: make(chan error, 1)}
	f.done = func(_ stele.Position, err error) { f.result <- err }
	return f
}}

func (f *steleFuture) Wait(ctx context.Context) error {
	select {
	case err := <-f.result:
		steleFutures.Put(f)
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *steleSubject) ProduceAsync(ctx context.Context, p int, v []byte) (Future, error) {
	f := steleFutures.Get().(*steleFuture)
	s.lead[p].Load().producer.ProduceToAsync(ctx, steleTopic, uint32(p), stele.Record{Value: v}, f.done)
	return f, nil
}

func (s *steleSubject) ProduceBatch(ctx context.Context, p int, vs [][]byte) error {
	records := make([]stele.Record, len(vs))
	for i, v := range vs {
		records[i].Value = v
	}
	_, err := s.lead[p].Load().producer.ProduceTo(ctx, steleTopic, uint32(p), records...)
	return err
}

func (s *steleSubject) Consume(ctx context.Context, p int, from, n int64) (records, bytes int64, err error) {
	m := s.members[p%len(s.members)]
	if m.dead.Load() {
		m = s.survivor()
	}
	reader, err := m.node.NewReader(ctx, stele.TopicPartition{Topic: steleTopic, Partition: uint32(p)}, stele.FromOffset(stele.Offset(from)))
	if err != nil {
		return 0, 0, err
	}
	defer reader.Close()
	for records < n {
		view, err := reader.Fetch(ctx, 1<<20)
		if err != nil {
			return records, bytes, err
		}
		for records < n && view.Next() {
			records++
			bytes += int64(len(view.Record().Value))
		}
		if err := view.Err(); err != nil {
			return records, bytes, err
		}
	}
	return records, bytes, nil
}

func (s *steleSubject) survivor() *steleMember {
	for _, m := range s.members {
		if !m.dead.Load() {
			return m
		}
	}
	return s.members[0]
}

// KillLeader aborts a node. Records go through a survivor from then on, which
// finds the next leader by itself.
func (s *steleSubject) KillLeader(_ context.Context, p int) (string, error) {
	victim := s.lead[p].Load()
	victim.dead.Store(true)
	for q := range s.lead {
		if s.lead[q].Load() == victim {
			s.lead[q].Store(s.survivor())
		}
	}
	victim.node.Abort()
	return "Node.Abort() of the leader's node (nothing handed over, nothing flushed)", nil
}

func (s *steleSubject) Refresh(context.Context, int) error {
	s.look()
	return nil
}

func (s *steleSubject) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	var errs []error
	for _, m := range s.members {
		if m.producer != nil && !m.dead.Load() {
			errs = append(errs, m.producer.Close(ctx))
		}
	}
	for _, m := range s.members {
		if !m.dead.Load() {
			errs = append(errs, m.node.Close(ctx))
		}
	}
	return errors.Join(errs...)
}
