package membership

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// HandleCall answers a call of membership, of a member or of who wants to be
// one. It may be called before Run, and concurrently. It waits for the metadata
// only, never for the node that asks.
func (s *Steward) HandleCall(ctx context.Context, method string, req []byte) ([]byte, error) {
	var reply Reply
	var err error
	switch method {
	case MethodBacklog:
		return s.answerBacklog(ctx, req)
	case MethodOrder:
		return s.order(ctx, req)
	case MethodJoin:
		var j JoinRequest
		if j, err = DecodeJoinRequest(req); err == nil {
			reply, err = s.join(ctx, j)
			break
		}
		err = unreadable(method, err)
	case MethodPromote, MethodHeartbeat:
		var m MemberRequest
		if m, err = DecodeMemberRequest(req); err == nil {
			reply, err = s.serve(ctx, method, m)
			break
		}
		err = unreadable(method, err)
	default:
		err = &metastore.UnsupportedError{Call: method}
	}
	if err != nil {
		return nil, err
	}
	return reply.Encode(), nil
}

// answerBacklog says what this node has not answered. It counts only once it
// knows that it drains: before that the number may still grow. It must know all that
// the leader knew who asked: it may have been to stay for a while, and not know yet.
func (s *Steward) answerBacklog(ctx context.Context, req []byte) ([]byte, error) {
	q, err := DecodeBacklogRequest(req)
	if err != nil {
		return nil, unreadable(MethodBacklog, err)
	}
	a := BacklogAnswer{Node: s.cfg.Place.Node, Nonce: s.cfg.Nonce}
	if q.Draining && s.cfg.Meta.Barrier(ctx) == nil {
		a.Draining, a.Count = s.cfg.Backlog()
	}
	return a.Encode(), nil
}

// out answers a life that has a tombstone. Any node may: it is for ever.
func (s *Steward) out(nonce raftlog.Nonce, name string) (Reply, bool, error) {
	t, ok, err := s.cfg.Meta.Tombstone(nonce)
	if err != nil || !ok {
		return Reply{}, false, err
	}
	return Reply{Kind: ReplyRemoved, Reason: whyOut(&t, name)}, true, nil
}

// elsewhere names the leader, as far as this node knows. One that is no member any
// more is told of no leader, for ever: it names those that were members beside it,
// in turn, who know.
func (s *Steward) elsewhere() Reply {
	r := Reply{Kind: ReplyNotLeader}
	if r.Leader, _ = s.cfg.Meta.Leader(); r.Leader == s.cfg.Place.Node {
		r.Leader = 0 // it is about to lead, or to know that it does not
	}
	members := s.cfg.Meta.Members()
	if r.Leader == 0 && s.cfg.Out != nil && s.cfg.Out() {
		r.Addr = s.acquaintance(members)
		return r
	}
	for _, m := range members {
		if m.Node == r.Leader && r.Leader != 0 {
			r.Addr = s.addrOf(m)
		}
	}
	return r
}

// acquaintance is where another member is that this node knows, the next one each
// time; "" if it knows none.
func (s *Steward) acquaintance(members []metastore.Member) string {
	members = slices.DeleteFunc(slices.Clone(members), func(m metastore.Member) bool {
		return m.Node == s.cfg.Place.Node || m.Liveness.Draining()
	})
	if len(members) == 0 {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.named++
	return s.addrOf(members[s.mu.named%uint64(len(members))])
}

// addrOf is where a member is reached.
func (s *Steward) addrOf(m metastore.Member) string {
	if s.cfg.Addr != nil {
		if addr := s.cfg.Addr(m.Node); addr != "" {
			return addr
		}
	}
	return m.Addr
}

// accepted is the answer to a member.
func (s *Steward) accepted(m metastore.Member, status Status, reason string, all bool) Reply {
	r := Reply{
		Kind: ReplyAccepted, Status: status, Reason: reason,
		Node: m.Node, Replica: m.Replica, ClusterID: s.cfg.Place.ClusterID, Epoch: s.cfg.Place.Epoch,
		SegmentBytes: s.cfg.Place.SegmentBytes,
	}
	if all {
		for _, m := range s.cfg.Meta.Members() {
			r.Members = append(r.Members, Reached{Node: m.Node, Replica: m.Replica, Name: m.Name, Addr: m.Addr})
		}
	}
	return r
}

// join answers who wants to be a member.
func (s *Steward) join(ctx context.Context, r JoinRequest) (Reply, error) {
	if reply, is, err := s.out(r.Nonce, r.Name); is || err != nil {
		return reply, err
	}
	f := s.Facts()
	if !f.Leads {
		return s.elsewhere(), nil
	}
	var asked Asked
	if old := f.holder(r.Name); old != nil && old.Name == r.Name && old.Nonce != r.Nonce {
		if old.Pending {
			s.hurry()
			s.flush(ctx)
			if f = s.Facts(); !f.Leads || f.member(old.Node) == nil {
				return s.elsewhere(), nil
			}
		}
		old = f.member(old.Node)
		s.mu.Lock()
		if s.mu.tenure != nil && !old.Pending {
			asked = s.mu.tenure.ask(r, old, s.now())
		}
		s.mu.Unlock()
	}
	a := Admit(f, r, nil, asked)
	switch a.Verdict {
	case VerdictMember:
		return s.rejoin(ctx, r, a.Member)
	case VerdictAdmit, VerdictReplace, VerdictBurn:
		return s.admit(ctx, r, a)
	case VerdictOlder:
		if s.logStranger(r, "a node with an older build asks to join", a.Reason) {
			s.tell(Event{Kind: EventOlder, Name: r.Name, Reason: a.Reason})
		}
		return Reply{Kind: ReplyOlderRelease, Reason: a.Reason, Need: a.Need}, nil
	case VerdictOther:
		s.logStranger(r, "a node with other settings asks to join", a.Reason)
		return Reply{Kind: ReplyOtherSettings, Reason: a.Reason, SegmentBytes: f.SegmentBytes}, nil
	default: // it may be taken in when that changes
		return Reply{Kind: ReplyAccepted, Status: StatusDeferred, Reason: a.Reason}, nil
	}
}

// rejoin answers a member that joins again: it is what it was, at most elsewhere
// (J8). Asking is a sign of life.
func (s *Steward) rejoin(ctx context.Context, r JoinRequest, k *Known) (Reply, error) {
	s.hear(k.Member, r.Newest)
	if err := s.moved(ctx, k.Member, r.Addr); err != nil {
		return Reply{}, err
	}
	if k.Seat == SeatVoter {
		return s.accepted(k.Member, StatusVoter, "", true), nil
	}
	return s.accepted(k.Member, StatusStaged, s.cutOff(k), true), nil
}

// cutOff says that calls to a member fail, "" if they do not: it may be reached
// elsewhere than it says.
func (s *Steward) cutOff(k *Known) string {
	if k.Unreachable < 0 || k.Unreachable >= s.cfg.Rules.FailureMemory {
		return ""
	}
	return "a call to it at " + s.addrOf(k.Member) + " failed not long ago"
}

// moved records where a member is reached now.
func (s *Steward) moved(ctx context.Context, m metastore.Member, addr string) error {
	if addr == "" || addr == m.Addr {
		return nil
	}
	return s.cfg.Meta.SetAddress(ctx, m.Node, m.Nonce, addr)
}

// admit proposes a new member. That it is a learner soon is up to the next pass.
func (s *Steward) admit(ctx context.Context, r JoinRequest, a Admission) (Reply, error) {
	m, err := s.cfg.Meta.Admit(ctx, metastore.Admission{
		Name: r.Name, Nonce: r.Nonce, Addr: r.Addr, Newest: r.Newest, Observer: r.Observer, Replaces: a.Replaces, Seen: a.Seen,
	})
	var older *metastore.OlderReleaseError
	var removed *metastore.RemovedError
	var notLeader *raftlog.NotLeaderError
	switch {
	case err == nil:
		s.hear(m, r.Newest)
		s.wake()
		kind := EventAdmitted
		if a.Replaces != 0 {
			kind = EventReplaced
		}
		s.cfg.Logger.Info("a node joins", zap.String("name", m.Name), zap.Stringer("id", m.Node), zap.Stringer("replaces", a.Replaces))
		s.tell(Event{Kind: kind, Node: m.Node, Name: m.Name})
		return s.accepted(m, StatusStaged, "", true), nil
	case errors.Is(err, metastore.ErrNonceRefused):
		s.refused(r.Name, r.Nonce, a.Replaces)
		return Reply{Kind: ReplyRemoved, Reason: whyOut(&metastore.Tombstone{Refused: true}, r.Name)}, nil
	case errors.As(err, &removed):
		return Reply{Kind: ReplyRemoved, Reason: whyOut(&metastore.Tombstone{}, r.Name)}, nil
	case errors.As(err, &older):
		return Reply{Kind: ReplyOlderRelease, Need: older.Needs, Reason: older.Error()}, nil
	case errors.As(err, &notLeader):
		return s.elsewhere(), nil
	case errors.Is(err, metastore.ErrNameTaken):
		return Reply{Kind: ReplyAccepted, Status: StatusDeferred, Reason: "another life of this name is a member"}, nil
	}
	return Reply{}, err
}

// logStranger says at most once a minute of each joiner why it stays out, and returns
// whether it did.
func (s *Steward) logStranger(r JoinRequest, what, why string) bool {
	s.mu.Lock()
	last, known := s.mu.strangers[r.Nonce]
	now := s.now()
	quiet := known && now-last < time.Minute
	if !quiet {
		for n, at := range s.mu.strangers {
			if now-at >= time.Minute {
				delete(s.mu.strangers, n)
			}
		}
		s.mu.strangers[r.Nonce] = now
	}
	s.mu.Unlock()
	if !quiet {
		s.cfg.Logger.Warn(what, zap.String("name", r.Name), zap.String("addr", r.Addr), zap.String("why", why))
	}
	return !quiet
}

// serve answers a member.
func (s *Steward) serve(ctx context.Context, method string, r MemberRequest) (Reply, error) {
	if reply, is, err := s.out(r.Nonce, ""); is || err != nil {
		return reply, err
	}
	f := s.Facts()
	if !f.Leads {
		return s.elsewhere(), nil
	}
	k := f.member(r.Node)
	if k == nil || k.Nonce != r.Nonce {
		return Reply{}, raftlog.Refused(fmt.Errorf("membership: %v with nonce %v is no member", r.Node, r.Nonce))
	}
	s.hear(k.Member, r.Newest)
	if method == MethodPromote {
		s.mu.Lock()
		if s.mu.tenure != nil {
			s.mu.tenure.wants(k.Node, s.now())
		}
		s.mu.Unlock()
		return s.promote(ctx, k)
	}
	if err := s.moved(ctx, k.Member, r.Addr); err != nil {
		return Reply{}, err
	}
	status := StatusStaged
	if k.Seat == SeatVoter {
		status = StatusVoter
	}
	reply := s.accepted(k.Member, status, "", false)
	reply.Behind = Behind(f)
	return reply, nil
}

// promote answers a learner that asks for a vote.
func (s *Steward) promote(ctx context.Context, k *Known) (Reply, error) {
	p, err := s.changeSeat(ctx, k)
	var notLeader *raftlog.NotLeaderError
	switch {
	case errors.As(err, &notLeader):
		return s.elsewhere(), nil
	case err != nil:
		return Reply{}, err
	}
	return s.accepted(k.Member, p.Status, p.Reason, false), nil
}

// hear notes a sign of life. One that says something new is recorded soon.
func (s *Steward) hear(m metastore.Member, newest metastore.CommandType) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.mu.tenure
	if t == nil {
		return
	}
	news := m.Liveness.Dead || m.Liveness.Newest != newest || m.Liveness.Stamp == 0
	t.hear(m.Node, newest, s.now())
	if news && !s.mu.urgent {
		s.mu.urgent = true
		s.wake()
	}
}

// hurry has the next flush not wait.
func (s *Steward) hurry() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.urgent = true
}
