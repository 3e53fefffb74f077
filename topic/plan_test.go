package topic_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/topic"
)

// world is members and topics in a line each, for tables:
//
//	members  "1 2 3dead 4drains 5=2" (a new life of 2's name)
//	topics   "a:123 231 312; b:12>4"  places by node, the first is preferred; ">" begins a move that replaces the last one
func world(members, topics string) ([]metastore.Member, []metastore.Topic) {
	var ms []metastore.Member
	for word := range strings.FieldsSeq(members) {
		m := metastore.Member{Node: raftlog.NodeID(word[0] - '0')}
		m.Liveness.Dead = strings.Contains(word, "dead")
		if strings.Contains(word, "drains") {
			m.Liveness.Departure = metastore.Drains
		}
		if _, old, ok := strings.Cut(word, "="); ok {
			m.Liveness.Replaces = raftlog.NodeID(old[0] - '0')
		}
		ms = append(ms, m)
	}
	var ts []metastore.Topic
	next := raftlog.ReplicaID(100)
	id := func() raftlog.ReplicaID { next++; return next }
	for k, line := range strings.Split(topics, ";") {
		name, places, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok {
			continue
		}
		t := metastore.Topic{Name: name, Incarnation: raftlog.Incarnation{byte(k + 1)}, State: metastore.TopicActive}
		for i, place := range strings.Fields(places) {
			holds, target, moves := strings.Cut(place, ">")
			p := metastore.Partition{Index: uint32(i), Group: raftlog.GroupID(1000*k + i + 10), Generation: 1}
			for _, n := range holds {
				p.Replicas = append(p.Replicas, metastore.Assignment{Replica: id(), Node: raftlog.NodeID(n - '0')})
			}
			if moves {
				p.Target = &metastore.Target{Add: metastore.Assignment{Replica: id(), Node: raftlog.NodeID(target[0] - '0')},
					Remove: p.Replicas[len(p.Replicas)-1].Replica}
			}
			t.Partitions = append(t.Partitions, p)
		}
		ts = append(ts, t)
	}
	return ms, ts
}

// told is a plan in a line: "a/0 1>4 drain", and "a/1 1!" for what is blocked.
func told(p topic.Plan) string {
	var words []string
	for _, m := range p.Moves {
		words = append(words, fmt.Sprintf("%s/%d %d>%d %v", m.Topic, m.Partition, m.From, m.To, m.Reason))
	}
	for _, b := range p.Blocked {
		words = append(words, fmt.Sprintf("%v %d!", b.TopicPartition, b.Node))
	}
	return strings.Join(words, ", ")
}

// Property: M1, M2 (red: a dead node was given replicas; a node with one replica more gave it away)
func TestPlanned(t *testing.T) {
	for name, c := range map[string]struct {
		members, topics string
		limit           int
		want            string
	}{
		"nothing to do":               {"1 2 3", "a:123 231 312", 8, ""},
		"no topics":                   {"1 2 3", "", 8, ""},
		"no members":                  {"", "", 8, ""},
		"one more is no imbalance":    {"1 2 3 4", "a:1 2 3", 8, ""},
		"a node has joined":           {"1 2 3 4", "a:123 231 312 123", 8, "a/0 1>4 balance, a/2 2>4 balance, a/1 3>4 balance"},
		"a joined node leads too":     {"1 2", "a:1 1 1 1", 8, "a/0 1>2 balance, a/1 1>2 balance"},
		"the worst spread topic goes": {"1 2", "a:1 2; b:1 1", 8, "b/0 1>2 balance"},
		"a dead node gets nothing":    {"1 2 3 4dead", "a:123 231 312 123", 8, ""},
		"a dead node keeps its own":   {"1 2 3dead 4", "a:123 231 312", 8, "a/1 1>4 balance, a/0 2>4 balance"},
		"a node drains":               {"1drains 2 3 4", "a:123 231 312", 8, "a/0 1>4 drain, a/1 1>4 drain, a/2 1>4 drain"},
		"a dead node drains":          {"1deaddrains 2 3 4", "a:123", 8, "a/0 1>4 drain"},
		"a draining node gets none":   {"1drains 2 3 4drains 5", "a:123", 8, "a/0 1>5 drain"},
		"no node is left":             {"1drains 2 3", "a:123 231", 8, "a/0 1!, a/1 1!"},
		"both nodes of a partition":   {"1drains 2drains 3 4", "a:12", 8, "a/0 1>3 drain"},
		"a new life of a node":        {"1 2drains 3 4 5=2", "a:123 231", 8, "a/0 2>5 drain, a/1 2>5 drain"},
		"under way":                   {"1 2 3 4", "a:123>4 231 312 123", 8, "a/3 1>4 balance, a/2 2>4 balance"},
		"all slots are taken":         {"1drains 2 3", "a:1>2 1>3 1 1", 2, ""},
		"one slot is free":            {"1drains 2 3", "a:1>2 1>3 1 1", 3, "a/2 1>2 drain"},
		"drained before balanced":     {"1 2drains 3", "a:1 1 1 1 1; b:2", 1, "b/0 2>3 drain"},
	} {
		t.Run(name, func(t *testing.T) {
			ms, ts := world(c.members, c.topics)
			require.Equal(t, c.want, told(topic.Planned(ms, ts, c.limit)))
		})
	}
}

// begin makes a plan's moves those that are under way.
func begin(ts []metastore.Topic, plan topic.Plan, next *raftlog.ReplicaID) {
	for _, m := range plan.Moves {
		p := partitionOf(ts, m.Incarnation, m.Partition)
		*next++
		p.Target = &metastore.Target{Add: metastore.Assignment{Replica: *next, Node: m.To}, Remove: m.Remove}
		p.Generation++
	}
}

// finish ends one move.
func finish(p *metastore.Partition) {
	for i := range p.Replicas {
		if p.Replicas[i].Replica == p.Target.Remove {
			p.Replicas[i] = p.Target.Add
		}
	}
	p.Target = nil
	p.Generation++
}

func partitionOf(ts []metastore.Topic, inc raftlog.Incarnation, index uint32) *metastore.Partition {
	for i := range ts {
		if ts[i].Incarnation == inc {
			return &ts[i].Partitions[index]
		}
	}
	return nil
}

func cloneTopics(ts []metastore.Topic) []metastore.Topic {
	ts = slices.Clone(ts)
	for i := range ts {
		ts[i].Partitions = slices.Clone(ts[i].Partitions)
		for k := range ts[i].Partitions {
			ts[i].Partitions[k].Replicas = slices.Clone(ts[i].Partitions[k].Replicas)
		}
	}
	return ts
}

func drawWorld(t *rapid.T) ([]metastore.Member, []metastore.Topic) {
	n := rapid.IntRange(1, 7).Draw(t, "nodes")
	var ms []metastore.Member
	for i := 1; i <= n; i++ {
		m := metastore.Member{Node: raftlog.NodeID(i)}
		m.Liveness.Dead = rapid.IntRange(0, 4).Draw(t, "dead") == 0
		if rapid.IntRange(0, 4).Draw(t, "drains") == 0 {
			m.Liveness.Departure = metastore.Drains
		}
		if i > 1 && rapid.IntRange(0, 5).Draw(t, "replaces") == 0 {
			m.Liveness.Replaces = raftlog.NodeID(rapid.IntRange(1, i-1).Draw(t, "old"))
		}
		ms = append(ms, m)
	}
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "places"), 1))
	var ts []metastore.Topic
	next := raftlog.ReplicaID(0)
	for k := range rapid.IntRange(0, 4).Draw(t, "topics") {
		top := metastore.Topic{Name: fmt.Sprint("t", k), Incarnation: raftlog.Incarnation{byte(k + 1)}, State: metastore.TopicActive}
		replicas := 1 + rng.IntN(min(n, 3))
		for i := range 1 + rng.IntN(12) {
			p := metastore.Partition{Index: uint32(i), Group: raftlog.GroupID(100*k + i + 2)}
			for _, node := range rng.Perm(n)[:replicas] {
				next++
				p.Replicas = append(p.Replicas, metastore.Assignment{Replica: next, Node: raftlog.NodeID(node + 1)})
			}
			top.Partitions = append(top.Partitions, p)
		}
		ts = append(ts, top)
	}
	return ms, ts
}

func holds(ts []metastore.Topic) map[raftlog.NodeID]int {
	h := map[raftlog.NodeID]int{}
	for _, t := range ts {
		for _, p := range t.Partitions {
			for _, a := range p.Replicas {
				h[a.Node]++
			}
		}
	}
	return h
}

// Property: M1 (red: moves under way not counted to the limit)
//
// However the moves end, one by one and in any order, planning comes to an end,
// and nodes that drain are empty then, but for what has nowhere to go.
func TestPlansComeToAnEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ms, ts := drawWorld(t)
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "order"), 2))
		open := map[raftlog.NodeID]bool{}
		drains := map[raftlog.NodeID]bool{}
		for _, m := range ms {
			open[m.Node] = !m.Liveness.Dead && !m.Liveness.Draining()
			drains[m.Node] = m.Liveness.Draining()
		}
		next := raftlog.ReplicaID(1000)
		ended := false
		for range 1000 {
			plan := topic.Planned(ms, ts, metastore.MaxMoves)
			shuffled := cloneTopics(ts)
			rng.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
			members := slices.Clone(ms)
			rng.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
			require.Equal(t, plan, topic.Planned(members, shuffled, metastore.MaxMoves), "the order says nothing")
			for _, m := range plan.Moves {
				p := partitionOf(ts, m.Incarnation, m.Partition)
				require.True(t, open[m.To], "to %v", m.To)
				require.False(t, slices.ContainsFunc(p.Replicas, func(a metastore.Assignment) bool { return a.Node == m.To }))
				require.Nil(t, p.Target)
				require.Equal(t, p.Generation, m.Generation)
				require.True(t, drains[m.From] || open[m.From], "a dead node keeps its own")
			}
			begin(ts, plan, &next)
			require.Empty(t, topic.Planned(ms, ts, metastore.MaxMoves).Moves, "planning twice changes nothing")
			var moving []*metastore.Partition
			for i := range ts {
				for k := range ts[i].Partitions {
					if ts[i].Partitions[k].Target != nil {
						moving = append(moving, &ts[i].Partitions[k])
					}
				}
			}
			require.LessOrEqual(t, len(moving), metastore.MaxMoves)
			if len(moving) == 0 {
				ended = true
				break
			}
			finish(moving[rng.IntN(len(moving))])
		}
		require.True(t, ended)
		blocked := map[string]bool{}
		for _, b := range topic.Planned(ms, ts, metastore.MaxMoves).Blocked {
			blocked[fmt.Sprint(b.TopicPartition, b.Node)] = true
		}
		for _, top := range ts {
			for _, p := range top.Partitions {
				for _, a := range p.Replicas {
					at := topic.TopicPartition{Topic: top.Name, Partition: p.Index}
					require.Equal(t, drains[a.Node], blocked[fmt.Sprint(at, a.Node)], "%v on %v", at, a.Node)
				}
			}
		}
	})
}

// Property: M1 (red: a node with one replica more gave it away)
//
// Where nothing stands in the way the number of moves is the least possible.
func TestPlansMoveTheLeast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "nodes")
		var ms []metastore.Member
		for i := 1; i <= n; i++ {
			ms = append(ms, metastore.Member{Node: raftlog.NodeID(i)})
		}
		top := metastore.Topic{Name: "t", Incarnation: raftlog.Incarnation{1}, State: metastore.TopicActive}
		for i := range rapid.IntRange(0, 40).Draw(t, "partitions") {
			node := raftlog.NodeID(rapid.IntRange(1, n).Draw(t, "node"))
			top.Partitions = append(top.Partitions, metastore.Partition{Index: uint32(i),
				Replicas: []metastore.Assignment{{Replica: raftlog.ReplicaID(i + 1), Node: node}}})
		}
		ts := []metastore.Topic{top}
		counts := holds(ts)
		mean, rest := len(top.Partitions)/n, len(top.Partitions)%n
		// At the end rest nodes hold mean+1: best those that hold most now.
		loads := make([]int, 0, n)
		for i := 1; i <= n; i++ {
			loads = append(loads, counts[raftlog.NodeID(i)])
		}
		slices.Sort(loads)
		slices.Reverse(loads)
		want := 0
		for i, l := range loads {
			end := mean
			if i < rest {
				end++
			}
			want += max(0, l-end)
		}
		require.Len(t, topic.Planned(ms, ts, 1000).Moves, want)
	})
}
