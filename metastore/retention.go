package metastore

import (
	"context"
	"time"

	"github.com/stelelog/stele/raftlog"
)

// setRetention changes what a topic keeps.
type setRetention struct {
	Incarnation raftlog.Incarnation
	Retention   Retention
}

func (setRetention) kind() CommandType { return typeSetRetention }
func (c setRetention) check() error    { return c.Retention.check() }

func (c setRetention) appendBody(b []byte) []byte {
	b = appendUint(append(b, c.Incarnation[:]...), uint64(c.Retention.rounded().Age.Milliseconds()))
	return appendUint(b, uint64(c.Retention.Bytes))
}

func (d *decoder) setRetention() setRetention {
	return setRetention{d.id16(), Retention{
		Age: time.Duration(d.uintMax(uint64(MaxRetentionAge.Milliseconds()))) * time.Millisecond, Bytes: int64(d.uintMax(MaxRetentionBytes)),
	}}
}

// apply may be applied twice. What partitions do about it is theirs: here it is but
// a wish.
func (c setRetention) apply(t *tx) (any, error) {
	head, ok := t.topic(c.Incarnation)
	switch {
	case !ok:
		return nil, ErrTopicNotFound
	case head.State != TopicActive:
		return nil, refusedBy(c.Incarnation, head)
	}
	if head.Config.Retention != c.Retention {
		head.Config.Retention = c.Retention
		t.put(keyIncarnation(tableTopic, c.Incarnation), head.encode())
		t.changes = append(t.changes, change{of: c.Incarnation, config: &head.Config})
	}
	return again(t, createTopic{Incarnation: c.Incarnation, Name: head.Name}, head)
}

// SetRetention changes what a topic keeps, and returns the topic. When it returns
// nil, a quorum holds the change durably. It may be repeated. The incarnation is
// that of the topic: a successor of the same name is left alone.
//
// ErrTopicNotFound, and the errors of Topic.Refusal; *InvalidError; *ClusterVersionError before
// version 3.
func (s *Store) SetRetention(ctx context.Context, i raftlog.Incarnation, r Retention) (Topic, error) {
	if err := r.check(); err != nil {
		return Topic{}, err
	}
	v, err := s.propose(ctx, setRetention{i, r.rounded()})
	if err != nil {
		return Topic{}, err
	}
	t, ok := v.(*Topic)
	if !ok {
		return Topic{}, errNoValue
	}
	return *t, nil
}
