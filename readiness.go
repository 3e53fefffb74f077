package stele

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
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
	Fenced            ReadinessCode = "fenced"              // a forced recovery left it behind; see EpochFencedError
	NotRecovered      ReadinessCode = "not-recovered"       // the plan of a forced recovery, which includes it, is to be applied to its directory; see EpochFencedError
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
	r, _ := n.readiness()
	return r
}

// signals are channels of which one is closed when readiness may have changed; a
// nil one never is. A leader that falls silent, and one that is heard again, closes
// none.
type signals struct{ own, leader, caughtUp <-chan struct{} }

// wait returns when readiness may have changed, or one of these happened.
func (s signals) wait(again <-chan time.Time, ended ...<-chan struct{}) {
	ended = append(ended, nil, nil)
	select {
	case <-s.own:
	case <-s.leader:
	case <-s.caughtUp:
	case <-again:
	case <-ended[0]:
	case <-ended[1]:
	}
}

func (n *Node) readiness() (r Readiness, on signals) {
	n.mu.Lock()
	closed, failed := n.mu.closed, n.mu.failed
	on.own = n.mu.changed
	n.mu.Unlock()
	p := n.net.parts.Load()
	var removed *RemovedError
	var fenced *EpochFencedError
	switch {
	case closed:
		return Readiness{Closed, "the node was closed"}, on
	case errors.As(failed, &removed):
		return Readiness{Removed, failed.Error()}, on
	case errors.As(failed, &fenced) && fenced.Plan != [16]byte{}:
		return Readiness{NotRecovered, failed.Error()}, on
	case errors.As(failed, &fenced):
		return Readiness{Fenced, failed.Error()}, on
	case failed != nil:
		return Readiness{Failed, failed.Error()}, on
	case p == nil && n.joins():
		return Readiness{Joining, n.waiting()}, on
	case p == nil:
		return Readiness{WaitingForMembers, n.waiting()}, on
	}
	var leader NodeID
	leader, on.leader = p.meta.Leader() // before the failure, which wakes who waits for a leader
	if err := p.failure(); err != nil {
		return Readiness{Failed, err.Error()}, on
	}
	if late := p.host.Stalled(); late > 0 {
		return Readiness{DiskStalled, fmt.Sprintf("the journal's disk has not answered for %v", late)}, on
	}
	group := p.meta.GroupStatus()
	facts := membership.ReadyFacts{
		Removed: group.Role == raftlog.RoleRemoved, Leader: leader != 0, Leads: group.Role.IsLeader(),
		CaughtUp: p.meta.AppliedCaughtUp(), SinceContact: time.Duration(group.SinceLeader) * n.cfg.Tick,
	}
	switch membership.Ready(facts, n.cfg.ContactTimeout) {
	case membership.UnreadyRemoved: // what became of the node it is about to ask
		return Readiness{Removed, "the metadata's group goes on without this node: it takes part again only with an empty directory"}, on
	case membership.UnreadyNoLeader:
		return Readiness{NoLeader, n.unled()}, on
	case membership.UnreadySilent:
		if facts.SinceContact < 0 {
			return Readiness{LeaderSilent, "the metadata's leader was not heard yet"}, on
		}
		return Readiness{LeaderSilent, fmt.Sprintf("the metadata's leader was not heard for %v", facts.SinceContact)}, on
	case membership.UnreadyCatchingUp:
		on.caughtUp = p.meta.CaughtUp()
		return Readiness{CatchingUp, p.meta.CatchingUp()}, on
	}
	if full := fullError(n.diskStatus()); full != nil {
		return Readiness{Ready, full.Error()}, on
	}
	return Readiness{Code: Ready}, on
}

// joins reports whether the node waits for a running cluster to take it in: it
// lists no initial members, or is none of those that the cluster was founded by.
func (n *Node) joins() bool {
	return len(n.cfg.InitialMembers) == 0 || n.genesis.State().Renounced
}

// unled says why this node sees no leader of the metadata, as far as the leader
// itself, or who was asked for it, told.
func (n *Node) unled() string {
	const text = "the metadata group has no leader in view of this node"
	j := n.asking.Load()
	if j == nil {
		return text
	}
	taken, is := j.Taken()
	switch err := j.Waiting(); {
	case err != nil:
		return text + ": " + err.Error()
	case !is:
		return text
	case taken.Reason != "":
		return fmt.Sprintf("%s: %s, which leads, takes it for a member at %s, and does not reach it there: %s", text, taken.By, n.Addr(), taken.Reason)
	}
	return fmt.Sprintf("%s: %s, which leads, takes it for a member at %s, and nothing of it has arrived here yet: do others reach this node at that address?", text, taken.By, n.Addr())
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
		r, on := n.readiness()
		var again <-chan time.Time
		switch r.Code {
		case Ready:
			return nil
		case Closed:
			return raftlog.Retry(ErrClosed)
		case Removed, Fenced, NotRecovered, Failed:
			if err := n.failure(); err != nil {
				return err
			}
		case LeaderSilent: // it is heard again without anything else that changes
			timer.Reset(n.cfg.Tick)
			again = timer.C()
		}
		on.wait(again, n.life.Done(), ctx.Done())
		if ctx.Err() != nil {
			return raftlog.Retry(fmt.Errorf("%w: %v: %w", ErrNotReady, n.Readiness(), ctx.Err()))
		}
	}
}

// ReadinessChanges returns a channel that has the readiness of now, and then each
// with another code. It holds one: a newer one takes the place of one that nobody
// took. The channel is closed after Closed, or when ctx ends. A goroutine of the
// node serves it until then.
func (n *Node) ReadinessChanges(ctx context.Context) <-chan Readiness {
	changes := make(chan Readiness, 1)
	serve := func() {
		defer close(changes)
		timer := clock.System().NewTimer(lookAgain)
		defer timer.Stop()
		var told ReadinessCode
		for {
			r, on := n.readiness()
			if r.Code != told {
				told = r.Code
				select {
				case <-changes:
				default:
				}
				changes <- r
			}
			if r.Code == Closed || ctx == nil || ctx.Err() != nil {
				return
			}
			timer.Reset(lookAgain)
			on.wait(timer.C(), n.life.Done(), ctx.Done())
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.closed {
		changes <- Readiness{Closed, "the node was closed"}
		close(changes)
		return changes
	}
	n.running.Go(serve)
	return changes
}

// ReadyHandler answers whether the node can serve, for load balancers and probes of
// orchestrators: 200 if it is ready, else 503, and why as JSON, {"code": ...,
// "reason": ...}, as Readiness says it. It needs nothing of other nodes, and goes on
// to answer when the node is closed.
func (n *Node) ReadyHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "want GET or HEAD", http.StatusMethodNotAllowed)
			return
		}
		at := n.Readiness()
		status := http.StatusServiceUnavailable
		if at.Ready() {
			status = http.StatusOK
		}
		body, err := json.Marshal(struct {
			Code   ReadinessCode `json:"code"`
			Reason string        `json:"reason"`
		}{at.Code, at.Reason})
		if err != nil { // never: they are strings
			status = http.StatusInternalServerError
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(status)
		_, _ = w.Write(append(body, '\n')) // who hung up does not matter
	})
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
