package metastore

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/raftlog"
)

// barred is whether a partition takes records, as package topic has it.
type barred struct {
	last uint64
	open bool
}

// order is an entry of a partition that closes or opens it.
type order struct {
	retire bool
	number uint64
}

// apply reports whether the partition is as asked.
func (b *barred) apply(o order) bool {
	if o.number < b.last || o.retire && o.number == b.last && b.open {
		return false
	}
	*b = barred{o.number, !o.retire}
	return true
}

func (b barred) takes() bool { return b.last == 0 || b.open }

// forked is a cluster with one topic of one partition, of which all that anybody ever
// decided from old metadata may come late.
type forked struct {
	t      *testing.T
	state  memView
	part   barred
	epoch  uint64
	states []memView // that came before, and go on to state
	parts  []barred
	late   []order
}

func (f *forked) head() topicHead {
	head, ok := newTx(f.state).topic(inc(1))
	require.True(f.t, ok)
	return head
}

// orders are what whoever knows these metadata has the partition do.
func (f *forked) orders() (all []order) {
	head := f.head()
	if head.State == TopicRetiring {
		all = append(all, order{true, head.Deletion.First})
	}
	if n := takenBack(head.State, head.Deletion.Number, f.epoch); n > 0 {
		all = append(all, order{false, n})
	}
	return all
}

// step takes the metadata further, if they are such that the command says nil.
func (f *forked) step(c command) {
	before := maps.Clone(f.state)
	if _, refusal := f.state.decided(f.t, c); refusal != nil {
		f.state = before
		return
	}
	f.states = append(f.states, before)
	f.late = append(f.late, f.orders()...)
}

func (f *forked) entry(o order) bool {
	f.parts = append(f.parts, f.part)
	return f.part.apply(o)
}

// recover cuts the ends of both logs off, of whatever length.
func (f *forked) recover(rng *rand.Rand) {
	f.epoch++
	if n := rng.IntN(len(f.states) + 1); n < len(f.states) {
		f.state, f.states = f.states[n], f.states[:n]
	}
	if n := rng.IntN(2*len(f.parts) + 1); n < len(f.parts) {
		f.part, f.parts = f.parts[n], f.parts[:n]
	}
	f.states = append(f.states, maps.Clone(f.state))
	f.state.do(f.t, recovery{f.epoch, [16]byte{byte(f.epoch)}, 3000, []RecoveredMember{{1, raftlog.Nonce{1}, raftlog.ReplicaID(makeID(f.epoch, 1))}}, nil, nil})
	f.late = append(f.late, f.orders()...)
}

// Property: I11, R33, P9 (red: deletions went on under their old numbers after a recovery; a topic that was retired stayed so, of which a partition was open; the number that is taken back was that of the last deletion alone; it was one that a deletion of the epoch gets; it was told of topics that are retired)
//
// A topic is deleted with a grace and brought back, in any order, while forced
// recoveries cut the ends of the metadata's log and of the partition's, and while what
// anybody ever asked of the partition comes late, by metadata that were cut off, too.
// When the topic is retired the partition is closed, whatever comes. And it is never
// stuck: what is asked of the partition next has it be as the metadata say.
func TestNoDeletionThatStandsIsOpened(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 17))
		f := &forked{t: t, state: seeded(t, testGenesis(3)).atTwo(t)}
		f.state.do(t, setVersion{3}, createTopic{inc(1), "orders", TopicConfig{Partitions: 1}})
		var story []string
		for range 30 {
			head := f.head()
			n := head.Deletion.Number
			what := rng.IntN(12)
			switch what {
			case 0, 1, 2:
				f.step(retireTopic{inc(1), nextDeletion(n, f.epoch), 1000, 61_000})
			case 3, 4:
				if first := head.Deletion.First; head.State == TopicRetiring && f.entry(order{true, first}) {
					f.step(stepTopic{inc(1), first, TopicRetired, 0})
				}
			case 5:
				f.step(stepTopic{inc(1), n, TopicRestoring, 0})
			case 6, 7:
				if head.State == TopicRestoring && f.entry(order{false, n}) {
					f.step(stepTopic{inc(1), n, TopicActive, 0})
				}
			case 8:
				f.recover(rng)
			default:
				if len(f.late) > 0 {
					f.entry(f.late[rng.IntN(len(f.late))])
				}
			}
			now := f.head()
			story = append(story, fmt.Sprintf("%d: %v %#x, partition %+v", what, now.State, now.Deletion.Number, f.part))
			if now.State == TopicRetired {
				for _, o := range f.late {
					part := f.part
					part.apply(o)
					require.False(t, part.takes(), "seed %d: %v, then %+v", seed, story, o)
				}
			}
			for _, o := range f.orders() {
				part := f.part
				require.True(t, part.apply(o), "seed %d: %v, then %+v", seed, story, o)
				require.Equal(t, !o.retire, part.takes())
			}
			if now.State == TopicActive && len(f.orders()) == 0 {
				require.True(t, f.part.takes(), "seed %d: %v", seed, story)
			}
		}
	}
}
