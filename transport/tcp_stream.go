package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// inflight is how many pieces of a stream wait for a reader; then the
// connection is not read, and TCP holds the peer back.
const inflight = 4

// tcpStream is one end of a stream; it has a connection to itself.
type tcpStream struct {
	c      *conn
	pieces chan []byte // closed at the end of the peer's bytes
	end    error       // readable after pieces closed

	rest       []byte          // the reader's
	unwanted   chan struct{}   // closed: pieces are thrown away
	close1     sync.Once       // of unwanted
	writing    context.Context // ends with the connection, and when nothing more may be written
	stopWrites context.CancelFunc
	finished   atomic.Bool // the peer's handler returned: it reads no more
	writeEnded atomic.Bool
	putting    sync.Mutex // held while a piece gets its place: none is behind the end
}

func newTCPStream(c *conn) *tcpStream {
	s := &tcpStream{c: c, pieces: make(chan []byte, inflight), unwanted: make(chan struct{})}
	s.writing, s.stopWrites = context.WithCancel(c.ctx)
	return s
}

// receive reads the connection until it ends. It ends pieces exactly once.
func (s *tcpStream) receive() error {
	open := true
	finish := func(end error) {
		if open {
			open = false
			s.end = end
			close(s.pieces)
		}
	}
	err := s.c.receive(maxData, func(kind frameKind, payload []byte) error {
		switch {
		case kind == frameData && open:
			select {
			case s.pieces <- payload:
			case <-s.unwanted:
			case <-s.c.ctx.Done():
			}
		case kind == frameEnd:
			finish(io.EOF)
		case kind == frameFinish && s.c.dialed:
			o, err := decodeOutcome(payload)
			if err != nil {
				return err
			}
			s.finished.Store(true)
			end := o.err()
			if end == nil {
				end = io.EOF
			}
			finish(end)
		default:
			return unexpected(kind, laneStream)
		}
		return nil
	})
	finish(ErrInterrupted)
	return err
}

// Read implements Stream.
func (s *tcpStream) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	for len(s.rest) == 0 {
		if s.isUnwanted() {
			return 0, io.ErrClosedPipe
		}
		var ok bool
		select {
		case s.rest, ok = <-s.pieces:
		case <-s.unwanted:
			return 0, io.ErrClosedPipe
		}
		if !ok {
			if errors.Is(s.end, ErrInterrupted) {
				return 0, s.broken()
			}
			return 0, s.end
		}
	}
	n := copy(b, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

func (s *tcpStream) isUnwanted() bool {
	select {
	case <-s.unwanted:
		return true
	default:
		return false
	}
}

// broken is the error of a stream whose connection ended or is about to.
func (s *tcpStream) broken() error {
	why := context.Cause(s.c.ctx)
	if why == nil || errors.Is(why, ErrInterrupted) {
		return ErrInterrupted
	}
	return fmt.Errorf("%w: %w", ErrInterrupted, why)
}

// Write implements Stream.
func (s *tcpStream) Write(b []byte) (int, error) {
	for written := 0; ; {
		if s.writesEnded() {
			return written, io.ErrClosedPipe
		}
		if written == len(b) {
			return written, nil
		}
		piece := append([]byte(nil), b[written:min(len(b), written+maxData)]...)
		if s.put(piece) {
			written += len(piece)
		} else if !s.writesEnded() {
			return written, s.broken()
		}
	}
}

func (s *tcpStream) writesEnded() bool {
	return s.writeEnded.Load() || s.finished.Load() || s.isUnwanted()
}

// put waits for room; false if nothing more may be written.
func (s *tcpStream) put(piece []byte) bool {
	s.putting.Lock()
	defer s.putting.Unlock()
	return s.c.out.put(s.writing, item{kind: frameData, body: piece})
}

// CloseWrite implements Stream.
func (s *tcpStream) CloseWrite() error {
	if s.c.closed() {
		return s.broken()
	}
	if !s.writeEnded.Swap(true) {
		s.stopWrites()
		s.putting.Lock()
		defer s.putting.Unlock()
		s.c.out.force(item{kind: frameEnd})
	}
	return nil
}

// Close implements Stream. The serving end lives until its handler returned,
// because the handler's verdict goes the same way.
func (s *tcpStream) Close() error {
	s.discard()
	if s.c.dialed {
		s.c.close(ErrInterrupted)
		return nil
	}
	_ = s.CloseWrite() // a broken stream has nothing to end
	return nil
}

func (s *tcpStream) discard() { s.close1.Do(func() { close(s.unwanted); s.stopWrites() }) }

// OpenStream implements Transport.
func (t *TCP) OpenStream(ctx context.Context, to, method string) (Stream, error) {
	fail := func(cause error) (Stream, error) { return nil, callError(ErrUnreachable, to, method, cause) }
	if err := checkRequest(method, nil, 0); err != nil {
		return fail(err)
	}
	if err := t.ended(ctx); err != nil {
		return fail(err)
	}
	dialCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(t.ctx, cancel)()
	out := new(sendQueue)
	out.init(t.cfg.QueueBytes.Stream)
	out.force(item{kind: frameOpen, prefix: appendOpen(nil, remaining(ctx, t.cfg.Clock), method)})
	c, err := t.dial(dialCtx, linkTo{to, laneStream}, out, nil)
	if err != nil {
		if ended := t.ended(ctx); ended != nil {
			err = fmt.Errorf("%w: %w", err, ended)
		}
		return fail(err)
	}
	s := newTCPStream(c)
	if !t.spawn(func() { t.runStream(ctx, c, s) }) {
		c.close(ErrClosed)
		return fail(ErrClosed)
	}
	t.stats.streams.Add(1)
	return s, nil
}

// runStream keeps the dialling end of a stream until its connection ends.
func (t *TCP) runStream(ctx context.Context, c *conn, s *tcpStream) {
	stop := context.AfterFunc(ctx, func() { c.close(ctx.Err()) })
	defer stop()
	var writer sync.WaitGroup
	writer.Go(func() {
		c.close(c.send())
		c.out.close()
	})
	c.close(s.receive())
	writer.Wait()
}

// serveStream serves the accepting end; it returns when the peer has hung up
// or has had its time to.
func (t *TCP) serveStream(c *conn, h guarded) error {
	timeout, method, err := t.readOpen(c)
	if err != nil {
		return err
	}
	s := newTCPStream(c)
	var reader sync.WaitGroup
	reader.Go(func() { c.close(s.receive()) })
	t.stats.streamsServed.Add(1)
	ctx, cancel := withTimeout(c.ctx, timeout)
	err = h.stream(ctx, *c.peer.Load(), method, s)
	cancel()
	s.writeEnded.Store(true)
	s.discard()
	c.out.force(item{kind: frameFinish, prefix: appendOutcome(nil, outcomeOf(err))})
	// Closing now could destroy bytes that the peer has not read yet: it hangs
	// up when it has.
	linger := t.cfg.Clock.AfterFunc(t.cfg.PeerTimeout, func() { c.close(ErrInterrupted) })
	reader.Wait()
	linger.Stop()
	return nil
}

// readOpen reads what the stream is for. It must come as fast as a handshake.
func (t *TCP) readOpen(c *conn) (timeout time.Duration, method string, err error) {
	timer := t.cfg.Clock.AfterFunc(t.cfg.HandshakeTimeout, func() { c.close(errTooSlow) })
	defer timer.Stop()
	for {
		kind, payload, err := readFrame(c.br, &c.header, requestFields)
		switch {
		case err != nil:
			return 0, "", err
		case kind == framePing:
		case kind != frameOpen:
			return 0, "", unexpected(kind, c.lane)
		default:
			return decodeOpen(payload)
		}
	}
}
