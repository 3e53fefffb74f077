package metastore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/stelelog/stele/raftlog"
)

const (
	// hashRound is how long a round may take.
	hashRound = 30 * time.Second
	// hashAgain is the wait before a voter is asked again that has no hash yet.
	hashAgain = 200 * time.Millisecond
	// hashIdle is how long no round begins on demand after one that brought nothing.
	hashIdle = 10 * time.Second
	// hashFresh is how old an agreed state may be to be given away without a try for
	// a newer one, and hashWait how long that is waited for.
	hashFresh = 10 * time.Second
	hashWait  = 5 * time.Second
)

// StateHashOutcome is what came of a round in which the voters' states were
// compared.
type StateHashOutcome string

// What came of a round.
const (
	// StateHashAgreed: a majority has one state. Who has another one stops.
	StateHashAgreed StateHashOutcome = "agreed"
	// StateHashSplit: states differ, and no majority has the same one. Nobody stops.
	StateHashSplit StateHashOutcome = "split"
	// StateHashNoMajority: too few voters had a hash in time; those that had one agree.
	StateHashNoMajority StateHashOutcome = "no_majority"
	// StateHashLost: the round could not be begun or ended: another node leads, or no
	// quorum answers.
	StateHashLost StateHashOutcome = "lost"
)

var stateHashOutcomes = [...]StateHashOutcome{StateHashAgreed, StateHashSplit, StateHashNoMajority, StateHashLost}

// StateHashOutcomes returns all that may come of a round.
func StateHashOutcomes() []StateHashOutcome { return stateHashOutcomes[:] }

// StateHashStats says what became of the rounds that this node led since Open, and
// the index of the newest state that it knows to be agreed, 0: none.
type StateHashStats struct {
	Rounds      map[StateHashOutcome]uint64 // each outcome has an entry
	AgreedIndex raftlog.Index
}

// StateHashStats returns the counters; it is cheap.
func (s *Store) StateHashStats() StateHashStats {
	h := s.hashes
	h.mu.Lock()
	defer h.mu.Unlock()
	stats := h.mu.stats
	stats.Rounds = maps.Clone(stats.Rounds)
	for _, o := range stateHashOutcomes {
		stats.Rounds[o] += 0
	}
	return stats
}

// StateSplit is what Config.OnStateSplit is told: the metadata of the voters
// differ, and no majority has the same. Of some the state is damaged; of which, a
// person has to find out, and to replace those nodes' disks. Until then no node is
// given the state of another one.
type StateSplit struct {
	Index raftlog.Index // of the states that were compared
	Said  string        // by each voter, for a person
}

// agreesOnStates reports whether states have to be agreed on before they are given
// away. It takes two rows that are damaged to overlook that.
func (s *Store) agreesOnStates() (agrees bool) {
	s.machine.read(func(c *catalog) { agrees = c.agreesOnStates() })
	return agrees
}

func (c *catalog) agreesOnStates() bool {
	return c.cluster.Version >= versionOfAgreement || c.newest.needs() >= versionOfAgreement
}

// demand wakes who runs rounds.
func (h *hashes) demand() {
	select {
	case h.want <- struct{}{}:
	default:
	}
}

// rounds has the states compared where the metadata is led: now and then, and when
// somebody wants one to be agreed on. It is a goroutine of the store.
func (h *hashes) rounds() {
	s := h.store
	timer := s.config.Clock.NewTimer(s.config.StateHashInterval)
	defer timer.Stop()
	for {
		changed := s.leaderChange()
		var due <-chan time.Time
		if s.group.Status().Role == raftlog.RoleLeaderActive {
			timer.Reset(h.untilDue())
			due = timer.C()
		}
		select {
		case <-s.life.Done():
			return
		case <-s.failed:
			return
		case <-changed:
			continue
		case <-due:
			h.begun()
		case <-h.want:
			if !h.mayBegin() {
				continue
			}
		}
		if s.group.Status().Role == raftlog.RoleLeaderActive && s.agreesOnStates() {
			outcome, detail := s.hashRound()
			h.ended(outcome, detail)
		}
	}
}

func (h *hashes) untilDue() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	next := h.mu.asked.Add(h.store.config.StateHashInterval)
	return max(next.Sub(h.store.config.Clock.Now()), 0)
}

func (h *hashes) begun() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.asked = h.store.config.Clock.Now()
}

func (h *hashes) mayBegin() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.store.config.Clock.Now().Before(h.mu.idle)
}

// ended counts a round, and keeps demands from beginning the next one at once if
// nothing came of it.
func (h *hashes) ended(outcome StateHashOutcome, detail string) {
	h.mu.Lock()
	h.mu.stats.Rounds[outcome]++
	if outcome != StateHashAgreed {
		h.mu.idle = h.store.config.Clock.Now().Add(hashIdle)
	}
	h.changedLocked()
	h.mu.Unlock()
	log := h.store.config.Logger
	switch outcome {
	case StateHashAgreed:
	case StateHashSplit:
		log.Error("the metadata of the voters differ, and no majority has the same: no node is given the state of another one", zap.String("who", detail))
	default:
		log.Warn("no majority of the voters has compared its metadata", zap.String("outcome", string(outcome)), zap.String("why", detail))
	}
}

// hashRound runs one round.
func (s *Store) hashRound() (StateHashOutcome, string) {
	ctx, cancel := withTimeout(s.life, s.config.Clock, hashRound)
	defer cancel()
	q := hashQuestion{Epoch: s.epoch()}
	if _, err := io.ReadFull(s.config.Rand, q.Nonce[:]); err != nil {
		return StateHashLost, err.Error()
	}
	// A state that is damaged may refuse the commands; they do what they are for.
	a := s.leadOnce(ctx, hashState{q.Nonce})
	if a.index == 0 {
		return StateHashLost, a.err.Error()
	}
	q.Index = a.index
	own, has := s.awaitHash(ctx, q)
	if has != hashHere {
		return StateHashLost, "this node " + has.String()
	}
	if knows, changed := s.knowsVoters(ctx, own); !knows {
		if !changed {
			s.handOver("the voters are not those that its state has")
		}
		return StateHashLost, "the voters are not those that this node's state has"
	}
	t := newHashTally(q, own.at.Conf)
	t.hear(s.config.Replica, hashAnswer{q.to(s.config.Replica), hashHere, own.sum})
	s.askHashes(ctx, t)
	sum, who, ok := t.agreed()
	if !ok {
		outcome, said := t.outcome(), s.nameHashes(t)
		if t.isOdd() {
			s.handOver("it does not find all voters")
		} else if outcome == StateHashSplit && s.config.OnStateSplit != nil {
			s.config.OnStateSplit(StateSplit{q.Index, said})
		}
		return outcome, said
	}
	if a := s.leadOnce(ctx, stateAgreed{q.Index, q.Nonce, sum, who}); a.index == 0 {
		return StateHashLost, a.err.Error()
	}
	return StateHashAgreed, ""
}

// knowsVoters reports whether the voters of a state are those that raft counts by,
// and if not, whether they have just changed: else the state is damaged.
func (s *Store) knowsVoters(ctx context.Context, c *stateAt) (knows, changed bool) {
	same := func(a, b raftlog.ConfState) bool {
		return sameReplicas(a.Voters, b.Voters) && sameReplicas(a.VotersOutgoing, b.VotersOutgoing)
	}
	for range 10 { // what was applied is published by one after the other
		now := s.group.Status().Conf
		if same(now, c.at.Conf) {
			return true, false
		}
		if same(now, s.machine.applied().Conf) || !s.sleep(ctx, hashAgain) {
			return false, true
		}
	}
	return false, false
}

// handOver has another node lead, and compare states: what this one goes by may be
// damaged.
func (s *Store) handOver(why string) {
	g := s.Group()
	if g == nil {
		return
	}
	s.config.Logger.Warn("this node hands the metadata over, as its own may be damaged", zap.String("why", why))
	ctx, cancel := withTimeout(s.life, s.config.Clock, hashRound)
	defer cancel()
	if err := g.Resign(ctx); err != nil {
		s.config.Logger.Warn("nobody else leads the metadata", zap.Error(err))
	}
}

func (s *Store) epoch() (epoch uint64) {
	s.machine.read(func(c *catalog) { epoch = c.cluster.Epoch })
	return epoch
}

func (q hashQuestion) to(r raftlog.ReplicaID) hashQuestion {
	q.Replica = r
	return q
}

// awaitHash waits for this replica's hash, and says what there is when ctx ends.
func (s *Store) awaitHash(ctx context.Context, q hashQuestion) (*stateAt, hasHash) {
	for {
		at, progress := s.machine.progress()
		c, changed := s.hashes.find(q.Index, q.Nonce)
		done := make(<-chan struct{})
		switch {
		case c != nil:
			done = c.done
			select {
			case <-c.done:
				if c.err != nil {
					return nil, hashNone
				}
				return c, hashHere
			default:
			}
		case at >= q.Index: // it is held before anybody sees its index
			return nil, hashNone
		}
		select {
		case <-done:
		case <-changed:
		case <-progress:
		case <-ctx.Done():
			return nil, hashPending
		case <-s.life.Done():
			return nil, hashPending
		}
	}
}

// askHashes asks the voters that were not heard until a majority agrees, all have
// said their last word, or ctx ends.
func (s *Store) askHashes(ctx context.Context, t *hashTally) {
	ctx, cancel := context.WithCancel(ctx)
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	type heard struct {
		from raftlog.ReplicaID
		a    hashAnswer
		err  error
		last chan<- bool
	}
	answers := make(chan heard)
	left := 0
	for _, r := range t.voters() {
		if _, ok := t.heard[r]; ok {
			continue
		}
		left++
		asking.Go(func() {
			last := make(chan bool, 1)
			for {
				a, err := s.askHash(ctx, t.question.to(r))
				select {
				case answers <- heard{r, a, err, last}:
				case <-ctx.Done():
					return
				}
				if <-last || !s.sleep(ctx, hashAgain) {
					return
				}
			}
		})
	}
	for left > 0 {
		if _, _, ok := t.agreed(); ok {
			return
		}
		select {
		case h := <-answers:
			final := h.err == nil && t.hear(h.from, h.a)
			if errors.Is(h.err, errNowhere) {
				t.missNowhere(h.from)
				final = true
			} else if errors.Is(h.err, raftlog.ErrRefused) { // to ask again does not help
				t.miss(h.from, h.err.Error())
				final = true
			}
			if final {
				left--
			}
			h.last <- final
		case <-ctx.Done():
			return
		}
	}
}

// sleep reports false if ctx ended meanwhile.
func (s *Store) sleep(ctx context.Context, d time.Duration) bool {
	timer := s.config.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return true
	case <-ctx.Done():
		return false
	}
}

var errNowhere = errors.New("metastore: no member has this replica")

func (s *Store) askHash(ctx context.Context, q hashQuestion) (hashAnswer, error) {
	var node raftlog.NodeID
	s.machine.read(func(c *catalog) { node = c.nodeOf(q.Replica) })
	if node == 0 {
		return hashAnswer{}, errNowhere
	}
	ctx, cancel := withTimeout(ctx, s.config.Clock, 2*s.config.AttemptTimeout)
	defer cancel()
	response, err := s.config.Caller.Call(ctx, node, MethodStateHash, q.encode())
	if err != nil {
		return hashAnswer{}, err
	}
	return decodeHashAnswer(response)
}

// serveStateHash answers a question. It waits for a while until this node has
// hashed its state.
func (s *Store) serveStateHash(ctx context.Context, from raftlog.NodeID, request []byte) ([]byte, error) {
	q, err := decodeHashQuestion(request)
	if errors.Is(err, errNewerForm) {
		return nil, &UnsupportedError{MethodStateHash, err}
	}
	if err != nil {
		return nil, raftlog.Refused(fmt.Errorf("metastore: call of %v: %w", from, err))
	}
	if s.Failed() != nil {
		return nil, s.unavailable()
	}
	a := hashAnswer{hashQuestion: q.to(s.config.Replica)}
	a.Epoch = s.epoch()
	switch {
	case q.Replica != s.config.Replica:
		a.Has = hashOther
	case q.Epoch != a.Epoch:
		a.Has = hashEpoch
	default:
		ctx, cancel := withTimeout(ctx, s.config.Clock, s.config.AttemptTimeout)
		defer cancel()
		var c *stateAt
		if c, a.Has = s.awaitHash(ctx, q); a.Has == hashHere {
			a.Hash = c.sum
		}
	}
	return a.encode(), nil
}

// nameHashes says who said what, by the names of members.
func (s *Store) nameHashes(t *hashTally) string {
	members := s.Members()
	var said []string
	for _, r := range t.voters() {
		name := r.String()
		for _, m := range members {
			if m.Replica == r {
				name = m.Name
			}
		}
		said = append(said, name+" "+t.said(r))
	}
	return strings.Join(said, ", ")
}

// give returns the state that may be given to who asks, in use: the newest one
// that a majority agreed on, or a newer one that it agrees on soon.
func (h *hashes) give(ctx context.Context, r snapshotRequest) (*heldSource, error) {
	s := h.store
	ctx, cancel := withTimeout(ctx, s.config.Clock, hashWait)
	defer cancel()
	for {
		c, changed := h.newest()
		why := h.refusal(c, r)
		fresh := why == nil && s.config.Clock.Now().Sub(c.agreedAt) < hashFresh
		waits := !fresh && ctx.Err() == nil && s.life.Err() == nil && s.group.Status().Role == raftlog.RoleLeaderActive && h.mayBegin()
		switch {
		case waits:
			h.demand()
			select {
			case <-changed:
			case <-ctx.Done():
			case <-s.life.Done():
			}
		case why != nil:
			return nil, why
		case s.sources.retain(c.held):
			return c.held, nil
		}
	}
}

// refusal says why a state that is agreed on, if there is one, is of no use to who
// asks: the log has to lead on from it.
func (h *hashes) refusal(c *stateAt, r snapshotRequest) error {
	facts := serveFacts{Failed: h.store.Failed(), Replica: r.replica, Above: r.above}
	if c == nil {
		if facts.Failed != nil {
			return facts.refusal()
		}
		return errors.New("no majority of the voters has agreed on a state yet")
	}
	facts.At = c.at
	if start := h.store.group.Status().LogStart; c.at.Index < start {
		return fmt.Errorf("the voters last agreed on the state at %d, and its log begins behind %d", c.at.Index, start)
	}
	return facts.refusal()
}
