//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/storage"
)

const (
	topicName = "bench"
	patience  = 2 * time.Minute // for anything that has to happen
)

// cluster is the nodes in this process and what goes through them.
type cluster struct {
	cell
	dir     string
	files   *countingFS
	members []*member
	sent    []tally // by partition: what was acknowledged
}

// member is one node; node is nil while it is down.
type member struct {
	cfg      stele.Config
	node     *stele.Node
	producer *stele.Producer
	registry *prometheus.Registry
}

// startCluster returns a cluster whose topic has a leader in each partition.
func startCluster(ctx context.Context, c cell) (*cluster, error) {
	dir, err := os.MkdirTemp(c.dir, "stele-bench-")
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	k := &cluster{cell: c, dir: dir, files: &countingFS{FS: storage.DiskFS()}, sent: make([]tally, c.Partitions)}
	if err := k.start(ctx); err != nil {
		return nil, errors.Join(err, k.remove())
	}
	return k, nil
}

func (k *cluster) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var peers []stele.Peer
	var listeners []net.Listener
	for i := range k.Nodes {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		listeners = append(listeners, l)
		peers = append(peers, stele.Peer{Name: fmt.Sprintf("node-%d", i+1), Addr: l.Addr().String()})
	}
	for i, p := range peers {
		m := &member{cfg: stele.Config{Cluster: "bench", Name: p.Name, Dir: filepath.Join(k.dir, p.Name), InitialMembers: peers, FS: k.files, Tick: k.tick}}
		k.members = append(k.members, m)
		if err := m.open(ctx, listeners[i]); err != nil {
			return err
		}
	}
	if err := k.waitReady(ctx); err != nil {
		return err
	}
	_, err := k.members[0].node.CreateTopic(ctx, topicName, stele.TopicConfig{Partitions: uint32(k.Partitions), Replicas: uint32(k.Nodes)})
	if err != nil {
		return err
	}
	return k.waitLeaders(ctx)
}

// open opens the node; listener is nil after the first time.
func (m *member) open(ctx context.Context, listener net.Listener) (err error) {
	m.registry = prometheus.NewRegistry()
	cfg := m.cfg
	cfg.Listener, cfg.Metrics = listener, m.registry
	m.node, err = stele.Open(ctx, cfg)
	return err
}

func (m *member) waitReady(ctx context.Context) (err error) {
	if err := m.node.WaitReady(ctx); err != nil {
		return err
	}
	m.producer, err = m.node.NewProducer(stele.ProducerConfig{})
	return err
}

func (k *cluster) waitReady(ctx context.Context) error {
	for _, m := range k.members {
		if err := m.waitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

// leaders returns who leads each partition; nil: nobody.
func (k *cluster) leaders() []*member {
	leaders := make([]*member, k.Partitions)
	for _, m := range k.members {
		if m.node == nil {
			continue
		}
		for _, p := range m.node.Status().Partitions {
			if p.Role.IsLeader() && p.Readable {
				leaders[p.Partition] = m
			}
		}
	}
	return leaders
}

func (k *cluster) waitLeaders(ctx context.Context) error {
	for {
		missing := 0
		for _, m := range k.leaders() {
			if m == nil {
				missing++
			}
		}
		if missing == 0 {
			return nil
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%d of %d partitions have no leader: %w", missing, k.Partitions, ctx.Err())
		}
	}
}

// ways returns the member through which the records of each partition go.
func (k *cluster) ways() []*member {
	ways := k.leaders()
	if k.Via == "leader" {
		return ways
	}
	for p, leader := range ways {
		for i := range k.members {
			if m := k.members[(p+i)%len(k.members)]; m != leader {
				ways[p] = m
			}
		}
	}
	return ways
}

// close closes the nodes in good order, for the next start.
func (k *cluster) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var errs []error
	for _, m := range k.members {
		if m.producer != nil {
			errs = append(errs, m.producer.Close(ctx))
			m.producer = nil
		}
	}
	for _, m := range k.members {
		if m.node != nil {
			errs = append(errs, m.node.Close(ctx))
			m.node = nil
		}
	}
	return errors.Join(errs...)
}

// reopen opens all nodes again and waits until they serve.
func (k *cluster) reopen(ctx context.Context) error {
	for _, m := range k.members {
		if err := m.open(ctx, nil); err != nil {
			return err
		}
	}
	if err := k.waitReady(ctx); err != nil {
		return err
	}
	return k.waitLeaders(ctx)
}

// remove ends the cluster for good, so nothing need be handed over.
func (k *cluster) remove() error {
	for _, m := range k.members {
		if m.node != nil {
			m.node.Abort()
		}
	}
	return os.RemoveAll(k.dir)
}
