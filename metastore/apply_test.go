package metastore

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

func TestGenesisIsTheStateAtIndexOne(t *testing.T) {
	g := testGenesis(3)
	v := seeded(t, g)
	x := newTx(v)
	at, ok := x.applied()
	require.True(t, ok)
	require.Equal(t, applied{1, 1, raftlog.ConfState{Voters: []raftlog.ReplicaID{11, 12, 13}}}, at)
	require.Equal(t, g.Members, x.members())
	require.Equal(t, cluster{g.ClusterID, 0, firstVersion}, x.cluster())

	_, err := v.decided(t, g)
	require.ErrorIs(t, err, raftlog.ErrRefused, "only an empty state has a genesis")
}

func TestGenesisOfManyMembersHasFiveVoters(t *testing.T) {
	conf := testGenesis(7).Begin().Conf
	require.Equal(t, []raftlog.ReplicaID{11, 12, 13, 14, 15}, conf.Voters)
	require.Equal(t, []raftlog.ReplicaID{16, 17}, conf.Learners)
}

func TestGenesisRefusesWhatNoFounderMakes(t *testing.T) {
	for name, change := range map[string]func(*Genesis){
		"no members":      func(g *Genesis) { g.Members = nil },
		"no cluster id":   func(g *Genesis) { g.ClusterID = raftlog.ClusterID{} },
		"node 0":          func(g *Genesis) { g.Members[1].Node = 0 },
		"one node twice":  func(g *Genesis) { g.Members[1].Node = g.Members[0].Node },
		"one nonce twice": func(g *Genesis) { g.Members[1].Nonce = g.Members[0].Nonce },
		"one name twice":  func(g *Genesis) { g.Members[1].Name = g.Members[0].Name },
		"other epoch":     func(g *Genesis) { g.Epoch = 3 },
		"large epoch":     func(g *Genesis) { g.Epoch = 1 << 16 },
		"long name":       func(g *Genesis) { g.Members[0].Name = strings.Repeat("n", 256) },
	} {
		g := testGenesis(3)
		change(&g)
		require.ErrorIs(t, g.check(), raftlog.ErrRefused, name)
	}
}

func TestCreateTopicPlacesAndNumbers(t *testing.T) {
	v := seeded(t, testGenesis(3))
	got, err := v.decided(t, createTopic{inc(1), "orders", TopicConfig{Partitions: 4, Replicas: 2}})
	require.NoError(t, err)
	topic := got.(*Topic)
	require.Equal(t, TopicConfig{Partitions: 4, Replicas: 2, MaxBatchBytes: 1 << 20, MaxRecordBytes: MaxRecordBytes}, topic.Config)
	require.Equal(t, TopicActive, topic.State)
	require.Equal(t, Partition{Index: 0, Group: 2, Replicas: []Assignment{{14, 1}, {15, 2}}}, topic.Partitions[0])
	require.Equal(t, Partition{Index: 3, Group: 5, Replicas: []Assignment{{20, 1}, {21, 3}}}, topic.Partitions[3])

	got, err = v.decided(t, createTopic{inc(2), "payments", TopicConfig{}})
	require.NoError(t, err)
	require.Equal(t, TopicConfig{Partitions: 1, Replicas: 3, MaxBatchBytes: 1 << 20, MaxRecordBytes: MaxRecordBytes}, got.(*Topic).Config)
	require.Equal(t, raftlog.GroupID(6), got.(*Topic).Partitions[0].Group)
}

func TestDefaultReplicasAreNoMoreThanMembers(t *testing.T) {
	got, err := seeded(t, testGenesis(1)).decided(t, createTopic{inc(1), "orders", TopicConfig{}})
	require.NoError(t, err)
	require.Len(t, got.(*Topic).Partitions[0].Replicas, 1)
}

func TestIdsCarryTheRecoveryEpoch(t *testing.T) {
	g := testGenesis(1)
	g.Epoch = 3
	g.Members[0].Node = raftlog.NodeID(makeID(3, 9))
	g.Members[0].Replica = raftlog.ReplicaID(makeID(3, 40))
	v := seeded(t, g)
	got, err := v.decided(t, createTopic{inc(1), "orders", TopicConfig{}})
	require.NoError(t, err)
	p := got.(*Topic).Partitions[0]
	require.Equal(t, raftlog.GroupID(makeID(3, 2)), p.Group)
	require.Equal(t, raftlog.ReplicaID(makeID(3, 41)), p.Replicas[0].Replica)
	got, err = v.decided(t, allocateProducer{})
	require.NoError(t, err)
	require.Equal(t, ProducerID(makeID(3, 1)), got.(producer).ID)
}

func TestCreateTopicRefusals(t *testing.T) {
	field := func(name string) func(*testing.T, error) {
		return func(t *testing.T, err error) {
			var invalid *InvalidError
			require.ErrorAs(t, err, &invalid)
			require.Equal(t, name, invalid.Field)
			require.ErrorIs(t, err, raftlog.ErrRefused)
		}
	}
	is := func(want error) func(*testing.T, error) {
		return func(t *testing.T, err error) { require.ErrorIs(t, err, want) }
	}
	long := strings.Repeat("a", 180)
	for _, c := range []struct {
		command createTopic
		want    func(*testing.T, error)
	}{
		{createTopic{inc(9), "", TopicConfig{}}, field("Topic.Name")},
		{createTopic{inc(9), long, TopicConfig{}}, field("Topic.Name")},
		{createTopic{inc(9), "a@b", TopicConfig{}}, field("Topic.Name")},
		{createTopic{inc(9), "a/b", TopicConfig{}}, field("Topic.Name")},
		{createTopic{inc(9), "..", TopicConfig{}}, field("Topic.Name")},
		{createTopic{inc(9), "ä", TopicConfig{}}, field("Topic.Name")},
		{createTopic{inc(9), "../x", TopicConfig{}}, field("Topic.Name")},
		{createTopic{inc(9), strings.Repeat("a", 300), TopicConfig{}}, field("Topic.Name")},
		{createTopic{inc(9), "a", TopicConfig{Partitions: 10_001}}, field("TopicConfig.Partitions")},
		{createTopic{inc(9), "a", TopicConfig{Partitions: 1_000_000}}, field("TopicConfig.Partitions")},
		{createTopic{inc(9), "a", TopicConfig{MaxRecordBytes: 16<<20 + 1}}, field("TopicConfig.MaxRecordBytes")},
		{createTopic{inc(9), "a", TopicConfig{Replicas: 4}}, field("TopicConfig.Replicas")},
		{createTopic{inc(9), "a", TopicConfig{MaxBatchBytes: 1023}}, field("TopicConfig.MaxBatchBytes")},
		{createTopic{inc(9), "a", TopicConfig{MaxBatchBytes: 16<<20 + 1}}, field("TopicConfig.MaxBatchBytes")},
		{createTopic{inc(0), "a", TopicConfig{}}, field("TopicSpec.Incarnation")},
		{createTopic{inc(9), "orders", TopicConfig{}}, is(ErrTopicExists)},
		{createTopic{inc(9), "ORDERS", TopicConfig{}}, is(ErrTopicExists)},
		{createTopic{inc(9), "leaving", TopicConfig{}}, is(ErrTopicDeleting)},
		{createTopic{inc(1), "other", TopicConfig{}}, field("TopicSpec.Incarnation")},
		{createTopic{inc(3), "gone", TopicConfig{}}, is(ErrTopicNotFound)},
	} {
		v := seeded(t, testGenesis(3))
		for i, name := range []string{"orders", "leaving", "gone"} {
			_, err := v.decided(t, createTopic{inc(i + 1), name, TopicConfig{MaxRecordBytes: 1 << 10}}) // of the newest type, which is noted
			require.NoError(t, err)
		}
		for _, d := range []command{topicDeleting{inc(2)}, topicDeleting{inc(3)}, topicDeleted{inc(3)}} {
			_, err := v.decided(t, d)
			require.NoError(t, err)
		}
		before, err := stateHash(v)
		require.NoError(t, err)
		_, err = v.decided(t, c.command)
		require.Error(t, err, "%+v", c.command)
		c.want(t, err)
		after, err := stateHash(v)
		require.NoError(t, err)
		require.Equal(t, before, after, "a refused command changes nothing: %+v", c.command)
	}
}

func TestTheLimitsThemselvesAreAllowed(t *testing.T) {
	v := seeded(t, testGenesis(3))
	got, err := v.decided(t, createTopic{inc(1), strings.Repeat("a", 179), TopicConfig{Partitions: 10_000, Replicas: 3, MaxBatchBytes: 16 << 20}})
	require.NoError(t, err)
	require.Len(t, got.(*Topic).Partitions, 10_000)
	_, err = v.decided(t, createTopic{inc(2), "A.b_c-9", TopicConfig{Partitions: 1, Replicas: 1, MaxBatchBytes: 1024}})
	require.NoError(t, err)
}

// TestAClusterHasALimitOfPartitions: decided where the command is applied, from
// the state alone, so that all replicas refuse the same one.
//
// Property: R11 (red: the partitions of other topics did not count; other commands: TestCommandsDoWhatTheModelSays)
func TestAClusterHasALimitOfPartitions(t *testing.T) {
	v := seeded(t, testGenesis(3))
	decided := func(c command) (any, error) { // the invariants of so large a state take too long
		x := newTx(v)
		value, refusal, err := decide(x, c)
		require.NoError(t, err)
		v.commit(x)
		return value, refusal
	}
	full := MaxClusterPartitions / MaxPartitions
	for i := range full - 1 {
		_, err := decided(createTopic{inc(i + 1), fmt.Sprint("topic-", i), TopicConfig{Partitions: MaxPartitions, Replicas: 1}})
		require.NoError(t, err)
	}
	_, err := decided(createTopic{inc(50), "nearly", TopicConfig{Partitions: MaxPartitions - 1, Replicas: 1}})
	require.NoError(t, err)
	_, err = decided(createTopic{inc(51), "over", TopicConfig{Partitions: 2}})
	require.Equal(t, &InvalidError{"TopicConfig.Partitions", "2", "1 to 1: the cluster has 99999, and up to 100000 in all topics together"}, err)
	_, err = decided(createTopic{inc(52), "last", TopicConfig{}})
	require.NoError(t, err)
	_, err = decided(createTopic{inc(51), "over", TopicConfig{}})
	require.ErrorIs(t, err, raftlog.ErrRefused)
	for _, c := range []command{topicDeleting{inc(50)}, topicDeleted{inc(50)}, createTopic{inc(51), "over", TopicConfig{Partitions: 2}}} {
		_, err = decided(c)
		require.NoError(t, err)
	}
}

// TestALimitOfRecordsIsOfACommandOfItsOwn: a build that does not know of it must
// stop, and all else is written as that build writes it.
//
// Property: C9 (red: the limit was in a command of the older type; real older builds: internal/campaign -story upgrade)
func TestALimitOfRecordsIsOfACommandOfItsOwn(t *testing.T) {
	v := seeded(t, testGenesis(3))
	limited := createTopic{inc(1), "small", TopicConfig{MaxRecordBytes: 100}}
	require.Equal(t, typeCreateLimited, limited.kind())
	require.Equal(t, typeCreateTopic, createTopic{inc(2), "large", TopicConfig{MaxRecordBytes: MaxRecordBytes}}.kind())
	got, err := v.decided(t, limited)
	require.NoError(t, err)
	require.EqualValues(t, 100, got.(*Topic).Config.MaxRecordBytes)
	got, err = v.decided(t, createTopic{inc(2), "large", TopicConfig{}})
	require.NoError(t, err)
	require.EqualValues(t, MaxRecordBytes, got.(*Topic).Config.MaxRecordBytes, "the default is filled in")
	c, err := loadCatalog(v)
	require.NoError(t, err)
	for _, topic := range c.topics {
		require.Contains(t, []uint32{100, MaxRecordBytes}, topic.Config.MaxRecordBytes)
	}
	older := encodeCommand(createTopic{inc(3), "x", TopicConfig{}})
	older[1] = byte(typeCreateLimited)
	_, err = decodeCommand(older, NewestCommand)
	require.ErrorIs(t, err, errMalformed, "one form of each command")
	newer := encodeCommand(limited)
	newer[1] = byte(typeCreateTopic)
	_, err = decodeCommand(newer, NewestCommand)
	require.ErrorIs(t, err, errMalformed)
}

func TestTopicNamesAreThoseThatStorageTakes(t *testing.T) {
	names := []string{"", ".", "..", "...", "a", strings.Repeat("a", storage.MaxNameLength), strings.Repeat("a", storage.MaxNameLength+1), "\xff", "é"}
	for c := range 256 {
		names = append(names, "a"+string([]byte{byte(c)}))
	}
	for _, name := range names {
		require.Equal(t, storage.ValidateName(name) == nil, checkTopicName(name) == nil, "%q", name)
	}
}

func TestCreatingAnIncarnationTwiceIsOneTopic(t *testing.T) {
	v := seeded(t, testGenesis(3))
	create := createTopic{inc(1), "orders", TopicConfig{Partitions: 2}}
	first, err := v.decided(t, create)
	require.NoError(t, err)
	second, err := v.decided(t, create)
	require.NoError(t, err)
	require.Equal(t, first, second)

	_, err = v.decided(t, topicDeleting{inc(1)})
	require.NoError(t, err)
	second, err = v.decided(t, create)
	require.NoError(t, err)
	require.Equal(t, TopicDeleting, second.(*Topic).State, "as it is now")
}

func TestDeletingFreesTheNameAndTheLoad(t *testing.T) {
	v := seeded(t, testGenesis(3))
	_, err := v.decided(t, createTopic{inc(1), "orders", TopicConfig{Partitions: 3, Replicas: 2}})
	require.NoError(t, err)
	_, err = v.decided(t, topicDeleted{inc(1)})
	require.ErrorIs(t, err, raftlog.ErrRefused, "an active topic is not sealed")
	for range 2 {
		_, err = v.decided(t, topicDeleting{inc(1)})
		require.NoError(t, err)
	}
	for range 2 {
		_, err = v.decided(t, topicDeleted{inc(1)})
		require.NoError(t, err)
	}
	_, err = v.decided(t, topicDeleting{inc(1)})
	require.NoError(t, err, "it is deleted: that was wanted")
	require.Equal(t, load{}, newTx(v).load(1))
	name, dead := newTx(v).tombstone(inc(1))
	require.True(t, dead)
	require.Equal(t, "orders", name)
	for _, c := range []command{topicDeleting{inc(5)}, topicDeleted{inc(5)}} {
		_, err = v.decided(t, c)
		require.ErrorIs(t, err, ErrTopicNotFound)
	}

	again, err := v.decided(t, createTopic{inc(2), "Orders", TopicConfig{}})
	require.NoError(t, err)
	require.Equal(t, raftlog.GroupID(5), again.(*Topic).Partitions[0].Group, "ids never come back")
	require.Equal(t, raftlog.ReplicaID(20), again.(*Topic).Partitions[0].Replicas[0].Replica)
}

func TestProducers(t *testing.T) {
	v := seeded(t, testGenesis(1))
	a, b := [16]byte{0xa}, [16]byte{0xb}
	granted := func(want producer, name string, token [16]byte, held ...uint32) {
		t.Helper()
		c := allocateProducer{Name: name, Token: token, Holds: len(held) > 0}
		if c.Holds {
			c.Held = held[0]
		}
		for range 2 { // a retry gets the same answer
			p, err := v.decided(t, c)
			require.NoError(t, err)
			require.Equal(t, want, p)
			if name == "" {
				return
			}
		}
	}
	granted(producer{1, 0}, "", [16]byte{})
	granted(producer{2, 0}, "billing", a)
	granted(producer{3, 0}, "", [16]byte{})
	granted(producer{2, 1}, "billing", a, 0)
	granted(producer{2, 2}, "billing", a, 1)
	granted(producer{2, 3}, "billing", b)
	for _, held := range []uint32{0, 2, 3, 9} { // the one that was replaced, whatever it holds
		_, err := v.decided(t, allocateProducer{"billing", a, held, true})
		require.Equal(t, &ProducerFencedError{"billing", held, 3}, err)
		require.ErrorIs(t, err, raftlog.ErrRefused)
	}
	granted(producer{2, 4}, "billing", b, 3)
	_, err := v.decided(t, allocateProducer{"billing", b, 2, true})
	require.Error(t, err, "a copy that comes late moves nothing")
	granted(producer{2, 5}, "billing", b, 4)
	_, err = v.decided(t, allocateProducer{"other", a, 0, true})
	require.Error(t, err, "nobody has that name")

	for _, held := range [][]uint32{{math.MaxUint32}, nil} { // epochs are used up: a new id
		token := a
		if held != nil {
			token = b
		}
		v[string(keyString(tableProducer, "billing"))] = namedProducer{producer{2, math.MaxUint32}, b}.encode()
		granted(producer{4, 0}, "billing", token, held...)
		v[string([]byte{tableCounter, byte(counterProducer)})] = appendUint(nil, 4)
	}
	for _, c := range []allocateProducer{{Name: strings.Repeat("x", 256), Token: a}, {Name: "billing"}} {
		var invalid *InvalidError
		_, err = v.decided(t, c)
		require.ErrorAs(t, err, &invalid)
	}
}

func TestAddressesAndSettings(t *testing.T) {
	v := seeded(t, testGenesis(2))
	_, err := v.decided(t, setAddress{2, raftlog.Nonce{2}, "elsewhere:1"})
	require.NoError(t, err)
	m, ok := newTx(v).member(2)
	require.True(t, ok)
	require.Equal(t, "elsewhere:1", m.Addr)
	require.Equal(t, raftlog.ReplicaID(12), m.Replica, "and nothing else changes")
	_, err = v.decided(t, setAddress{2, raftlog.Nonce{9}, "evil:1"})
	require.ErrorIs(t, err, ErrMemberNotFound, "another life of the name")
	_, err = v.decided(t, setAddress{7, raftlog.Nonce{7}, "evil:1"})
	require.ErrorIs(t, err, ErrMemberNotFound)
	_, err = v.decided(t, setAddress{2, raftlog.Nonce{2}, strings.Repeat("x", 262)})
	require.ErrorIs(t, err, raftlog.ErrRefused)

	_, err = v.decided(t, setSetting{"k", "v"})
	require.NoError(t, err)
	require.Equal(t, "v", string(v["sk"]))
	_, err = v.decided(t, setSetting{"k", ""})
	require.NoError(t, err)
	require.NotContains(t, v, "sk")
	_, err = v.decided(t, setSetting{"", "v"})
	require.ErrorIs(t, err, raftlog.ErrRefused)
}

func TestDamageIsNoResult(t *testing.T) {
	for _, key := range []string{"cg", "cr", "f", "k", string(keyNode(tableMember, 1)), string(keyNode(tableLoad, 1))} {
		v := seeded(t, testGenesis(1))
		v[key] = []byte{0xff}
		_, refusal, err := decide(newTx(v), createTopic{inc(1), "orders", TopicConfig{}})
		var state *StateError
		require.ErrorAs(t, err, &state, "key %q", key)
		require.NoError(t, refusal)
	}
}

func TestScanSeesWritesOverTheState(t *testing.T) {
	v := memView{"a1": []byte("1"), "a3": []byte("3"), "a4": []byte("4"), "b": []byte("5")}
	x := newTx(v)
	x.put([]byte("a0"), []byte("new"))
	x.put([]byte("a3"), []byte("changed"))
	x.put([]byte("a9"), []byte("last"))
	x.remove([]byte("a4"))
	upper := newTx(x)
	upper.put([]byte("a2"), []byte("upper"))
	var got []string
	require.NoError(t, upper.scan([]byte("a"), func(k, v []byte) error {
		got = append(got, fmt.Sprintf("%s=%s", k, v))
		return nil
	}))
	require.Equal(t, []string{"a0=new", "a1=1", "a2=upper", "a3=changed", "a9=last"}, got)
}
