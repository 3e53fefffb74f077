package topic

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// MoveProgress is how far a move is, as the partition's leader on this node sees
// it.
type MoveProgress struct {
	TopicPartition
	Incarnation storage.Incarnation
	From        raftlog.NodeID // 0: the partition gets one more replica
	To          raftlog.NodeID
	Phase       MovePhase
	Why         string        // what comes next, or what is waited for
	Missing     storage.Index // entries that the new replica does not have yet
}

// MoveStatus is a move that is under way.
type MoveStatus struct {
	MoveProgress                   // Phase 0: the partition's leader is on another node, which knows
	Group        storage.GroupID   // of the partition
	Replica      storage.ReplicaID // that is to come
	Started      time.Time         // by the clock of the metadata's leader then
}

// moveBoard is what this node's leaders say of their moves.
type moveBoard struct {
	mu    sync.Mutex
	known map[address]MoveProgress

	telling sync.Mutex // held while OnMove runs
}

// Moves returns the moves that are under way in the cluster, as this node knows
// them (stale).
func (m *Manager) Moves() []MoveStatus {
	var all []MoveStatus
	for _, mv := range m.cfg.Meta.Moves() {
		t, err := m.cfg.Meta.TopicByIncarnation(mv.Incarnation)
		if err != nil {
			continue
		}
		s := MoveStatus{MoveProgress: progressOf(&t, &mv), Group: mv.Group, Replica: mv.Target.Add.Replica, Started: mv.Target.Started.Time()}
		m.moves.mu.Lock()
		if p, ok := m.moves.known[address{mv.Incarnation, mv.Partition}]; ok && p.To == s.To {
			s.MoveProgress = p
		}
		m.moves.mu.Unlock()
		all = append(all, s)
	}
	return all
}

// progressOf says what a move is about.
func progressOf(t *metastore.Topic, mv *metastore.Move) MoveProgress {
	p := MoveProgress{
		TopicPartition: TopicPartition{t.Name, mv.Partition}, Incarnation: mv.Incarnation, To: mv.Target.Add.Node,
	}
	if int(mv.Partition) < len(t.Partitions) {
		p.From = nodeOf(t.Partitions[mv.Partition], mv.Target.Remove)
	}
	return p
}

// note notes how far a move is, and reports whether it is another phase.
func (b *moveBoard) note(a address, p MoveProgress) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	last, ok := b.known[a]
	if b.known == nil {
		b.known = map[address]MoveProgress{}
	}
	b.known[a] = p
	return !ok || last.Phase != p.Phase || last.To != p.To
}

// keep drops what was said of moves that are not this node's to lead any more.
func (b *moveBoard) keep(led map[address]bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for a := range b.known {
		if !led[a] {
			delete(b.known, a)
		}
	}
}

// MoveReplica has the replica of a partition that one node holds replaced by one
// on another node. It returns when that is decided; the partition's leader
// carries it out, as it does for moves that are planned, and goes on serving
// meanwhile. from 0: the partition gets one more replica, if it has fewer than its
// topic is to have.
//
// Errors: those of metastore.Store.StartMove, metastore.ErrTopicNotFound,
// *NoPartitionError; ErrNoReplica (Refused) if from holds none;
// ErrEnoughReplicas (Refused).
func (m *Manager) MoveReplica(ctx context.Context, at TopicPartition, from, to raftlog.NodeID) error {
	ctx, cancel, err := m.whileOpen(ctx)
	defer cancel()
	if err == nil {
		err = m.moveReplica(ctx, at, from, to)
	}
	return explain(ctx, err, "move %v from %v to %v", at, from, to)
}

func (m *Manager) moveReplica(ctx context.Context, at TopicPartition, from, to raftlog.NodeID) error {
	if err := m.barrier(ctx); err != nil {
		return err
	}
	t, err := m.active(ctx, at.Topic)
	if err == nil {
		err = checkPartition(&t, at.Partition)
	}
	if err != nil {
		return err
	}
	p := t.Partitions[at.Partition]
	request := metastore.MoveRequest{Incarnation: t.Incarnation, Partition: at.Partition, Generation: p.Generation, To: to}
	for _, a := range p.Replicas {
		if a.Node == from {
			request.Remove = a.Replica
		}
	}
	if from != 0 && request.Remove == 0 {
		return raftlog.Refused(withoutOutcome{fmt.Errorf("%w: %v holds none of %v", ErrNoReplica, from, at)})
	}
	if want := int(t.Config.Replicas); from == 0 && len(p.Replicas) >= want {
		return fmt.Errorf("%w: %d", ErrEnoughReplicas, want)
	}
	_, err = m.cfg.Meta.StartMove(ctx, request) // of this generation: they are still as many
	return err
}

const (
	// planEvery is how long the planner waits after what it wanted was refused.
	planEvery = time.Second
	// planAfter is how long it lets changes of the metadata pass before it looks:
	// there may be many at once, and a look is at all partitions.
	planAfter = 200 * time.Millisecond
)

// planMoves begins the moves that Planned says, on the node that leads the
// metadata. It looks when the metadata change, and after each change that it
// makes.
func (m *Manager) planMoves() {
	select {
	case <-m.cfg.Meta.CaughtUp():
	case <-m.life.Done():
		return
	}
	timer := m.cfg.Clock.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(planAfter)
		select {
		case <-timer.C():
		case <-m.life.Done():
			return
		}
		_, changed := m.cfg.Meta.Watch()
		leader, elected := m.cfg.Meta.Leader()
		var again <-chan time.Time
		if leader == m.cfg.Node {
			if err := m.plan(); err != nil && m.life.Err() == nil {
				m.cfg.Logger.Debug("a move did not begin", zap.Error(err))
				timer.Reset(planEvery)
				again = timer.C()
			}
		}
		select {
		case <-changed:
		case <-elected:
		case <-again:
		case <-m.life.Done():
			return
		}
	}
}

// plan begins what is planned now. What is refused because the metadata have
// changed is planned anew when this node hears of that.
func (m *Manager) plan() error {
	if m.cfg.Meta.ClusterVersion() < 2 {
		return nil
	}
	ctx, cancel := within(m.life, m.cfg.Clock, m.cfg.CallTimeout)
	defer cancel()
	if len(m.planned()) == 0 { // most often
		return nil
	}
	if err := m.cfg.Meta.Barrier(ctx); err != nil {
		return err
	}
	for _, p := range m.planned() {
		_, err := m.cfg.Meta.StartMove(ctx, p.MoveRequest)
		if err != nil && !errors.Is(err, metastore.ErrStale) {
			return fmt.Errorf("topic: move %s/%d from %v to %v: %w", p.Topic, p.Partition, p.From, p.To, err)
		}
		if err == nil {
			m.cfg.Logger.Info("a move begins", zap.String("topic", p.Topic), zap.Uint32("partition", p.Partition),
				zap.Stringer("from", p.From), zap.Stringer("to", p.To), zap.Stringer("for", p.Reason))
		}
	}
	return nil
}

func (m *Manager) planned() []PlannedMove {
	moves := Planned(m.cfg.Meta.Members(), m.cfg.Meta.Topics(), metastore.MaxMoves).Moves
	if m.cfg.NoBalance {
		for i, p := range moves {
			if p.Reason == ForBalance { // they come last
				return moves[:i]
			}
		}
	}
	return moves
}
