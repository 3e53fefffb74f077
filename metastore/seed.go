package metastore

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/stelelog/stele/raftlog"
)

// InitialState is what a host wants a new cluster to begin with.
type InitialState struct {
	Settings map[string]string
	// Topics that there shall be. A zero Incarnation gets a random one.
	Topics []TopicSpec
}

// seed writes the initial state of a cluster. The first one that is applied
// counts; its value says whether it was this one.
type seed struct {
	Settings []setSetting // by key
	Topics   []createTopic
}

func (c seed) kind() CommandType {
	for i := range c.Topics {
		if !c.Topics[i].Config.Retention.IsZero() {
			return typeSeedRetained
		}
	}
	return typeSeed
}

func (c seed) appendBody(b []byte) []byte {
	b = appendUint(b, uint64(len(c.Settings)))
	for _, s := range c.Settings {
		b = s.appendBody(b)
	}
	b = appendUint(b, uint64(len(c.Topics)))
	for _, t := range c.Topics {
		b = t.appendBody(b)
	}
	return b
}

func (d *decoder) seed(kind CommandType) (c seed) {
	for range d.count(2) {
		c.Settings = append(c.Settings, d.setSetting())
	}
	for range d.count(16 + 2) {
		c.Topics = append(c.Topics, d.createTopicBody())
	}
	if d.err == nil && c.kind() != kind {
		d.fail("a seed in a command of type %d", kind)
	}
	return c
}

func (c seed) check() error {
	for i, s := range c.Settings {
		if err := s.check(); err != nil {
			return err
		}
		if s.Value == "" || i > 0 && c.Settings[i-1].Key >= s.Key {
			return invalid("InitialState.Settings", s.Key, "distinct keys with values")
		}
	}
	names, incarnations := map[string]bool{}, map[raftlog.Incarnation]bool{}
	for _, t := range c.Topics {
		if err := t.check(); err != nil {
			return err
		}
		if name := foldName(t.Name); names[name] || incarnations[t.Incarnation] {
			return invalid("InitialState.Topics", t.Name, "distinct names and incarnations")
		}
		names[foldName(t.Name)], incarnations[t.Incarnation] = true, true
	}
	if n := len(c.appendBody(nil)); n > maxCommandBytes {
		return invalid("InitialState", fmt.Sprintf("%d bytes", n), "up to %d bytes, encoded", maxCommandBytes)
	}
	return nil
}

// apply is all or nothing. A topic or a setting that somebody made before is
// left as it is.
func (c seed) apply(t *tx) (any, error) {
	if _, done := record(t, []byte{tableSeeded}, func(d *decoder) bool { d.version(recordVersion); return true }); done {
		return false, nil
	}
	for _, s := range c.Settings {
		if b, err := t.get(keyString(tableSetting, s.Key)); err != nil {
			t.fail(err)
		} else if b == nil {
			t.put(keyString(tableSetting, s.Key), []byte(s.Value))
		}
	}
	for _, topic := range c.Topics {
		if _, taken := t.named(topic.Name); taken {
			continue
		}
		if _, refusal := topic.apply(t); refusal != nil {
			return nil, refusal
		}
	}
	t.put([]byte{tableSeeded}, []byte{recordVersion})
	return true, nil
}

// Seed gives a new cluster its initial state, all of it or, on any error, none;
// once: if it was seeded before, by whoever, it says false. A topic or a setting
// that exists is left as it is. Errors as of CreateTopic.
func (s *Store) Seed(ctx context.Context, state InitialState) (seeded bool, err error) {
	c := seed{}
	for _, key := range slices.Sorted(maps.Keys(state.Settings)) {
		c.Settings = append(c.Settings, setSetting{key, state.Settings[key]})
	}
	for _, spec := range state.Topics {
		if spec.Incarnation.IsZero() {
			if spec.Incarnation, err = s.randomIncarnation(); err != nil {
				return false, err
			}
		}
		c.Topics = append(c.Topics, createTopic{spec.Incarnation, spec.Name, spec.Config})
	}
	v, err := s.propose(ctx, c)
	if err != nil {
		return false, err
	}
	seeded, ok := v.(bool)
	if !ok {
		return false, errNoValue
	}
	return seeded, nil
}

// randomIncarnation draws the incarnation of a topic to be.
func (s *Store) randomIncarnation() (i raftlog.Incarnation, err error) {
	if _, err := io.ReadFull(s.config.Rand, i[:]); err != nil {
		return i, raftlog.Retry(fmt.Errorf("metastore: random incarnation: %w", err))
	}
	return i, nil
}
