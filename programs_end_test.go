package stele_test

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// unsettled says what of the cluster is on its way, "" if nothing is: all
// members are ready and alive, there is one life of each name, no replica moves,
// and every voter of every group durably knows its configuration.
func (p *program) unsettled() string {
	members := p.members(p.any)
	for _, i := range members {
		n := p.c.Node(i)
		if n == nil {
			return p.name(i) + " is down"
		}
		if r := n.Readiness(); !r.Ready() {
			return fmt.Sprintf("%s is %v", p.name(i), r)
		}
	}
	leader := p.c.MetadataLeader()
	if leader < 0 || p.out[leader] {
		return "nobody leads the metadata"
	}
	p.look()
	n := p.c.Node(leader)
	if s := n.Status().Metadata; !s.Settled || s.ConfPending || len(s.Conf.VotersOutgoing) > 0 {
		return fmt.Sprintf("the metadata's configuration %+v is not settled", s.Conf)
	}
	for _, i := range members {
		if why := p.agrees(i, p.c.Node(i).Members()); why != "" {
			return fmt.Sprintf("%s knows %s", p.name(i), why)
		}
	}
	return p.partitionsUnsettled()
}

// agrees compares the members that a node knows with the program's.
func (p *program) agrees(at int, known []stele.Member) string {
	var want []int
	want = append(want, p.members(p.any)...)
	if len(known) != len(want) {
		return fmt.Sprintf("%d members, not %d", len(known), len(want))
	}
	voters := 0
	for _, i := range want {
		k := slices.IndexFunc(known, func(m stele.Member) bool { return m.Name == p.name(i) })
		switch {
		case k < 0:
			return fmt.Sprintf("no %s", p.name(i))
		case known[k].Node != p.c.Node(i).Status().Node:
			return fmt.Sprintf("another life of %s, %v", p.name(i), known[k].Node)
		case at == p.c.MetadataLeader() && known[k].Addr != p.c.Member(i).Addr: // others may not have heard it yet
			return fmt.Sprintf("%s at %s", p.name(i), known[k].Addr)
		case known[k].Liveness.Dead:
			return fmt.Sprintf("%s as dead", p.name(i))
		case known[k].Seat == stele.SeatNone:
			return fmt.Sprintf("%s without a seat", p.name(i))
		case known[k].Seat == stele.SeatVoter:
			voters++
		}
		if slices.Contains(p.over, known[k].Node) {
			return fmt.Sprintf("%v of %s, which is over", known[k].Node, p.name(i))
		}
	}
	if full := min(5, len(want)); voters != full {
		return fmt.Sprintf("%d voters, not %d", voters, full)
	}
	return ""
}

// partitionsUnsettled looks at every partition's leader.
func (p *program) partitionsUnsettled() string {
	ctx, cancel := context.WithTimeout(p.c.T.Context(), callWithin)
	defer cancel()
	at := p.members(p.any)[0]
	cluster, err := p.c.Node(at).DescribeCluster(ctx)
	if err != nil {
		return err.Error()
	}
	if len(cluster.Moves) > 0 {
		return fmt.Sprintf("%d moves are under way", len(cluster.Moves))
	}
	topics, err := p.c.Node(at).ListTopics(ctx)
	if err != nil {
		return err.Error()
	}
	settled := map[storage.GroupID]bool{}
	for _, i := range p.members(p.any) {
		for _, s := range p.c.Node(i).Status().Partitions {
			if s.Err != nil {
				return fmt.Sprintf("%s/%d on %s: %v", s.Topic, s.Partition, p.name(i), s.Err)
			}
			if s.Role == raftlog.RoleLeaderActive && len(s.Unsettled) == 0 {
				settled[s.Group] = true
			}
		}
	}
	for _, t := range topics {
		for _, part := range t.Partitions {
			var want []raftlog.ReplicaID
			for _, a := range part.Replicas {
				want = append(want, a.Replica)
			}
			conf := p.c.Conf(part.Group)
			have := slices.Clone(conf.Voters)
			slices.Sort(want)
			slices.Sort(have)
			if !settled[part.Group] || !slices.Equal(want, have) || len(conf.Learners)+len(conf.VotersOutgoing) > 0 {
				return fmt.Sprintf("%s/%d: settled %v, configuration %+v, replicas %v", t.Name, part.Index, settled[part.Group], conf, part.Replicas)
			}
		}
	}
	return ""
}

// finish heals all and demands what the program promised.
func (p *program) finish() {
	t := p.c.T
	p.note("the end: all is healed")
	p.heal()
	for _, i := range p.members(p.down) {
		p.start(i)
	}
	healed := time.Now()
	p.await(5*time.Minute, "all members are ready", func() string {
		p.look()
		for _, i := range p.members(p.any) {
			if time.Since(healed) > time.Minute && p.knowsNobody(i) {
				p.note("%s knows no address any more where a member is, and is told one", p.name(i))
				p.c.Kill(i)
				p.c.Tell(i)
				p.start(i)
			}
			if r := p.c.Node(i).Readiness(); !r.Ready() && !p.asked[i] {
				return fmt.Sprintf("%s is %v", p.name(i), r)
			}
		}
		return ""
	})
	p.endDepartures()
	p.await(12*time.Minute, "the cluster comes to rest", p.unsettled)
	before := p.l.Acked()
	p.await(time.Minute, "records are taken in", func() string {
		if n := p.l.Acked(); n <= before+20 {
			return fmt.Sprintf("%d acknowledged, %d before", n, before)
		}
		return ""
	})
	for _, load := range p.load {
		load.Stop()
	}
	for _, i := range p.outs() {
		if p.runs(i) {
			p.await(2*time.Minute, "it knows that it was removed", func() string {
				if r := p.c.Node(i).Readiness(); r.Code != stele.Removed {
					return fmt.Sprintf("%s is %v", p.name(i), r)
				}
				return ""
			})
		}
	}
	for _, i := range p.members(p.any) {
		p.l.Verify(i)
		p.verifyTopics(i)
	}
	for i := range p.c.Size() {
		if p.runs(i) {
			p.c.Close(i)
		}
	}
	require.GreaterOrEqual(t, p.c.CompareOffline(), p.l.Acked(), "seed %d", p.seed)
}

// knowsNobody reports whether a node that never got into the cluster was left with
// addresses, configured, remembered or named to it, at none of which a member is, nor
// anyone who could name one: then nobody but a person can help it.
func (p *program) knowsNobody(i int) bool {
	tried := p.c.Node(i).Tried()
	if len(tried) == 0 {
		return false
	}
	var near func(addr string, far int) bool
	near = func(addr string, far int) bool { // whether a member is there, or one who knows where
		for j := range p.c.Size() {
			n := p.c.Node(j)
			if j == i || n == nil || p.c.Member(j).Addr != addr {
				continue
			}
			if !p.out[j] {
				return true
			}
			for _, m := range n.Members() {
				if far > 0 && near(m.Addr, far-1) {
					return true
				}
			}
		}
		return false
	}
	return !slices.ContainsFunc(tried, func(addr string) bool { return near(addr, 3) })
}

// endDepartures has every member that leaves either gone or called back: one may
// wait for a person, because it is the only way to keep three voters.
func (p *program) endDepartures() {
	for _, i := range p.leaving() {
		stay := len(p.members(p.stays))
		if stay < 3 {
			if at := p.helper(i); at >= 0 && p.takeBack(at, i) {
				p.note("%s is called back", p.name(i))
				continue
			}
		}
		p.await(15*time.Minute, p.name(i)+" leaves", func() string {
			p.look()
			if p.out[i] || !p.drains(i) {
				return ""
			}
			return "it is a member"
		})
		if !p.out[i] {
			p.note("%s never left", p.name(i))
			delete(p.asked, i) // the call that may have begun it did not
		}
	}
}

// drains reports whether the cluster says that a member is on its way out.
func (p *program) drains(i int) bool {
	ctx, cancel := context.WithTimeout(p.c.T.Context(), callWithin)
	defer cancel()
	at := p.helper(i)
	if at < 0 {
		return true
	}
	cluster, err := p.c.Node(at).DescribeCluster(ctx)
	if err != nil {
		return true
	}
	return slices.ContainsFunc(cluster.Members, func(m stele.Member) bool {
		return m.Name == p.name(i) && m.Liveness.Draining()
	}) || !slices.ContainsFunc(cluster.Members, func(m stele.Member) bool { return m.Name == p.name(i) })
}

// verifyTopics compares the topics that a member lists with the program's.
func (p *program) verifyTopics(i int) {
	ctx, cancel := context.WithTimeout(p.c.T.Context(), callWithin)
	defer cancel()
	all, err := p.c.Node(i).ListTopics(ctx)
	require.NoError(p.c.T, err, "seed %d", p.seed)
	for name, want := range p.topics {
		there := slices.ContainsFunc(all, func(t stele.Topic) bool { return t.Name == name })
		if want != "unknown" && there != (want == "there") {
			p.c.T.Errorf("seed %d: %s is to be %s, %s says %v", p.seed, name, want, p.name(i), there)
		}
	}
}
