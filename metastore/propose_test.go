package metastore

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/raftlog"
)

func inCluster(t *testing.T, n int, f func(t *testing.T, c *fakeCluster)) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, n)
		c.startAll()
		for _, n := range c.nodes {
			<-n.store.CaughtUp()
		}
		f(t, c)
	})
}

// requireOneOutcome checks that an error matches one outcome and no other.
func requireOneOutcome(t *testing.T, want raftlog.Outcome, err error) {
	t.Helper()
	require.Error(t, err)
	for o, is := range map[raftlog.Outcome]error{
		raftlog.OutcomeRetry: raftlog.ErrRetry, raftlog.OutcomeRefused: raftlog.ErrRefused, raftlog.OutcomeUnknown: raftlog.ErrOutcomeUnknown,
	} {
		require.Equal(t, o == want, errors.Is(err, is), "%v: is it %v", err, o)
	}
}

func TestAnyNodeMakesAndSeesChanges(t *testing.T) {
	inCluster(t, 3, func(t *testing.T, c *fakeCluster) {
		for i, name := range []string{"on-the-leader", "on-a-follower", "on-the-other"} {
			s := c.nodes[raftlog.NodeID(i+1)].store
			got, err := s.CreateTopic(t.Context(), TopicSpec{Name: name, Config: TopicConfig{Partitions: 2, Replicas: 2}})
			require.NoError(t, err)
			require.False(t, got.Incarnation.IsZero())
			here, err := s.Topic(name)
			require.NoError(t, err)
			require.Equal(t, got, here, "its own change is applied here")
			for _, n := range c.nodes {
				require.NoError(t, n.store.Barrier(t.Context()))
				there, err := n.store.Topic(name)
				require.NoError(t, err)
				require.Equal(t, got, there)
				there, err = n.store.TopicByIncarnation(got.Incarnation)
				require.NoError(t, err)
				require.Equal(t, got, there)
			}
		}
		s := c.nodes[2].store
		require.Len(t, s.Topics(), 3)
		require.Equal(t, "on-a-follower", s.Topics()[0].Name)

		id, epoch, err := s.AllocateProducer(t.Context(), ProducerRequest{Name: "billing", Token: [16]byte{1}})
		require.NoError(t, err)
		again, next, err := c.nodes[1].store.AllocateProducer(t.Context(), ProducerRequest{Name: "billing", Token: [16]byte{2}})
		require.NoError(t, err)
		require.Equal(t, id, again)
		require.Equal(t, epoch+1, next)
		_, _, err = s.AllocateProducer(t.Context(), ProducerRequest{Name: "billing", Token: [16]byte{1}, Held: epoch, Holds: true})
		require.Equal(t, &ProducerFencedError{"billing", epoch, next}, err, "it travels")

		require.NoError(t, s.SetAddress(t.Context(), 2, raftlog.Nonce{2}, "moved:1"))
		require.Equal(t, "moved:1", s.Members()[1].Addr)
		require.NoError(t, s.SetSetting(t.Context(), "key", "value"))
		v, ok, err := s.Setting("key")
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, "value", v)
		require.NoError(t, s.Touch(t.Context()))
		require.NoError(t, s.Session(t.Context()))
	})
}

func TestADeletedTopicKeepsATombstone(t *testing.T) {
	inCluster(t, 3, func(t *testing.T, c *fakeCluster) {
		s := c.nodes[2].store
		topic, err := s.CreateTopic(t.Context(), TopicSpec{Name: "orders"})
		require.NoError(t, err)
		require.ErrorIs(t, s.SetTopicDeleted(t.Context(), topic.Incarnation), raftlog.ErrRefused)
		require.NoError(t, s.SetTopicDeleting(t.Context(), topic.Incarnation))
		got, err := s.Topic("orders")
		require.NoError(t, err)
		require.Equal(t, TopicDeleting, got.State)
		require.Equal(t, topic.Partitions, got.Partitions)
		all, err := s.ListAssignments(2)
		require.NoError(t, err)
		require.Len(t, all, 1, "it is still to be sealed")
		require.NoError(t, s.SetTopicDeleted(t.Context(), topic.Incarnation))
		_, err = s.FindTopic(t.Context(), "orders")
		require.ErrorIs(t, err, ErrTopicNotFound)
		got, err = s.TopicByIncarnation(topic.Incarnation)
		require.NoError(t, err)
		require.Equal(t, Topic{Name: "orders", Incarnation: topic.Incarnation, State: TopicDeleted}, got)
		all, err = s.ListAssignments(2)
		require.NoError(t, err)
		require.Empty(t, all)
	})
}

// Property: I11 (red: FindTopic without its barrier; produce to a deleted incarnation: TestDeletedTopicsTakeNoRecords in topic)
func TestUnknownTopicIsAnsweredAfterALinearizableRead(t *testing.T) {
	inCluster(t, 3, func(t *testing.T, c *fakeCluster) {
		n := c.nodes[3]
		n.requireOpen(t)
		n.set(func(n *fakeNode) { n.hold = true })
		_, err := c.nodes[1].store.CreateTopic(t.Context(), TopicSpec{Name: "orders"})
		require.NoError(t, err)
		_, err = n.store.Topic("orders")
		require.ErrorIs(t, err, ErrTopicNotFound, "it lags")
		found := make(chan error)
		go func() {
			_, err := n.store.FindTopic(t.Context(), "orders")
			found <- err
		}()
		pass(time.Second)
		n.set(func(n *fakeNode) { n.hold = false })
		require.NoError(t, <-found)

		c.elect(0)
		_, err = n.store.FindTopic(t.Context(), "nothing")
		requireOneOutcome(t, raftlog.OutcomeRetry, err)
		require.NotErrorIs(t, err, ErrTopicNotFound)
	})
}

func TestWatchTellsOfEveryChange(t *testing.T) {
	inCluster(t, 1, func(t *testing.T, c *fakeCluster) {
		s := c.nodes[1].store
		before, next := s.Watch()
		require.NoError(t, s.Touch(t.Context()))
		require.NoError(t, s.SetAddress(t.Context(), 1, raftlog.Nonce{1}, "node-1:7942"))
		select {
		case <-next:
			t.Fatal("nothing changed")
		default:
		}
		require.NoError(t, s.SetAddress(t.Context(), 1, raftlog.Nonce{1}, "elsewhere:1"))
		<-next
		after, next := s.Watch()
		require.Greater(t, after, before)
		_, err := s.CreateTopic(t.Context(), TopicSpec{Name: "orders"})
		require.NoError(t, err)
		<-next
	})
}

func TestRefusalsTravel(t *testing.T) {
	inCluster(t, 3, func(t *testing.T, c *fakeCluster) {
		for node := range raftlog.NodeID(3) {
			s := c.nodes[node+1].store
			_, err := s.CreateTopic(t.Context(), TopicSpec{Name: "Orders"})
			if node != 0 {
				requireOneOutcome(t, raftlog.OutcomeRefused, err)
				require.ErrorIs(t, err, ErrTopicExists)
			}
			for _, spec := range []TopicSpec{{Name: "new", Config: TopicConfig{Replicas: 4}}, {Name: "no/good"}} {
				_, err = s.CreateTopic(t.Context(), spec)
				requireOneOutcome(t, raftlog.OutcomeRefused, err)
				var invalid *InvalidError
				require.ErrorAs(t, err, &invalid)
			}
			err = s.SetTopicDeleting(t.Context(), inc(77))
			requireOneOutcome(t, raftlog.OutcomeRefused, err)
			require.ErrorIs(t, err, ErrTopicNotFound)
			err = s.SetAddress(t.Context(), 9, raftlog.Nonce{9}, "x")
			requireOneOutcome(t, raftlog.OutcomeRefused, err)
			require.ErrorIs(t, err, ErrMemberNotFound)
		}
		topic, err := c.nodes[2].store.Topic("Orders")
		require.NoError(t, err)
		require.NoError(t, c.nodes[3].store.SetTopicDeleting(t.Context(), topic.Incarnation))
		_, err = c.nodes[2].store.CreateTopic(t.Context(), TopicSpec{Name: "orders"})
		requireOneOutcome(t, raftlog.OutcomeRetry, err)
		require.ErrorIs(t, err, ErrTopicDeleting, "at once: waiting is the caller's affair")
	})
}

func TestAChangeWaitsForALeader(t *testing.T) {
	inCluster(t, 3, func(t *testing.T, c *fakeCluster) {
		c.elect(0)
		done := make(chan error)
		go func() { done <- c.nodes[2].store.Touch(t.Context()) }()
		pass(3 * time.Second)
		c.elect(3)
		require.NoError(t, <-done)

		c.nodes[3].set(func(n *fakeNode) { n.drop = 5 })
		require.NoError(t, c.nodes[2].store.Touch(t.Context()), "an overload passes")

		c.elect(0)
		start := clock.System().Now()
		err := c.nodes[2].store.Touch(t.Context())
		requireOneOutcome(t, raftlog.OutcomeRetry, err)
		require.Equal(t, 10*time.Second, clock.System().Now().Sub(start))
	})
}

func TestALostLeaderIsNotWaitedFor(t *testing.T) {
	inCluster(t, 3, func(t *testing.T, c *fakeCluster) {
		s := c.nodes[2].store
		create := func(name string) (time.Duration, error) {
			start := clock.System().Now()
			_, err := s.CreateTopic(t.Context(), TopicSpec{Name: name})
			return clock.System().Now().Sub(start), err
		}
		// Another one is elected.
		c.silence(1)
		done := make(chan error)
		go func() { _, err := create("elected"); done <- err }()
		synctest.Wait()
		start := clock.System().Now()
		c.elect(3)
		require.NoError(t, <-done)
		require.Zero(t, clock.System().Now().Sub(start))

		// It stays the leader, and the answer was lost.
		c.silence(3)
		clock.System().AfterFunc(time.Second, func() { c.silence(0) })
		took, err := create("lost")
		require.NoError(t, err)
		require.Equal(t, s.config.AttemptTimeout+proposePause, took)

		// Nothing comes of it in all the time there is.
		c.silence(3)
		took, err = create("never")
		require.Equal(t, s.config.ProposeTimeout, took)
		requireOneOutcome(t, raftlog.OutcomeUnknown, err)
		require.NotErrorIs(t, err, context.Canceled, "nobody cancelled it")
		require.NotContains(t, err.Error(), "canceled")

		// What may not be made twice is waited for.
		start = clock.System().Now()
		err = s.SetSetting(t.Context(), "k", "v")
		require.Equal(t, s.config.ProposeTimeout, clock.System().Now().Sub(start))
		requireOneOutcome(t, raftlog.OutcomeUnknown, err)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, context.Canceled)
	})
}

func TestOurOwnTimerIsNoCancel(t *testing.T) {
	inCluster(t, 3, func(t *testing.T, c *fakeCluster) {
		n := c.nodes[3]
		n.set(func(n *fakeNode) { n.hold = true })
		require.NoError(t, c.nodes[1].store.Touch(t.Context()))
		err := n.store.Barrier(t.Context())
		requireOneOutcome(t, raftlog.OutcomeRetry, err)
		require.NotContains(t, err.Error(), "canceled")
	})
}

// Property: P9, L4 (red: unlessUnknown returned err; ended returned the attempt's error)
func TestOutcomesOfChanges(t *testing.T) {
	inCluster(t, 3, func(t *testing.T, c *fakeCluster) {
		s := c.nodes[2].store
		cut := func(when bool, times int) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.fault = func(_ raftlog.NodeID, handled bool) error {
				if handled != when || times == 0 {
					return nil
				}
				times--
				return errors.New("the connection broke")
			}
		}
		// An answer that was lost: what may be repeated is, and is done once.
		cut(true, 1)
		topic, err := s.CreateTopic(t.Context(), TopicSpec{Name: "orders"})
		require.NoError(t, err)
		require.Equal(t, raftlog.GroupID(2), topic.Partitions[0].Group)
		cut(true, 1)
		require.NoError(t, s.SetTopicDeleting(t.Context(), topic.Incarnation))
		cut(true, 1)
		require.NoError(t, s.SetTopicDeleted(t.Context(), topic.Incarnation))
		for epoch := range uint32(3) {
			cut(true, 1)
			_, got, err := s.AllocateProducer(t.Context(), ProducerRequest{Name: "billing", Token: [16]byte{1}, Held: epoch - 1, Holds: epoch > 0})
			require.NoError(t, err)
			require.Equal(t, epoch, got, "one epoch for one request")
		}
		// A leader that lost its leadership: the same.
		c.nodes[1].set(func(n *fakeNode) { n.lose = 1 })
		_, err = c.nodes[1].store.CreateTopic(t.Context(), TopicSpec{Name: "payments"})
		require.NoError(t, err)

		// What may not be repeated is not.
		cut(true, 1)
		requireOneOutcome(t, raftlog.OutcomeUnknown, s.SetSetting(t.Context(), "k", "v"))
		// Answers that stay away for good.
		cut(true, -1)
		_, err = s.CreateTopic(t.Context(), TopicSpec{Name: "lost"})
		requireOneOutcome(t, raftlog.OutcomeUnknown, err)
		_, err = c.nodes[1].store.Topic("lost")
		require.NoError(t, err)

		// Once unknown, a later refusal does not take that back.
		times := 0
		c.mu.Lock()
		c.fault = func(_ raftlog.NodeID, handled bool) error {
			if times++; times > 1 {
				return nil
			}
			c.append(createTopic{inc(50), "taken", TopicConfig{}})
			return errors.New("the connection broke")
		}
		c.mu.Unlock()
		faults := c.fault
		c.fault = func(n raftlog.NodeID, handled bool) error { return faults(n, handled) }
		_, err = s.CreateTopic(t.Context(), TopicSpec{Name: "taken"})
		requireOneOutcome(t, raftlog.OutcomeUnknown, err)
		require.Contains(t, err.Error(), "topic exists")

		// The caller's own end.
		c.elect(0)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err = s.Touch(ctx)
		requireOneOutcome(t, raftlog.OutcomeUnknown, err)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		for _, read := range []func(context.Context) error{s.Barrier, func(ctx context.Context) error { _, err := s.FindTopic(ctx, "x"); return err }} {
			err = read(ctx)
			requireOneOutcome(t, raftlog.OutcomeRetry, err)
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
	})
}

func TestCallsThatAreWrong(t *testing.T) {
	inCluster(t, 2, func(t *testing.T, c *fakeCluster) {
		for what, call := range map[string]struct {
			method  string
			request []byte
		}{
			"method":  {"meta.other", encodeCommand(noop{})},
			"empty":   {MethodPropose, nil},
			"type":    {MethodPropose, []byte{0, 99, 1}},
			"body":    {MethodPropose, []byte{0, 3, 1, 9}},
			"genesis": {MethodPropose, encodeCommand(testGenesis(1))},
		} {
			_, err := c.nodes[1].store.HandleCall(t.Context(), 2, call.method, call.request)
			requireOneOutcome(t, raftlog.OutcomeRefused, err)
			require.Equal(t, raftlog.Index(2), c.last(), what)
		}
		b, err := c.nodes[1].store.HandleCall(t.Context(), 2, MethodPropose, encodeCommand(createTopic{inc(1), "no/good", TopicConfig{}}))
		require.NoError(t, err)
		requireOneOutcome(t, raftlog.OutcomeRefused, decodeAnswer(b).err)
		b, err = c.nodes[2].store.HandleCall(t.Context(), 1, MethodPropose, encodeCommand(noop{}))
		require.NoError(t, err)
		a := decodeAnswer(b)
		requireOneOutcome(t, raftlog.OutcomeRetry, a.err)
		require.Equal(t, raftlog.NodeID(1), a.leader)
		require.Equal(t, raftlog.Index(2), c.last())
	})
}

func TestRandomnessThatFailsCreatesNothing(t *testing.T) {
	inCluster(t, 1, func(t *testing.T, c *fakeCluster) {
		s := c.nodes[1].store
		s.config.Rand = iotest.ErrReader(io.ErrUnexpectedEOF)
		_, err := s.CreateTopic(t.Context(), TopicSpec{Name: "orders"})
		requireOneOutcome(t, raftlog.OutcomeRetry, err)
	})
}

func TestCloseEndsWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3)
		n := c.start(2, simfs.New(2))
		errs := make(chan error)
		waits := []func() error{
			func() error { return n.store.Touch(t.Context()) },
			func() error { return n.store.Barrier(t.Context()) },
			func() error { return n.store.waitApplied(t.Context(), 100) },
		}
		for _, f := range waits {
			go func() { errs <- f() }()
		}
		synctest.Wait()
		start := clock.System().Now()
		require.NoError(t, n.store.Close())
		for range waits {
			requireOneOutcome(t, raftlog.OutcomeRetry, <-errs)
		}
		require.NoError(t, n.store.Close(), "again")
		require.Zero(t, clock.System().Now().Sub(start))
		require.ErrorIs(t, n.catchUpError(), ErrClosed, "what is applied afterwards fails the group")
		requireOneOutcome(t, raftlog.OutcomeRetry, n.store.Touch(t.Context()))
		_, err := n.store.TopicByIncarnation(inc(1))
		requireOneOutcome(t, raftlog.OutcomeRetry, err)
	})
}

// Property: I11 (red: Failed of the database alone; the replicas of the partitions: TestDeletionWaitsForAQuorum in topic)
func TestAStoreWhoseGroupFailedAnswersNothingOld(t *testing.T) {
	inCluster(t, 3, func(t *testing.T, c *fakeCluster) {
		n := c.nodes[3]
		_, err := n.store.CreateTopic(t.Context(), TopicSpec{Name: "orders"})
		require.NoError(t, err)
		leader, changed := n.store.Leader()
		require.Equal(t, raftlog.NodeID(1), leader)
		waited := make(chan error)
		go func() { waited <- n.store.waitApplied(t.Context(), 1000) }()
		synctest.Wait()
		start := clock.System().Now()
		cause := &raftlog.GroupFailedError{Group: 1, Cause: io.ErrShortWrite}
		n.failGroup(cause)

		require.ErrorIs(t, n.store.Failed(), cause)
		<-changed
		leader, _ = n.store.Leader()
		require.Zero(t, leader, "it cannot be heard any more")
		require.ErrorIs(t, <-waited, ErrUnavailable)
		for what, f := range map[string]func() error{
			"Topic":              func() error { _, err := n.store.Topic("orders"); return err },
			"FindTopic":          func() error { _, err := n.store.FindTopic(t.Context(), "orders"); return err },
			"TopicByIncarnation": func() error { _, err := n.store.TopicByIncarnation(inc(1)); return err },
			"ListAssignments":    func() error { _, err := n.store.ListAssignments(3); return err },
			"GetAssignment":      func() error { _, err := n.store.GetAssignment("orders", 0); return err },
			"Touch":              func() error { return n.store.Touch(t.Context()) },
		} {
			err := f()
			require.ErrorIs(t, err, ErrUnavailable, what)
			require.ErrorContains(t, err, io.ErrShortWrite.Error(), what)
			requireOneOutcome(t, raftlog.OutcomeRetry, err)
		}
		require.Zero(t, clock.System().Now().Sub(start), "nothing waits")
	})
}

// catchUpError is the error of the group that applies one more entry.
func (n *fakeNode) catchUpError() error {
	n.cluster.append(noop{})
	return n.catchUp()
}

// Property: C8 (red: Create always set)
func TestAStateWithoutItsLogIsRefused(t *testing.T) {
	fs := simfs.New(1)
	config := Config{FS: fs, Dir: "db", Node: 1, Replica: 11, Genesis: testGenesis(1), Caller: &fakeNode{}}
	var options raftlog.GroupOptions
	unknown := func(o raftlog.GroupOptions) (group, error) {
		if options = o; o.Create == nil {
			return nil, raftlog.Refused(raftlog.ErrUnknownReplica)
		}
		return nil, errors.New("created")
	}
	_, err := open(t.Context(), config, unknown)
	require.ErrorContains(t, err, "created")
	require.Equal(t, &raftlog.AppliedState{Index: 1, Conf: raftlog.ConfState{Voters: []raftlog.ReplicaID{11}}}, options.State)
	require.Equal(t, map[raftlog.ReplicaID]raftlog.NodeID{11: 1}, options.Peers)
	require.Equal(t, testGenesis(1).Begin(), options.Create)

	m := mustOpenMachine(t, fs, testGenesis(1))
	require.NoError(t, m.Apply([]raftlog.Entry{{Index: 2, Term: 1}}, make([]raftlog.Result, 1)))
	require.NoError(t, m.db.close())
	_, err = open(t.Context(), config, unknown)
	requireOneOutcome(t, raftlog.OutcomeRefused, err)
	require.ErrorIs(t, err, ErrLogLost)
	require.Contains(t, err.Error(), "move this node's directory away")
}

func TestConfigNamesWhatIsWrong(t *testing.T) {
	good := Config{FS: simfs.New(1), Dir: "db", Node: 1, Replica: 11, Genesis: testGenesis(3), Caller: &fakeNode{}}
	for field, change := range map[string]func(*Config){
		"FS":             func(c *Config) { c.FS = nil },
		"Dir":            func(c *Config) { c.Dir = "" },
		"Node":           func(c *Config) { c.Node = 0 },
		"Replica":        func(c *Config) { c.Replica = 12 },
		"Caller":         func(c *Config) { c.Caller = nil },
		"ContactTimeout": func(c *Config) { c.ContactTimeout = time.Millisecond },
		"BarrierTimeout": func(c *Config) { c.BarrierTimeout = time.Hour },
		"ProposeTimeout": func(c *Config) { c.ProposeTimeout = -1 },
		"AttemptTimeout": func(c *Config) { c.AttemptTimeout = time.Hour },
		"Genesis":        func(c *Config) { c.Genesis.ClusterID = raftlog.ClusterID{} },
		"Streamer":       func(c *Config) { c.Genesis.Members = nil },
		"SnapshotRate":   func(c *Config) { c.SnapshotRate = 1 },
		"TrimLogBytes":   func(c *Config) { c.TrimLogBytes = 1 },
	} {
		c := good
		change(&c)
		_, err := open(t.Context(), c, nil)
		var invalid *InvalidError
		require.ErrorAs(t, err, &invalid, field)
		require.True(t, strings.Contains(invalid.Field, field), "%s: %v", field, err)
	}
	_, err := Open(t.Context(), good)
	require.ErrorContains(t, err, "Config.Host")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = open(ctx, good, nil)
	require.ErrorIs(t, err, context.Canceled)
}
