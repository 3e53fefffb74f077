package metastore

import (
	"errors"
	"fmt"
	"strings"

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
	// ErrTopicRestoring: the topic is being brought back; it takes and shows records
	// when that is done. Retry.
	ErrTopicRestoring = raftlog.Retry(errors.New("metastore: the topic is being brought back"))
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
	// ErrStateLost: the raft log begins behind what the state has, because a state
	// that was further had what came before. The way on is the same. Refused.
	ErrStateLost = raftlog.Refused(errors.New("metastore: the raft log goes on from a state that is gone: move this node's directory away and let it start anew"))
	// ErrStateDiverged: this node's metadata is not what a majority of the voters
	// has, at one index of one log: it is damaged (*StateDivergedError says more). It
	// stopped, nothing of it was given to others, and it is not opened again. The way
	// on is the same. Refused.
	ErrStateDiverged = raftlog.Refused(errors.New("metastore: this node's state differs from what a majority of the voters has: move this node's directory away and let it start anew"))
)

// Refusals of changes of members and moves. Those that are Retry may be granted
// once something else has changed.
var (
	// ErrNonceRefused: the life asked for the name of another one that spoke
	// before it was let in. It is refused for good: the name is probably
	// mistyped. Refused.
	ErrNonceRefused = raftlog.Refused(errors.New("metastore: this life of a node asked for the name of another that lives, and is refused for good"))
	// ErrNameTaken: another life has the name, and is not the one to be
	// replaced. Retry.
	ErrNameTaken = raftlog.Retry(errors.New("metastore: another node has the name"))
	// ErrStale: what the change was decided from is no longer so: look again.
	// Refused.
	ErrStale = raftlog.Refused(errors.New("metastore: the state has moved on"))
	// ErrMemberDead: the member is marked dead. Retry.
	ErrMemberDead = raftlog.Retry(errors.New("metastore: the member is dead"))
	// ErrMemberDraining: the member is on its way out. Retry.
	ErrMemberDraining = raftlog.Retry(errors.New("metastore: the member is draining"))
	// ErrMemberLeaving: the member's removal has begun. Refused.
	ErrMemberLeaving = raftlog.Refused(errors.New("metastore: the member is leaving, which cannot be taken back"))
	// ErrNotDraining: only what drains can leave. Retry.
	ErrNotDraining = raftlog.Retry(errors.New("metastore: the member is not draining"))
	// ErrNotLeaving: only what leaves can be removed. Retry.
	ErrNotLeaving = raftlog.Retry(errors.New("metastore: the member is not leaving"))
	// ErrMemberInUse: the member holds replicas, or takes part in the metadata.
	// Retry.
	ErrMemberInUse = raftlog.Retry(errors.New("metastore: the member is in use"))
	// ErrMovePending: a move of the partition is under way. Retry.
	ErrMovePending = raftlog.Retry(errors.New("metastore: a move of the partition is under way"))
	// ErrTooManyMoves: MaxMoves are under way. Retry.
	ErrTooManyMoves = raftlog.Retry(fmt.Errorf("metastore: %d moves are under way", MaxMoves))
	// ErrReplicaExists: the node holds a replica of the partition. Refused.
	ErrReplicaExists = raftlog.Refused(errors.New("metastore: the node holds a replica of the partition"))
	// ErrTooFewNodes: too few members live for the replicas that a topic is to
	// have. Retry.
	ErrTooFewNodes = raftlog.Retry(errors.New("metastore: too few nodes"))
)

// RemovedError refuses a node that was removed from the cluster, for good. It
// matches raftlog.ErrRefused.
type RemovedError struct {
	Node raftlog.NodeID
	Name string
}

func (e *RemovedError) Error() string {
	return fmt.Sprintf("metastore: node %v, %q, was removed from the cluster", e.Node, e.Name)
}

// Unwrap gives the outcome.
func (e *RemovedError) Unwrap() error { return raftlog.ErrRefused }

// UnsupportedError says that the node which was asked does not know a call, or
// not the form that it came in: it is of another release. Nothing happened. It
// matches raftlog.ErrRefused.
type UnsupportedError struct {
	Call  string // or stream
	Cause error  // what it does not know; may be nil
}

func (e *UnsupportedError) Error() string {
	if e.Cause == nil {
		return fmt.Sprintf("metastore: the call %q is not known to the build of the node that was asked", e.Call)
	}
	return fmt.Sprintf("metastore: the call %q came in a form that is not known to the build of the node that was asked: %v", e.Call, e.Cause)
}

// Unwrap gives the outcome.
func (e *UnsupportedError) Unwrap() error { return raftlog.ErrRefused }

// ClusterVersionError refuses a change until the cluster's version is raised,
// which needs a build on every member that can apply it. It matches
// raftlog.ErrRetry.
type ClusterVersionError struct {
	Needs, Has uint64
	// Behind names the members that have not said that they can, as far as it is
	// known where the error comes from.
	Behind []string
}

func (e *ClusterVersionError) Error() string {
	behind := "not every member has said that its build can, which takes some seconds after they start"
	switch n := len(e.Behind); {
	case n == 1:
		behind = e.Behind[0] + " has not said that its build can"
	case n > 1:
		behind = strings.Join(e.Behind, ", ") + " have not said that their builds can"
	}
	return fmt.Sprintf("metastore: the cluster is at version %d, this needs %d: %s", e.Has, e.Needs, behind)
}

// Unwrap gives the outcome.
func (e *ClusterVersionError) Unwrap() error { return raftlog.ErrRetry }

// OlderReleaseError refuses a node whose build cannot apply what the cluster
// uses. It matches raftlog.ErrRefused.
type OlderReleaseError struct {
	Newest CommandType // that the node applies
	Needs  CommandType
}

func (e *OlderReleaseError) Error() string {
	return fmt.Sprintf("metastore: the node's build is too old: it applies commands up to %d, the cluster uses up to %d", e.Newest, e.Needs)
}

// Unwrap gives the outcome.
func (e *OlderReleaseError) Unwrap() error { return raftlog.ErrRefused }

// StateDivergedError stops a replica whose state is damaged. It matches
// ErrStateDiverged and raftlog.ErrRefused.
type StateDivergedError struct {
	Index       raftlog.Index       // at which the states were compared
	Own, Agreed [32]byte            // hashes of the state
	Who         []raftlog.ReplicaID // have the agreed one; none: it was found by an earlier process
}

func (e *StateDivergedError) Error() string {
	return fmt.Sprintf("%v (at index %d: hash %x here, %x of %v)", ErrStateDiverged, e.Index, e.Own[:6], e.Agreed[:6], e.Who)
}

// Unwrap gives ErrStateDiverged.
func (e *StateDivergedError) Unwrap() error { return ErrStateDiverged }

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
