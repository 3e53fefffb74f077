package stele

import (
	"context"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/membership"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/transport"
)

// EpochFencedError says that the cluster went on in another recovery epoch than
// this node's directory: it takes no part in anything from then on, also after a
// restart. It is Refused. There are two reasons:
//
//	Plan is set    the plan of the recovery includes the node, and was not applied to
//	               its directory, which may hold what no other has. ApplyRecovery is
//	               what helps. Open refuses the directory until then (*RecoveringError)
//	Plan is zero   the node was left behind, or nobody that it reached could say. It
//	               comes back with an empty directory, unless the plan includes it after
//	               all. The old one can be read by tools
//
// A node finds out when it first meets one of the newer epoch, and tells those
// that it knows of its own. As long as none of them does, nodes that were left
// behind may still be a majority of the old epoch and serve as before: two
// clusters of one id that cannot reach each other. So the machines that a
// recovery leaves behind have to be kept off until their directories are gone.
type EpochFencedError struct {
	Epoch   uint64 // recovery epoch of the node that is fenced
	Current uint64 // that the cluster is in, or was when this node met it
	By      string // name of the node that said so; "": found in the directory
	// Plan is that of the recovery to epoch Current, if it includes this node and was
	// not applied to its directory.
	Plan [16]byte

	at string // address of By; "": not known
}

func (e *EpochFencedError) Error() string {
	by := ""
	if e.By != "" {
		by = fmt.Sprintf(" (says %q)", e.By)
	}
	if e.Plan != ([16]byte{}) {
		return fmt.Sprintf("stele: not recovered: the forced recovery to epoch %d includes this node, whose directory is in epoch %d%s: apply plan %x to it, and do not empty it, as it may hold what no other node has",
			e.Current, e.Epoch, by, e.Plan)
	}
	return fmt.Sprintf("stele: fenced: the cluster went on in recovery epoch %d without this node, whose directory is in epoch %d%s; unless the plan of that recovery includes the node, and is to be applied to the directory, it takes part again only with an empty one",
		e.Current, e.Epoch, by)
}

// Unwrap makes the error match ErrRefused.
func (e *EpochFencedError) Unwrap() error { return ErrRefused }

// fence keeps nodes of different recovery epochs apart. Whoever says anything is
// compared before anything else is done with it: one of an older epoch gets
// nothing but to be told so, and one of a newer epoch fences this node.
type fence struct {
	fenced  atomic.Pointer[EpochFencedError] // this node; for good
	tripped chan struct{}                    // closed when it is
	tell    chan string                      // addresses of nodes of an older epoch
	log     *zap.Logger
	seen    func(FencedPeer) // told of each node of an older epoch, when it is logged
	peers   atomic.Uint64    // how often that was

	rivals atomic.Uint64 // how often a node of another recovery to the same epoch was logged

	mu     sync.Mutex
	logged map[spoke]time.Time // when it was said last that a node is kept out
}

// spoke is a node that is kept out, and why: a node that is behind may come back as
// one of another recovery a moment later.
type spoke struct {
	node  uint64
	rival bool
}

const (
	// fenceEvery is how often a node of an older epoch is logged, and told.
	fenceEvery = time.Minute
	// maxFenced bounds what is remembered of them.
	maxFenced = 1024
	// fenceMethod is the call that tells a node of a recovery epoch: u64.
	fenceMethod = "fence.epoch"
	// fenceCode begins the code of an error that says so; the epoch follows.
	fenceCode = "fenced "
	fenceCall = 2 * time.Second
)

func newFence(log *zap.Logger) *fence {
	return &fence{log: log, seen: func(FencedPeer) {}, tripped: make(chan struct{}), tell: make(chan string, 16), logged: map[spoke]time.Time{}}
}

// now returns why this node is fenced, nil if it is not. A network that no node
// has is never fenced.
func (f *fence) now() *EpochFencedError {
	if f == nil {
		return nil
	}
	return f.fenced.Load()
}

// trip fences this node, once.
func (f *fence) trip(err *EpochFencedError) {
	if f.fenced.CompareAndSwap(nil, err) {
		close(f.tripped)
	}
}

// compare returns why nothing is to be done with what a peer says, nil if its
// epoch is this node's, or it is not of this cluster yet.
func (n *network) compare(from transport.Peer) error {
	if err := n.fence.now(); err != nil {
		return err
	}
	r := n.roster.Load()
	if r == nil || from.ClusterID != [16]byte(r.cluster) {
		return nil
	}
	switch epoch, way := epochOf(from); {
	case epoch > r.epoch:
		n.fence.trip(&EpochFencedError{Epoch: r.epoch, Current: epoch, By: from.Name, at: from.Addr})
		return n.fence.now()
	case epoch < r.epoch:
		said, _ := n.standing(from)
		n.fence.behind(from, r.epoch, said == standsIncluded)
		return &EpochFencedError{Epoch: epoch, Current: r.epoch}
	case way != 0 && r.way.Load() != 0 && way != r.way.Load():
		n.fence.rival(from, r.epoch)
		return raftlog.Refused(fmt.Errorf("stele: %q went through another forced recovery to epoch %d than %q did", r.cfg.Name, epoch, from.Name))
	}
	return nil
}

// Two plans that were made of the same epoch, of different directories, lead to the
// same next epoch, and to two clusters of one id: neither is behind the other. So
// what travels as a node's recovery epoch says beside it which way led there.
//
//	bits 0 to 15     the epoch
//	bits 16 to 63    bits of the plan's id; 0: epoch 0, or the node has joined since
//	                 and has not read in the metadata which plan it was

const wayBits = 48

// wayTo is what travels of a plan.
func wayTo(plan [16]byte) uint64 { return max(1, binary.BigEndian.Uint64(plan[:])>>(64-wayBits)) }

// wayOf is that of a life that a recovery took along.
func wayOf(state membership.State) uint64 {
	if state.Recovered == nil {
		return 0
	}
	return wayTo(state.Recovered.Plan)
}

func wireEpoch(epoch, way uint64) uint64 { return way<<(64-wayBits) | epoch }

func epochOf(from transport.Peer) (epoch, way uint64) {
	return from.Epoch & (1<<(64-wayBits) - 1), from.Epoch >> (64 - wayBits)
}

// findWay takes the way to this node's epoch from the metadata, and says it from
// then on.
func (n *Node) findWay(recoveries []Recovery) {
	r := n.net.roster.Load()
	for _, past := range recoveries {
		if past.Epoch == r.epoch && r.way.CompareAndSwap(0, wayTo(past.Plan)) {
			n.net.transport.SetIdentity(n.identity(r.way.Load()))
		}
	}
}

// due reports whether it is to be said that a peer is kept out.
func (f *fence) due(by spoke) bool {
	now := clock.System().Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	last, known := f.logged[by]
	due := (!known || now.Sub(last) >= fenceEvery) && (known || len(f.logged) < maxFenced)
	if due {
		f.logged[by] = now
	}
	return due
}

// rival notes that a peer of another recovery to the same epoch speaks.
func (f *fence) rival(from transport.Peer, epoch uint64) {
	if f.due(spoke{from.Node, true}) {
		f.rivals.Add(1)
		f.log.Error("a node of another forced recovery to the same epoch is kept out: there are two clusters, and one has to be given up",
			zap.String("name", from.Name), zap.String("addr", from.Addr), zap.Uint64("epoch", epoch))
	}
}

// behind notes that a peer of an older epoch speaks; included: the plan of the
// recovery to this epoch is about it.
func (f *fence) behind(from transport.Peer, epoch uint64, included bool) {
	if !f.due(spoke{from.Node, false}) {
		return
	}
	its, _ := epochOf(from)
	what := "a node that a forced recovery left behind is kept out"
	if included {
		what = "a node is kept out until the plan of the forced recovery, which includes it, is applied to its directory: do not empty that"
	}
	f.log.Warn(what, zap.String("name", from.Name), zap.String("addr", from.Addr), zap.Uint64("its_epoch", its), zap.Uint64("epoch", epoch))
	f.peers.Add(1)
	f.seen(FencedPeer{Name: from.Name, Addr: from.Addr, Node: NodeID(from.Node), Epoch: its, Included: included})
	select {
	case f.tell <- from.Addr:
	default: // it is told in a minute, or when it calls
	}
}

// told takes the answer of a peer that said that this node is fenced.
func (n *network) told(addr, code string) {
	epoch, err := strconv.ParseUint(strings.TrimPrefix(code, fenceCode), 10, 64)
	if r := n.roster.Load(); err == nil && r != nil && epoch > r.epoch {
		n.fence.trip(&EpochFencedError{Epoch: r.epoch, Current: epoch, at: addr})
	}
}

// answerFence takes the call by which a node is told of an epoch.
func (n *network) answerFence(from transport.Peer, req []byte) ([]byte, error) {
	r := n.roster.Load()
	if len(req) != 8 || r == nil || from.ClusterID != [16]byte(r.cluster) {
		return nil, raftlog.Refused(fmt.Errorf("stele: %s of %q is malformed", fenceMethod, from.Name))
	}
	if epoch := binary.BigEndian.Uint64(req); epoch > r.epoch {
		n.fence.trip(&EpochFencedError{Epoch: r.epoch, Current: epoch, By: from.Name, at: from.Addr})
	}
	return nil, nil
}

// keepFence tells nodes of an older epoch that they are fenced, and ends what this
// node does once it is fenced itself. It ends with the node's life.
func (n *Node) keepFence() {
	for {
		select {
		case addr := <-n.net.fence.tell:
			if r := n.net.roster.Load(); r != nil {
				n.tellEpoch(addr, r.epoch)
			}
		case <-n.net.fence.tripped:
			n.standAside(n.net.fence.now())
			return
		case <-n.life.Done():
			return
		}
	}
}

func (n *Node) tellEpoch(addr string, epoch uint64) {
	ctx, cancel := context.WithCancel(n.life)
	defer cancel()
	defer clock.System().AfterFunc(fenceCall, cancel).Stop()
	_, err := n.net.transport.Call(ctx, addr, fenceMethod, binary.BigEndian.AppendUint64(nil, epoch))
	if err != nil {
		n.log.Debug("a node could not be told of the recovery epoch", zap.String("addr", addr), zap.Error(err))
	}
}

// standAside ends what a fenced node does: nothing leaves it and nothing is taken
// in since the fence tripped. It is noted in the directory, so that the node does
// not begin as if it knew nothing, and passed on to those of the same epoch.
func (n *Node) standAside(err *EpochFencedError) {
	err = n.askWhy(err)
	n.fail(err)
	if p := n.net.parts.Load(); p != nil {
		p.host.Abort()
	}
	id := n.store.Identity()
	id.Fenced = err.Current
	if err.Plan != ([16]byte{}) {
		id.Recovering = storage.Recovering{Epoch: err.Current, Plan: err.Plan}
	}
	if n.store.SetIdentity(id) != nil {
		n.log.Error("that the node is fenced could not be noted in its directory: it may not know at its next start")
	}
	var telling sync.WaitGroup
	if r := n.net.roster.Load(); r != nil {
		for _, peer := range *r.peers.Load() {
			if peer.Name != n.cfg.Name {
				telling.Go(func() { n.tellEpoch(peer.Addr, err.Current) })
			}
		}
	}
	telling.Wait()
}

// peerFenced is what the fence calls, of any goroutine.
func (l *eventLoop) peerFenced(p FencedPeer) {
	if f := l.events.PeerFenced; f != nil {
		l.enqueue(func() { l.tell(peerFenced, func() { f(p) }) })
	}
}
