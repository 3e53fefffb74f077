package topic

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/stelelog/stele/metastore"
)

const (
	// closeWait bounds how long a pass waits for a replica that failed to be
	// closed: what it was doing may hang.
	closeWait = 5 * time.Second
	// soundAfter is how long a replica that was opened again has to run for its
	// failures before that not to count.
	soundAfter = time.Minute
)

// closeFailed closes the replicas that failed while they were open, side by
// side: they are missing then, and are opened again after a pause, which is
// longer if they fail again soon.
func (rc *reconciler) closeFailed(ctx context.Context, assigned []metastore.NodeAssignment) {
	if rc.cfg.Host.Failed() != nil {
		return // nothing can be opened on this node any more
	}
	var failed []*replica
	for _, a := range assigned {
		if r := rc.replica(addressOf(a)); r != nil && r.failed() != nil && rc.due(r.address) {
			failed = append(failed, r)
		}
	}
	errs := make([]error, len(failed))
	var group sync.WaitGroup
	slots := make(chan struct{}, openAtOnce)
	for i, r := range failed {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := within(ctx, rc.cfg.Clock, closeWait)
			defer cancel()
			errs[i] = rc.cfg.Host.CloseGroup(ctx, r.id)
		})
	}
	group.Wait()
	for i, r := range failed {
		rc.noteFailed(r, errs[i])
	}
}

// due reports whether a replica that failed is not to be left alone for now.
func (rc *reconciler) due(at address) bool {
	r := rc.retries[at]
	return r == nil || !rc.cfg.Clock.Now().Before(r.at)
}

// noteFailed has a replica that failed opened again, or if it could not be
// closed, closed.
func (rc *reconciler) noteFailed(r *replica, closing error) {
	now := rc.cfg.Clock.Now()
	last := rc.lapses[r.address]
	if last == nil || now.Sub(last.at) > soundAfter {
		last = &retry{}
		rc.lapses[r.address] = last
	}
	last.pause = nextPause(last.pause)
	last.at = now.Add(last.pause)
	rc.retries[r.address] = &retry{pause: last.pause, at: last.at}
	log := rc.cfg.Logger.With(zap.String("topic", r.name), zap.Uint32("partition", r.partition), zap.Stringer("replica", r.id))
	if closing != nil {
		log.Warn("a replica that failed could not be closed; it is tried again", zap.Error(closing))
		return
	}
	log.Error("a replica failed; it is opened again", zap.Error(r.failed()), zap.Duration("in", last.pause))
	rc.mu.Lock()
	delete(rc.mu.replicas, r.address)
	rc.mu.failures[r.address] = r.failed()
	rc.mu.Unlock()
	r.part.Close()
	rc.opened.flash()
	r.changed.flash()
	rc.mend(r.name, r.where(), r.address, r.id, r.failed())
}
