package topic

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// begin returns why a call is not to begin, nil if it may: the manager was
// closed or the caller's context has ended or is nil, and nothing happened.
func (m *Manager) begin(ctx context.Context) error {
	switch {
	case ctx == nil:
		return ErrNoContext
	case m.life.Err() != nil:
		return raftlog.Retry(ErrClosed)
	case ctx.Err() != nil:
		return raftlog.Retry(ctx.Err())
	}
	return nil
}

// whileOpen is a context that also ends when the manager is closed. The error is
// that of begin.
func (m *Manager) whileOpen(ctx context.Context) (context.Context, context.CancelFunc, error) {
	if err := m.begin(ctx); err != nil {
		return ctx, func() {}, err
	}
	ctx, cancel := until(ctx, m.life)
	return ctx, cancel, nil
}

// until is a context that also ends, with the cause ErrClosed, when life does.
func until(ctx, life context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(life, func() { cancel(ErrClosed) })
	return ctx, func() { stop(); cancel(nil) }
}

// endOf makes ErrClosed of the error that a context of until brought when its
// life ended: the caller's context has not.
func endOf(ctx context.Context, err error) error {
	switch {
	case !errors.Is(err, context.Canceled) || !errors.Is(context.Cause(ctx), ErrClosed):
		return err
	case raftlog.OutcomeOf(err) == raftlog.OutcomeUnknown:
		return raftlog.Unknown(ErrClosed)
	}
	return raftlog.Retry(ErrClosed)
}

// explain says of the error of a call what that was about; nil stays nil. See
// endOf.
func explain(ctx context.Context, err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return &callError{fmt.Sprintf(format, args...), endOf(ctx, err)}
}

// barrier is metastore.Store.Barrier, and says so where it waited in vain for a
// leader.
func (m *Manager) barrier(ctx context.Context) error {
	return m.readOf(ctx, m.cfg.Meta.Barrier(ctx))
}

// find is metastore.Store.FindTopic, and tells a name that no topic can have,
// like the creation does, from one that none has.
func (m *Manager) find(ctx context.Context, name string) (metastore.Topic, error) {
	if storage.ValidateName(name) != nil {
		return metastore.Topic{}, &metastore.InvalidError{Field: "Topic.Name", Value: fmt.Sprintf("%.80q", name), Allowed: allowedName}
	}
	t, err := m.cfg.Meta.FindTopic(ctx, name)
	return t, m.readOf(ctx, err)
}

const allowedName = "1 to 179 of A-Z a-z 0-9 . _ -, and neither . nor .."

// readOf says of the error of a linearizable read that there was no leader.
func (m *Manager) readOf(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || raftlog.OutcomeOf(err) != raftlog.OutcomeRetry || errors.Is(err, raftlog.ErrClosed) {
		return err
	}
	if leader, _ := m.cfg.Meta.Leader(); leader == 0 {
		return fmt.Errorf("%w: %s", metastore.ErrUnavailable, noMetaLeader)
	}
	return err
}

// callError says what a call was about that ended with err, and matches what
// that does.
type callError struct {
	what string
	err  error
}

func (e *callError) Error() string { return "topic: " + e.what + ": " + textOf(e.err) }

func (e *callError) Unwrap() error { return e.err }

// because adds to the end of a call that waited why it did, as text alone.
func because(end, last error) error {
	if last == nil {
		return end
	}
	return fmt.Errorf("%w (%s)", end, textOf(last))
}

const noMetaLeader = "the metadata group has no leader"

// textOf is an error's text inside another one of this package. It calls the
// metadata's group by its name, which a user knows, and not by its number.
func textOf(err error) string {
	text := err.Error()
	var notLeader *raftlog.NotLeaderError
	if errors.As(err, &notLeader) && notLeader.Group == raftlog.MetadataGroup {
		says := noMetaLeader
		if notLeader.Node != 0 {
			says = fmt.Sprintf("the leader of the metadata group is %v", notLeader.Node)
		}
		text = strings.ReplaceAll(text, notLeader.Error(), says)
	}
	text = strings.ReplaceAll(text, "\n", "; ") // of joined errors
	return strings.TrimPrefix(text, "topic: ")
}
