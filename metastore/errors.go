package metastore

import (
	"errors"
	"fmt"

	"github.com/stelelog/stele/raftlog"
)

// Refusals and other answers. Each matches exactly one of raftlog.ErrRetry,
// raftlog.ErrRefused and raftlog.ErrOutcomeUnknown.
var (
	// ErrTopicExists: another topic has the name, or one that differs from it
	// only in case. Refused.
	ErrTopicExists = raftlog.Refused(errors.New("metastore: the topic exists"))
	// ErrTopicNotFound: there is no such topic, or no longer. Refused.
	ErrTopicNotFound = raftlog.Refused(errors.New("metastore: no such topic"))
	// ErrTopicDeleting: the topic of that name is being deleted; the name is
	// free when that is done. Retry.
	ErrTopicDeleting = raftlog.Retry(errors.New("metastore: the topic is being deleted"))
	// ErrMemberNotFound: no member has this node id and nonce. Refused.
	ErrMemberNotFound = raftlog.Refused(errors.New("metastore: no such member"))
	// ErrUnavailable: this node cannot answer yet, because it has not caught
	// up or sees no leader, or cannot answer any more, because its metadata
	// failed (the text says which). It means neither "not found" nor "not
	// yours". Retry, here or at another node.
	ErrUnavailable = raftlog.Retry(errors.New("metastore: not available"))
	// ErrClosed: the store was closed. Retry (elsewhere), or Unknown for a
	// change that was under way.
	// It matches raftlog.ErrClosed.
	ErrClosed error = closedError{}
	// ErrLogLost: the directory holds metadata that was applied from a raft
	// log, and that log is gone. Starting would make a node that forgot what
	// it voted for. The way on is to move the node's directory away and to
	// start it as a new life. Refused.
	ErrLogLost = raftlog.Refused(errors.New("metastore: the state was applied from a raft log that is gone: move this node's directory away and let it start anew"))
)

// InvalidError refuses a value that no cluster would accept. It matches
// raftlog.ErrRefused.
type InvalidError struct {
	Field   string // as in the Go type that the caller filled
	Value   string
	Allowed string
}

func (e *InvalidError) Error() string {
	return fmt.Sprintf("metastore: %s is %s: allowed is %s", e.Field, e.Value, e.Allowed)
}

// Unwrap gives the outcome.
func (e *InvalidError) Unwrap() error { return raftlog.ErrRefused }

func invalid(field string, value any, allowed string, args ...any) error {
	text := fmt.Sprint(value)
	if s, ok := value.(string); ok {
		text = fmt.Sprintf("%.80q", s)
	}
	return &InvalidError{field, text, fmt.Sprintf(allowed, args...)}
}

// ProducerFencedError refuses an epoch to a producer that is no longer the one
// that has the name: a newer one took it over. Its epoch is above all that this
// one held. It matches raftlog.ErrRefused.
type ProducerFencedError struct {
	Name  string
	Held  uint32 // by the one that asked
	Epoch uint32 // that was given out last
}

func (e *ProducerFencedError) Error() string {
	return fmt.Sprintf("metastore: the producer name %.80q was taken over: epoch %d was replaced by %d", e.Name, e.Held, e.Epoch)
}

// Unwrap gives the outcome.
func (e *ProducerFencedError) Unwrap() error { return raftlog.ErrRefused }

// UnknownCommandError stops the group on this node: the log holds a command
// that this build does not know, and skipping it would make this replica
// differ from the others. A newer build goes on from here.
type UnknownCommandError struct {
	Type    uint16
	Version uint8
}

func (e *UnknownCommandError) Error() string {
	return fmt.Sprintf("metastore: command type %d version %d is not known to this build", e.Type, e.Version)
}

// NewerStateError refuses a database or a snapshot that a newer build wrote.
// Nothing in it was changed.
type NewerStateError struct {
	What        string // what is too new
	Found, Know uint64
}

func (e *NewerStateError) Error() string {
	return fmt.Sprintf("metastore: the state's %s is %d, this build knows up to %d: start a newer build", e.What, e.Found, e.Know)
}

// Unwrap gives the outcome.
func (e *NewerStateError) Unwrap() error { return raftlog.ErrRefused }

// StateError says that the replicated state contradicts itself: this node's
// copy is damaged, or there is a bug. It fails the group on this node.
type StateError struct{ Cause error }

func (e *StateError) Error() string { return fmt.Sprintf("metastore: damaged state: %v", e.Cause) }

func (e *StateError) Unwrap() error { return e.Cause }

func damaged(format string, args ...any) error {
	return &StateError{fmt.Errorf(format, args...)}
}

// named adds the name that is in the way.
func named(err error, name string) error { return fmt.Errorf("%w: %q", err, name) }

type closedError struct{}

func (closedError) Error() string        { return "metastore: closed" }
func (closedError) Is(target error) bool { return target == raftlog.ErrClosed }
