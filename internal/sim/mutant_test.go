package sim

import (
	"strings"
	"testing"
)

// kills is how a mutant shows itself within a budget of seeds, each of some
// virtual seconds.
type kills struct {
	mutant Mutant
	ignore []string // checks that would see the act itself
	seeds  int
	storm  bool
}

func TestMutantsAreFound(t *testing.T) {
	for _, k := range []kills{
		{mutant: MutantAckBeforeSync, seeds: 5},
		{mutant: MutantVoteBeforeSync, seeds: 5},
		{mutant: MutantAskBeforeSync, seeds: 5},
		{mutant: MutantVoteLost, seeds: 40},
		{mutant: MutantTermLost, seeds: 40},
		{mutant: MutantCommitLost, seeds: 20},
		{mutant: MutantAppliedTwice, seeds: 20},
		{mutant: MutantEntrySkipped, seeds: 20},
		{mutant: MutantNoTruncation, seeds: 40},
		{mutant: MutantTailLost, seeds: 40},
		{mutant: MutantStaleRead, storm: true, seeds: 40},
		{mutant: MutantWiped, seeds: 40},
		{mutant: MutantTwoRounds, seeds: 20},
		{mutant: MutantReply, seeds: 40},
		{mutant: MutantAckBeforeSync, seeds: 20, ignore: []string{"R3", "R23"}},
		{mutant: MutantAskBeforeSync, storm: true, seeds: 40, ignore: []string{"R3", "R23"}},
		{mutant: MutantVoteBeforeSync, storm: true, seeds: 40, ignore: []string{"R3", "R23"}},
		{mutant: MutantVoteLost, storm: true, seeds: 40, ignore: []string{"R3", "R8"}},
		{mutant: MutantTermLost, storm: true, seeds: 40, ignore: []string{"R3", "R8"}},
		{mutant: MutantNoTruncation, storm: true, seeds: 40, ignore: []string{"R23"}},
		{mutant: MutantTailLost, storm: true, seeds: 40, ignore: []string{"R3", "R8", "R22"}},
		{mutant: MutantWiped, storm: true, seeds: 40, ignore: []string{"R3", "R8", "R22"}},
	} {
		t.Run(strings.Join(append([]string{string(k.mutant)}, k.ignore...), " "), func(t *testing.T) {
			for seed := uint64(1); seed <= uint64(k.seeds); seed++ {
				opts := shape(seed, 20)
				opts.Groups, opts.Mutant, opts.Ignore, opts.Storm = 2, k.mutant, k.ignore, k.storm
				if v := run(t, seed, opts).Violation; v != nil {
					t.Logf("seed %d after %d ms: %s: %s", v.Seed, v.At/millisecond, v.Property, v.Text)
					return
				}
			}
			t.Errorf("survived %d seeds", k.seeds)
		})
	}
}
