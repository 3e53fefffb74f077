package topic

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

const (
	// fillSilence is how long a fill waits for the next bytes before it takes its
	// sender for gone: longer than the largest batch takes at the least budget.
	fillSilence = 30 * time.Second
	// fillFutile is how long a fill goes on without getting anything. The leader
	// asks for it again, if it is still needed.
	fillFutile = 2 * time.Minute
)

// fill is a replica's log on its way here, from one node after the other until
// it is whole. It has a goroutine of its own; what it got is the reconciler's
// once done is closed.
//
//	OnBehind ──► fill: stream ──► staged log ──► reconciler: reset frame,
//	(leader)     verified, paced  beside the     replica opened again
//	                              replica's own
type fill struct {
	m      *Manager
	r      *replica
	cancel context.CancelFunc
	done   chan struct{} // closed when nobody fills any more
	buf    []byte
	state  []byte // side file, as far as it came

	staged *storage.StagedLog // nil: nothing yet
	start  storage.Index      // that staged begins behind
	cut    fillCut            // that staged reaches, if err is nil
	begin  storage.Begin      // the reset that makes staged the replica's log
	err    error
	given  bool // the reset was handed over: staged may be the replica's by now

	got atomic.Int64 // bytes
}

// startFill begins to fill a replica that has nothing its leader could continue.
func (m *Manager) startFill(r *replica, leader storage.NodeID) *fill {
	ctx, cancel := context.WithCancel(m.life)
	f := &fill{m: m, r: r, cancel: cancel, done: make(chan struct{})}
	m.running.Go(func() {
		defer cancel()
		defer m.broke.flash()
		defer close(f.done)
		f.err = f.run(ctx, leader)
	})
	return f
}

// ended reports whether the fill has come to its end.
func (f *fill) ended() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// run asks the leader's node, then those of the other replicas, round after
// round, as long as bytes come.
func (f *fill) run(ctx context.Context, leader storage.NodeID) error {
	var b backoff
	since := f.m.cfg.Clock.Now()
	got := int64(0)
	for {
		var last error
		for _, node := range f.senders(leader) {
			err := f.from(ctx, node)
			if err == nil || errors.Is(err, errNoFill) {
				return err
			}
			if ctx.Err() != nil {
				return raftlog.Retry(context.Cause(ctx))
			}
			f.log().Debug("a fill was interrupted", zap.Stringer("from", node), zap.Error(err))
			last = err
		}
		now := f.m.cfg.Clock.Now()
		if n := f.got.Load(); n > got {
			got, since = n, now
		}
		if now.Sub(since) >= fillFutile {
			return raftlog.Retry(fmt.Errorf("topic: nothing came for %v: %w", fillFutile, cmpError(last)))
		}
		b.wait(ctx, f.m.cfg.Clock, nil)
	}
}

// errNoFill is the end of a fill that is not, or no longer, of any use.
var errNoFill = errors.New("topic: the replica needs no fill")

func cmpError(err error) error {
	if err == nil {
		return ErrNoReplica
	}
	return err
}

// senders are the nodes that may have the partition, but for this one.
func (f *fill) senders(leader storage.NodeID) []storage.NodeID {
	var nodes []storage.NodeID
	if leader != 0 {
		nodes = append(nodes, leader)
	}
	for _, a := range f.r.where().Replicas {
		if a.Node != f.m.cfg.Node && a.Node != leader {
			nodes = append(nodes, a.Node)
		}
	}
	return nodes
}

// from gets what is missing from one node.
func (f *fill) from(ctx context.Context, node storage.NodeID) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := f.m.cfg.Clock.NewTimer(fillSilence)
	defer watchdog.Stop()
	defer f.m.watch(ctx, watchdog.C(), func() { cancel(errSenderSilent) })()
	s, err := f.m.cfg.Streamer.OpenStream(ctx, node, methodFill)
	if err != nil {
		return err
	}
	defer s.Close()
	request := fillRequest{address: f.r.address, group: f.r.where().Group, replica: f.r.id}
	if f.staged != nil {
		request.next = f.staged.Next()
	}
	if _, err := s.Write(request.encode()); err != nil {
		return err
	}
	for first := true; ; first = false {
		kind, body, err := readFill(s, f.buf)
		f.buf = body[:0]
		if err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return err
		}
		watchdog.Reset(fillSilence)
		if first != (kind == fillIsCut) && kind != fillRefused {
			return malformed("a fill's message of kind %d out of its order", kind)
		}
		if end, err := f.take(ctx, kind, body); err != nil || end {
			return err
		}
	}
}

var errSenderSilent = errors.New("topic: the sender of a fill is silent")

// watch calls f when the timer goes off, until ctx ends. The function that it
// returns waits for that.
func (m *Manager) watch(ctx context.Context, timer <-chan time.Time, f func()) (wait func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-timer:
			f()
		case <-ctx.Done():
		}
	}()
	return func() { cancel(); <-ended }
}

// take takes one message in; true: it was the last.
func (f *fill) take(ctx context.Context, kind byte, body []byte) (end bool, err error) {
	switch kind {
	case fillRefused:
		return false, fillError(body)
	case fillIsCut:
		cut, err := decodeFillCut(body)
		if err == nil {
			err = f.begins(ctx, cut)
		}
		return false, err
	case fillFrames:
		if err := f.staged.Append(body); err != nil {
			return false, err
		}
		f.got.Add(int64(len(body)))
		f.m.stats.filledIn.Add(uint64(len(body)))
		return false, f.m.fillIn.take(ctx, len(body))
	case fillState:
		if len(f.state)+len(body) > storage.MaxAux {
			return false, malformed("a fill's producer state of more than %d bytes", storage.MaxAux)
		}
		f.state = append(f.state, body...)
		return false, nil
	}
	return true, f.finish()
}

// begins looks at what a sender has, and stages what follows. That this replica
// could not take it is seen before any of it comes.
func (f *fill) begins(ctx context.Context, cut fillCut) error {
	st, err := f.durable(ctx)
	if err != nil {
		return err
	}
	f.cut, f.state = cut, nil
	if f.staged != nil && cut.first != f.staged.Next() {
		f.drop() // the log there begins behind what came: all of it is another log now
		return raftlog.Retry(malformed("a fill that goes on with entry %d, not where it stopped", cut.first))
	}
	reset := f.begin.Reset
	if f.staged == nil {
		for reset == 0 || reset == st.Log.Reset {
			reset = f.m.cfg.Rand()
		}
	}
	held, err := raftlog.CheckReset(st, storage.Begin{Reset: reset, Index: cut.last, Term: cut.lastIn, NextOffset: cut.next, Conf: cut.conf})
	switch {
	case err != nil:
		return err // another one may have more
	case held && f.r.group != nil: // one that is lost holds nothing
		return fmt.Errorf("%w: it holds entry %d", errNoFill, cut.last)
	case f.staged != nil && cut.aux < f.start && cut.start.Index < f.start:
		f.drop() // its producer state is of before what is staged here begins with
		return raftlog.Retry(malformed("a fill with the producer state of entry %d, behind a log that begins with entry %d", cut.aux, f.start+1))
	case f.staged != nil:
		return nil
	case cut.first != cut.start.Index+1:
		return malformed("a fill that begins with entry %d of a log that begins with %d", cut.first, cut.start.Index+1)
	}
	f.staged, err = f.m.cfg.Store.StageLog(st, reset, cut.start)
	if err == nil {
		f.begin.Reset, f.start = reset, cut.start.Index
	}
	return err
}

// durable is what the replica is known to have: of one that is not open, since it has
// lost its log, without its tail.
func (f *fill) durable(ctx context.Context) (storage.ReplicaState, error) {
	if f.r.group != nil {
		return f.r.group.State(ctx)
	}
	for _, st := range f.m.cfg.Host.Replicas() {
		if st.Replica == f.r.id {
			return st, nil
		}
	}
	return storage.ReplicaState{}, ErrNoReplica
}

// finish makes what came durable.
func (f *fill) finish() error {
	cut := &f.cut
	switch {
	case f.staged.Next() != cut.last+1:
		return malformed("a fill that ends before entry %d, not behind %d", f.staged.Next(), cut.last)
	case (cut.aux != 0) != (len(f.state) > 0):
		return malformed("a fill with %d bytes of producer state as of entry %d", len(f.state), cut.aux)
	}
	if cut.aux != 0 {
		state, err := readSnapshot(f.state, f.r.incarnation)
		if err == nil && state.index != cut.aux {
			err = malformed("a fill whose producer state is of entry %d, not %d", state.index, cut.aux)
		}
		if err != nil {
			return err
		}
		if err := f.staged.WriteAux(cut.aux, f.state); err != nil {
			f.drop()
			return err
		}
	}
	// The first sender may have had more than the last one, of which the copy is to
	// be: what removed the rest lies between its entries, and is not applied here.
	err := f.staged.TrimTo(cut.start)
	var begin storage.Begin
	if err == nil {
		begin, err = f.staged.Finish()
	}
	if err == nil && (begin.Index != cut.last || begin.Term != cut.lastIn || begin.NextOffset != cut.next) {
		err = malformed("a fill up to entry %d of term %d and offset %d ends at %d, %d and %d",
			cut.last, cut.lastIn, cut.next, begin.Index, begin.Term, begin.NextOffset)
	}
	if err != nil {
		f.drop()
		return err
	}
	begin.Conf = cut.conf
	f.begin, f.state, f.buf = begin, nil, nil
	return nil
}

// drop removes what came so far, unless it may be the replica's log by now.
func (f *fill) drop() {
	if f.staged == nil || f.given {
		return
	}
	if err := f.staged.Abandon(); err != nil {
		f.log().Warn("what is left of a fill could not be removed; it is when the replica is opened again", zap.Error(err))
	}
	f.staged, f.begin = nil, storage.Begin{}
}

func (f *fill) log() *zap.Logger {
	return f.m.cfg.Logger.With(zap.String("topic", f.r.name), zap.Uint32("partition", f.r.partition), zap.Stringer("replica", f.r.id))
}
