package topic

import (
	"encoding/binary"
	"errors"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// An error in a response, after its code:
//
//	offset size
//	     2    1  outcome       0 unknown, 1 retry, 2 refused
//	     3    1  n             number of fields
//	     4  8*n  fields        numbers of the error's type
//	            text           the rest
//
// What is decoded has the type (or is the sentinel), the outcome and the text
// of what was encoded. An error of another type keeps outcome and text.
const (
	codeNone        byte = 0
	codeOther       byte = 1
	codeIncarnation byte = 2
	codeSealed      byte = 3
	codeCorrupt     byte = 4
	codeProducer    byte = 5 // unknown producer
	codeOverloaded  byte = 6
	codeClosed      byte = 7
	codeNotReadable byte = 8
	codeDeleted     byte = 9
	codeNoReplica   byte = 10
	codeRetired     byte = 11
	codePassed      byte = 12
	codeNotYet      byte = 13

	codeTooLarge   byte = 32
	codeOutOfRange byte = 33
	codeBehind     byte = 34
	codeFenced     byte = 35
	codeOutOfOrder byte = 36
	codeNotLeader  byte = 37
	codeDiskFull   byte = 38

	maxErrorText   = 1 << 12
	maxErrorFields = 4
)

// sentinel returns the error that a code stands for; nil: it is a type's, or
// not known.
func sentinel(code byte) error {
	switch code {
	case codeIncarnation:
		return ErrTopicIncarnationMismatch
	case codeSealed:
		return ErrSealed
	case codeCorrupt:
		return ErrCorruptBatch
	case codeProducer:
		return ErrUnknownProducer
	case codeOverloaded:
		return ErrOverloaded
	case codeClosed:
		return ErrPartitionClosed
	case codeNotReadable:
		return ErrNotReadable
	case codeDeleted:
		return ErrTopicDeleted
	case codeNoReplica:
		return ErrNoReplica
	case codeRetired:
		return ErrRetired
	case codePassed:
		return errPassed
	case codeNotYet:
		return errNotYet
	}
	return nil
}

// encodeError makes the response that says err.
func encodeError(err error) []byte {
	code, fields := classify(err)
	b := []byte{wireVersion, code, byte(raftlog.OutcomeOf(err)), byte(len(fields))}
	for _, f := range fields {
		b = binary.LittleEndian.AppendUint64(b, f)
	}
	text := err.Error()
	return append(b, text[:min(len(text), maxErrorText)]...)
}

// classify returns the code and the fields of an error.
func classify(err error) (byte, []uint64) {
	var (
		large      *TooLargeError
		outOfRange *OutOfRangeError
		behind     *BehindError
		fenced     *FencedError
		outOfOrder *OutOfOrderError
		notLeader  *raftlog.NotLeaderError
		diskFull   *raftlog.DiskFullError
	)
	switch {
	case errors.As(err, &large):
		return codeTooLarge, []uint64{uint64(large.Size), uint64(large.Max)}
	case errors.As(err, &outOfRange):
		return codeOutOfRange, []uint64{uint64(outOfRange.Offset), uint64(outOfRange.Start), uint64(outOfRange.End)}
	case errors.As(err, &behind):
		return codeBehind, []uint64{uint64(behind.Seen), uint64(behind.HighWatermark)}
	case errors.As(err, &fenced):
		return codeFenced, []uint64{uint64(fenced.Producer), uint64(fenced.Epoch), uint64(fenced.Current)}
	case errors.As(err, &outOfOrder):
		return codeOutOfOrder, []uint64{uint64(outOfOrder.Producer), uint64(outOfOrder.Epoch), uint64(outOfOrder.First), uint64(outOfOrder.Next)}
	case errors.As(err, &notLeader):
		return codeNotLeader, []uint64{uint64(notLeader.Group), uint64(notLeader.Leader), uint64(notLeader.Node)}
	case errors.As(err, &diskFull):
		return codeDiskFull, []uint64{uint64(diskFull.Left), uint64(diskFull.Reserve)}
	}
	for code := codeIncarnation; code <= codeNotYet; code++ {
		if errors.Is(err, sentinel(code)) {
			return code, nil
		}
	}
	return codeOther, nil
}

// decodeError is encodeError's inverse. It never returns nil.
func decodeError(code byte, body []byte) error {
	if len(body) < 2 || int(body[1]) > maxErrorFields || len(body) < 2+8*int(body[1]) {
		return raftlog.Unknown(malformed("an error of %d bytes", len(body)))
	}
	var f [maxErrorFields]uint64
	for i := range int(body[1]) {
		f[i] = binary.LittleEndian.Uint64(body[2+8*i:])
	}
	text := body[2+8*int(body[1]):]
	e := &peerError{text: string(text[:min(len(text), maxErrorText)]), is: typed(code, f)}
	outcome := raftlog.Outcome(body[0])
	if outcome > raftlog.OutcomeRefused {
		outcome = raftlog.OutcomeUnknown
	}
	if e.is != nil && raftlog.OutcomeOf(e.is) == outcome {
		return e
	}
	if e.is != nil {
		e.is = withoutOutcome{e.is} // another one was laid over it
	}
	switch outcome {
	case raftlog.OutcomeRetry:
		return raftlog.Retry(e)
	case raftlog.OutcomeRefused:
		return raftlog.Refused(e)
	default:
		return raftlog.Unknown(e)
	}
}

// typed rebuilds the error that a code stands for, nil if that is not known.
func typed(code byte, f [maxErrorFields]uint64) error {
	switch code {
	case codeTooLarge:
		return &TooLargeError{Record: -1, Size: int(f[0]), Max: int(f[1])}
	case codeOutOfRange:
		return &OutOfRangeError{Offset: storage.Offset(f[0]), Start: storage.Offset(f[1]), End: storage.Offset(f[2])}
	case codeBehind:
		return &BehindError{Seen: storage.Offset(f[0]), HighWatermark: storage.Offset(f[1])}
	case codeFenced:
		return &FencedError{Producer: ProducerID(f[0]), Epoch: ProducerEpoch(f[1]), Current: ProducerEpoch(f[2])}
	case codeOutOfOrder:
		return &OutOfOrderError{Producer: ProducerID(f[0]), Epoch: ProducerEpoch(f[1]), First: Sequence(f[2]), Next: Sequence(f[3])}
	case codeNotLeader:
		return &raftlog.NotLeaderError{Group: storage.GroupID(f[0]), Leader: storage.ReplicaID(f[1]), Node: storage.NodeID(f[2])}
	case codeDiskFull:
		return &raftlog.DiskFullError{Left: int64(f[0]), Reserve: int64(f[1])}
	}
	return sentinel(code)
}

// peerError is an error that another node answered.
type peerError struct {
	text string
	is   error // nil: this build knows no type for it
}

func (e *peerError) Error() string { return e.text }

// Unwrap gives the type, and with it the outcome.
func (e *peerError) Unwrap() error { return e.is }
