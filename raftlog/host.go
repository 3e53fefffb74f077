package raftlog

import (
	"context"
	"sync"
	"sync/atomic"

	pb "go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
)

// Host runs the raft groups of one node over one journal. Its methods are safe
// for concurrent use.
//
//	goroutine     started by         owns                          ends
//	loop          Open               all cores, the outbox         Close, Abort
//	writer        Open               the round that is written     when the loop ended
//	checkpointer  a rotation         the captured states           when the table is written
//	apply         a group with work  the batch that is applied     when there is none left
type Host struct {
	cfg      Config
	stats    counters
	mailbox  *mailbox
	loop     *loop
	loopDone chan struct{} // closed when the loop ended
	wg       sync.WaitGroup
	failed   atomic.Pointer[HostFailedError]
	full     atomic.Pointer[DiskFullError] // nil: there is room
	stalled  atomic.Int64                  // nanoseconds that a round is late; 0: it is not

	ending  atomic.Bool   // somebody ends the host
	stop    chan struct{} // closed to end the loop
	ended   chan struct{} // closed when all has ended
	aborted atomic.Bool

	mu struct {
		sync.RWMutex
		groups map[ReplicaID]*Group // open; changed by the loop alone
	}
}

// Open starts a host over a store that was just opened. All its replicas are
// dormant until OpenGroup: they take no part, but the journal goes on carrying
// what they promised.
func Open(cfg Config) (*Host, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	h := &Host{
		cfg: cfg, mailbox: newMailbox(),
		loopDone: make(chan struct{}), stop: make(chan struct{}), ended: make(chan struct{}),
	}
	h.mu.groups = map[ReplicaID]*Group{}
	h.loop = newLoop(h)
	rounds := h.loop.journal.rounds
	h.wg.Go(func() { h.write(rounds) })
	h.wg.Go(h.loop.run)
	return h, nil
}

// Failed returns why the node stopped (*HostFailedError), or nil.
func (h *Host) Failed() error {
	if err := h.failed.Load(); err != nil {
		return err
	}
	return nil
}

// Stats returns what the host did so far. It is cheap.
func (h *Host) Stats() Stats { return h.stats.snapshot() }

// HandleFrame takes in a frame that another node's Sender was given; the host
// owns it from now on. It does not block. A frame that is malformed is lost,
// as are messages that are for no open replica, that come from another node
// than their sender lives on, or for which there is no room.
func (h *Host) HandleFrame(from NodeID, frame []byte) {
	h.stats.framesReceived.Add(1)
	if isNotices(frame) {
		h.handleNotices(from, frame)
		return
	}
	r, err := openFrame(frame)
	var messages []inboundMessage
	var strays []inboundNotice
	h.mu.RLock()
	for err == nil && r.more() {
		var group GroupID
		var m *pb.Message
		var size int
		if group, m, size, err = r.next(); err != nil {
			break
		}
		if g := h.addresseeLocked(from, group, m); g == nil {
			h.stats.messagesStray.Add(1)
			strays = h.stray(strays, from, group, m)
		} else if !g.admit(int64(size)) {
			h.stats.messagesDropped.Add(1)
		} else {
			messages = append(messages, inboundMessage{group: g, m: m, size: int64(size), node: from})
		}
	}
	h.mu.RUnlock()
	if err != nil {
		h.stats.framesMalformed.Add(1)
		h.cfg.Logger.Warn("dropped a malformed frame", zap.Stringer("from", from), zap.Error(err))
	}
	if len(messages) == 0 && len(strays) == 0 {
		return
	}
	h.stats.messagesReceived.Add(uint64(len(messages)))
	h.mailbox.post(func(in *inbox) {
		in.messages = append(in.messages, messages...)
		in.notices = append(in.notices, strays...)
	})
}

// addresseeLocked returns the open group that a message is for, or nil.
func (h *Host) addresseeLocked(from NodeID, group GroupID, m *pb.Message) *Group {
	g := h.mu.groups[ReplicaID(m.GetTo())]
	if g == nil || g.id != group {
		return nil
	}
	switch g.node(ReplicaID(m.GetFrom())) {
	case from:
	case 0:
		g.learnPlace(ReplicaID(m.GetFrom()), from)
	default:
		return nil
	}
	return g
}

// group returns the replica if it is open, or nil.
func (h *Host) group(r ReplicaID) *Group {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.mu.groups[r]
}

// admit takes size bytes of the budget of what waits. What comes when nothing
// waits always fits. Entries that are not committed do not count once they are
// written: only more of them may get them committed, or cut off.
func (g *Group) admit(size int64) bool {
	if size == 0 {
		return true
	}
	cfg, stats := &g.host.cfg, &g.host.stats
	unapplied := g.unapplied.Load()
	mine, all := g.unwritten.Load()+unapplied, stats.unwritten.Load()
	if g.host.full.Load().scarce() {
		return false
	}
	if mine > 0 && mine+size > cfg.MaxUnwrittenBytes || all > 0 && all+size > cfg.MaxUnwrittenBytesPerNode {
		return false
	}
	// Slow state machines do not hold up groups that are not behind.
	if unapplied > 0 && stats.unapplied.Load()+size > cfg.MaxUnwrittenBytesPerNode {
		return false
	}
	g.holdUnwritten(size)
	return true
}

// setUnapplied is called by the loop.
func (g *Group) setUnapplied(size int64) {
	g.host.stats.unapplied.Add(size - g.unapplied.Swap(size))
}

// holdUnwritten counts bytes that wait to be written; negative: that were, or
// never will be.
func (g *Group) holdUnwritten(size int64) {
	g.unwritten.Add(size)
	g.host.stats.unwritten.Add(size)
}

// call runs f in the loop and waits for it. If ctx ends first f may still run.
func (h *Host) call(ctx context.Context, f func()) error {
	ran := make(chan struct{})
	ok := h.mailbox.post(func(in *inbox) {
		in.calls = append(in.calls, func() { defer close(ran); f() })
	})
	if !ok {
		return Retry(ErrClosed)
	}
	_, err := await(ctx, h, ran)
	return err
}

// await waits for what the loop sends or closes. The channel holds what is
// sent: who waits may be gone by then, and the loop never waits.
func await[T any](ctx context.Context, h *Host, sent <-chan T) (got T, err error) {
	select {
	case got = <-sent:
		return got, nil
	case <-ctx.Done():
		return got, UnknownCause(ctx)
	case <-h.loopDone:
	}
	select {
	case got = <-sent:
		return got, nil
	default:
		return got, Unknown(ErrClosed)
	}
}

// fail ends all acknowledging on this node.
func (h *Host) fail(cause error) *HostFailedError {
	err := &HostFailedError{Cause: cause}
	if !h.failed.CompareAndSwap(nil, err) {
		return h.failed.Load()
	}
	h.cfg.Logger.Error("the node stops: its journal cannot be written", zap.Error(cause))
	return err
}
