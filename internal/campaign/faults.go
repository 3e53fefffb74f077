//go:build unix

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// fault is something that machines and operators do to a cluster.
type fault struct {
	name    string
	network bool // needs namespaces
	victims int  // nodes that it strikes; -1: all
	// majority says that those that it does not strike can go on.
	majority bool
	// aim has it strike a node that leads, as far as one can tell.
	aim bool
	// strike does it, and heal takes it away. What heal leaves running is up
	// to the round to wait for.
	strike func(ctx context.Context, c *cluster, r *round) error
	heal   func(ctx context.Context, c *cluster, r *round) error
}

// allFaults are the faults that rounds choose from.
func allFaults() []fault {
	return []fault{
		{name: "kill -9 a node", victims: 1, majority: true, strike: kill, heal: start},
		{name: "kill -9 a node that leads", victims: 1, majority: true, aim: true, strike: kill, heal: start},
		{name: "kill -9 two nodes", victims: 2, strike: kill, heal: start},
		{name: "kill -9 all nodes", victims: -1, strike: kill, heal: start},
		{name: "kill -9 a node, again while it starts", victims: 1, majority: true, strike: kill, heal: startTwice},
		{name: "kill -9 all nodes, again while they start", victims: -1, strike: kill, heal: startTwice},
		{name: "SIGSTOP a node", victims: 1, majority: true, strike: pause, heal: resume},
		{name: "SIGSTOP a node that leads", victims: 1, majority: true, aim: true, strike: pause, heal: resume},
		{name: "SIGSTOP two nodes", victims: 2, strike: pause, heal: resume},
		{name: "SIGSTOP a node and kill -9 another", victims: 2, strike: pauseAndKill, heal: resumeAndStart},
		{name: "restart a node that leads", victims: 1, majority: true, aim: true, strike: stop, heal: start},
		{name: "restart all nodes", victims: -1, strike: stop, heal: start},
		{name: "restart one node after the other", victims: -1, strike: rolling, heal: start},
		{name: "cut a node off", network: true, victims: 1, majority: true, strike: isolate, heal: join},
		{name: "cut a node that leads off", network: true, victims: 1, majority: true, aim: true, strike: isolate, heal: join},
		{name: "a node is heard by nobody", network: true, victims: 1, majority: true, strike: mute, heal: join},
		{name: "a node that leads hears nobody", network: true, victims: 1, majority: true, aim: true, strike: deafen, heal: join},
		{name: "cut all links", network: true, victims: -1, strike: isolate, heal: join},
		{name: "cut a node off and kill -9 it", network: true, victims: 1, majority: true, strike: isolateAndKill, heal: startThenJoin},
	}
}

// round is one fault, and how it is done.
type round struct {
	number  int
	fault   fault
	rng     *rand.Rand // for what is decided on the way
	victims []int
	hold    time.Duration
}

func (r *round) String() string {
	var names []string
	for _, v := range r.victims {
		names = append(names, nodeName(v))
	}
	return fmt.Sprintf("%s: %s, for %v", r.fault.name, strings.Join(names, ", "), r.hold)
}

// planRound makes the round of a number.
func planRound(seed uint64, number, nodes int, network bool) *round {
	rng := rand.New(rand.NewPCG(seed, uint64(number)))
	var faults []fault
	for _, f := range allFaults() {
		if network || !f.network {
			faults = append(faults, f)
		}
	}
	r := &round{number: number, fault: faults[rng.IntN(len(faults))], rng: rng}
	n := r.fault.victims
	if n < 0 {
		n = nodes
	}
	r.victims = rng.Perm(nodes)[:n]
	r.hold = time.Duration(100+rng.IntN(3900)) * time.Millisecond
	return r
}

func (r *round) struck(node int) bool {
	for _, v := range r.victims {
		if v == node {
			return true
		}
	}
	return false
}

func kill(_ context.Context, c *cluster, r *round) error {
	for _, v := range r.victims {
		c.nodes[v].kill()
	}
	return nil
}

func start(_ context.Context, c *cluster, r *round) error {
	for _, v := range r.victims {
		if err := c.nodes[v].start(); err != nil {
			return err
		}
	}
	return nil
}

// startTwice kills what it started somewhere on its way up.
func startTwice(ctx context.Context, c *cluster, r *round) error {
	for range 1 + r.rng.IntN(3) {
		if err := start(ctx, c, r); err != nil {
			return err
		}
		if err := wait(ctx, time.Duration(1+r.rng.IntN(300))*time.Millisecond); err != nil {
			return err
		}
		if err := kill(ctx, c, r); err != nil {
			return err
		}
	}
	return start(ctx, c, r)
}

func pause(_ context.Context, c *cluster, r *round) error {
	for _, v := range r.victims {
		if err := c.nodes[v].pause(); err != nil {
			return err
		}
	}
	return nil
}

func resume(_ context.Context, c *cluster, r *round) error {
	for _, v := range r.victims {
		if err := c.nodes[v].resume(); err != nil {
			return err
		}
	}
	return nil
}

func pauseAndKill(_ context.Context, c *cluster, r *round) error {
	c.nodes[r.victims[1]].kill()
	return c.nodes[r.victims[0]].pause()
}

func resumeAndStart(_ context.Context, c *cluster, r *round) error {
	if err := c.nodes[r.victims[0]].resume(); err != nil {
		return err
	}
	return c.nodes[r.victims[1]].start()
}

func stop(_ context.Context, c *cluster, r *round) error { return c.stop(r.victims) }

// rolling restarts all but the last node, which heal starts.
func rolling(ctx context.Context, c *cluster, r *round) error {
	for i, v := range r.victims {
		if err := c.stop([]int{v}); err != nil {
			return err
		}
		if i == len(r.victims)-1 {
			break
		}
		if err := c.nodes[v].start(); err != nil {
			return err
		}
		if err := c.awaitReady(ctx, v); err != nil {
			return err
		}
	}
	r.victims = r.victims[len(r.victims)-1:]
	return nil
}

// isolate cuts what the victims and the others send to each other.
func isolate(_ context.Context, c *cluster, r *round) error {
	return r.eachLink(c, func(victim, other int) error {
		if err := c.net.cut(victim, other); err != nil {
			return err
		}
		return c.net.cut(other, victim)
	})
}

// mute cuts what the victims send.
func mute(_ context.Context, c *cluster, r *round) error {
	return r.eachLink(c, func(victim, other int) error { return c.net.cut(victim, other) })
}

// deafen cuts what is sent to the victims.
func deafen(_ context.Context, c *cluster, r *round) error {
	return r.eachLink(c, func(victim, other int) error { return c.net.cut(other, victim) })
}

func (r *round) eachLink(c *cluster, f func(victim, other int) error) error {
	for _, v := range r.victims {
		for other := range c.nodes {
			if other != v {
				if err := f(v, other); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func join(_ context.Context, c *cluster, _ *round) error { return c.net.heal() }

func isolateAndKill(ctx context.Context, c *cluster, r *round) error {
	if err := isolate(ctx, c, r); err != nil {
		return err
	}
	return kill(ctx, c, r)
}

// startThenJoin starts nodes that find nobody at first.
func startThenJoin(ctx context.Context, c *cluster, r *round) error {
	if err := start(ctx, c, r); err != nil {
		return err
	}
	if err := wait(ctx, time.Duration(r.rng.IntN(3000))*time.Millisecond); err != nil {
		return err
	}
	return c.net.heal()
}
