package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

const statusAbout = `
Status asks the given nodes, and those that they name, and shows who leads what
and how many records each replica is behind. A partition of which no node that
answers has a replica is unreachable; one of which a forced recovery left none is
lost. The metadata is a group like each partition. Numbers of a busy cluster are a moment apart.
`

// patience is how long one node may take to answer about itself.
const patience = 2 * time.Second

func runStatus(ctx context.Context, args []string, io console) error {
	f := newFlags("status", statusAbout, io)
	topic := f.String("topic", "", "show the partitions of this `topic` only")
	return f.ask(args, nothing, func(c *client) error {
		v := view{client: c, topic: *topic, nodes: map[string]*nodeView{}}
		if err := v.ask(ctx); err != nil {
			return err
		}
		return v.print(io.out)
	})
}

// nodeView is what a node says of itself, or why it says nothing.
type nodeView struct {
	statusAnswer
	http string
	err  error
}

// view is the cluster as its nodes describe it.
type view struct {
	client *client
	topic  string
	nodes  map[string]*nodeView // by HTTP address
}

// ask asks all nodes whose addresses are known, until no new ones turn up. The
// error is that of the first one, if none answers.
func (v *view) ask(ctx context.Context) error {
	var first error
	answered := false
	for unknown := v.client.addrs; len(unknown) > 0; {
		fresh := v.askAll(ctx, unknown)
		unknown = nil
		for _, n := range fresh {
			if n.err != nil {
				first = cmp.Or(first, n.err)
				continue
			}
			answered = true
			for _, m := range n.Members {
				if m.HTTP != "" && v.nodes[m.HTTP] == nil && !slices.Contains(unknown, m.HTTP) {
					unknown = append(unknown, m.HTTP)
				}
			}
		}
	}
	if !answered {
		return first
	}
	return nil
}

// askAll asks nodes at the same time.
func (v *view) askAll(ctx context.Context, addrs []string) []*nodeView {
	ctx, cancel := context.WithTimeout(ctx, min(patience, v.client.timeout))
	defer cancel()
	fresh := make([]*nodeView, len(addrs))
	var wg sync.WaitGroup
	for i, addr := range addrs {
		n := &nodeView{http: addr}
		fresh[i], v.nodes[addr] = n, n
		wg.Go(func() {
			n.err = v.client.jsonFrom(ctx, addr, http.MethodGet, "/status", url.Values{"topic": {v.topic}}, nil, &n.statusAnswer)
		})
	}
	wg.Wait()
	return fresh
}

// names are the nodes' names: of all that are listed anywhere, in order.
func (v *view) names() []string {
	all := map[string]bool{}
	for _, n := range v.nodes {
		if n.err == nil {
			all[n.Name] = true
		}
		for _, m := range n.Members {
			all[m.Name] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// node is what the node of a name says, or nil.
func (v *view) node(name string) *nodeView {
	for _, n := range v.nodes {
		if n.err == nil && n.Name == name {
			return n
		}
	}
	return nil
}

// silence is why nothing is known of a node.
func (v *view) silence(name string) string {
	for _, n := range v.nodes {
		for _, m := range n.Members {
			if m.Name == name && v.nodes[m.HTTP] != nil {
				return v.nodes[m.HTTP].err.Error()
			}
		}
	}
	return "its HTTP address is not known: give it in -http"
}

func (v *view) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tLEADS\tGROUPS\tHTTP\tREADINESS")
	for _, name := range v.names() {
		n := v.node(name)
		if n == nil {
			fmt.Fprintf(w, "%s\t\t\t\t%s\n", name, v.silence(name))
			continue
		}
		leads := 0
		for _, g := range n.Groups {
			if isLeader(g.Role) {
				leads++
			}
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\n", name, leads, len(n.Groups), n.http, strings.TrimSuffix(string(n.Code)+": "+n.Reason, ": "))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return v.printGroups(out)
}

// groupView is a group with what each node says of its replica.
type groupView struct {
	topic     string
	partition uint32
	leader    string // of the highest term that anybody knows; empty: none
	term      uint64
	start     int64 // highest that anybody says: what is below is gone
	watermark int64
	on        map[string]groupAnswer // by the node's name
	known     partitionInfo          // of a partition, as the nodes that answer know it
}

// led is who leads, or why nobody is known to.
func (g *groupView) led() string {
	switch {
	case g.known.Lost:
		return "lost"
	case len(g.on) == 0:
		return "unreachable"
	}
	return cmp.Or(g.leader, "none")
}

// note says what helps a partition without a leader, "" if it has one.
func (g *groupView) note() string {
	switch g.led() {
	case "lost":
		return "is lost: a forced recovery left no replica of it; copy the other partitions of its topic elsewhere, then delete it"
	case "unreachable":
		return "is unreachable: it is on " + strings.Join(g.known.On, ", ") + ", and none of them answers"
	case "none":
		return "has no leader: it needs a majority of its replicas; start their nodes, or if they are lost for good see recover"
	}
	return ""
}

// newest is what the node says whose metadata are newest.
func (v *view) newest() (a statusAnswer) {
	newest := int64(-1)
	for _, n := range v.nodes {
		if len(n.Groups) > 0 && n.Groups[0].Topic == "" && n.Groups[0].HighWatermark > newest {
			newest, a = n.Groups[0].HighWatermark, n.statusAnswer
		}
	}
	return a
}

func (v *view) groups() []*groupView {
	all := map[uint64]*groupView{}
	for _, n := range v.nodes {
		for _, g := range n.Groups {
			gv := all[g.Group]
			if gv == nil {
				gv = &groupView{topic: g.Topic, partition: g.Partition, on: map[string]groupAnswer{}}
				all[g.Group] = gv
			}
			gv.on[n.Name] = g
			if g.Term > gv.term || g.Term == gv.term && gv.leader == "" {
				gv.term, gv.leader = g.Term, g.Leader
			}
			gv.start = max(gv.start, g.Start)
			gv.watermark = max(gv.watermark, g.HighWatermark)
		}
	}
	for _, p := range v.newest().Known {
		gv := all[p.Group]
		if gv == nil {
			gv = &groupView{topic: p.Topic, partition: p.Partition, on: map[string]groupAnswer{}}
			all[p.Group] = gv
		}
		gv.known = p
	}
	return slices.SortedFunc(maps.Values(all), func(a, b *groupView) int {
		return cmp.Or(cmp.Compare(a.topic, b.topic), cmp.Compare(a.partition, b.partition))
	})
}

func (v *view) printGroups(out io.Writer) error {
	groups, names := v.groups(), v.names()
	if len(groups) == 0 {
		return nil // no cluster yet; the nodes' readiness said why
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\nGROUP\tLEADER\tTERM\tSTART\tEND\t%s\n", strings.Join(names, "\t"))
	var notes []string
	for _, g := range groups {
		name := "metadata"
		if g.topic != "" {
			name = fmt.Sprintf("%s/%d", g.topic, g.partition)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d", name, g.led(), g.term, g.start, g.watermark)
		if why := g.note(); why != "" {
			notes = append(notes, name+" "+why)
		}
		for _, node := range names {
			fmt.Fprintf(w, "\t%s", v.cell(g, node))
			if r := g.on[node]; r.Error != "" {
				notes = append(notes, fmt.Sprintf("%s on %s: %s", name, node, r.Error))
			} else if r.Waits != "" {
				notes = append(notes, fmt.Sprintf("%s on %s: nothing is removed: %s", name, node, r.Waits))
			}
		}
		fmt.Fprintln(w)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, n := range notes {
		fmt.Fprintln(out, n)
	}
	for _, l := range v.newest().Leaving {
		l.print(out)
	}
	return nil
}

// cell is what a node's replica does, and how far it is behind.
func (v *view) cell(g *groupView, node string) string {
	r, ok := g.on[node]
	behind := g.watermark - r.HighWatermark
	switch {
	case v.node(node) == nil && (len(g.known.On) == 0 || slices.Contains(g.known.On, node)):
		return "?"
	case !ok:
		return "-"
	case r.Error != "":
		return "failed"
	case !r.Readable && isLeader(r.Role):
		return "leader, starting"
	case isLeader(r.Role):
		return "leader"
	case !r.Readable:
		return r.Role + ", catching up"
	case behind > 0:
		return fmt.Sprintf("%s, %d behind", r.Role, behind)
	}
	return r.Role
}

// isLeader reads a role that travelled as a word.
func isLeader(role string) bool { return strings.HasPrefix(role, "leader-") }
