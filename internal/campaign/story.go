//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// story is what people do with a cluster, step by step, while it is used.
type story struct {
	name  string
	about string
	nodes int // initial members
	spare int // that join
	tell  func(ctx context.Context, c *campaign) error
}

func stories() []story {
	return []story{
		{"rolling", "restart each of 5 nodes in good order, then each by kill -9", 5, 0, rollingStory},
		{"grow", "3 nodes become 7, and 3 again, of which two are others", 3, 4, growStory},
		{"harm", "as grow, in another order, and whoever matters is killed, paused, wiped or dead meanwhile", 3, 4, harmStory},
		{"mix", "rounds as without a story, of which every third is a step of harm", 3, 4, mixStory},
		{upgradeName, "3 nodes of an earlier release become ones of this build, one after the other", 3, 1, upgradeStory},
	}
}

func storyOf(name string) story {
	all := stories()
	return all[slices.IndexFunc(all, func(s story) bool { return s.name == name })]
}

func known(name string) bool {
	return slices.ContainsFunc(stories(), func(s story) bool { return s.name == name })
}

func storyNames() string {
	var lines []string
	for _, s := range stories() {
		lines = append(lines, fmt.Sprintf("%s (%s)", s.name, s.about))
	}
	return strings.Join(lines, ", ")
}

// tell does a story.
func (c *campaign) tell(ctx context.Context) error {
	if err := c.inGoodOrder(ctx, "nothing happens", nil, func(ctx context.Context) error { return wait(ctx, 3*time.Second) }); err != nil {
		return err
	}
	return storyOf(c.story).tell(ctx, c)
}

// stepReport is a line of a story's report.
type stepReport struct {
	Story    string  `json:"story"`
	Step     string  `json:"step"`
	Took     float64 `json:"took_s"`
	Pauses   []int64 `json:"pauses_ms"` // the longest of each partition
	Graceful bool    `json:"graceful"`  // every error was one to repeat, but for lost connections to who was stopped
	counts           // during the step
}

// step does one step, in which anything may be done to a node.
func (c *campaign) step(ctx context.Context, name string, f func(ctx context.Context) error) error {
	return c.stepIn(ctx, phase{name: name}, f)
}

// inGoodOrder does a step that no client is to notice by more than an error that
// says to try again; only the nodes that are stopped may lose their connections.
func (c *campaign) inGoodOrder(ctx context.Context, name string, stopping []string, f func(ctx context.Context) error) error {
	return c.stepIn(ctx, phase{name, true, stopping}, f)
}

// stepIn does one step, and says how long it took, and for how long each partition
// took nothing meanwhile.
func (c *campaign) stepIn(ctx context.Context, p phase, f func(ctx context.Context) error) error {
	name := p.name
	c.ledger.begin(p)
	before, _ := c.ledger.sums()
	c.ledger.markPauses()
	begun := time.Now()
	err := f(ctx)
	took := time.Since(begun)
	pauses := c.ledger.longestPauses()
	after, violations := c.ledger.sums()
	r := stepReport{Story: c.story, Step: name, Graceful: p.graceful, Took: took.Seconds(), counts: after.since(before)}
	for _, p := range pauses {
		r.Pauses = append(r.Pauses, p.Milliseconds())
	}
	c.longest = max(c.longest, slices.Max(pauses))
	fmt.Printf("%6.2fs  %s: longest pauses %s ms; %d acknowledged, %d unknown, %d rejected; %s lost\n",
		took.Seconds(), name, inMilliseconds(pauses), r.Acked, r.Unknown, r.Rejected, connections(r.Lost))
	if c.report != nil {
		err = errors.Join(err, c.report.Encode(r))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for _, i := range c.cluster.members() {
		if err := c.cluster.nodes[i].fallen(); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if len(violations) > 0 {
		return fmt.Errorf("%s:\n%s", name, strings.Join(violations, "\n"))
	}
	return nil
}

func (c counts) since(before counts) counts {
	return counts{
		Sent: c.Sent - before.Sent, Acked: c.Acked - before.Acked, Rejected: c.Rejected - before.Rejected,
		Refused: c.Refused - before.Refused, Unknown: c.Unknown - before.Unknown, Read: c.Read - before.Read,
		Lost: c.Lost - before.Lost,
	}
}

func connections(n int64) string {
	if n == 1 {
		return "1 connection"
	}
	return fmt.Sprintf("%d connections", n)
}

// settle is how long one waits after a node is ready before the next one is
// stopped: leaderships come back to it meanwhile.
const settle = time.Second

// rollingStory restarts all nodes, one after the other.
func rollingStory(ctx context.Context, c *campaign) error {
	for range c.times {
		for _, i := range c.cluster.members() {
			n := c.cluster.nodes[i]
			err := c.inGoodOrder(ctx, "restart "+n.name, []string{n.name}, func(ctx context.Context) error {
				if err := c.cluster.stop([]int{i}); err != nil {
					return err
				}
				return c.comeBack(ctx, i)
			})
			if err != nil {
				return err
			}
		}
	}
	for range c.times {
		for _, i := range c.cluster.members() {
			n := c.cluster.nodes[i]
			err := c.step(ctx, "kill -9 and start "+n.name, func(ctx context.Context) error {
				n.kill()
				return c.comeBack(ctx, i)
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// comeBack starts a node and waits until it is ready and can be counted on.
func (c *campaign) comeBack(ctx context.Context, i int) error {
	if err := c.cluster.nodes[i].start(); err != nil {
		return err
	}
	bound, cancel := context.WithTimeout(ctx, serveBound)
	defer cancel()
	if err := c.cluster.awaitReady(bound, i); err != nil {
		return err
	}
	return wait(ctx, settle)
}

// voteLimit is how many members vote at most.
const voteLimit = 5

// growStory has four nodes join, all at once but for the first, and four leave.
func growStory(ctx context.Context, c *campaign) error {
	spare := []int{3, 4, 5, 6}
	for _, some := range [][]int{spare[:1], spare[1:]} {
		err := c.inGoodOrder(ctx, "start "+c.namesOf(some), nil, func(ctx context.Context) error {
			for _, i := range some {
				if err := c.cluster.nodes[i].start(); err != nil {
					return err
				}
			}
			return c.takenIn(ctx, some)
		})
		if err != nil {
			return err
		}
		want := min(len(c.cluster.members()), voteLimit)
		if err := c.graceUntil(ctx, fmt.Sprintf("%d voters", want), func(s *clusterState) bool { return s.seats("voter") == want }); err != nil {
			return err
		}
	}
	if err := c.graceUntil(ctx, "the partitions are spread over all", (*clusterState).balanced); err != nil {
		return err
	}
	// A standby, the node that leads the metadata, an initial member, and one
	// that joined.
	state, err := c.cluster.state(ctx)
	if err != nil {
		return err
	}
	for _, leaves := range []func(s *clusterState) string{
		func(s *clusterState) string { return s.first("learner", "") },
		func(s *clusterState) string { return s.Leader },
		func(s *clusterState) string { return s.first("voter", s.Leader) },
		func(s *clusterState) string { return s.last("voter", s.Leader) },
	} {
		if err := c.leave(ctx, leaves(state)); err != nil {
			return err
		}
		if state, err = c.cluster.state(ctx); err != nil {
			return err
		}
	}
	if len(state.Members) != 3 || state.seats("voter") != 3 {
		return fmt.Errorf("not three voters are left: %v", state)
	}
	return wait(ctx, settle)
}

// takenIn waits until nodes that join are ready: they are members from then on.
func (c *campaign) takenIn(ctx context.Context, some []int) error {
	for _, i := range some {
		bound, cancel := context.WithTimeout(ctx, serveBound)
		err := c.cluster.awaitReady(bound, i)
		cancel()
		if err != nil {
			return err
		}
		c.cluster.nodes[i].member.Store(true)
	}
	return nil
}

// leave takes a member out, and waits until its process has ended.
func (c *campaign) leave(ctx context.Context, name string) error {
	i, err := c.cluster.indexOf(name)
	if err != nil {
		return err
	}
	n := c.cluster.nodes[i]
	return c.inGoodOrder(ctx, "decommission "+name, []string{name}, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, changeBound)
		defer cancel()
		if err := c.cluster.decommission(ctx, name, false); err != nil {
			return err
		}
		return c.gone(ctx, n)
	})
}

// gone waits until a node that leaves is no member, and has ended as such.
func (c *campaign) gone(ctx context.Context, n *node) error {
	status, err := n.exit(ctx)
	n.member.Store(false)
	c.ledger.out(n.name)
	if err == nil && status != goneStatus {
		err = fmt.Errorf("node %s ended with status %d, want %d; see %s", n.name, status, goneStatus, n.log)
	}
	if err != nil {
		return err
	}
	return c.cluster.until(ctx, func(s *clusterState) bool { return !s.has(n.name) })
}

// stepUntil waits until the cluster is as it should be.
func (c *campaign) stepUntil(ctx context.Context, what string, want func(s *clusterState) bool) error {
	return c.step(ctx, what, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, changeBound)
		defer cancel()
		return c.cluster.until(ctx, want)
	})
}

// graceUntil is stepUntil in good order.
func (c *campaign) graceUntil(ctx context.Context, what string, want func(s *clusterState) bool) error {
	return c.inGoodOrder(ctx, what, nil, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, changeBound)
		defer cancel()
		return c.cluster.until(ctx, want)
	})
}

func (c *campaign) namesOf(nodes []int) string {
	var names []string
	for _, i := range nodes {
		names = append(names, c.cluster.nodes[i].name)
	}
	return strings.Join(names, ", ")
}

func (o *options) spare() int {
	if o.story == "" {
		return 0
	}
	return storyOf(o.story).spare
}
