package topic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// Calls are the calls and streams of this package, by the version of the cluster
// that they came with.
func Calls() map[string]uint64 {
	return map[string]uint64{
		methodProduce: 1, methodFetch: 1, methodOffsets: 1, methodSince: 1, methodSeal: 1,
		methodFill: 2, methodTransfer: 2, methodLeft: versionOfLeft,
		methodClock: 3, methodFrames: 3, methodAside: 3, methodSums: 3, methodClose: 3, methodTime: 3,
	}
}

// maxFetchBytes bounds what one answer to a reader holds, but for its first
// batch, in bytes.
const maxFetchBytes = 4 << 20

func (m *Manager) calls() map[string]func(context.Context, *replica, byte, []byte) ([]byte, error) {
	return map[string]func(context.Context, *replica, byte, []byte) ([]byte, error){
		methodProduce:  m.serveProduce,
		methodFetch:    m.serveFetch,
		methodOffsets:  m.serveOffsets,
		methodSince:    m.serveSince,
		methodSeal:     m.serveSeal,
		methodTransfer: m.serveTransfer,
		methodLeft:     m.serveLeft,
		methodClock:    m.serveClock,
		methodSums:     m.serveSums,
		methodClose:    m.serveClose,
	}
}

// HandleCall answers a call of another node's manager ("topic.*"). It calls no
// further node. What became of the call, errors included, is in the response;
// an error means that the call itself was wrong (Refused), or is not known to this
// build (*metastore.UnsupportedError). The manager owns request.
func (m *Manager) HandleCall(ctx context.Context, from raftlog.NodeID, method string, request []byte) ([]byte, error) {
	serve := m.calls()[method]
	if serve == nil && method != methodTime {
		return nil, &metastore.UnsupportedError{Call: method}
	}
	if len(request) > 0 && request[0] > wireVersion {
		return nil, &metastore.UnsupportedError{Call: method, Cause: fmt.Errorf("version %d, this build knows %d", request[0], wireVersion)}
	}
	a, flags, body, err := decodeAddress(request)
	if err != nil {
		return nil, fmt.Errorf("call of %v: %w", from, err)
	}
	if ctx == nil {
		return nil, fmt.Errorf("call of %v: %w", from, ErrNoContext)
	}
	if method == methodTime {
		return encodeClock(m.cfg.Clock.Now()), nil
	}
	ctx, cancel := until(ctx, m.life)
	defer cancel()
	r, err := m.serving(a)
	var response []byte
	if err == nil {
		response, err = serve(ctx, r, flags, body)
	}
	if err != nil {
		return encodeError(err), nil
	}
	return response, nil
}

// within is a context that also ends after d on the manager's clock.
func within(ctx context.Context, c clock.Clock, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := c.AfterFunc(d, func() { cancel(context.DeadlineExceeded) })
	return ctx, func() {
		timer.Stop()
		cancel(context.Canceled)
	}
}

// serving returns the open replica of a partition, or why there is none.
func (m *Manager) serving(a address) (*replica, error) {
	if r := m.replica(a); r != nil {
		return r, nil
	}
	t, err := m.cfg.Meta.TopicByIncarnation(a.incarnation)
	switch {
	case err == nil && t.State == metastore.TopicDeleted:
		return nil, ErrTopicDeleted
	case err == nil && int(a.partition) < len(t.Partitions):
		if failed := m.failure(a); failed != nil {
			return nil, raftlog.Retry(fmt.Errorf("%w: %s", ErrNoReplica, failed.Error()))
		}
	}
	return nil, ErrNoReplica
}

func (m *Manager) serveProduce(ctx context.Context, r *replica, _ byte, body []byte) ([]byte, error) {
	term, batch, err := decodeProduce(body)
	if err != nil {
		return nil, err
	}
	if err := m.refusal(ctx, r); err != nil {
		return nil, err
	}
	if lead := r.lead.Load(); lead.term < term {
		// The caller has heard of a newer leader than this replica has.
		return nil, &raftlog.NotLeaderError{Group: r.where().Group}
	}
	m.stats.served.Add(1)
	ctx, end := m.traceCommit(ctx, r, batch)
	base, err := r.append(ctx, batch)
	err = m.reopen(r, err)
	end(err)
	if err != nil {
		return nil, err
	}
	return encodeProduced(base), nil
}

// traceCommit tells of a batch that another node has sent.
func (m *Manager) traceCommit(ctx context.Context, r *replica, batch []byte) (context.Context, func(error)) {
	if m.cfg.Trace == nil {
		return ctx, untraced
	}
	op := Operation{Name: OpCommit, Topic: r.part.cfg.Topic, Partition: int(r.part.cfg.Partition), Bytes: len(batch), Leader: m.cfg.Node}
	if b, _, err := ReadBatch(batch); err == nil {
		op.Records = int(b.Count())
	}
	return m.cfg.Trace.begin(ctx, op)
}

func (m *Manager) serveFetch(ctx context.Context, r *replica, _ byte, body []byte) ([]byte, error) {
	call, err := decodeFetch(body)
	if err != nil {
		return nil, err
	}
	wait := min(time.Duration(call.waitMillis)*time.Millisecond, m.cfg.FetchWait)
	ctx, cancel := within(ctx, m.cfg.Clock, wait)
	defer cancel()
	buf := m.borrow()
	defer m.giveBack(buf)
	f, err := r.fetch(ctx, call.FetchRequest, buf.bytes)
	buf.bytes = f.Buf
	if errors.Is(err, errNotYet) {
		err = cmp.Or(m.refusal(ctx, r), err)
	}
	if err != nil {
		return nil, readError(err)
	}
	response := make([]byte, fetchedHead+len(f.Data))
	putFetched(response, f)
	copy(response[fetchedHead:], f.Data)
	return response, nil
}

// fetchBuffer is where batches are read into before their size is known.
type fetchBuffer struct{ bytes []byte }

func (m *Manager) borrow() *fetchBuffer {
	if b, ok := m.buffers.Get().(*fetchBuffer); ok {
		return b
	}
	return new(fetchBuffer)
}

// giveBack keeps a buffer, unless a lonely large batch has blown it up.
func (m *Manager) giveBack(b *fetchBuffer) {
	if cap(b.bytes) <= 2*maxFetchBytes {
		m.buffers.Put(b)
	}
}

func (m *Manager) serveOffsets(ctx context.Context, r *replica, flags byte, _ []byte) ([]byte, error) {
	if err := m.refusal(ctx, r); err != nil {
		return nil, err
	}
	o, err := r.offsets(ctx, flags&flagLinearizable != 0)
	if err != nil {
		return nil, err
	}
	return encodeOffsets(o), nil
}

func (m *Manager) serveSince(ctx context.Context, r *replica, _ byte, body []byte) ([]byte, error) {
	stamp, err := decodeSince(body)
	if err != nil {
		return nil, err
	}
	if err := m.refusal(ctx, r); err != nil {
		return nil, err
	}
	o, err := r.offsets(ctx, true)
	if err == nil {
		err = r.since(&o, stamp)
	}
	if err != nil {
		return nil, err
	}
	return encodeSinceIs(o), nil
}

func (m *Manager) serveSeal(ctx context.Context, r *replica, _ byte, _ []byte) ([]byte, error) {
	if err := r.seal(ctx); err != nil {
		return nil, err
	}
	return responseHead(0), nil
}

// call makes a call to another node and returns its response, the head of which
// is not read yet. It takes no longer than CallTimeout and extra.
func (m *Manager) call(ctx context.Context, to storage.NodeID, method string, request []byte, extra time.Duration) ([]byte, error) {
	ctx, cancel := within(ctx, m.cfg.Clock, m.cfg.CallTimeout+extra)
	defer cancel()
	response, err := m.cfg.Caller.Call(ctx, to, method, request)
	if err == nil {
		return response, nil
	}
	if cause := context.Cause(ctx); ctx.Err() != nil && errors.Is(cause, context.DeadlineExceeded) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	err = fmt.Errorf("topic: %s at %v: %w", method, to, err)
	if raftlog.OutcomeOf(err) == raftlog.OutcomeUnknown && !errors.Is(err, raftlog.ErrOutcomeUnknown) {
		err = raftlog.Unknown(err)
	}
	return nil, err
}
