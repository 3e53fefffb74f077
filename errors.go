package stele

import (
	"context"
	"errors"
	"fmt"

	"github.com/stelelog/stele/membership"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

// Outcome says what an error means for the operation that returned it.
type Outcome = raftlog.Outcome

// The outcomes of errors.
const (
	OutcomeUnknown Outcome = raftlog.OutcomeUnknown // it may have happened
	OutcomeRetry   Outcome = raftlog.OutcomeRetry   // nothing happened: the same call may succeed later
	OutcomeRefused Outcome = raftlog.OutcomeRefused // nothing happened, and the same call never will
)

// Every error that the library returns matches one of these three with
// errors.Is; OutcomeOf tells which (property P9).
var (
	ErrOutcomeUnknown = raftlog.ErrOutcomeUnknown
	ErrRetry          = raftlog.ErrRetry
	ErrRefused        = raftlog.ErrRefused
)

// OutcomeOf classifies an error; what it knows nothing of is OutcomeUnknown. A
// nil error has no outcome, and counts as unknown: ask only about errors.
func OutcomeOf(err error) Outcome { return raftlog.OutcomeOf(err) }

// ErrClosed is the error of calls to what is closed or being closed: a node, a
// producer, a reader. It comes with an outcome: Retry (elsewhere) where nothing
// happened, Unknown where a record may have been appended.
var ErrClosed = raftlog.ErrClosed

// ErrNotReady is the error of calls to a node that is not part of a cluster
// yet. It is Retry; Readiness says what is missing.
var ErrNotReady = errors.New("stele: the node is not ready")

// NilContextError refuses a call that was given no context. It is Refused, and
// nothing happened: a Close that was refused has closed nothing.
type NilContextError struct {
	Call string // such as "Node.CreateTopic"
}

func (e *NilContextError) Error() string {
	return fmt.Sprintf("stele: %s: ctx is nil: want a context, such as context.Background()", e.Call)
}

// Unwrap makes the error match ErrRefused.
func (e *NilContextError) Unwrap() error { return ErrRefused }

// needs returns a *NilContextError if a call was given no context.
func needs(ctx context.Context, call string) error {
	if ctx == nil {
		return &NilContextError{call}
	}
	return nil
}

// Typed errors of the parts, under the names that a user of the root needs.
type (
	// NewerStateError: the directory, or the metadata that a leader sent, is of a
	// higher version than this node takes part in. Refused; nothing was changed.
	NewerStateError = metastore.NewerStateError
	// RemovedError: this life of the node's directory is no member any more, or
	// never will be one.
	RemovedError = membership.RemovedError
	// DamageError: bytes that were durable are not what was written.
	DamageError = storage.DamageError
	// IdentityError: the directory is another node's.
	IdentityError = storage.IdentityError
	// FormatError: the directory is of a newer release.
	FormatError = storage.FormatError
	// InvalidError: a value that a topic cannot have.
	InvalidError = metastore.InvalidError
	// ForeignError: the directory holds something else.
	ForeignError = storage.ForeignError
	// TopicRetiredError: a topic, or its name, is that of one that was deleted with a
	// grace. It says until when it can be brought back. Refused.
	TopicRetiredError = metastore.TopicRetiredError
	// TooLargeError: a record is over the limit.
	TooLargeError = topic.TooLargeError
	// OutOfRangeError: there is no such offset.
	OutOfRangeError = topic.OutOfRangeError
	// FencedError: a newer producer has this one's name.
	FencedError = topic.FencedError
	// NoPartitionError: the topic has no such partition.
	NoPartitionError = topic.NoPartitionError
	// NoLeaderError: a partition had no leader for as long as a call waited.
	NoLeaderError = topic.NoLeaderError
	// PartialError: some records of a call were appended and some were not.
	PartialError = topic.PartialError
)

// ErrTopicExists: the name, in whatever case of letters, is taken. It is Refused.
var ErrTopicExists = metastore.ErrTopicExists

// ErrTopicNotFound: there is no such topic. It is Refused.
var ErrTopicNotFound = metastore.ErrTopicNotFound

// ErrTopicDeleting: the name is still that of a topic that is being deleted. It
// is Retry.
var ErrTopicDeleting = metastore.ErrTopicDeleting

// ErrTopicRestoring: the topic is being brought back, and takes and shows records when
// that is done. It is Retry.
var ErrTopicRestoring = metastore.ErrTopicRestoring

// ErrTooFewNodes: too few members live, and are not on their way out, for the
// replicas that a topic is to have. It is Retry: when a node is back or joins, or
// with fewer TopicConfig.Replicas.
var ErrTooFewNodes = metastore.ErrTooFewNodes

// ErrTopicDeleted: the topic that a reader or producer was on was deleted. It is
// Refused.
var ErrTopicDeleted = topic.ErrTopicDeleted

// ErrPartitionLost: a forced recovery left no replica of a partition, which serves no
// more. Copy what the topic's other partitions hold to another topic, then delete it. It
// comes as Retry, when the time of a call is over.
var ErrPartitionLost = topic.ErrLost

// ErrUnavailable: the node's metadata has not caught up yet. It is Retry.
var ErrUnavailable = metastore.ErrUnavailable

// ErrOverloaded: too many bytes wait for a quorum. It is Retry.
var ErrOverloaded = topic.ErrOverloaded

// ErrLocked: another process, or another Node of this one, has the directory. It
// is Retry: it may be an earlier process that has not ended yet.
var ErrLocked = storage.ErrLocked

// NoMemberError: the cluster has no node of this name. It is Refused.
type NoMemberError struct {
	Name string
	// Left is the last node of this name, if there was one: it left the cluster, and
	// its directory never comes back. 0: nobody ever had the name.
	Left NodeID
}

func (e *NoMemberError) Error() string {
	if e.Left != 0 {
		return fmt.Sprintf("stele: no member is called %q: %v, which was, has left the cluster", e.Name, e.Left)
	}
	return fmt.Sprintf("stele: no member is called %q", e.Name)
}

// Unwrap makes the error match ErrRefused.
func (e *NoMemberError) Unwrap() error { return ErrRefused }
