package topic

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/stelelog/stele/storage"
)

// The scrubber looks for bytes of partition logs on this node that are not what was
// written: all of them every Config.VerifyInterval, and at once where a read has met
// some. It writes them again from another replica. Until that succeeded the range is
// refused to who reads it, here and as a fill, and the replica hands leadership over
// (raftlog.Group.SetDamaged); it goes on voting and acknowledging, for what that
// rests on is in the journal and the table.
//
//	     verified: nothing to do
//	       │
//	a read ├──► suspect ──► healed                          told: repaired
//	       │      │  ▲
//	round ─┘      ▼  │ no other replica could give it       told: damaged
//	             ill ┘ (pauses grow to half a minute)
//
// It has one goroutine. What it reads in rounds is paced by
// Config.VerifyBytesPerSecond, what it gets by Config.FillBytesPerSecond.
type scrubber struct {
	*Manager
	round []*replica        // still to be verified in this round
	r     *replica          // that is being verified
	v     *storage.Verifier // of it
	due   time.Time         // of the next round
	pace  *pacer
	ill   map[*replica]*illness
}

// illness is a replica whose log is damaged, or may be.
type illness struct {
	segments []storage.Index // first entries
	pause    time.Duration
	at       time.Time // of the next try
}

// suspects are replicas of which a read was refused, with the first entries of the
// segments.
type suspects struct {
	beacon
	lock sync.Mutex
	all  map[*replica][]storage.Index
}

// scrubStep is about how much is read at a time.
const scrubStep = 128 << 10

// firstRound is when the first round begins, behind what a start has to do.
const firstRound = time.Minute

// DamageChange is what Config.OnDamage tells: some of a replica's log on this node is
// not what was written, or it is again.
type DamageChange struct {
	TopicPartition
	Replica storage.ReplicaID
	// Reason is why it could not be repaired yet; nil: all of it is right again.
	Reason error
	// Entry is the first that is damaged, or was.
	Entry storage.Index
	// Repaired is how many bytes came from another replica so far.
	Repaired int64
}

// suspect notes that a read of a replica's log met damage. It is called by readers.
func (m *Manager) suspect(r *replica, first storage.Index) {
	s := &m.suspected
	s.lock.Lock()
	if !slices.Contains(s.all[r], first) {
		s.all[r] = append(s.all[r], first)
	}
	s.lock.Unlock()
	s.flash()
}

func (s *scrubber) run() {
	s.due = s.cfg.Clock.Now().Add(firstRound)
	for s.life.Err() == nil {
		suspected := s.suspected.wait()
		s.admit()
		wait := min(s.heal(), s.verify())
		if wait <= 0 {
			continue
		}
		timer := s.cfg.Clock.NewTimer(wait)
		select {
		case <-suspected:
		case <-timer.C():
		case <-s.life.Done():
		}
		timer.Stop()
	}
}

// admit takes over what readers met.
func (s *scrubber) admit() {
	s.suspected.lock.Lock()
	all := s.suspected.all
	s.suspected.all = map[*replica][]storage.Index{}
	s.suspected.lock.Unlock()
	for r, segments := range all {
		i := s.ill[r]
		if i == nil {
			i = &illness{}
			s.ill[r] = i
		}
		for _, first := range segments {
			if !slices.Contains(i.segments, first) {
				i.segments = append(i.segments, first)
			}
		}
	}
}

// lastHeal is the longest pause between two tries: each reads a segment.
const lastHeal = 30 * time.Second

// idle is how long the scrubber waits if nothing is due.
const idle = time.Hour

// heal tries to repair what is due, and returns when it is to be called again.
func (s *scrubber) heal() time.Duration {
	next := idle
	for r, i := range s.ill {
		if s.replica(r.address) != r || r.failed() != nil || r.ending.Load() {
			delete(s.ill, r) // it is opened again, or gone
			continue
		}
		if wait := i.at.Sub(s.cfg.Clock.Now()); wait > 0 {
			next = min(next, wait)
			continue
		}
		i.segments = slices.DeleteFunc(i.segments, func(first storage.Index) bool {
			return s.life.Err() == nil && s.healSegment(r, first) == nil
		})
		if len(i.segments) == 0 {
			s.sound(r)
			delete(s.ill, r)
			continue
		}
		i.pause = min(max(2*i.pause, firstRetry), lastHeal)
		i.at = s.cfg.Clock.Now().Add(i.pause)
		next = min(next, i.pause)
	}
	return next
}

// healSegment verifies a segment, and repairs what is not right.
func (s *scrubber) healSegment(r *replica, first storage.Index) error {
	v := s.verifier(r, first)
	begin, last := v.Segment(), storage.Index(0)
	for v.Segment() == begin {
		n, err := v.Step(scrubStep)
		s.stats.verified.Add(uint64(n))
		var damage *storage.DamageError
		switch {
		case errors.As(err, &damage):
			if v.Next() == last { // it was written, and is not there
				s.damaged(r, last, damage)
				r.group.SetDamaged(true)
				return damage
			}
			last = v.Next()
			if err := s.repair(r, v, damage); errors.Is(err, storage.ErrCompacted) || errors.Is(err, storage.ErrClosed) {
				return nil
			} else if err != nil {
				return err
			}
		case err != nil:
			return nil // the log is closed
		case n == 0:
			return nil // its end
		}
		if s.life.Err() != nil {
			return ErrClosed
		}
	}
	return nil
}

// repair gets what is damaged at the verifier's place from another replica.
func (s *scrubber) repair(r *replica, v *storage.Verifier, damage *storage.DamageError) error {
	s.damaged(r, v.Next(), damage)
	n, err := s.Manager.repair(s.life, s.patient(r), r.group.Log(), v)
	if r.repaired.Add(n); err == nil || s.life.Err() != nil || errors.Is(err, storage.ErrCompacted) || errors.Is(err, storage.ErrClosed) {
		return err
	}
	reason := fmt.Errorf("%w; no other replica has given it: %w", damage, err)
	if s.ill[r].pause == 0 {
		s.log(r).Error("some of a replica's log is damaged, and no other replica could give it yet", zap.Error(reason))
		s.tell(r, v.Next(), reason)
	}
	s.damaged(r, v.Next(), reason)
	r.group.SetDamaged(true)
	return err
}

// damaged shows what is known of a damage.
func (s *scrubber) damaged(r *replica, entry storage.Index, reason error) {
	if r.damage.Load() == nil {
		s.stats.damages.Add(1)
		s.log(r).Warn("some of a replica's log is not what was written: getting it from another replica", zap.Error(reason))
		defer s.tell(r, entry, reason)
	}
	r.damage.Store(&DamageChange{Reason: reason, Entry: entry})
}

// sound notes that all that was damaged is right.
func (s *scrubber) sound(r *replica) {
	was := r.damage.Swap(nil)
	r.group.SetDamaged(false)
	if was == nil {
		return
	}
	s.log(r).Info("a replica's log is whole again", zap.Int64("bytes", r.repaired.Load()))
	s.tell(r, was.Entry, nil)
	r.repaired.Store(0)
}

func (s *scrubber) tell(r *replica, entry storage.Index, reason error) {
	if f := s.cfg.OnDamage; f != nil {
		f(DamageChange{
			TopicPartition: TopicPartition{r.name, r.partition}, Replica: r.id,
			Reason: reason, Entry: entry, Repaired: r.repaired.Load(),
		})
	}
}

func (s *scrubber) patient(r *replica) patient {
	leader, _ := r.leader()
	return patient{address: r.address, group: r.where().Group, replica: r.id, others: s.others(r.where(), leader)}
}

// verify reads on in the round, and returns when it is to be called again.
func (s *scrubber) verify() time.Duration {
	now := s.cfg.Clock.Now()
	if s.v == nil && !s.pick(now) {
		return max(s.due.Sub(now), time.Millisecond)
	}
	n, err := s.v.Step(scrubStep)
	s.stats.verified.Add(uint64(n))
	var damage *storage.DamageError
	switch {
	case errors.As(err, &damage):
		s.suspect(s.r, s.v.Segment())
		if !s.v.Skip() {
			s.v = nil
		}
	case err == nil && n == 0:
		s.aside(s.r)
		s.audit(s.r)
		s.v = nil
	case err != nil:
		s.v = nil
	}
	return max(s.pace.due(now, int(n))-paceSlack, 0)
}

// aside looks at a replica's newest side file, which is read when it is opened next.
func (s *scrubber) aside(r *replica) {
	switch n, err := s.mendAside(s.life, s.patient(r), r.group.Log()); {
	case n > 0:
		s.stats.damages.Add(1)
		s.log(r).Warn("the producers' state beside a replica's log was not what was written: it was made again", zap.Int64("bytes", n))
	case err != nil && s.life.Err() == nil:
		s.log(r).Error("the producers' state beside a replica's log is not what was written, and could not be made again", zap.Error(err))
	}
}

// pick takes the next replica of the round, or begins one that is due.
func (s *scrubber) pick(now time.Time) bool {
	if len(s.round) == 0 {
		if now.Before(s.due) {
			return false
		}
		s.due = now.Add(s.cfg.VerifyInterval)
		s.mu.RLock()
		for _, r := range s.mu.replicas {
			s.round = append(s.round, r)
		}
		s.mu.RUnlock()
	}
	for len(s.round) > 0 {
		s.r, s.round = s.round[0], s.round[1:]
		if s.replica(s.r.address) == s.r {
			s.v = s.verifier(s.r, 0)
			return true
		}
	}
	s.r = nil
	return false
}

// verifier reads a replica's log from a segment on, and notes the digests.
func (s *scrubber) verifier(r *replica, first storage.Index) *storage.Verifier {
	v := r.group.Log().Verify(first)
	v.OnSealed = r.sums.note
	return v
}

func (s *scrubber) log(r *replica) *zap.Logger {
	return s.cfg.Logger.With(zap.String("topic", r.name), zap.Uint32("partition", r.partition), zap.Stringer("replica", r.id))
}
