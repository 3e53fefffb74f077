package metastore

import (
	"context"

	"github.com/stelelog/stele/raftlog"
)

// The calls below that judge, or that carry a moment, are of the leader alone:
// elsewhere they end at once with *raftlog.NotLeaderError. All of them end with
// *ClusterVersionError while the cluster's version is below 2.

// stamp is now, by this node's clock.
func (s *Store) stamp() Stamp { return Stamp(max(s.config.Clock.Now().UnixMilli(), 1)) }

// Admit makes a node a member and returns it with the ids that it got. A life
// that is a member already is returned as it is, whatever else is asked; its
// address is changed by SetAddress. Only where the metadata is led.
//
// ErrNameTaken; *OlderReleaseError; *RemovedError for a life that was removed;
// ErrNonceRefused for one that was refused before, or that is from now on because
// the life that it was to replace was heard since Seen; *InvalidError.
func (s *Store) Admit(ctx context.Context, a Admission) (Member, error) {
	v, err := s.lead(ctx, admit{a, s.stamp()})
	if err != nil {
		return Member{}, err
	}
	m, ok := v.(Member)
	if !ok {
		return Member{}, errNoValue
	}
	return m, nil
}

// RecordHeartbeats says that members live, 1 to 1000 of them. Each gets a stamp,
// now, or what is just above its last one; a member that was dead is alive again. The errors are of
// the heartbeats, in their order: nil, *RemovedError, or ErrMemberNotFound if no
// member has the node id and the nonce. Only where the metadata is led.
func (s *Store) RecordHeartbeats(ctx context.Context, heard []Heartbeat) ([]error, error) {
	now := s.stamp()
	c := make(heartbeats, len(heard))
	for i, h := range heard {
		c[i] = stampedHeartbeat{h, now}
	}
	return s.leadEach(ctx, c)
}

// MarkDead marks members dead, 1 to 1000 of them. The errors are of the marks, in
// their order: nil, ErrStale for a member that was heard since the heartbeat that
// was judged, *RemovedError, ErrMemberNotFound. Only where the metadata is led.
func (s *Store) MarkDead(ctx context.Context, marks []DeadMark) ([]error, error) {
	return s.leadEach(ctx, markDead(marks))
}

func (s *Store) leadEach(ctx context.Context, c command) ([]error, error) {
	v, err := s.lead(ctx, c)
	if err != nil {
		return nil, err
	}
	each, ok := v.([]error)
	if !ok {
		return nil, errNoValue
	}
	return each, nil
}

// SetDeparture moves a member on its way out of the cluster, or back: to Stays,
// Drains or DrainsForced. It is nil if the member is there already. For Leaves see
// MarkLeaving.
//
// ErrMemberLeaving; *RemovedError; ErrMemberNotFound if no member has the node id and
// the nonce; *InvalidError.
func (s *Store) SetDeparture(ctx context.Context, node raftlog.NodeID, nonce raftlog.Nonce, d Departure) error {
	if d > DrainsForced {
		return invalid("Departure", uint8(d), "%d to %d", Stays, DrainsForced)
	}
	_, err := s.propose(ctx, setDeparture{node, nonce, d})
	return err
}

// RemoveMember ends a life, for good: neither its node id nor its nonce comes
// back, and its name is free. Of a node that was removed it says nil.
//
// ErrNotLeaving; ErrMemberInUse while it has to hold a replica, or its replica is
// in the configuration of the metadata group; ErrMemberNotFound.
func (s *Store) RemoveMember(ctx context.Context, node raftlog.NodeID) error {
	_, err := s.propose(ctx, removeMember{node})
	return err
}

// StartMove gives a partition a replica on another node, in exchange for one that
// it has or in addition. Nothing is copied by it: the partition's leader brings
// it about and then calls FinishMove or CancelMove. Asked again for the move that
// is under way it returns that.
//
// ErrStale if the partition is at another generation; ErrMovePending;
// ErrTooManyMoves; ErrReplicaExists; of the node, ErrMemberNotFound,
// *RemovedError, ErrMemberDead, ErrMemberDraining; ErrTopicNotFound,
// ErrTopicDeleting.
func (s *Store) StartMove(ctx context.Context, r MoveRequest) (Move, error) {
	v, err := s.propose(ctx, startMove{r, s.stamp()})
	if err != nil {
		return Move{}, err
	}
	p, ok := v.(Partition)
	if !ok {
		return Move{}, errNoValue
	}
	m, ok := moveOf(r.Incarnation, p)
	if !ok {
		return Move{}, errNoValue
	}
	return m, nil
}

// FinishMove ends a move that has come about: the partition's group has applied
// the end of the change that brought Add in and Remove out. The caller leads the
// group and has seen that. A move that was finished is nil.
//
// ErrStale if the move is not under way; ErrTopicNotFound.
func (s *Store) FinishMove(ctx context.Context, m Move) error {
	_, err := s.propose(ctx, finishMove{m.end()})
	return err
}

// CancelMove ends a move that will not come about: Add is in no configuration of
// the partition's group, and nothing was proposed that could bring it in. The
// caller leads the group and has seen that; nobody else can know. A move that was
// cancelled is nil.
//
// ErrStale if the move is not under way; ErrTopicNotFound.
func (s *Store) CancelMove(ctx context.Context, m Move) error {
	_, err := s.propose(ctx, cancelMove{m.end()})
	return err
}

func (m Move) end() endMove {
	return endMove{m.Incarnation, m.Partition, m.Generation, m.Target.Add.Replica}
}

// followMembers gives the metadata group its peers after each change of the
// members, until the store is closed.
func (s *Store) followMembers() {
	for {
		_, changed := s.Watch()
		s.group.UpdatePeers(peersOf(s.Members()))
		select {
		case <-changed:
		case <-s.life.Done():
			return
		}
	}
}

func peersOf(members []Member) map[raftlog.ReplicaID]raftlog.NodeID {
	peers := make(map[raftlog.ReplicaID]raftlog.NodeID, len(members))
	for _, m := range members {
		peers[m.Replica] = m.Node
	}
	return peers
}
