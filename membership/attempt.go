package membership

import (
	"cmp"
	"fmt"
	"strings"
)

// Tried is an address that was asked for the leader, and what came of it.
type Tried struct {
	Addr   string
	Answer ReplyKind // 0: nothing that can be read; Err says why
	Names  string    // with ReplyNotLeader: where it says that the leader is; "": it does not know
	Err    error
}

func (t Tried) String() string {
	switch {
	case t.Err != nil && strings.HasPrefix(t.Err.Error(), t.Addr):
		return t.Err.Error()
	case t.Err != nil:
		return fmt.Sprintf("%s: %v", t.Addr, t.Err)
	case t.Answer == ReplyNotLeader && t.Names != "":
		return fmt.Sprintf("%s does not lead, and names %s", t.Addr, t.Names)
	case t.Answer == ReplyNotLeader:
		return t.Addr + " does not lead, and knows nobody who does"
	case t.Answer == ReplyUnconfigured:
		return t.Addr + " is in no cluster itself"
	}
	return fmt.Sprintf("%s answered %v", t.Addr, t.Answer)
}

// LeaderlessError is an attempt that met no leader, with all that was asked, in
// that order. It matches ErrNoLeader, and is Retry.
type LeaderlessError struct{ Tried []Tried }

func (e *LeaderlessError) Error() string {
	var all []string
	for _, t := range e.Tried {
		all = append(all, t.String())
	}
	return ErrNoLeader.Error() + ": " + cmp.Or(strings.Join(all, "; "), "there is nobody to ask")
}

// Unwrap makes the error match ErrNoLeader.
func (e *LeaderlessError) Unwrap() error { return ErrNoLeader }

// Taken is that a leader counts this node as a member.
type Taken struct {
	By     string // address of the leader
	Reason string // what is wrong with this node, as the leader sees it; "": nothing that it knows
}

// outcome is what the last attempt came to; one of both is set, or none.
type outcome struct {
	taken *Taken
	err   error
}

// Waiting is why the last attempt of Enter or Run did not end with this node in
// the cluster; nil: it did, there was none, or a leader was seen since. It may be
// called at any time.
func (j *Joiner) Waiting() error {
	if o := j.last.Load(); o != nil {
		return o.err
	}
	return nil
}

// Taken is what the last attempt of Run came to, if a leader took it, and no leader
// has been seen by this node's own replica since: then nothing that the leader sends
// has arrived. It may be called at any time.
func (j *Joiner) Taken() (Taken, bool) {
	if o := j.last.Load(); o != nil && o.taken != nil {
		return *o.taken, true
	}
	return Taken{}, false
}
