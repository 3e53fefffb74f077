package topic_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

// history is what a group has committed; entries[0] has index 2.
type history struct {
	mu      sync.Mutex
	entries []raftlog.Entry
}

func (h *history) commit(kind storage.EntryKind, data []byte) raftlog.Entry {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := raftlog.Entry{Index: storage.Index(len(h.entries) + 2), Term: 1, Kind: kind, Data: data}
	h.entries = append(h.entries, e)
	return e
}

// after returns the entries behind an index.
func (h *history) after(i storage.Index) []raftlog.Entry {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.entries[i-1:]
}

// replica is a partition with a real log on a simulated disk. Its group is the
// test's: a proposal waits until the test commits or fails it.
type replica struct {
	fs         *simfs.FS
	store      *storage.Store
	state      storage.ReplicaState
	log        *storage.Log
	partition  *topic.Partition
	cfg        topic.PartitionConfig
	segment    int64 // bytes of a segment; 0: the default
	unreadable atomic.Bool

	mu        sync.Mutex
	proposals []proposal
	arrived   chan struct{} // not nil: told of each proposal
}

type proposal struct {
	data []byte
	done func(raftlog.Proposal)
}

// open makes a replica with an empty log.
func open(t *testing.T, cfg topic.PartitionConfig) *replica {
	cfg.Topic, cfg.Incarnation = "orders", someIncarnation
	r := &replica{fs: simfs.New(1), cfg: cfg}
	r.state = emptyLog()
	r.start(t)
	t.Cleanup(func() { r.stop(t) })
	return r
}

// openWith is open with segments of another size.
func openWith(t *testing.T, segment int64) *replica {
	r := &replica{fs: simfs.New(1), cfg: topic.PartitionConfig{Topic: "orders", Incarnation: someIncarnation}, segment: segment, state: emptyLog()}
	r.start(t)
	t.Cleanup(func() { r.stop(t) })
	return r
}

func emptyLog() storage.ReplicaState {
	return storage.ReplicaState{
		Group: 7, Replica: 70, Status: storage.ReplicaLive,
		Log: storage.LogPosition{StartIndex: 1, StartTerm: 1, LastIndex: 1, LastTerm: 1},
	}
}

func (r *replica) start(t require.TestingT) {
	store, err := storage.Open(storage.Config{FS: r.fs, Dir: "/node", Name: "n", Cluster: "c", JournalFileSize: 64 << 10, SegmentSize: r.segment})
	require.NoError(t, err)
	dir, err := store.CreateTopicDir("orders", someIncarnation)
	require.NoError(t, err)
	r.store = store
	r.state.Dir = storage.ReplicaDir(dir, 0, r.state.Replica)
	r.log, err = store.OpenLog(r.state)
	require.NoError(t, err)
	r.partition, err = topic.NewPartition(r.cfg)
	require.NoError(t, err)
	r.partition.Bind(r)
}

func (r *replica) stop(t require.TestingT) {
	r.partition.Close()
	require.NoError(t, r.log.Close())
	require.NoError(t, r.store.Close())
}

// checkpoint makes what the log holds the point that a restart goes back to.
func (r *replica) checkpoint(t require.TestingT) {
	r.state.Log = r.log.Position()
	require.NoError(t, r.log.Sync())
}

// restart goes on from the last checkpoint, and returns its index.
func (r *replica) restart(t require.TestingT) storage.Index {
	r.stop(t)
	r.start(t)
	return r.state.Log.LastIndex
}

// Propose, Readable and Log are the topic.Group of the partition.
func (r *replica) Propose(data []byte, done func(raftlog.Proposal)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.proposals = append(r.proposals, proposal{data, done})
	if r.arrived != nil {
		select {
		case r.arrived <- struct{}{}:
		default:
		}
	}
}

func (r *replica) Readable() (storage.Index, bool) {
	return r.log.Position().LastIndex, !r.unreadable.Load()
}

func (r *replica) Log() *storage.Log { return r.log }

// waiting returns the data of the proposals that wait.
func (r *replica) waiting() [][]byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out [][]byte
	for _, p := range r.proposals {
		out = append(out, p.data)
	}
	return out
}

// take removes the oldest n proposals.
func (r *replica) take(n int) []proposal {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.proposals[:n:n]
	r.proposals = r.proposals[n:]
	return out
}

// apply does with committed entries what a group does.
func (r *replica) apply(entries []raftlog.Entry) ([]raftlog.Result, error) {
	results := make([]raftlog.Result, len(entries))
	if err := r.partition.Apply(entries, results); err != nil {
		return nil, err
	}
	if err := r.write(entries, results); err != nil {
		return nil, err
	}
	r.partition.Applied(entries[len(entries)-1].Index)
	return results, nil
}

func (r *replica) write(entries []raftlog.Entry, results []raftlog.Result) error {
	next := r.log.NextOffset()
	var out []storage.LogEntry
	for i, e := range entries {
		le := storage.LogEntry{
			Entry:   storage.Entry{Index: e.Index, Term: e.Term, Kind: e.Kind, Data: e.Data},
			Verdict: results[i].Verdict, BaseOffset: next,
		}
		switch {
		case le.Verdict == 0 && e.Kind == storage.EntryNormal:
			le.Verdict = storage.VerdictEmpty
		case le.Verdict == 0:
			le.Verdict = storage.VerdictConfig
		case le.Verdict == storage.VerdictData:
			if results[i].BaseOffset != next {
				return fmt.Errorf("entry %d at %d, want %d", e.Index, results[i].BaseOffset, next)
			}
			le.Count = results[i].Count
			next += storage.Offset(le.Count)
		}
		out = append(out, le)
	}
	return r.log.Append(out)
}

// commit commits and applies the oldest n proposals as one batch, and answers.
func (r *replica) commit(t require.TestingT, h *history, n int) []raftlog.Result {
	taken := r.take(n)
	var entries []raftlog.Entry
	for _, p := range taken {
		entries = append(entries, h.commit(storage.EntryNormal, p.data))
	}
	results, err := r.apply(entries)
	require.NoError(t, err)
	for i, p := range taken {
		p.done(raftlog.Proposal{Index: entries[i].Index, Term: 1, Result: results[i]})
	}
	return results
}

// fail ends the oldest n proposals with err.
func (r *replica) fail(n int, err error) {
	for _, p := range r.take(n) {
		p.done(raftlog.Proposal{Err: err})
	}
}

// read is one record as a reader sees it.
type read struct {
	offset storage.Offset
	topic.Record
}

// readAll fetches everything up to the high watermark.
func (r *replica) readAll(maxBytes int) ([]read, error) { return r.readFrom(0, maxBytes) }

// readFrom fetches everything from an offset up to the high watermark.
func (r *replica) readFrom(from storage.Offset, maxBytes int) ([]read, error) {
	var (
		out []read
		buf []byte
		it  topic.BatchRecords
	)
	for {
		f, err := r.partition.Fetch(topic.FetchRequest{From: from, MaxBytes: maxBytes}, buf)
		if err != nil || len(f.Data) == 0 {
			return out, err
		}
		for data := f.Data; len(data) > 0; {
			var b topic.Batch
			if b, data, err = topic.ReadBatch(data); err != nil {
				return out, err
			}
			for it.Reset(b); it.Next(); {
				out = append(out, read{it.Offset(), clone(it.Record())})
			}
			if it.Err() != nil {
				return out, it.Err()
			}
		}
		if f.Next <= from {
			return out, errors.New("no progress")
		}
		buf, from = f.Buf, f.Next
	}
}
