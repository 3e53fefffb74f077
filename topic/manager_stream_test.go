package topic_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/topic"
)

// pipe is one end of a stream between two nodes. It breaks when one of them
// stops, and says nothing more when one is cut off.
type pipe struct {
	r    *io.PipeReader
	w    *io.PipeWriter
	out  io.Writer // w, or what changes what is written
	cut  func() bool
	meet func(b []byte) error // sees, and may change, what is read here
}

func (p *pipe) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	for p.cut() {
		pass(100 * time.Millisecond)
	}
	if err == nil && p.meet != nil {
		if err := p.meet(b[:n]); err != nil {
			return 0, err
		}
	}
	return n, err
}

func (p *pipe) Write(b []byte) (int, error) { return p.out.Write(b) }

func (p *pipe) CloseWrite() error { return p.w.Close() }

func (p *pipe) Close() error {
	p.r.CloseWithError(io.ErrClosedPipe)
	return p.w.CloseWithError(errors.New("the stream broke"))
}

// onStream has a function change what nodes answer in streams that begin from now on.
func (c *cluster) onStream(f func(from, to raftlog.NodeID, w io.Writer) io.Writer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.speak = f
}

// stream is a pair of pipes that breaks with either of its nodes.
type stream struct {
	from, to raftlog.NodeID
	broken   func()
}

// breakStreams breaks the streams of nodes that stop.
func (c *cluster) breakStreams(ids []raftlog.NodeID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.streams = slices.DeleteFunc(c.streams, func(s stream) bool {
		gone := slices.Contains(ids, s.from) || slices.Contains(ids, s.to)
		if gone {
			s.broken()
		}
		return gone
	})
}

// OpenStream is the node's topic.Streamer.
func (n *node) OpenStream(ctx context.Context, to raftlog.NodeID, method string) (topic.Stream, error) {
	c := n.cluster
	travel(ctx)
	target := c.node(to)
	if target == nil || !c.connected(n.id, to) {
		return nil, raftlog.Retry(errors.New("it cannot be reached"))
	}
	var here, there pipe
	here.r, there.w = io.Pipe()
	there.r, here.w = io.Pipe()
	here.out, there.out = here.w, there.w
	c.mu.Lock()
	if c.speak != nil {
		there.out = c.speak(to, n.id, there.w)
	}
	c.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	gone := func() bool { return c.node(to) != target || c.node(n.id) != n }
	cut := func() bool { return !c.connected(n.id, to) && ctx.Err() == nil && !gone() }
	here.cut, there.cut = cut, cut
	here.meet = func(b []byte) error {
		if gone() {
			return errors.New("the stream broke")
		}
		c.mu.Lock()
		meet := c.flow
		c.mu.Unlock()
		if meet != nil {
			return meet(n.id, to, b)
		}
		return nil
	}
	c.mu.Lock()
	c.streams = append(c.streams, stream{n.id, to, cancel})
	c.mu.Unlock()
	context.AfterFunc(ctx, func() { here.Close(); there.Close() })
	go func() {
		defer cancel()
		defer there.Close()
		_ = target.topics.HandleStream(ctx, n.id, method, &there)
		_, _ = io.Copy(io.Discard, there.r) // until the other end is done
	}()
	return &here, nil
}
