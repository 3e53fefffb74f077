package metastore

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/proof"
	"github.com/stelelog/stele/raftlog"
)

func testQuestion() question {
	return question{
		Nonce: [16]byte{9}, Epoch: 2, Index: 100, Claim: IncarnationDead(inc(7)),
		Voters: []raftlog.ReplicaID{11, 12, 13},
	}
}

// The answers of voters, in the order in which they come.
//
// Property: X2, R33 (red: hear without its look at the nonce; at the epoch; at the replica; at the index; majority of the incoming voters alone; refusal that let a majority outvote a dissent)
func TestWhatVotersSayDecides(t *testing.T) {
	type answers []func(*tally)
	says := func(from raftlog.ReplicaID, s says, changes ...func(*testimony)) func(*tally) {
		return func(t *tally) {
			a := testimony{t.question.Nonce, t.question.Epoch, from, t.question.Index, s}
			for _, change := range changes {
				change(&a)
			}
			t.hear(from, a)
		}
	}
	yes := func(from raftlog.ReplicaID, changes ...func(*testimony)) func(*tally) {
		return says(from, saysYes, changes...)
	}
	misses := func(from raftlog.ReplicaID) func(*tally) { return func(t *tally) { t.miss(from, "timeout") } }
	one := []raftlog.ReplicaID{11}
	for _, c := range []struct {
		what             string
		voters, outgoing []raftlog.ReplicaID // nil: three, none
		heard            answers
		want             ConfirmReason // "": confirmed
	}{
		{"one voter", one, nil, answers{yes(11)}, ""},
		{"one voter that is silent", one, nil, answers{misses(11)}, ConfirmNoMajority},
		{"one of two", []raftlog.ReplicaID{11, 12}, nil, answers{yes(11), misses(12)}, ConfirmNoMajority},
		{"two of two", []raftlog.ReplicaID{11, 12}, nil, answers{yes(11), yes(12)}, ""},
		{"two of three", nil, nil, answers{yes(11), misses(13), yes(12)}, ""},
		{"all", nil, nil, answers{yes(11), yes(12), yes(13)}, ""},
		{"one of three", nil, nil, answers{yes(11)}, ConfirmNoMajority},
		{"one of three, twice", nil, nil, answers{yes(11), yes(11)}, ConfirmNoMajority},
		{"nobody", nil, nil, nil, ConfirmNoMajority},
		{"a learner counts for nothing", nil, nil, answers{yes(11), yes(14)}, ConfirmNoMajority},
		{"two and a dissent", nil, nil, answers{yes(11), yes(12), says(13, saysNo)}, ConfirmDissent},
		{"a dissent before two", nil, nil, answers{says(13, saysNo), yes(11), yes(12)}, ConfirmDissent},
		{"a dissent of who does not count", nil, nil, answers{says(14, saysNo), yes(11), yes(12)}, ""},
		{"two and one that is behind", nil, nil, answers{yes(11), yes(12), says(13, saysBehind)}, ""},
		{"one and two that are behind", nil, nil, answers{yes(11), says(12, saysBehind), says(13, saysBehind)}, ConfirmNoMajority},
		{"held", nil, nil, answers{yes(11), yes(12), says(13, saysHeld)}, ConfirmHeld},
		{"other voters", nil, nil, answers{yes(11), says(12, saysVoters), says(13, saysVoters)}, ConfirmNoMajority},
		{"another epoch, it says", nil, nil, answers{yes(11), says(12, saysEpoch), says(13, saysEpoch)}, ConfirmNoMajority},
		{"another replica, it says", nil, nil, answers{yes(11), says(12, saysOther), says(13, saysOther)}, ConfirmNoMajority},
		{"an older question", nil, nil, answers{yes(11), yes(12, func(a *testimony) { a.Nonce[0] = 8 })}, ConfirmNoMajority},
		{"an older epoch", nil, nil, answers{yes(11), yes(12, func(a *testimony) { a.Epoch = 1 })}, ConfirmNoMajority},
		{"a newer epoch", nil, nil, answers{yes(11), yes(12, func(a *testimony) { a.Epoch = 3 })}, ConfirmNoMajority},
		{"an earlier stint", nil, nil, answers{yes(11), yes(12, func(a *testimony) { a.Replica = 10 })}, ConfirmNoMajority},
		{"in another's name", nil, nil, answers{yes(11), yes(12, func(a *testimony) { a.Replica = 11 })}, ConfirmNoMajority},
		{"an older state", nil, nil, answers{yes(11), yes(12, func(a *testimony) { a.Applied = 99 })}, ConfirmNoMajority},
		{"a newer state", nil, nil, answers{yes(11), yes(12, func(a *testimony) { a.Applied = 101 })}, ""},
		{"no to an older question", nil, nil, answers{yes(11), yes(12), says(13, saysNo, func(a *testimony) { a.Nonce[0] = 8 })}, ""},
		{"joint, both halves", []raftlog.ReplicaID{11, 12, 14}, []raftlog.ReplicaID{11, 12, 13}, answers{yes(11), yes(12)}, ""},
		{"joint, the new half", []raftlog.ReplicaID{11, 14, 15}, []raftlog.ReplicaID{11, 12, 13}, answers{yes(11), yes(14), yes(15)}, ConfirmNoMajority},
		{"joint, the old half", []raftlog.ReplicaID{11, 14, 15}, []raftlog.ReplicaID{11, 12, 13}, answers{yes(11), yes(12), yes(13)}, ConfirmNoMajority},
		{"joint, one dissent in the old half", []raftlog.ReplicaID{11, 12, 14}, []raftlog.ReplicaID{11, 12, 13}, answers{yes(11), yes(12), yes(14), says(13, saysNo)}, ConfirmDissent},
		{"joint, one for two", one, []raftlog.ReplicaID{11, 12}, answers{yes(11)}, ConfirmNoMajority},
	} {
		q := testQuestion()
		if c.voters != nil {
			q.Voters, q.Outgoing = c.voters, c.outgoing
		}
		tally := newTally(q)
		for _, f := range c.heard {
			f(tally)
		}
		require.Equal(t, c.want, tally.refusal(), c.what)
		require.Equal(t, c.want == "" || c.want == ConfirmDissent && tally.majority() || c.want == ConfirmHeld, tally.majority(), c.what)
		for _, v := range tally.voters() {
			require.NotEmpty(t, v.said, c.what)
		}
	}
}

// What a replica answers, by what its state is.
//
// Property: X2 (red: judge without each of its cases)
func TestWhatAVoterSays(t *testing.T) {
	good := finding{says: true, cluster: cluster{Epoch: 2}, before: 100, after: 101,
		conf: raftlog.ConfState{Voters: []raftlog.ReplicaID{13, 12, 11}, Learners: []raftlog.ReplicaID{14}}}
	for _, c := range []struct {
		what   string
		change func(*finding, *question)
		want   says
	}{
		{"yes", func(*finding, *question) {}, saysYes},
		{"no", func(f *finding, _ *question) { f.says = false }, saysNo},
		{"held", func(f *finding, _ *question) { f.held = true }, saysHeld},
		{"no, and held", func(f *finding, _ *question) { f.says, f.held = false, true }, saysHeld},
		{"behind", func(f *finding, _ *question) { f.before = 99 }, saysBehind},
		{"behind, and no", func(f *finding, _ *question) { f.before, f.says = 99, false }, saysBehind},
		{"the epoch", func(f *finding, _ *question) { f.cluster.Epoch = 3 }, saysEpoch},
		{"who was asked", func(_ *finding, q *question) { q.Replica = 11 }, saysOther},
		{"the voters", func(f *finding, _ *question) { f.conf.Voters = []raftlog.ReplicaID{11, 12} }, saysVoters},
		{"joint", func(f *finding, _ *question) { f.conf.VotersOutgoing = []raftlog.ReplicaID{11, 12} }, saysVoters},
		{"joint no more", func(_ *finding, q *question) { q.Outgoing = []raftlog.ReplicaID{11, 12} }, saysVoters},
		{"a voter that is removed, and no", func(f *finding, _ *question) {
			f.conf.Voters, f.says = []raftlog.ReplicaID{11, 13, 15}, false
		}, saysVoters},
	} {
		f, q := good, testQuestion().to(12)
		c.change(&f, &q)
		require.Equal(t, c.want, q.judge(f, 12), c.what)
	}
}

func goldenQuestions() []question {
	return []question{
		testQuestion().to(12),
		{Nonce: [16]byte{1, 2}, Epoch: 300, Replica: 1<<48 + 5, Index: 70_000, Voters: []raftlog.ReplicaID{11},
			Outgoing: []raftlog.ReplicaID{11, 12}, Claim: ReplicaRemoved(5, 1<<48+7)},
	}
}

func goldenTestimonies() (all []testimony) {
	for s := saysYes; s <= newestSays; s++ {
		all = append(all, testimony{[16]byte{9}, 2, 12, 100 + raftlog.Index(s), s})
	}
	return all
}

func TestGoldenConfirm(t *testing.T) {
	var b strings.Builder
	for _, q := range goldenQuestions() {
		b.WriteString(hex.EncodeToString(q.encode()) + "\n")
		got, err := decodeQuestion(q.encode())
		require.NoError(t, err)
		require.Equal(t, q, got)
	}
	for _, a := range goldenTestimonies() {
		b.WriteString(hex.EncodeToString(a.encode()) + "\n")
		got, err := decodeTestimony(a.encode())
		require.NoError(t, err)
		require.Equal(t, a, got)
		require.NotContains(t, a.Says.String(), "says "+string(rune('0'+a.Says)))
	}
	golden(t, "confirm.v3", b.String())
}

// Property: S11 (red: decoder.count without its bound: 2^40 voters in 40 bytes)
func FuzzConfirm(f *testing.F) {
	for _, q := range goldenQuestions() {
		f.Add(q.encode())
	}
	for _, a := range goldenTestimonies() {
		f.Add(a.encode())
	}
	f.Add(append(append([]byte{confirmVersion}, make([]byte, 19)...), huge...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if q, err := decodeQuestion(b); err == nil {
			require.Equal(t, b, q.encode())
			require.NoError(t, q.Claim.Validate())
		}
		if a, err := decodeTestimony(b); err == nil {
			require.Equal(t, b, a.encode())
		}
	})
}

func TestQuestionsThatAreWrong(t *testing.T) {
	inCluster(t, 1, func(t *testing.T, c *fakeCluster) {
		s := c.nodes[1].store
		newer := testQuestion().encode()
		newer[0]++
		other := testQuestion().encode()
		other[len(other)-17] = 3
		for what, request := range map[string][]byte{"a newer form": newer, "a claim that is not known": other} {
			_, err := s.HandleCall(t.Context(), 2, MethodConfirm, request)
			var unsupported *UnsupportedError
			require.ErrorAs(t, err, &unsupported, what)
			requireOneOutcome(t, raftlog.OutcomeRefused, err)
		}
		meta := testQuestion()
		meta.Claim = ReplicaRemoved(raftlog.MetadataGroup, 12)
		for what, request := range map[string][]byte{
			"empty": nil, "cut": testQuestion().encode()[:20], "of group 1": meta.encode(),
			"no incarnation": question{Claim: Claim{Kind: proof.DeadIncarnation}}.encode(),
		} {
			_, err := s.HandleCall(t.Context(), 2, MethodConfirm, request)
			require.Error(t, err, what)
			requireOneOutcome(t, raftlog.OutcomeRefused, err)
		}
	})
}
