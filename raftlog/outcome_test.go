package raftlog_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/raftlog"
)

// Property: P9 (red: Unwrap giving the inner error as it is)
func TestTheOutermostOutcomeReplacesAllOthers(t *testing.T) {
	makers := map[raftlog.Outcome]func(error) error{
		raftlog.OutcomeUnknown: raftlog.Unknown, raftlog.OutcomeRetry: raftlog.Retry, raftlog.OutcomeRefused: raftlog.Refused,
	}
	sentinels := map[raftlog.Outcome]error{
		raftlog.OutcomeUnknown: raftlog.ErrOutcomeUnknown, raftlog.OutcomeRetry: raftlog.ErrRetry, raftlog.OutcomeRefused: raftlog.ErrRefused,
	}
	cause := &raftlog.GroupFailedError{Group: 7, Cause: io.ErrShortWrite}
	for inner, makeInner := range makers {
		for outer, makeOuter := range makers {
			for shape, wrap := range map[string]func(error) error{
				"bare":   func(err error) error { return err },
				"in one": func(err error) error { return fmt.Errorf("call: %w", err) },
				"joined": func(err error) error { return errors.Join(context.Canceled, raftlog.Unknown(io.EOF), err) },
				"twice":  func(err error) error { return raftlog.Retry(fmt.Errorf("call: %w", err)) },
				"is one": func(err error) error { return fmt.Errorf("%w: %w", raftlog.ErrRefused, err) },
			} {
				err := fmt.Errorf("outside: %w", makeOuter(wrap(makeInner(cause))))
				what := fmt.Sprintf("%v in %v, %s", inner, outer, shape)
				require.Equal(t, outer, raftlog.OutcomeOf(err), what)
				for o, sentinel := range sentinels {
					require.Equal(t, o == outer, errors.Is(err, sentinel), "%s: is %v", what, o)
				}
				require.ErrorIs(t, err, cause, what)
				require.ErrorIs(t, err, io.ErrShortWrite, what)
				require.NotErrorIs(t, err, io.ErrNoProgress, what)
				var failed *raftlog.GroupFailedError
				require.ErrorAs(t, err, &failed, what)
				require.Same(t, cause, failed)
				require.ErrorContains(t, err, "short write", what)
			}
		}
	}
}
