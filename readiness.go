package stele

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/membership"
	"github.com/stelelog/stele/raftlog"
)

// ReadinessCode is why a node is or is not ready, for programs.
type ReadinessCode string

// Why a node is or is not ready.
const (
	Ready             ReadinessCode = "ready"
	WaitingForMembers ReadinessCode = "waiting-for-members" // no cluster was founded yet
	Joining           ReadinessCode = "joining"             // no cluster has taken the node in yet
	NoLeader          ReadinessCode = "no-leader"           // the metadata group has none in view
	LeaderSilent      ReadinessCode = "leader-silent"       // the metadata's leader was not heard for ContactTimeout
	CatchingUp        ReadinessCode = "catching-up"         // this node's metadata may be old
	DiskStalled       ReadinessCode = "disk-stalled"        // its disk does not answer; it leads nothing
	Removed           ReadinessCode = "removed"             // it is no member any more; see RemovedError
	Failed            ReadinessCode = "failed"              // see Reason; only reopening helps
	Closed            ReadinessCode = "closed"
)

// Readiness says whether a node can serve, and if not, why.
type Readiness struct {
	Code ReadinessCode
	// Reason is a sentence for a person. It is empty if the node is ready and
	// nothing is wrong with it. A node whose disk is full is ready, since it
	// serves all reads, and says so here.
	Reason string
}

// Ready reports whether the node can serve.
func (r Readiness) Ready() bool { return r.Code == Ready }

func (r Readiness) String() string {
	if r.Reason == "" {
		return string(r.Code)
	}
	return string(r.Code) + ": " + r.Reason
}

// Readiness says whether the node can serve now. It is cheap.
func (n *Node) Readiness() Readiness {
	r, _, _ := n.readiness()
	return r
}

// readiness also returns channels of which one is closed when it may have
// changed. A nil one is never closed.
func (n *Node) readiness() (r Readiness, changed, caughtUp <-chan struct{}) {
	n.mu.Lock()
	closed, failed, changed := n.mu.closed, n.mu.failed, n.mu.changed
	n.mu.Unlock()
	p := n.net.parts.Load()
	var removed *RemovedError
	switch {
	case closed:
		return Readiness{Closed, "the node was closed"}, changed, nil
	case errors.As(failed, &removed):
		return Readiness{Removed, failed.Error()}, changed, nil
	case failed != nil:
		return Readiness{Failed, failed.Error()}, changed, nil
	case p == nil && n.joins():
		return Readiness{Joining, n.waiting()}, changed, nil
	case p == nil:
		return Readiness{WaitingForMembers, n.waiting()}, changed, nil
	}
	leader, leaderChanged := p.meta.Leader() // before the failure, which wakes who waits for a leader
	if err := p.failure(); err != nil {
		return Readiness{Failed, err.Error()}, leaderChanged, nil
	}
	if late := p.host.Stalled(); late > 0 {
		return Readiness{DiskStalled, fmt.Sprintf("the journal's disk has not answered for %v", late)}, changed, nil
	}
	group := p.meta.GroupStatus()
	facts := membership.ReadyFacts{
		Leader: leader != 0, Leads: group.Role.IsLeader(), CaughtUp: p.meta.AppliedCaughtUp(),
		SinceContact: time.Duration(group.SinceLeader) * n.cfg.Tick,
	}
	switch membership.Ready(facts, n.cfg.ContactTimeout) {
	case membership.UnreadyNoLeader:
		return Readiness{NoLeader, "the metadata group has no leader in view of this node"}, leaderChanged, nil
	case membership.UnreadySilent:
		return Readiness{LeaderSilent, fmt.Sprintf("the metadata's leader was not heard for %v", facts.SinceContact)}, leaderChanged, nil
	case membership.UnreadyCatchingUp:
		return Readiness{CatchingUp, p.meta.CatchingUp()}, leaderChanged, p.meta.CaughtUp()
	}
	if full := fullError(n.diskStatus()); full != nil {
		return Readiness{Ready, full.Error()}, leaderChanged, nil
	}
	return Readiness{Code: Ready}, leaderChanged, nil
}

// joins reports whether the node waits for a running cluster to take it in: it
// lists no initial members, or is none of those that the cluster was founded by.
func (n *Node) joins() bool {
	return len(n.cfg.InitialMembers) == 0 || n.genesis.State().Renounced
}

// waiting says what keeps the cluster from being formed, and why who does not
// answer cannot be reached.
func (n *Node) waiting() string {
	text := n.genesis.Waiting()
	if text == "" {
		return "opening what belongs to the cluster"
	}
	if j := n.entering.Load(); j != nil && j.Waiting() != nil {
		text += ": " + j.Waiting().Error()
	}
	for _, p := range n.cfg.InitialMembers {
		if err := n.net.asked.failure(p.Addr); err != nil {
			text += fmt.Sprintf("; %s was last asked in vain: %v", p.Name, err)
		}
	}
	return text
}

// WaitReady returns when the node can serve. It returns at once with an error
// if waiting cannot help (*RemovedError, a failed node, ErrClosed); if ctx
// ends first, the error is Retry, says what was missing and matches ctx.Err().
func (n *Node) WaitReady(ctx context.Context) error {
	if err := needs(ctx, "Node.WaitReady"); err != nil {
		return err
	}
	timer := clock.System().NewTimer(n.cfg.Tick)
	defer timer.Stop()
	for {
		r, changed, caughtUp := n.readiness()
		var again <-chan time.Time
		switch r.Code {
		case Ready:
			return nil
		case Closed:
			return raftlog.Retry(ErrClosed)
		case Removed, Failed:
			return n.failure()
		case LeaderSilent: // it is heard again without anything else that changes
			timer.Reset(n.cfg.Tick)
			again = timer.C()
		}
		select {
		case <-again:
		case <-changed:
		case <-caughtUp:
		case <-n.life.Done():
		case <-ctx.Done():
			return raftlog.Retry(fmt.Errorf("%w: %v: %w", ErrNotReady, n.Readiness(), ctx.Err()))
		}
	}
}

// failure is why the node failed, with an outcome.
func (n *Node) failure() error {
	n.mu.Lock()
	err := n.mu.failed
	n.mu.Unlock()
	if p := n.net.parts.Load(); err == nil && p != nil {
		err = p.failure()
	}
	if err != nil && !errors.Is(err, ErrRefused) {
		err = raftlog.Refused(err)
	}
	return err
}
