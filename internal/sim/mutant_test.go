package sim

import (
	"slices"
	"strings"
	"testing"
)

// kill is how a mutant is to be found: by one of some properties, within a
// budget of seeds of 20 virtual seconds each.
type kill struct {
	mutant Mutant
	by     string // properties, any of them
	ignore string // checks that would see the act and not what it leads to
	storm  bool
	seeds  int

	members bool
}

var killList = []kill{
	{mutant: MutantAckBeforeSync, by: "R3", seeds: 3},
	{mutant: MutantAckBeforeSync, by: "R7", ignore: "R3 R23", seeds: 10},
	{mutant: MutantVoteBeforeSync, by: "R3", seeds: 3},
	{mutant: MutantVoteBeforeSync, by: "R1 R2", ignore: "R3 R23", storm: true, seeds: 100},
	{mutant: MutantAskBeforeSync, by: "R3", seeds: 3},
	{mutant: MutantAskBeforeSync, by: "R1", ignore: "R3 R23", storm: true, seeds: 100},
	{mutant: MutantAskBeforeSync, by: "R5 R6", ignore: "R1 R3 R23", storm: true, seeds: 200},
	{mutant: MutantVoteLost, by: "R8", seeds: 20},
	{mutant: MutantVoteLost, by: "R2", ignore: "R3 R8", storm: true, seeds: 20},
	{mutant: MutantTermLost, by: "R8", seeds: 40},
	{mutant: MutantTermLost, by: "R1 R2", ignore: "R3 R8", storm: true, seeds: 20},
	{mutant: MutantCommitLost, by: "R8", seeds: 20},
	{mutant: MutantAppliedTwice, by: "R11", seeds: 20},
	{mutant: MutantEntrySkipped, by: "R11", seeds: 20},
	{mutant: MutantNoTruncation, by: "R5 R23", storm: true, seeds: 20},
	{mutant: MutantNoTruncation, by: "R5", ignore: "R23", storm: true, seeds: 20},
	{mutant: MutantTailLost, by: "R8", seeds: 20},
	{mutant: MutantTailLost, by: "R6", ignore: "R3 R8 R22", storm: true, seeds: 20},
	{mutant: MutantStaleRead, by: "R25", storm: true, seeds: 100},
	{mutant: MutantWiped, by: "R8 R23", seeds: 20},
	{mutant: MutantWiped, by: "R1 R2 R5 R6", ignore: "R3 R8 R22 R23", storm: true, seeds: 20},
	{mutant: MutantTwoRounds, by: "R3", seeds: 5},
	{mutant: MutantReply, by: "R14", storm: true, seeds: 40},
	{mutant: MutantSameStint, by: "R1 R2 R5 R6 R7 R8 R12 R15 R20 R21 R22", members: true, seeds: 20},
	{mutant: MutantAnySnapshot, by: "R8 R24", members: true, seeds: 20},
	{mutant: MutantAnySnapshot, by: "R5 R6 R7 R15", ignore: "R3 R8 R20 R21 R22 R23 R24", members: true, seeds: 20},
	{mutant: MutantLateConf, by: "R11 R22", members: true, seeds: 20},
	{mutant: MutantNotTold, by: "R20", members: true, seeds: 40},
}

// Property: L6, R1, R2, R3, R5, R6, R7, R8, R11, R14, R25 (red: each mutant; one that breaks nothing survives)
func TestMutantsAreFound(t *testing.T) {
	for _, m := range Mutants() {
		if !slices.ContainsFunc(killList, func(k kill) bool { return k.mutant == m }) {
			t.Errorf("nothing looks for the mutant %q", m)
		}
	}
	for _, k := range killList {
		t.Run(strings.TrimSpace(string(k.mutant)+" "+k.ignore), func(t *testing.T) {
			if testing.Short() && k.seeds > 20 {
				t.Skip("may take many seeds")
			}
			for seed := uint64(1); seed <= uint64(k.seeds); seed++ {
				opts := shape(seed, 20)
				if k.members {
					opts = program(seed, 10)
				}
				opts.Groups, opts.Mutant, opts.Ignore, opts.Storm = 2, k.mutant, strings.Fields(k.ignore), k.storm
				v := run(t, seed, opts).Violation
				if v == nil {
					continue
				}
				t.Logf("seed %d after %d ms: %s: %s", v.Seed, v.At/millisecond, v.Property, v.Text)
				if !slices.Contains(strings.Fields(k.by), v.Property) {
					t.Errorf("found by %s, expected by %s", v.Property, k.by)
				}
				return
			}
			t.Errorf("survived %d seeds", k.seeds)
		})
	}
}
