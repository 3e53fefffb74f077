//go:build unix

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
)

// change is a step of harm, and how many members and others it needs.
type change struct {
	f                  func(h *harm, ctx context.Context) error
	members, outsiders int
}

func allChanges() []change {
	return []change{
		{(*harm).leaderDiesInAJoin, 3, 1},
		{(*harm).joinerIsPaused, 3, 1},
		{(*harm).joinersDie, 3, 2},
		{(*harm).leaderDiesInADecommission, 4, 0},
		{(*harm).leaverDies, 4, 0},
		{(*harm).wiped, 3, 0},
		{(*harm).deadIsForcedOut, 4, 0},
		{(*harm).twoLeaveAtOnce, 4, 1},
	}
}

// mixStory does rounds, of which every third changes the members. What a round
// does follows from the seed, its number, and who the members are by then.
func mixStory(ctx context.Context, c *campaign) error {
	for i := range c.rounds {
		number := c.first + i
		rng := rand.New(rand.NewPCG(c.seed, uint64(number)))
		h := &harm{c, rng}
		members, outsiders := c.cluster.members(), c.cluster.outsiders()
		var err error
		if all := possible(len(members), len(outsiders)); rng.IntN(3) == 0 {
			err = all[rng.IntN(len(all))].f(h, ctx)
		} else {
			r := planRound(c.seed, number, len(members), c.cluster.net.tag != "")
			for k, v := range r.victims {
				r.victims[k] = members[v]
			}
			err = c.round(ctx, r)
		}
		if err != nil {
			return fmt.Errorf("round %d: %w", number, err)
		}
		if (i+1)%c.inspect == 0 && i+1 < c.rounds {
			if err := c.cluster.until(ctx, (*clusterState).settled); err != nil {
				return err
			}
			if err := c.inspectAll(ctx); err != nil {
				return fmt.Errorf("after round %d: %w", number, err)
			}
			if err := c.startAll(ctx); err != nil {
				return err
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, changeBound)
	defer cancel()
	return c.cluster.until(ctx, (*clusterState).settled)
}

// possible are the changes that so many members and others allow.
func possible(members, outsiders int) (all []change) {
	for _, ch := range allChanges() {
		if members >= ch.members && outsiders >= ch.outsiders {
			all = append(all, ch)
		}
	}
	return all
}
