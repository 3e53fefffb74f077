package stele_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/internal/testcluster"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/transport"
)

// recreateStory is one run.
type recreateStory struct {
	seed uint64
	cell storyCell
	rng  *rand.Rand
	c    *testcluster.Cluster
	l    *lifeLog

	victim int
	how    string // it goes down: killed, without power, closed, cut off
	first  string // the step at which it goes down first
	in     int    // the life in which it does
	back   int    // the life before whose making it is back; past the last one: it misses all
	down   bool

	learns  storage.GroupID // the partition that is moved to it
	learned atomic.Bool     // it was a learner of that when it first went down

	seals  sealedGroups // partitions of the present life that were sealed
	came   bool
	missed string
	script []string
	began  time.Time
}

const (
	storyTopic      = "orders"
	storyPartitions = 2
)

func newRecreateStory(seed uint64) *recreateStory {
	cells := storyCells()
	s := &recreateStory{seed: seed, cell: cells[seed*37%uint64(len(cells))], rng: rand.New(rand.NewPCG(seed, 99))}
	s.how = []string{"killed", "without power", "cut off"}[s.rng.IntN(3)]
	s.first, s.in = s.cell.step, s.rng.IntN(s.cell.again)
	switch s.cell.step {
	case "before", "create":
		s.in = 0
	case "startup", "reclaim":
		s.how = []string{"killed", "without power"}[s.rng.IntN(2)]
		steps := []string{"created", "produce", "deleting", "sealed", "deleted"}
		if s.cell.step == "reclaim" && s.rng.IntN(2) == 0 {
			break // it reclaims what it saw being deleted
		}
		s.first = steps[s.rng.IntN(len(steps))]
	}
	s.back = s.cell.again + 1
	if s.rng.IntN(4) == 0 {
		s.back = s.in + 2 + s.rng.IntN(4)
	}
	return s
}

func (s *recreateStory) options(t *testing.T) testcluster.Options {
	opts := testcluster.Options{
		Seed: s.seed, Faults: transport.Faults{MinLatency: 200 * time.Microsecond, MaxLatency: 3 * time.Millisecond},
		Config:  func(cfg *stele.Config) { cfg.NoRebalance = true },
		Applied: s.seals.applied,
	}
	if *programsLog {
		opts.Logger = zaptest.NewLogger(t, zaptest.Level(zap.DebugLevel))
	}
	if s.rng.IntN(3) == 0 {
		opts.Faults.Loss, opts.Faults.Duplicate, opts.Faults.Reorder = 0.01, 0.02, 0.05
	}
	return opts
}

func (s *recreateStory) note(format string, args ...any) {
	s.script = append(s.script, fmt.Sprintf("%9.4fs  ", time.Since(s.began).Seconds())+fmt.Sprintf(format, args...))
}

func (s *recreateStory) run(c *testcluster.Cluster) {
	s.c, s.began, s.l = c, time.Now(), newLifeLog(c, storyTopic, storyPartitions)
	defer func() {
		s.l.stopAll()
		if c.T.Failed() || *recreate == 1 {
			c.T.Logf("the story of seed %d, %+v:\n%s", s.seed, s.cell, strings.Join(s.script, "\n"))
		}
	}()
	c.StartAll()
	s.victim = s.rng.IntN(3)
	if s.cell.role != "voter" {
		s.victim = c.Add()
		c.StartWith(s.victim, s.asObserver)
		c.WaitReady()
	}
	c.Eventually(func() bool { return version(c, 0) == 3 }, "the version")
	for life := range s.cell.again + 1 {
		if life == s.back {
			s.comeHome()
		}
		s.makeLife(life)
		s.live(life)
		if life < s.cell.again {
			s.endLife(life)
		}
	}
	s.comeHome()
	s.finish()
}

// asObserver: what is to be a learner of a partition may be one of the metadata, too.
func (s *recreateStory) asObserver(cfg *stele.Config) {
	cfg.Observer = s.cell.role == "observer" || s.seed%2 == 0
}

// at is a member to call: one that is well.
func (s *recreateStory) at() int {
	all := others(s.c, s.victim)
	if !s.down {
		all = append(all, s.victim)
	}
	return pick(s.rng, all)
}

// is reports whether the member goes down now.
func (s *recreateStory) is(step string, life int) bool {
	return s.first == step && s.in == life && !s.down && !s.came
}

// trap has the member go down when its time has come: spring is called with what ends
// it. awaited returns when it is down.
func (s *recreateStory) trap(step string, spring func(strike func())) (awaited func(d time.Duration)) {
	t := s.c.Trap(s.victim, simfs.Kill)
	if s.how == "without power" {
		t = s.c.Trap(s.victim, simfs.Random)
	}
	return s.await(step, t, spring)
}

func (s *recreateStory) await(step string, t *testcluster.Trap, spring func(strike func())) (awaited func(d time.Duration)) {
	var cut atomic.Bool
	struck := make(chan struct{})
	spring(func() {
		if len(s.c.Conf(s.learns).Learners) > 0 {
			s.learned.Store(true)
		}
		if s.how != "cut off" {
			t.Strike()
		} else if cut.CompareAndSwap(false, true) {
			s.c.Isolate(s.victim)
			close(struck)
		}
	})
	return func(d time.Duration) {
		came := false
		if s.how != "cut off" {
			came = t.Await(d)
		} else {
			ctx, cancel := context.WithTimeout(s.c.T.Context(), d)
			defer cancel()
			select {
			case <-struck:
			case <-ctx.Done():
			}
			if came = cut.Load(); !came {
				s.c.Isolate(s.victim)
			}
			s.c.Member(s.victim).FS.SetHook(nil)
		}
		s.down = true
		s.note("%s: member %d is %s; by itself: %v", step, s.victim, s.how, came)
		if s.cell.step == step {
			s.came = came && (s.cell.role != "learner" || s.learned.Load())
			s.missed = fmt.Sprintf("by itself %v, a learner %v", came, s.learned.Load())
		}
	}
}

// fall has the member go down now.
func (s *recreateStory) fall(step string) {
	s.trap(step, func(strike func()) { strike() })(0)
}

// after has it go down with the n-th change of its file system from now on that is
// meant.
func (s *recreateStory) after(n int, meant func(simfs.Op) bool) func(strike func()) {
	return func(strike func()) {
		var seen atomic.Int64
		s.c.Member(s.victim).FS.SetHook(func(op simfs.Op) error {
			if op.Seq > 0 && meant(op) && seen.Add(1) == int64(n) {
				strike()
			}
			return nil
		})
	}
}

func anyOp(simfs.Op) bool { return true }

// movesAside reports whether an operation moves a directory to quarantine.
func movesAside(op simfs.Op) bool {
	return op.Kind == simfs.OpRename && strings.Contains(op.To, "/quarantine/")
}

// unlinks reports whether an operation unlinks something of what was moved aside.
func unlinks(op simfs.Op) bool {
	return op.Kind == simfs.OpRemove && strings.Contains(op.Path, "/quarantine/")
}

// when has it go down within 2 ms of the time that cond holds.
func (s *recreateStory) when(ctx context.Context, cond func() bool) func(strike func()) {
	jitter := time.Duration(s.rng.IntN(2000)) * time.Microsecond
	return func(strike func()) {
		go func() {
			for !cond() {
				if !restFor(ctx, 100*time.Microsecond) {
					return
				}
			}
			if restFor(ctx, jitter) {
				strike()
			}
		}()
	}
}

// makeLife makes the next life of the topic.
func (s *recreateStory) makeLife(life int) {
	ctx, cancel := context.WithTimeout(s.c.T.Context(), 2*time.Minute)
	defer cancel()
	awaited := func(time.Duration) {}
	step := "create"
	if life > 0 {
		step = "recreate"
	}
	switch at := s.in; {
	case s.is("before", life):
		s.fall("before")
	case step == "recreate" && s.is(step, life-1), s.is("create", at) && life == 0:
		awaited = s.trap(step, s.after(1+s.rng.IntN(25), anyOp))
	}
	n := s.l.begin()
	from := s.at()
	s.note("life %d is made through member %d", n, from)
	made, err := s.create(ctx, from)
	require.NoError(s.c.T, err)
	awaited(0)
	s.seals.clear()
	s.l.end(made.Incarnation)
	s.note("life %d is %v", n, made.Incarnation)
}

// create makes the topic, through other members if the one that is called goes down.
func (s *recreateStory) create(ctx context.Context, from int) (stele.Topic, error) {
	config := stele.TopicConfig{Partitions: storyPartitions}
	for {
		node := s.c.Node(from)
		made, err := func() (stele.Topic, error) {
			ctx, cancel := context.WithTimeout(ctx, callWithin)
			defer cancel()
			return node.CreateTopic(ctx, storyTopic, config)
		}()
		if err == nil {
			return made, nil
		}
		s.outcome("CreateTopic", err)
		if !restFor(ctx, 100*time.Millisecond) {
			return made, err
		}
		from = pick(s.rng, others(s.c, s.victim))
		made, err = s.c.Node(from).DescribeTopic(ctx, storyTopic)
		if err == nil && !slices.Contains(s.l.ids, made.Incarnation) {
			return made, nil
		}
	}
}

func (s *recreateStory) outcome(what string, err error) {
	s.note("%s: %v", what, err)
	if !errors.Is(err, stele.ErrRetry) && !errors.Is(err, stele.ErrRefused) && !errors.Is(err, stele.ErrOutcomeUnknown) {
		s.c.T.Errorf("seed %d: %s: an error without an outcome: %v", s.seed, what, err)
	}
}

// live has a life written and read for a while.
func (s *recreateStory) live(life int) {
	if s.cell.role == "learner" && life == s.in && !s.down && !slices.Contains([]string{"deleting", "sealed", "deleted", "purge", "recreate", "reclaim"}, s.first) {
		s.learn()
	}
	if s.is("created", life) {
		s.fall("created")
	}
	for i := range s.c.Size() {
		if s.l.loads[i] == nil && (i != s.victim || !s.down) {
			s.l.load(i)
		}
	}
	s.l.rounds.Store(roundsOfLife)
	s.c.Sleep(time.Duration(50+s.rng.IntN(250)) * time.Millisecond)
	if s.is("produce", life) {
		s.fall("produce")
		s.c.Sleep(time.Duration(50+s.rng.IntN(250)) * time.Millisecond)
	}
	if s.down && s.rng.IntN(6) == 0 {
		s.c.Sleep(40 * time.Second) // it is marked dead
		s.note("member %d has been %s for long", s.victim, s.how)
	}
}

// learn begins to move a partition to the member, and returns when that is a learner of
// it.
func (s *recreateStory) learn() {
	c := s.c
	at := others(c, s.victim)[0]
	mine := c.Node(s.victim).Status().Node
	for _, p := range partitions(c, at, storyTopic) {
		if _, holds := p.On(mine); holds {
			continue
		}
		from := ""
		for _, m := range c.Node(at).Members() {
			if m.Node == p.Replicas[s.rng.IntN(len(p.Replicas))].Node {
				from = m.Name
			}
		}
		if from == "" {
			from = c.Member(at).Name
		}
		ctx, cancel := context.WithTimeout(c.T.Context(), 20*time.Second)
		defer cancel()
		err := c.Node(at).MoveReplica(ctx, stele.TopicPartition{Topic: storyTopic, Partition: p.Index}, from, c.Member(s.victim).Name)
		if err != nil {
			s.outcome("MoveReplica", err)
		}
		s.learns = p.Group
		for ctx.Err() == nil && len(c.Conf(p.Group).Learners) == 0 {
			c.Sleep(100 * time.Microsecond)
		}
		s.note("partition %d has learners %v", p.Index, c.Conf(p.Group).Learners)
		return
	}
	s.note("the member holds all partitions")
}

// endLife deletes a life.
func (s *recreateStory) endLife(life int) {
	ctx, cancel := context.WithTimeout(s.c.T.Context(), 2*time.Minute)
	defer cancel()
	awaited := func(time.Duration) {}
	inc := s.l.ids[life]
	state := func(is func(found bool, t stele.Topic) bool) func() bool {
		return func() bool {
			for i := range s.c.Size() {
				n := s.c.Node(i)
				if n == nil {
					continue
				}
				all := n.Topics()
				k := slices.IndexFunc(all, func(t stele.Topic) bool { return t.Incarnation == inc })
				if k < 0 && is(false, stele.Topic{}) || k >= 0 && is(true, all[k]) {
					return true
				}
			}
			return false
		}
	}
	if s.cell.role == "learner" && life == s.in && !s.down && s.first != "created" && s.first != "produce" {
		s.learn()
	}
	step := s.first
	switch {
	case s.is("deleting", life):
		awaited = s.trap(step, s.when(ctx, state(func(found bool, t stele.Topic) bool { return !found || t.State == metastore.TopicDeleting })))
	case s.is("sealed", life):
		awaited = s.trap(step, s.when(ctx, func() bool { return s.seals.count() >= storyPartitions }))
	case s.is("deleted", life):
		awaited = s.trap(step, s.when(ctx, state(func(found bool, _ stele.Topic) bool { return !found })))
	case s.is("purge", life):
		awaited = s.trap(step, s.around(movesAside))
	case s.is("reclaim", life):
		awaited = s.trap(step, s.after(1+s.rng.IntN(3), unlinks))
	}
	from := s.at()
	s.note("life %d is deleted through member %d", life, from)
	s.delete(ctx, from, inc)
	s.l.ends(life)
	s.note("life %d is deleted", life)
	awaited(20 * time.Second)
	s.c.Sleep(time.Duration(s.rng.IntN(20)) * time.Millisecond)
}

// around has the member go down some operations before or after one that is meant.
func (s *recreateStory) around(meant func(simfs.Op) bool) func(strike func()) {
	n := int64(s.rng.IntN(5))
	return func(strike func()) {
		var seen atomic.Int64
		s.c.Member(s.victim).FS.SetHook(func(op simfs.Op) error {
			if op.Seq > 0 && (seen.Load() > 0 || meant(op)) && seen.Add(1) == n+1 {
				strike()
			}
			return nil
		})
	}
}

func (s *recreateStory) delete(ctx context.Context, from int, inc storage.Incarnation) {
	for {
		err := func() error {
			ctx, cancel := context.WithTimeout(ctx, callWithin)
			defer cancel()
			return s.c.Node(from).DeleteTopic(ctx, storyTopic)
		}()
		if err == nil {
			return
		}
		s.outcome("DeleteTopic", err)
		require.NoError(s.c.T, ctx.Err(), "seed %d: a deletion does not end", s.seed)
		s.c.Sleep(100 * time.Millisecond)
		from = pick(s.rng, others(s.c, s.victim))
		t, err := s.c.Node(from).DescribeTopic(ctx, storyTopic)
		if errors.Is(err, stele.ErrTopicNotFound) || err == nil && t.Incarnation != inc {
			return
		}
	}
}
