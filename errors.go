package stele

import (
	"errors"

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
	OutcomeUnknown = raftlog.OutcomeUnknown // it may have happened
	OutcomeRetry   = raftlog.OutcomeRetry   // nothing happened: the same call may succeed later
	OutcomeRefused = raftlog.OutcomeRefused // nothing happened, and the same call never will
)

// Every error that the library returns matches one of these three with
// errors.Is; OutcomeOf tells which (property P9).
var (
	ErrOutcomeUnknown = raftlog.ErrOutcomeUnknown
	ErrRetry          = raftlog.ErrRetry
	ErrRefused        = raftlog.ErrRefused
)

// OutcomeOf classifies an error; what it knows nothing of is OutcomeUnknown.
func OutcomeOf(err error) Outcome { return raftlog.OutcomeOf(err) }

// ErrClosed is the error of calls to a node that is closed or being closed. It
// comes with an outcome: Retry (elsewhere) where nothing happened.
var ErrClosed = errors.New("stele: the node is closed")

// ErrNotReady is the error of calls to a node that is not part of a cluster
// yet. It is Retry; Readiness says what is missing.
var ErrNotReady = errors.New("stele: the node is not ready")

// Typed errors of the parts, under the names that a user of the root needs.
type (
	// NotListedError: a cluster exists, and this life of the node's directory
	// is not in it.
	NotListedError = membership.NotListedError
	// DamageError: bytes that were durable are not what was written.
	DamageError = storage.DamageError
	// IdentityError: the directory is another node's.
	IdentityError = storage.IdentityError
	// FormatError: the directory is of a newer release.
	FormatError = storage.FormatError
	// TooLargeError: a record is over the limit.
	TooLargeError = topic.TooLargeError
	// OutOfRangeError: there is no such offset.
	OutOfRangeError = topic.OutOfRangeError
)

// ErrTopicExists: the name, in whatever case of letters, is taken. It is Refused.
var ErrTopicExists = metastore.ErrTopicExists

// ErrTopicNotFound: there is no such topic. It is Refused.
var ErrTopicNotFound = metastore.ErrTopicNotFound

// ErrLocked: another process, or another Node of this one, has the directory.
var ErrLocked = storage.ErrLocked
