package metastore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/stelelog/stele/raftlog"
)

// Reads come in three strengths.
//
//	stale         Topic, Topics, TopicByIncarnation, Members, Moves and all others:
//	              what this node has applied, however old
//	session       the same, after Session: not older than this store's own
//	              last change
//	linearizable  the same, after Barrier, and FindTopic: not older than any
//	              change that was acknowledged anywhere before the call

// Topic returns the topic that has exactly this name, as this node knows it
// (stale). ErrTopicNotFound, or ErrUnavailable while this node has not caught
// up and so does not know what it misses, and once its metadata failed.
func (s *Store) Topic(name string) (Topic, error) {
	if s.Failed() != nil {
		return Topic{}, s.unavailable()
	}
	if t := s.lookup(name); t != nil {
		return *t, nil
	}
	return Topic{}, s.absent(name)
}

// FindTopic returns the topic that has the name. It answers ErrTopicNotFound
// only after a linearizable read; a topic that it returns may have been deleted
// elsewhere, which the partitions' own logs decide. ErrUnavailable once this
// node's metadata failed.
func (s *Store) FindTopic(ctx context.Context, name string) (Topic, error) {
	if s.Failed() != nil {
		return Topic{}, s.unavailable()
	}
	if t := s.lookup(name); t != nil && s.AppliedCaughtUp() {
		return *t, nil
	}
	if err := s.Barrier(ctx); err != nil {
		return Topic{}, err
	}
	if t := s.lookup(name); t != nil {
		return *t, nil
	}
	return Topic{}, named(ErrTopicNotFound, name)
}

// Topics returns all topics by name, as this node knows them (stale).
func (s *Store) Topics() []Topic {
	var all []Topic
	s.machine.read(func(c *catalog) {
		for _, t := range c.sorted() {
			all = append(all, *t)
		}
	})
	return all
}

// TopicByIncarnation returns the topic of that incarnation, as this node knows
// it (stale); of one that was deleted only name and state remain. Errors as of
// Topic. What is not found may still be created: this is no proof that it is
// dead.
func (s *Store) TopicByIncarnation(i raftlog.Incarnation) (Topic, error) {
	if s.Failed() != nil {
		return Topic{}, s.unavailable()
	}
	var t *Topic
	s.machine.read(func(c *catalog) { t = c.topics[i] })
	if t != nil {
		return *t, nil
	}
	var name string
	var dead bool
	if err := s.readState(func(t *tx) { name, dead = t.tombstone(i) }); err != nil {
		return Topic{}, err
	}
	if dead {
		return Topic{Name: name, Incarnation: i, State: TopicDeleted}, nil
	}
	return Topic{}, s.absent(i.String())
}

func (s *Store) lookup(name string) (t *Topic) {
	s.machine.read(func(c *catalog) { t = c.names[foldName(name)] })
	if t == nil || t.Name != name {
		return nil
	}
	return t
}

func (s *Store) absent(name string) error {
	if !s.AppliedCaughtUp() {
		return s.unavailable()
	}
	return named(ErrTopicNotFound, name)
}

// unavailable says why this node cannot answer.
func (s *Store) unavailable() error {
	if err := s.Failed(); err != nil {
		return fmt.Errorf("%w: this node's metadata failed: %v", ErrUnavailable, err)
	}
	return fmt.Errorf("%w: %s", ErrUnavailable, s.gate.missing())
}

// Members returns the members by node id, as this node knows them (stale). The
// slice is shared: it must not be changed.
func (s *Store) Members() (all []Member) {
	s.machine.read(func(c *catalog) { all = c.members })
	return all
}

// Member returns the member that has the node id, as this node knows it (stale).
func (s *Store) Member(node raftlog.NodeID) (m Member, ok bool) {
	s.machine.read(func(c *catalog) { m, ok = c.member(node) })
	return m, ok
}

// Tombstone returns what remains of a life that was removed or refused, as this
// node knows it (stale). That there is none proves nothing.
func (s *Store) Tombstone(nonce raftlog.Nonce) (stone Tombstone, ok bool, err error) {
	err = s.readState(func(t *tx) {
		var node raftlog.NodeID
		if node, ok = t.out(nonce); ok {
			stone = Tombstone{Node: node, Nonce: nonce, Refused: node == 0}
		}
		if node != 0 {
			stone.Name = must(t, keyNode(tableRemoved, node), (*decoder).removal).Name
		}
	})
	return stone, ok, err
}

// TombstoneOf is Tombstone by node id.
func (s *Store) TombstoneOf(node raftlog.NodeID) (stone Tombstone, ok bool, err error) {
	err = s.readState(func(t *tx) {
		var r removal
		if r, ok = t.removed(node); ok {
			stone = Tombstone{Node: node, Nonce: r.Nonce, Name: r.Name}
		}
	})
	return stone, ok, err
}

// TombstoneNamed returns the tombstone of the newest life that had a name, as this
// node knows it (stale). It reads those of all nodes that ever left.
func (s *Store) TombstoneNamed(name string) (stone Tombstone, ok bool, err error) {
	err = s.machine.db.look(func(v view) error {
		return v.scan([]byte{tableRemoved}, func(key, value []byte) error {
			if len(key) != len(keyNode(tableRemoved, 0)) {
				return fmt.Errorf("metastore: a tombstone under %x", key)
			}
			node := raftlog.NodeID(binary.BigEndian.Uint64(key[1:]))
			d := decoder{b: value}
			r := d.removal()
			if err := d.end(); err != nil {
				return err
			}
			if r.Name == name && node >= stone.Node {
				stone, ok = Tombstone{Node: node, Nonce: r.Nonce, Name: r.Name}, true
			}
			return nil
		})
	})
	if err != nil {
		return Tombstone{}, false, retriable(err)
	}
	return stone, ok, nil
}

// Load returns how many replicas a member has to hold, those that moves bring in
// included, and of how many partitions it is the preferred leader, as this node
// knows it (stale).
func (s *Store) Load(node raftlog.NodeID) (replicas, leads uint64, err error) {
	err = s.readState(func(t *tx) {
		l := t.load(node)
		replicas, leads = l.Replicas, l.Leads
	})
	return replicas, leads, err
}

// Orphans returns how many replicas are assigned to nodes that are no members,
// those that moves bring in included, as this node knows it (stale). A member is
// not removed while it has any, so that there are none unless something went
// wrong. ErrUnavailable until this node has caught up once.
func (s *Store) Orphans() (n uint64, err error) {
	if !s.AppliedCaughtUp() || s.Failed() != nil {
		return 0, s.unavailable()
	}
	s.machine.read(func(c *catalog) {
		orphan := func(a Assignment) {
			if _, ok := c.member(a.Node); !ok {
				n++
			}
		}
		for _, t := range c.topics {
			for _, p := range t.Partitions {
				for _, a := range p.Replicas {
					orphan(a)
				}
				if p.Target != nil {
					orphan(p.Target.Add)
				}
			}
		}
	})
	return n, nil
}

// Moves returns the moves that are under way, as this node knows them (stale).
func (s *Store) Moves() (all []Move) {
	s.machine.read(func(c *catalog) { all = slices.Clone(c.moves) })
	return all
}

// ReplicaDead reports whether a replica's stint in its group is over, for good:
// its id was given out, and nobody has it. It is never true of one that takes
// part or will, however old this node's state is. It is quick.
func (s *Store) ReplicaDead(group raftlog.GroupID, replica raftlog.ReplicaID) (dead bool) {
	s.machine.read(func(c *catalog) { dead = c.replicaDead(group, replica) })
	return dead
}

// readState calls f with the state as it is now.
func (s *Store) readState(f func(*tx)) error {
	err := s.machine.db.look(func(v view) error {
		t := newTx(v)
		f(t)
		return t.err
	})
	if err != nil {
		return retriable(err)
	}
	return nil
}

// Setting returns a cluster-wide setting, as this node knows it (stale).
func (s *Store) Setting(key string) (value string, ok bool, err error) {
	err = s.machine.db.look(func(v view) error {
		b, err := v.get(keyString(tableSetting, key))
		value, ok = string(b), b != nil
		return err
	})
	if err != nil {
		return "", false, retriable(err)
	}
	return value, ok, nil
}

// ListAssignments returns what node has to hold, by topic name and partition,
// what moves bring in and topics that are being deleted included. ErrUnavailable until this node has
// caught up once, and once its metadata failed: an old list must not open,
// close or create anything.
func (s *Store) ListAssignments(node raftlog.NodeID) ([]NodeAssignment, error) {
	if !s.AppliedCaughtUp() || s.Failed() != nil {
		return nil, s.unavailable()
	}
	var all []NodeAssignment
	s.machine.read(func(c *catalog) { all = c.assignments(node) })
	return all, nil
}

// GetAssignment returns one partition of the topic that has the name.
// ErrUnavailable until this node has caught up once, and once its metadata
// failed; else errors as of Topic, and ErrTopicNotFound for a partition that the topic does not have.
func (s *Store) GetAssignment(topic string, partition uint32) (NodeAssignment, error) {
	if !s.AppliedCaughtUp() || s.Failed() != nil {
		return NodeAssignment{}, s.unavailable()
	}
	t := s.lookup(topic)
	if t == nil || uint64(partition) >= uint64(len(t.Partitions)) {
		return NodeAssignment{}, named(ErrTopicNotFound, fmt.Sprintf("%s/%d", topic, partition))
	}
	p := t.Partitions[partition]
	return assignmentOn(t, p, s.config.Node), nil
}

// AppliedCaughtUp reports whether, once since it was opened, this node's own
// state was as new as a leader's. It stays true.
func (s *Store) AppliedCaughtUp() bool { return s.gate.isOpen() }

// CaughtUp returns a channel that is closed when AppliedCaughtUp turns true.
func (s *Store) CaughtUp() <-chan struct{} { return s.gate.open }

// CatchingUp says what AppliedCaughtUp waits for, "" when it is true.
func (s *Store) CatchingUp() string { return s.gate.missing() }

// Barrier returns when this node has applied everything that was acknowledged
// anywhere before the call. It tries again while there is no leader, until ctx
// or the BarrierTimeout ends. Every error is Retry: a read changes nothing.
func (s *Store) Barrier(ctx context.Context) error {
	bounded, cancel := withTimeout(ctx, s.config.Clock, s.config.BarrierTimeout)
	defer cancel()
	for {
		changed := s.leaderChange()
		index, err := s.group.ReadIndex(bounded)
		if err == nil {
			err = s.waitApplied(bounded, index)
		}
		if err == nil {
			return nil
		}
		if s.pause(bounded, changed) == nil {
			continue
		}
		if ctx.Err() != nil {
			return raftlog.Retry(ctx.Err())
		}
		return retriable(fmt.Errorf("metastore: linearizable read: %w", whyEnded(bounded, err)))
	}
}

// Session returns when this node has applied the last change that was made
// through this store. Every error is Retry.
func (s *Store) Session(ctx context.Context) error {
	s.mu.Lock()
	last := s.mu.last
	s.mu.Unlock()
	return s.waitApplied(ctx, last)
}

// waitApplied waits for the state machine, not for raft.
func (s *Store) waitApplied(ctx context.Context, index raftlog.Index) error {
	for {
		at, progress := s.machine.progress()
		if at >= index {
			return nil
		}
		select {
		case <-progress:
		case <-ctx.Done():
			return raftlog.Retry(context.Cause(ctx))
		case <-s.life.Done():
			return raftlog.Retry(ErrClosed)
		case <-s.failed:
			return s.unavailable()
		}
	}
}

// Watch returns a counter of changes of topics, moves, members and the cluster's
// version, and a channel that is closed at the next one. A heartbeat is none,
// unless its member was dead. Take both, look at everything, then wait: what
// happens in between is not missed.
func (s *Store) Watch() (changes uint64, next <-chan struct{}) {
	m := s.machine
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.changes, m.mu.changed
}

// Departures counts the changes of how far members are on their way out, since this
// process began. It and Members are of one state if it is the same before and after:
// what was said of a member that drains says nothing of the next time that it does.
func (s *Store) Departures() uint64 {
	m := s.machine
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.departures
}

// retriable gives an error of a read the outcome Retry, whatever it was.
func retriable(err error) error {
	switch {
	case errors.Is(err, raftlog.ErrOutcomeUnknown), errors.Is(err, raftlog.ErrRefused):
		return raftlog.Retry(errors.New(err.Error()))
	case errors.Is(err, raftlog.ErrRetry):
		return err
	}
	return raftlog.Retry(err)
}
