package topic

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// CreateTopic creates a topic and returns when it is usable from this node:
// every partition has a leader. It is durable on a quorum then.
//
// A name that differs only in case from another topic's is refused. All other
// calls take a name literally: "Orders" does not find "orders".
//
// Errors: those of metastore.Store.CreateTopic. If ctx ends first the outcome
// is unknown; with a topic whose Name is not empty it was created, and only
// its leaders were not waited for. If it has ended before the call the error is
// Retry, here and in all calls.
func (m *Manager) CreateTopic(ctx context.Context, name string, config metastore.TopicConfig) (metastore.Topic, error) {
	ctx, end := m.cfg.Trace.begin(ctx, Operation{Name: OpCreateTopic, Topic: name, Partition: -1})
	t, err := m.createTopic(ctx, name, config)
	end(err)
	return t, err
}

func (m *Manager) createTopic(ctx context.Context, name string, config metastore.TopicConfig) (metastore.Topic, error) {
	ctx, cancel, err := m.whileOpen(ctx)
	defer cancel()
	var t metastore.Topic
	if err == nil {
		t, err = m.cfg.Meta.CreateTopic(ctx, metastore.TopicSpec{Name: name, Config: config})
	}
	if err != nil {
		return metastore.Topic{}, explain(ctx, err, "create %q", name)
	}
	return t, explain(ctx, m.awaitLeaders(ctx, &t), "%q was created; wait for its leaders", name)
}

// DescribeTopic returns the topic that has the name. It says that there is none
// (metastore.ErrTopicNotFound) only after a linearizable read. A name that no
// topic can have is a *metastore.InvalidError, here and in all calls.
func (m *Manager) DescribeTopic(ctx context.Context, name string) (metastore.Topic, error) {
	ctx, cancel, err := m.whileOpen(ctx)
	defer cancel()
	var t metastore.Topic
	if err == nil {
		t, err = m.find(ctx, name)
	}
	return t, explain(ctx, err, "describe %q", name)
}

// ListTopics returns all topics by name, after a linearizable read.
func (m *Manager) ListTopics(ctx context.Context) ([]metastore.Topic, error) {
	ctx, cancel, err := m.whileOpen(ctx)
	defer cancel()
	if err == nil {
		err = m.barrier(ctx)
	}
	if err != nil {
		return nil, explain(ctx, err, "list topics")
	}
	return m.cfg.Meta.Topics(), nil
}

// partitionsAtOnce is how many partitions of a topic are waited for, or sealed,
// at the same time.
const partitionsAtOnce = 128

// eachPartition calls f for all partitions, side by side, and returns the first
// error, after which it begins no more.
func eachPartition(t *metastore.Topic, f func(address, metastore.Partition) error) error {
	var (
		group sync.WaitGroup
		once  sync.Once
		first error
	)
	failed := make(chan struct{})
	slots := make(chan struct{}, partitionsAtOnce)
	for _, p := range t.Partitions {
		select {
		case <-failed:
		case slots <- struct{}{}:
			group.Go(func() {
				defer func() { <-slots }()
				if err := f(address{t.Incarnation, p.Index}, p); err != nil {
					once.Do(func() { first = err; close(failed) })
				}
			})
			continue
		}
		break
	}
	group.Wait()
	return first
}

// awaitLeaders waits until every partition has a leader.
func (m *Manager) awaitLeaders(ctx context.Context, t *metastore.Topic) error {
	return eachPartition(t, func(a address, p metastore.Partition) error {
		if err := m.awaitLeader(ctx, a, p); err != nil {
			return fmt.Errorf("%v: %w", TopicPartition{t.Name, p.Index}, err)
		}
		return nil
	})
}

func (m *Manager) awaitLeader(ctx context.Context, a address, p metastore.Partition) error {
	_, mine := p.On(m.cfg.Node)
	patience := m.cfg.CallTimeout / 10 // who is asked first may be the one that cannot be reached
	var b backoff
	for {
		opened := m.opened.wait()
		_, known := m.cfg.Meta.Watch()
		if t, err := m.cfg.Meta.TopicByIncarnation(a.incarnation); err == nil && isOver(t.State) {
			return raftlog.Unknown(withoutOutcome{ErrTopicDeleted}) // it was created
		}
		r := m.replica(a)
		switch {
		case r != nil:
			changed := r.changed.wait()
			if lead := r.lead.Load(); lead.leader != 0 && lead.role != raftlog.RoleLeaderStarting {
				return nil
			}
			select {
			case <-changed:
				continue
			case <-known:
				continue
			case <-ctx.Done():
			}
		case mine:
			select {
			case <-opened:
				continue
			case <-known:
				continue
			case <-ctx.Done():
			}
		default:
			p := m.current(a, p)
			node, _ := m.routes.find(a, p, m.cfg.Clock.Now())
			err := m.leads(ctx, node, a, patience)
			if err == nil {
				return nil
			}
			patience = min(2*patience, m.cfg.CallTimeout)
			m.routes.failed(a, p, node, m.cfg.Clock.Now(), unanswered(err), nil)
			b.wait(ctx, m.cfg.Clock, known)
		}
		if ctx.Err() != nil {
			return raftlog.UnknownCause(ctx)
		}
	}
}

// leads returns nil if a node says within patience that it leads a partition.
func (m *Manager) leads(ctx context.Context, node storage.NodeID, a address, patience time.Duration) error {
	ctx, cancel := within(ctx, m.cfg.Clock, patience)
	defer cancel()
	response, err := m.call(ctx, node, methodOffsets, a.append(nil, 0), 0)
	if err == nil {
		_, err = decodeOffsets(response)
	}
	return err
}

// checkPartition returns a *NoPartitionError, or nil.
func checkPartition(t *metastore.Topic, partition uint32) error {
	if n := uint32(len(t.Partitions)); partition >= n {
		return &NoPartitionError{Topic: t.Name, Partition: partition, Partitions: n}
	}
	return nil
}

// active returns the topic that has the name and takes records. That there is
// none, or only one that is being deleted, it says after a linearizable read.
func (m *Manager) active(ctx context.Context, name string) (metastore.Topic, error) {
	t, err := m.find(ctx, name)
	if err == nil && t.State != metastore.TopicActive {
		if err = m.barrier(ctx); err == nil {
			t, err = m.find(ctx, name)
		}
	}
	if err == nil && t.State != metastore.TopicActive {
		err = t.Refusal()
	}
	if err != nil {
		return metastore.Topic{}, readError(err)
	}
	return t, nil
}
