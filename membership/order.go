package membership

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stelelog/stele/raftlog"
)

// MethodOrder carries an Order, which a person gave, to the leader.
const MethodOrder = "member.order"

// OrderKind is what a person wants the leader to do.
type OrderKind uint8

const (
	// OrderPromote: give the learner Node a vote, as if it had asked.
	OrderPromote OrderKind = iota + 1
	// OrderForget: take Replica, which no member is, out of group 1.
	OrderForget
	// OrderTransfer: hand the leadership of group 1 over to Node.
	OrderTransfer
)

// Order is what a person wants of the leader of one cluster. Which of Node and
// Replica is set depends on Kind.
type Order struct {
	Kind      OrderKind
	ClusterID raftlog.ClusterID
	Epoch     uint64
	Node      raftlog.NodeID
	Replica   raftlog.ReplicaID
}

// OrderAnswer is what became of an Order that a node took in.
type OrderAnswer struct {
	Kind   OrderAnswerKind
	Why    Deferral // deferred
	Reason string   // deferred, refused: for a person
	Leader raftlog.NodeID
}

// OrderAnswerKind is what became of an Order.
type OrderAnswerKind uint8

const (
	OrderDone      OrderAnswerKind = iota + 1 // it is so now
	OrderElsewhere                            // another node leads: Leader; 0: not known
	OrderDeferred                             // not now: Why, Reason
	OrderRefused                              // not as things are: Reason
)

// NoVoteError says why a learner has no vote yet. Nothing happened: it is Retry,
// but of an observer, which never votes: Refused.
type NoVoteError struct {
	Node   raftlog.NodeID
	Name   string // "": who made the error does not know it
	Why    Deferral
	Reason string // for a person
}

func (e *NoVoteError) Error() string {
	return fmt.Sprintf("membership: %s gets no vote yet: %s", called(e.Name, e.Node), e.Reason)
}

// Unwrap gives the outcome.
func (e *NoVoteError) Unwrap() error {
	if e.Why == DeferredObserver {
		return raftlog.ErrRefused
	}
	return raftlog.ErrRetry
}

// TransferError says why the metadata's leadership is not handed over to a node.
// It is Retry: another node, or this one later, may lead.
type TransferError struct {
	Node   raftlog.NodeID
	Name   string // "": who made the error does not know it
	Reason string
}

func (e *TransferError) Error() string {
	return fmt.Sprintf("membership: %s does not take over the metadata: %s", called(e.Name, e.Node), e.Reason)
}

// Unwrap makes the error match raftlog.ErrRetry.
func (e *TransferError) Unwrap() error { return raftlog.ErrRetry }

// called is a node's name, or its id if that is all that is known.
func called(name string, node raftlog.NodeID) string {
	if name != "" {
		return name
	}
	return node.String()
}

// Orders gives orders of a person to the leader, from any member. Its methods are
// safe for concurrent use. Beside those that they name their errors are:
//
//	Retry    ErrNoLeader; the leader could not be reached
//	Refused  the leader's build knows no orders
//	Unknown  ctx or Timeout ended, or leadership was lost meanwhile: it may have
//	         been done, or be done yet, and may be asked for again
type Orders struct {
	ToLeader
	Place   Joined
	Timeout time.Duration // of one order; default 10 s
}

// Promote gives a learner a vote, if it may have one now (see the function
// Promote). nil: it votes. *NoVoteError.
func (o *Orders) Promote(ctx context.Context, node raftlog.NodeID) error {
	return o.give(ctx, Order{Kind: OrderPromote, Node: node})
}

// Forget takes a replica that no member is out of the configuration of group 1.
// nil: it is out. *ForgetError.
func (o *Orders) Forget(ctx context.Context, r raftlog.ReplicaID) error {
	return o.give(ctx, Order{Kind: OrderForget, Replica: r})
}

// Transfer hands the leadership of group 1 over to a voter. nil: it leads.
// *TransferError.
func (o *Orders) Transfer(ctx context.Context, node raftlog.NodeID) error {
	return o.give(ctx, Order{Kind: OrderTransfer, Node: node})
}

// orderAgain is how long is waited when nobody led, or not for long enough.
const orderAgain = 200 * time.Millisecond

// give tries until there is a leader that takes the order in.
func (o *Orders) give(ctx context.Context, order Order) error {
	order.ClusterID, order.Epoch = o.Place.ClusterID, o.Place.Epoch
	timeout := o.Timeout
	if timeout == 0 {
		timeout = 10 * time.Second
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer o.Clock.AfterFunc(timeout, func() { cancel(context.DeadlineExceeded) }).Stop()
	for {
		_, changed := o.Leader()
		a, err := o.ask(ctx, order.Encode())
		if err == nil {
			return a.result(order)
		}
		if !errors.Is(err, ErrNoLeader) {
			return err
		}
		if end := rest(ctx, o.Clock, orderAgain, changed); end != nil {
			return raftlog.Retry(fmt.Errorf("%w: %w", ErrNoLeader, end))
		}
	}
}

// ask follows the leader as long as nodes name another one, at most four times.
func (o *Orders) ask(ctx context.Context, order []byte) (OrderAnswer, error) {
	to, _ := o.Leader()
	for range 1 + maxHints {
		if to == 0 {
			break
		}
		b, err := o.askOne(ctx, to, MethodOrder, order)
		if err != nil {
			return OrderAnswer{}, fmt.Errorf("membership: ask %v: %w", to, err)
		}
		a, err := DecodeOrderAnswer(b)
		switch {
		case err != nil:
			return a, raftlog.Unknown(fmt.Errorf("membership: the answer of %v: %w", to, err))
		case a.Kind != OrderElsewhere:
			return a, nil
		case a.Leader == to:
			return a, ErrNoLeader
		}
		to = a.Leader
	}
	return OrderAnswer{}, ErrNoLeader
}

// result is the answer as an error, nil if the order was carried out.
func (a OrderAnswer) result(o Order) error {
	switch {
	case a.Kind == OrderDone:
		return nil
	case a.Kind == OrderDeferred:
		return &NoVoteError{Node: o.Node, Why: a.Why, Reason: a.Reason}
	case o.Kind == OrderForget:
		return &ForgetError{o.Replica, a.Reason}
	}
	return &TransferError{Node: o.Node, Reason: a.Reason}
}

// answer is the answer that result turns into err again; ok is false for errors
// that travel as such.
func (o Order) answer(err error) (a OrderAnswer, ok bool) {
	var deferred *NoVoteError
	var forget *ForgetError
	var transfer *TransferError
	var notLeader *raftlog.NotLeaderError
	switch {
	case err == nil:
		return OrderAnswer{Kind: OrderDone}, true
	case errors.As(err, &deferred):
		return OrderAnswer{Kind: OrderDeferred, Why: deferred.Why, Reason: deferred.Reason}, true
	case errors.As(err, &forget):
		return OrderAnswer{Kind: OrderRefused, Reason: forget.Reason}, true
	case errors.As(err, &transfer):
		return OrderAnswer{Kind: OrderRefused, Reason: transfer.Reason}, true
	case errors.As(err, &notLeader):
		return OrderAnswer{Kind: OrderElsewhere, Leader: notLeader.Node}, true
	}
	return a, false
}
