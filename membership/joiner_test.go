package membership

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/raftlog"
)

// script answers at addresses; who is not in it is silent.
type script struct {
	mu      sync.Mutex
	answers map[string]func() ([]byte, error)
	asked   []string
	at      []time.Duration // since the script was made
	began   time.Time
}

func newScript() *script {
	return &script{answers: map[string]func() ([]byte, error){}, began: time.Now()}
}

func (s *script) CallAddr(ctx context.Context, addr, _ string, _ []byte) ([]byte, error) {
	s.mu.Lock()
	answer := s.answers[addr]
	s.asked, s.at = append(s.asked, addr), append(s.at, time.Since(s.began))
	s.mu.Unlock()
	if answer == nil {
		<-ctx.Done()
		return nil, errNobody
	}
	return answer()
}

func (s *script) says(addr string, r Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[addr] = func() ([]byte, error) { return r.Encode(), nil }
}

// took returns who was asked since the last time.
func (s *script) took() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	asked := s.asked
	s.asked, s.at = nil, nil
	return asked
}

func (s *script) joiner(peers ...string) *Joiner {
	return NewJoiner(JoinerConfig{
		Name: "z", Nonce: raftlog.Nonce{99}, Addr: "z:1", Newest: 19, Peers: peers, Caller: s,
		CheckAddr: func(a string) bool { return a != "bad" }, Clock: clock.System(), Logger: zap.NewNop(),
	})
}

func acceptance() Reply {
	return Reply{
		Kind: ReplyAccepted, Status: StatusStaged, Node: 9, Replica: 900, ClusterID: raftlog.ClusterID{1},
		Members: []Reached{{5, 500, "e", "e:1"}, {9, 900, "z", "z:1"}},
	}
}

// Property: J7, R20 (red: only the peers were asked)
//
// All peers of the configuration are gone: who is a member, or was one, asks those
// that its own metadata name, the newest leaders first all the same.
func TestMembersAreAskedWhenAllPeersAreGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScript()
		j := s.joiner("a", "b")
		known := []string{"z:1", "b", "c", "d"}
		j.cfg.Known = func() []string { return known }
		s.says("c", Reply{Kind: ReplyNotLeader, Addr: "e"})
		s.says("e", Reply{Kind: ReplyRemoved, Reason: "gone"})
		s.says("d", Reply{Kind: ReplyNotLeader})
		_, err := j.Once(t.Context())
		var removed *RemovedError
		require.ErrorAs(t, err, &removed)
		require.Equal(t, []string{"a", "b", "c", "e", "d"}, s.took(), "itself not, and nobody twice")
		known = []string{"f"}
		s.says("f", acceptance())
		_, err = j.Once(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"e", "a", "b", "f"}, s.took())
	})
}

// Property: J6, J7 (red: garbage ended the walk; the id alone of no use)
func TestALeaderIsFoundThatNoPeerKnows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScript()
		j := s.joiner("a", "b", "c", "d", "f")
		// Every kind of useless answer, and the leader at the end of a chain.
		s.says("a", Reply{Kind: ReplyUnconfigured, Nonce: raftlog.Nonce{1}})
		s.answers["b"] = func() ([]byte, error) { return []byte("garbage"), nil }
		s.answers["c"] = func() ([]byte, error) { return nil, errors.New("refused") }
		s.says("f", Reply{Kind: ReplyNotLeader, Leader: 2, Addr: "x"})
		s.says("x", Reply{Kind: ReplyNotLeader, Addr: "bad"})
		_, err := j.Once(t.Context())
		require.ErrorIs(t, err, ErrNoLeader)
		require.Equal(t, []string{"a", "b", "c", "d", "f", "x"}, s.took())

		s.says("x", Reply{Kind: ReplyNotLeader, Addr: "e:1"})
		s.says("e:1", acceptance())
		reply, err := j.Once(t.Context())
		require.NoError(t, err)
		require.Equal(t, acceptance(), reply)
		require.Equal(t, []string{"x", "e:1"}, s.took(), "what was a leader once is asked first")

		// By now nobody names it, and the peers know nothing of it.
		for _, a := range []string{"a", "b", "c", "d", "f", "x"} {
			s.says(a, Reply{Kind: ReplyNotLeader})
		}
		_, err = j.Once(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"e:1"}, s.took())

		// It lost its address; a peer knows the leader's id, and a leader told once
		// where that is.
		delete(s.answers, "e:1")
		s.says("a", Reply{Kind: ReplyNotLeader, Leader: 5})
		j.leaders = Leaders{}
		s.says("e:1", acceptance())
		_, err = j.Once(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"a", "e:1"}, s.took())
	})
}

// Property: J7 (red: a fifth followed)
func TestFourHintsAreFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScript()
		j := s.joiner("h0", "last")
		for i, h := range []string{"h0", "h1", "h2", "h3", "h4", "h5"} {
			s.says(h, Reply{Kind: ReplyNotLeader, Addr: "h" + string(rune('1'+i))})
		}
		s.says("last", Reply{Kind: ReplyAccepted, Status: StatusDeferred, Reason: "later"})
		_, err := j.Once(t.Context())
		var deferred *DeferredError
		require.ErrorAs(t, err, &deferred)
		require.ErrorIs(t, err, raftlog.ErrRetry)
		require.Equal(t, []string{"h0", "h1", "h2", "h3", "h4", "last"}, s.took())
		require.Equal(t, []string{"last", "h5", "h4", "h3", "h2", "h1"}, j.leaders.All(), "the next attempt begins there")
	})
}

// Property: J6, J12 (red: removed ended the walk; the last answer counted)
func TestTheMostFinalAnswerOfAnAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScript()
		s.says("a", Reply{Kind: ReplyRemoved, Reason: "gone"})
		s.says("b", Reply{Kind: ReplyOlderRelease, Need: 20})
		s.says("c", Reply{Kind: ReplyAccepted, Status: StatusDeferred})
		var removed *RemovedError
		_, err := s.joiner("c", "b", "a", "d").Once(t.Context())
		require.ErrorAs(t, err, &removed)
		require.ErrorIs(t, err, raftlog.ErrRefused)
		require.Equal(t, []string{"c", "b", "a", "d"}, s.took(), "nobody's answer ends the walk")
		var older *OlderReleaseError
		_, err = s.joiner("b", "c").Once(t.Context())
		require.ErrorAs(t, err, &older)
		require.ErrorIs(t, err, raftlog.ErrRefused)
		s.says("d", acceptance())
		_, err = s.joiner("a", "d").Once(t.Context())
		require.NoError(t, err, "who is accepted was not removed")

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = s.joiner("nobody").Once(ctx)
		require.ErrorIs(t, err, context.Canceled)
	})
}

// view is a replica that sees a leader or does not.
type view struct {
	mu      sync.Mutex
	leader  raftlog.NodeID
	changed chan struct{}
}

func (v *view) get() (raftlog.NodeID, <-chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.leader, v.changed
}

func (v *view) set(leader raftlog.NodeID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.leader = leader
	close(v.changed)
	v.changed = make(chan struct{})
}

// Property: J5, J14 (red: an acceptance ended it; at once)
func TestAMemberWithoutALeaderAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScript()
		s.says("a", Reply{Kind: ReplyNotLeader})
		v := &view{leader: 1, changed: make(chan struct{})}
		j := s.joiner("a")
		j.cfg.Leader = v.get
		var reached [][]Reached
		j.cfg.Reached = func(m []Reached) { reached = append(reached, m) }
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- j.Run(ctx, false) }()

		time.Sleep(time.Hour)
		require.Empty(t, s.took(), "it sees a leader")
		v.set(0)
		time.Sleep(14900 * time.Millisecond)
		require.Empty(t, s.took(), "not for long enough")
		time.Sleep(200 * time.Millisecond)
		require.Equal(t, []string{"a"}, s.took())
		for range 10 { // elections come and go
			time.Sleep(100 * time.Millisecond)
			v.set(0)
		}
		require.Empty(t, s.took())
		time.Sleep(59 * time.Second)
		require.Len(t, s.took(), 30, "every 2 s")

		// A leader accepts it. That alone does not end it.
		s.says("a", acceptance())
		time.Sleep(20 * time.Second)
		require.Len(t, s.took(), 10)
		synctest.Wait()
		require.Equal(t, acceptance().Members, reached[0])
		v.set(5)
		time.Sleep(time.Hour)
		require.Empty(t, s.took())

		v.set(0)
		s.says("a", Reply{Kind: ReplyRemoved, Reason: "gone"})
		time.Sleep(16 * time.Second)
		var removed *RemovedError
		require.ErrorAs(t, <-ended, &removed)
		cancel()
	})
}

// Property: R20 (red: it was patient, for 15 s)
func TestAMemberThatIsOutOfTheGroupAsksAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScript()
		s.says("a", acceptance()) // its record is not removed yet
		v := &view{leader: 1, changed: make(chan struct{})}
		var out atomic.Bool
		j := s.joiner("a")
		j.cfg.Leader, j.cfg.Out = v.get, out.Load
		ended := make(chan error, 1)
		go func() { ended <- j.Run(t.Context(), false) }()

		out.Store(true)
		time.Sleep(time.Hour)
		require.Empty(t, s.took(), "a leader speaks to it")
		out.Store(false)
		v.set(0)
		time.Sleep(5 * time.Second)
		require.Empty(t, s.took(), "it may be an election")
		out.Store(true)
		time.Sleep(2 * time.Second)
		require.Len(t, s.took(), 1)
		time.Sleep(20 * time.Second)
		require.Len(t, s.took(), 10, "every 2 s")
		s.says("a", Reply{Kind: ReplyRemoved, Reason: "gone"})
		time.Sleep(2 * time.Second)
		var removed *RemovedError
		require.ErrorAs(t, <-ended, &removed)
	})
}

// Property: J5 (red: patient from the start)
func TestAFreshMemberAsksUntilItSeesALeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScript()
		s.says("a", acceptance())
		v := &view{changed: make(chan struct{})}
		j := s.joiner("a")
		j.cfg.Leader = v.get
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- j.Run(ctx, true) }()
		time.Sleep(19 * time.Second)
		require.Len(t, s.took(), 10, "at once, then every 2 s")
		v.set(5)
		time.Sleep(time.Minute)
		require.Empty(t, s.took())
		v.set(0)
		time.Sleep(14 * time.Second)
		require.Empty(t, s.took(), "from then on it is patient")
		why := errors.New("the host ended it")
		cancel(why)
		require.Equal(t, why, <-ended)
	})
}

// Property: J13 (red: said every time)
func TestAnOldBuildSaysSoOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScript()
		s.says("a", Reply{Kind: ReplyOlderRelease, Need: 20})
		core, logs := observer.New(zapcore.InfoLevel)
		v := &view{changed: make(chan struct{})}
		j := s.joiner("a")
		j.cfg.Leader, j.cfg.Logger = v.get, zap.New(core)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- j.Run(ctx, true) }()
		time.Sleep(10 * time.Minute)
		require.GreaterOrEqual(t, len(s.took()), 300, "it keeps asking")
		require.Len(t, logs.All(), 1)
		require.Equal(t, zapcore.ErrorLevel, logs.All()[0].Level)
		cancel()
		<-ended
	})
}

// Property: J1, J3 (red: an offered genesis adopted)
func TestWhoIsNoInitialMemberFoundsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScript()
		saves := 0
		g := NewGenesis(GenesisConfig{
			Cluster: "orders", Name: "z", Nonce: raftlog.Nonce{99}, Save: func(State) error { saves++; return nil },
			Caller: s, Clock: clock.System(), Logger: zap.NewNop(), Random: func([]byte) {},
		})
		ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
		defer cancel()
		// Even others that want to found a cluster find it unconfigured, and of no use.
		founder := NewMember("orders", "a", raftlog.Nonce{1}, three, State{})
		for _, ask := range []Ask{founder.Ask(1, 1), {Kind: AskGenesis}, {Kind: AskShow, Founding: sampleFounding()}, {Kind: AskOffer, Founding: sampleFounding()}} {
			b, err := g.HandleCall(ctx, ask.Encode())
			require.NoError(t, err)
			a, err := DecodeAnswer(b)
			require.NoError(t, err)
			require.NotEqual(t, AnswerGenesis, a.Kind)
			require.NotEqual(t, AnswerMember, a.Kind)
		}
		require.Contains(t, g.Waiting(), "take this node in")
		state, err := Enter(ctx, g, s.joiner("a", "b"))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.False(t, state.Belongs())
		require.LessOrEqual(t, saves, 1, "that it will never found")
		require.Greater(t, slices.Index(s.took(), "b"), 0)
	})
}

// Property: J2, J3 (red: a joiner looked for no genesis)
func TestAGenesisThatListsItComesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// A member that renounced, as it was shown a genesis of which nobody is left,
		// is listed in the one that counts, which needs it to elect.
		o := newOffice()
		f := sampleFounding()
		a := &disk{nonce: raftlog.Nonce{1}, state: State{Adopted: f}.Encode()}
		o.start(t, three, "a", a)
		c := &disk{nonce: raftlog.Nonce{3}, state: State{Renounced: true, Bound: f.Founder}.Encode()}
		g := o.start(t, three, "c", c)
		_, err := g.Run(t.Context())
		var notListed *NotListedError
		require.ErrorAs(t, err, &notListed)
		s := newScript()
		s.says("a:1", Reply{Kind: ReplyNotLeader})
		state, err := Enter(t.Context(), g, s.joiner("a:1"))
		require.NoError(t, err)
		require.True(t, f.Equal(state.Adopted))
		require.ErrorIs(t, g.Join(Joined{raftlog.ClusterID{9}, 0, 9, 9, 0}), ErrAdopted)
		place, ok := state.Place("c", raftlog.Nonce{3})
		require.True(t, ok)
		require.Equal(t, Joined{ClusterID: f.ClusterID, Node: 3, Replica: 3}, place)
	})
}

// Property: J3, J4 (red: who joined was taken for unconfigured)
func TestAnInitialMemberMeetsWhoJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// a is gone; b was wiped and joined, so it has no genesis to show. c comes for
		// the first time, with an empty directory.
		o := newOffice()
		o.start(t, three, "b", &disk{nonce: raftlog.Nonce{22}, state: State{Renounced: true, Joined: &Joined{raftlog.ClusterID{1}, 0, 7, 700, 0}}.Encode()})
		c := &disk{nonce: raftlog.Nonce{33}}
		g := o.start(t, three, "c", c)
		s := newScript()
		s.says("b:1", acceptance())
		began := time.Now()
		state, err := Enter(t.Context(), g, s.joiner("a:1", "b:1"))
		require.NoError(t, err)
		require.Equal(t, &Joined{ClusterID: raftlog.ClusterID{1}, Node: 9, Replica: 900}, state.Joined)
		require.True(t, state.Renounced)
		require.LessOrEqual(t, time.Since(began), 10*time.Second)
		saved, err := DecodeState(c.state)
		require.NoError(t, err)
		require.Equal(t, state, saved, "durable")
		require.Empty(t, g.Waiting())

		// The founder by name comes back with an empty directory, too: nobody answers
		// it as a founder any more.
		a := o.start(t, three, "a", &disk{nonce: raftlog.Nonce{11}})
		_, err = a.Run(t.Context())
		var notListed *NotListedError
		require.ErrorAs(t, err, &notListed)
		require.True(t, a.State().Renounced)
	})
}
