package transport

import (
	"errors"
	"fmt"
	"time"
)

// DefaultCallTimeout bounds a Call whose context has no deadline.
const DefaultCallTimeout = 10 * time.Second

var (
	// ErrUnreachable: the request was not delivered and will not be. Retrying
	// is safe.
	ErrUnreachable = errors.New("transport: peer unreachable")
	// ErrInterrupted: the request may or may not have been executed.
	ErrInterrupted = errors.New("transport: interrupted")
	// ErrClosed: this transport was closed. It always comes together with
	// ErrUnreachable or ErrInterrupted, except from Start.
	ErrClosed = errors.New("transport: closed")
)

// RemoteError is an error that the peer's handler returned.
type RemoteError struct {
	// Code is the ErrorCode() of the handler's error, "" if it had none.
	Code string
	// Message is the text of the handler's error.
	Message string
}

func (e *RemoteError) Error() string {
	if e.Code == "" {
		return e.Message
	}
	return e.Message + " (" + e.Code + ")"
}

// RemoteErrorOf is what the caller of a Call is told of a handler's error: its
// text, and the code of the first in its chain that has one. One that the
// handler had from another node is passed on as it is. nil is nil.
func RemoteErrorOf(err error) *RemoteError {
	if err == nil {
		return nil
	}
	told := &RemoteError{Message: err.Error()}
	var remote *RemoteError
	if errors.As(err, &remote) {
		told.Message = remote.Message // do not write the code into the text
	}
	var coded interface{ ErrorCode() string }
	if errors.As(err, &coded) {
		told.Code = coded.ErrorCode()
	}
	return told
}

// ErrorCode keeps the code when a handler passes the error of another peer on.
func (e *RemoteError) ErrorCode() string { return e.Code }

// TooLargeError is a request over the limit; it was not sent. It matches
// ErrUnreachable.
type TooLargeError struct {
	// Size and Max are bytes.
	Size, Max int
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("transport: %d bytes are over the limit of %d", e.Size, e.Max)
}

// Unwrap makes it match ErrUnreachable: certainly not executed.
func (e *TooLargeError) Unwrap() error { return ErrUnreachable }

// Refusal says why a handshake failed.
type Refusal uint8

const (
	// RefusedSilently: the peer tells no reason; most likely it belongs to
	// another cluster name. Its own log says more.
	RefusedSilently Refusal = iota + 1
	// RefusedVersion: no protocol version is spoken by both.
	RefusedVersion
	// RefusedClusterID: same cluster name, another cluster id.
	RefusedClusterID
	// RefusedCluster: the peer answered with another cluster name.
	RefusedCluster
	// RefusedProtocol: what answered does not speak this protocol.
	RefusedProtocol
	// RefusedTLS: the TLS handshake failed.
	RefusedTLS
	// RefusedSecret: one side did not prove the join secret, or the other has
	// none. Nodes of another cluster name cannot prove it either.
	RefusedSecret
	// RefusedName: the peer is not the node that its certificate names, or that
	// should be at its address.
	RefusedName
	// RefusedClone: another process with the same node id is connected, or is
	// the one that was asked. After a restart the next attempt passes; at a new
	// address one within TCPConfig's PeerTimeout.
	RefusedClone
)

// String returns a short phrase.
func (r Refusal) String() string {
	switch r {
	case RefusedSilently:
		return "refused without a reason (another cluster name, or not trusted?)"
	case RefusedVersion:
		return "no common protocol version"
	case RefusedClusterID:
		return "another cluster id"
	case RefusedCluster:
		return "another cluster name"
	case RefusedProtocol:
		return "not this protocol"
	case RefusedTLS:
		return "TLS handshake failed"
	case RefusedSecret:
		return "the join secret is not proven"
	case RefusedName:
		return "another node than expected"
	case RefusedClone:
		return "another process has the same node id"
	}
	return fmt.Sprintf("refusal(%d)", uint8(r))
}

// HandshakeError is a peer that was reached and did not fit. It matches
// ErrUnreachable: certainly nothing was executed.
type HandshakeError struct {
	// Addr is the peer's address.
	Addr   string
	Reason Refusal
	// Err is the cause, nil if Reason says all.
	Err error
}

func (e *HandshakeError) Error() string {
	s := "transport: handshake with " + e.Addr + ": " + e.Reason.String()
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap makes it match ErrUnreachable and its cause.
func (e *HandshakeError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrUnreachable}
	}
	return []error{ErrUnreachable, e.Err}
}

// callError says what happened to a request to a peer: kind is ErrUnreachable
// or ErrInterrupted, cause may be nil.
func callError(kind error, to, method string, cause error) error {
	switch {
	case cause == nil:
		return fmt.Errorf("call %s of %s: %w", method, to, kind)
	case errors.Is(cause, kind):
		return fmt.Errorf("call %s of %s: %w", method, to, cause)
	}
	return fmt.Errorf("call %s of %s: %w: %w", method, to, kind, cause)
}
