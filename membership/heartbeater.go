package membership

import (
	"context"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/stelelog/stele/raftlog"
)

// HeartbeaterConfig is what a Heartbeater needs. All fields but the durations
// must be set.
type HeartbeaterConfig struct {
	ToLeader
	Says   MemberRequest // what this node says of itself
	Logger *zap.Logger

	Every   time.Duration // default 5 s
	Timeout time.Duration // of one call; default 10 s
}

// Heartbeater tells the leader that this node lives, what it applies and where
// it is reached.
type Heartbeater struct {
	cfg    HeartbeaterConfig
	behind atomic.Pointer[[]string] // as the leader said last
}

// NewHeartbeater prepares a heartbeater; nothing is sent before Run.
func NewHeartbeater(cfg HeartbeaterConfig) *Heartbeater {
	if cfg.Every == 0 {
		cfg.Every = 5 * time.Second
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 10 * time.Second
	}
	return &Heartbeater{cfg: cfg}
}

// Behind names the members that hold the cluster's version back, as the leader
// said last.
func (h *Heartbeater) Behind() []string {
	if names := h.behind.Load(); names != nil {
		return *names
	}
	return nil
}

// again is when a heartbeat is repeated that did not arrive.
const again = time.Second

// Run heartbeats every Every, and at once to a new leader, until ctx ends. It
// returns the cause of ctx, or a *RemovedError: this life is no member any more.
func (h *Heartbeater) Run(ctx context.Context) error {
	req := h.cfg.Says.Encode()
	for {
		leader, changed := h.cfg.Leader()
		wait := h.cfg.Every
		if leader != 0 {
			reply, err := h.cfg.ask(ctx, h.cfg.Timeout, MethodHeartbeat, req)
			switch {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case err != nil: // most likely it has just begun to lead
				h.cfg.Logger.Debug("heartbeat not delivered", zap.Error(err))
				wait = min(wait, again)
			case reply.Kind == ReplyRemoved:
				return &RemovedError{reply.Reason}
			case reply.Kind == ReplyAccepted:
				h.behind.Store(&reply.Behind)
			}
		}
		if err := h.pause(ctx, wait, leader, changed); err != nil {
			return err
		}
	}
}

// pause waits for the next heartbeat, or for another leader than before. Not every
// change is one of leader.
func (h *Heartbeater) pause(ctx context.Context, wait time.Duration, before raftlog.NodeID, changed <-chan struct{}) error {
	timer := h.cfg.Clock.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-timer.C():
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		}
		var leader raftlog.NodeID
		if leader, changed = h.cfg.Leader(); leader != 0 && leader != before {
			return nil
		}
	}
}
