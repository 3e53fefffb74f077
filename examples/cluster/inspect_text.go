package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// print tells a person what was found.
func (all *inspection) print(out io.Writer) {
	for _, d := range all.Directories {
		d.print(out)
	}
}

func (d *directory) print(out io.Writer) {
	fmt.Fprintf(out, "%s\n", d.Dir)
	if id := d.Identity; id != nil {
		fmt.Fprintf(out, "  node %s (id %d) of cluster %s %s\n", id.Name, id.Node, id.Cluster, id.ClusterID)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, g := range d.Groups {
		fmt.Fprintf(w, "  %s\t%d\t%d\t%s\n", g.name(), g.Records, g.Next, g.SHA256)
	}
	w.Flush()
	for _, s := range d.Damage {
		fmt.Fprintf(out, "  DAMAGED  %s\n", s)
	}
}

// verdict is why the exit status is 1.
func (all *inspection) verdict() string {
	damage := 0
	for _, d := range all.Directories {
		damage += len(d.Damage)
	}
	different := 0
	for _, c := range all.Compared {
		if !c.Same {
			different++
		}
	}
	return fmt.Sprintf("%d damaged, %d partitions differ", damage, different)
}
