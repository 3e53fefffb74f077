package topic

import (
	"errors"

	"go.uber.org/zap"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/storage"
)

// mending is a replica that cannot be open since what it has to read of its own log is
// damaged: the segment that is written last is not whole, or an entry behind the newest
// side file, which the producers' state is made of. A goroutine of its own gets it from
// the other replicas.
type mending struct {
	done chan struct{} // closed when nobody mends any more
	got  int64         // bytes; then the reconciler's
}

// mend begins to repair the log of a replica that is closed, if it was refused or
// failed for damage. Where that was of no help it is not tried again while the node
// runs: a side file is not to be had from others, nor the start of a log.
func (rc *reconciler) mend(topic string, place metastore.Partition, at address, replica storage.ReplicaID, refused error) {
	var damage *storage.DamageError
	last := rc.mends[at]
	if !errors.As(refused, &damage) || last != nil && last.got == 0 {
		return
	}
	d := &mending{done: make(chan struct{})}
	rc.mends[at] = d
	rc.stats.damages.Add(1)
	p := patient{at, place.Group, replica, rc.others(place, 0)}
	log := rc.cfg.Logger.With(zap.String("topic", topic), zap.Uint32("partition", at.partition), zap.Stringer("replica", replica))
	log.Warn("a replica's log is damaged where it has to be read: getting it from another replica", zap.Error(damage))
	rc.running.Go(func() {
		defer rc.broke.flash()
		defer close(d.done)
		err := rc.cfg.Host.RepairLog(p.group, p.replica, func(l *storage.Log) (err error) {
			d.got, err = rc.mendLog(p, l)
			return err
		})
		if err != nil && rc.life.Err() == nil {
			log.Error("a replica's log could not be repaired", zap.Error(err), zap.Int64("bytes", d.got))
		} else if err == nil {
			log.Info("a replica's log was repaired; it is opened again", zap.Int64("bytes", d.got))
		}
	})
}

// mendLog verifies what an open reads of a log, and repairs it.
func (m *Manager) mendLog(p patient, log *storage.Log) (got int64, err error) {
	v := log.Verify(log.Position().AuxIndex)
	for m.life.Err() == nil {
		n, err := v.Step(scrubStep)
		m.stats.verified.Add(uint64(n))
		switch {
		case errors.As(err, new(*storage.DamageError)):
			n, err = m.repair(m.life, p, log, v)
			if got += n; err != nil {
				return got, err
			}
		case err != nil || n == 0:
			return got, err
		}
	}
	return got, ErrClosed
}

// mended reports whether a replica is not being repaired. One that was is due at once.
func (rc *reconciler) mended(at address) bool {
	d := rc.mends[at]
	if d == nil {
		return true
	}
	select {
	case <-d.done:
		if d.got > 0 {
			delete(rc.mends, at)
			delete(rc.retries, at)
		}
		return true
	default:
		return false
	}
}
