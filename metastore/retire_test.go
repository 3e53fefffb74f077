package metastore

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/raftlog"
)

// retired returns a state of version 3 with a topic that is in a state, by its first
// deletion with a grace, from 1,000 to 61,000.
func retiredState(t *testing.T, s TopicState) memView {
	v := seeded(t, testGenesis(3)).atTwo(t)
	v.do(t, setVersion{3}, createTopic{inc(1), "Orders", TopicConfig{Partitions: 2}})
	way := map[TopicState][]command{
		TopicActive:    {retireTopic{inc(1), 1, 1000, 61_000}, stepTopic{inc(1), 1, TopicRestoring, 0}, stepTopic{inc(1), 1, TopicActive, 0}},
		TopicRetiring:  {retireTopic{inc(1), 1, 1000, 61_000}},
		TopicRetired:   {retireTopic{inc(1), 1, 1000, 61_000}, stepTopic{inc(1), 1, TopicRetired, 0}},
		TopicRestoring: {retireTopic{inc(1), 1, 1000, 61_000}, stepTopic{inc(1), 1, TopicRestoring, 0}},
		TopicDeleting:  {retireTopic{inc(1), 1, 1000, 61_000}, topicDeleting{inc(1)}},
		TopicDeleted:   {retireTopic{inc(1), 1, 1000, 61_000}, topicDeleting{inc(1)}, topicDeleted{inc(1)}},
	}
	v.do(t, way[s]...)
	head, _ := newTx(v).topic(inc(1))
	if s != TopicDeleted {
		require.Equal(t, s, head.State)
	}
	return v
}

// Property: I11, X1, C6, I1 (red: a topic that was deleted once more kept the number of its deletion; a late copy of a deletion named what it was decided from, and deleted again what was brought back; a purge did not look at the deadline, nor whether the topic is being brought back; a later deletion with a shorter grace took back the longer one)
//
// Every command on every state, as a late copy would come, too: what it leads to, or
// why not. Two commands on a state always end as their order says: who comes second
// is refused, or has nothing to do.
func TestTopicsAreRetiredAndBroughtBack(t *testing.T) {
	var (
		retire   = retireTopic{inc(1), 1, 1000, 61_000}
		longer   = retireTopic{inc(1), 1, 2000, 100_000}
		shorter  = retireTopic{inc(1), 1, 3000, 5000}
		second   = retireTopic{inc(1), 2, 70_000, 80_000}
		sealed   = stepTopic{inc(1), 1, TopicRetired, 0}
		restore  = stepTopic{inc(1), 1, TopicRestoring, 0}
		restored = stepTopic{inc(1), 1, TopicActive, 0}
		purge    = stepTopic{inc(1), 1, TopicDeleting, 61_000}
		early    = stepTopic{inc(1), 1, TopicDeleting, 60_999}
		next     = stepTopic{inc(1), 2, TopicRestoring, 0}
		deleting = topicDeleting{inc(1)}
		deleted  = topicDeleted{inc(1)}
	)
	type outcome struct {
		state TopicState // 0: as it was
		err   error
		until Stamp // 0: as it was
	}
	none, stale := outcome{}, outcome{err: ErrStale}
	to := func(s TopicState) outcome { return outcome{state: s} }
	gone, late := outcome{err: ErrTopicNotFound}, outcome{err: ErrTopicDeleting}
	commands := []command{retire, longer, shorter, second, sealed, restore, restored, purge, early, next, deleting, deleted}
	for state, want := range map[TopicState][]outcome{
		//              retire longer                shorter second                          sealed            restore             restored         purge              early  next   deleting           deleted
		TopicActive:    {stale, stale, stale, {TopicRetiring, nil, 80_000}, stale, none, none, stale, stale, stale, to(TopicDeleting), {err: raftlog.ErrRefused}},
		TopicRetiring:  {none, {until: 100_000}, none, {until: 80_000}, to(TopicRetired), to(TopicRestoring), stale, to(TopicDeleting), stale, stale, to(TopicDeleting), {err: raftlog.ErrRefused}},
		TopicRetired:   {none, {until: 100_000}, none, {until: 80_000}, none, to(TopicRestoring), stale, to(TopicDeleting), stale, stale, to(TopicDeleting), {err: raftlog.ErrRefused}},
		TopicRestoring: {stale, stale, stale, {TopicRetiring, nil, 80_000}, stale, none, to(TopicActive), stale, stale, stale, to(TopicDeleting), {err: raftlog.ErrRefused}},
		TopicDeleting:  {late, late, late, late, late, late, late, none, none, stale, none, to(TopicDeleted)},
		TopicDeleted:   {gone, gone, gone, gone, gone, gone, gone, none, none, gone, none, none},
	} {
		for i, c := range commands {
			v := retiredState(t, state)
			before, _ := newTx(v).topic(inc(1))
			got, refusal := v.decided(t, c)
			after, lives := newTx(v).topic(inc(1))
			if w := want[i]; state == TopicDeleting && c == next {
				require.ErrorIs(t, refusal, ErrTopicDeleting, "%v, %T %+v", state, c, c)
			} else if w.err != nil {
				require.ErrorIs(t, refusal, w.err, "%v, %T %+v", state, c, c)
				require.Equal(t, before, after, "%v, %T %+v", state, c, c)
			} else {
				require.NoError(t, refusal, "%v, %T %+v", state, c, c)
				switch {
				case w.state == 0:
					require.Equal(t, before.State, after.State, "%v, %T %+v", state, c, c)
				case w.state == TopicDeleted:
					require.False(t, lives)
				default:
					require.Equal(t, w.state, after.State, "%v, %T %+v", state, c, c)
				}
				if w.until != 0 {
					require.Equal(t, w.until, after.Deletion.Until)
					require.Equal(t, c.(retireTopic).Number, after.Deletion.Number, "%v, %T %+v", state, c, c)
					if w.state == 0 {
						require.Equal(t, Stamp(1000), after.Deletion.At)
					}
				} else if w.state == 0 {
					require.Equal(t, before.Deletion, after.Deletion, "%v, %T %+v", state, c, c)
				}
				if topic, ok := got.(*Topic); ok {
					require.Equal(t, after, topicHead{topic.State, topic.Name, topic.Config, topic.Deletion})
					require.Len(t, topic.Partitions, 2)
				}
			}
			_, again := v.decided(t, c) // the state does what it did, or nothing
			if refusal == nil {
				require.NoError(t, again, "%v, %T %+v twice", state, c, c)
			}
			twice, _ := newTx(v).topic(inc(1))
			require.Equal(t, after, twice, "%v, %T %+v twice", state, c, c)
		}
	}
}

// Property: I11, P9 (red: a topic was retired only for the number of its last deletion; the number that it is closed for followed the last deletion, or stayed when it was brought back, or recovered)
//
// A topic is deleted again and again while it is being closed: who closes it for the
// first of these deletions gets done. What was asked before to bring it back is passed,
// and so is what closed it once it was brought back, or recovered.
func TestATopicThatIsDeletedAgainIsClosedForTheFirst(t *testing.T) {
	v := retiredState(t, TopicRetiring)
	for n := uint64(2); n < 5; n++ {
		v.do(t, retireTopic{inc(1), n, 2000, 62_000})
		require.ErrorIs(t, v.refuses(t, stepTopic{inc(1), n, TopicRetired, 0}), ErrStale, "none is closed for that")
		require.ErrorIs(t, v.refuses(t, stepTopic{inc(1), n - 1, TopicRestoring, 0}), ErrStale)
	}
	v.do(t, stepTopic{inc(1), 1, TopicRetired, 0})
	head := func() topicHead { h, _ := newTx(v).topic(inc(1)); return h }
	require.Equal(t, TopicRetired, head().State)
	require.Equal(t, Deletion{4, 1, 1000, 62_000}, head().Deletion)
	require.ErrorIs(t, v.refuses(t, stepTopic{inc(1), 1, TopicRestoring, 0}), ErrStale)
	v.do(t, stepTopic{inc(1), 4, TopicRestoring, 0}, retireTopic{inc(1), 5, 3000, 63_000})
	require.Equal(t, Deletion{5, 5, 3000, 63_000}, head().Deletion)
	require.ErrorIs(t, v.refuses(t, stepTopic{inc(1), 1, TopicRetired, 0}), ErrStale)
	v.do(t, stepTopic{inc(1), 5, TopicRestoring, 0}, stepTopic{inc(1), 5, TopicActive, 0})
	require.Equal(t, Deletion{Number: 5}, head().Deletion)
	v.do(t, retireTopic{inc(1), 6, 4000, 64_000}, recovery{1, [16]byte{1}, 3000, []RecoveredMember{{1, raftlog.Nonce{1}, 1<<48 + 1}}, []ForcedGroup{{2, 14}, {3, 15}}, nil})
	require.ErrorIs(t, v.refuses(t, stepTopic{inc(1), 6, TopicRetired, 0}), ErrStale)
	v.do(t, stepTopic{inc(1), makeID(1, 1), TopicRetired, 0})
}

// Property: I3, I4 (red: the name of a retired topic was taken for that of one that exists, which a caller may take for success)
//
// A name is taken until the topic is gone, in whatever case of letters, and who wants
// it is told until when, and what can be done.
func TestARetiredTopicKeepsItsName(t *testing.T) {
	for _, name := range []string{"Orders", "orders"} {
		for _, state := range []TopicState{TopicRetiring, TopicRetired} {
			err := retiredState(t, state).refuses(t, createTopic{inc(2), name, TopicConfig{}})
			var retired *TopicRetiredError
			require.ErrorAs(t, err, &retired)
			require.Equal(t, &TopicRetiredError{"Orders", inc(1), 1000, 61_000}, retired)
			require.NotErrorIs(t, err, ErrTopicExists)
			require.Equal(t, raftlog.OutcomeRefused, raftlog.OutcomeOf(err))
			require.Contains(t, err.Error(), `"Orders" was deleted at 1970-01-01T00:00:01Z and keeps its name until 1970-01-01T00:01:01Z`)
			require.ErrorAs(t, retiredState(t, state).refuses(t, setRetention{inc(1), Retention{}}), &retired)
		}
		require.ErrorIs(t, retiredState(t, TopicRestoring).refuses(t, createTopic{inc(2), name, TopicConfig{}}), ErrTopicExists)
		require.ErrorIs(t, retiredState(t, TopicDeleting).refuses(t, createTopic{inc(2), name, TopicConfig{}}), ErrTopicDeleting)
		retiredState(t, TopicDeleted).do(t, createTopic{inc(2), name, TopicConfig{}})
	}
	require.ErrorIs(t, retiredState(t, TopicRestoring).refuses(t, setRetention{inc(1), Retention{}}), ErrTopicRestoring)
}

// Property: D1, M1, R33 (red: a move of a retired topic was refused as that of one that is deleted; the number of a deletion went on from before a recovery)
//
// What is retired is kept: it counts as load and toward the limit of partitions, and
// its replicas move, so that a node can leave. The number of a deletion after a
// forced recovery is above all that were given out before it.
func TestARetiredTopicIsKept(t *testing.T) {
	for _, state := range []TopicState{TopicRetiring, TopicRetired, TopicRestoring} {
		v := retiredState(t, state)
		x := newTx(v)
		require.Equal(t, load{2, 1}, x.load(1))
		have := x.load(1).Leads + x.load(2).Leads + x.load(3).Leads
		require.NoError(t, roomFor(x, x.members(), uint32(MaxClusterPartitions-have)))
		require.Error(t, roomFor(x, x.members(), uint32(MaxClusterPartitions-have)+1), "it counts")
		v.do(t, admit{Admission{"node-4", raftlog.Nonce{4}, "host:4", NewestCommand, false, 0, 0}, 1000})
		p := newTx(v).partition(inc(1), 0)
		moved := v.do(t, startMove{MoveRequest{inc(1), 0, 0, 4, p.Replicas[2].Replica}, 1}).(Partition)
		v.do(t, finishMove{endMove{inc(1), 0, 1, moved.Target.Add.Replica}})
		_, on := newTx(v).partition(inc(1), 0).On(4)
		require.True(t, on)
	}

	v := retiredState(t, TopicActive)
	v.do(t, recovery{1, [16]byte{1}, 3000, []RecoveredMember{{1, raftlog.Nonce{1}, 1<<48 + 1}}, []ForcedGroup{{2, 14}, {3, 15}}, nil})
	require.ErrorIs(t, v.refuses(t, retireTopic{inc(1), 2, 5000, 65_000}), ErrStale)
	v.do(t, retireTopic{inc(1), makeID(1, 1), 5000, 65_000}, stepTopic{inc(1), makeID(1, 1), TopicRestoring, 0}, stepTopic{inc(1), makeID(1, 1), TopicActive, 0},
		retireTopic{inc(1), makeID(1, 2), 5000, 65_000})
}

// Property: C9, P9 (red: the command was proposed at version 2)
func TestAGraceHasBoundsAndAVersion(t *testing.T) {
	v := seeded(t, testGenesis(3)).atTwo(t)
	v.do(t, createTopic{inc(1), "orders", TopicConfig{}})
	for _, c := range []command{retireTopic{inc(1), 1, 1000, 61_000}, stepTopic{inc(1), 1, TopicRestoring, 0}} {
		require.Equal(t, &ClusterVersionError{Needs: 3, Has: 2}, v.refuses(t, c))
		require.Equal(t, uint64(3), c.kind().needs())
		require.True(t, essential(encodeCommand(c)), "on a full disk, too")
		require.True(t, mayRepeat(c))
	}
	most := Stamp(MaxDeleteGrace.Milliseconds())
	for _, bad := range []retireTopic{
		{inc(1), 1, 1000, 1000}, {inc(1), 1, 1000, 1999}, {inc(1), 1, 1000, 500}, {inc(1), 1, 1000, 1001 + most}, {inc(1), 1, 0, math.MaxUint64},
	} {
		var invalid *InvalidError
		require.ErrorAs(t, bad.check(), &invalid, "%+v", bad)
	}
	require.NoError(t, retireTopic{inc(1), 1, 1000, 2000}.check())
	require.NoError(t, retireTopic{inc(1), 1, 1000, 1000 + most}.check())
	require.Error(t, checkGrace(time.Second-1))
	require.Error(t, checkGrace(MaxDeleteGrace+1))
	for _, bad := range []stepTopic{{inc(1), 1, TopicDeleted, 0}, {inc(1), 1, TopicRetiring, 0}, {inc(1), 1, 99, 0}, {inc(1), 1, TopicActive, 1}} {
		require.ErrorIs(t, bad.check(), raftlog.ErrRefused)
	}
	v.do(t, setVersion{3})
	require.ErrorIs(t, v.refuses(t, stepTopic{inc(1), 0, TopicRestoring, 0}), ErrStale, "it was never deleted")
	require.ErrorIs(t, v.refuses(t, stepTopic{inc(1), 0, TopicActive, 0}), ErrStale)
	require.ErrorIs(t, v.refuses(t, stepTopic{inc(9), 1, TopicRestoring, 0}), ErrTopicNotFound)
	require.ErrorIs(t, v.refuses(t, retireTopic{inc(9), 1, 1000, 61_000}), ErrTopicNotFound)
}
