package membership

import (
	"fmt"
	"time"

	"github.com/stelelog/stele/raftlog"
)

// Rules are the numbers of the decisions. The zero value of a field means its
// default. All durations are of the deciding leader's own monotonic clock.
type Rules struct {
	// DeadAfter is how long a member is silent before it is marked dead, and how
	// long a leader leads before it marks anybody. Default 30 s, 1 s to 1 h.
	DeadAfter time.Duration
	// ReplaceAfter is how long a life of a name is silent, in one leadership,
	// before a new life of that name takes its place. Default 30 s, 1 s to 1 h.
	ReplaceAfter time.Duration
	// PromoteAfter is how long a leader leads before it promotes anybody.
	// Default 12 s; above CallTimeout, to 10 min. See Promote.
	PromoteAfter time.Duration
	// CallTimeout is after how long a call counts as failed. Default 10 s, 100 ms
	// to 5 min.
	CallTimeout time.Duration
	// FailureMemory is how long a failed call to a learner defers its promotion.
	// Default 12 s, 1 s to 10 min.
	FailureMemory time.Duration
	// CaughtUpWithin: a learner is caught up if, this long ago at most, it had all
	// that the leader then had. Default 5 s, 100 ms to 1 min.
	CaughtUpWithin time.Duration
	// MaxVoters is how many members vote at most; the others stand by. Default 5,
	// 1 to 9.
	MaxVoters int
	// MinVoters is how many voters a decommission leaves at least, unless it is
	// forced. Default 3, 1 to 9.
	MinVoters int
	// VotePasses is how long a dead voter is silent in raft before a standby takes
	// its vote. Default 10 min, 10 s to 24 h.
	VotePasses time.Duration
}

// ConfigError names a field that is out of range. It is Refused.
type ConfigError struct {
	Field   string
	Value   any
	Allowed string
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("membership: %s = %v: want %s", e.Field, e.Value, e.Allowed)
}

// Unwrap makes the error match raftlog.ErrRefused.
func (e *ConfigError) Unwrap() error { return raftlog.ErrRefused }

// WithDefaults fills in what is zero.
func (r Rules) WithDefaults() Rules {
	for _, d := range []struct {
		v *time.Duration
		d time.Duration
	}{
		{&r.DeadAfter, 30 * time.Second}, {&r.ReplaceAfter, 30 * time.Second},
		{&r.PromoteAfter, 12 * time.Second}, {&r.CallTimeout, 10 * time.Second},
		{&r.FailureMemory, 12 * time.Second}, {&r.CaughtUpWithin, 5 * time.Second},
		{&r.VotePasses, 10 * time.Minute},
	} {
		if *d.v == 0 {
			*d.v = d.d
		}
	}
	if r.MaxVoters == 0 {
		r.MaxVoters = 5
	}
	if r.MinVoters == 0 {
		r.MinVoters = 3
	}
	return r
}

// Validate returns a *ConfigError for the first field that is out of range.
//
// PromoteAfter must exceed CallTimeout: a leader has called every learner since
// it leads, and only after that time does it know whose call failed.
func (r Rules) Validate() error {
	within := func(field string, d, low, high time.Duration) error {
		if d < low || d > high {
			return &ConfigError{"Rules." + field, d, fmt.Sprintf("%v to %v", low, high)}
		}
		return nil
	}
	count := func(field string, n int) error {
		if n < 1 || n > 9 {
			return &ConfigError{"Rules." + field, n, "1 to 9"}
		}
		return nil
	}
	for _, err := range []error{
		within("CallTimeout", r.CallTimeout, 100*time.Millisecond, 5*time.Minute),
		within("PromoteAfter", r.PromoteAfter, r.CallTimeout+1, 10*time.Minute),
		within("DeadAfter", r.DeadAfter, time.Second, time.Hour),
		within("ReplaceAfter", r.ReplaceAfter, time.Second, time.Hour),
		within("FailureMemory", r.FailureMemory, time.Second, 10*time.Minute),
		within("CaughtUpWithin", r.CaughtUpWithin, 100*time.Millisecond, time.Minute),
		within("VotePasses", r.VotePasses, 10*time.Second, 24*time.Hour),
		count("MaxVoters", r.MaxVoters), count("MinVoters", r.MinVoters),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}
