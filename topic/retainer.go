package topic

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// versionOfRetention is the version of a cluster from which on log starts are
// proposed, and clocks asked for.
const versionOfRetention = 3

// SetRetention changes what a topic keeps, and returns the topic. When it returns
// nil the change is durable on a quorum of the metadata; what is due by it is
// removed soon after, and what a longer retention would have kept, but the shorter
// one before it removed, does not come back.
//
// Errors: metastore.ErrTopicNotFound, after a linearizable read;
// metastore.ErrTopicDeleting; *metastore.InvalidError; a
// *metastore.ClusterVersionError before version 3. If ctx ends the outcome is
// unknown: it may be repeated.
func (m *Manager) SetRetention(ctx context.Context, name string, r metastore.Retention) (metastore.Topic, error) {
	ctx, cancel, err := m.whileOpen(ctx)
	defer cancel()
	var t metastore.Topic
	if err == nil {
		t, err = m.active(ctx, name)
	}
	if err == nil {
		t, err = m.cfg.Meta.SetRetention(ctx, t.Incarnation, r)
	}
	return t, explain(ctx, err, "set the retention of %q", name)
}

// retainer has partitions that this node leads begin later when something is due,
// and sees to it that files that are of no more use are removed. Its fields belong
// to its goroutine.
type retainer struct {
	*Manager
	clocks  map[storage.NodeID]clockWord
	stamps  map[segmentKey]int64 // of the last record, as far as they were read
	waiting time.Time            // since when files wait to be removed, or since the journal was asked; zero: none do
	bytes   int64                // that waited when it was asked
	asked   int                  // how often in vain: a replica that has failed may keep what it let go
}

// clockWord is how far a node's clock was ahead of this one's, and when it said so.
type clockWord struct {
	ahead time.Duration
	at    time.Time
}

// segmentKey names a segment of a replica.
type segmentKey struct {
	replica storage.ReplicaID
	first   storage.Index
}

func (rt *retainer) run() {
	select {
	case <-rt.cfg.Meta.CaughtUp():
	case <-rt.life.Done():
		return
	}
	ticker := rt.cfg.Clock.NewTicker(retainEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C():
			rt.pass()
			rt.free()
		case <-rt.life.Done():
			return
		}
	}
}

// pass looks at every partition that this node leads.
func (rt *retainer) pass() {
	ctx, cancel := within(rt.life, rt.cfg.Clock, retainEvery)
	defer cancel()
	seen := map[segmentKey]int64{}
	var asked sync.WaitGroup
	for _, r := range rt.allReplicas() {
		t, err := rt.cfg.Meta.TopicByIncarnation(r.incarnation)
		if err != nil || t.State != metastore.TopicActive || t.Config.Retention.IsZero() || r.lead.Load().role != raftlog.RoleLeaderActive {
			r.retains.Store(nil)
			continue
		}
		start, why, err := rt.due(ctx, r, t.Config.Retention, seen)
		if err != nil {
			why = err.Error()
		}
		r.noteRetention(why)
		if err != nil || start.Index == 0 {
			continue
		}
		asked.Go(func() { rt.raise(ctx, r, start) })
	}
	rt.stamps = seen
	asked.Wait()
}

// allReplicas returns the open replicas.
func (m *Manager) allReplicas() []*replica {
	m.mu.RLock()
	defer m.mu.RUnlock()
	all := make([]*replica, 0, len(m.mu.replicas))
	for _, r := range m.mu.replicas {
		all = append(all, r)
	}
	return all
}

// noteRetention notes why nothing is removed though it may be due; "": it is not.
func (r *replica) noteRetention(why string) {
	if why == "" {
		r.retains.Store(nil)
	} else if old := r.retains.Load(); old == nil || *old != why {
		r.retains.Store(&why)
	}
}

// retention fills in what a replica's status says of it.
func (r *replica) retention(s *PartitionStatus) {
	segments, err := r.group.Log().Segments()
	if err != nil {
		return
	}
	for i := range segments {
		s.LogBytes += segments[i].Bytes
	}
	if why := r.retains.Load(); why != nil && r.leads() {
		s.RetentionWaits = *why
	}
}

// due returns where the log is to begin, the zero start if nothing goes, and why
// something that may be due does not. seen takes the stamps that it looked at.
func (rt *retainer) due(ctx context.Context, r *replica, keep metastore.Retention, seen map[segmentKey]int64) (start storage.LogStart, why string, err error) {
	log := r.group.Log()
	segments, err := log.Segments()
	if err != nil {
		return start, "", err
	}
	n := keptBytes(segments, keep.Bytes)
	if keep.Age > 0 {
		now := rt.cfg.Clock.Now()
		old := passed(segments, now.Add(-keep.Age).UnixMilli(), func(i int) (int64, bool) {
			key := segmentKey{r.id, segments[i].First}
			stamp, known := rt.stamps[key]
			if !known {
				stamp, known = r.part.stampBefore(segments[i+1].Offset)
			}
			if known {
				seen[key] = stamp
			}
			return stamp, known
		})
		if old > n {
			if why = rt.clockDoubt(ctx, r, now); why == "" {
				n = old
			}
		}
	}
	if n == 0 {
		return start, why, nil
	}
	if err := rt.cfg.Meta.Require(versionOfRetention); err != nil {
		return start, "", err
	}
	start, err = log.SegmentStart(segments[n])
	return start, why, err
}

// raise proposes a log start and waits for what becomes of it.
func (rt *retainer) raise(ctx context.Context, r *replica, start storage.LogStart) {
	done := make(chan error, 1)
	err := r.part.SetLogStart(start, func(err error) { done <- err })
	if err == nil {
		err = rt.reopen(r, await(ctx, done))
	}
	if err != nil && rt.life.Err() == nil {
		rt.logOf(r).Debug("a partition does not begin later yet; it is tried again", zap.Error(err))
	}
}

// clockDoubt returns why this node's clock is not to be relied on for a partition,
// "" if it is, after asking those nodes that have not said what theirs is lately.
func (rt *retainer) clockDoubt(ctx context.Context, r *replica, now time.Time) string {
	var (
		others  = r.where().Replicas
		answers = make([]clockWord, len(others))
		asked   sync.WaitGroup
		nodes   = 0
	)
	// Of the wall's time: if that was set meanwhile, what was asked before is of another.
	now = now.Round(0)
	for i, a := range others {
		nodes++
		answers[i] = rt.clocks[a.Node]
		age := now.Sub(answers[i].at)
		if a.Node != rt.cfg.Node && (answers[i].at.IsZero() || age < 0 || age >= clockGood) {
			answers[i] = clockWord{}
			asked.Go(func() {
				if ahead, err := rt.askTime(ctx, a.Node, methodClock, r.address); err == nil {
					answers[i] = clockWord{ahead, now}
				}
			})
		}
	}
	asked.Wait()
	var known []time.Duration
	for i, a := range others {
		if a.Node == rt.cfg.Node || answers[i].at.IsZero() {
			continue
		}
		rt.clocks[a.Node] = answers[i]
		known = append(known, answers[i].ahead)
	}
	return clockDoubt(known, nodes)
}

// askTime returns how far a node's clock is ahead of this one's. It takes the
// answer for that of the middle of the call.
func (m *Manager) askTime(ctx context.Context, node storage.NodeID, method string, a address) (time.Duration, error) {
	before := m.cfg.Clock.Now()
	response, err := m.call(ctx, node, method, a.append(nil, 0), 0)
	if err != nil {
		return 0, err
	}
	there, err := decodeClock(response)
	if err != nil {
		return 0, err
	}
	took := m.cfg.Clock.Now().Sub(before)
	return there.Sub(before.Add(took / 2)), nil
}

func (m *Manager) serveClock(context.Context, *replica, byte, []byte) ([]byte, error) {
	return encodeClock(m.cfg.Clock.Now()), nil
}

func encodeClock(now time.Time) []byte {
	return binary.LittleEndian.AppendUint64(responseHead(8), uint64(now.UnixMilli()))
}

func decodeClock(resp []byte) (time.Time, error) {
	body, err := decodeResponse(resp)
	if err != nil {
		return time.Time{}, err
	}
	if len(body) != 8 {
		return time.Time{}, raftlog.Retry(malformed("clock in %d bytes", len(body)))
	}
	return time.UnixMilli(int64(binary.LittleEndian.Uint64(body))), nil
}

// free asks the journal for a new generation as long as files wait to be removed.
func (rt *retainer) free() {
	now := rt.cfg.Clock.Now()
	bytes := rt.cfg.Store.TrimmedBytes()
	if bytes != rt.bytes {
		rt.bytes, rt.asked = bytes, 0
	}
	switch {
	case bytes == 0:
		rt.waiting = time.Time{}
	case rt.waiting.IsZero():
		rt.waiting = now
	case now.Sub(rt.waiting) >= freeAfter && rt.asked < askAtMost:
		rt.waiting, rt.asked = now, rt.asked+1
		rt.cfg.Host.CutJournal()
	}
}

// noteLogStart is called by a group when this replica's log begins later.
func (m *Manager) noteLogStart(r *replica, start storage.LogStart, bytes int64) {
	m.stats.removed.Add(uint64(bytes))
	m.logOf(r).Info("the front of a partition was removed",
		zap.Int64("start", int64(start.Offset)), zap.Int64("bytes", bytes))
}

// stampBefore returns the append stamp of the record before an offset, or, if that
// one is damaged, of the next one that can be read: which is not older.
func (p *Partition) stampBefore(end storage.Offset) (stamp int64, known bool) {
	for _, at := range []storage.Offset{end - 1, end} {
		read, err := p.group.Log().ReadAt(at, 1, nil)
		var damage *storage.DamageError
		if errors.As(err, &damage) {
			continue
		}
		if frame := firstData(read.Frames); err == nil && frame != nil {
			return Batch{frame.Payload}.Stamp(), true
		}
		break
	}
	return 0, false
}
