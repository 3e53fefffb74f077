package metastore

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/raftlog"
)

// Property: J19 (red: the mark was not written; a setting that exists was overwritten)
func TestAClusterIsSeededOnce(t *testing.T) {
	v := seeded(t, testGenesis(3)).atTwo(t)
	v.do(t, createTopic{inc(1), "Orders", TopicConfig{Partitions: 2}}, setSetting{"region", "north"})
	first := seed{
		[]setSetting{{"color", "red"}, {"region", "south"}},
		[]createTopic{{inc(5), "orders", TopicConfig{}}, {inc(6), "mails", TopicConfig{Partitions: 4, MaxRecordBytes: 1 << 10}}},
	}
	require.Equal(t, true, v.do(t, first))
	require.Equal(t, "red", string(v["scolor"]))
	require.Equal(t, "north", string(v["sregion"]), "what somebody made before stays")
	i, _ := newTx(v).named("orders")
	require.Equal(t, inc(1), i)
	c, err := loadCatalog(v)
	require.NoError(t, err)
	require.Len(t, c.topics[inc(6)].Partitions, 4)

	v.do(t, topicDeleting{inc(6)}, topicDeleted{inc(6)}, setSetting{"color", ""})
	before, err := stateHash(v)
	require.NoError(t, err)
	require.Equal(t, false, v.do(t, first), "a retry")
	require.Equal(t, false, v.do(t, seed{[]setSetting{{"color", "blue"}}, nil}), "another host")
	after, err := stateHash(v)
	require.NoError(t, err)
	require.Equal(t, before, after)
}

func TestASeedIsAllOrNothing(t *testing.T) {
	topic := createTopic{inc(5), "orders", TopicConfig{}}
	for name, c := range map[string]seed{
		"too many replicas": {[]setSetting{{"a", "1"}}, []createTopic{topic, {inc(6), "mails", TopicConfig{Replicas: 4}}}},
		"a bad name":        {nil, []createTopic{topic, {inc(6), "a/b", TopicConfig{}}}},
		"one name twice":    {nil, []createTopic{topic, {inc(6), "Orders", TopicConfig{}}}},
		"one incarnation":   {nil, []createTopic{topic, {inc(5), "mails", TopicConfig{}}}},
		"one key twice":     {[]setSetting{{"a", "1"}, {"a", "2"}}, nil},
		"no order":          {[]setSetting{{"b", "1"}, {"a", "2"}}, nil},
		"no value":          {[]setSetting{{"a", ""}}, nil},
		"too large": {[]setSetting{{"a", strings.Repeat("x", maxSettingValue)}, {"b", "1"}}, func() []createTopic {
			all := make([]createTopic, 6000)
			for i := range all {
				all[i] = createTopic{inc(i + 1), strings.Repeat("n", 170) + string(rune('a'+i%26)) + inc(i).String()[24:], TopicConfig{}}
			}
			return all
		}()},
	} {
		v := seeded(t, testGenesis(3)).atTwo(t)
		err := v.refuses(t, c)
		require.ErrorIs(t, err, raftlog.ErrRefused, name)
		require.Equal(t, true, v.do(t, seed{nil, []createTopic{topic}}), "%s: it can be made good", name)
	}
}
