package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/stelelog/stele/transport"
)

const (
	maxData = 64 << 10
	// linger is how long the serving end of a stream waits for the peer to
	// have read the end of it and to hang up.
	linger = 5 * time.Second
)

var (
	errStreamClosed = errors.New("httptransport: stream closed")
	errReturned     = errors.New("httptransport: the handler returned")
)

// stream is one end of a transport.Stream.
type stream struct {
	c      *conn
	served bool // this is the end of the handler

	data   chan []byte   // what came; closed at the end
	end    error         // of data, readable when it is closed
	rest   []byte        // the reader's
	closed chan struct{} // what still comes is thrown away
	close1 sync.Once

	out struct {
		sync.Mutex // held while bytes are written
		ended      bool
	}
}

// OpenStream implements transport.Transport.
func (t *Transport) OpenStream(ctx context.Context, to, method string) (transport.Stream, error) {
	if err := t.mayBegin(ctx); err != nil {
		return nil, t.callError(ctx, transport.ErrUnreachable, to, method, err)
	}
	defer t.wg.Done()
	c, err := t.dial(ctx, to, pathStream, http.Header{headerMethod: {url.QueryEscape(method)}})
	if err != nil {
		return nil, t.callError(ctx, transport.ErrUnreachable, to, method, err)
	}
	t.count(func(s *transport.Stats) { s.Streams++ })
	s := newStream(c)
	t.wg.Go(s.receive)
	return s, nil
}

// serveStream runs a handler and tells the peer what it returned.
func (t *Transport) serveStream(w http.ResponseWriter, r *http.Request, from transport.Peer) {
	method, err := url.QueryUnescape(r.Header.Get(headerMethod))
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	c, ok := t.accept(w, r, from)
	if !ok {
		return
	}
	t.count(func(s *transport.Stats) { s.StreamsServed++ })
	s := newStream(c)
	s.served = true
	t.wg.Go(s.receive)
	err = t.guard(method, func(h transport.Handler) error { return h.HandleStream(c.ctx, from, method, s) })
	s.discard()
	if err == nil {
		err = c.send(kindDone, nil, true)
	} else {
		e := remoteError(err)
		err = c.send(kindFail, []byte(e.Code+"\x00"+e.Message), true)
	}
	if err == nil {
		// Hanging up now could destroy bytes that the peer has not read yet.
		select {
		case <-c.ctx.Done():
		case <-time.After(linger):
		}
	}
	c.close(errReturned)
}

func newStream(c *conn) *stream {
	return &stream{c: c, data: make(chan []byte), closed: make(chan struct{})}
}

// receive reads the conn until it ends, even after the peer's bytes ended: the
// end of the conn must be noticed.
func (s *stream) receive() {
	var once sync.Once
	finish := func(end error) {
		once.Do(func() {
			s.end = end
			close(s.data)
		})
	}
	for {
		k, payload, err := s.c.next()
		switch {
		case err != nil:
			finish(err)
			return
		case k == kindData && s.end == nil:
			select {
			case s.data <- payload: // the peer is held back until somebody reads
			case <-s.closed:
			case <-s.c.ctx.Done():
			}
		case k == kindEnd:
			finish(io.EOF)
		case k == kindDone && !s.served:
			finish(io.EOF)
			s.c.close(errReturned) // nobody reads what this side writes
			return
		case k == kindFail && !s.served:
			code, text, _ := bytes.Cut(payload, []byte{0})
			finish(&transport.RemoteError{Code: string(code), Message: string(text)})
			s.c.close(errReturned)
			return
		default:
			s.c.close(errFormat)
		}
	}
}

// Read implements transport.Stream.
func (s *stream) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	select {
	case <-s.closed:
		return 0, errStreamClosed
	default:
	}
	for len(s.rest) == 0 {
		select {
		case b, ok := <-s.data:
			if !ok {
				return 0, s.end
			}
			s.rest = b
		case <-s.closed:
			return 0, errStreamClosed
		}
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// Write implements transport.Stream.
func (s *stream) Write(p []byte) (n int, err error) {
	s.out.Lock()
	defer s.out.Unlock()
	for len(p) > n {
		if s.out.ended {
			return n, errStreamClosed
		}
		piece := p[n:min(len(p), n+maxData)]
		if err := s.c.send(kindData, piece, true); err != nil {
			return n, err
		}
		n += len(piece)
	}
	return n, nil
}

// CloseWrite implements transport.Stream.
func (s *stream) CloseWrite() error {
	s.out.Lock()
	defer s.out.Unlock()
	return s.endLocked()
}

func (s *stream) endLocked() error {
	if s.out.ended {
		return nil
	}
	s.out.ended = true
	return s.c.send(kindEnd, nil, true)
}

func (s *stream) discard() { s.close1.Do(func() { close(s.closed) }) }

// Close implements transport.Stream. At the handler's end the conn goes on, to
// carry what the handler returns.
func (s *stream) Close() error {
	s.discard()
	if s.served && s.out.TryLock() {
		defer s.out.Unlock()
		_ = s.endLocked() // a broken stream has nothing to end
		return nil
	}
	s.c.close(errStreamClosed) // frees a Write that the peer holds back
	return nil
}
