// Package transporttest is the conformance suite of transport.Transport. Both
// transports of this module pass it; a host that writes its own runs
//
//	func TestConformance(t *testing.T) {
//		transporttest.Run(t, transporttest.Suite{Make: func(t *testing.T) transporttest.Network {
//			return transporttest.Network{New: ..., Again: ..., Nobody: ..., MaxFrame: ...}
//		}})
//	}
//
// The network under test must have no faults of its own during the suite. Each
// subtest gets a fresh Network and closes every transport that it made. The
// suite never waits for time to pass, only for things to happen (at most 30 s),
// so it runs over real networks and, by Suite.In, in a testing/synctest bubble.
//
// Not asked for: telling two processes of one node apart while both are
// connected (a copied directory), which only transport.TCP does.
package transporttest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/transport"
)

// Network makes transports that reach each other.
type Network struct {
	// New makes a transport with an address of its own, not started.
	New func() transport.Transport
	// Again makes a transport, not started, at the address of one that was
	// closed: the same node after a restart.
	Again func(addr string) transport.Transport
	// Nobody is an address of the right form at which nobody listens.
	Nobody string
	// MaxFrame is the limit of frames, requests and answers, in bytes.
	MaxFrame int
}

// Suite is an implementation to test.
type Suite struct {
	// Make makes a network for one subtest.
	Make func(t *testing.T) Network
	// In, if set, runs the body of each subtest, for example in
	// synctest.Test. Make is called inside.
	In func(t *testing.T, body func(t *testing.T))
}

// Run runs every subtest.
func Run(t *testing.T, s Suite) {
	in := s.In
	if in == nil {
		in = func(t *testing.T, body func(t *testing.T)) { body(t) }
	}
	for _, sub := range subtests() {
		t.Run(sub.name, func(t *testing.T) {
			in(t, func(t *testing.T) { sub.run(t, s.Make(t)) })
		})
	}
}

type subtest struct {
	name string
	run  func(t *testing.T, n Network)
}

func subtests() []subtest {
	return []subtest{
		{"frames arrive in order, per class", framesInOrder},
		{"frames of every size up to the limit", frameSizes},
		{"a frame over the limit is lost alone", frameTooLarge},
		{"receivers own their frames", framesAreCopies},
		{"a panic of a handler does not end the host", framePanics},
		{"bulk does not delay control, append or calls", bulkDelaysNothing},
		{"a call is answered", callAnswered},
		{"a node can call itself", callSelf},
		{"a request over the limit is not sent", callTooLarge},
		{"an answer over the limit is an error", answerTooLarge},
		{"the deadline of a call travels", callDeadline},
		{"a deadline is neither cut nor missing", callDeadlines},
		{"a cancelled call ends at both sides", callCancelled},
		{"an ended context calls nobody", callEnded},
		{"errors of handlers keep code and text", callErrors},
		{"a panic of a handler ends one call", callPanics},
		{"slow calls do not hold others back", callsOverlap},
		{"an unreachable peer", unreachable},
		{"a peer restarts", peerRestarts},
		{"closing the server interrupts calls", closeServer},
		{"an interrupted call is not made again", callOnce},
		{"closing the caller interrupts calls", closeCaller},
		{"bytes flow both ways in a stream", streamEcho},
		{"either side may end its half first", streamHalves},
		{"a stream holds its writer back", streamBackPressure},
		{"errors end a stream after its bytes", streamErrors},
		{"a handler may close its stream", streamHandlerCloses},
		{"a handler that returned ends writes", streamHandlerLeaves},
		{"a broken stream does not look like its end", streamBroken},
		{"closing the opener breaks its streams", streamOpenerCloses},
		{"a context ends a stream at both sides", streamContext},
		{"closing a stream reaches the handler", streamClosed},
		{"closing a stream frees who waits in it", streamCloseFrees},
		{"a handler that closes its stream frees who writes", handlerCloseFrees},
		{"the end of writes is behind all that was written", streamEndsWhileWritten},
		{"another cluster is refused and learns nothing", otherCluster},
		{"cluster ids must agree once both are known", clusterIDs},
		{"an identity can be learned later", identityLater},
		{"starting", starting},
		{"use after close", useAfterClose},
		{"many users at once", manyUsers},
		{"close waits for handlers", closeWaits},
		{"close while busy", closeWhileBusy},
		{"two transports share nothing", shareNothing},
	}
}

// node is a transport with the handler that records what came.
type node struct {
	transport.Transport
	frames chan frame
	// call and stream answer; set before start, else everything is echoed.
	call   func(ctx context.Context, from transport.Peer, method string, req []byte) ([]byte, error)
	stream func(ctx context.Context, from transport.Peer, method string, s transport.Stream) error
	// frame, if set, replaces the recording.
	frame func(from transport.Peer, class transport.Class, frame []byte)
}

type frame struct {
	from  transport.Peer
	class transport.Class
	data  []byte
}

func (n *node) HandleFrame(from transport.Peer, class transport.Class, data []byte) {
	if n.frame != nil {
		n.frame(from, class, data)
		return
	}
	n.frames <- frame{from, class, data}
}

func (n *node) HandleCall(ctx context.Context, from transport.Peer, method string, req []byte) ([]byte, error) {
	if n.call != nil {
		return n.call(ctx, from, method, req)
	}
	return append([]byte(method+":"), req...), nil
}

func (n *node) HandleStream(ctx context.Context, from transport.Peer, method string, s transport.Stream) error {
	if n.stream != nil {
		return n.stream(ctx, from, method, s)
	}
	return echo(s)
}

func identity(name string) transport.Identity {
	return transport.Identity{Cluster: "conformance", Name: name, Process: 1}
}

// begin wraps a transport, starts it and closes it at the end of the test.
func begin(t *testing.T, tr transport.Transport, id transport.Identity, configure ...func(*node)) *node {
	t.Helper()
	n := &node{Transport: tr, frames: make(chan frame, 1<<14)}
	for _, c := range configure {
		c(n)
	}
	t.Cleanup(func() { _ = n.Close() })
	require.NoError(t, n.Start(id, n))
	return n
}

// two starts the usual pair.
func two(t *testing.T, net Network, configure ...func(*node)) (a, b *node) {
	t.Helper()
	return begin(t, net.New(), identity("a")), begin(t, net.New(), identity("b"), configure...)
}

const patience = 30 * time.Second

// within is a context that bounds a test's waiting.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// next waits for a value.
func next[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-within(t).Done():
		require.FailNow(t, "nothing came")
		panic("unreachable")
	}
}

// eventually tries until it works.
func eventually(t *testing.T, what string, try func() bool) {
	t.Helper()
	ctx := within(t)
	ticker := clock.System().NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for !try() {
		select {
		case <-ticker.C():
		case <-ctx.Done():
			require.FailNow(t, "never: "+what)
		}
	}
}

// together runs f n times at once and waits.
func together(n int, f func(i int)) {
	done := make(chan struct{})
	for i := range n {
		go func() {
			defer func() { done <- struct{}{} }()
			f(i)
		}()
	}
	for range n {
		<-done
	}
}

// pattern is n bytes that differ by seed and position.
func pattern(seed, n int) []byte {
	b := make([]byte, n)
	x := uint32(seed)*2654435761 + 1
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

// coded is a handler's error with a code.
type coded struct{ code, text string }

func (e *coded) Error() string     { return e.text }
func (e *coded) ErrorCode() string { return e.code }

func name(i int) string { return fmt.Sprintf("node-%d", i) }
