package membership

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/raftlog"
)

// Method is the name of genesis calls between members.
const Method = "genesis"

// Caller asks the process at an address. A call ends with ctx.
type Caller interface {
	CallAddr(ctx context.Context, addr, method string, req []byte) ([]byte, error)
}

// GenesisConfig is what Genesis needs. All fields but the durations must be set.
type GenesisConfig struct {
	Cluster string
	Name    string // of this node, one of Peers
	Peers   []Peer // the initial members, this node included; none: it only joins
	Nonce   raftlog.Nonce
	State   State // as saved last
	// Save makes a state durable, the directory entry included, before it returns.
	Save   func(State) error
	Caller Caller
	Clock  clock.Clock
	Logger *zap.Logger
	// Random fills p with random bytes, for the cluster's id and this process.
	Random func(p []byte)

	Rounds      int           // asked in a row; default 3
	RoundEvery  time.Duration // default 1 s
	PeerTimeout time.Duration // for one peer's answer; default 2 s
	Pause       time.Duration // after Rounds; default 2 s
}

func (c GenesisConfig) withDefaults() GenesisConfig {
	if c.Rounds == 0 {
		c.Rounds = 3
	}
	for _, d := range []struct {
		v *time.Duration
		d time.Duration
	}{{&c.RoundEvery, time.Second}, {&c.PeerTimeout, 2 * time.Second}, {&c.Pause, 2 * time.Second}} {
		if *d.v == 0 {
			*d.v = d.d
		}
	}
	return c
}

// NotListedError says that a cluster exists and this life of the node is not
// in its genesis: its disk was wiped or replaced. It has to join; see Enter. It
// is Refused.
type NotListedError struct {
	Name  string
	Nonce raftlog.Nonce
	Addrs []string // of those in the cluster, as far as known
}

func (e *NotListedError) Error() string {
	return fmt.Sprintf("membership: a cluster exists that does not list this life of %q (nonce %v): its data directory is new or was wiped", e.Name, e.Nonce)
}

// Unwrap makes the error match raftlog.ErrRefused.
func (e *NotListedError) Unwrap() error { return raftlog.ErrRefused }

// Genesis drives a Member: it asks in rounds, answers peers and saves what
// answers rest on. It is safe for concurrent use.
type Genesis struct {
	cfg     GenesisConfig
	process uint64
	wake    chan struct{} // a state that Run waits for may have come
	adopted chan struct{} // closed when a genesis is adopted

	mu struct {
		sync.Mutex
		member    *Member
		broken    error // Save failed: nothing may be said any more
		notListed bool
		others    []string // addresses in a genesis that does not list this life
		obstacles []Obstacle
	}
	// waiting is Waiting's answer as of the last change. It is taken under mu or
	// alone, and never held while anything is saved: a disk may take its time.
	waiting struct {
		sync.Mutex
		text string
	}
}

// NewGenesis prepares genesis; nothing is asked before Run.
func NewGenesis(cfg GenesisConfig) *Genesis {
	g := &Genesis{cfg: cfg.withDefaults(), wake: make(chan struct{}, 1), adopted: make(chan struct{})}
	var p [8]byte
	cfg.Random(p[:])
	for _, b := range p {
		g.process = g.process<<8 | uint64(b)
	}
	g.mu.member = NewMember(cfg.Cluster, cfg.Name, cfg.Nonce, cfg.Peers, cfg.State)
	g.mu.notListed = cfg.State.Renounced || len(cfg.Peers) == 0
	if cfg.State.Adopted != nil {
		close(g.adopted)
	}
	g.noteLocked()
	return g
}

// State returns what this life remembers, as saved last.
func (g *Genesis) State() State {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mu.member.State
}

// Join makes this life part of a cluster that took it in, durably. It returns
// ErrAdopted if a genesis that lists this life was adopted first, and the error
// of a failed Save.
func (g *Genesis) Join(j Joined) error {
	joined := false
	err := g.saved(func(m *Member) (changed bool) {
		joined, changed = m.Join(j)
		return changed
	})
	if err == nil && !joined {
		return ErrAdopted
	}
	return err
}

// ErrAdopted: this life is part of a cluster already. It is Refused.
var ErrAdopted = raftlog.Refused(errors.New("membership: this life is part of a cluster already"))

// Adopted returns the genesis that this life is part of, or nil.
func (g *Genesis) Adopted() *Founding {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mu.member.State.Adopted
}

// Waiting says, in a sentence for a person, why there is no cluster yet; it is
// empty once a genesis is adopted.
func (g *Genesis) Waiting() string {
	g.waiting.Lock()
	defer g.waiting.Unlock()
	return g.waiting.text
}

// noteLocked keeps what Waiting says. It is called at the end of whatever
// changes it.
func (g *Genesis) noteLocked() {
	text := g.reasonLocked()
	g.waiting.Lock()
	defer g.waiting.Unlock()
	g.waiting.text = text
}

func (g *Genesis) reasonLocked() string {
	switch {
	case g.mu.member.State.Belongs():
		return ""
	case g.mu.broken != nil:
		return "the data directory failed: " + g.mu.broken.Error()
	case len(g.cfg.Peers) == 0:
		return "waiting for a running cluster to take this node in"
	case g.mu.notListed:
		return "a cluster exists that does not list this life of the node: its data directory is new or was wiped; asking to join"
	case len(g.mu.obstacles) == 0:
		return "waiting for " + g.mu.member.peers[0].Name + " to found the cluster"
	}
	var b strings.Builder
	b.WriteString("waiting for all initial members: ")
	for i, o := range g.mu.obstacles {
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "%s (%s) %s", o.Peer.Name, o.Peer.Addr, o.Why)
	}
	return b.String()
}

// saved runs change under the lock and makes the new state durable before it
// returns. After a failed save nothing is said any more: what is durable is
// not known.
func (g *Genesis) saved(change func(m *Member) (changed bool)) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	defer g.noteLocked()
	if g.mu.broken != nil {
		return g.mu.broken
	}
	before := g.mu.member.State
	if !change(g.mu.member) {
		return nil
	}
	if err := g.cfg.Save(g.mu.member.State); err != nil {
		g.mu.member.State = before
		g.mu.broken = fmt.Errorf("membership: save the state of genesis: %w", err)
		return g.mu.broken
	}
	if before.Adopted == nil && g.mu.member.State.Adopted != nil {
		close(g.adopted)
	}
	return nil
}

// HandleCall answers a peer; the answer's basis is durable when it returns.
func (g *Genesis) HandleCall(ctx context.Context, req []byte) ([]byte, error) {
	ask, err := DecodeAsk(req)
	if err != nil {
		return nil, unreadable(Method, err)
	}
	form := req[0]
	if ask.Kind == AskOffer {
		if err := g.learn(ctx, ask.Founding); err != nil {
			g.cfg.Logger.Debug("offered genesis not adopted", zap.Error(err))
		}
		g.poke()
		ask.Kind = AskGenesis
	}
	bound, err := g.recognise(ctx, ask)
	if err != nil {
		return nil, err
	}
	var answer Answer
	err = g.saved(func(m *Member) (changed bool) {
		if m.Strange(ask) && m.State.Bound != bound {
			ask.Kind = AskGenesis // another founder came first meanwhile
		}
		answer, changed = m.Answer(ask)
		g.mu.notListed = g.mu.notListed || m.State.Renounced
		return changed
	})
	if err != nil {
		return nil, err
	}
	if answer.Kind == AnswerMember && form < askForm {
		answer.Kind = AnswerNo // all that it can read
	}
	return answer.Encode(), nil
}

// recognise asks the founder's listed address before a strange probe is
// answered, and returns the founder that was answered last until then.
func (g *Genesis) recognise(ctx context.Context, ask Ask) (bound raftlog.Nonce, err error) {
	g.mu.Lock()
	bound = g.mu.member.State.Bound
	if !g.mu.member.Strange(ask) {
		g.mu.Unlock()
		return bound, nil
	}
	founder := g.mu.member.peers[0]
	back := g.mu.member.Ask(g.process, 0)
	g.mu.Unlock()
	back.Kind = AskGenesis
	a, err := g.ask(ctx, founder.Addr, back)
	if err != nil {
		return bound, raftlog.Retry(fmt.Errorf("membership: %s does not answer at its listed address: %w", founder.Name, err))
	}
	if a.Nonce != ask.Nonce {
		return bound, raftlog.Refused(fmt.Errorf("membership: a probe of %s comes from another life than the one at %s", founder.Name, founder.Addr))
	}
	return bound, nil
}

func (g *Genesis) poke() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// Run asks until this life is part of a cluster, and returns its genesis. It
// returns a *NotListedError if there is a cluster that does not list this life,
// the cause of ctx if that ends, and the error of a failed Save.
func (g *Genesis) Run(ctx context.Context) (*Founding, error) {
	for round := uint64(1); ; round++ {
		if done, err := g.once(ctx, round); done != nil || err != nil {
			return done, err
		}
		wait := g.cfg.RoundEvery
		if round%uint64(g.cfg.Rounds) == 0 {
			wait = g.cfg.Pause
		}
		timer := g.cfg.Clock.NewTimer(wait)
		select {
		case <-timer.C():
		case <-g.wake:
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
			return nil, context.Cause(ctx)
		}
	}
}

// once is one round: ask all, then found or learn.
func (g *Genesis) once(ctx context.Context, number uint64) (*Founding, error) {
	if f, err := g.verdict(); f != nil || err != nil {
		return f, err
	}
	g.mu.Lock()
	ask := g.mu.member.Ask(g.process, number)
	round := g.mu.member.NewRound(g.process, number)
	self, peers := g.mu.member.self, g.mu.member.peers
	g.mu.Unlock()

	askInto := func(peers []Peer) {
		for i, a := range g.askAll(ctx, peers, ask) {
			if a != nil {
				round.Add(peers[i], *a)
			}
		}
	}
	if ask.Kind == AskProbe {
		if askInto([]Peer{self}); !round.Reached() {
			return nil, g.notReached(round)
		}
	}
	askInto(peers)
	if f := round.Genesis(); f != nil {
		if err := g.learn(ctx, f); err != nil {
			g.cfg.Logger.Debug("genesis of a peer not adopted", zap.Error(err))
		}
		if f, err := g.verdict(); f != nil || err != nil || !round.Exists() {
			return f, err
		}
		// It may not adopt it, for the sake of a founder that is not there any more.
	}
	if round.Exists() {
		if err := g.handOver(); err != nil {
			return nil, err
		}
		return g.verdict()
	}
	var founded *Founding
	err := g.saved(func(m *Member) bool {
		g.mu.obstacles = nil
		if m.Founds() {
			var id raftlog.ClusterID
			g.cfg.Random(id[:])
			g.mu.obstacles = round.Waiting()
			founded = round.Found(id)
		}
		return founded != nil
	})
	if err != nil {
		return nil, err
	}
	if founded != nil {
		g.cfg.Logger.Info("founded the cluster", zap.Stringer("cluster_id", founded.ClusterID), zap.Int("members", len(founded.Members)))
		offer := ask
		offer.Kind, offer.Founding = AskOffer, founded
		g.askAll(ctx, peers, offer)
	}
	return g.verdict()
}

// look asks the other initial members once for a genesis, without wishing to
// found one. A life that joins goes on to do so: it may be listed in a genesis
// that cannot elect without it.
func (g *Genesis) look(ctx context.Context) {
	g.mu.Lock()
	peers, ask := g.mu.member.peers, g.mu.member.Ask(g.process, 0)
	g.mu.Unlock()
	ask.Kind = AskGenesis
	for _, a := range g.askAll(ctx, peers, ask) {
		if a == nil || a.Kind != AnswerGenesis {
			continue
		}
		if err := g.learn(ctx, a.Founding); err != nil {
			g.cfg.Logger.Debug("genesis of a peer not adopted", zap.Error(err))
		}
	}
}

// handOver is what a member does that met a cluster which nobody could show it
// the genesis of: it never founds from now on, and joins. If that genesis lists
// it, the cluster knows its nonce and tells it its place.
func (g *Genesis) handOver() error {
	return g.saved(func(m *Member) (changed bool) {
		g.mu.notListed = true
		return m.renounce()
	})
}

// notReached records that this node's own address does not lead to it.
func (g *Genesis) notReached(round *Round) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	defer g.noteLocked()
	self := g.mu.member.self
	g.mu.obstacles = nil
	for _, o := range round.Waiting() {
		if o.Peer == self {
			g.mu.obstacles = append(g.mu.obstacles, o)
		}
	}
	return g.mu.broken
}

// verdict is Run's result, if there is one already.
func (g *Genesis) verdict() (*Founding, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.mu.member.State.Adopted != nil:
		return g.mu.member.State.Adopted, nil
	case g.mu.broken != nil:
		return nil, g.mu.broken
	case g.mu.notListed:
		return nil, &NotListedError{g.cfg.Name, g.cfg.Nonce, slices.Clone(g.mu.others)}
	}
	return nil, nil
}

// askAll asks every peer at once and waits for all of them, each within
// PeerTimeout; result[i] is nil if peers[i] gave no proper answer.
func (g *Genesis) askAll(ctx context.Context, peers []Peer, ask Ask) []*Answer {
	answers := make([]*Answer, len(peers))
	var wg sync.WaitGroup
	for i, p := range peers {
		wg.Go(func() {
			if a, err := g.ask(ctx, p.Addr, ask); err == nil {
				answers[i] = a
			} else {
				g.cfg.Logger.Debug("no answer from an initial member", zap.String("peer", p.Name), zap.Error(err))
			}
		})
	}
	wg.Wait()
	return answers
}

func (g *Genesis) ask(ctx context.Context, addr string, ask Ask) (*Answer, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer g.cfg.Clock.AfterFunc(g.cfg.PeerTimeout, cancel).Stop()
	b, err := g.cfg.Caller.CallAddr(ctx, addr, Method, ask.Encode())
	if err != nil {
		return nil, err
	}
	a, err := DecodeAnswer(b)
	return &a, err
}

var errOtherFounder = errors.New("membership: this node last answered another founder, which has not renounced")

func (g *Genesis) noteOthersLocked(f *Founding) {
	for _, m := range f.Members {
		if !slices.Contains(g.mu.others, m.Addr) {
			g.mu.others = append(g.mu.others, m.Addr)
		}
	}
}

// learn takes a genesis, showing it first to the founder that was answered
// last if that is another.
func (g *Genesis) learn(ctx context.Context, f *Founding) error {
	var learned Learned
	var renounced raftlog.Nonce
	take := func(m *Member) (changed bool) {
		learned, changed = m.Learn(f, renounced)
		if learned == LearnedNotListed {
			g.mu.notListed = true
			g.noteOthersLocked(f)
		}
		return changed
	}
	if err := g.saved(take); err != nil || learned != LearnedShow {
		return err
	}
	g.mu.Lock()
	founder := g.mu.member.peers[0]
	show := g.mu.member.Ask(g.process, 0)
	g.mu.Unlock()
	show.Kind, show.Founding = AskShow, f
	a, err := g.ask(ctx, founder.Addr, show)
	if err != nil {
		return err
	}
	switch {
	case a.Kind == AnswerGenesis && a.Founding != nil:
		f = a.Founding // that life has founded, too: it is the one to follow
	case a.Kind == AnswerRenounced, a.Kind == AnswerMember: // who joined has not founded, and never will
		renounced = a.Nonce
	}
	if err := g.saved(take); err != nil {
		return err
	}
	if learned == LearnedShow {
		return errOtherFounder
	}
	return nil
}
