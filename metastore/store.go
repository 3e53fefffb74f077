package metastore

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.uber.org/zap"

	"github.com/stelelog/stele/internal/invariant"
	"github.com/stelelog/stele/raftlog"
)

// Store is a node's replica of the metadata. All methods are safe for
// concurrent use.
type Store struct {
	config    Config
	machine   *machine
	openGroup openGroup
	group     openedGroup
	gate      *gate
	sources   *sources
	hashes    *hashes
	kick      chan struct{}       // of the gate
	behind    chan raftlog.NodeID // a leader that has a snapshot for this replica
	confirms  confirmCounters
	departing departing

	stop    context.CancelCauseFunc
	life    context.Context // ends when the store is closed
	running sync.WaitGroup  // the goroutines of the gate and of snapshots, and those that watch the database and the members
	failed  chan struct{}   // closed when this replica stops for good

	mu struct {
		sync.Mutex
		last   raftlog.Index // of this store's own last successful change
		leader chan struct{} // closed and replaced when the leader may have changed, or none will be seen any more
		err    error         // why failed is closed
	}
}

// openGroup opens the raft group of a store; *raftlog.Host does it.
type openGroup func(raftlog.GroupOptions) (group, error)

// Open opens the database, makes the state of the genesis in it if it is empty,
// and opens the raft group, which then replays what the database lacks. It
// waits for no other node; see CaughtUp. A snapshot that a crash interrupted is
// finished or removed. ctx bounds opening alone.
//
// ErrLogLost: the group's log is gone, or ends before what the state has; ErrStateLost:
// the log begins behind the state; ErrStateDiverged: the state was found to be
// damaged; *NewerStateError: a newer build wrote the
// database, or the snapshot that would be the state. The last leaves the database
// untouched, the others all that it holds.
func Open(ctx context.Context, config Config) (*Store, error) {
	if config.Host == nil {
		return nil, invalid("Config.Host", "", "not nil")
	}
	return open(ctx, config, func(o raftlog.GroupOptions) (group, error) {
		g, err := config.Host.OpenGroup(o)
		if err != nil {
			return nil, err
		}
		return g, nil
	})
}

func open(ctx context.Context, config Config, openGroup openGroup) (*Store, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, err
	}
	db, err := openDatabase(ctx, config.FS, config.Dir, config.Logger)
	if err != nil {
		return nil, err
	}
	s, err := openOn(ctx, db, config, openGroup)
	if err != nil {
		return nil, errors.Join(err, db.close())
	}
	return s, nil
}

func openOn(ctx context.Context, db *database, config Config, openGroup openGroup) (*Store, error) {
	if err := db.mayBeUsed(); err != nil {
		return nil, err
	}
	reset, start := logOf(&config)
	if err := db.settle(reset, config.Newest); err != nil {
		return nil, err
	}
	m, err := openMachine(db, config.Newest, config.Logger)
	if err != nil {
		return nil, err
	}
	if m.applied().Index == 0 && (reset != 0 || start > config.Genesis.Begin().Index) {
		return nil, ErrStateLost // to be told before anything is made that stands for it
	}
	m.watch = invariant.From(ctx).State
	if err := m.seed(config.Genesis); err != nil {
		return nil, err
	}
	s := &Store{
		config: config, machine: m, openGroup: openGroup, failed: make(chan struct{}),
		kick: make(chan struct{}, 1), behind: make(chan raftlog.NodeID, 1),
	}
	s.life, s.stop = context.WithCancelCause(context.Background())
	s.mu.leader = make(chan struct{})
	s.sources = newSources(s)
	s.hashes = newHashes(s)
	m.hashes = s.hashes
	if config.Streamer != nil { // else a follower that is behind could not be helped
		m.trimEvery = config.TrimLogBytes / 8
		m.trim = func(durable raftlog.Index) error {
			if s.ClusterVersion() < versionOfSnapshots {
				return nil // a follower of the first release could not be helped either
			}
			if s.agreesOnStates() {
				durable = s.hashes.keepsFrom(durable)
				s.hashes.demand() // so that the log may be trimmed farther next time
			}
			return s.group.TrimLog(durable, config.TrimLogBytes, config.TrimLogBytes/4)
		}
	}
	options := s.options()
	g, err := openGroup(options)
	if err != nil {
		s.stop(ErrClosed)
		return nil, whatIsLost(err)
	}
	if err := db.tidy(); err != nil {
		s.stop(ErrClosed)
		return nil, err
	}
	s.group.set(g)
	s.gate = newGate(&s.group, m, config)
	s.running.Go(func() { s.gate.run(s.life, s.kick) })
	s.running.Go(s.watchDatabase)
	s.running.Go(s.followMembers)
	s.running.Go(s.bringSnapshots)
	s.running.Go(s.hashes.run)
	s.running.Go(s.hashes.rounds)
	config.Logger.Info("metadata opened", zap.Uint64("applied", uint64(m.applied().Index)), zap.Stringer("id", config.Node))
	return s, nil
}

// whatIsLost gives an error of the group's open its name, and with it advice.
func whatIsLost(err error) error {
	var state *raftlog.StateError
	switch {
	case errors.As(err, &state) && state.MachineLost:
		return fmt.Errorf("%w (%w)", ErrStateLost, err)
	case errors.As(err, &state), errors.Is(err, raftlog.ErrUnknownReplica): // the state has applied something of a log
		return fmt.Errorf("%w (%w)", ErrLogLost, err)
	}
	return err
}

// logOf says what this replica's log begins with: the id of a reset, 0: of none,
// and the index that it begins after, 0 if there is no log.
func logOf(config *Config) (reset uint64, start raftlog.Index) {
	if config.Host != nil {
		for _, st := range config.Host.Replicas() {
			if st.Replica == config.Replica {
				return st.Log.Reset, st.Log.StartIndex
			}
		}
	}
	return 0, 0
}

// options are those to open the group with, over the state as it is now.
func (s *Store) options() raftlog.GroupOptions {
	at := s.machine.applied()
	options := raftlog.GroupOptions{
		Group:     raftlog.MetadataGroup,
		Replica:   s.config.Replica,
		Peers:     peersOf(s.Members()),
		Machine:   s.machine,
		Essential: essential,
		State:     &raftlog.AppliedState{Index: at.Index, Conf: at.Conf},
		OnStatus:  s.noteStatus,
	}
	if s.config.Streamer != nil {
		options.OnBehind = s.noteBehind
	}
	if first := s.config.Genesis.Begin(); at.Index == first.Index {
		// Nothing of a log was ever applied, so nothing can have been lost.
		options.Create = first
	}
	return options
}

// noteStatus is called by raft's loop.
func (s *Store) noteStatus(st raftlog.Status) {
	if st.Failed != nil {
		s.fail(st.Failed)
	}
	select {
	case s.kick <- struct{}{}:
	default:
	}
	s.leaderMayHaveChanged()
}

// Close ends what runs and closes the database. The raft group must have been
// closed before (with its host): entries that it applies afterwards fail it.
// The error is why the database failed, if it did; it is then abandoned, with
// its goroutines, open files and directory lock (see the package comment).
func (s *Store) Close() error {
	s.stop(ErrClosed)
	s.running.Wait()
	s.sources.close()
	return s.machine.db.close()
}

// Failed returns why this node's metadata stopped, nil while it has not: its
// database, or its replica of the group. It then applies nothing more, and as
// it cannot know what it misses it answers ErrUnavailable to whoever asks for a
// topic or an assignment; only the stale lists are left. Whoever waits for a
// leader is woken, and sees none.
func (s *Store) Failed() error {
	if err := s.machine.failure(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.err
}

// fail notes that this replica stopped, and ends what waits for it.
func (s *Store) fail(err error) {
	s.mu.Lock()
	if s.mu.err == nil {
		s.mu.err = err
		close(s.failed)
	}
	s.mu.Unlock()
	s.leaderMayHaveChanged()
}

// watchDatabase: a database that fails in the background tells nobody, and the
// group fails only with the next entry, which may be long in coming.
func (s *Store) watchDatabase() {
	select {
	case <-s.machine.db.failed:
		s.fail(s.machine.db.failure())
	case <-s.life.Done():
	}
}

// leaderMayHaveChanged wakes who waits for a leader.
func (s *Store) leaderMayHaveChanged() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.mu.leader)
	s.mu.leader = make(chan struct{})
}

func (s *Store) leaderChange() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.leader
}
