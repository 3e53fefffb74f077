package membership

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// flush records the heartbeats that were heard since the last time. Most say
// nothing new, so they wait for each other.
func (s *Steward) flush(ctx context.Context) {
	if s.cfg.Meta.ClusterVersion() < versionOfJoining {
		return // there is no command for it yet
	}
	members := s.cfg.Meta.Members()
	s.mu.Lock()
	t, proposed := s.mu.tenure, s.now()
	if t == nil || !s.mu.urgent && proposed-s.mu.flushed < s.cfg.FlushEvery {
		s.mu.Unlock()
		return
	}
	s.mu.flushed, s.mu.urgent = proposed, false
	t.hear(s.cfg.Place.Node, s.cfg.Newest, proposed)
	var beats []metastore.Heartbeat
	var nodes []raftlog.NodeID
	for _, m := range members {
		if t.silent(m.Node, proposed) >= s.cfg.Rules.ReplaceAfter {
			// So old a heartbeat, from before the cluster could record any, is no sign
			// of life: a new life may be about to take the place.
			delete(t.pending, m.Node)
		}
		if t.pending[m.Node] {
			beats = append(beats, metastore.Heartbeat{Node: m.Node, Nonce: m.Nonce, Newest: t.newest[m.Node]})
			nodes = append(nodes, m.Node)
		}
	}
	s.mu.Unlock()
	_, err := s.cfg.Meta.RecordHeartbeats(ctx, beats) // who was removed meanwhile is told by its next heartbeat
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.mu.urgent = true
		return
	}
	t.flushed(nodes, proposed)
}

func (s *Steward) raiseVersion(ctx context.Context, f *Facts) {
	v := NextVersion(f)
	if v == f.Version {
		s.sayBehind(f)
		return
	}
	if err := s.cfg.Meta.SetVersion(ctx, v); err != nil {
		s.failed("raise the version of the cluster", err)
		return
	}
	s.cfg.Logger.Info("the version of the cluster was raised", zap.Uint64("version", v))
	s.tell(Event{Kind: EventVersion, Reason: fmt.Sprint(v)})
	s.mu.Lock()
	s.mu.urgent = true // what members announced can be recorded now
	s.mu.Unlock()
}

// sayBehind says who holds the version back, once all have had time to be heard.
func (s *Steward) sayBehind(f *Facts) {
	names := Behind(f)
	if f.LedFor < f.Rules.PromoteAfter || len(names) == 0 {
		return
	}
	s.mu.Lock()
	last := s.mu.behind
	s.mu.behind = names
	s.mu.Unlock()
	if !slices.Equal(last, names) {
		s.cfg.Logger.Info("members hold the version of the cluster back", zap.Uint64("version", f.Version), zap.Strings("behind", names))
	}
}

// Behind names the members that hold the cluster's version back; ok is false if
// this node does not lead, and does not know.
func (s *Steward) Behind() (names []string, ok bool) {
	f := s.Facts()
	return Behind(f), f.Leads
}

// judge marks the dead.
func (s *Steward) judge(ctx context.Context, f *Facts) {
	j := MarkDead(f)
	s.mu.Lock()
	first := len(j.Spared) > 0 && !s.mu.spared
	s.mu.spared = len(j.Spared) > 0
	s.mu.gauges.Spared = len(j.Spared)
	s.mu.Unlock()
	if first {
		s.cfg.Logger.Error("voters are silent and not marked dead", zap.Stringer("why", j))
		s.tell(Event{Kind: EventSpared, Reason: j.String()})
	}
	if len(j.Marks) == 0 || f.Version < versionOfJoining {
		return
	}
	results, err := s.cfg.Meta.MarkDead(ctx, j.Marks)
	if err != nil {
		s.failed("mark members dead", err)
		return
	}
	for i, m := range j.Marks {
		if k := f.member(m.Node); i < len(results) && results[i] == nil {
			s.cfg.Logger.Warn("a member is dead", zap.String("name", k.Name), zap.Stringer("id", k.Node), zap.Duration("silent", k.Silent))
			s.tell(Event{Kind: EventDead, Node: k.Node, Name: k.Name})
		}
	}
}

// burn has those refused for good who asked for a name before its holder spoke.
func (s *Steward) burn(ctx context.Context, f *Facts) {
	s.mu.Lock()
	burnt := s.mu.tenure.burnt(f)
	s.mu.Unlock()
	for _, a := range burnt {
		_, err := s.cfg.Meta.Admit(ctx, a)
		if !errors.Is(err, metastore.ErrNonceRefused) {
			s.mu.Lock()
			if w := s.mu.tenure; w != nil && w.asked[a.Nonce] != nil {
				w.asked[a.Nonce].burned = false // again
			}
			s.mu.Unlock()
			continue
		}
		s.refused(a.Name, a.Nonce, a.Replaces)
	}
}

// refused tells of a life that was refused for good: once, though its own question and
// a pass may both have found that.
func (s *Steward) refused(name string, life raftlog.Nonce, holder raftlog.NodeID) {
	key := "refused " + life.String()
	s.mu.Lock()
	is := s.mu.told[key] == ""
	s.mu.told[key] = "refused"
	s.mu.Unlock()
	if !is {
		return
	}
	s.cfg.Logger.Error("a node that wanted the name of a living member is refused for good", zap.String("name", name), zap.Stringer("holder", holder))
	s.tell(Event{Kind: EventRefused, Name: name, Reason: fmt.Sprintf("the name is that of %v, which lives", holder)})
}

// noteStrays says that voters are left over which no member is. They are taken out
// only if a person says so: they may be needed. Each is told once in a leadership.
func (s *Steward) noteStrays(f *Facts) {
	strays := 0
	for _, r := range f.Conf.Voters {
		if f.byReplica(r) != nil {
			continue
		}
		strays++
		s.mu.Lock()
		is := s.mu.told[r.String()] == ""
		s.mu.told[r.String()] = "stray"
		s.mu.Unlock()
		if is {
			s.cfg.Logger.Error("a replica that no member is votes on the metadata: it can be forgotten", zap.Stringer("replica", r))
			s.tell(Event{Kind: EventStray, Reason: fmt.Sprintf("%v votes on the metadata, and no member is it: it can be forgotten", r)})
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.gauges.Strays = strays
}

// errNothing: a decision was that nothing is to be changed.
var errNothing = raftlog.Retry(errors.New("membership: nothing to change"))

// changeSeats decides about the configuration on facts that nobody else changes
// meanwhile, and makes the change.
func (s *Steward) changeSeats(ctx context.Context, decide func(*Facts) *raftlog.Change) error {
	select {
	case s.seats <- struct{}{}:
		defer func() { <-s.seats }()
	case <-ctx.Done():
		return raftlog.Retry(context.Cause(ctx))
	}
	f := s.Facts()
	if !f.Leads {
		return s.notLeader()
	}
	c := decide(f)
	if c == nil {
		return errNothing
	}
	s.cfg.Random(c.ID[:])
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer s.cfg.Clock.AfterFunc(s.cfg.Rules.CallTimeout, cancel).Stop()
	err := s.cfg.Group.ChangeMembers(ctx, *c)
	if err != nil {
		s.failed("change the configuration", err)
		return err
	}
	s.cfg.Logger.Info("the configuration changed", zap.Any("voters", c.Voters), zap.Any("learners", c.Learners), zap.Any("removed", c.Remove))
	return nil
}

func (s *Steward) notLeader() error {
	leader, _ := s.cfg.Meta.Leader()
	return &raftlog.NotLeaderError{Group: raftlog.MetadataGroup, Node: leader}
}

// failed logs what did not come about; another pass tries again.
func (s *Steward) failed(what string, err error) {
	s.cfg.Logger.Debug("did not "+what, zap.Error(err))
}

// visitEvery is how often a node is called whose answers count.
const visitEvery = 2 * time.Second

// visit calls the learners, so that a promotion knows who can be reached, and
// who drains, for its backlog. One call to a node at a time.
func (s *Steward) visit(ctx context.Context, f *Facts, running *sync.WaitGroup) {
	for i := range f.Members {
		k := &f.Members[i]
		drains := k.Liveness.Draining() && f.successor(k.Node) == nil
		departures := s.cfg.Meta.Departures() // before the question
		if k.Self && drains {
			draining, count := s.cfg.Backlog()
			s.noteBacklog(k.Node, Backlog{true, draining, count}, departures)
			continue
		}
		if k.Self || !drains && (k.Seat != SeatLearner || k.Liveness.Observer) || !s.beginCall(k.Node) {
			continue
		}
		node, req := k.Node, BacklogRequest{Node: k.Node, Nonce: k.Nonce, Draining: drains}
		running.Go(func() {
			b, reached := s.askBacklog(ctx, req)
			b.Asked = drains
			s.noteBacklog(node, b, departures)
			s.endCall(node, !reached)
			if reached {
				_ = rest(ctx, s.cfg.Clock, visitEvery, nil)
			} // else again at once: the memory of a failure must not end before the next one
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.mu.calling, node)
		})
	}
}

func (s *Steward) beginCall(node raftlog.NodeID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.calling[node] {
		return false
	}
	s.mu.calling[node] = true
	return true
}

func (s *Steward) endCall(node raftlog.NodeID, failed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.tenure != nil {
		s.mu.tenure.called(node, failed, s.now())
	}
}

// noteBacklog keeps the newest answer; no answer is one, too. departures is of when it
// was asked.
func (s *Steward) noteBacklog(node raftlog.NodeID, b Backlog, departures uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.tenure != nil {
		s.mu.tenure.backlogs[node] = answered{b, departures}
	}
}

// askBacklog asks one life of a node, and reports whether it was reached: a node
// that answers anything lives, but for another life at its address.
func (s *Steward) askBacklog(ctx context.Context, q BacklogRequest) (b Backlog, reached bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer s.cfg.Clock.AfterFunc(s.cfg.Rules.CallTimeout, cancel).Stop()
	bytes, err := s.cfg.Caller.Call(ctx, q.Node, MethodBacklog, q.Encode())
	if err != nil {
		return Backlog{}, false
	}
	a, err := DecodeBacklogAnswer(bytes)
	switch {
	case err != nil: // it is not part of the cluster yet
		return Backlog{}, true
	case a.Node != q.Node || a.Nonce != q.Nonce:
		return Backlog{}, false
	}
	return Backlog{Known: q.Draining && a.Draining, Count: a.Count}, true
}

// seeOff takes the next step of each member that leaves.
func (s *Steward) seeOff(ctx context.Context, f *Facts) {
	for i := range f.Members {
		k := &f.Members[i]
		departures := s.cfg.Meta.Departures()
		s.mu.Lock()
		b := s.mu.tenure.backlogOf(k, departures)
		of := metastore.Judged{Term: s.mu.tenure.termOf(), Departures: departures}
		s.mu.Unlock()
		n := NextStep(f, k.Node, b)
		if n.Step == StepNone {
			continue
		}
		if n.Step == StepMove && s.cfg.Stuck != nil {
			if b, is := s.cfg.Stuck(k.Node); is {
				n.Blocked, n.Reason = b.Code, b.Reason
			}
		}
		s.note(k, n)
		if s.take(ctx, k, n, b, of) {
			s.wake() // there may be more to do at once
			return   // on other facts
		}
	}
}

// take does a step, and reports whether that changed anything. of is what it was
// judged of.
func (s *Steward) take(ctx context.Context, k *Known, n Next, b Backlog, of metastore.Judged) bool {
	var err error
	switch n.Step {
	case StepDrain:
		err = s.cfg.Meta.SetDeparture(ctx, k.Node, k.Nonce, metastore.Drains)
	case StepMark:
		err = s.cfg.Meta.MarkLeaving(ctx, k.Node, k.Nonce, of)
	case StepTransfer:
		err = s.cfg.Group.Resign(ctx, s.successors(k)...)
	case StepLeave:
		err = s.changeSeats(ctx, func(f *Facts) *raftlog.Change {
			if n := NextStep(f, k.Node, b); n.Step == StepLeave {
				return &n.Change
			}
			return nil
		})
	case StepRemove:
		if err = s.cfg.Meta.RemoveMember(ctx, k.Node); err == nil {
			s.cfg.Logger.Info("a member was removed", zap.String("name", k.Name), zap.Stringer("id", k.Node))
			s.tell(Event{Kind: EventRemoved, Node: k.Node, Name: k.Name})
		}
	default:
		return false
	}
	if err != nil {
		s.failed(n.Step.String(), err)
	}
	return err == nil
}

// successors are the voters that may lead instead of one that leaves, the most
// caught-up first.
func (s *Steward) successors(leaver *Known) (to []raftlog.ReplicaID) {
	f := s.Facts()
	match := map[raftlog.ReplicaID]raftlog.Index{}
	for _, p := range s.cfg.Group.Status().Progress {
		match[p.Replica] = p.Match
	}
	for i := range f.Members {
		if k := &f.Members[i]; k.Node != leaver.Node && k.Seat == SeatVoter && !k.Liveness.Draining() && f.alive(k) {
			to = append(to, k.Replica)
		}
	}
	slices.SortStableFunc(to, func(a, b raftlog.ReplicaID) int { return cmp.Compare(match[b], match[a]) })
	return to
}

// note logs and tells a step, or why there is none, when it is a new one.
func (s *Steward) note(k *Known, n Next) {
	text := n.Step.String()
	if n.Reason != "" {
		text += ": " + n.Reason
	}
	news := text
	if n.Step == StepMove {
		news = n.Step.String() + n.Blocked.String() // how many are left is no news
	}
	s.mu.Lock()
	is := s.mu.told[k.Node.String()] != news
	s.mu.told[k.Node.String()] = news
	s.mu.Unlock()
	if !is {
		return
	}
	s.cfg.Logger.Info("a member leaves", zap.String("name", k.Name), zap.Stringer("id", k.Node), zap.String("next", text))
	kind := EventStep
	if n.Blocked != 0 {
		kind = EventBlocked
	}
	s.tell(Event{Kind: kind, Node: k.Node, Name: k.Name, Reason: text})
}
