package metastore

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Property: S9, C9, I1 (red: a topic that is being deleted was changed; the catalog was not told)
func TestRetentionIsSetByIncarnation(t *testing.T) {
	v := seeded(t, testGenesis(3)).atTwo(t)
	v.do(t, setVersion{3}, createTopic{inc(1), "orders", TopicConfig{Partitions: 2, MaxRecordBytes: 100}})
	c, err := loadCatalog(v)
	require.NoError(t, err)
	keep := Retention{Age: time.Hour, Bytes: 1 << 40}
	x := newTx(v)
	got, refusal, err := decide(x, setRetention{inc(1), keep})
	require.NoError(t, errOf(refusal, err))
	require.NoError(t, c.follow(x.changes, x.news()))
	require.Equal(t, keep, c.topics[inc(1)].Config.Retention)
	require.Equal(t, c.topics[inc(1)], got, "what is shown is what was answered")
	require.Same(t, c.topics[inc(1)], c.names["orders"])
	v.do(t, setRetention{inc(1), keep}, setRetention{inc(1), keep})
	again, err := loadCatalog(v)
	require.NoError(t, err)
	require.Equal(t, c.topics, again.topics)

	v.do(t, topicDeleting{inc(1)})
	require.ErrorIs(t, v.refuses(t, setRetention{inc(1), Retention{}}), ErrTopicDeleting)
	v.do(t, topicDeleted{inc(1)}, createTopic{inc(2), "orders", TopicConfig{}})
	require.ErrorIs(t, v.refuses(t, setRetention{inc(1), keep}), ErrTopicNotFound, "its successor is left alone")
	head, _ := newTx(v).topic(inc(2))
	require.True(t, head.Config.Retention.IsZero())
}

func errOf(refusal, err error) error {
	if err != nil {
		return err
	}
	return refusal
}

// A build that does not know retention stops at what sets it, and everything else
// is written as it writes it.
//
// Property: C9 (red: a retention was in a command of an older type; real older builds: internal/campaign -story upgrade)
func TestRetentionIsOfCommandsOfItsOwn(t *testing.T) {
	kept := TopicConfig{Retention: Retention{Age: time.Second}}
	require.Equal(t, typeCreateRetained, createTopic{inc(1), "kept", kept}.kind())
	require.Equal(t, typeSeedRetained, seed{nil, []createTopic{{inc(1), "plain", TopicConfig{}}, {inc(2), "kept", kept}}}.kind())
	require.Equal(t, typeSeed, seed{nil, []createTopic{{inc(1), "plain", TopicConfig{}}}}.kind())
	for _, c := range []command{
		createTopic{inc(1), "kept", kept}, createTopic{inc(1), "plain", TopicConfig{}}, createTopic{inc(1), "small", TopicConfig{MaxRecordBytes: 1}},
		seed{nil, []createTopic{{inc(2), "kept", kept}}}, seed{nil, []createTopic{{inc(2), "plain", TopicConfig{}}}},
	} {
		require.False(t, essential(encodeCommand(c)), "it brings records")
		for _, kind := range []CommandType{typeCreateTopic, typeCreateLimited, typeCreateRetained, typeSeed, typeSeedRetained} {
			other := encodeCommand(c)
			other[1] = byte(kind)
			_, err := decodeCommand(other, NewestCommand)
			require.Equal(t, kind == c.kind(), err == nil, "%T of type %d: %v", c, kind, err)
		}
	}
	require.True(t, essential(encodeCommand(setRetention{inc(1), Retention{}})), "it helps a full disk")
	v := seeded(t, testGenesis(3)).atTwo(t)
	require.Equal(t, &ClusterVersionError{Needs: 3, Has: 2}, v.refuses(t, createTopic{inc(1), "kept", kept}))
}
