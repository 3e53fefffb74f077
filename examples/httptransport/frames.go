package main

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/stelelog/stele/transport"
)

const (
	// A link holds so many frames and bytes for a peer; more are lost.
	queueFrames = 4096
	queueBytes  = 64 << 20

	minPause = 20 * time.Millisecond
	maxPause = time.Second
)

type linkTo struct {
	addr  string
	class transport.Class
}

// link sends the frames of one class to one peer, over a connection of its
// own: what waits in one class, on either side, holds no other back.
type link struct {
	t *Transport
	linkTo
	queue chan []byte
	bytes atomic.Int64 // in queue, and the frame that is being written

	// Of the goroutine run.
	dialled   time.Time
	pause     time.Duration // between dials
	connected bool          // once at least
}

// Send implements transport.Transport.
func (t *Transport) Send(to string, class transport.Class, frame []byte) {
	if class >= transport.NumClasses {
		return
	}
	if l := t.link(linkTo{to, class}); l != nil && len(frame) <= t.cfg.MaxFrame {
		if l.bytes.Add(int64(len(frame))) <= queueBytes {
			select {
			case l.queue <- frame:
				return
			default:
			}
		}
		l.bytes.Add(-int64(len(frame)))
	}
	t.countDropped(class, frame)
}

func (t *Transport) countDropped(class transport.Class, frame []byte) {
	t.count(func(s *transport.Stats) {
		s.Classes[class].FramesDropped++
		s.Classes[class].BytesDropped += uint64(len(frame))
	})
}

// link returns nil when the transport does not run.
func (t *Transport) link(to linkTo) *link {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed || t.self.Load() == nil {
		return nil
	}
	l := t.mu.links[to]
	if l == nil {
		l = &link{t: t, linkTo: to, queue: make(chan []byte, queueFrames)}
		t.mu.links[to] = l
		t.wg.Go(l.run)
	}
	return l
}

// run sends until Close. What waited for a peer that cannot be reached is lost:
// raft sends again, and old heartbeats help nobody.
func (l *link) run() {
	var c *conn
	for {
		frame, ok := l.take()
		if !ok {
			l.dropQueued()
			return
		}
		if c != nil && c.self != l.t.self.Load() {
			c.close(errUnfit) // to introduce itself again
		}
		if c == nil || c.ctx.Err() != nil {
			var err error
			if c, err = l.connect(); err != nil {
				c = nil
				l.drop(frame)
				l.dropQueued()
				continue
			}
		}
		if err := c.send(kindFrame, frame, len(l.queue) == 0); err != nil {
			l.drop(frame)
			continue
		}
		l.bytes.Add(-int64(len(frame)))
		l.t.count(func(s *transport.Stats) {
			s.Classes[l.class].FramesSent++
			s.Classes[l.class].BytesSent += uint64(len(frame))
		})
	}
}

func (l *link) take() ([]byte, bool) {
	select {
	case frame := <-l.queue:
		return frame, true
	case <-l.t.ctx.Done():
		return nil, false
	}
}

func (l *link) drop(frame []byte) {
	l.bytes.Add(-int64(len(frame)))
	l.t.countDropped(l.class, frame)
}

func (l *link) dropQueued() {
	for n := len(l.queue); n > 0; n-- {
		l.drop(<-l.queue)
	}
}

// connect dials, but not in a tight loop. Frames wait meanwhile.
func (l *link) connect() (*conn, error) {
	if since := time.Since(l.dialled); since > maxPause {
		l.pause = minPause
	} else {
		select {
		case <-time.After(l.pause - since):
		case <-l.t.ctx.Done():
		}
		l.pause = min(2*l.pause, maxPause)
	}
	l.dialled = time.Now()
	c, err := l.t.dial(l.t.ctx, l.addr, pathFrames, http.Header{headerClass: {l.class.String()}})
	if err != nil {
		return nil, err
	}
	if l.connected {
		l.t.count(func(s *transport.Stats) { s.Reconnects++ })
	}
	l.connected = true
	l.t.wg.Go(func() { // this goroutine is counted itself, so Close waits
		if _, _, err := c.next(); err == nil {
			c.close(errFormat) // the peer has nothing to say but that it lives
		}
	})
	return c, nil
}

// serveFrames hands the frames of one connection over, one at a time.
func (t *Transport) serveFrames(w http.ResponseWriter, r *http.Request, from transport.Peer) {
	class, ok := parseClass(r.Header.Get(headerClass))
	if !ok {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	c, ok := t.accept(w, r, from)
	if !ok {
		return
	}
	for {
		k, frame, err := c.next()
		switch {
		case err != nil:
			return
		case k != kindFrame:
			c.close(errFormat)
			return
		}
		t.count(func(s *transport.Stats) {
			s.Classes[class].FramesReceived++
			s.Classes[class].BytesReceived += uint64(len(frame))
		})
		err = t.guard("frame", func(h transport.Handler) error {
			h.HandleFrame(from, class, frame)
			return nil
		})
		if err != nil {
			c.close(err)
			return
		}
	}
}

func parseClass(s string) (transport.Class, bool) {
	for c := range transport.NumClasses {
		if c.String() == s {
			return c, true
		}
	}
	return 0, false
}
