package metastore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/stelelog/stele/raftlog"
)

// CreateTopic creates a topic, through whatever node leads, and returns it. When
// it returns nil, a quorum holds the change durably, and this node has applied
// it (unless it is cut off from the leader; see Session).
//
// ErrTopicExists, ErrTopicDeleting (Retry: the name will be free), *InvalidError.
// After an Unknown outcome ask again with the same Incarnation: it is created
// once.
func (s *Store) CreateTopic(ctx context.Context, spec TopicSpec) (Topic, error) {
	c := createTopic{spec.Incarnation, spec.Name, spec.Config}
	if c.Incarnation.IsZero() {
		var err error
		if c.Incarnation, err = s.randomIncarnation(); err != nil {
			return Topic{}, err
		}
	}
	v, err := s.propose(ctx, c)
	if err != nil {
		return Topic{}, err
	}
	t, ok := v.(*Topic)
	if !ok {
		return Topic{}, errNoValue
	}
	return *t, nil
}

// SetTopicDeleting begins the end of a topic; nothing can stop it. Of a topic
// that is being deleted or was deleted it says nil. ErrTopicNotFound.
func (s *Store) SetTopicDeleting(ctx context.Context, i raftlog.Incarnation) error {
	_, err := s.propose(ctx, topicDeleting{i})
	return err
}

// SetTopicDeleted ends a topic that is being deleted, and frees its name. The
// caller has sealed all partitions. Of a topic that was deleted it says nil.
// ErrTopicNotFound; *InvalidError for a topic that is active.
func (s *Store) SetTopicDeleted(ctx context.Context, i raftlog.Incarnation) error {
	_, err := s.propose(ctx, topicDeleted{i})
	return err
}

// ProducerRequest asks for what a producer writes with.
type ProducerRequest struct {
	Name string // of the producer; "" is none, and the rest is of no meaning then
	// Token is drawn at random by each producer that takes a name, once. It tells
	// the holder of a name from all that held it before.
	Token [16]byte
	// Held is the newest epoch that this producer got, if Holds; if not, it takes
	// the name over from whoever has it.
	Held  uint32
	Holds bool
}

// AllocateProducer returns a producer id and an epoch: of a name, the id that
// it always has and the epoch after the last one that was given out; without a
// name, a new id with epoch 0. After any error but a refusal the same request
// may be made again, and is granted once.
//
// *ProducerFencedError for an epoch that follows one which another producer of
// the name took over; *InvalidError.
func (s *Store) AllocateProducer(ctx context.Context, r ProducerRequest) (ProducerID, uint32, error) {
	if r.Name == "" {
		r = ProducerRequest{}
	}
	v, err := s.propose(ctx, allocateProducer(r))
	if err != nil {
		return 0, 0, err
	}
	p, ok := v.(producer)
	if !ok {
		return 0, 0, errNoValue
	}
	return p.ID, p.Epoch, nil
}

// SetAddress changes where a member is reached. ErrMemberNotFound if no member
// has this node id and nonce.
func (s *Store) SetAddress(ctx context.Context, node raftlog.NodeID, nonce raftlog.Nonce, addr string) error {
	_, err := s.propose(ctx, setAddress{node, nonce, addr})
	return err
}

// SetSetting changes a cluster-wide setting; an empty value removes it.
func (s *Store) SetSetting(ctx context.Context, key, value string) error {
	_, err := s.propose(ctx, setSetting{key, value})
	return err
}

// Touch commits a command that changes nothing: it returns nil when the
// metadata can be written.
func (s *Store) Touch(ctx context.Context) error {
	_, err := s.propose(ctx, noop{})
	return err
}

// errNoValue: the peer answered with another kind of result than asked for.
var errNoValue = raftlog.Unknown(errors.New("metastore: the leader's answer lacks the result"))

// proposePause is the wait between two attempts; a change of leader ends it.
const proposePause = 100 * time.Millisecond

// propose makes a change through the leader, here or elsewhere, and returns the
// command's result.
//
// Attempts that did nothing are repeated until ctx or the ProposeTimeout ends.
// One whose outcome is unknown is repeated only if the command may be applied
// twice; from then on the change may have been made or may still be, and a
// later "nothing happened" or "refused" does not take that back.
func (s *Store) propose(ctx context.Context, c command) (any, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if s.Failed() != nil {
		return nil, s.unavailable()
	}
	if err := s.allowed(c); err != nil {
		return nil, err
	}
	data := encodeCommand(c)
	bounded, cancel := withTimeout(ctx, s.config.Clock, s.config.ProposeTimeout)
	defer cancel()
	var maybe error // of an attempt whose outcome is unknown
	var hint raftlog.NodeID
	for {
		changed := s.leaderChange()
		a := s.attempt(bounded, data, hint, mayRepeat(c))
		s.noteSession(bounded, a)
		if a.err == nil {
			return a.value, nil
		}
		switch raftlog.OutcomeOf(a.err) {
		case raftlog.OutcomeRefused:
			return nil, unlessUnknown(maybe, a.err)
		case raftlog.OutcomeUnknown:
			if maybe = a.err; !mayRepeat(c) {
				return nil, s.ended(ctx, a.err)
			}
		case raftlog.OutcomeRetry:
			if a.index > 0 { // the state machine's answer, which will not change soon
				return nil, unlessUnknown(maybe, a.err)
			}
		}
		hint = a.leader
		if err := s.pause(bounded, changed); err != nil {
			return nil, s.ended(ctx, unlessUnknown(maybe, a.err))
		}
	}
}

// mayRepeat reports whether applying the command a second time, however late,
// harms nobody. A late second copy of the others could undo what somebody
// changed since.
func mayRepeat(c command) bool {
	switch c.kind() {
	case typeSetAddress, typeSetSetting, typeSetDeparture:
		return false
	}
	return true
}

// unlessUnknown returns err, or that the outcome is unknown if an earlier
// attempt may have had effect.
func unlessUnknown(maybe, err error) error {
	if maybe == nil || raftlog.OutcomeOf(err) == raftlog.OutcomeUnknown {
		return err
	}
	return raftlog.Unknown(fmt.Errorf("%v; an earlier attempt may have had effect: %v", err, maybe))
}

// ended is what a caller gets whose attempts ended with err. If it ended them
// itself, that is what it is told, and what came of them it is not.
func (s *Store) ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return raftlog.UnknownCause(ctx)
	}
	return err
}

// pause waits before the next attempt.
func (s *Store) pause(ctx context.Context, leaderChanged <-chan struct{}) error {
	timer := s.config.Clock.NewTimer(proposePause)
	defer timer.Stop()
	select {
	case <-leaderChanged:
	case <-timer.C():
	case <-ctx.Done():
	case <-s.life.Done():
	case <-s.failed:
	}
	return errors.Join(ctx.Err(), s.life.Err(), s.Failed())
}

// noteSession remembers the index of a change of this store, and waits until
// this node has applied it, so that a caller finds here what it did. A replica
// that is cut off does not hold up an answer that is known.
func (s *Store) noteSession(ctx context.Context, a answer) {
	if a.index == 0 {
		return
	}
	s.mu.Lock()
	s.mu.last = max(s.mu.last, a.index)
	s.mu.Unlock()
	ctx, cancel := withTimeout(ctx, s.config.Clock, s.config.BarrierTimeout)
	defer cancel()
	_ = s.waitApplied(ctx, a.index)
}

// attempt proposes once, here if this node leads, else at the leader, or at the
// node that the last attempt was pointed to. One that may be repeated waits for
// that node no longer than is of use. Any other waits for all that it has: to
// end it sooner would only make sooner that nobody knows what came of it.
func (s *Store) attempt(ctx context.Context, data []byte, hint raftlog.NodeID, mayRepeat bool) answer {
	st := s.group.Status()
	if st.Role.IsLeader() {
		return s.proposeHere(ctx, data)
	}
	node := hint
	if st.Leader != 0 {
		s.machine.read(func(c *catalog) { node = c.nodeOf(st.Leader) })
	}
	if node == 0 || node == s.config.Node {
		return failedAnswer(&raftlog.NotLeaderError{Group: raftlog.MetadataGroup})
	}
	ctx, end := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { end(s.attemptEnd(ctx, node, mayRepeat)) })
	defer watching.Wait()
	defer end(nil)
	response, err := s.config.Caller.Call(ctx, node, MethodPropose, data)
	if err != nil {
		return failedAnswer(fmt.Errorf("metastore: propose at %v: %w", node, whyEnded(ctx, err)))
	}
	return decodeAnswer(response)
}

var (
	errLeaderReplaced = errors.New("another node leads by now")
	errNoAnswer       = errors.New("no answer in time")
)

// attemptEnd returns when waiting for an answer of node is of no use any more,
// with the reason, or when ctx ends.
func (s *Store) attemptEnd(ctx context.Context, node raftlog.NodeID, mayRepeat bool) error {
	timer := s.config.Clock.NewTimer(s.config.AttemptTimeout)
	defer timer.Stop()
	for {
		leader, changed := s.Leader()
		timeout := timer.C()
		if !mayRepeat {
			changed, timeout = nil, nil
		} else if leader != 0 && leader != node {
			return errLeaderReplaced
		}
		select {
		case <-changed:
		case <-timeout:
			return errNoAnswer
		case <-s.life.Done():
			return ErrClosed
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// whyEnded returns err or, if that says no more than that ctx ended, the cause
// of it, with the outcome of err. A timer of ours is not the caller's cancel.
func whyEnded(ctx context.Context, err error) error {
	if ctx.Err() == nil || !errors.Is(err, ctx.Err()) {
		return err
	}
	switch why := context.Cause(ctx); raftlog.OutcomeOf(err) {
	case raftlog.OutcomeRetry:
		return raftlog.Retry(why)
	case raftlog.OutcomeRefused:
		return raftlog.Refused(why)
	default:
		return raftlog.Unknown(why)
	}
}

// proposeHere proposes to this node's raft group.
func (s *Store) proposeHere(ctx context.Context, data []byte) answer {
	done := make(chan raftlog.Proposal, 1)
	end := func(p raftlog.Proposal) { done <- p }
	if isDeparture(data) {
		s.departing.propose(&s.group, data, end)
	} else {
		s.group.ProposeIn(0, data, end)
	}
	return s.outcome(ctx, done)
}

// outcome waits for what becomes of a proposal.
func (s *Store) outcome(ctx context.Context, done <-chan raftlog.Proposal) answer {
	select {
	case p := <-done:
		if p.Err != nil {
			return failedAnswer(p.Err)
		}
		return answer{index: p.Index, value: p.Result.Value, err: p.Result.Err}
	case <-ctx.Done():
		return failedAnswer(raftlog.Unknown(context.Cause(ctx)))
	case <-s.life.Done():
		return failedAnswer(raftlog.Unknown(ErrClosed))
	}
}

// lead makes a change if this node leads the metadata, once; else
// *raftlog.NotLeaderError. It is for what a leader alone may say: judgements of
// its own, and moments by its own clock.
func (s *Store) lead(ctx context.Context, c command) (any, error) {
	if err := s.allowed(c); err != nil {
		return nil, err
	}
	a := s.leadOnce(ctx, c)
	return a.value, a.err
}

// leadOnce does it, whatever the cluster's version, and says where it was applied.
func (s *Store) leadOnce(ctx context.Context, c command) answer {
	return s.leadBy(ctx, c, s.proposeHere)
}

// leadBy does it in a way of its own.
func (s *Store) leadBy(ctx context.Context, c command, propose func(context.Context, []byte) answer) answer {
	if err := c.check(); err != nil {
		return answer{err: err}
	}
	if s.Failed() != nil {
		return answer{err: s.unavailable()}
	}
	bounded, cancel := withTimeout(ctx, s.config.Clock, s.config.ProposeTimeout)
	defer cancel()
	a := propose(bounded, encodeCommand(c))
	s.noteSession(bounded, a)
	if a.err != nil && raftlog.OutcomeOf(a.err) == raftlog.OutcomeUnknown {
		a.err = s.ended(ctx, a.err)
	}
	return a
}

// MethodPropose is the call by which a node proposes at the leader.
const MethodPropose = "meta.propose"

// Calls are the calls and streams of this package, by the version of the cluster
// that they came with.
func Calls() map[string]uint64 {
	return map[string]uint64{MethodPropose: 1, MethodSnapshot: 2, MethodConfirm: versionOfProofs, MethodStateHash: versionOfAgreement}
}

// HandleCall answers a call of another node's store. It never calls further. An
// error means that the call itself was wrong, or is not known to this build
// (*UnsupportedError).
func (s *Store) HandleCall(ctx context.Context, from raftlog.NodeID, method string, request []byte) ([]byte, error) {
	switch method {
	case MethodPropose:
	case MethodConfirm:
		return s.serveConfirm(ctx, from, request)
	case MethodStateHash:
		return s.serveStateHash(ctx, from, request)
	default:
		return nil, &UnsupportedError{Call: method}
	}
	c, err := decodeCommand(request, s.config.Newest)
	if unknown := (*UnknownCommandError)(nil); errors.As(err, &unknown) {
		return nil, &UnsupportedError{method, err}
	}
	if err == nil && (c.kind() == typeGenesis || c.kind() == typeRecover) {
		err = errors.New("metastore: a genesis or a recovery is not proposed")
	}
	if err != nil {
		return nil, raftlog.Refused(fmt.Errorf("metastore: call of %v: %w", from, err))
	}
	if err = c.check(); err == nil {
		err = s.allowed(c)
	}
	if err == nil && (c.kind() == typeHashState || c.kind() == typeStateAgreed) {
		err = raftlog.Refused(errors.New("metastore: who leads compares states by itself"))
	}
	if d, ok := c.(setDeparture); ok && err == nil && d.Departure == Leaves {
		err = raftlog.Refused(errors.New("metastore: who leads marks members leaving by itself"))
	}
	if err != nil {
		return encodeAnswer(answer{err: err}), nil
	}
	// The log keeps what it is given; the request is the caller's.
	return encodeAnswer(s.proposeHere(ctx, slices.Clone(request))), nil
}
