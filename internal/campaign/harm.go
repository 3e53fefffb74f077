//go:build unix

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// harm is the state of harmStory: what goes wrong, and when, follows from the seed.
type harm struct {
	*campaign
	rng *rand.Rand
}

// harmStory has nodes join and leave while others, or they themselves, fail. It
// begins and ends with three members, which are others each time.
func harmStory(ctx context.Context, c *campaign) error {
	h := &harm{c, rand.New(rand.NewPCG(c.seed, 99))}
	for range c.times {
		for _, f := range []func(context.Context) error{
			h.leaderDiesInAJoin, h.joinerIsPaused, h.joinersDie, h.leaderDiesInADecommission, h.leaverDies,
			h.wiped, h.deadIsForcedOut, h.twoLeaveAtOnce,
		} {
			if err := f(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// some is up to a while, most often short.
func (h *harm) some(longest time.Duration) time.Duration {
	return time.Duration(h.rng.Int64N(int64(longest)) * h.rng.Int64N(1000) / 1000)
}

// leader is the node that leads the metadata, and state what it says.
func (h *harm) leader(ctx context.Context) (*node, *clusterState, error) {
	for {
		s, err := h.cluster.state(ctx)
		if err == nil && s.Leader != "" {
			i, err := h.cluster.indexOf(s.Leader)
			return h.cluster.nodes[i], s, err
		}
		if ended := wait(ctx, 50*time.Millisecond); ended != nil {
			return nil, nil, fmt.Errorf("no node leads: %w", ended)
		}
	}
}

// voter is any voter but the one that leads.
func (h *harm) voter(ctx context.Context) (*node, error) {
	_, s, err := h.leader(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, m := range s.Members {
		if m.Seat == "voter" && m.Name != s.Leader {
			names = append(names, m.Name)
		}
	}
	i, err := h.cluster.indexOf(names[h.rng.IntN(len(names))])
	return h.cluster.nodes[i], err
}

// add starts nodes with empty directories, which nobody waits for yet.
func (h *harm) add(n int) (some []int, err error) {
	some = h.cluster.outsiders()[:n]
	for _, i := range some {
		if err := h.cluster.nodes[i].renew(); err != nil {
			return nil, err
		}
		if err := h.cluster.nodes[i].start(); err != nil {
			return nil, err
		}
	}
	return some, nil
}

// do is a step that may change the members.
func (h *harm) do(ctx context.Context, what string, f func(ctx context.Context) error) error {
	return h.step(ctx, what, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, changeBound)
		defer cancel()
		return f(ctx)
	})
}

// crash kills a node after a while, and starts it again.
func (h *harm) crash(ctx context.Context, n *node, after time.Duration) error {
	if err := wait(ctx, after); err != nil {
		return err
	}
	n.kill()
	if err := wait(ctx, h.some(2*time.Second)); err != nil {
		return err
	}
	return n.start()
}

func (h *harm) leaderDiesInAJoin(ctx context.Context) error {
	leads, _, err := h.leader(ctx)
	if err != nil {
		return err
	}
	after := h.some(8 * time.Second)
	return h.do(ctx, fmt.Sprintf("a node joins, and %s, which leads, is killed after %v", leads.name, after), func(ctx context.Context) error {
		some, err := h.add(1)
		if err != nil {
			return err
		}
		if err := h.crash(ctx, leads, after); err != nil {
			return err
		}
		if err := h.takenIn(ctx, some); err != nil {
			return err
		}
		return h.cluster.until(ctx, (*clusterState).settled)
	})
}

func (h *harm) joinerIsPaused(ctx context.Context) error {
	after, pause := h.some(2*time.Second), 5*time.Second+h.some(15*time.Second)
	return h.do(ctx, fmt.Sprintf("a node joins, and stands still after %v, for %v", after, pause), func(ctx context.Context) error {
		some, err := h.add(1)
		if err != nil {
			return err
		}
		n := h.cluster.nodes[some[0]]
		if err := wait(ctx, after); err != nil {
			return err
		}
		if err := n.pause(); err != nil {
			return err
		}
		if err := wait(ctx, pause); err != nil {
			return err
		}
		if err := n.resume(); err != nil {
			return err
		}
		if err := h.takenIn(ctx, some); err != nil {
			return err
		}
		return h.cluster.until(ctx, (*clusterState).settled)
	})
}

func (h *harm) joinersDie(ctx context.Context) error {
	return h.do(ctx, "two nodes join, and are killed on their way, again and again", func(ctx context.Context) error {
		some, err := h.add(2)
		if err != nil {
			return err
		}
		for range 4 {
			if err := h.crash(ctx, h.cluster.nodes[some[h.rng.IntN(2)]], h.some(2*time.Second)); err != nil {
				return err
			}
		}
		if err := h.takenIn(ctx, some); err != nil {
			return err
		}
		return h.cluster.until(ctx, (*clusterState).settled)
	})
}

func (h *harm) leaderDiesInADecommission(ctx context.Context) error {
	n, err := h.voter(ctx)
	if err != nil {
		return err
	}
	after := h.some(3 * time.Second)
	return h.do(ctx, fmt.Sprintf("decommission %s, and kill who leads after %v", n.name, after), func(ctx context.Context) error {
		if err := h.cluster.decommission(ctx, n.name, false); err != nil {
			return err
		}
		leads, _, err := h.leader(ctx)
		if err != nil {
			return err
		}
		if err := h.crash(ctx, leads, after); err != nil {
			return err
		}
		if err := h.gone(ctx, n); err != nil {
			return err
		}
		return h.cluster.until(ctx, (*clusterState).settled)
	})
}

func (h *harm) leaverDies(ctx context.Context) error {
	n, err := h.voter(ctx)
	if err != nil {
		return err
	}
	after := h.some(3 * time.Second)
	return h.do(ctx, fmt.Sprintf("decommission %s, and kill it after %v", n.name, after), func(ctx context.Context) error {
		if err := h.cluster.decommission(ctx, n.name, false); err != nil {
			return err
		}
		if err := h.crash(ctx, n, after); err != nil {
			return err
		}
		if err := h.gone(ctx, n); err != nil {
			return err
		}
		return h.cluster.until(ctx, (*clusterState).settled)
	})
}

func (h *harm) wiped(ctx context.Context) error {
	n, err := h.voter(ctx)
	if err != nil {
		return err
	}
	return h.do(ctx, fmt.Sprintf("kill %s and take its disk away", n.name), func(ctx context.Context) error {
		s, err := h.cluster.state(ctx)
		if err != nil {
			return err
		}
		old := s.find(n.name).ID
		n.kill()
		if err := n.renew(); err != nil {
			return err
		}
		if err := n.start(); err != nil {
			return err
		}
		return h.cluster.until(ctx, func(s *clusterState) bool {
			return s.settled() && s.find(n.name).ID != old && !slices.ContainsFunc(s.Members, func(m memberState) bool { return m.ID == old })
		})
	})
}

// deadIsForcedOut leaves the node out, and shows that its disk never returns.
func (h *harm) deadIsForcedOut(ctx context.Context) error {
	n, err := h.voter(ctx)
	if err != nil {
		return err
	}
	return h.do(ctx, fmt.Sprintf("kill %s for good, and force it out when it counts as dead", n.name), func(ctx context.Context) error {
		n.kill()
		if err := h.cluster.until(ctx, func(s *clusterState) bool { return s.find(n.name).State == "dead" }); err != nil {
			return err
		}
		if err := h.cluster.decommission(ctx, n.name, true); err != nil {
			return err
		}
		n.member.Store(false)
		if err := h.cluster.until(ctx, func(s *clusterState) bool { return !s.has(n.name) && s.settled() }); err != nil {
			return err
		}
		return h.returns(ctx, n)
	})
}

// returns has a node that was taken out come back with its old disk: it says so
// and ends.
func (h *harm) returns(ctx context.Context, n *node) error {
	if err := n.start(); err != nil {
		return err
	}
	return h.gone(ctx, n)
}

func (h *harm) twoLeaveAtOnce(ctx context.Context) error {
	err := h.do(ctx, "a node joins", func(ctx context.Context) error {
		some, err := h.add(1)
		if err != nil {
			return err
		}
		if err := h.takenIn(ctx, some); err != nil {
			return err
		}
		return h.cluster.until(ctx, (*clusterState).settled)
	})
	if err != nil {
		return err
	}
	one, s, err := h.leader(ctx)
	if err != nil {
		return err
	}
	i, err := h.cluster.indexOf(s.last("voter", one.name))
	if err != nil {
		return err
	}
	two := h.cluster.nodes[i]
	return h.do(ctx, fmt.Sprintf("decommission %s, which leads, and %s at once, and start both again", one.name, two.name), func(ctx context.Context) error {
		for _, n := range []*node{one, two} {
			if err := h.cluster.decommission(ctx, n.name, false); err != nil {
				return err
			}
		}
		for _, n := range []*node{one, two} {
			if err := h.gone(ctx, n); err != nil {
				return err
			}
		}
		for _, n := range []*node{one, two} {
			if err := h.returns(ctx, n); err != nil {
				return err
			}
		}
		return h.cluster.until(ctx, (*clusterState).settled)
	})
}
