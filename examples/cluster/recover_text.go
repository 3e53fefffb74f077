package main

import (
	"fmt"
	"io"

	"github.com/stelelog/stele"
)

// printPlan says what a plan does, to the person who decides whether to do it.
func printPlan(out io.Writer, p *stele.RecoveryPlan) {
	line := func(format string, args ...any) { fmt.Fprintf(out, format+"\n", args...) }
	line("Recovery of cluster %q (%v) from recovery epoch %d to %d, plan %v", p.Cluster, p.ClusterID, p.From, p.To, p.ID)
	names := map[stele.NodeID]string{}
	var metadata string
	for _, n := range p.Nodes {
		names[n.Node] = n.Name
		if n.GoesOn {
			metadata = n.Name
		}
	}
	line("\nWho goes on:")
	for _, n := range p.Nodes {
		what := "with the metadata of " + metadata
		if n.GoesOn {
			what = "with its own metadata"
		}
		line("  %s (%v, at %s) %s; replicas set aside: %d", n.Name, n.Node, n.Addr, what, len(n.SetAside))
	}
	line("\nLost or left behind, and never to return. Can one of their directories still be read? Then stop: it may hold what these do not, so survey it, too")
	for _, m := range p.LeftBehind {
		line("  %s (%v, at %s)", m.Name, m.Node, m.Addr)
	}

	group := map[uint64]string{}
	for _, g := range p.Forced {
		group[uint64(g.Group)] = fmt.Sprintf("%s/%d", g.Topic, g.Partition)
	}
	var unsure, gone uint64
	line("\nGoes on from one replica:")
	for _, n := range p.Nodes {
		for _, f := range n.Forced {
			name, ok := group[uint64(f.Group)]
			if !ok {
				name = "metadata"
			}
			unsure += f.Unsure
			unknown := ""
			if f.Unsure > 0 {
				unknown = fmt.Sprintf("; of its end %s kept that nobody left knows to be committed", plural(f.Unsure, "entry is", "entries are"))
			}
			if f.Gone > 0 {
				gone += f.Gone
				unknown += fmt.Sprintf("; %s lost behind it that a node whose metadata are damaged knows to be committed", plural(f.Gone, "entry is", "entries are"))
			}
			line("  %s: %v on %s, whose log ends with entry %d of term %d%s", name, f.Replica, n.Name, f.Last, f.LastTerm, unknown)
		}
	}
	if p.Kept > 0 {
		line("%s as before, by the majority that is left", plural(p.Kept, "partition goes on", "partitions go on"))
	}
	line("\nLost, with all records: no replica is left. Copy the other partitions of their topics elsewhere, then delete them")
	for _, g := range p.Lost {
		line("  %s/%d", g.Topic, g.Partition)
	}
	if len(p.Lost) == 0 {
		line("  none of the %s that the metadata know", plural(p.Partitions(), "partition", "partitions"))
	}
	line("\nWhat cannot be known:")
	line("  what only lost nodes had is gone, acknowledged or not: records, topics, members. Nobody can list it")
	if gone > 0 {
		line("  what the %s of the metadata said that are lost: topics, members and moves of the last while", plural(gone, "entry", "entries"))
	}
	if unsure > 0 {
		line("  whether what is kept without being known to be committed was acknowledged: %s. From now on it counts", plural(unsure, "entry", "entries"))
	}
	line("\nThe others must not meet these nodes: keep their machines off. Destroy their directories last, when the new cluster was looked at and nothing of them is needed.\n")
}
