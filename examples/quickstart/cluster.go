package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/stelelog/stele"
)

const (
	nodes      = 3
	partitions = 6
	topicName  = "lines"
	patience   = time.Minute // for anything that has to happen
)

// cluster is three nodes in this process.
type cluster struct {
	dir     string
	members []*member
}

// member is one node, its directory and its address; node is nil while it is
// down.
type member struct {
	cfg  stele.Config
	node *stele.Node
	id   stele.NodeID
	died bool // it was aborted once
}

func startCluster(ctx context.Context) (*cluster, error) {
	dir, err := os.MkdirTemp("", "stele-quickstart-")
	if err != nil {
		return nil, err
	}
	c := &cluster{dir: dir}
	var peers []stele.Peer
	var listeners []net.Listener
	for i := range nodes {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, errors.Join(err, os.RemoveAll(dir))
		}
		listeners = append(listeners, l)
		peers = append(peers, stele.Peer{Name: fmt.Sprintf("node-%d", i+1), Addr: l.Addr().String()})
	}
	for i, p := range peers {
		m := &member{cfg: stele.Config{
			Cluster: "quickstart", Name: p.Name, Dir: filepath.Join(dir, p.Name), InitialMembers: peers,
		}}
		c.members = append(c.members, m)
		if err := m.start(ctx, listeners[i]); err != nil {
			c.close()
			return nil, err
		}
	}
	for _, m := range c.members {
		if err := m.waitReady(ctx); err != nil {
			c.close()
			return nil, err
		}
	}
	_, err = c.members[0].node.CreateTopic(ctx, topicName, stele.TopicConfig{Partitions: partitions, Replicas: nodes})
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// start opens the node; listener is nil after the first time.
func (m *member) start(ctx context.Context, listener net.Listener) (err error) {
	cfg := m.cfg
	cfg.Listener = listener
	m.node, err = stele.Open(ctx, cfg)
	return err
}

func (m *member) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := m.node.WaitReady(ctx)
	m.id = m.node.Status().Node
	return err
}

func (c *cluster) close() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, m := range c.members {
		if m.node != nil {
			if err := m.node.Close(ctx); err != nil {
				fmt.Fprintln(os.Stderr, "close", m.cfg.Name+":", err)
			}
		}
	}
	if err := os.RemoveAll(c.dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// outage is one abort and what it cost.
type outage struct {
	node, why string
	leaderFor time.Duration // without a leader
	back      time.Duration // until the node was ready again
}

// crash aborts the node that leads the most partitions (part 1) or the metadata
// (part 2), waits until everything has a leader again, and brings it back.
func (c *cluster) crash(ctx context.Context, w *writer, part int) (outage, error) {
	var victim *member
	o := outage{why: "led the most partitions"}
	led := func(s stele.Status) bool { return leads(s, victim) > 0 }
	if part == 1 {
		victim = c.mostPartitions(w.via)
	} else {
		o.why = "led the metadata"
		victim = c.metadataLeader(w.via)
		led = func(s stele.Status) bool {
			return s.MetadataLeader == 0 || s.MetadataLeader == victim.id || leads(s, victim) > 0
		}
	}
	o.node = victim.cfg.Name
	if victim == w.via {
		if err := w.move(ctx, c.other(victim)); err != nil {
			return o, err
		}
	}
	died := time.Now()
	victim.died = true
	victim.node.Abort()
	err := until(ctx, func() bool { return !led(w.via.node.Status()) }, "everything to have a leader again")
	if err != nil {
		return o, err
	}
	o.leaderFor = time.Since(died)
	if err := victim.start(ctx, nil); err != nil {
		return o, err
	}
	if err := victim.waitReady(ctx); err != nil {
		return o, err
	}
	o.back = time.Since(died)
	return o, nil
}

// leads counts the partitions that, as s has it, a member leads or nobody does.
func leads(s stele.Status, m *member) (n int) {
	for _, p := range s.Partitions {
		if p.Leader == m.id || p.Leader == 0 {
			n++
		}
	}
	return n
}

// mostPartitions returns the member that leads the most, as via sees it.
func (c *cluster) mostPartitions(via *member) *member {
	best, most := c.members[0], -1
	status := via.node.Status()
	for _, m := range c.members {
		if n := leads(status, m); n > most {
			best, most = m, n
		}
	}
	return best
}

func (c *cluster) metadataLeader(via *member) *member {
	leader := via.node.Status().MetadataLeader
	for _, m := range c.members {
		if m.id == leader {
			return m
		}
	}
	return c.members[0]
}

// other returns a member that was never closed and is not m.
func (c *cluster) other(m *member) *member {
	for _, o := range c.members {
		if o != m && !o.died {
			return o
		}
	}
	return nil
}

// until looks every few milliseconds whether cond holds.
func until(ctx context.Context, cond func() bool, what string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for !cond() {
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("waited %v for %s", patience, what)
		}
	}
	return nil
}
