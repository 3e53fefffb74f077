package topic

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// topicView is what a producer knows of a topic: as the metadata here said,
// until they change.
type topicView struct {
	topic   metastore.Topic
	lanes   []atomic.Pointer[lane] // by partition; made when needed
	stale   <-chan struct{}        // closed when the metadata changed
	suspect atomic.Bool            // a partition answered that this life has ended
	current *atomic.Uint32         // the partition for records without keys
}

func (v *topicView) fresh() bool {
	select {
	case <-v.stale:
		return false
	default:
		return !v.suspect.Load()
	}
}

// view returns the topic that has the name.
func (p *Producer) view(ctx context.Context, name string) (*topicView, error) {
	p.mu.Lock()
	v := p.mu.views[name]
	p.mu.Unlock()
	if v != nil && v.fresh() {
		return v, nil
	}
	ctx, cancel := until(ctx, p.m.life)
	defer cancel()
	v, err := p.lookUp(ctx, name, v)
	return v, endOf(ctx, err)
}

// lookUp replaces what was known of a topic.
func (p *Producer) lookUp(ctx context.Context, name string, v *topicView) (*topicView, error) {
	if err := p.m.caughtUp(ctx); err != nil {
		return nil, err
	}
	if v != nil && v.suspect.Load() {
		if err := p.m.barrier(ctx); err != nil {
			return nil, err
		}
	}
	for {
		t, err := p.m.active(ctx, name)
		if err != nil {
			var retired *metastore.TopicRetiredError
			if errors.Is(err, metastore.ErrTopicNotFound) || errors.Is(err, metastore.ErrTopicDeleting) || errors.As(err, &retired) {
				p.forget(name, v)
			}
			return nil, err
		}
		if now, ok := p.see(t); ok {
			return now, nil
		}
	}
}

// see remembers a topic, unless what was found is not what the metadata here
// say by now: views of a name follow each other as the lives of the topic do,
// however long the goroutine that found one of them was held up.
func (p *Producer) see(found metastore.Topic) (*topicView, bool) {
	p.mu.Lock()
	_, stale := p.m.cfg.Meta.Watch()
	t, err := p.m.cfg.Meta.Topic(found.Name)
	if err != nil || t.Incarnation != found.Incarnation || t.State != metastore.TopicActive {
		p.mu.Unlock()
		return nil, false
	}
	v := &topicView{topic: t, stale: stale, current: new(atomic.Uint32), lanes: make([]atomic.Pointer[lane], len(t.Partitions))}
	old := p.mu.views[t.Name]
	if old != nil && old.topic.Incarnation == t.Incarnation {
		v.current, old = old.current, nil
	}
	p.mu.views[t.Name] = v
	p.mu.Unlock()
	if old != nil {
		p.end(func(i storage.Incarnation) bool { return i == old.topic.Incarnation })
	}
	return v, true
}

// forget drops a topic that is not there any more.
func (p *Producer) forget(name string, v *topicView) {
	if v == nil {
		return
	}
	p.mu.Lock()
	if p.mu.views[name] == v {
		delete(p.mu.views, name)
	}
	p.mu.Unlock()
	p.end(func(i storage.Incarnation) bool { return i == v.topic.Incarnation })
}

// keep forgets what is not alive, and ends what waits for it.
func (p *Producer) keep(alive func(storage.Incarnation) bool) {
	p.end(func(i storage.Incarnation) bool { return !alive(i) })
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, v := range p.mu.views {
		if !alive(v.topic.Incarnation) {
			delete(p.mu.views, name)
		}
	}
	for a := range p.mu.spent {
		if !alive(a.incarnation) { // and so nothing can be numbered there any more
			delete(p.mu.spent, a)
		}
	}
}

// end ends what waits for lives of topics that are over.
func (p *Producer) end(over func(storage.Incarnation) bool) {
	for _, l := range p.allLanes() {
		if over(l.incarnation) {
			l.fail(ErrTopicDeleted)
		}
	}
}

// doubt has the next call look the topic up anew.
func (p *Producer) doubt(l *lane) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if v := p.mu.views[l.topic]; v != nil && v.topic.Incarnation == l.incarnation {
		v.suspect.Store(true)
	}
}

// caughtUp waits until this node knows which topics there are, no longer than
// CallTimeout.
func (m *Manager) caughtUp(ctx context.Context) error {
	select {
	case <-m.cfg.Meta.CaughtUp():
		return nil
	default:
	}
	bounded, cancel := within(ctx, m.cfg.Clock, m.cfg.CallTimeout)
	defer cancel()
	select {
	case <-m.cfg.Meta.CaughtUp():
		return nil
	case <-bounded.Done():
	}
	err := ctx.Err()
	if err == nil {
		err = context.Cause(bounded)
	}
	return raftlog.Retry(fmt.Errorf("%w: %s: %w", metastore.ErrUnavailable, m.cfg.Meta.CatchingUp(), err))
}

// lane returns the way to a partition: the same one for all views, until it
// ends. The next one takes another identity than the one that numbered batches
// there before, or its first ones would be taken for repetitions of those.
func (p *Producer) lane(v *topicView, partition uint32) *lane {
	if l := v.lanes[partition].Load(); l != nil && !l.over.Load() {
		return l
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	at := address{v.topic.Incarnation, partition}
	l := p.mu.lanes[at]
	if l == nil {
		l = newLane(p, v, partition)
		switch {
		case p.mu.failed != nil:
			l.mu.ended = p.mu.failed
		case p.mu.closed:
			l.mu.ended = l.about(ErrClosed)
		case !p.m.alive(at.incarnation):
			l.mu.ended = l.about(ErrTopicDeleted)
		default:
			l.mu.identity = p.mu.spent[at]
			p.mu.lanes[at] = l
		}
	}
	v.lanes[partition].Store(l)
	return l
}

// stickyBytes is how many bytes without keys wait for a partition before the
// next one gets its turn.
const stickyBytes = 16 << 10

// choose returns the way to the partition for a key; nil is none.
//
// Records without keys go round, batch by batch: to the partition for which
// some wait already, so that fewer and fuller batches travel, unless enough do
// or it has no leader.
func (p *Producer) choose(v *topicView, key []byte) *lane {
	n := uint32(len(v.lanes))
	if key != nil {
		return p.lane(v, PartitionOf(key, n))
	}
	l := p.lane(v, v.current.Load()%n)
	if waiting := l.waiting.Load(); waiting > 0 && waiting < stickyBytes && !l.leaderless() {
		return l
	}
	for range n {
		if l = p.lane(v, v.current.Add(1)%n); !l.leaderless() {
			return l
		}
	}
	return p.lane(v, v.current.Add(1)%n)
}

// PartitionOf returns the partition, of a topic with n, for records with the
// key: the 31 low bits of MurmurHash2 of the key, seed 0x9747b28c, modulo n. It
// is the choice that Kafka's own producers make, and never changes.
func PartitionOf(key []byte, n uint32) uint32 { return murmur2(key) & 0x7fffffff % n }

func murmur2(key []byte) uint32 {
	const (
		m    = 0x5bd1e995
		seed = 0x9747b28c
	)
	h := seed ^ uint32(len(key))
	for ; len(key) >= 4; key = key[4:] {
		k := binary.LittleEndian.Uint32(key) * m
		k ^= k >> 24
		h = h*m ^ k*m
	}
	if len(key) > 0 {
		for i := len(key) - 1; i >= 0; i-- {
			h ^= uint32(key[i]) << (8 * i)
		}
		h *= m
	}
	h ^= h >> 13
	h *= m
	return h ^ h>>15
}
