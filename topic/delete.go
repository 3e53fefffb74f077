package topic

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// The end of a topic's life:
//
//	active -> deleting   in the metadata: nothing stops it any more; nodes that
//	                     see it take and show no records (undelete.go has what comes
//	                     before that if there is a grace)
//	seal                 in the log of every partition: no entry behind it is
//	                     a record, on whatever replica and under whatever leader
//	deleting -> deleted  in the metadata: the name is free; nodes that see it
//	                     set replicas aside and move directories to quarantine
//
// Because of the seal no leader that has not heard of the deletion can
// acknowledge a record after the call has returned (I11).

// DeleteTopic deletes a topic. When it returns nil, no record of this life of
// its name is ever acknowledged again, and the name is free. It may be called
// again after an error.
//
// With a grace (WithGrace, or Config.DeleteGrace) the topic keeps its name and all
// that it holds until that is over, and UndeleteTopic brings it back as it was. When
// the call returns nil, no record is acknowledged until then. A topic that was
// deleted with a grace may be deleted again: with another one it is kept until the
// later of the two ends, without one it is deleted at once.
//
// Errors: metastore.ErrTopicNotFound, after a linearizable read. With a grace, also
// a *metastore.InvalidError; a *metastore.ClusterVersionError before version 3;
// metastore.ErrTopicDeleting; and Retry while this node's clock is off the others',
// since the end of the grace would be wrong. If ctx ends,
// or a partition has no quorum, the outcome is unknown: once the deletion has
// begun it is finished in the background when there are quorums.
func (m *Manager) DeleteTopic(ctx context.Context, name string, opts ...DeleteOption) error {
	ctx, end := m.cfg.Trace.begin(ctx, Operation{Name: OpDeleteTopic, Topic: name, Partition: -1})
	grace := m.cfg.DeleteGrace
	for _, o := range opts {
		grace = o.grace
	}
	err := m.deleteTopic(ctx, name, grace)
	end(err)
	return err
}

func (m *Manager) deleteTopic(ctx context.Context, name string, grace time.Duration) error {
	ctx, cancel, err := m.whileOpen(ctx)
	defer cancel()
	var t metastore.Topic
	if err == nil {
		// What this node knows may be an earlier life of the name, which is gone: to
		// delete that would be done at once, and the name not free.
		t, err = m.findNow(ctx, name)
	}
	if err == nil && grace != 0 {
		return m.retireTopic(ctx, &t, grace)
	}
	if err == nil && t.State != metastore.TopicDeleting {
		err = m.cfg.Meta.SetTopicDeleting(ctx, t.Incarnation)
	}
	if err != nil {
		return explain(ctx, err, "delete %q", name)
	}
	if err := m.finishDelete(ctx, &t); err != nil {
		return raftlog.Unknown(withoutOutcome{explain(ctx, err, "delete %q: it is finished later", name)})
	}
	return nil
}

// finishDelete seals all partitions and frees the name. It may be done by many
// at once.
func (m *Manager) finishDelete(ctx context.Context, t *metastore.Topic) error {
	err := eachPartition(t, func(a address, p metastore.Partition) error { return m.seal(ctx, t.Name, a, p) })
	if err != nil {
		return err
	}
	return m.cfg.Meta.SetTopicDeleted(ctx, t.Incarnation)
}

// seal seals a partition through its leader, wherever it is, until ctx ends.
// A seal may be repeated, so that attempts of unknown outcome are. A partition of
// which a forced recovery left no replica needs none: nothing can be appended to
// it, and its group never comes back.
func (m *Manager) seal(ctx context.Context, name string, a address, p metastore.Partition) error {
	var b backoff
	for {
		if len(m.current(a, p).Replicas) == 0 {
			return nil
		}
		err := m.trySeal(ctx, a, p)
		if err == nil || errors.Is(err, ErrTopicDeleted) || !m.alive(a.incarnation) {
			return nil // perhaps another node has finished the deletion
		}
		if b.wait(ctx, m.cfg.Clock, nil); ctx.Err() != nil {
			return fmt.Errorf("seal %s/%d: %w (%w)", name, p.Index, raftlog.UnknownCause(ctx), withoutOutcome{err})
		}
	}
}

func (m *Manager) trySeal(ctx context.Context, a address, p metastore.Partition) error {
	return m.askLeader(ctx, a, p, methodSeal, nil, func(r *replica) error { return r.seal(ctx) })
}

// askLeader has the leader of a partition do something, here or elsewhere, once.
func (m *Manager) askLeader(ctx context.Context, a address, p metastore.Partition, method string, body []byte, here func(*replica) error) error {
	to := m.leaderOf(a, p)
	switch {
	case to.here != nil:
		return here(to.here)
	case to.node == 0:
		return raftlog.Retry(&raftlog.NotLeaderError{Group: p.Group})
	}
	response, err := m.call(ctx, to.node, method, append(a.append(nil, 0), body...), 0)
	if err == nil {
		_, err = decodeResponse(response)
	}
	m.noteRoute(a, p, to.node, err)
	return err
}

// Deletions that nobody finished are looked at this often, and not before they
// have been seen for that long.
const (
	finishEvery  = 2 * time.Second
	finishTry    = 10 * time.Second
	finishRarely = time.Minute      // between two tries of one
	finishAtOnce = 16               // topics
	graceEvery   = 10 * time.Second // how often it is looked whether a grace is over
)

// finish finishes deletions that others began: their caller gave up or its node
// died. Every node does so; whoever is first wins, and the others find nothing
// left to do.
func (m *Manager) finish() {
	select {
	case <-m.cfg.Meta.CaughtUp():
	case <-m.life.Done():
		return
	}
	timer := m.cfg.Clock.NewTimer(0)
	defer timer.Stop()
	seen := map[unfinished]*retry{}
	for {
		_, changed := m.cfg.Meta.Watch()
		waiting, grace := m.finishDue(seen)
		var again <-chan time.Time
		switch {
		case waiting:
			timer.Reset(finishEvery)
			again = timer.C()
			changed = nil // all is looked at again soon
		case grace:
			timer.Reset(graceEvery)
			again = timer.C()
		}
		select {
		case <-changed:
		case <-again:
		case <-m.life.Done():
			return
		}
	}
}

// finishDue tries what has been waiting long enough, side by side and each
// topic less often the longer it waits, and reports whether anything is waiting, and
// whether a grace lasts.
func (m *Manager) finishDue(seen map[unfinished]*retry) (waiting, grace bool) {
	now := m.cfg.Clock.Now()
	deleting := map[unfinished]bool{}
	var group sync.WaitGroup
	slots := make(chan struct{}, finishAtOnce)
	for _, t := range m.cfg.Meta.Topics() {
		if t.State == metastore.TopicActive {
			continue
		}
		if t.State == metastore.TopicRetired && !m.graceOver(&t) {
			grace = true
			continue
		}
		key := unfinished{t.Incarnation, t.State}
		deleting[key] = true
		due := seen[key]
		if due == nil {
			due = &retry{pause: finishEvery, at: now.Add(finishEvery)}
			seen[key] = due
		}
		if now.Before(due.at) {
			continue
		}
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			m.tryFinish(&t)
			due.pause = min(2*due.pause, finishRarely)
			due.at = m.cfg.Clock.Now().Add(due.pause)
		})
	}
	group.Wait()
	for i := range seen {
		if !deleting[i] {
			delete(seen, i)
		}
	}
	return len(deleting) > 0, grace
}
