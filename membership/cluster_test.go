package membership

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// town is a cluster without raft and metadata: one state that all its nodes see
// at once, which changes only through the leader and only with a majority of its
// voters up. Time is virtual, everything else of membership is real.
type town struct {
	t       *testing.T
	ctx     context.Context
	running sync.WaitGroup
	logs    *observer.ObservedLogs
	logger  *zap.Logger
	founded *Founding

	mu       sync.Mutex
	nodes    map[string]*house // by address
	cut      map[string]bool   // addresses that nobody reaches, though their calls go out
	leader   raftlog.NodeID
	term     raftlog.Term
	changed  chan struct{}
	members  []metastore.Member
	conf     raftlog.ConfState
	version  uint64
	stones   map[raftlog.Nonce]metastore.Tombstone
	loads    map[raftlog.NodeID]uint64
	ids      uint64
	clockOff time.Duration // of the wall clock that stamps come from
	events   []Event
	changes  int                        // of the state, and of the configuration
	crash    func(nth int) bool         // asked after each: does the leader crash now?
	left     map[raftlog.ReplicaID]bool // replicas that were taken out of the configuration
}

// house is a node of a town: its disk, and what runs on it.
type house struct {
	*town
	peer     Peer
	disk     *disk
	newest   metastore.CommandType
	observer bool
	drains   func() (bool, uint64)

	genesis *Genesis
	place   Joined
	steward *Steward
	joiner  *Joiner
	end     context.CancelFunc
	ended   sync.WaitGroup
	removed error // what its drivers ended with

	downSince time.Time // zero: up
}

// newTown is a cluster of n members, a to ..., that runs; a leads.
func newTown(t *testing.T, n int) *town {
	core, logs := observer.New(zapcore.DebugLevel)
	w := &town{
		t: t, logs: logs, logger: zap.New(core), nodes: map[string]*house{}, cut: map[string]bool{}, changed: make(chan struct{}),
		version: 1, stones: map[raftlog.Nonce]metastore.Tombstone{}, loads: map[raftlog.NodeID]uint64{}, ids: 100,
		left: map[raftlog.ReplicaID]bool{},
	}
	ctx, cancel := context.WithCancel(t.Context())
	w.ctx = ctx
	w.founded = &Founding{ClusterID: raftlog.ClusterID{0xc1}, Founder: raftlog.Nonce{1}}
	for i := range n {
		name := string(rune('a' + i))
		w.founded.Members = append(w.founded.Members, FoundingMember{Name: name, Nonce: raftlog.Nonce{byte(i + 1)}, Addr: name + ":1"})
		r := raftlog.ReplicaID(i + 1)
		w.conf.Voters = append(w.conf.Voters, r)
		w.members = append(w.members, metastore.Member{Node: raftlog.NodeID(i + 1), Replica: r, Name: name, Nonce: raftlog.Nonce{byte(i + 1)}, Addr: name + ":1"})
	}
	for _, m := range w.founded.Members {
		w.start(m.Name, &disk{nonce: m.Nonce, state: State{Adopted: w.founded}.Encode()})
	}
	w.lead(1)
	t.Cleanup(func() {
		cancel()
		for _, h := range w.nodes {
			h.stop()
		}
		w.running.Wait()
	})
	return w
}

// start opens a node on a disk, and what it does then, as the root does it.
func (w *town) start(name string, d *disk, options ...func(*house)) *house {
	h := &house{town: w, peer: Peer{name, name + ":1"}, disk: d, newest: 19, drains: func() (bool, uint64) { return true, 0 }}
	for _, o := range options {
		o(h)
	}
	w.mu.Lock()
	if old := w.nodes[h.peer.Addr]; old != nil && old.downSince.IsZero() {
		w.mu.Unlock()
		w.t.Fatalf("%s is up", name)
	}
	w.nodes[h.peer.Addr] = h
	w.mu.Unlock()
	state, err := DecodeState(d.state)
	require.NoError(w.t, err)
	var peers []Peer
	if !h.outsider() {
		for _, m := range w.founded.Members {
			peers = append(peers, Peer{m.Name, m.Addr})
		}
	}
	h.genesis = NewGenesis(GenesisConfig{
		Cluster: "orders", Name: h.peer.Name, Peers: peers, Nonce: d.nonce, State: state,
		Save:   func(s State) error { d.state = s.Encode(); return d.fail },
		Caller: h, Clock: clock.System(), Logger: w.logger, Random: func(p []byte) { copy(p, d.nonce[:]) },
	})
	var addrs []string
	for _, m := range w.founded.Members {
		addrs = append(addrs, m.Addr)
	}
	h.joiner = NewJoiner(JoinerConfig{
		Name: h.peer.Name, Nonce: d.nonce, Addr: h.peer.Addr, Newest: h.newest, Observer: h.observer, Peers: addrs,
		Caller: h, Leader: h.Leader, Clock: clock.System(), Logger: w.logger.With(zap.String("node", name)),
	})
	ctx, cancel := context.WithCancel(w.ctx)
	h.end = cancel
	h.ended.Go(func() { h.live(ctx) })
	return h
}

// outsider reports whether the node is no initial member.
func (h *house) outsider() bool {
	return !slices.ContainsFunc(h.founded.Members, func(m FoundingMember) bool { return m.Name == h.peer.Name })
}

func (h *house) live(ctx context.Context) {
	state, err := Enter(ctx, h.genesis, h.joiner)
	if err != nil {
		h.over(err)
		return
	}
	place, ok := state.Place(h.peer.Name, h.disk.nonce)
	require.True(h.t, ok)
	steward, err := NewSteward(StewardConfig{
		Place: place, Nonce: h.disk.nonce, Newest: h.newest, Meta: h, Group: h, Caller: h, Backlog: func() (bool, uint64) { return h.drains() },
		Clock: clock.System(), Logger: h.logger.With(zap.String("node", h.peer.Name)), Tick: 50 * time.Millisecond,
		Random: func(p []byte) { p[0] = 1 }, OnEvent: h.onEvent,
	})
	require.NoError(h.t, err)
	h.town.mu.Lock()
	h.place, h.steward = place, steward
	h.town.mu.Unlock()
	says := MemberRequest{Node: place.Node, Nonce: h.disk.nonce, Addr: h.peer.Addr, Newest: h.newest}
	to := ToLeader{Self: place.Node, Leader: h.Leader, Here: steward.HandleCall, Caller: h, Clock: clock.System()}
	h.ended.Go(func() { h.over(steward.Run(ctx)) })
	h.ended.Go(func() { h.over(h.joiner.Run(ctx, state.Joined != nil)) })
	h.ended.Go(func() {
		h.over(NewHeartbeater(HeartbeaterConfig{ToLeader: to, Says: says, Logger: h.logger}).Run(ctx))
	})
	if !h.observer {
		h.ended.Go(func() {
			h.over(NewPromoter(PromoterConfig{
				ToLeader: to, Says: says, Replica: place.Replica, Conf: func() raftlog.ConfState { return h.Status().Conf },
				Logger: h.logger.With(zap.String("node", h.peer.Name)),
			}).Run(ctx))
		})
	}
}

// over notes what a driver ended with; the first to be told that the node was
// removed ends the others.
func (h *house) over(err error) {
	h.town.mu.Lock()
	defer h.town.mu.Unlock()
	var removed *RemovedError
	if errors.As(err, &removed) && h.removed == nil {
		h.removed = err
		h.end()
	}
}

func (h *house) onEvent(e Event) {
	h.town.mu.Lock()
	defer h.town.mu.Unlock()
	h.events = append(h.events, e)
}

// stop is a crash: nothing is said. The disk stays.
func (h *house) stop() {
	h.town.mu.Lock()
	if h.downSince.IsZero() {
		h.downSince = time.Now()
	}
	if h.leader == h.place.Node && h.leader != 0 {
		h.leadLocked(0)
	}
	h.town.mu.Unlock()
	h.end()
	h.ended.Wait()
}

func (w *town) house(name string) *house {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.nodes[name+":1"]
}

// lead makes a node the leader; 0: nobody leads.
func (w *town) lead(node raftlog.NodeID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.leadLocked(node)
}

func (w *town) leadLocked(node raftlog.NodeID) {
	w.leader = node
	if node != 0 {
		w.term++
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

// elect makes a voter lead that is up, as an election would.
func (w *town) electLocked(but raftlog.NodeID) {
	for _, h := range w.nodes {
		if h.downSince.IsZero() && h.place.Node != but && h.place.Node != 0 && SeatOf(w.conf, h.place.Replica) == SeatVoter && !w.cut[h.peer.Addr] {
			w.leadLocked(h.place.Node)
			return
		}
	}
	w.leadLocked(0)
}

// quorumLocked reports whether a majority of the voters is up.
func (w *town) quorumLocked(conf raftlog.ConfState) bool {
	n := 0
	for _, h := range w.nodes {
		if h.downSince.IsZero() && !w.cut[h.peer.Addr] && slices.Contains(conf.Voters, h.place.Replica) {
			n++
		}
	}
	return n > len(conf.Voters)/2
}

// CallAddr and Call are the network: a millisecond to whoever is up.
func (h *house) CallAddr(ctx context.Context, addr, method string, req []byte) ([]byte, error) {
	h.town.mu.Lock()
	to := h.nodes[addr]
	silent := to == nil || !to.downSince.IsZero() || h.cut[addr]
	h.town.mu.Unlock()
	if silent {
		<-ctx.Done()
		return nil, raftlog.Unknown(ctx.Err())
	}
	if err := rest(ctx, clock.System(), time.Millisecond, nil); err != nil {
		return nil, raftlog.Unknown(err)
	}
	h.town.mu.Lock()
	steward := to.steward
	h.town.mu.Unlock()
	switch {
	case method == Method:
		return to.genesis.HandleCall(ctx, req)
	case steward == nil:
		return Unconfigured(to.disk.nonce), nil
	}
	return steward.HandleCall(ctx, method, req)
}

func (h *house) Call(ctx context.Context, to raftlog.NodeID, method string, req []byte) ([]byte, error) {
	h.town.mu.Lock()
	addr := ""
	for _, m := range h.members {
		if m.Node == to {
			addr = m.Addr
		}
	}
	h.town.mu.Unlock()
	if addr == "" {
		return nil, raftlog.Retry(errors.New("no address"))
	}
	return h.CallAddr(ctx, addr, method, req)
}

// What follows is the metadata and the raft group, as one node sees them.

func (h *house) Leader() (raftlog.NodeID, <-chan struct{}) {
	h.town.mu.Lock()
	defer h.town.mu.Unlock()
	// A node that raft does not reach sees no leader.
	if h.steward == nil || h.cut[h.peer.Addr] || SeatOf(h.conf, h.place.Replica) == SeatNone {
		return 0, h.changed
	}
	return h.leader, h.changed
}

func (h *house) Status() raftlog.Status {
	h.town.mu.Lock()
	defer h.town.mu.Unlock()
	st := raftlog.Status{Role: raftlog.RoleFollower, Term: h.term, Conf: h.conf, ConfSafe: true}
	if h.place.Node == 0 || h.leader != h.place.Node {
		return st
	}
	st.Role = raftlog.RoleLeaderActive
	for _, r := range slices.Concat(h.conf.Voters, h.conf.Learners) {
		p := raftlog.Progress{Replica: r, Learner: SeatOf(h.conf, r) == SeatLearner, Match: 10, SinceContact: -1, SinceCaughtUp: -1}
		for _, n := range h.nodes {
			if n.place.Replica != r || h.cut[n.peer.Addr] {
				continue
			}
			p.SinceContact = 0
			if !n.downSince.IsZero() {
				p.SinceContact = int(time.Since(n.downSince) / (50 * time.Millisecond))
			}
			p.SinceCaughtUp = p.SinceContact
		}
		if p.SinceContact != 0 {
			st.Unsettled = append(st.Unsettled, r)
		}
		st.Progress = append(st.Progress, p)
	}
	return st
}

func (h *house) Barrier(ctx context.Context) error {
	if err := rest(ctx, clock.System(), time.Millisecond, nil); err != nil {
		return raftlog.Retry(err)
	}
	return h.change(true, func() error { return nil })
}

// change is a proposal. A leader may crash after it was applied, before it
// answers.
func (h *house) change(read bool, apply func() error) error {
	h.town.mu.Lock()
	defer h.town.mu.Unlock()
	if h.leader != h.place.Node || h.leader == 0 {
		return &raftlog.NotLeaderError{Group: raftlog.MetadataGroup, Node: h.leader}
	}
	if !h.quorumLocked(h.conf) {
		return raftlog.Unknown(errors.New("no quorum"))
	}
	err := apply()
	if read || err != nil {
		return err
	}
	h.changes++
	if h.crash != nil && h.crash(h.changes) {
		h.downSince = time.Now()
		h.end()
		h.electLocked(h.place.Node)
		return raftlog.Unknown(raftlog.ErrLeadershipLost)
	}
	return nil
}

func (h *house) Members() []metastore.Member {
	h.town.mu.Lock()
	defer h.town.mu.Unlock()
	return slices.Clone(h.members)
}

func (h *house) ClusterVersion() uint64 {
	h.town.mu.Lock()
	defer h.town.mu.Unlock()
	return h.version
}

func (h *house) NewestApplied() metastore.CommandType {
	if h.ClusterVersion() == 1 {
		return 9
	}
	return 19
}

func (h *house) Tombstone(n raftlog.Nonce) (metastore.Tombstone, bool, error) {
	h.town.mu.Lock()
	defer h.town.mu.Unlock()
	t, ok := h.stones[n]
	return t, ok, nil
}

func (h *house) Load(node raftlog.NodeID) (uint64, uint64, error) {
	h.town.mu.Lock()
	defer h.town.mu.Unlock()
	return h.loads[node], 0, nil
}

func (w *town) stampLocked(stored metastore.Stamp) metastore.Stamp {
	return max(metastore.Stamp(time.Now().Add(w.clockOff).UnixMilli()), stored+1)
}

func (w *town) memberLocked(node raftlog.NodeID) *metastore.Member {
	for i := range w.members {
		if w.members[i].Node == node {
			return &w.members[i]
		}
	}
	return nil
}

func (h *house) Admit(_ context.Context, a metastore.Admission) (m metastore.Member, err error) {
	err = h.change(false, func() error {
		if t, ok := h.stones[a.Nonce]; ok {
			if t.Refused {
				return metastore.ErrNonceRefused
			}
			return &metastore.RemovedError{Node: t.Node, Name: t.Name}
		}
		var holder *metastore.Member
		for i := range h.members {
			if h.members[i].Nonce == a.Nonce {
				m = h.members[i]
				return nil
			}
			if h.members[i].Name == a.Name {
				holder = &h.members[i]
			}
		}
		if holder != nil {
			if a.Replaces != holder.Node {
				return metastore.ErrNameTaken
			}
			if holder.Liveness.Stamp != a.Seen {
				h.stones[a.Nonce] = metastore.Tombstone{Nonce: a.Nonce, Refused: true}
				return metastore.ErrNonceRefused
			}
		}
		h.ids++
		m = metastore.Member{
			Node: raftlog.NodeID(h.ids), Replica: raftlog.ReplicaID(1000 + h.ids), Name: a.Name, Nonce: a.Nonce, Addr: a.Addr,
			Liveness: metastore.Liveness{Stamp: h.stampLocked(0), Newest: a.Newest, Observer: a.Observer, Replaces: a.Replaces},
		}
		h.members = append(slices.Clone(h.members), m)
		return nil
	})
	return m, err
}

func (h *house) SetAddress(_ context.Context, node raftlog.NodeID, nonce raftlog.Nonce, addr string) error {
	h.town.mu.Lock()
	defer h.town.mu.Unlock()
	if m := h.memberLocked(node); m != nil && m.Nonce == nonce {
		m.Addr = addr
		return nil
	}
	return metastore.ErrMemberNotFound
}

func (h *house) RecordHeartbeats(_ context.Context, beats []metastore.Heartbeat) ([]error, error) {
	results := make([]error, len(beats))
	return results, h.change(false, func() error {
		for i, b := range beats {
			m := h.memberLocked(b.Node)
			if m == nil || m.Nonce != b.Nonce {
				results[i] = metastore.ErrMemberNotFound
				continue
			}
			m.Liveness.Stamp, m.Liveness.Newest, m.Liveness.Dead = h.stampLocked(m.Liveness.Stamp), b.Newest, false
		}
		return nil
	})
}

func (h *house) MarkDead(_ context.Context, marks []metastore.DeadMark) ([]error, error) {
	results := make([]error, len(marks))
	return results, h.change(false, func() error {
		for i, mark := range marks {
			if m := h.memberLocked(mark.Node); m.Liveness.Stamp != mark.Judged {
				results[i] = metastore.ErrStale
			} else {
				m.Liveness.Dead = true
			}
		}
		return nil
	})
}

func (h *house) SetDeparture(_ context.Context, node raftlog.NodeID, nonce raftlog.Nonce, d metastore.Departure) error {
	return h.change(false, func() error { return h.departLocked(node, nonce, d) })
}

func (w *town) departLocked(node raftlog.NodeID, nonce raftlog.Nonce, d metastore.Departure) error {
	m := w.memberLocked(node)
	switch {
	case m == nil || m.Nonce != nonce:
		return metastore.ErrMemberNotFound
	case m.Liveness.Departure == metastore.Leaves && d != metastore.Leaves:
		return metastore.ErrMemberLeaving
	case d == metastore.Leaves && m.Liveness.Departure == metastore.Stays:
		return metastore.ErrNotDraining
	}
	m.Liveness.Departure = d
	return nil
}

// drain is what a person does.
func (w *town) drain(name string, d metastore.Departure) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.members {
		if m.Name == name {
			return w.departLocked(m.Node, m.Nonce, d)
		}
	}
	return metastore.ErrMemberNotFound
}

func (h *house) RemoveMember(_ context.Context, node raftlog.NodeID) error {
	return h.change(false, func() error {
		m := h.memberLocked(node)
		switch {
		case m == nil:
			return nil
		case m.Liveness.Departure != metastore.Leaves:
			return metastore.ErrNotLeaving
		case h.loads[node] > 0 || SeatOf(h.conf, m.Replica) != SeatNone:
			return metastore.ErrMemberInUse
		}
		h.stones[m.Nonce] = metastore.Tombstone{Node: node, Nonce: m.Nonce, Name: m.Name}
		h.members = slices.DeleteFunc(slices.Clone(h.members), func(m metastore.Member) bool { return m.Node == node })
		return nil
	})
}

func (h *house) SetVersion(_ context.Context, v uint64) error {
	return h.change(false, func() error { h.version = v; return nil })
}

func (h *house) ChangeMembers(ctx context.Context, c raftlog.Change) error {
	if err := rest(ctx, clock.System(), 10*time.Millisecond, nil); err != nil {
		return raftlog.Unknown(err)
	}
	return h.change(false, func() error {
		for _, r := range c.Voters {
			if SeatOf(h.conf, r) != SeatLearner {
				return &raftlog.ChangeError{Replica: r, Reason: "is to vote and is no learner"}
			}
		}
		for _, r := range slices.Concat(c.Remove, c.Learners) {
			if r == h.place.Replica {
				return &raftlog.ChangeError{Replica: r, Reason: "leads"}
			}
		}
		f := &Facts{Conf: h.conf}
		to := f.after(c)
		if !h.quorumLocked(to) {
			h.t.Errorf("a change to %v would have stopped the cluster", to.Voters)
			return raftlog.Unknown(errors.New("no quorum"))
		}
		for _, r := range slices.Concat(c.Learners, c.Voters) {
			if h.left[r] {
				h.t.Errorf("a second stint of %v", r)
			}
		}
		for _, r := range c.Remove {
			h.left[r] = true
		}
		h.conf = to
		close(h.changed) // who is out of it sees no leader any more
		h.changed = make(chan struct{})
		return nil
	})
}

func (h *house) Resign(_ context.Context, successors ...raftlog.ReplicaID) error {
	h.town.mu.Lock()
	defer h.town.mu.Unlock()
	if h.leader != h.place.Node {
		return &raftlog.NotLeaderError{Group: raftlog.MetadataGroup}
	}
	for _, r := range successors {
		for _, n := range h.nodes {
			if n.place.Replica == r && n.downSince.IsZero() {
				h.leadLocked(n.place.Node)
				return nil
			}
		}
	}
	h.electLocked(h.place.Node)
	return nil
}

// Questions of tests.

// voters and learners are names, sorted; a replica without a member is its id.
func (w *town) voters() []string {
	return w.names(func(c raftlog.ConfState) []raftlog.ReplicaID { return c.Voters })
}
func (w *town) learners() []string {
	return w.names(func(c raftlog.ConfState) []raftlog.ReplicaID { return c.Learners })
}

func (w *town) names(of func(raftlog.ConfState) []raftlog.ReplicaID) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	names := map[string]bool{}
	for _, r := range of(w.conf) {
		name := fmt.Sprint(r)
		for _, m := range w.members {
			if m.Replica == r {
				name = m.Name
			}
		}
		names[name] = true
	}
	return slices.Sorted(maps.Keys(names))
}

func (w *town) member(name string) (newest metastore.Member) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.members {
		if m.Name == name {
			newest = m
		}
	}
	return newest
}

// happened counts the events of a kind.
func (w *town) happened(kind EventKind) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// ask is a call of membership at a node that answers.
func (w *town) ask(name, method string, req []byte) Reply {
	w.t.Helper()
	b, err := w.house(name).steward.HandleCall(w.t.Context(), method, req)
	require.NoError(w.t, err)
	r, err := DecodeReply(b)
	require.NoError(w.t, err)
	return r
}

// await waits until ok, for d of virtual time at most, and returns how long.
func (w *town) await(d time.Duration, ok func() bool, what string) time.Duration {
	w.t.Helper()
	began := time.Now()
	for !ok() {
		if time.Since(began) > d {
			w.t.Fatalf("not within %v: %s", d, what)
		}
		time.Sleep(100 * time.Millisecond)
	}
	return time.Since(began)
}

// in runs a story in virtual time.
func in(t *testing.T, members int, story func(t *testing.T, w *town)) {
	synctest.Test(t, func(t *testing.T) { story(t, newTown(t, members)) })
}

// ready waits until the cluster can take nodes in.
func (w *town) ready() {
	w.await(time.Minute, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.version == 2
	}, "version 2")
}

// What membership asks for is what the packages below have.
var (
	_ Metadata = (*metastore.Store)(nil)
	_ Group    = (*raftlog.Group)(nil)
)
