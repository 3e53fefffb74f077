package metastore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/raftlog"
)

const (
	holdSource  = 60 * time.Second // how long a state is held for who lost its stream
	stallSource = 60 * time.Second // how long a write to a stream may take
	// maxSources is how many states are held at a time: for those that get one, and
	// what is hashed, and the newest that was agreed on.
	maxSources = 4 + maxCandidates + 1
)

// sources gives this node's state to replicas whose leader's log begins behind
// what they need. A state is held while it is given, and for a while after that,
// so that a stream which was cut goes on where it was. From version 3 of a cluster
// only states are given that a majority of the voters agreed on (statehash.go).
type sources struct {
	store *Store
	clock clock.Clock
	rate  int64 // bytes a second, of all streams together

	mu struct {
		sync.Mutex
		held   []*heldSource // oldest first
		due    time.Time     // when the next chunk may go
		closed bool
	}
	serving sync.WaitGroup // Add under mu, and not after closed
}

// heldSource is a source and who uses it. What is below users belongs to sources.mu.
type heldSource struct {
	*source
	users int
	drop  clock.Stopper // while nobody does
	plain bool          // of a cluster that does not agree on states
	hash  *digest       // that was agreed on
}

// isGiven reports whether it may be given to others.
func (h *heldSource) isGiven() bool { return h.plain || h.hash != nil }

func newSources(s *Store) *sources {
	return &sources{store: s, clock: s.config.Clock, rate: s.config.SnapshotRate}
}

// HandleStream serves a stream of another node's store until it is done. It
// returns an error if the stream itself was wrong, or broke.
func (s *Store) HandleStream(ctx context.Context, from raftlog.NodeID, method string, stream Stream) error {
	if method != MethodSnapshot {
		return &UnsupportedError{Call: method}
	}
	return s.sources.serve(ctx, from, stream)
}

func (s *sources) serve(ctx context.Context, from raftlog.NodeID, stream Stream) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.serving.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.store.life, cancel)()
	defer context.AfterFunc(ctx, func() { _ = stream.Close() })()
	dog := newWatchdog(s.clock, stallSource, cancel)
	defer dog.stop()

	request, err := readStart(&chunkReader{r: stream}, chunkRequest, decodeSnapshotRequest)
	if err != nil {
		return raftlog.Refused(fmt.Errorf("metastore: stream of %v: %w", from, err))
	}
	out := chunkWriter{w: stream}
	h, rest, err := s.take(ctx, request)
	if err != nil {
		out.write(chunkAnswer, snapshotAnswer{kind: answerRefused, reason: err.Error()}.encode())
		return out.err
	}
	defer s.release(h)
	state, err := s.store.group.State(ctx)
	if err != nil {
		return raftlog.Retry(err)
	}
	answer, behind := s.answer(h, rest), []byte(nil)
	if answer.term = state.Hard.Term; rest {
		behind = request.behind
	}
	log := s.store.config.Logger.With(zap.Stringer("to", from), zap.Uint64("index", uint64(h.at.Index)))
	log.Info("giving a metadata snapshot", zap.Bool("rest", rest), zap.Bool("agreed", answer.hash != nil))
	out.write(chunkAnswer, answer.encode())
	err = h.write(&out, behind, func(bytes int) error {
		err := s.pace(ctx, bytes)
		dog.kick()
		return err
	})
	if err != nil {
		log.Warn("a metadata snapshot was cut", zap.Error(err))
		return raftlog.Retry(err)
	}
	return nil
}

func (s *sources) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return ErrClosed
	}
	s.serving.Add(1)
	return nil
}

func (s *sources) answer(h *heldSource, rest bool) snapshotAnswer {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := snapshotAnswer{kind: answerWhole, hash: h.hash}
	switch {
	case rest && h.hash != nil:
		a.kind = answerAgreedRest
	case rest:
		a.kind = answerRest
	case h.hash != nil:
		a.kind = answerAgreed
	}
	return a
}

// take returns the state that is asked for: the one that a stream was cut of, if
// it is still held, or a new one.
func (s *sources) take(ctx context.Context, r snapshotRequest) (h *heldSource, rest bool, err error) {
	if h := s.find(r); h != nil {
		return h, true, nil
	}
	if s.store.agreesOnStates() {
		h, err := s.store.hashes.give(ctx, r)
		return h, false, err
	}
	facts := serveFacts{Failed: s.store.Failed(), At: s.store.machine.applied(), Replica: r.replica, Above: r.above}
	if err := facts.refusal(); err != nil {
		return nil, false, err
	}
	source, err := s.store.machine.source()
	if err != nil {
		return nil, false, err
	}
	if h, err = s.hold(source); err != nil {
		return nil, false, err
	}
	s.mu.Lock()
	h.plain = true
	s.mu.Unlock()
	return h, false, nil
}

func (s *sources) find(r snapshotRequest) *heldSource {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.mu.held {
		if r.index != 0 && h.at.Index == r.index && h.at.Term == r.term && h.isGiven() {
			h.useLocked()
			return h
		}
	}
	return nil
}

// retain notes another user of a source that is held, and reports whether it is.
func (s *sources) retain(h *heldSource) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.mu.held, h) {
		return false
	}
	h.useLocked()
	return true
}

func (h *heldSource) useLocked() {
	if h.users++; h.drop != nil {
		h.drop.Stop()
	}
}

// hold takes a source, for one user. If there are too many, the oldest that nobody
// uses goes. On an error the source is closed.
func (s *sources) hold(src *source) (*heldSource, error) {
	h := &heldSource{source: src, users: 1}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return nil, errors.Join(ErrClosed, src.close())
	}
	if len(s.mu.held) >= maxSources {
		i := slices.IndexFunc(s.mu.held, func(h *heldSource) bool { return h.users == 0 })
		if i < 0 {
			return nil, errors.Join(errors.New("it gives its state to others already"), src.close())
		}
		s.letGoLocked(s.mu.held[i])
	}
	s.mu.held = append(s.mu.held, h)
	return h, nil
}

// agreed notes that a state was agreed on, so that it may be given away.
func (s *sources) agreed(h *heldSource, sum digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h.hash = &sum
}

// release ends a use. Who was cut may come back for the rest for a while.
func (s *sources) release(h *heldSource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.users--; h.users == 0 && !s.mu.closed {
		h.drop = s.clock.AfterFunc(holdSource, func() { s.letGo(h) })
	}
}

// forget ends the use of a state that was given to nobody.
func (s *sources) forget(h *heldSource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.users--; h.users == 0 {
		s.letGoLocked(h)
	}
}

// letGo closes a state unless somebody uses it again.
func (s *sources) letGo(h *heldSource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.users == 0 {
		s.letGoLocked(h)
	}
}

// letGoLocked holds the lock while Pebble closes the state: it must not be
// forgotten before, or the database would be closed below it.
func (s *sources) letGoLocked(h *heldSource) {
	i := slices.Index(s.mu.held, h)
	if i < 0 {
		return
	}
	s.mu.held = slices.Delete(s.mu.held, i, i+1)
	if h.drop != nil {
		h.drop.Stop()
	}
	_ = h.close() // if the database failed it is abandoned, with all of its states
}

// pace waits until so many bytes may go.
func (s *sources) pace(ctx context.Context, bytes int) error {
	s.mu.Lock()
	now := s.clock.Now()
	if s.mu.due.Before(now) {
		s.mu.due = now
	}
	wait := s.mu.due.Sub(now)
	s.mu.due = s.mu.due.Add(time.Duration(int64(bytes) * int64(time.Second) / s.rate))
	s.mu.Unlock()
	if wait <= 0 {
		return ctx.Err()
	}
	timer := s.clock.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// close waits for all streams, whose contexts have ended, and lets all go.
func (s *sources) close() {
	s.mu.Lock()
	s.mu.closed = true
	s.mu.Unlock()
	s.serving.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.mu.held) > 0 {
		s.letGoLocked(s.mu.held[0])
	}
}

// watchdog calls f when it was not kicked for a while.
type watchdog struct {
	clock clock.Clock
	after time.Duration
	f     func()
	timer clock.Stopper
}

func newWatchdog(c clock.Clock, after time.Duration, f func()) *watchdog {
	return &watchdog{c, after, f, c.AfterFunc(after, f)}
}

func (w *watchdog) kick() {
	w.timer.Stop()
	w.timer = w.clock.AfterFunc(w.after, w.f)
}

func (w *watchdog) stop() { w.timer.Stop() }
