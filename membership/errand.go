package membership

import (
	"context"
	"fmt"
	"time"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/raftlog"
)

// NodeCaller asks a node by its id. A call ends with ctx; errors carry an
// outcome.
type NodeCaller interface {
	Call(ctx context.Context, to raftlog.NodeID, method string, req []byte) ([]byte, error)
}

// ToLeader is how a member speaks to the leader. All fields must be set.
type ToLeader struct {
	Self raftlog.NodeID
	// Leader is the leader as this node's own replica sees it, and a channel that
	// is closed when that may have changed.
	Leader func() (raftlog.NodeID, <-chan struct{})
	// Here answers if this node leads: Steward.HandleCall.
	Here   func(ctx context.Context, method string, req []byte) ([]byte, error)
	Caller NodeCaller
	Clock  clock.Clock
}

// ask asks the leader, and whom it names if it leads no more, at most four.
func (l *ToLeader) ask(ctx context.Context, timeout time.Duration, method string, req []byte) (Reply, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer l.Clock.AfterFunc(timeout, cancel).Stop()
	to, _ := l.Leader()
	for range 1 + maxHints {
		if to == 0 {
			break
		}
		b, err := l.askOne(ctx, to, method, req)
		if err != nil {
			return Reply{}, fmt.Errorf("membership: ask %v: %w", to, err)
		}
		reply, err := DecodeReply(b)
		if err != nil || reply.Kind != ReplyNotLeader || reply.Leader == to {
			return reply, err
		}
		to = reply.Leader
	}
	return Reply{}, ErrNoLeader
}

func (l *ToLeader) askOne(ctx context.Context, to raftlog.NodeID, method string, req []byte) ([]byte, error) {
	if to == l.Self {
		return l.Here(ctx, method, req)
	}
	return l.Caller.Call(ctx, to, method, req)
}

// rest waits for d, or until woken is closed. It returns the cause of ctx if that
// ends first.
func rest(ctx context.Context, c clock.Clock, d time.Duration, woken <-chan struct{}) error {
	timer := c.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-woken:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}
