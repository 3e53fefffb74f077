package stele_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/stelelog/stele"
)

// A program's steps: what may be done, how often, and how. may says whether a
// step is possible now; do takes it.
type programStep struct {
	name   string
	weight int
	may    func(*program) bool
	do     func(*program)
}

var programSteps = []programStep{
	{"join", 4, func(p *program) bool { return len(p.members(p.any)) < 7 }, (*program).join},
	{"kill", 3, (*program).mayFail, func(p *program) { p.fail(p.c.Kill, "is killed") }},
	{"lose power", 3, (*program).mayFail, func(p *program) { p.fail(p.c.PowerLoss, "loses power") }},
	{"close", 2, (*program).mayFail, func(p *program) { p.fail(p.c.Close, "is closed") }},
	{"start", 6, func(p *program) bool { return len(p.members(p.down)) > 0 }, (*program).restart},
	{"all lose power", 1, (*program).always, (*program).powerLossAll},
	{"wipe", 4, func(p *program) bool { return len(p.members(p.any)) >= 3 && len(p.members(p.ill)) == 0 }, (*program).wipe},
	{"change the address", 2, func(p *program) bool { return len(p.members(p.ill)) == 0 }, (*program).moveAway},
	{"decommission", 5, func(p *program) bool { return len(p.members(p.stays)) > 3 }, (*program).decommission},
	{"cancel", 2, func(p *program) bool { return len(p.leaving()) > 0 }, (*program).cancel},
	{"transfer", 4, (*program).always, (*program).transfer},
	{"move", 4, (*program).always, (*program).move},
	{"cut", 3, (*program).mayFail, (*program).cutOff},
	{"heal", 4, func(p *program) bool { return len(p.cut) > 0 }, (*program).heal},
	{"return with the old disk", 2, func(p *program) bool { return len(p.outs()) > 0 }, (*program).returns},
	{"be born again", 3, func(p *program) bool { return len(p.outs()) > 0 && len(p.members(p.any)) < 7 }, (*program).reborn},
	{"create a topic", 2, func(p *program) bool { return len(p.topics) < 4 }, (*program).createTopic},
	{"delete a topic", 1, func(p *program) bool { return len(p.topics) > 0 }, (*program).deleteTopic},
}

func (p *program) step(n int) {
	p.look()
	var possible []programStep
	total := 0
	for _, s := range programSteps {
		if s.may(p) {
			possible = append(possible, s)
			total += s.weight
		}
	}
	at := p.rng.IntN(total)
	for _, s := range possible {
		if at -= s.weight; at < 0 {
			p.note("step %d: %s", n, s.name)
			s.do(p)
			break
		}
	}
	p.c.Sleep(shortOrLong(p.rng))
}

// shortOrLong is a moment, a while, or long enough for anything to come to rest.
func shortOrLong(rng *rand.Rand) time.Duration {
	longest := []time.Duration{time.Second, time.Second, 10 * time.Second, 10 * time.Second, 60 * time.Second}[rng.IntN(5)]
	return time.Duration(rng.Int64N(int64(longest)))
}

func (p *program) always() bool { return true }

func (p *program) mayFail() bool { return p.spare() && len(p.members(p.well)) > 1 }

func (p *program) outs() (all []int) {
	for i := range p.c.Size() {
		if p.out[i] {
			all = append(all, i)
		}
	}
	return all
}

func (p *program) leaving() []int { return p.members(func(i int) bool { return p.asked[i] }) }

// helper is a member to call, that is neither i nor broken; -1: none.
func (p *program) helper(not int) int {
	all := p.members(func(i int) bool { return i != not && p.well(i) })
	if len(all) == 0 {
		return -1
	}
	return pick(p.rng, all)
}

func (p *program) join() {
	i := p.c.Add()
	p.note("    %s joins", p.name(i))
	p.start(i)
}

func (p *program) fail(how func(int), what string) {
	i := pick(p.rng, p.members(p.well))
	p.note("    %s %s", p.name(i), what)
	how(i)
}

func (p *program) restart() {
	i := pick(p.rng, p.members(p.down))
	p.note("    %s starts", p.name(i))
	p.start(i)
}

func (p *program) powerLossAll() {
	p.c.PowerLossAll()
	clear(p.cut)
	p.c.Net.HealAll()
	p.c.Sleep(shortOrLong(p.rng) / 10)
	for _, i := range p.members(p.down) {
		p.c.Sleep(time.Duration(p.rng.Int64N(int64(time.Second))))
		p.start(i)
	}
}

// wipe takes one member's disk, as soon as all that was wiped before is settled:
// more is not promised.
func (p *program) wipe() {
	deadline := time.Now().Add(3 * time.Minute)
	why := p.unsettled()
	for ; why != "" && time.Now().Before(deadline); why = p.unsettled() {
		p.c.Sleep(time.Second)
	}
	if why != "" || len(p.leaving()) > 0 {
		p.note("    nobody: %s", why)
		return
	}
	i := pick(p.rng, p.members(p.well))
	p.note("    %s loses its disk", p.name(i))
	p.c.PowerLoss(i)
	p.c.Wipe(i)
	p.over = append(p.over, p.ids[i])
	delete(p.ids, i)
	p.c.Sleep(shortOrLong(p.rng))
	p.start(i)
}

func (p *program) moveAway() {
	i := pick(p.rng, p.members(p.well))
	p.c.Kill(i)
	p.c.MoveTo(i, fmt.Sprintf("moved-%d-%d:7942", i, p.rng.IntN(1000)))
	p.note("    %s moves to %s", p.name(i), p.c.Member(i).Addr)
	p.c.Sleep(shortOrLong(p.rng) / 10)
	p.start(i)
}

func (p *program) decommission() {
	i := pick(p.rng, p.members(p.stays))
	at := p.helper(-1)
	if at < 0 || p.ids[i] == 0 {
		return
	}
	force := p.rng.IntN(4) == 0
	p.note("    %s is to leave, asked at %s, force %v", p.name(i), p.name(at), force)
	ctx, cancel := context.WithTimeout(p.c.T.Context(), callWithin)
	defer cancel()
	_, err := p.c.Node(at).Decommission(ctx, p.name(i), stele.DecommissionOptions{Force: force})
	if p.outcome("Decommission", err) {
		p.asked[i] = true
	}
}

func (p *program) cancel() {
	i := pick(p.rng, p.leaving())
	at := p.helper(-1)
	if at < 0 {
		return
	}
	p.note("    %s is to stay, asked at %s", p.name(i), p.name(at))
	p.takeBack(at, i)
}

// takeBack cancels a decommission, and reports whether it did.
func (p *program) takeBack(at, i int) bool {
	ctx, cancel := context.WithTimeout(p.c.T.Context(), callWithin)
	defer cancel()
	d, err := p.c.Node(at).Decommission(ctx, p.name(i), stele.DecommissionOptions{WhenPossible: true})
	if err == nil {
		err = d.Cancel(ctx)
	}
	p.outcome("Cancel", err)
	if err == nil {
		delete(p.asked, i)
	}
	return err == nil
}

// transfer hands the leadership of the metadata or of a partition to a member.
func (p *program) transfer() {
	i := pick(p.rng, p.members(p.any))
	at := p.helper(-1)
	of := stele.TopicPartition{}
	if n := p.rng.IntN(partitionsUnderLoad + 2); n < partitionsUnderLoad {
		of = stele.TopicPartition{Topic: "orders", Partition: uint32(n)}
	}
	if at < 0 {
		return
	}
	p.note("    %v to %s, asked at %s", of, p.name(i), p.name(at))
	ctx, cancel := context.WithTimeout(p.c.T.Context(), callWithin)
	defer cancel()
	p.outcome("TransferLeadership", p.c.Node(at).TransferLeadership(ctx, of, p.name(i)))
}

// move has a replica of a partition go from one member to another. Most often the
// one has it and the other has not.
func (p *program) move() {
	at := p.helper(-1)
	from, to := pick(p.rng, p.members(p.any)), pick(p.rng, p.members(p.any))
	of := stele.TopicPartition{Topic: "orders", Partition: uint32(p.rng.IntN(partitionsUnderLoad))}
	if at < 0 {
		return
	}
	p.note("    %v from %s to %s, asked at %s", of, p.name(from), p.name(to), p.name(at))
	ctx, cancel := context.WithTimeout(p.c.T.Context(), callWithin)
	defer cancel()
	p.outcome("MoveReplica", p.c.Node(at).MoveReplica(ctx, of, p.name(from), p.name(to)))
}

// cutOff breaks what a member sends, what it receives, or both, to and from some
// of the others or all.
func (p *program) cutOff() {
	i := pick(p.rng, p.members(p.well))
	p.cut[i] = true
	way := p.rng.IntN(3)
	all := p.rng.IntN(2) == 0
	p.note("    %s: %s, all %v", p.name(i), []string{"is not heard", "hears nothing", "is isolated"}[way], all)
	for j := range p.c.Size() {
		if j == i || !all && p.rng.IntN(2) == 0 {
			continue
		}
		here, there := p.c.Member(i).Addr, p.c.Member(j).Addr
		if way != 1 {
			p.c.Net.Cut(here, there)
		}
		if way != 0 {
			p.c.Net.Cut(there, here)
		}
	}
}

func (p *program) heal() {
	clear(p.cut)
	p.c.Net.HealAll()
}

func (p *program) returns() {
	i := pick(p.rng, p.outs())
	p.note("    %s returns with its old disk", p.name(i))
	if p.runs(i) {
		p.c.Kill(i)
	}
	p.c.Start(i)
}

func (p *program) reborn() {
	i := pick(p.rng, p.outs())
	p.note("    %s starts with an empty disk", p.name(i))
	if p.runs(i) {
		p.c.Kill(i)
	}
	p.c.Wipe(i)
	delete(p.out, i)
	delete(p.asked, i)
	delete(p.ids, i)
	p.start(i)
}

func (p *program) createTopic() {
	at := p.helper(-1)
	if at < 0 {
		return
	}
	name := fmt.Sprintf("topic-%d", len(p.topics))
	cfg := stele.TopicConfig{Partitions: uint32(1 + p.rng.IntN(4)), Replicas: 3}
	p.note("    %s, %d partitions, asked at %s", name, cfg.Partitions, p.name(at))
	ctx, cancel := context.WithTimeout(p.c.T.Context(), callWithin)
	defer cancel()
	p.topics[name] = "there"
	if _, err := p.c.Node(at).CreateTopic(ctx, name, cfg); err != nil {
		p.topics[name] = "gone"
		if p.outcome("CreateTopic", err) {
			p.topics[name] = "unknown"
		}
	}
}

func (p *program) deleteTopic() {
	at := p.helper(-1)
	name := fmt.Sprintf("topic-%d", p.rng.IntN(len(p.topics)))
	if at < 0 || p.topics[name] == "gone" {
		return
	}
	p.note("    %s, asked at %s", name, p.name(at))
	ctx, cancel := context.WithTimeout(p.c.T.Context(), callWithin)
	defer cancel()
	if err := p.c.Node(at).DeleteTopic(ctx, name); err == nil {
		p.topics[name] = "gone"
	} else if p.outcome("DeleteTopic", err) {
		p.topics[name] = "unknown"
	}
}
