package topic

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

func ids(s string) (all []storage.ReplicaID) {
	for _, c := range s {
		all = append(all, storage.ReplicaID(c-'0'))
	}
	return all
}

// factsOf reads "123+4/12 self 1 add 4 for 3 caught unsettled 3": voters, learners, outgoing.
func factsOf(t *testing.T, line string) *moveFacts {
	f := &moveFacts{safe: true}
	words := strings.Fields(line)
	conf, outgoing, _ := strings.Cut(words[0], "/")
	voters, learners, _ := strings.Cut(conf, "+")
	f.conf = storage.ConfState{Voters: ids(voters), Learners: ids(learners), VotersOutgoing: ids(outgoing)}
	for i := 1; i < len(words); i++ {
		arg := func() []storage.ReplicaID { i++; return ids(words[i]) }
		switch words[i] {
		case "self":
			f.self = arg()[0]
		case "add":
			f.target = &metastore.Target{Add: metastore.Assignment{Replica: arg()[0]}}
		case "for":
			f.target.Remove = arg()[0]
		case "caught":
			f.caughtUp = true
		case "unsafe":
			f.safe = false
		case "ousts":
			f.ousts = true
		case "contested":
			f.contested = true
		case "successor":
			f.successor = true
		case "unsettled":
			f.unsettled = arg()
		case "orphans":
			f.orphans = arg()
		case "dead":
			f.destination = destinationDead
		case "lost":
			f.destination = destinationLost
		case "leaving":
			f.destination = destinationLeaving
		default:
			require.Fail(t, words[i])
		}
	}
	return f
}

func (n nextStep) String() string {
	s := n.step.String()
	if n.step == stepTransfer {
		s += fmt.Sprint(" ", uint64(n.to))
	}
	for i, list := range [...][]storage.ReplicaID{n.change.Learners, n.change.Voters, n.change.Remove} {
		for _, r := range list {
			s += fmt.Sprint([...]string{" learn ", " vote ", " remove "}[i], uint64(r))
		}
	}
	return s
}

// TestStepOfAMove has every state that a leader may meet.
func TestStepOfAMove(t *testing.T) {
	for line, want := range map[string]string{
		"123 self 1":                                             "none",
		"123/12 self 1":                                          "wait",
		"123+4 self 1":                                           "none",
		"123+4 self 1 orphans 4":                                 "change remove 4",
		"123+4 self 1 orphans 4 unsafe":                          "wait",
		"123 self 1 add 4 for 3":                                 "change learn 4",
		"123 self 1 add 4 for 3 unsafe":                          "wait",
		"123 self 1 add 4 for 3 dead":                            "wait",
		"123 self 1 add 4 for 3 lost":                            "cancel",
		"123 self 1 add 4 for 3 leaving":                         "cancel",
		"123 self 1 add 4 for 3 lost unsafe":                     "wait",
		"123+4 self 1 add 4 for 3":                               "wait",
		"123+4 self 1 add 4 for 3 dead caught":                   "wait",
		"123+4 self 1 add 4 for 3 lost":                          "change remove 4",
		"123+4 self 1 add 4 for 3 leaving caught":                "change remove 4",
		"123+4 self 1 add 4 for 3 caught successor":              "change vote 4 remove 3",
		"123+4 self 1 add 4 for 3 caught ousts unsettled 3":      "change vote 4 remove 3",
		"123+4 self 1 add 4 for 3 caught ousts unsettled 2":      "wait",
		"123+4 self 1 add 4 for 3 caught ousts unsettled 23":     "wait",
		"123+4 self 1 add 4 for 3 caught unsettled 2":            "change vote 4 remove 3", // no disk is lost
		"123+4 self 1 add 4 for 3 caught contested":              "wait",
		"123+4 self 3 add 4 for 3 caught successor":              "transfer 0",
		"123+4 self 3 add 4 for 3 caught successor unsettled 12": "transfer 0",
		"1234/123 self 1 add 4 for 3":                            "wait",
		"124 self 1 add 4 for 3":                                 "finish",
		"124 self 1 add 4 for 3 unsafe":                          "wait",
		"124 self 1 add 4 for 3 lost":                            "finish",
		"124 self 1 add 4 for 3 unsettled 2":                     "finish",
		// One replica: the new one votes beside the old one, leads, and is alone.
		"1+4 self 1 add 4 for 1 caught":            "change vote 4",
		"14 self 1 add 4 for 1":                    "transfer 4",
		"14 self 4 add 4 for 1":                    "change remove 1",
		"14 self 4 add 4 for 1 unsettled 1":        "change remove 1",
		"145 self 4 add 4 for 1 ousts unsettled 5": "wait",
		"145 self 4 add 4 for 1 unsettled 5":       "change remove 1",
		"4 self 4 add 4 for 1":                     "finish",
		"124+5 self 1 add 5 for 3 caught":          "change vote 5", // the old one went before
		"123+4 self 1 add 4 caught":                "change vote 4", // one more
		"1234 self 1 add 4":                        "finish",
		"123+4 self 3 add 4 for 3 caught":          "wait", // no other voter lives
	} {
		t.Run(line, func(t *testing.T) {
			require.Equal(t, want, stepOf(factsOf(t, line)).String())
		})
	}
}

// applyStep does what raft does with a change: a simple one, or a joint one that
// is left.
func applyStep(conf storage.ConfState, ch raftlog.Change) storage.ConfState {
	without := func(list []storage.ReplicaID, gone ...storage.ReplicaID) []storage.ReplicaID {
		return slices.DeleteFunc(slices.Clone(list), func(r storage.ReplicaID) bool { return slices.Contains(gone, r) })
	}
	next := storage.ConfState{
		Voters:   append(without(conf.Voters, ch.Remove...), ch.Voters...),
		Learners: append(without(without(conf.Learners, ch.Remove...), ch.Voters...), ch.Learners...),
	}
	slices.Sort(next.Voters)
	return next
}

// Whatever happens to the destination meanwhile and whoever leads, a move ends:
// with the new replica in the old one's place, or with the configuration as it
// was, and the metadata hear of it only then.
func TestAMoveEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 5).Draw(t, "replicas")
		var conf storage.ConfState
		for r := 1; r <= n; r++ {
			conf.Voters = append(conf.Voters, storage.ReplicaID(r))
		}
		before := slices.Clone(conf.Voters)
		old := storage.ReplicaID(rapid.IntRange(1, n).Draw(t, "old"))
		target := &metastore.Target{Add: metastore.Assignment{Replica: 9}, Remove: old}
		leader := storage.ReplicaID(rapid.IntRange(1, n).Draw(t, "leader"))
		dest := destinationLives
		for range 40 {
			if rapid.IntRange(0, 9).Draw(t, "elects") == 0 {
				leader = conf.Voters[rapid.IntRange(0, len(conf.Voters)-1).Draw(t, "next leader")]
			}
			if dest != destinationLost && dest != destinationLeaving {
				dest = destination(rapid.IntRange(0, 12).Draw(t, "destination"))
				if dest > destinationLeaving {
					dest = destinationLives
				}
			}
			f := &moveFacts{self: leader, conf: conf, safe: true, target: target, destination: dest,
				caughtUp: rapid.Bool().Draw(t, "caught up"), successor: n > 1}
			next := stepOf(f)
			switch next.step {
			case stepChange:
				require.NotContains(t, next.change.Remove, leader, "a leader does not remove itself")
				for _, r := range next.change.Voters {
					require.Contains(t, conf.Learners, r)
					require.True(t, f.caughtUp)
				}
				conf = applyStep(conf, next.change)
				require.NotEmpty(t, conf.Voters)
				require.GreaterOrEqual(t, len(conf.Voters), n)
			case stepTransfer:
				require.Equal(t, old, leader)
				if leader = next.to; leader == 0 {
					others := slices.DeleteFunc(slices.Clone(conf.Voters), func(r storage.ReplicaID) bool { return r == old })
					leader = others[0]
				}
				require.Contains(t, conf.Voters, leader)
			case stepFinish:
				require.NotContains(t, conf.Voters, old)
				require.Contains(t, conf.Voters, storage.ReplicaID(9))
				require.Len(t, conf.Voters, n)
				require.Empty(t, conf.Learners)
				return
			case stepCancel:
				require.Equal(t, before, conf.Voters)
				require.Empty(t, conf.Learners)
				return
			case stepNone:
				require.Fail(t, "a target is never forgotten")
			}
		}
		// It was never caught up, or the destination was never there for long.
		require.True(t, dest == destinationDead || len(conf.Learners) > 0 || len(conf.Voters) > n || slices.Equal(before, conf.Voters))
	})
}
