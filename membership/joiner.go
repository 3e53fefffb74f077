package membership

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// JoinerConfig is what a Joiner needs. Name, Nonce, Addr, Newest, Peers, Caller,
// Clock and Logger must be set.
type JoinerConfig struct {
	Name     string
	Nonce    raftlog.Nonce
	Addr     string // of this node; it is not asked
	Newest   metastore.CommandType
	Observer bool
	// SegmentBytes is the size of this node's log segments; 0: what the cluster has.
	SegmentBytes int64
	Peers        []string // addresses to begin with
	Caller       Caller
	// Known are addresses of members as this node's own metadata have them, however
	// old: they are asked when all Peers may be gone. nil: none.
	Known func() []string
	// CheckAddr is the transport's test of an address; nil: any is good.
	CheckAddr func(addr string) bool
	// Leader is the leader as this node's own replica sees it, and a channel that
	// is closed when that may have changed. Run needs it.
	Leader func() (raftlog.NodeID, <-chan struct{})
	// Out reports whether this node's own replica knows that it was taken out of
	// the metadata's group. Then Run asks without waiting for Leaderless: no leader
	// will ever speak to it again. nil: never.
	Out func() bool
	// Reached is told where the members are, whenever a leader said so. nil: nobody.
	Reached func([]Reached)
	Clock   clock.Clock
	Logger  *zap.Logger

	Every       time.Duration // between attempts; default 2 s
	PeerTimeout time.Duration // for one peer's answer; default 2 s
	Leaderless  time.Duration // without a leader before Run asks; default 15 s
}

// Joiner asks for membership. Its methods, but for Waiting, are called by one
// goroutine at a time.
type Joiner struct {
	cfg     JoinerConfig
	leaders Leaders
	members map[raftlog.NodeID]string // addresses, as a leader told last
	told    reasons
	older   bool                    // that this build is too old was logged
	by      string                  // the leader that took this node in the last attempt that came to that
	last    atomic.Pointer[outcome] // nil: a leader was seen since, or there was none
}

// NewJoiner prepares a joiner; nobody is asked yet.
func NewJoiner(cfg JoinerConfig) *Joiner {
	for _, d := range []struct {
		v *time.Duration
		d time.Duration
	}{{&cfg.Every, 2 * time.Second}, {&cfg.PeerTimeout, 2 * time.Second}, {&cfg.Leaderless, 15 * time.Second}} {
		if *d.v == 0 {
			*d.v = d.d
		}
	}
	cfg.Peers = slices.Clone(cfg.Peers)
	return &Joiner{cfg: cfg, members: map[raftlog.NodeID]string{}}
}

// OlderReleaseError says that this build is too old for the cluster. It is
// Refused; a newer build is admitted.
type OlderReleaseError struct {
	Have, Need metastore.CommandType
}

func (e *OlderReleaseError) Error() string {
	return fmt.Sprintf("membership: this build applies command types up to %d, the cluster needs %d: start a newer build", e.Have, e.Need)
}

// Unwrap makes the error match raftlog.ErrRefused.
func (e *OlderReleaseError) Unwrap() error { return raftlog.ErrRefused }

// SettingsError says that this life was given another size of log segments than
// the cluster has. It is Refused: with that size it will never be admitted.
type SettingsError struct{ SegmentBytes, Want int64 }

func (e *SettingsError) Error() string {
	return fmt.Sprintf("membership: this node's log segments have %d bytes, those of the cluster %d: they must be equal", e.SegmentBytes, e.Want)
}

// Unwrap makes the error match raftlog.ErrRefused.
func (e *SettingsError) Unwrap() error { return raftlog.ErrRefused }

// DeferredError says that the leader does not take this node in now. It is
// Retry.
type DeferredError struct{ Reason string }

func (e *DeferredError) Error() string { return "membership: not now: " + e.Reason }

// Unwrap makes the error match raftlog.ErrRetry.
func (e *DeferredError) Unwrap() error { return raftlog.ErrRetry }

// ErrNoLeader: nobody who answered leads. It is Retry.
var ErrNoLeader = raftlog.Retry(errors.New("membership: none of the peers leads the cluster or knows who does"))

// Once makes one attempt: it walks over the leaders that it remembers, the
// peers, and the members that it knows, and follows those who name the leader. It returns the leader's
// acceptance, with this life's place in the cluster; repeating it is harmless.
//
// *RemovedError, *SettingsError and *OlderReleaseError (Refused), *DeferredError and
// *LeaderlessError (Retry); the cause of ctx. No answer, whatever it is, keeps the others from
// being asked.
func (j *Joiner) Once(ctx context.Context) (Reply, error) {
	ask := JoinRequest{
		Name: j.cfg.Name, Nonce: j.cfg.Nonce, Addr: j.cfg.Addr,
		Newest: j.cfg.Newest, Observer: j.cfg.Observer, SegmentBytes: j.cfg.SegmentBytes,
	}.Encode()
	peers := j.cfg.Peers
	if j.cfg.Known != nil {
		peers = slices.Concat(peers, j.cfg.Known())
	}
	walk := NewWalk(peers, &j.leaders, j.cfg.Addr, j.cfg.CheckAddr)
	met := &LeaderlessError{}
	failure := error(met)
	for {
		addr, ok := walk.Next()
		if !ok {
			return Reply{}, failure
		}
		reply, err := j.ask(ctx, addr, ask)
		tried := Tried{Addr: addr, Answer: reply.Kind, Err: err}
		switch {
		case ctx.Err() != nil:
			return Reply{}, raftlog.UnknownCause(ctx)
		case err != nil:
			j.cfg.Logger.Debug("no answer to a join", zap.String("addr", addr), zap.Error(err))
		case reply.Kind == ReplyAccepted && reply.Node != 0:
			j.leaders.Remember(addr)
			j.learn(reply)
			j.by = addr
			return reply, nil
		default:
			if reply.Addr == "" {
				reply.Addr = j.members[reply.Leader]
			}
			tried.Names = reply.Addr
			failure = worse(failure, j.follow(walk, addr, reply))
		}
		met.Tried = append(met.Tried, tried)
	}
}

// follow takes an answer that is no acceptance, and returns what it means for
// the attempt.
func (j *Joiner) follow(walk *Walk, from string, r Reply) error {
	switch r.Kind {
	case ReplyAccepted:
		j.leaders.Remember(from)
		return &DeferredError{r.Reason}
	case ReplyNotLeader:
		if walk.Good(r.Addr) && r.Addr != j.cfg.Addr {
			j.leaders.Remember(r.Addr)
		}
		walk.Hint(r.Addr)
	case ReplyRemoved:
		return &RemovedError{r.Reason}
	case ReplyOlderRelease:
		return &OlderReleaseError{j.cfg.Newest, r.Need}
	case ReplyOtherSettings:
		if j.cfg.SegmentBytes == 0 {
			break // it has what the cluster has, whatever that is
		}
		return &SettingsError{j.cfg.SegmentBytes, r.SegmentBytes}
	}
	return ErrNoLeader
}

// worse returns which of two failures an attempt ends with: the most final one.
func worse(a, b error) error {
	rank := func(err error) int {
		switch err.(type) {
		case *RemovedError:
			return 4
		case *SettingsError:
			return 3
		case *OlderReleaseError:
			return 2
		case *DeferredError:
			return 1
		}
		return 0
	}
	if rank(b) > rank(a) {
		return b
	}
	return a
}

func (j *Joiner) learn(r Reply) {
	clear(j.members)
	for _, m := range r.Members {
		j.members[m.Node] = m.Addr
	}
	if j.cfg.Reached != nil {
		j.cfg.Reached(r.Members)
	}
}

func (j *Joiner) ask(ctx context.Context, addr string, req []byte) (Reply, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer j.cfg.Clock.AfterFunc(j.cfg.PeerTimeout, cancel).Stop()
	b, err := j.cfg.Caller.CallAddr(ctx, addr, MethodJoin, req)
	if err != nil {
		return Reply{}, err
	}
	return DecodeReply(b)
}

// report logs how an attempt failed: what is new at info, a build that is too
// old once at error.
func (j *Joiner) report(err error) {
	var older *OlderReleaseError
	tooOld := errors.As(err, &older)
	switch {
	case tooOld && !j.older:
		j.older = true
		j.cfg.Logger.Error("the cluster does not take this node in", zap.Error(err))
	case !tooOld && j.told.isNew(gist(err)):
		j.cfg.Logger.Info("not in the cluster yet", zap.Error(err))
	default:
		j.cfg.Logger.Debug("not in the cluster yet", zap.Error(err))
	}
}

// gist is what makes an error another one: who exactly did not answer, and how, is
// not news.
func gist(err error) string {
	if errors.Is(err, ErrNoLeader) {
		return ErrNoLeader.Error()
	}
	return err.Error()
}

// Run keeps a member connected, until ctx ends: whenever its own replica sees no
// leader for Leaderless, or none and is out of the group, it asks, every Every, to be told where the others are
// and to tell them where it is (J14). fresh, for a life that joined, at each start: it
// asks from the first moment on, until its replica saw a leader (J5), as it may
// know nobody's address.
//
// It returns the cause of ctx, or a *RemovedError.
func (j *Joiner) Run(ctx context.Context, fresh bool) error {
	patience := j.cfg.Leaderless
	if fresh {
		patience = 0
	}
	since := j.cfg.Clock.Now()
	next := since // attempts keep their distance, however often raft changes
	for {
		leader, changed := j.cfg.Leader()
		if leader != 0 {
			j.last.Store(nil)
			patience = j.cfg.Leaderless
			select {
			case <-changed:
				since = j.cfg.Clock.Now()
				continue
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		now := j.cfg.Clock.Now()
		wait := max(patience-now.Sub(since), next.Sub(now))
		if j.cfg.Out != nil && wait > 0 {
			if j.cfg.Out() {
				wait = next.Sub(now)
			}
			wait = min(wait, j.cfg.Every) // nobody says when it is
		}
		if wait <= 0 {
			reply, err := j.Once(ctx)
			if err := j.heard(ctx, reply, err); err != nil {
				return err
			}
			next = j.cfg.Clock.Now().Add(j.cfg.Every)
			continue
		}
		if err := rest(ctx, j.cfg.Clock, wait, changed); err != nil {
			return err
		}
	}
}

// heard takes the end of an attempt of Run; the error ends that.
func (j *Joiner) heard(ctx context.Context, r Reply, err error) error {
	o := &outcome{err: err}
	if err == nil {
		o.taken = &Taken{By: j.by, Reason: r.Reason}
	}
	j.last.Store(o)
	var removed *RemovedError
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &removed):
		return err
	case err != nil:
		j.report(err)
	case j.told.isNew(r.Status.String() + r.Reason):
		j.cfg.Logger.Info("the leader knows this node", zap.Stringer("status", r.Status), zap.Stringer("id", r.Node), zap.String("but", r.Reason))
	}
	return nil
}

// Enter makes a life part of a cluster, and returns what it remembers of that,
// which is durable. An initial member takes part in genesis; if there is a
// cluster already whose genesis does not list it, because its disk was wiped or
// the cluster has others by now, it joins, as every other node does (J1, J3, J4).
//
// It asks for ever. It returns a *RemovedError, a *SettingsError, the cause of
// ctx, or the error of a failed Save.
func Enter(ctx context.Context, g *Genesis, j *Joiner) (State, error) {
	if s := g.State(); s.Belongs() {
		return s, nil
	}
	_, err := g.Run(ctx)
	var notListed *NotListedError
	if !errors.As(err, &notListed) {
		return g.State(), err
	}
	j.addPeers(notListed.Addrs)
	for {
		reply, err := j.Once(ctx)
		var other *SettingsError
		if errors.As(err, &other) {
			return g.State(), err
		}
		if err == nil {
			err = g.Join(Joined{
				ClusterID: reply.ClusterID, Epoch: reply.Epoch, Node: reply.Node, Replica: reply.Replica, SegmentBytes: reply.SegmentBytes,
			})
			if err == nil || errors.Is(err, ErrAdopted) {
				return g.State(), nil
			}
			return g.State(), err
		}
		if err := j.heard(ctx, Reply{}, err); err != nil {
			return g.State(), err
		}
		if g.look(ctx); g.State().Belongs() {
			return g.State(), nil
		}
		if err := rest(ctx, j.cfg.Clock, j.cfg.Every, g.adopted); err != nil {
			return g.State(), err
		}
	}
}

func (j *Joiner) addPeers(addrs []string) {
	for _, a := range addrs {
		if !slices.Contains(j.cfg.Peers, a) {
			j.cfg.Peers = append(j.cfg.Peers, a)
		}
	}
}

// reasons remembers the last reason that was told, so that it is told once.
type reasons struct{ last string }

func (r *reasons) isNew(reason string) bool {
	is := reason != r.last
	r.last = reason
	return is
}
