package metastore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/stelelog/stele/raftlog"
)

// streamVersion is that of what the two sides of a stream say first.
const streamVersion = 1

// MethodSnapshot is the stream by which a replica gets the state of another one.
const MethodSnapshot = "meta.snapshot"

// Stream is a pair of byte pipes with back-pressure to another node. A Read that
// meets the end returns io.EOF only if the other side said so.
type Stream interface {
	io.Reader
	io.Writer
	CloseWrite() error // ends the other side's reads
	io.Closer          // releases the stream at once, and who waits in it
}

// Streamer opens streams to the stores of other nodes: what it opens arrives at
// their HandleStream. ctx bounds the whole life of the stream.
type Streamer interface {
	OpenStream(ctx context.Context, to raftlog.NodeID, method string) (Stream, error)
}

// snapshotRequest asks for a state.
type snapshotRequest struct {
	replica raftlog.ReplicaID // that asks: the state's configuration must list it
	above   raftlog.Index     // the state must be at a higher one
	// What the asker has of one that was cut: it is at index and term, and the
	// rest begins behind a key. Index 0: nothing.
	index  raftlog.Index
	term   raftlog.Term
	behind []byte
}

func (r snapshotRequest) encode() []byte {
	b := []byte{streamVersion}
	for _, v := range [...]uint64{uint64(r.replica), uint64(r.above), uint64(r.index), uint64(r.term)} {
		b = appendUint(b, v)
	}
	return appendString(b, string(r.behind))
}

func decodeSnapshotRequest(body []byte) (r snapshotRequest, err error) {
	d := decoder{b: body}
	d.version(streamVersion)
	r.replica = raftlog.ReplicaID(d.uint())
	r.above = raftlog.Index(d.uint())
	r.index = raftlog.Index(d.uint())
	r.term = raftlog.Term(d.uint())
	if key := d.bytes(int(d.uintMax(maxChunk))); len(key) > 0 {
		r.behind = key
	}
	if r.index == 0 && (r.term != 0 || r.behind != nil) {
		d.fail("the rest of nothing")
	}
	return r, d.end()
}

// Kinds of answers.
const (
	answerWhole   byte = 1
	answerRest    byte = 2
	answerRefused byte = 3
	// Of a state that a majority of the voters agreed on, with its hash.
	answerAgreed     byte = 4
	answerAgreedRest byte = 5
)

// snapshotAnswer says what follows it.
type snapshotAnswer struct {
	kind   byte
	term   raftlog.Term // of whom answers, read after its state was
	hash   *digest      // of a state that was agreed on
	reason string       // of a refusal
}

func (a snapshotAnswer) encode() []byte {
	b := []byte{streamVersion, a.kind}
	if a.kind == answerRefused {
		return appendString(b, a.reason[:min(len(a.reason), maxErrorText)])
	}
	if b = appendUint(b, uint64(a.term)); a.hash != nil {
		b = append(b, a.hash[:]...)
	}
	return b
}

func decodeSnapshotAnswer(body []byte) (a snapshotAnswer, err error) {
	d := decoder{b: body}
	d.version(streamVersion)
	switch a.kind = d.byte(); a.kind {
	case answerWhole, answerRest:
		a.term = raftlog.Term(d.uint())
	case answerAgreed, answerAgreedRest:
		a.term = raftlog.Term(d.uint())
		sum := d.digest()
		a.hash = &sum
	case answerRefused:
		a.reason = d.string(maxErrorText)
	default:
		d.fail("answer of kind %d", a.kind)
	}
	return a, d.end()
}

func (a snapshotAnswer) isRest() bool { return a.kind == answerRest || a.kind == answerAgreedRest }

// goesOn reports whether what follows is of the state that has the hash.
func (a snapshotAnswer) goesOn(hash *digest) bool {
	if a.hash == nil || hash == nil {
		return a.hash == hash
	}
	return *a.hash == *hash
}

// readStart reads the chunk that begins one direction of a stream.
func readStart[T any](in *chunkReader, kind byte, decode func([]byte) (T, error)) (v T, err error) {
	k, body, err := in.read()
	if err != nil {
		return v, err
	}
	if k != kind {
		return v, fmt.Errorf("%w: chunk of kind %d begins a stream", errMalformed, k)
	}
	return decode(body)
}

// serveFacts is what the decision to give a state away rests on.
type serveFacts struct {
	Failed  error // of the store
	At      applied
	Replica raftlog.ReplicaID // that asks
	Above   raftlog.Index
}

// refusal says why a state is not given, nil if it is. Any replica may give its
// own: what it applied was committed. One whose configuration does not list the
// asker would be refused there, since it is older than its part in the group.
func (f serveFacts) refusal() error {
	switch {
	case f.Failed != nil:
		return fmt.Errorf("its metadata failed: %w", f.Failed)
	case f.At.Index <= f.Above:
		return fmt.Errorf("its state is at %d, more than %d is asked for", f.At.Index, f.Above)
	case !lists(f.At.Conf, f.Replica):
		return fmt.Errorf("as of %d %v has no part in the group", f.At.Index, f.Replica)
	}
	return nil
}

func lists(c raftlog.ConfState, r raftlog.ReplicaID) bool {
	for _, ids := range [...][]raftlog.ReplicaID{c.Voters, c.Learners, c.VotersOutgoing, c.LearnersNext} {
		if slices.Contains(ids, r) {
			return true
		}
	}
	return false
}

// refused is the error of a refusal.
func (a snapshotAnswer) refused() error {
	return raftlog.Retry(errors.New("metastore: no snapshot: " + a.reason))
}
