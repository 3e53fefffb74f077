package membership

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/stelelog/stele/raftlog"
)

// order carries out what a person wants, if this node leads.
func (s *Steward) order(ctx context.Context, req []byte) ([]byte, error) {
	o, err := DecodeOrder(req)
	if err != nil {
		return nil, unreadable(MethodOrder, err)
	}
	if o.ClusterID != s.cfg.Place.ClusterID || o.Epoch != s.cfg.Place.Epoch {
		return nil, raftlog.Refused(fmt.Errorf("membership: an order for another cluster, %v", o.ClusterID))
	}
	switch o.Kind {
	case OrderPromote:
		err = s.Promote(ctx, o.Node)
	case OrderForget:
		err = s.Forget(ctx, o.Replica)
	case OrderTransfer:
		err = s.Transfer(ctx, o.Node)
	}
	a, ok := o.answer(err)
	if a.Kind == OrderElsewhere {
		s.wake() // if it has just been elected it knows sooner
	}
	if !ok {
		return nil, err
	}
	return a.Encode(), nil
}

// Promote gives a learner a vote, if it may have one now. nil: it votes.
// *NoVoteError, *raftlog.NotLeaderError (Retry), and the errors of a change of the
// configuration.
func (s *Steward) Promote(ctx context.Context, node raftlog.NodeID) error {
	f := s.Facts()
	if !f.Leads {
		return s.notLeader()
	}
	k := f.member(node)
	if k == nil {
		return &NoVoteError{Node: node, Why: DeferredNoRecord, Reason: "it is no member"}
	}
	p, err := s.changeSeat(ctx, k)
	switch {
	case err != nil:
		return err
	case p.Status == StatusDeferred:
		return &NoVoteError{Node: node, Why: p.Why, Reason: p.Reason}
	}
	return nil
}

// changeSeat gives a learner a vote, or says why not.
func (s *Steward) changeSeat(ctx context.Context, k *Known) (p Promotion, err error) {
	err = s.changeSeats(ctx, func(f *Facts) *raftlog.Change {
		if p = Promote(f, k.Node, k.Nonce); p.Status == StatusPromoted {
			return &p.Change
		}
		return nil
	})
	switch {
	case errors.Is(err, errNothing):
		s.noteDeferred(k, p)
	case errors.Is(err, raftlog.ErrChangePending), errors.Is(err, raftlog.ErrNotActive):
		return Promotion{Status: StatusDeferred, Why: DeferredChanging, Reason: "another change of the configuration is under way"}, nil
	case err != nil:
		return p, err
	default:
		s.cfg.Logger.Info("a learner is a voter", zap.String("name", k.Name), zap.Stringer("id", k.Node))
		s.tell(Event{Kind: EventPromoted, Node: k.Node, Name: k.Name})
	}
	return p, nil
}

// noteDeferred tells why a learner gets no vote, when that is new.
func (s *Steward) noteDeferred(k *Known, p Promotion) {
	if p.Status != StatusDeferred {
		return
	}
	key := "vote of " + k.Node.String()
	s.mu.Lock()
	is := s.mu.told[key] != p.Why.String()
	s.mu.told[key] = p.Why.String()
	s.mu.Unlock()
	if is {
		s.cfg.Logger.Debug("a learner gets no vote", zap.String("name", k.Name), zap.Stringer("id", k.Node), zap.String("why", p.Reason))
		s.tell(Event{Kind: EventDeferred, Node: k.Node, Name: k.Name, Reason: p.Reason})
	}
}

// Forget takes a replica that is left over, of a node that is no member, out of
// the configuration of group 1. *ForgetError (Refused), *raftlog.NotLeaderError
// (Retry), and the errors of a change of the configuration.
func (s *Steward) Forget(ctx context.Context, replica raftlog.ReplicaID) error {
	if err := s.cfg.Meta.Barrier(ctx); err != nil {
		return err
	}
	assigned, err := s.cfg.Meta.Orphans() // what it may have; whose node it was nobody knows any more
	if err != nil {
		return err
	}
	var refused error
	err = s.changeSeats(ctx, func(f *Facts) *raftlog.Change {
		var c raftlog.Change
		if c, refused = Forget(f, replica, assigned); refused != nil {
			return nil
		}
		return &c
	})
	if refused != nil {
		return refused
	}
	if err == nil {
		s.cfg.Logger.Info("a replica that no member is was taken out of the metadata's group", zap.Stringer("replica", replica))
		s.tell(Event{Kind: EventForgotten, Reason: fmt.Sprintf("%v is out of the metadata's group", replica)})
	}
	return err
}

// Transfer hands the leadership of group 1 over to a voter. nil: it leads.
// *TransferError, *raftlog.NotLeaderError (Retry); Unknown if ctx ends.
func (s *Steward) Transfer(ctx context.Context, node raftlog.NodeID) error {
	f := s.Facts()
	if !f.Leads {
		return s.notLeader()
	}
	if node == s.cfg.Place.Node {
		return nil
	}
	if why := f.noLeader(node); why != "" {
		return &TransferError{Node: node, Reason: why}
	}
	err := s.cfg.Group.TransferLeadership(ctx, f.member(node).Replica)
	switch {
	case errors.Is(err, raftlog.ErrTransferFailed), errors.Is(err, raftlog.ErrNoTarget):
		return &TransferError{Node: node, Reason: "it did not take over in time, and the last leader leads on"}
	case err != nil:
		return err
	}
	for {
		leader, changed := s.cfg.Meta.Leader()
		switch leader {
		case node:
			return nil
		case 0, s.cfg.Place.Node: // it is being elected
		default:
			return &TransferError{Node: node, Reason: fmt.Sprintf("%v took over in its place", leader)}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return raftlog.UnknownCause(ctx)
		}
	}
}

// noLeader says why a member is not to lead group 1, "" if it may.
func (f *Facts) noLeader(node raftlog.NodeID) string {
	switch k := f.member(node); {
	case k == nil:
		return "it is no member"
	case k.Seat != SeatVoter:
		return "it has no vote"
	case k.Liveness.Draining():
		return "it is on its way out"
	case !f.alive(k):
		return "it is silent"
	}
	return ""
}
