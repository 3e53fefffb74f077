package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sync"
	"time"

	"github.com/stelelog/stele/transport"
)

// What goes over an upgraded connection, in both directions, is messages:
//
//	+------+-----------+-----------------------+---------+
//	| kind | length u32| CRC-32C of payload u32| payload |
//	+------+-----------+-----------------------+---------+
type kind byte

const (
	kindPing  kind = iota // every pingEvery: I am alive
	kindFrame             // frames: one frame
	kindData              // stream: bytes
	kindEnd               // stream: CloseWrite
	kindDone              // stream: the handler returned nil
	kindFail              // stream: the handler returned an error: code, 0, text
)

const (
	messageHeader = 9
	pingEvery     = time.Second
	// silence is how long a peer may say nothing, not even a ping.
	silence = 5 * pingEvery
)

var (
	errSilent = errors.New("httptransport: peer is silent")
	errUnfit  = errors.New("httptransport: identities no longer fit")
	errFormat = errors.New("httptransport: not a message")
)

// conn is an HTTP connection after its upgrade. One goroutine calls next, any
// may call send and close.
type conn struct {
	wire     io.ReadWriteCloser
	peer     transport.Peer
	self     *transport.Identity // what this side said when it dialled
	maxFrame int
	ctx      context.Context         // ends with the connection; its cause says why
	close    context.CancelCauseFunc // the first cause stays
	in       *bufio.Reader
	quiet    *time.Timer // runs while next waits for bytes

	out struct {
		sync.Mutex
		*bufio.Writer
	}
}

// open begins a conn, which ends with ctx, with Close, and when SetIdentity
// makes the peer a stranger. With an error, wire is closed.
func (t *Transport) open(ctx context.Context, wire io.ReadWriteCloser, peer transport.Peer) (*conn, error) {
	c := &conn{wire: wire, peer: peer, maxFrame: t.cfg.MaxFrame}
	c.ctx, c.close = context.WithCancelCause(context.Background())
	c.in = bufio.NewReaderSize(watched{c}, 32<<10)
	c.out.Writer = bufio.NewWriterSize(wire, 32<<10)
	c.quiet = time.AfterFunc(silence, func() { c.close(errSilent) })
	t.mu.Lock()
	defer t.mu.Unlock()
	var err error
	switch {
	case t.mu.closed:
		err = transport.ErrClosed
	case judge(*t.self.Load(), peer.Identity) != 0:
		err = errUnfit
	}
	if err != nil {
		c.close(err)
		c.quiet.Stop()
		_ = wire.Close()
		return nil, err
	}
	t.mu.conns[c] = struct{}{}
	t.wg.Go(func() { t.keep(ctx, c) })
	t.wg.Go(c.ping)
	return c, nil
}

// keep waits for the end of a conn and makes everybody notice.
func (t *Transport) keep(ctx context.Context, c *conn) {
	select {
	case <-c.ctx.Done():
	case <-t.ctx.Done():
		c.close(transport.ErrClosed)
	case <-ctx.Done():
		c.close(ctx.Err())
	}
	_ = c.wire.Close() // ends reads and writes
	c.quiet.Stop()
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.mu.conns, c)
}

func (c *conn) ping() {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-tick.C:
			_ = c.send(kindPing, nil, true) // ends the conn if it fails
		}
	}
}

// watched reads the wire. Only waiting for bytes counts as silence: a large
// message takes its time, and so does a handler.
type watched struct{ *conn }

func (w watched) Read(p []byte) (int, error) {
	w.quiet.Reset(silence)
	defer w.quiet.Stop()
	return w.wire.Read(p)
}

// broken is the error of whoever used a conn that ended.
func (c *conn) broken() error {
	return fmt.Errorf("%w: %w", transport.ErrInterrupted, context.Cause(c.ctx))
}

// send writes a message; unless it is flushed, a later one must be.
func (c *conn) send(k kind, payload []byte, flush bool) error {
	c.out.Lock()
	defer c.out.Unlock()
	if c.ctx.Err() != nil {
		return c.broken()
	}
	var h [messageHeader]byte
	h[0] = byte(k)
	binary.BigEndian.PutUint32(h[1:], uint32(len(payload)))
	binary.BigEndian.PutUint32(h[5:], crc32.Checksum(payload, castagnoli))
	_, err := c.out.Write(h[:])
	if err == nil {
		_, err = c.out.Write(payload)
	}
	if err == nil && flush {
		err = c.out.Flush()
	}
	if err != nil {
		c.close(err)
		return c.broken()
	}
	return nil
}

// next waits for a message that is no ping. An error ends the conn.
func (c *conn) next() (kind, []byte, error) {
	for {
		k, payload, err := c.read()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF // an end is a message
			}
			c.close(err)
			return 0, nil, c.broken()
		}
		if k != kindPing {
			return k, payload, nil
		}
	}
}

func (c *conn) read() (kind, []byte, error) {
	var h [messageHeader]byte
	if _, err := io.ReadFull(c.in, h[:]); err != nil {
		return 0, nil, err
	}
	n := int(binary.BigEndian.Uint32(h[1:]))
	if n > c.maxFrame {
		return 0, nil, errFormat
	}
	var payload bytes.Buffer
	payload.Grow(min(n, 64<<10)) // the rest as it comes: a length may lie
	if _, err := io.CopyN(&payload, c.in, int64(n)); err != nil {
		return 0, nil, err
	}
	if crc32.Checksum(payload.Bytes(), castagnoli) != binary.BigEndian.Uint32(h[5:]) {
		return 0, nil, errChecksum
	}
	return kind(h[0]), payload.Bytes(), nil
}
