package topic

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// purge ends what no record of the metadata names any more: replicas are set
// aside, for good and durably, and their directory is moved to quarantine.
// Nothing is removed: that is the sweeper's, and needs a proof.
func (rc *reconciler) purge(ctx context.Context, wanted map[storage.Incarnation]bool) error {
	var errs []error
	for inc, d := range rc.dirs {
		if wanted[inc] {
			continue
		}
		switch gone, err := rc.purgeTopic(ctx, d); {
		case err != nil:
			errs = append(errs, fmt.Errorf("topic: purge %s: %w", d.Dir, err))
		case gone:
			delete(rc.dirs, inc)
			rc.letGo(inc)
			rc.keep(rc.alive) // what came to be known of it since this pass began
			rc.aside.flash()
		}
	}
	return errors.Join(errs...)
}

// takeStock sweeps once, when the node starts, before anything is opened or made.
// If that does not come about within Config.StartupSweepWait, what is assigned is
// opened first, and it is tried again every Config.SweepInterval. An error holds
// everything up; else it returns when it is to be called again, 0: never.
func (rc *reconciler) takeStock(ctx context.Context) (time.Duration, error) {
	if rc.swept {
		return 0, nil
	}
	now := rc.cfg.Clock.Now()
	if wait := rc.stockAt.Sub(now); wait > 0 {
		return wait, nil
	}
	late := !now.Before(rc.startBy)
	if late && rc.stockAt.IsZero() {
		return rc.skipStock("the metadata had not caught up in time", nil)
	}
	assigned, err := rc.sweep(ctx)
	if err == nil {
		err = rc.retire(ctx, assigned)
	}
	switch {
	case err == nil:
		rc.swept = true
		close(rc.stocked)
		return 0, nil
	case late:
		return rc.skipStock("it failed", err)
	}
	return 0, err
}

func (rc *reconciler) skipStock(why string, err error) (time.Duration, error) {
	rc.cfg.Logger.Warn("what earlier processes left is looked at later: "+why,
		zap.Duration("in", rc.cfg.SweepInterval), zap.Error(err))
	rc.stockAt = rc.cfg.Clock.Now().Add(rc.cfg.SweepInterval)
	return rc.cfg.SweepInterval, nil
}

// sweep takes stock of the directories and replicas that earlier processes left.
// What is unknown after a linearizable read was not made since. It returns what
// that read found.
func (rc *reconciler) sweep(ctx context.Context) ([]metastore.NodeAssignment, error) {
	found, err := rc.cfg.Store.TopicDirs()
	if err != nil {
		return nil, err
	}
	if err := rc.cfg.Meta.Barrier(ctx); err != nil {
		return nil, err
	}
	assigned, err := rc.cfg.Meta.ListAssignments(rc.cfg.Node)
	if err != nil {
		return nil, err
	}
	lives := map[string]storage.Incarnation{} // by directory, of topics that are to be here
	named := map[storage.Incarnation]string{}
	for _, a := range assigned {
		named[a.Topic.Incarnation] = a.Topic.Name
	}
	for _, t := range found {
		name, ok := named[t.Incarnation]
		switch {
		case ok && name == t.Name:
			if t.Foreign != nil {
				rc.cfg.Logger.Error("a topic's directory is not what its name says", zap.String("dir", t.Dir), zap.Error(t.Foreign))
			}
			lives[t.Dir] = t.Incarnation
		case ok || t.Name == "": // no replica can have been opened in it
			if err := rc.quarantine(t, storage.ReasonMisnamed, "its name is not that of a topic"); err != nil {
				return nil, err
			}
		default:
			rc.dir(t)
		}
	}
	states := rc.cfg.Host.Replicas()
	if states == nil { // and nothing may be moved whose replicas are not known
		return nil, raftlog.Retry(raftlog.ErrClosed)
	}
	for _, st := range states {
		if st.Status != storage.ReplicaLive {
			continue
		}
		if inc, ok := lives[path.Dir(st.Dir)]; ok {
			rc.hold(st.Replica, inc, st.Group)
		}
		for _, d := range rc.dirs {
			if below(st.Dir, d.Dir) {
				d.replicas[st.Replica] = true
				rc.hold(st.Replica, d.Incarnation, st.Group) // its place may be elsewhere since
			}
		}
	}
	return assigned, nil
}

// below reports whether a replica's directory is in a topic's.
func below(replica, topic string) bool {
	return len(replica) > len(topic) && replica[:len(topic)] == topic && replica[len(topic)] == '/'
}

// purgeTopic moves the directory of a topic that is no more to quarantine; false:
// the topic lives. Its replicas that were here may all be elsewhere now: then
// their directory waits for the topic's end.
func (rc *reconciler) purgeTopic(ctx context.Context, d *topicDir) (gone bool, err error) {
	t, err := rc.cfg.Meta.TopicByIncarnation(d.Incarnation)
	kind, text := storage.ReasonUnknown, "no record of the metadata names it"
	switch {
	case err == nil && t.State == metastore.TopicDeleted:
		kind, text = storage.ReasonDeleted, "its topic was deleted"
	case err == nil:
		return false, nil
	case !errors.Is(err, metastore.ErrTopicNotFound):
		return false, err
	}
	if err := rc.setAside(ctx, d); err != nil {
		return false, err
	}
	var marker *storage.MarkerError
	if errors.As(rc.cfg.Store.CheckTopicDir(d.Dir), &marker) && marker.Kind != "" && !d.gone {
		kind, text = marker.Kind, text+", and "+marker.Error()
	}
	return true, rc.quarantine(d.TopicDir, kind, text)
}

func (rc *reconciler) quarantine(t storage.TopicDir, kind storage.ReasonKind, text string) error {
	err := rc.cfg.Store.QuarantineTopic(t, storage.Reason{Kind: kind, Text: text, At: rc.cfg.Clock.Now()})
	if errors.Is(err, fs.ErrNotExist) {
		return nil // an attempt that failed later on has moved it
	}
	if err == nil {
		rc.cfg.Logger.Info("a topic's directory was moved to quarantine", zap.String("dir", t.Dir), zap.String("kind", string(kind)), zap.String("reason", text))
	}
	return err
}

// setAside takes all replicas of a topic out of use, side by side.
func (rc *reconciler) setAside(ctx context.Context, d *topicDir) error {
	rc.drop(d.Incarnation)
	rc.endFills(d.Incarnation)
	var group sync.WaitGroup
	errs := make(chan error, len(d.replicas))
	slots := make(chan struct{}, openAtOnce)
	for id := range d.replicas {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			err := rc.cfg.Host.SetAside(ctx, id)
			if err != nil && !errors.Is(err, raftlog.ErrUnknownReplica) {
				errs <- err
			}
		})
	}
	group.Wait()
	close(errs)
	return <-errs
}

// drop ends the calls of a topic's replicas and forgets them.
func (rc *reconciler) drop(i storage.Incarnation) {
	var gone []*replica
	rc.mu.Lock()
	for a, r := range rc.mu.replicas {
		if a.incarnation == i {
			gone = append(gone, r)
			delete(rc.mu.replicas, a)
		}
	}
	rc.mu.Unlock()
	for _, r := range gone {
		r.end()
		r.part.Close()
	}
}
