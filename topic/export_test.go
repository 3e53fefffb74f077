package topic

import (
	"bytes"
	"context"
	"io"
	"time"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// What the tests of the pure parts see of them.

// State is the state machine without its driver.
type State = partitionState

// NewState returns the state of a partition without entries.
func NewState(incarnation storage.Incarnation) *State { return newPartitionState(incarnation) }

// ReadSnapshot decodes what Snapshot encoded.
func ReadSnapshot(data []byte, incarnation storage.Incarnation) (*State, error) {
	return readSnapshot(data, incarnation)
}

// Snapshot encodes the state.
func (s *State) Snapshot() []byte { return s.appendSnapshot(nil) }

// Index is that of the last entry applied.
func (s *State) Index() storage.Index { return s.index }

// Apply decides about the next entry.
func (s *State) Apply(index storage.Index, kind storage.EntryKind, data []byte) Decision {
	d := s.apply(index, kind, data)
	return Decision{d.verdict, d.base, d.count, d.err}
}

// Decision is what Apply decided.
type Decision struct {
	Verdict storage.Verdict
	Base    storage.Offset
	Count   uint32
	Err     error
}

// Producers is the state's memory of producers.
func (s *State) Producers() *Producers { return s.producers }

// NewSeal returns a seal.
func NewSeal(incarnation storage.Incarnation, now time.Time) []byte {
	return newSeal(incarnation, now)
}

// NewClosing returns what closes or opens a partition for a deletion.
func NewClosing(kind Kind, incarnation storage.Incarnation, number uint64, now time.Time) []byte {
	return newClosing(kind, incarnation, number, now)
}

// Errors that travel, and are nobody's to match.
var (
	ErrPassed = errPassed
	ErrNotYet = errNotYet
)

// NewLogStart returns a log start.
func NewLogStart(incarnation storage.Incarnation, start storage.LogStart, now time.Time) []byte {
	return newLogStart(incarnation, start, now)
}

// SetBaseOffset patches a batch as a fetch does.
func (b Batch) SetBaseOffset(o storage.Offset) { b.setBaseOffset(o) }

// SetStamp patches a batch as its leader does.
func (b Batch) SetStamp(ms int64) { b.setStamp(ms) }

// Sign makes the checksum right again.
func (b Batch) Sign() { b.sign() }

// Decompress is the decoder of a batch's records.
func Decompress(codec Codec, scratch, src []byte, size int) ([]byte, error) {
	return new(unpacker).decompress(codec, scratch, src, size)
}

// Begin is what happens at every place that can be traced.
func (t Trace) Begin(ctx context.Context, op Operation) {
	_, end := t.begin(ctx, op)
	end(nil)
}

// UncheckedBatch is a view of at least a header's bytes.
func UncheckedBatch(data []byte) Batch { return Batch{data} }

// See is the end of a look-up that found a topic some time ago.
func (p *Producer) See(t metastore.Topic) bool {
	_, ok := p.see(t)
	return ok
}

// Knows reports whether the producer sends to a topic by what it knows, without
// looking it up.
func (p *Producer) Knows(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := p.mu.views[name]
	return v != nil && v.fresh()
}

// Remembers is how many topics and partitions the producer keeps something of.
func (p *Producer) Remembers() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.mu.views) + len(p.mu.lanes) + len(p.mu.spent)
}

// OpenGroup is Group, or nil if the replica is not open.
func (m *Manager) OpenGroup(i storage.Incarnation, partition uint32) *raftlog.Group {
	if r := m.replica(address{i, partition}); r != nil {
		return r.group
	}
	return nil
}

// Group is the raft group of a replica on this node.
func (m *Manager) Group(i storage.Incarnation, partition uint32) *raftlog.Group {
	return m.replica(address{i, partition}).group
}

// HasLeft asks a partition's group whether a replica has left it.
func (m *Manager) HasLeft(ctx context.Context, i storage.Incarnation, partition uint32, g storage.GroupID, r storage.ReplicaID) error {
	return m.hasLeft(ctx, remains{incarnation: i, replica: r, group: g, partition: partition})
}

// HasLeftWith is HasLeft with what the replica's copy has.
func (m *Manager) HasLeftWith(ctx context.Context, i storage.Incarnation, g storage.GroupID, last storage.Index, term storage.Term, commit storage.Index) error {
	return m.hasLeft(ctx, remains{incarnation: i, replica: 999, group: g, end: copyEnd{last, term, commit}})
}

// ChangeFill is a writer of a fill's messages that changes the entry of which the cut
// says that the producer state is, and tells when the fill has ended.
func ChangeFill(w io.Writer, change func(aux *storage.Index), ended func()) io.Writer {
	return &fillChanger{w: w, change: change, ended: ended}
}

type fillChanger struct {
	w      io.Writer
	buf    []byte
	change func(aux *storage.Index)
	ended  func()
}

func (f *fillChanger) Write(b []byte) (int, error) {
	f.buf = append(f.buf, b...)
	for {
		in := bytes.NewReader(f.buf)
		kind, body, err := readFill(in, nil)
		if err != nil {
			return len(b), nil // the rest of it comes
		}
		f.buf = f.buf[len(f.buf)-in.Len():]
		if kind == fillIsCut {
			cut, err := decodeFillCut(body)
			if err != nil {
				return 0, err
			}
			f.change(&cut.aux)
			body = cut.encode()
		}
		if err := writeFill(f.w, kind, body); err != nil {
			return 0, err
		}
		if kind == fillEnd {
			f.ended()
		}
	}
}
