package stele

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/stelelog/stele/membership"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/topic"
	"github.com/stelelog/stele/transport"
)

// network joins the parts to the transport: it knows which node lives at which
// address, and which part a frame or a call is for.
type network struct {
	transport transport.Transport
	roster    atomic.Pointer[roster] // nil until it is part of a cluster
	genesis   *membership.Genesis
	cluster   string        // its name
	nonce     raftlog.Nonce // of this life
	initial   []Peer        // initial members as configured
	asked     asked
	parts     atomic.Pointer[parts] // nil until the node is part of a cluster
	fence     *fence
	process   uint64 // random
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
	r := n.roster.Load()
	if r == nil || n.fence.now() != nil {
		return "", false
	}
	peer, ok := r.peer(node)
	return peer.Addr, ok
}

// nameAt is the name of the node that should be at an address, "" if none is
// known there.
func (n *network) nameAt(addr string) string {
	if r := n.roster.Load(); r != nil {
		return r.nameAt(addr)
	}
	for _, p := range n.initial {
		if p.Addr == addr {
			return p.Name
		}
	}
	return ""
}

// reach tells the roster where a leader says that members are.
func (n *network) reach(members []membership.Reached) {
	r := n.roster.Load()
	if r == nil {
		return // it joined a moment ago, and asks again when it is open
	}
	told := make(map[raftlog.NodeID]Peer, len(members))
	for _, m := range members {
		told[m.Node] = Peer{Name: m.Name, Addr: m.Addr}
	}
	r.hear(told)
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
	if err := n.fence.now(); err != nil {
		return nil, err
	}
	answer, err := n.callInForm(ctx, addr, method, req)
	if method == membership.Method || method == membership.MethodJoin {
		err = explained(ctx, n.cluster, addr, err)
	}
	if method == membership.Method {
		n.asked.note(addr, err)
	}
	if err == nil {
		return answer, nil
	}
	var remote *transport.RemoteError
	var large *transport.TooLargeError
	switch {
	case errors.As(err, &remote) && strings.HasPrefix(remote.Code, fenceCode):
		n.told(addr, remote.Code)
		return nil, raftlog.Refused(err)
	case unsupported(err):
		return nil, &metastore.UnsupportedError{Call: method, Cause: err}
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

func (e codedError) Unwrap() error { return e.error }

func (e codedError) ErrorCode() string {
	var fenced *EpochFencedError
	if errors.As(e.error, &fenced) {
		return fmt.Sprint(fenceCode, fenced.Current)
	}
	return codeOf(e.error)
}

// HandleFrame implements transport.Handler: all frames are raft's.
func (n *network) HandleFrame(from transport.Peer, _ transport.Class, frame []byte) {
	if p := n.parts.Load(); n.compare(from) == nil && p != nil && n.known(from) {
		p.host.HandleFrame(raftlog.NodeID(from.Node), frame)
	}
}

// known reports whether a peer is a member of this cluster, and of the same
// recovery of it: its name, which is what certificates vouch for, must be the
// one of the node id that it says it has. Where that one is reached now it says
// itself.
func (n *network) known(from transport.Peer) bool {
	r := n.roster.Load()
	if epoch, _ := epochOf(from); r == nil || from.ClusterID != [16]byte(r.cluster) || epoch != r.epoch {
		return false
	}
	member, ok := r.peer(raftlog.NodeID(from.Node))
	switch {
	case ok && member.Name != from.Name:
		return false
	case from.Addr == member.Addr || !r.cfg.checkAddr(from.Addr):
	case ok:
		r.heardOf(raftlog.NodeID(from.Node), from.Addr)
	default:
		r.unknownAt(from.Addr)
	}
	return ok
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
	if method == whyMethod { // of nodes that compare turns away
		return n.answerWhy(from)
	}
	if err := n.compare(from); err != nil {
		return nil, err
	}
	if method == fenceMethod {
		return n.answerFence(from, req)
	}
	if method == membership.Method {
		return n.genesis.HandleCall(ctx, req)
	}
	prefix, _, _ := strings.Cut(method, ".")
	p := n.parts.Load()
	switch {
	case prefix == "member" && p == nil:
		return membership.Unconfigured(n.nonce), nil
	case prefix == "member":
		n.known(from)                                 // for what it says of where it is
		return p.steward.HandleCall(ctx, method, req) // of who wants to be a member, too
	case p == nil || !n.known(from):
		return nil, raftlog.Retry(ErrNotReady)
	}
	node := raftlog.NodeID(from.Node)
	switch prefix {
	case "meta":
		return p.meta.HandleCall(ctx, node, method, req)
	case "topic":
		return p.topics.HandleCall(ctx, node, method, req)
	}
	return nil, &metastore.UnsupportedError{Call: method}
}

// openStream opens a stream to a node; errors carry an outcome.
func (n *network) openStream(ctx context.Context, to raftlog.NodeID, method string) (transport.Stream, error) {
	addr, ok := n.addr(to)
	if !ok {
		return nil, raftlog.Retry(fmt.Errorf("stele: no address is known of %v", to))
	}
	s, err := n.transport.OpenStream(ctx, addr, method)
	if err != nil {
		return nil, raftlog.Retry(err)
	}
	return s, nil
}

// metaStreams and topicStreams are openStream for the parts, each of which has a
// name of its own for a stream.
type (
	metaStreams  struct{ net *network }
	topicStreams struct{ net *network }
)

func (s metaStreams) OpenStream(ctx context.Context, to raftlog.NodeID, method string) (metastore.Stream, error) {
	return s.net.openStream(ctx, to, method)
}

func (s topicStreams) OpenStream(ctx context.Context, to raftlog.NodeID, method string) (topic.Stream, error) {
	return s.net.openStream(ctx, to, method)
}

// HandleStream implements transport.Handler: the prefix of a method names the
// part that answers.
func (n *network) HandleStream(ctx context.Context, from transport.Peer, method string, s transport.Stream) error {
	if err := n.serve(ctx, from, method, s); err != nil {
		return codedError{err}
	}
	return nil
}

func (n *network) serve(ctx context.Context, from transport.Peer, method string, s transport.Stream) error {
	if err := n.compare(from); err != nil {
		return err
	}
	p := n.parts.Load()
	if p == nil || !n.known(from) {
		return raftlog.Retry(ErrNotReady)
	}
	node := raftlog.NodeID(from.Node)
	switch prefix, _, _ := strings.Cut(method, "."); prefix {
	case "meta":
		return p.meta.HandleStream(ctx, node, method, s)
	case "topic":
		return p.topics.HandleStream(ctx, node, method, s)
	}
	return &metastore.UnsupportedError{Call: method}
}
