package membership

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// StewardConfig is what a Steward needs. All fields but Rules, the durations and
// the functions that may be nil must be set.
type StewardConfig struct {
	Place  Joined // of this node in its cluster
	Nonce  raftlog.Nonce
	Newest metastore.CommandType // that this build applies
	Meta   Metadata
	Group  Group
	Caller NodeCaller
	// Backlog says whether this node knows that it is draining and, if so, how many
	// bytes of records it accepted before and has not answered.
	Backlog func() (draining bool, bytes uint64)
	Clock   clock.Clock
	Logger  *zap.Logger
	// Random fills p with random bytes.
	Random func(p []byte)
	// OnEvent is told what happens to members, by the leader alone. It must not
	// block. nil: nobody is told.
	OnEvent func(Event)
	// Stuck says whether replicas of a node that leaves have nowhere to go, which the
	// partitions know. nil: they never do.
	Stuck func(raftlog.NodeID) (Block, bool)
	// Addr is where a member is reached, if that is known better than the metadata
	// do; "": as they say. It must not block. nil: always so.
	Addr func(raftlog.NodeID) string
	// Out reports whether this node knows that it is no member any more. nil: never.
	Out func() bool

	Rules Rules
	Tick  time.Duration // of the raft group
	// Every is the time between two passes; default 1 s.
	Every time.Duration
	// FlushEvery is how often heartbeats are recorded; default 5 s.
	FlushEvery time.Duration
}

// Steward looks after the members while its node leads group 1, and answers
// what members and joiners ask. Every node has one; of those that do not lead it
// only names the leader, and answers for its own node.
type Steward struct {
	cfg   StewardConfig
	start time.Time
	poke  chan struct{}
	// seats is held by who decides about a change of the configuration until it is
	// applied: two decisions on the same facts could both be right alone.
	seats chan struct{}

	mu struct {
		sync.Mutex
		tenure  *tenure // nil while this node does not lead
		flushed time.Duration
		urgent  bool // a heartbeat says more than the last one
		calling map[raftlog.NodeID]bool
		spared  bool     // the breaker tripped in the last pass
		behind  []string // who held the version back when that was said last
		told    map[string]string
		// strangers are lives that stay out, by when that was logged.
		strangers map[raftlog.Nonce]time.Duration
		gauges    Gauges
		named     uint64 // members, by this node when it was none any more
	}
}

// Gauges are what a leader shows of its members.
type Gauges struct {
	Voters, Learners, Dead int
	Spared                 int // silent voters that are not marked dead: too few would be left
	Leaving                int
	Strays                 int // voters that no member is
}

// NewSteward prepares a steward; nothing is done before Run. A *ConfigError says
// which rule is out of range.
func NewSteward(cfg StewardConfig) (*Steward, error) {
	cfg.Rules = cfg.Rules.WithDefaults()
	if err := cfg.Rules.Validate(); err != nil {
		return nil, err
	}
	if cfg.Tick <= 0 {
		return nil, &ConfigError{"Tick", cfg.Tick, "the tick of the raft group"}
	}
	if cfg.Every == 0 {
		cfg.Every = time.Second
	}
	if cfg.FlushEvery == 0 {
		cfg.FlushEvery = 5 * time.Second
	}
	s := &Steward{cfg: cfg, start: cfg.Clock.Now(), poke: make(chan struct{}, 1), seats: make(chan struct{}, 1)}
	s.mu.calling = map[raftlog.NodeID]bool{}
	s.mu.told = map[string]string{}
	s.mu.strangers = map[raftlog.Nonce]time.Duration{}
	return s, nil
}

// now is the time since the steward was made, by the monotonic clock.
func (s *Steward) now() time.Duration { return s.cfg.Clock.Now().Sub(s.start) }

// Run looks after the members until ctx ends, and returns its cause. Beside the
// caller's goroutine there are one that notices pauses of the process and, while
// this node leads, one for each call to a node.
func (s *Steward) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { s.pulse(ctx) })
	timer := s.cfg.Clock.NewTimer(s.cfg.Every)
	defer timer.Stop()
	for {
		select {
		case <-timer.C():
		case <-s.poke:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		s.pass(ctx, &running)
		timer.Reset(s.cfg.Every)
	}
}

// wake has the next pass come at once.
func (s *Steward) wake() {
	select {
	case s.poke <- struct{}{}:
	default:
	}
}

func (s *Steward) pulse(ctx context.Context) {
	ticker := s.cfg.Clock.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C():
		case <-ctx.Done():
			return
		}
		s.mu.Lock()
		if s.mu.tenure != nil {
			s.mu.tenure.pulse(s.now())
		}
		s.mu.Unlock()
	}
}

// pass is one look at everything. Each begins with a barrier, so that what it
// decides on is not older than what anybody was told; it is made of steps that
// the next pass, here or elsewhere, would repeat if they did not come about.
func (s *Steward) pass(ctx context.Context, running *sync.WaitGroup) {
	st := s.cfg.Group.Status()
	if st.Role != raftlog.RoleLeaderActive {
		s.retire()
		return
	}
	if s.cfg.Meta.Barrier(ctx) != nil || !s.begin(st.Term) {
		return
	}
	s.flush(ctx)
	f := s.Facts()
	if !f.Leads {
		return
	}
	s.count(f)
	s.raiseVersion(ctx, f)
	s.judge(ctx, f)
	s.burn(ctx, f)
	s.noteStrays(f)
	for _, change := range []func(*Facts) *raftlog.Change{Seats, Strays, Standby} {
		_ = s.changeSeats(ctx, change) // what did not come about is decided anew
	}
	s.visit(ctx, f, running)
	s.seeOff(ctx, f)
}

// retire forgets the leadership.
func (s *Steward) retire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.tenure = nil
	s.mu.gauges = Gauges{}
	clear(s.mu.told)
}

// begin reports whether this node still leads in the term in which a barrier was
// passed, and begins that leadership.
func (s *Steward) begin(term raftlog.Term) bool {
	if st := s.cfg.Group.Status(); st.Term != term || st.Role != raftlog.RoleLeaderActive {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.tenure == nil || s.mu.tenure.term != term {
		s.mu.tenure = newTenure(term)
		s.mu.flushed = s.now()
		s.mu.spared, s.mu.behind = false, nil
	}
	s.mu.tenure.begin(s.now())
	return true
}

// Facts returns what this node knows now. Of a node that does not lead, or has
// not passed a barrier in its term, they say so.
func (s *Steward) Facts() *Facts {
	take := sample{
		rules: s.cfg.Rules, self: s.cfg.Place.Node, segmentBytes: s.cfg.Place.SegmentBytes, newest: s.cfg.Newest, tick: s.cfg.Tick,
		status: s.cfg.Group.Status(), members: s.cfg.Meta.Members(), version: s.cfg.Meta.ClusterVersion(),
		applied: s.cfg.Meta.NewestApplied(), load: s.load,
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.mu.tenure
	if t == nil {
		t = newTenure(0)
	}
	return t.facts(take, s.now())
}

// load is how many partition replicas a node has. What cannot be read counts as
// some: nobody is removed on it.
func (s *Steward) load(node raftlog.NodeID) uint64 {
	n, _, err := s.cfg.Meta.Load(node)
	if err != nil {
		return 1
	}
	return n
}

// Gauges returns what the last pass counted; zero unless this node leads.
func (s *Steward) Gauges() Gauges {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.gauges
}

func (s *Steward) count(f *Facts) {
	var g Gauges
	for i := range f.Members {
		k := &f.Members[i]
		switch k.Seat {
		case SeatVoter:
			g.Voters++
		case SeatLearner:
			g.Learners++
		}
		if k.Liveness.Dead {
			g.Dead++
		}
		if k.Liveness.Draining() {
			g.Leaving++
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	g.Spared, g.Strays = s.mu.gauges.Spared, s.mu.gauges.Strays
	s.mu.gauges = g
}

// EventKind is what happened to a member.
type EventKind string

// What an Event tells.
const (
	EventAdmitted EventKind = "admitted" // a new member
	EventReplaced EventKind = "replaced" // a new member, in the place of a life of its name
	EventRefused  EventKind = "refused"  // a life that never will be one
	EventOlder    EventKind = "older"    // a joiner whose build is too old: once a minute
	EventDeferred EventKind = "deferred" // a learner that asks for a vote and gets none, for a new reason
	EventPromoted EventKind = "promoted"
	EventDead     EventKind = "dead"
	EventSpared   EventKind = "spared" // voters are silent, and not marked: too few would be left
	EventStep     EventKind = "step"   // of a member that leaves; Reason names it
	EventBlocked  EventKind = "blocked"
	EventRemoved  EventKind = "removed"
	EventVersion  EventKind = "version" // of the cluster
	// EventStray: a replica that no member is votes on the metadata.
	EventStray EventKind = "stray"
	// EventForgotten: a replica that no member is was taken out of group 1.
	EventForgotten EventKind = "forgotten"
)

// Event is something that happened to a member, as the leader saw it.
type Event struct {
	Kind   EventKind
	Node   raftlog.NodeID // 0: none
	Name   string
	Reason string
}

func (s *Steward) tell(e Event) {
	if s.cfg.OnEvent != nil {
		s.cfg.OnEvent(e)
	}
}

// Plan says what a decommission of a member would do, and what blocks it, as far
// as any member can tell: it may be asked on every node, and is as new as the
// metadata there. Errors as of PlanDecommission.
func (s *Steward) Plan(node raftlog.NodeID, force bool) (Plan, error) {
	leader, _ := s.cfg.Meta.Leader()
	f := Outline(s.cfg.Rules, s.cfg.Meta.Members(), s.cfg.Group.Status().Conf, leader, s.load)
	return PlanDecommission(f, node, force)
}

// Next says what is to be done next for a member that leaves, as far as this node
// knows: whoever leads knows all of it, the member itself what it has not answered,
// and others say StepBacklog without a reason as long as they cannot tell. It is
// StepNone for a member that stays, and for none.
func (s *Steward) Next(node raftlog.NodeID) Next {
	departures := s.cfg.Meta.Departures()
	f := s.Facts()
	var b Backlog
	if f.Leads {
		if k := f.member(node); k != nil {
			s.mu.Lock()
			b = s.mu.tenure.backlogOf(k, departures)
			s.mu.Unlock()
		}
	} else {
		leader, _ := s.cfg.Meta.Leader()
		f = Outline(s.cfg.Rules, s.cfg.Meta.Members(), s.cfg.Group.Status().Conf, leader, s.load)
	}
	if node == s.cfg.Place.Node {
		b.Asked = true
		b.Known, b.Count = s.cfg.Backlog()
	}
	n := NextStep(f, node, b)
	if n.Step == StepBacklog && !b.Asked && n.Blocked == 0 {
		n.Reason = "" // it may have told who leads
	}
	return n
}
