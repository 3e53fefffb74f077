package topic

import (
	"context"
	"errors"
	"sync"

	"go.uber.org/zap"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// heldReplica is a replica that this node has, open or not.
type heldReplica struct {
	incarnation storage.Incarnation
	group       storage.GroupID
}

// retire sets aside the replicas of topics that live on whose place is elsewhere
// now: a move took them away, or a move that would have brought them was
// cancelled. Each is named by an id that is never assigned again, so that nobody
// is in doubt which stint is meant, and none is given up that the metadata here
// merely do not know yet. Their files stay where they are until the sweeper has
// had it confirmed that they may go.
func (rc *reconciler) retire(ctx context.Context, assigned []metastore.NodeAssignment) error {
	wanted := make(map[storage.ReplicaID]bool, len(assigned))
	for _, a := range assigned {
		wanted[a.Replica] = true
	}
	var group sync.WaitGroup
	errs := make(chan error, len(rc.held))
	slots := make(chan struct{}, openAtOnce)
	var gone []storage.ReplicaID
	for id, h := range rc.held {
		if wanted[id] || !rc.cfg.Meta.ReplicaDead(h.group, id) {
			continue
		}
		gone = append(gone, id)
		if r := rc.replicaOf(id); r != nil {
			rc.forget(r) // who waits here goes on elsewhere
		}
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			if err := rc.cfg.Host.SetAside(ctx, id); err != nil && !errors.Is(err, raftlog.ErrUnknownReplica) {
				errs <- err
			}
		})
	}
	group.Wait()
	close(errs)
	if err := <-errs; err != nil {
		return err
	}
	if len(gone) > 0 {
		rc.aside.flash()
	}
	for _, id := range gone {
		delete(rc.held, id)
		rc.cfg.Logger.Info("a replica whose place is elsewhere now was set aside", zap.Stringer("replica", id))
	}
	return nil
}

// replicaOf returns the open replica with the id, or nil.
func (m *Manager) replicaOf(id storage.ReplicaID) *replica {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, r := range m.mu.replicas {
		if r.id == id {
			return r
		}
	}
	return nil
}

// hold notes a replica that is, or may be, in the node's journal.
func (rc *reconciler) hold(id storage.ReplicaID, i storage.Incarnation, g storage.GroupID) {
	rc.held[id] = heldReplica{i, g}
}

// letGo forgets the replicas of a topic that is gone.
func (rc *reconciler) letGo(i storage.Incarnation) {
	for id, h := range rc.held {
		if h.incarnation == i {
			delete(rc.held, id)
		}
	}
}
