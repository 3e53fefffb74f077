package raftlog

import (
	"context"
	"errors"
)

// Outcome says what an error means for the operation that returned it.
type Outcome uint8

const (
	// OutcomeUnknown: the operation may have happened, or may still happen.
	// Errors that nothing is known of count as unknown.
	OutcomeUnknown Outcome = iota
	// OutcomeRetry: nothing happened; the same call may succeed later or elsewhere.
	OutcomeRetry
	// OutcomeRefused: nothing happened, and the same call never will.
	OutcomeRefused
)

func (o Outcome) String() string {
	switch o {
	case OutcomeRetry:
		return "retry"
	case OutcomeRefused:
		return "refused"
	default:
		return "unknown"
	}
}

// The three outcomes as errors: every error that a caller can see matches
// exactly one of them with errors.Is (property P9). One that Retry, Refused or
// Unknown made matches the outermost, whatever it wraps; one that joins others
// must be given its outcome by them.
var (
	ErrOutcomeUnknown = errors.New("outcome unknown: it may have happened")
	ErrRetry          = errors.New("nothing happened: retry")
	ErrRefused        = errors.New("refused")
)

// OutcomeOf classifies an error. A nil error has no outcome; ask only about errors.
func OutcomeOf(err error) Outcome {
	switch {
	case errors.Is(err, ErrOutcomeUnknown):
		return OutcomeUnknown
	case errors.Is(err, ErrRetry):
		return OutcomeRetry
	case errors.Is(err, ErrRefused):
		return OutcomeRefused
	default:
		return OutcomeUnknown
	}
}

// Retry makes an error whose outcome is OutcomeRetry, whatever err's was.
func Retry(err error) error { return withOutcome(err, ErrRetry) }

// Refused makes an error whose outcome is OutcomeRefused, whatever err's was.
func Refused(err error) error { return withOutcome(err, ErrRefused) }

// Unknown makes an error whose outcome is OutcomeUnknown, whatever err's was.
func Unknown(err error) error { return withOutcome(err, ErrOutcomeUnknown) }

// UnknownCause makes the error of a call that ctx ended while it might have
// taken effect: it matches ErrOutcomeUnknown and ctx.Err().
func UnknownCause(ctx context.Context) error {
	err := ctx.Err()
	if cause := context.Cause(ctx); !errors.Is(cause, err) {
		err = errors.Join(err, cause)
	}
	return Unknown(err)
}

// outcomeError gives an error an outcome, keeps its text, and matches whatever
// it matches but its outcomes, however deep they are.
type outcomeError struct {
	error
	outcome error
}

func withOutcome(err, outcome error) error { return outcomeError{err, outcome} }

// Is matches the outcome. The two others end here: what is below is not asked
// for them.
func (e outcomeError) Is(target error) bool { return target == e.outcome }

// Unwrap gives the error, without its outcome.
func (e outcomeError) Unwrap() error { return hiddenOutcome{e.error} }

// hiddenOutcome matches what the error matches, but outcomes. It has no Unwrap,
// through which they would be found.
type hiddenOutcome struct{ error }

func (e hiddenOutcome) Is(target error) bool {
	switch target {
	case ErrOutcomeUnknown, ErrRetry, ErrRefused:
		return false
	}
	return errors.Is(e.error, target)
}

func (e hiddenOutcome) As(target any) bool { return errors.As(e.error, target) }
