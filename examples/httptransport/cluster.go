package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/stelelog/stele"
)

// cluster is three hosts in this process.
type cluster struct {
	dir   string
	peers []stele.Peer
	hosts []*host
}

func startCluster(ctx context.Context) (_ *cluster, err error) {
	dir, err := os.MkdirTemp("", "stele-httptransport-")
	if err != nil {
		return nil, err
	}
	c := &cluster{dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	for i := range nodes {
		h, err := listen("127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		c.hosts = append(c.hosts, h)
		c.peers = append(c.peers, stele.Peer{Name: fmt.Sprint("node-", i+1), Addr: h.transport.Addr()})
	}
	for i := range c.hosts {
		if err := c.open(ctx, i); err != nil {
			return nil, err
		}
	}
	for _, h := range c.hosts {
		if err := h.node.WaitReady(ctx); err != nil {
			return nil, err
		}
	}
	_, err = c.hosts[0].node.CreateTopic(ctx, topicName, stele.TopicConfig{Partitions: partitions, Replicas: nodes})
	return c, err
}

// open opens a node on the network of its host.
func (c *cluster) open(ctx context.Context, i int) (err error) {
	h := c.hosts[i]
	h.node, err = stele.Open(ctx, stele.Config{
		Cluster: "httptransport", Name: c.peers[i].Name, Dir: filepath.Join(c.dir, c.peers[i].Name),
		InitialMembers: c.peers, Transport: h.transport,
	})
	if err != nil {
		return err
	}
	h.serve()
	return nil
}

// restart is the program of a host that was closed running again.
func (c *cluster) restart(ctx context.Context, i int) error {
	h, err := listen(c.hosts[i].addr)
	if err != nil {
		return err
	}
	c.hosts[i] = h
	if err := c.open(ctx, i); err != nil {
		return err
	}
	return c.hosts[i].node.WaitReady(ctx)
}

func (c *cluster) close() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, h := range c.hosts {
		err = errors.Join(err, h.close(ctx))
	}
	return errors.Join(err, os.RemoveAll(c.dir))
}

// busiest returns which host leads the most partitions, of those from first on.
func (c *cluster) busiest(first int) int {
	best, most := first, -1
	for i := first; i < len(c.hosts); i++ {
		id, n := c.hosts[i].node.Status().Node, 0
		for _, p := range c.hosts[0].node.Status().Partitions {
			if p.Leader == id {
				n++
			}
		}
		if n > most {
			best, most = i, n
		}
	}
	return best
}

// produce sends records through the first host, numbered from and below to, and
// returns which went to which partition.
func (c *cluster) produce(ctx context.Context, from, to int) ([partitions][]string, error) {
	var sent [partitions][]string
	producer, err := c.hosts[0].node.NewProducer(stele.ProducerConfig{})
	if err != nil {
		return sent, err
	}
	defer producer.Close(ctx)
	for p := range partitions {
		var records []stele.Record
		for n := from + p; n < to; n += partitions {
			value := fmt.Sprint("hello ", n)
			sent[p] = append(sent[p], value)
			records = append(records, stele.Record{Value: []byte(value)})
		}
		if _, err := producer.ProduceTo(ctx, topicName, uint32(p), records...); err != nil {
			return sent, err
		}
	}
	return sent, nil
}

// readAll reads every partition through a host, up to the end that the first
// host sees.
func (c *cluster) readAll(ctx context.Context, via int) ([partitions][]string, error) {
	var read [partitions][]string
	for p := range partitions {
		tp := stele.TopicPartition{Topic: topicName, Partition: uint32(p)}
		end, err := c.hosts[0].node.NewReader(ctx, tp, stele.FromEnd())
		if err != nil {
			return read, err
		}
		last := end.Offset()
		end.Close()
		reader, err := c.hosts[via].node.NewReader(ctx, tp, stele.FromStart())
		if err != nil {
			return read, err
		}
		for reader.Offset() < last {
			batch, err := reader.Fetch(ctx, 1<<20)
			if err != nil {
				reader.Close()
				return read, err
			}
			for batch.Next() {
				read[p] = append(read[p], string(batch.Record().Value))
			}
		}
		reader.Close()
	}
	return read, nil
}
