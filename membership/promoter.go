package membership

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/stelelog/stele/raftlog"
)

// PromoterConfig is what a Promoter needs. All fields but the durations must be
// set.
type PromoterConfig struct {
	ToLeader
	Says    MemberRequest // what this node says of itself
	Replica raftlog.ReplicaID
	// Conf is the configuration of group 1, as of what this node has applied.
	Conf   func() raftlog.ConfState
	Logger *zap.Logger

	Every   time.Duration // default 2 s
	Timeout time.Duration // of one call; default 10 s
}

// Promoter asks for a vote while this node is a learner. An observer has none.
type Promoter struct {
	cfg  PromoterConfig
	told reasons
}

// NewPromoter prepares a promoter; nobody is asked before Run.
func NewPromoter(cfg PromoterConfig) *Promoter {
	if cfg.Every == 0 {
		cfg.Every = 2 * time.Second
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 10 * time.Second
	}
	return &Promoter{cfg: cfg}
}

// Run asks every Every, as long as this node is a learner, until ctx ends: a
// voter that is demoted asks again, and so does a learner that was restarted. It
// returns the cause of ctx, or a *RemovedError.
func (p *Promoter) Run(ctx context.Context) error {
	req := p.cfg.Says.Encode()
	for {
		if SeatOf(p.cfg.Conf(), p.cfg.Replica) == SeatLearner {
			reply, err := p.cfg.ask(ctx, p.cfg.Timeout, MethodPromote, req)
			switch {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case err != nil:
				p.cfg.Logger.Debug("no answer to a request for a vote", zap.Error(err))
			case reply.Kind == ReplyRemoved:
				return &RemovedError{reply.Reason}
			case reply.Kind == ReplyAccepted:
				p.report(reply)
			}
		}
		if err := rest(ctx, p.cfg.Clock, p.cfg.Every, nil); err != nil {
			return err
		}
	}
}

// report logs an answer, at info if it is another one than the last.
func (p *Promoter) report(r Reply) {
	log := p.cfg.Logger.Debug
	if p.told.isNew(r.Status.String() + r.Reason) {
		log = p.cfg.Logger.Info
	}
	switch r.Status {
	case StatusDeferred:
		log("not a voter yet", zap.String("reason", r.Reason))
	case StatusPromoted, StatusVoter:
		log("this node is a voter")
	}
}
