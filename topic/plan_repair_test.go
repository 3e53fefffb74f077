package topic_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/topic"
)

// TestPlannedRepairs: partitions that a recovery left with too few replicas get
// more, before anything else is moved.
func TestPlannedRepairs(t *testing.T) {
	for name, c := range map[string]struct {
		members, topics string
		limit           int
		want            string
	}{
		"enough":                       {"1 2 3", "a:123 231", 8, ""},
		"one more, one at a time":      {"1 2 3", "a:1", 8, "a/0 0>2 repair"},
		"where least is":               {"1 2 3", "a:1 123 12", 8, "a/0 0>3 repair, a/2 0>3 repair"},
		"none on the dead or draining": {"1 2dead 3drains", "a:1", 8, ""},
		"one that comes counts":        {"1 2 3", "a:12>3", 8, ""},
		"nothing to copy":              {"1 2 3", "a:- 123", 8, ""},
		"before who drains is emptied": {"1 2drains 3 4", "a:123 1", 1, "a/1 0>4 repair"},
		"and not beside it":            {"1 2drains 3 4 5", "a:12", 8, "a/0 0>3 repair"},
		"no more than there may be":    {"1 2 3", "a:1 1 1", 2, "a/0 0>2 repair, a/1 0>3 repair"},
	} {
		ms, ts := world(c.members, c.topics)
		for i := range ts {
			ts[i].Config.Replicas = 3
			for k := range ts[i].Partitions {
				if p := &ts[i].Partitions[k]; p.Replicas[0].Node > 9 { // "-"
					p.Replicas = nil
				}
			}
		}
		require.Equal(t, c.want, told(topic.Planned(ms, ts, c.limit)), name)
	}
}
