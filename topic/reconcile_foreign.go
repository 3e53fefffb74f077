package topic

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.uber.org/zap"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/storage"
)

// A topic's directory on this node may turn out to be another one: copied, restored,
// renamed, or without its marker (package storage, log_foreign.go). It is noticed when
// the directory is to be used, when a replica is opened in it, or under replicas that
// are open. Then, in this order:
//
//	1  every replica in it is closed, so nothing is applied, served, filled, or
//	   read for a digest any more: CloseGroup waits for what is under way, and what it
//	   stored goes with its Partition. Readers go on elsewhere
//	2  the directory goes to quarantine, whole, with what its marker said
//	3  a fresh one is made
//	4  the replicas are opened again. One that had files has lost its log, and says
//	   so: it is closed, in none of its group's quorums, until it has a copy of
//	   another replica's (reconcile_restore.go)
type strangers struct {
	sync.Mutex
	all map[storage.Incarnation]*storage.MarkerError
}

// noteForeign notes that the directory of a topic is another one. It is called by
// whoever notices.
func (rc *reconciler) noteForeign(i storage.Incarnation, err error) {
	var marker *storage.MarkerError
	if !errors.As(err, &marker) || marker.Kind == "" {
		return
	}
	rc.foreign.Lock()
	rc.foreign.all[i] = marker
	rc.foreign.Unlock()
	rc.broke.flash()
}

// tendForeign moves the directories aside that were found to be others.
func (rc *reconciler) tendForeign(ctx context.Context) error {
	rc.foreign.Lock()
	all := rc.foreign.all
	rc.foreign.all = map[storage.Incarnation]*storage.MarkerError{}
	rc.foreign.Unlock()
	var errs []error
	for i, marker := range all {
		d := rc.dirs[i]
		if d == nil || d.gone {
			continue
		}
		if err := rc.setDirAside(ctx, d, marker); err != nil {
			errs = append(errs, fmt.Errorf("topic: set %s aside: %w", d.Dir, err))
			rc.noteForeign(i, marker)
		}
	}
	return errors.Join(errs...)
}

// setDirAside closes what is open in a directory that is another one, and moves it to
// quarantine.
func (rc *reconciler) setDirAside(ctx context.Context, d *topicDir, marker *storage.MarkerError) error {
	rc.cfg.Logger.Error("a topic's directory is not what was made here: it is moved to quarantine, and its replicas get copies of others",
		zap.String("dir", d.Dir), zap.Error(marker))
	rc.mu.Lock()
	var open []*replica
	for at, r := range rc.mu.replicas {
		if at.incarnation == d.Incarnation {
			open = append(open, r)
			rc.mu.failures[at] = marker
		}
	}
	rc.mu.Unlock()
	for _, r := range open {
		rc.forget(r)
	}
	rc.endFills(d.Incarnation)
	ctx, cancel := within(ctx, rc.cfg.Clock, installWait)
	defer cancel()
	var group sync.WaitGroup
	errs := make(chan error, len(d.replicas))
	slots := make(chan struct{}, openAtOnce)
	for id := range d.replicas {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			if err := rc.cfg.Host.CloseGroup(ctx, id); err != nil {
				errs <- err
			}
		})
	}
	group.Wait()
	close(errs)
	if err := <-errs; err != nil {
		return err
	}
	if err := rc.quarantine(d.TopicDir, marker.Kind, marker.Error()); err != nil {
		return err
	}
	d.gone = true
	rc.aside.flash()
	return nil
}

// makeDir makes the directory of a topic, or finds it. One that is another is set
// aside first.
func (rc *reconciler) makeDir(ctx context.Context, t *metastore.Topic) (*topicDir, error) {
	d := rc.dirs[t.Incarnation]
	if d != nil && !d.gone {
		return d, nil
	}
	dir, err := rc.cfg.Store.CreateTopicDir(t.Name, t.Incarnation)
	var marker *storage.MarkerError
	if errors.As(err, &marker) && marker.Kind != "" {
		d = rc.dir(storage.TopicDir{Dir: marker.Dir, Name: t.Name, Incarnation: t.Incarnation})
		if err := rc.setDirAside(ctx, d, marker); err != nil {
			return nil, err
		}
		dir, err = rc.cfg.Store.CreateTopicDir(t.Name, t.Incarnation)
	}
	if err != nil {
		return nil, err
	}
	d = rc.dir(storage.TopicDir{Dir: dir, Name: t.Name, Incarnation: t.Incarnation})
	d.gone = false
	return d, nil
}
