package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// print tells a person what was found.
func (all *inspection) print(out io.Writer) error {
	for _, d := range all.Directories {
		if err := d.print(out); err != nil {
			return err
		}
	}
	for _, c := range all.Compared {
		if text := c.text(); text != "" {
			fmt.Fprintf(out, "%s/%d: %s\n", c.Topic, c.Partition, text)
		}
	}
	if len(all.Compared) > 0 {
		fmt.Fprintln(out, all.summary())
	}
	return nil
}

func (d *directory) print(out io.Writer) error {
	fmt.Fprint(out, d.Dir)
	if id := d.Identity; id != nil {
		fmt.Fprintf(out, ": node %s, id %d, of cluster %s (%s)", id.Name, id.Node, id.Cluster, id.ClusterID)
	}
	fmt.Fprintln(out)
	if d.Identity != nil {
		if d.Identity.Epoch > 0 {
			fmt.Fprintf(out, "  in recovery epoch %d\n", d.Identity.Epoch)
		}
		if d.Identity.Recovery != "" {
			fmt.Fprintf(out, "  RECOVERY: %s\n", d.Identity.Recovery)
		}
		d.printJournal(out)
		fmt.Fprintf(out, "  replicas: %d; topic directories: %d, and %d in quarantine\n", len(d.Groups), len(d.Topics), len(d.Quarantined))
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if len(d.Groups) > 0 {
		fmt.Fprintln(w, "  GROUP\tREPLICA\tTERM\tENTRIES\tOFFSETS\tFILES\tSHA256 OF RECORDS\t")
	}
	aside := 0
	for _, g := range d.Groups {
		if g.SetAside {
			aside++
			continue
		}
		fmt.Fprintf(w, "  %s\t%d\t%d\t%d\t%d to %d\t%s\t%.16s\t%s\n", g.name(), g.Replica, g.Term, g.Entries,
			g.Start, g.HighWatermark, sizes(g.Segments), g.SHA256, g.remark())
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if aside > 0 {
		fmt.Fprintf(out, "  set aside, as their topics were deleted, they moved to other nodes, or a forced recovery ended them: %d\n", aside)
	}
	if len(d.Damage)+len(d.CannotRead) == 0 {
		fmt.Fprintln(out, "  no damage")
	}
	for _, s := range d.CannotRead {
		fmt.Fprintf(out, "  cannot read: %s\n", s)
	}
	for _, s := range d.Damage {
		fmt.Fprintf(out, "  DAMAGED: %s\n", s)
	}
	return nil
}

// printJournal tells which generations there are, and where replay begins.
func (d *directory) printJournal(out io.Writer) {
	for _, f := range d.Journal {
		what := "free"
		if f.Generation > 0 {
			what = fmt.Sprintf("generation %d", f.Generation)
		}
		fmt.Fprintf(out, "  %s: %.1f MB, %s\n", f.File, float64(f.Bytes)/1e6, what)
	}
	for _, t := range d.Tables {
		if t.Torn != "" {
			fmt.Fprintf(out, "  %s: not whole (%s), as a crash may leave it; the other copy is\n", t.File, t.Torn)
			continue
		}
		fmt.Fprintf(out, "  %s: replay begins at generation %d\n", t.File, t.Generation)
	}
}

// remark is what is unusual about a replica.
func (g *group) remark() string {
	var parts []string
	if g.JournalOnly > 0 {
		parts = append(parts, fmt.Sprintf("%d entries only in the journal", g.JournalOnly))
	}
	if g.Unjudged > 0 {
		parts = append(parts, fmt.Sprintf("the records of %d of them not counted", g.Unjudged))
	}
	if g.Broken != "" {
		parts = append(parts, "NOT READ TO ITS END")
	}
	if g.Tail > 0 {
		parts = append(parts, fmt.Sprintf("%d more, not known to be committed", g.Tail))
	}
	return strings.Join(parts, "; ")
}

// sizes sums up files.
func sizes(files []segment) string {
	total := int64(0)
	for _, f := range files {
		total += f.Bytes
	}
	return fmt.Sprintf("%d, %.1f MB", len(files), float64(total)/1e6)
}

// verdict is why the exit status is not 0.
func (all *inspection) verdict() string {
	damage, different, unread := 0, 0, 0
	for _, d := range all.Directories {
		damage += len(d.Damage)
		unread += len(d.CannotRead)
	}
	for _, c := range all.Compared {
		if c.Result == resultDifferent {
			different++
		}
	}
	var parts []string
	if damage+different > 0 {
		parts = append(parts, fmt.Sprintf("places that are damaged: %d; partitions that differ: %d", damage, different))
	}
	if unread > 0 {
		parts = append(parts, fmt.Sprintf("places that cannot be read: %d", unread))
	}
	return strings.Join(parts, "; ")
}
