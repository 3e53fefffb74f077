package stele

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"github.com/stelelog/stele/transport"
)

// unansweredError is why an address gave no answer to who wants to be part of a
// cluster, for the person who wrote that address down. It says what this side did
// and saw. A peer of another cluster says nothing, so which of several things is
// wrong it cannot know (J16).
type unansweredError struct {
	text string
	err  error
}

func (e *unansweredError) Error() string { return e.text }
func (e *unansweredError) Unwrap() error { return e.err }

// explained is the error of a call to an address, for a person.
func explained(ctx context.Context, cluster, addr string, err error) error {
	if err == nil {
		return nil
	}
	var refused *transport.HandshakeError
	var dial *net.OpError
	text := ""
	switch {
	case errors.As(err, &refused):
		text = addr + " " + misfit(cluster, refused)
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		text = fmt.Sprintf("%s answers, and hangs up: is it a node of cluster %q, and do both sides use TLS, or neither?", addr, cluster)
	case ctx.Err() != nil:
		text = addr + " gave no answer in time"
	case errors.As(err, &dial) && dial.Op == "dial":
		text = addr + " cannot be reached: " + dial.Error()
	default:
		return err
	}
	return &unansweredError{text, err}
}

// misfit says what is wrong with what answers at an address.
func misfit(cluster string, h *transport.HandshakeError) string {
	because := ""
	if h.Err != nil {
		because = ": " + h.Err.Error()
	}
	switch h.Reason {
	case transport.RefusedSilently, transport.RefusedCluster:
		return fmt.Sprintf("answers, but not as a member of cluster %q: check the cluster's name, the secret and the certificates, here and there%s", cluster, because)
	case transport.RefusedSecret:
		return "answers, but one side does not prove the secret of the cluster: it must be equal on all nodes" + because
	case transport.RefusedTLS:
		return "answers, but no TLS connection comes about: check the certificates, here and there" + because
	case transport.RefusedProtocol:
		return "answers, but not as a node does: is it the address of something else?" + because
	case transport.RefusedName:
		return "answers, but as another node than expected" + because
	}
	return fmt.Sprintf("answers, and turns this node away: %v%s", h.Reason, because)
}
