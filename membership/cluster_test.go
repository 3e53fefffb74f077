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

	mu         sync.Mutex
	nodes      map[string]*house // by address
	cut        map[string]bool   // addresses that nobody reaches, though their calls go out
	leader     raftlog.NodeID
	term       raftlog.Term
	changed    chan struct{}
	members    []metastore.Member
	conf       raftlog.ConfState
	version    uint64
	departures uint64 // changes of how far members are on their way out
	stones     map[raftlog.Nonce]metastore.Tombstone
	loads      map[raftlog.NodeID]uint64
	ids        uint64
	clockOff   time.Duration // of the wall clock that stamps come from
	events     []Event
	changes    int                        // of the state, and of the configuration
	crash      func(nth int) bool         // asked after each: does the leader crash now?
	left       map[raftlog.ReplicaID]bool // replicas that were taken out of the configuration
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
	h := &house{town: w, peer: Peer{name, name + ":1"}, disk: d, newest: 21, drains: func() (bool, uint64) { return true, 0 }}
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
