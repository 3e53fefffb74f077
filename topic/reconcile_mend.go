package topic

import (
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/storage"
)

// mending is a replica that cannot be open since what it has to read of its own log is
// damaged: the segment that is written last is not whole, or the newest side file, or an
// entry behind it, which the producers' state is made of. A goroutine of its own gets it from
// the other replicas.
type mending struct {
	done chan struct{} // closed when nobody mends any more
	got  int64         // bytes; then the reconciler's

	pause time.Duration
	again time.Time // not before, if nothing came
}

// lastMend is the longest pause between two tries that were of no help: the start of a
// log is not to be had from others, and each try reads a segment.
const lastMend = 10 * time.Minute

// mend begins to repair the log of a replica that is closed, if it was refused or
// failed for damage.
func (rc *reconciler) mend(topic string, place metastore.Partition, at address, replica storage.ReplicaID, refused error) {
	var damage *storage.DamageError
	if !errors.As(refused, &damage) {
		return
	}
	if errors.Is(refused, storage.ErrLogLost) {
		rc.restore(topic, place, at, replica, refused)
		return
	}
	d := &mending{done: make(chan struct{})}
	if last := rc.mends[at]; last != nil {
		if rc.cfg.Clock.Now().Before(last.again) {
			return
		}
		d.pause = last.pause
	} else {
		rc.stats.damages.Add(1)
	}
	d.pause = min(max(2*d.pause, firstRetry), lastMend)
	d.again = rc.cfg.Clock.Now().Add(d.pause)
	rc.mends[at] = d
	p := patient{address: at, group: place.Group, replica: replica, others: rc.others(place, 0)}
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
	if got, err = m.mendAside(m.life, p, log); err != nil {
		return got, err
	}
	v, last := log.Verify(log.Position().AuxIndex), storage.Index(0)
	for m.life.Err() == nil {
		n, err := v.Step(scrubStep)
		m.stats.verified.Add(uint64(n))
		switch {
		case errors.As(err, new(*storage.DamageError)):
			if v.Next() == last {
				return got, err // it was written, and is not there
			}
			last = v.Next()
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
	if rc.restores[at] != nil {
		return false
	}
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
