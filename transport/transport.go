package transport

import (
	"context"
	"fmt"
	"io"
)

// Class separates traffic that must not delay each other. Each class to each
// peer has a queue, a budget and (over TCP) a connection of its own.
type Class uint8

const (
	// Control is for small frames whose delay costs elections: heartbeats,
	// votes, read contexts.
	Control Class = iota
	// Append is for replication in the steady state.
	Append
	// Bulk is for catching up: what may wait.
	Bulk
	// NumClasses is the number of classes; a Class is below it.
	NumClasses
)

// String returns the name used in logs and metrics.
func (c Class) String() string {
	switch c {
	case Control:
		return "control"
	case Append:
		return "append"
	case Bulk:
		return "bulk"
	}
	return fmt.Sprintf("class(%d)", uint8(c))
}

// Identity is what a node says about itself in every handshake.
type Identity struct {
	// Cluster is the name that the host chose, 1 to 255 bytes. Peers with
	// another one are refused.
	Cluster string
	// Name is what the host calls this node, 1 to 255 bytes.
	Name string
	// ClusterID is made at genesis; zero until it is known. Peers that know
	// another one are refused.
	ClusterID [16]byte
	// Node is the node id, 0 until it is known.
	Node uint64
	// Epoch is the recovery epoch. It is carried, not judged.
	Epoch uint64
	// Process is random per start of a process: a peer that sees another one
	// knows that this node restarted.
	Process uint64
}

// Peer is the other end of a connection, as it described itself.
type Peer struct {
	// Addr is where the peer says that it can be dialled; "" if it cannot.
	Addr string
	Identity
}

// Handler receives what peers send. Its methods are called from goroutines of
// the transport, concurrently, from Start until Close returns. It must not
// call Close. A panic in it ends that call, stream or connection and is logged.
type Handler interface {
	// HandleFrame is called for one frame at a time per connection, in the
	// order of Send; frames may be missing, and over a faulty network they may
	// come twice or out of order. The handler owns frame. It must not block
	// for long: the connection is not read meanwhile.
	HandleFrame(from Peer, class Class, frame []byte)
	// HandleCall answers a Call, in a goroutine of its own. ctx ends at the
	// caller's deadline, when the caller gives up, when the connection breaks,
	// and at Close. The handler owns req; the transport owns the answer. An
	// error reaches the caller as a *RemoteError with the error's text, and
	// with a code if the error, or one that it wraps, has a method
	// ErrorCode() string.
	HandleCall(ctx context.Context, from Peer, method string, req []byte) ([]byte, error)
	// HandleStream serves a stream until it returns; ctx ends as for a call.
	// Returning nil ends the peer's reads with io.EOF, an error ends them as
	// HandleCall's does. The stream is closed when it returns.
	HandleStream(ctx context.Context, from Peer, method string, s Stream) error
}

// Stream is a pair of byte pipes with back-pressure. One goroutine may read
// and another write at the same time; Close and CloseWrite may be called from
// anywhere. A Read that meets the end returns io.EOF only when the peer said
// so; a broken stream is ErrInterrupted, never io.EOF.
type Stream interface {
	// Read blocks until there is at least one byte.
	io.Reader
	// Write blocks while the peer does not read. Bytes that it accepted may
	// still be lost; only an answer of the peer proves otherwise. It does not
	// keep p.
	io.Writer
	// CloseWrite ends the peer's reads with io.EOF after all that was written.
	CloseWrite() error
	// Close releases the stream at once, in both directions, and frees who
	// waits in Read or Write: what was written may be lost. To be sure,
	// CloseWrite, read to the end, then Close. It is idempotent.
	io.Closer
}

// Transport moves frames, calls and streams between nodes by address. It knows
// no meanings. It is safe for concurrent use.
//
// Slices that are passed in (frame, req) belong to the transport from then on:
// nobody may change them any more, but one frame may be sent to many peers.
// Slices that come out belong to the receiver.
type Transport interface {
	// Start begins to listen and to serve, once. When it returns an error
	// nothing runs.
	Start(id Identity, h Handler) error
	// SetIdentity replaces the identity, for the cluster id and node id that
	// become known at genesis. What is sent after it returned carries the new
	// identity. Connections to peers that now do not fit are dropped. Before
	// Start, and with an identity that Start would refuse, it does nothing.
	SetIdentity(id Identity)
	// Addr is the address that peers dial; if the system chose the port, it is
	// complete only after Start.
	Addr() string
	// Send queues a frame. It never blocks, and the frame may be lost: the
	// peer is away, the queue is full, the frame is over the limit, the
	// transport is closed. Stats counts the losses that this side knows.
	Send(to string, class Class, frame []byte)
	// Call asks a peer and waits for its answer; the peer executes it at most
	// once. The deadline of ctx travels; without one, DefaultCallTimeout
	// holds. Every error is one of: ErrUnreachable (certainly not executed;
	// *HandshakeError and *TooLargeError are such), ErrInterrupted (perhaps
	// executed), *RemoteError (the handler's own). If ctx ended the call, the
	// error also matches ctx.Err(), and ErrClosed if Close did.
	Call(ctx context.Context, to, method string, req []byte) ([]byte, error)
	// OpenStream opens a stream; errors are those of Call that mean "not
	// executed". ctx bounds the whole life of the stream, not only its
	// opening: when it ends the stream breaks at both ends.
	OpenStream(ctx context.Context, to, method string) (Stream, error)
	// Stats returns counters that only grow.
	Stats() Stats
	// Close stops everything at once, ends the contexts of handlers, loses
	// what is queued and waits until handlers and goroutines have returned. It
	// is idempotent; later calls wait too.
	Close() error
}
