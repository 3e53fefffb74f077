package raftlog

import (
	"errors"
	"fmt"
)

var (
	// ErrClosed is the error of calls to a host or group that was closed. It
	// comes as Retry where nothing happened and as Unknown where a proposal
	// was already in the log.
	ErrClosed = errors.New("the node, or its replica of the group, was closed")
	// ErrOverloaded refuses a proposal because too many bytes of this group or
	// of this node wait to be committed and applied. It comes as Retry.
	ErrOverloaded = errors.New("raftlog: overloaded: too many bytes wait to be applied")
	// ErrLeadershipLost ends the proposals of a leader that stepped down; it
	// comes as Unknown, because the next leader may commit them or not.
	ErrLeadershipLost = errors.New("raftlog: leadership lost")
	// ErrReplaced ends a proposal whose place in the log another entry took:
	// it never will be committed. It comes as Retry.
	ErrReplaced = errors.New("raftlog: another entry was committed in its place")
	// ErrTransferFailed says that the chosen replica did not take over; this
	// one leads on. It comes as Retry.
	ErrTransferFailed = errors.New("raftlog: the hand-over failed, this replica leads on")
	// ErrUnknownReplica is returned by OpenGroup for a replica that the store
	// does not know and that is not to be created. It comes as Refused.
	ErrUnknownReplica = errors.New("raftlog: the store does not know this replica")
	// ErrReplicaOpen is returned by OpenGroup for a replica that is open, and
	// for a group of which another replica is open. It comes as Refused.
	ErrReplicaOpen = errors.New("raftlog: already open")
	// ErrSetAside is returned for a replica that was taken out of use. It
	// comes as Refused.
	ErrSetAside = errors.New("raftlog: the replica was set aside")
)

// NotLeaderError refuses what only the leader does. Nothing happened: it
// matches ErrRetry.
type NotLeaderError struct {
	Group  GroupID
	Leader ReplicaID // 0: none is known
	Node   NodeID    // where Leader is; 0: not known
}

func (e *NotLeaderError) Error() string {
	if e.Leader == 0 {
		return fmt.Sprintf("raftlog: %v has no known leader", e.Group)
	}
	return fmt.Sprintf("raftlog: the leader of %v is %v on %v", e.Group, e.Leader, e.Node)
}

// Unwrap gives the outcome.
func (e *NotLeaderError) Unwrap() error { return ErrRetry }

// TooLargeError refuses a proposal that no replica could write to its log. It
// comes as Refused.
type TooLargeError struct{ Size, Max int } // bytes

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("raftlog: a proposal of %d bytes, the most is %d", e.Size, e.Max)
}

// GroupFailedError is the error of a group that stopped on this node alone:
// raft or its state machine panicked or returned an error, or its log could
// not be written. Other groups go on. It comes as Retry (another replica may
// serve) or, for proposals in the log, as Unknown.
type GroupFailedError struct {
	Group   GroupID
	Replica ReplicaID
	Cause   error
}

func (e *GroupFailedError) Error() string {
	return fmt.Sprintf("raftlog: %v of %v failed: %v", e.Replica, e.Group, e.Cause)
}

func (e *GroupFailedError) Unwrap() error { return e.Cause }

// HostFailedError is the error of everything on a node whose journal or
// checkpoint table could not be written: nothing is acknowledged any more, and
// only a new process, over what the disk really holds, can go on. It comes as
// Retry or, for proposals in a log, as Unknown.
type HostFailedError struct{ Cause error }

func (e *HostFailedError) Error() string {
	return fmt.Sprintf("raftlog: the node stopped: %v", e.Cause)
}

func (e *HostFailedError) Unwrap() error { return e.Cause }

// ConfigError names a field of a Config that is out of range.
type ConfigError struct {
	Field string
	Value any
	Want  string
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("raftlog: Config.%s is %v: want %s", e.Field, e.Value, e.Want)
}
