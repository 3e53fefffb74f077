package topic

import (
	"errors"
	"fmt"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

var (
	// ErrTopicDeleted ends producing to, and reading of, a life of a topic that
	// was deleted or is being deleted. Refused; a topic of the same name that
	// was created since is another one. If it was deleted with a grace, and is brought
	// back, it goes on for calls, and readers, that begin after that.
	ErrTopicDeleted = raftlog.Refused(errors.New("topic: the topic was deleted"))
	// errNotYet answers for a topic that was deleted with a grace, as far as this node
	// knows, and is being brought back, or was.
	errNotYet = raftlog.Retry(errors.New("topic: the topic is being brought back"))
	// ErrNoReplica answers for a partition that this node does not hold, or has
	// not opened yet. Retry, elsewhere.
	ErrNoReplica = raftlog.Retry(errors.New("topic: this node has no open replica of the partition"))
	// ErrEnoughReplicas refuses one more replica of a partition that has as many as
	// its topic is to have (metastore.TopicConfig.Replicas): nothing would ever take
	// it away again, and a node that holds it might find nobody to leave it to.
	ErrEnoughReplicas = raftlog.Refused(errors.New("topic: the partition has all the replicas that its topic is to have"))
	// ErrNoContext is the error of a call whose context is nil. Refused.
	ErrNoContext = raftlog.Refused(errors.New("topic: the context is nil: want one, context.Background() if there is no other"))
	// ErrClosed is the error of calls to a Manager, Producer or Reader that was
	// closed. It comes as Retry where nothing happened, and as Unknown for what
	// was on its way. It matches raftlog.ErrClosed.
	ErrClosed error = closedError{}
)

type closedError struct{}

func (closedError) Error() string        { return "topic: closed" }
func (closedError) Is(target error) bool { return target == raftlog.ErrClosed }

// NoLeaderError says that no leader of a partition took the records within the
// time that there was. Nothing happened: it matches raftlog.ErrRetry, and
// context.Canceled or DeadlineExceeded if the caller's context was the end.
type NoLeaderError struct {
	TopicPartition
	Err error // of the last attempt
}

func (e *NoLeaderError) Error() string {
	return fmt.Sprintf("topic: no leader of %v took the records: %s", e.TopicPartition, textOf(e.Err))
}

// Is gives the error its outcome: retry.
func (e *NoLeaderError) Is(target error) bool { return target == raftlog.ErrRetry }

// Unwrap gives the last attempt's error, which is one of Retry.
func (e *NoLeaderError) Unwrap() error { return e.Err }

// PartialError says that some of the records of one call were appended and
// others were not. The positions that come with it tell which: the offset of
// those that were not, or may not be, appended is NoOffset.
type PartialError struct {
	Failed int // records
	Err    error
}

func (e *PartialError) Error() string {
	return fmt.Sprintf("topic: %d records were not appended: %s", e.Failed, textOf(e.Err))
}

// Is gives the error its outcome: for the call as a whole it is unknown.
func (e *PartialError) Is(target error) bool { return target == raftlog.ErrOutcomeUnknown }

// Unwrap gives the error of the first part that failed, without its outcome.
func (e *PartialError) Unwrap() error { return withoutOutcome{e.Err} }

// NoOffset is the offset of a record that has none.
const NoOffset storage.Offset = -1

// readError gives an error of a read its outcome, unless it was refused:
// nothing happened.
func readError(err error) error {
	if err == nil || raftlog.OutcomeOf(err) != raftlog.OutcomeUnknown {
		return err
	}
	return raftlog.Retry(withoutOutcome{err})
}

// withoutOutcome is an error that matches no outcome, whatever it wraps, so that
// it can be given one.
type withoutOutcome struct{ err error }

func (e withoutOutcome) Error() string { return e.err.Error() }

// Is matches what the error matches, but outcomes.
func (e withoutOutcome) Is(target error) bool {
	switch target {
	case raftlog.ErrOutcomeUnknown, raftlog.ErrRetry, raftlog.ErrRefused:
		return false
	}
	return errors.Is(e.err, target)
}

// As finds the types that the error wraps.
func (e withoutOutcome) As(target any) bool { return errors.As(e.err, target) }
