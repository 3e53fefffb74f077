package metastore

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap"

	"github.com/stelelog/stele/raftlog"
)

// # Agreed states
//
// All replicas of group 1 apply one log, so that at one index all have one state,
// unless one of them is damaged: by a bug, a build that decides otherwise, memory
// that lost a bit. Such a replica looks healthy, since raft compares logs and not
// states, and it may lead. It is found, and kept from handing on what it has:
//
//	the leader           hash(nonce) is committed, at index i
//	every replica        holds its state of exactly i, and hashes it beside the applying
//	the leader           asks the voters for their hashes; once a majority of the voters
//	                     as of i, while joint of both halves, have the same one, it
//	                     commits agreed(i, nonce, hash, who)
//	every replica        on applying that: its own hash of i is that one, and the state
//	                     that it holds is agreed; or it stops for good (ErrStateDiverged)
//
// A state is given away only if it is agreed, with its hash, and taken only if it has
// that hash. So what a replica begins with is what a majority had.
//
// # Why that is enough
//
// Suppose that of the voters as of i less than a majority, while joint in either
// half, have a damaged state, and that all run undamaged code. Two majorities of
// the same voters have one in common, so that no two hashes of i are agreed, and a
// majority has an undamaged one: the agreed hash is that of the undamaged state.
//
//	the leader is the damaged      it counts as others do, and commits a hash that is
//	one                            not its own. Its own state never gets a majority
//	its voters are not those       it counts none unless those of its state are those of
//	                               its raft group, which keeps them apart; and each
//	                               replica checks who agreed, against the voters of i in
//	                               its own state of i, and those of its raft group
//	it does not find a voter, or   it gets no majority, and hands over, so that another
//	has another epoch than they    one counts
//	it became leader and is asked  what it holds is not agreed, so it gives nothing, and
//	for a snapshot                 the round that this brings about ends it
//	its state says that the        then it would give states as an old release does. The
//	cluster is older               newest command that was applied says so too, and
//	                               either is enough; who takes a state refuses one that
//	                               is not agreed if it, or its own, is of version 3
//	damage after the state was     what is held is Pebble's snapshot of i, which later
//	held                           writes do not change, and the receiver hashes what it got
//	a sender that only thinks      the receiver keeps its own hash of i. The log that it
//	that its state is agreed       goes on with holds the agreement, since that is
//	                               behind i, and the gate opens only behind it: on
//	                               applying it the receiver stops as any other dissenter
//	the rest of a snapshot that    is given by whoever holds the same agreed index, and
//	was cut                        has to have the same hash
//	a replica that was restarted   has no hash of i, says nothing, and does not count. Nor
//	or got a snapshot since i      does it compare: the next round finds it. One that
//	                               replays hash(nonce) is at i again, and hashes
//	a replica that lags            answers later; a round ends after a while without it
//	a late answer, or of another   has another nonce, index, epoch or replica. What it says
//	                               of the cluster and of its voters is in the hash
//	a command of an old round      names index and nonce of the state that it is about
//	a state in the middle of a     the batch ends with hash(nonce), and the state is held
//	batch of entries               before anything else is applied
//
// # What does not follow
//
// If no hash has a majority (one of two, two of four, three that all differ) nobody
// knows who is right. Then nobody stops, no state is given away, and the leader says
// so at every round (Config.OnStateSplit): a person has to choose. Nothing is
// destroyed meanwhile on the word of either (confirm.go). If a majority is damaged in
// the same way, the others stop. What a damaged leader answers until it is found may
// be of its own state: that a command was refused, or where it put a partition. A damage to what is only in memory beside the state
// (catalog.go) is not seen before a restart.
//
// A dissenter remembers what it is, and is not opened again: its directory is to be
// moved away, and the node comes back as one whose disk was replaced.
//
// # What it costs
//
// A replica that needs a snapshot needs a majority that agrees, now or lately: each
// replica keeps its newest agreed state, and the log behind it, so that a leader
// can give it though it cannot commit anything. It is lost with the process: if a
// leader has just been restarted, and the only voter that it could make a majority
// with is behind the start of its log, then both wait for a third one, or for a
// forced recovery. To give that voter a state which nobody else has is what must not be.
//
// What is held costs the database one more copy at most of what is overwritten.
//
// All of this begins with version 3 of a cluster. Before it states are given as
// they are.

// versionOfAgreement is the version of the cluster from which on every member
// hashes its state.
const versionOfAgreement = 3

// digestVersion is that of what is hashed, and how.
const digestVersion = 1

// digest is a hash of the replicated state of one index. All that is under the
// state's generation counts, in the order of the keys: the applied index, its term
// and the configuration, too. What is of this node alone is not there.
type digest [sha256.Size]byte

// digester makes a digest; format.go has the bytes.
type digester struct {
	h hash.Hash
	n uint64
	b []byte
}

func newDigester() *digester {
	d := &digester{h: sha256.New()}
	_, _ = d.h.Write([]byte{digestVersion}) // never fails
	return d
}

func (d *digester) add(key, value []byte) {
	d.n++
	d.b = appendUint(d.b[:0], uint64(len(key)))
	_, _ = d.h.Write(d.b)
	_, _ = d.h.Write(key)
	d.b = appendUint(d.b[:0], uint64(len(value)))
	_, _ = d.h.Write(d.b)
	_, _ = d.h.Write(value)
}

func (d *digester) sum() digest {
	_, _ = d.h.Write(binary.BigEndian.AppendUint64(nil, d.n))
	return digest(d.h.Sum(nil))
}

const (
	hashSlice = 256 << 10 // bytes that are hashed without a pause
	hashRate  = 64 << 20  // bytes a second
)

// digestOf hashes the state of a generation, a slice at a time. pace is called
// between them, and may end it.
func digestOf(db *database, r pebble.Reader, generation uint32, pace func(bytes int) error) (digest, error) {
	d := newDigester()
	first, end := stateKey(generation, nil), after(stateKey(generation, nil))
	for {
		var size int
		var last []byte
		err := db.run(func() error {
			return scanRange(r, first, end, func(key, value []byte) error {
				d.add(key, value)
				if size += len(key) + len(value); size < hashSlice {
					return nil
				}
				last = slices.Clone(key)
				return errEnough
			})
		})
		if err == nil {
			return d.sum(), nil
		}
		if err != errEnough {
			return digest{}, err
		}
		if err := pace(size); err != nil {
			return digest{}, err
		}
		first = append(stateKey(generation, last), 0)
	}
}

// stateAt is the state of an index that a command asked to hash.
type stateAt struct {
	at       applied
	nonce    [16]byte
	received bool // in a snapshot: of whatever nonce
	held     *heldSource

	// The rest belongs to hashes.mu until done is closed, and does not change then.
	done     chan struct{} // closed when sum or err is there
	sum      digest
	err      error        // why there is no hash
	agreed   *stateAgreed // it came before the hash
	gone     bool         // nobody asks for it any more
	hashing  bool
	agreedAt time.Time
}

func (c *stateAt) is(index raftlog.Index, nonce [16]byte) bool {
	return c.at.Index == index && (c.received || c.nonce == nonce)
}

// hashes are the states that wait to be agreed on, and the newest one that was.
//
// Invariants:
//
//  1. Each candidate that is not gone, and agreed, has a use of its source.
//  2. agreed was done, and its hash is the one that a majority had.
type hashes struct {
	store *Store
	work  chan struct{} // there may be something to hash
	want  chan struct{} // somebody wants a state to be agreed on

	mu struct {
		sync.Mutex
		candidates []*stateAt    // oldest first, at most maxCandidates
		agreed     *stateAt      // nil: none since this store was opened
		changed    chan struct{} // closed and replaced when any of it has changed
		asked      time.Time     // when a command to hash was applied last, or a round begun
		idle       time.Time     // on demand no round begins before
		trims      int           // of the log, held back by agreed since it is
		stats      StateHashStats
	}
}

// maxCandidates: one is hashed, one waits. A third takes the place of the first.
const maxCandidates = 2

func newHashes(s *Store) *hashes {
	h := &hashes{store: s, work: make(chan struct{}, 1), want: make(chan struct{}, 1)}
	h.mu.changed = make(chan struct{})
	// The first round comes soon.
	h.mu.asked = s.config.Clock.Now().Add(-s.config.StateHashInterval + s.config.StateHashInterval/10)
	h.mu.stats.Rounds = map[StateHashOutcome]uint64{}
	return h
}

func (h *hashes) changedLocked() {
	close(h.mu.changed)
	h.mu.changed = make(chan struct{})
}

// begin takes the state behind a command that asks to hash it, which was just
// applied. It is called by who applies, in Pebble.
func (h *hashes) begin(nonce [16]byte) {
	src, err := h.store.machine.sourceHere()
	var held *heldSource
	if err == nil {
		held, err = h.store.sources.hold(src)
	}
	if err != nil {
		h.store.config.Logger.Warn("this node's metadata is not hashed", zap.Error(err))
		return
	}
	h.add(&stateAt{at: src.at, nonce: nonce, held: held, done: make(chan struct{})})
}

func (h *hashes) add(c *stateAt) {
	h.mu.Lock()
	var drop []*stateAt
	for len(h.mu.candidates) >= maxCandidates {
		drop = append(drop, h.dropLocked(0)...)
	}
	h.mu.candidates = append(h.mu.candidates, c)
	h.mu.asked = h.store.config.Clock.Now()
	h.changedLocked()
	h.mu.Unlock()
	h.release(drop)
	select {
	case h.work <- struct{}{}:
	default:
	}
}

// dropLocked takes a candidate out, and returns it if its source is to be released.
func (h *hashes) dropLocked(i int) []*stateAt {
	c := h.mu.candidates[i]
	h.mu.candidates = slices.Delete(h.mu.candidates, i, i+1)
	if c.gone = true; c.hashing {
		return nil // who hashes does it
	}
	return []*stateAt{c}
}

func (h *hashes) release(all []*stateAt) {
	for _, c := range all {
		h.store.sources.forget(c.held)
	}
}

// run hashes what there is to hash, until the store is closed.
func (h *hashes) run() {
	for {
		c := h.next()
		if c == nil {
			select {
			case <-h.store.life.Done():
				return
			case <-h.work:
			}
			continue
		}
		sum, err := digestOf(c.held.db, c.held.held, c.held.of, func(bytes int) error { return h.pace(c, bytes) })
		h.hashed(c, sum, err)
	}
}

func (h *hashes) next() *stateAt {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.mu.candidates {
		select {
		case <-c.done:
		default:
			c.hashing = true
			return c
		}
	}
	return nil
}

var errGone = errors.New("metastore: nobody asks for this hash any more")

// pace keeps the hashing from taking a core, or the disk, for itself.
func (h *hashes) pace(c *stateAt, bytes int) error {
	h.mu.Lock()
	gone := c.gone
	h.mu.Unlock()
	if gone {
		return errGone
	}
	timer := h.store.config.Clock.NewTimer(time.Duration(bytes) * time.Second / hashRate)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-h.store.life.Done():
		return ErrClosed
	}
}

// hashed takes what came of a hash, and compares if the agreement is there.
func (h *hashes) hashed(c *stateAt, sum digest, err error) {
	h.mu.Lock()
	c.sum, c.err, c.hashing = sum, err, false
	close(c.done)
	h.changedLocked()
	a, gone := c.agreed, c.gone
	h.mu.Unlock()
	switch {
	case gone:
		h.release([]*stateAt{c})
	case a != nil:
		if err := h.settle(c, a); err != nil {
			h.store.machine.stop(err)
			h.store.fail(err)
		}
	}
}

// agree is called by who applies, behind the batch of a command that says what was
// agreed. The error is that this replica dissents: nothing more may be applied.
func (h *hashes) agree(a *stateAgreed) error {
	h.mu.Lock()
	i := slices.IndexFunc(h.mu.candidates, func(c *stateAt) bool { return c.is(a.Index, a.Nonce) })
	if i < 0 {
		h.mu.Unlock()
		return nil // it was applied by an earlier process, came in a snapshot, or was not hashed
	}
	c := h.mu.candidates[i]
	var drop []*stateAt
	for range i {
		drop = append(drop, h.dropLocked(0)...)
	}
	settled := false
	if majorityOf(a.Who, c.at.Conf) || h.store.isMajorityNow(a.Who) {
		select {
		case <-c.done:
			settled = true
		default:
			c.agreed = a
		}
	} else {
		h.store.config.Logger.Error("too few voters agreed on the metadata, as this node knows them",
			zap.Uint64("index", uint64(a.Index)), zap.Stringers("who", a.Who), zap.Stringers("voters", c.at.Conf.Voters))
		drop = append(drop, h.dropLocked(0)...)
	}
	h.mu.Unlock()
	h.release(drop)
	if settled {
		return h.settle(c, a)
	}
	return nil
}

// isMajorityNow reports whether replicas are a majority of the voters as raft has
// them. It tells a replica whose own list of them is damaged from a leader whose is:
// as long as no majority of these is damaged, none of them can agree on what is
// not so.
func (s *Store) isMajorityNow(who []raftlog.ReplicaID) bool {
	if s.group.now.Load() == nil {
		return false // it is being opened
	}
	conf := s.group.Status().Conf
	return len(conf.Voters) > 0 && majorityOf(who, conf)
}

// majorityOf reports whether replicas are a majority of a configuration's voters,
// while joint of both halves.
func majorityOf(who []raftlog.ReplicaID, conf raftlog.ConfState) bool {
	of := func(voters []raftlog.ReplicaID) bool {
		n := 0
		for _, v := range voters {
			if slices.Contains(who, v) {
				n++
			}
		}
		return 2*n > len(voters)
	}
	return of(conf.Voters) && (len(conf.VotersOutgoing) == 0 || of(conf.VotersOutgoing))
}

// settle compares this replica's hash with the one that was agreed.
func (h *hashes) settle(c *stateAt, a *stateAgreed) error {
	same := c.err == nil && c.sum == a.Hash
	if same {
		h.store.sources.agreed(c.held, c.sum)
	}
	h.mu.Lock()
	i := slices.Index(h.mu.candidates, c)
	if i < 0 {
		h.mu.Unlock()
		return nil // others took its place
	}
	h.mu.candidates = slices.Delete(h.mu.candidates, i, i+1)
	free := c.held // of who no longer asks for it
	if same {
		free = nil
		if last := h.mu.agreed; last != nil {
			free = last.held
		}
		c.agreedAt = h.store.config.Clock.Now()
		h.mu.agreed, h.mu.trims = c, 0
		h.mu.stats.AgreedIndex = c.at.Index
	}
	h.changedLocked()
	h.mu.Unlock()
	switch {
	case same && free != nil:
		h.store.sources.release(free) // who was cut may still come back for the rest
	case !same:
		h.store.sources.forget(free)
	}
	if c.err != nil {
		h.store.config.Logger.Warn("this node's metadata was not hashed", zap.Error(c.err))
	} else if !same {
		return h.store.diverged(&StateDivergedError{Index: c.at.Index, Own: c.sum, Agreed: a.Hash, Who: a.Who})
	}
	return nil
}

// restarts lets go all that is older than a state which came in a snapshot, and
// keeps that one until the log says what was agreed on it. It is called while
// nothing is applied.
func (h *hashes) restarts(at applied, sum *digest) {
	h.mu.Lock()
	var drop []*stateAt
	for len(h.mu.candidates) > 0 {
		drop = append(drop, h.dropLocked(0)...)
	}
	last := h.mu.agreed
	h.mu.agreed = nil
	h.changedLocked()
	h.mu.Unlock()
	h.release(drop)
	if last != nil {
		h.store.sources.release(last.held)
	}
	if sum == nil {
		return
	}
	src, err := h.store.machine.source()
	var held *heldSource
	if err == nil {
		held, err = h.store.sources.hold(src)
	}
	if err != nil {
		h.store.config.Logger.Warn("the metadata snapshot is not held", zap.Error(err))
		return
	}
	c := &stateAt{at: at, received: true, held: held, sum: *sum, done: make(chan struct{})}
	close(c.done)
	h.add(c)
}

// find returns a state that was asked to be hashed, nil if this replica has none,
// and a channel that is closed when that may have changed.
func (h *hashes) find(index raftlog.Index, nonce [16]byte) (*stateAt, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range append(slices.Clone(h.mu.candidates), h.mu.agreed) {
		if c != nil && c.is(index, nonce) {
			return c, h.mu.changed
		}
	}
	return nil, h.mu.changed
}

// newest returns the newest agreed state, nil if there is none, and a channel that
// is closed when that may have changed.
func (h *hashes) newest() (*stateAt, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.agreed, h.mu.changed
}

// maxHeldBack is how often the newest agreed state may keep the log from being
// trimmed: four times the log's limit.
const maxHeldBack = 32

// keepsFrom returns up to where the log may be trimmed at most, so that what is
// agreed leads on in it.
func (h *hashes) keepsFrom(durable raftlog.Index) raftlog.Index {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.mu.agreed; c != nil && c.at.Index < durable {
		if h.mu.trims++; h.mu.trims <= maxHeldBack {
			return c.at.Index
		}
	}
	return durable
}

// diverged notes for good that this replica's state is damaged, and returns the
// error that stops it.
func (s *Store) diverged(e *StateDivergedError) error {
	if err := s.machine.db.noteDiverged(e); err != nil {
		s.config.Logger.Error("a restart will not know that this node's metadata is damaged", zap.Error(err))
	}
	return e
}
