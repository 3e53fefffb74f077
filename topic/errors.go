package topic

import (
	"errors"
	"fmt"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// Every error of this package has an outcome (raftlog.OutcomeOf). It speaks of
// the call that returned it. Who repeats a call whose first attempt ended
// unknown, and is then refused, knows of the first attempt no more than before.
var (
	// errStampBehind refuses what a new leader stamped before it had applied all
	// that earlier ones did, by a clock that is behind theirs. Retry: it has now.
	errStampBehind = raftlog.Retry(errors.New("topic: the batch was stamped before the last one"))
	// ErrTopicIncarnationMismatch refuses a batch that is stamped with another
	// life of the topic's name. Nothing was appended; look the topic up anew.
	ErrTopicIncarnationMismatch = raftlog.Retry(errors.New("topic: incarnation mismatch: the topic was deleted, or deleted and created again"))
	// ErrSealed refuses a batch because this life of the topic is being
	// deleted. Nothing is ever appended to it again.
	ErrSealed = raftlog.Refused(errors.New("topic: the partition is sealed: its topic is being deleted"))
	// ErrRetired refuses a batch because the topic was deleted with a grace, and was
	// not brought back before it came.
	ErrRetired = raftlog.Refused(errors.New("topic: the partition is closed: its topic was deleted"))
	// errPassed answers who closes a partition, or opens it, for a deletion that was
	// taken back or followed by another one since: look the topic up anew.
	errPassed = raftlog.Retry(errors.New("topic: a later deletion was heard of, or this one was taken back"))
	// ErrCorruptBatch refuses bytes that are not a batch.
	ErrCorruptBatch = raftlog.Refused(errors.New("topic: corrupt batch"))
	// ErrNewerEntry ends a replica whose log has an entry of a kind that this build
	// does not know. Start a newer build; the log is as it is.
	ErrNewerEntry = raftlog.Refused(errors.New("topic: an entry of a newer build"))
	// ErrUnknownProducer refuses a batch of a producer that the partition does
	// not know, or no longer (24 hours, 10,000 producers): see Producers.
	ErrUnknownProducer = raftlog.Refused(errors.New("topic: unknown producer"))
	// ErrOverloaded refuses records because too many bytes of the partition
	// wait for a quorum already. It matches raftlog.ErrOverloaded.
	ErrOverloaded = raftlog.Retry(fmt.Errorf("topic: the partition: %w", raftlog.ErrOverloaded))
	// ErrPartitionClosed answers calls of a replica that was closed here.
	ErrPartitionClosed = raftlog.Retry(errors.New("topic: the partition's replica is closed"))
	// ErrNotReadable answers reads of a replica that may not show a watermark
	// yet: a leader that has not committed in its term, or a restarted
	// follower that no current leader has taught.
	ErrNotReadable = raftlog.Retry(errors.New("topic: the replica has no high watermark yet"))
)

// TooLargeError refuses a record, or records that have to travel in one batch.
type TooLargeError struct {
	Record int // which of the call's, from 0; -1: all of them together
	Size   int // bytes
	Max    int // bytes
}

func (e *TooLargeError) Error() string {
	if e.Record < 0 {
		return fmt.Sprintf("topic: too large: %d bytes, the limit is %d", e.Size, e.Max)
	}
	return fmt.Sprintf("topic: record %d of the call is too large: %d bytes, the limit is %d", e.Record, e.Size, e.Max)
}

// Is gives the error its outcome: refused.
func (e *TooLargeError) Is(target error) bool { return target == raftlog.ErrRefused }

// OutOfRangeError refuses a read at an offset that the partition does not hold.
type OutOfRangeError struct {
	Topic     string // with Partition; "": not known
	Partition uint32
	Offset    storage.Offset // asked for
	Start     storage.Offset // the first that is there
	End       storage.Offset // the high watermark: the first that is not there yet
}

func (e *OutOfRangeError) Error() string {
	if e.Topic != "" {
		return fmt.Sprintf("topic: offset %d of %s/%d is out of range: it holds [%d, %d)", e.Offset, e.Topic, e.Partition, e.Start, e.End)
	}
	return fmt.Sprintf("topic: offset %d is out of range: the partition holds [%d, %d)", e.Offset, e.Start, e.End)
}

// Is gives the error its outcome: refused.
func (e *OutOfRangeError) Is(target error) bool { return target == raftlog.ErrRefused }

// NoPartitionError refuses a partition that the topic does not have.
type NoPartitionError struct {
	Topic      string
	Partition  uint32 // asked for
	Partitions uint32 // that there are: 0 to Partitions-1
}

func (e *NoPartitionError) Error() string {
	return fmt.Sprintf("topic: there is no partition %d: %s has partitions 0 to %d", e.Partition, e.Topic, e.Partitions-1)
}

// Is gives the error its outcome: refused.
func (e *NoPartitionError) Is(target error) bool { return target == raftlog.ErrRefused }

// BehindError answers a reader that has seen more than this replica has: it
// waits for this one or asks another, so that its watermark never goes back.
type BehindError struct {
	Seen          storage.Offset // the reader's watermark
	HighWatermark storage.Offset // this replica's
}

func (e *BehindError) Error() string {
	return fmt.Sprintf("topic: the replica is behind: its high watermark is %d, the reader saw %d", e.HighWatermark, e.Seen)
}

// Is gives the error its outcome: retry.
func (e *BehindError) Is(target error) bool { return target == raftlog.ErrRetry }

// FencedError refuses a batch of an older epoch of a producer: a newer
// instance of it has written to the partition.
type FencedError struct {
	Producer ProducerID
	Epoch    ProducerEpoch // of the batch
	Current  ProducerEpoch
}

func (e *FencedError) Error() string {
	return fmt.Sprintf("topic: producer %d is fenced: epoch %d was replaced by %d", e.Producer, e.Epoch, e.Current)
}

// Is gives the error its outcome: refused.
func (e *FencedError) Is(target error) bool { return target == raftlog.ErrRefused }

// OutOfOrderError refuses a batch that is not the next of its producer.
//
// Above Next there is a gap: nothing happened, and the batch is appended once
// those before it are (retry). Below Next the sequences were appended, but not
// as this batch or too long ago to be remembered (outcome unknown).
type OutOfOrderError struct {
	Producer ProducerID
	Epoch    ProducerEpoch
	First    Sequence // of the batch
	Next     Sequence // that the partition expects
}

func (e *OutOfOrderError) Error() string {
	return fmt.Sprintf("topic: producer %d epoch %d is out of order: sequence %d, expected %d", e.Producer, e.Epoch, e.First, e.Next)
}

// Is gives the error its outcome: retry for a gap, else unknown.
func (e *OutOfOrderError) Is(target error) bool {
	if e.First > e.Next {
		return target == raftlog.ErrRetry
	}
	return target == raftlog.ErrOutcomeUnknown
}

// corrupt makes an error that matches ErrCorruptBatch.
func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorruptBatch, fmt.Sprintf(format, args...))
}
