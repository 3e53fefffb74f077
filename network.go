package stele

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/stelelog/stele/membership"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/transport"
)

// network joins the parts to the transport: it knows which node lives at which
// address, and which part a frame or a call is for.
type network struct {
	transport transport.Transport
	belongs   atomic.Pointer[belonging] // nil until it does
	genesis   *membership.Genesis
	asked     asked
	parts     atomic.Pointer[parts] // nil until the node is part of a cluster
}

// belonging is the cluster that this node is part of.
type belonging struct {
	cluster raftlog.ClusterID
	epoch   uint64
	members map[raftlog.NodeID]Peer
}

// asked remembers why initial members could not be asked, for who waits for
// them. There are as many as were configured.
type asked struct {
	sync.Mutex
	failed map[string]error // by address
}

func (a *asked) note(addr string, err error) {
	a.Lock()
	defer a.Unlock()
	if a.failed == nil {
		a.failed = map[string]error{}
	}
	a.failed[addr] = err
}

// failure is why the last question to an address had no answer; nil: it had
// one, or was not put.
func (a *asked) failure(addr string) error {
	a.Lock()
	defer a.Unlock()
	return a.failed[addr]
}

// Send carries a frame of raft messages.
func (n *network) Send(to raftlog.NodeID, class uint8, frame []byte) {
	if addr, ok := n.addr(to); ok {
		n.transport.Send(addr, transport.Class(class), frame)
	}
}

func (n *network) addr(node raftlog.NodeID) (string, bool) {
	b := n.belongs.Load()
	if b == nil {
		return "", false
	}
	member, ok := b.members[node]
	return member.Addr, ok
}

// Call asks a node; errors carry an outcome.
func (n *network) Call(ctx context.Context, to raftlog.NodeID, method string, req []byte) ([]byte, error) {
	addr, ok := n.addr(to)
	if !ok {
		return nil, raftlog.Retry(fmt.Errorf("stele: no address is known of %v", to))
	}
	return n.CallAddr(ctx, addr, method, req)
}

// CallAddr asks whoever lives at an address; errors carry an outcome.
func (n *network) CallAddr(ctx context.Context, addr, method string, req []byte) ([]byte, error) {
	answer, err := n.transport.Call(ctx, addr, method, req)
	if method == membership.Method {
		n.asked.note(addr, err)
	}
	if err == nil {
		return answer, nil
	}
	var remote *transport.RemoteError
	var large *transport.TooLargeError
	switch {
	case errors.As(err, &remote) && remote.Code == raftlog.OutcomeRetry.String():
		return nil, raftlog.Retry(err)
	case errors.As(err, &remote) && remote.Code == raftlog.OutcomeRefused.String():
		return nil, raftlog.Refused(err)
	case errors.As(err, &large):
		return nil, raftlog.Refused(err)
	case errors.Is(err, transport.ErrUnreachable):
		return nil, raftlog.Retry(err)
	}
	return nil, raftlog.Unknown(err)
}

// codedError lets an outcome travel with an error of a call.
type codedError struct{ error }

func (e codedError) Unwrap() error     { return e.error }
func (e codedError) ErrorCode() string { return raftlog.OutcomeOf(e.error).String() }

// HandleFrame implements transport.Handler: all frames are raft's.
func (n *network) HandleFrame(from transport.Peer, _ transport.Class, frame []byte) {
	if p := n.parts.Load(); p != nil && n.known(from) {
		p.host.HandleFrame(raftlog.NodeID(from.Node), frame)
	}
}

// known reports whether a peer is a member of this cluster, and of the same
// recovery of it: its name, which is what certificates vouch for, must be the
// one of the node id that it says it has.
func (n *network) known(from transport.Peer) bool {
	b := n.belongs.Load()
	if b == nil || from.ClusterID != [16]byte(b.cluster) || from.Epoch != b.epoch {
		return false
	}
	member, ok := b.members[raftlog.NodeID(from.Node)]
	return ok && member.Name == from.Name
}

// HandleCall implements transport.Handler: the prefix of a method names the
// part that answers.
func (n *network) HandleCall(ctx context.Context, from transport.Peer, method string, req []byte) ([]byte, error) {
	answer, err := n.route(ctx, from, method, req)
	if err != nil {
		return nil, codedError{err}
	}
	return answer, nil
}

func (n *network) route(ctx context.Context, from transport.Peer, method string, req []byte) ([]byte, error) {
	if method == membership.Method {
		return n.genesis.HandleCall(ctx, req)
	}
	p := n.parts.Load()
	if p == nil || !n.known(from) {
		return nil, raftlog.Retry(ErrNotReady)
	}
	node := raftlog.NodeID(from.Node)
	switch prefix, _, _ := strings.Cut(method, "."); prefix {
	case "meta":
		return p.meta.HandleCall(ctx, node, method, req)
	case "topic":
		return p.topics.HandleCall(ctx, node, method, req)
	}
	return nil, raftlog.Refused(fmt.Errorf("stele: no call %q", method))
}

// HandleStream implements transport.Handler; nothing streams yet.
func (n *network) HandleStream(_ context.Context, _ transport.Peer, method string, _ transport.Stream) error {
	return codedError{raftlog.Refused(fmt.Errorf("stele: no stream %q", method))}
}
