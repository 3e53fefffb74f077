package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/storage"
)

const quarantineAbout = `
Quarantine shows what nodes have set aside: what they may not serve any more, and
did not destroy. Its steps:

  cluster quarantine list                                     what there is, and why
  cluster quarantine show -http H -entry NAME                 one directory, and what may be done with it
  cluster quarantine show -http H -entry NAME -partition N    the records in it
  cluster quarantine restore -http H -entry NAME -topic T     make a new topic of its records
  cluster quarantine reclaim -http H -entry NAME              destroy it, if the cluster confirms that it is over
  cluster quarantine adopt -dir D -entry NAME ...             say whose a directory without a marker is, its node stopped

"cluster quarantine STEP -h" explains each.
`

const quarantineListAbout = `
List prints what is in quarantine on each of the nodes that -http names, or in the
directory of a stopped node (-dir). What a deleted topic left goes by itself.
`

const quarantineShowAbout = `
Show prints what is known of a directory in quarantine of one node, or of a stopped
one (-dir). With -partition it prints the records of a log in it instead, as consume
does: those that the node had applied, and so were committed. Where the log is
damaged it ends, says where, and the exit status is 1.
`

const quarantineRestoreAbout = `
Restore makes a new topic of the records of directories in quarantine on one node:
keys, values, headers and timestamps, in order, each partition to the one of its
number, with new offsets from 0. The directories stay. What is damaged, or of which
there is no log, is refused without -partial. After an interruption repeat it with
-resume: it goes on behind what is there.
`

const quarantineReclaimAbout = `
Reclaim destroys a directory in quarantine of one node, for ever, if a majority of
the cluster confirms that it is over: that its topic was deleted, or that the replica
was removed. What nobody can confirm stays, and it says why.

With -dir it is a person's word instead: for the directory of a stopped node. It says
what would go; with -yes it goes, whatever it was. Be sure that nobody needs it: it
may be the last copy of records that a forced recovery has lost.
`

func runQuarantine(ctx context.Context, args []string, io console) error {
	steps := []command{
		{name: "list", run: runQuarantineList}, {name: "show", run: runQuarantineShow},
		{name: "restore", run: runQuarantineRestore}, {name: "reclaim", run: runQuarantineReclaim},
		{name: "adopt", run: runQuarantineAdopt},
	}
	if len(args) > 0 {
		for _, step := range steps {
			if step.name == args[0] {
				return step.run(ctx, args[1:], io)
			}
		}
	}
	if err := newFlags("quarantine", quarantineAbout, io).parse(args, true); err != nil {
		return err
	}
	return &usageError{"want list, show, restore, reclaim or adopt"}
}

// quarantinePath is the path of a directory in quarantine, or of something of it.
func quarantinePath(entry, more string) string {
	return "/quarantine/" + url.PathEscape(short(entry)) + more
}

func short(entry string) string { return strings.TrimPrefix(entry, "quarantine/") }

// one is what is wrong if -http names more than the node that is meant.
func (c *client) one() error {
	if len(c.addrs) != 1 {
		return &usageError{fmt.Sprintf("-http: want the address of the one node whose quarantine it is, these are %d", len(c.addrs))}
	}
	return nil
}

func runQuarantineList(ctx context.Context, args []string, io console) error {
	f := newFlags("quarantine list", quarantineListAbout, io)
	asJSON := f.Bool("json", false, "print one JSON object for each node")
	dir := f.String("dir", "", "read the data `directory` of a stopped node")
	return f.ask(args, nothing, func(c *client) error {
		var nodes []quarantineAnswer
		if *dir != "" {
			a, err := offlineQuarantine(*dir)
			if err != nil {
				return err
			}
			nodes = append(nodes, a)
		}
		var failed error
		for _, addr := range c.addrs {
			if *dir != "" {
				break
			}
			var a quarantineAnswer
			asked, cancel := context.WithTimeout(ctx, c.timeout)
			err := c.jsonFrom(asked, addr, http.MethodGet, "/quarantine", nil, nil, &a)
			cancel()
			if err != nil {
				fmt.Fprintf(io.err, "cluster quarantine list: %s: %v\n", addr, err)
				failed = errors.New("not all nodes answered")
				continue
			}
			nodes = append(nodes, a)
		}
		for i := range nodes {
			if *asJSON {
				if err := json.NewEncoder(io.out).Encode(nodes[i]); err != nil {
					return err
				}
			} else if err := nodes[i].print(io.out); err != nil {
				return err
			}
		}
		return failed
	})
}

func (a *quarantineAnswer) print(out io.Writer) error {
	if len(a.Quarantined) == 0 {
		fmt.Fprintf(out, "%s: nothing is in quarantine\n", a.Node)
		return nil
	}
	fmt.Fprintf(out, "%s: in quarantine: %s\n", a.Node, plural(len(a.Quarantined), "directory", "directories"))
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "  KIND\tSINCE\tMB\tLOGS\tCLUSTER SAYS\tDIRECTORY\t")
	for i := range a.Quarantined {
		q := &a.Quarantined[i]
		fmt.Fprintf(w, "  %s\t%s\t%.1f\t%d\t%s\t%s\t\n", orDash(q.Kind), q.since(), float64(q.Bytes)/1e6, len(q.Logs), orDash(q.Fate), q.name())
	}
	return w.Flush()
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func (q *quarantinedInfo) since() string {
	if q.Since == nil {
		return "-"
	}
	return q.Since.UTC().Format(time.RFC3339)
}

// name is the directory's, quoted if a terminal might make something else of it.
func (q *quarantinedInfo) name() string {
	if quoted := fmt.Sprintf("%q", q.Dir); quoted != `"`+q.Dir+`"` {
		return quoted
	}
	return q.Dir
}

// show tells a person all of it, and what may be done.
func (q *quarantinedInfo) show(out io.Writer) {
	fmt.Fprintf(out, "%s\n  why: %s (%s), since %s\n", q.name(), q.Reason, orDash(q.Kind), q.since())
	if q.Topic != "" {
		fmt.Fprintf(out, "  topic %s, incarnation %s\n", q.Topic, q.Incarnation)
	}
	if q.Marker != "" {
		fmt.Fprintf(out, "  its marker does not agree: %s\n", q.Marker)
	}
	fmt.Fprintf(out, "  %d bytes in all\n", q.Bytes)
	for _, l := range q.Logs {
		fmt.Fprintf(out, "  partition %d: replica %d, %d bytes of log, from offset %d on\n", l.Partition, l.Replica, l.Bytes, l.Start)
	}
	if q.Kept != "" {
		fmt.Fprintf(out, "  not reclaimed when that was tried last: %s\n", q.Kept)
	}
	fmt.Fprintf(out, "  %s\n", q.advice())
}

// advice is what may be done with it.
func (q *quarantinedInfo) advice() string {
	const giveUp = "nobody can prove that it is over, so that only a person can give it up, with the node stopped: reclaim -dir"
	byHand := "it can be read and restored; " + giveUp
	if len(q.Logs) == 0 {
		byHand = giveUp
	}
	switch stele.Fate(q.Fate) {
	case stele.FateDeleted:
		if storage.ReasonKind(q.Kind).HeldForPerson() {
			return "its topic was deleted; it waits for a person: restore or reclaim"
		}
		return "its topic was deleted: it goes by itself when a majority confirms that; until then it can be restored"
	case stele.FateLives:
		return "its topic lives: what a replica had here that was removed can be reclaimed, all else only be read and restored"
	case stele.FateUnknown:
		return "the cluster knows no such life of a topic: " + byHand
	case stele.FateNone:
		if strings.HasPrefix(q.Dir, "meta~") {
			return "metadata that this node had before it took another one's: " + giveUp
		}
		return "its name is no topic's: if you know whose it is, adopt it with the node stopped, and then restore it; " + giveUp
	}
	return "what the cluster says of it is not known here: ask its node while that runs"
}

func runQuarantineShow(ctx context.Context, args []string, io console) error {
	f := newFlags("quarantine show", quarantineShowAbout, io)
	entry := f.String("entry", "", "`name` of the directory, as list prints it")
	dir := f.String("dir", "", "read the data `directory` of a stopped node")
	partition := f.Int64("partition", -1, "print the records of this partition's `number`")
	replica := f.Uint64("replica", 0, "of several logs of the partition, that of this replica's `number`; 0: the longest")
	from := f.Uint64("from", 0, "begin at this `offset`")
	n := f.Int64("n", 0, "print at most so many records; 0: all")
	asJSON := f.Bool("json", false, "print JSON")
	return f.ask(args, func() string {
		switch {
		case *entry == "":
			return "-entry is missing: list prints the names"
		case *partition < -1 || *partition > math.MaxUint32:
			return fmt.Sprintf("-partition %d: want a number from 0", *partition)
		case *n < 0:
			return fmt.Sprintf("-n %d: want 0 or more", *n)
		case *from > math.MaxInt64:
			return fmt.Sprintf("-from %d: want an offset", *from)
		}
		return ""
	}, func(c *client) error {
		if *dir == "" {
			if err := c.one(); err != nil {
				return err
			}
		}
		if *partition < 0 {
			return showEntry(ctx, c, *dir, *entry, *asJSON, io.out)
		}
		out := &shownRecords{out: bufio.NewWriterSize(io.out, 64<<10), json: *asJSON, left: *n}
		source := stele.QuarantineSource{Dir: short(*entry), Partition: uint32(*partition), Replica: storage.ReplicaID(*replica), From: stele.Offset(*from)}
		var err error
		if *dir != "" {
			err = out.offline(ctx, *dir, source)
		} else {
			err = out.online(ctx, c, source)
		}
		return errors.Join(err, out.out.Flush())
	})
}

func showEntry(ctx context.Context, c *client, dir, entry string, asJSON bool, out io.Writer) error {
	var a quarantineAnswer
	var err error
	if dir != "" {
		a, err = offlineQuarantine(dir)
	} else {
		err = c.callJSON(ctx, http.MethodGet, "/quarantine", nil, nil, &a)
	}
	if err != nil {
		return err
	}
	for i := range a.Quarantined {
		q := &a.Quarantined[i]
		switch {
		case q.Dir != short(entry):
		case asJSON:
			return writeIndented(out, q)
		default:
			q.show(out)
			return nil
		}
	}
	return fmt.Errorf("%s has nothing of the name %q in quarantine", a.Node, short(entry))
}

// shownRecords prints records.
type shownRecords struct {
	out  *bufio.Writer
	json bool
	left int64 // 0: any number
}

// line prints one; false: that was the last one that is wanted.
func (s *shownRecords) line(l *recordLine) bool {
	if s.json {
		enc := json.NewEncoder(s.out)
		enc.SetEscapeHTML(false)
		_ = enc.Encode(l) // an error of the writer comes with Flush
	} else {
		value := l.Value64
		if l.Value != nil {
			value = []byte(*l.Value)
		}
		_, _ = s.out.Write(append(value, '\n'))
	}
	s.left--
	return s.left != 0
}

func (s *shownRecords) online(ctx context.Context, c *client, source stele.QuarantineSource) error {
	q := url.Values{"partition": {itoa(source.Partition)}, "replica": {fmt.Sprint(uint64(source.Replica))}, "from": {itoa(source.From)}}
	if s.left > 0 {
		q.Set("n", itoa(s.left))
	}
	answer, err := c.do(ctx, c.addrs[0], http.MethodGet, quarantinePath(source.Dir, "/records"), q, nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	dec := json.NewDecoder(answer.Body)
	for {
		var l struct {
			recordLine
			lastLine
		}
		if err := dec.Decode(&l); err != nil {
			return fmt.Errorf("the answer is cut off: %w", err)
		}
		switch {
		case l.lastLine.Error != "":
			return errors.New(l.lastLine.Error)
		case l.Next != nil:
			return nil
		}
		s.line(&l.recordLine)
	}
}

func runQuarantineRestore(ctx context.Context, args []string, io console) error {
	f := newFlags("quarantine restore", quarantineRestoreAbout, io)
	entries := f.String("entry", "", "`names` of directories, all of one life of a topic: a,b,c")
	name := f.String("topic", "", "`name` of the new topic")
	partitions := f.Uint("partitions", 0, "how many partitions it gets; 0: as many as are known of the old one. Keys keep\ntheir partitions only if it is the number that that one had")
	replicas := f.Uint("replicas", 0, "how many nodes hold each partition; 0: three, or all if there are fewer")
	partial := f.Bool("partial", false, "restore what there is, although partitions are missing or damaged")
	resume := f.Bool("resume", false, "go on with a restore that was interrupted")
	asJSON := f.Bool("json", false, "print what was done as JSON")
	return f.ask(args, func() string {
		switch {
		case *entries == "":
			return "-entry is missing: list prints the names"
		case *name == "":
			return "-topic is missing"
		case *partitions > math.MaxUint32 || *replicas > math.MaxUint32:
			return "-partitions, -replicas: want 0 to 10000"
		}
		return ""
	}, func(c *client) error {
		if err := c.one(); err != nil {
			return err
		}
		request := restoreRequest{Topic: *name, Partitions: uint32(*partitions), Replicas: uint32(*replicas), Partial: *partial, Resume: *resume}
		for _, e := range strings.Split(*entries, ",") {
			request.Dirs = append(request.Dirs, short(e))
		}
		var a restoreAnswer
		if err := c.callJSON(ctx, http.MethodPost, "/quarantine/restore", nil, request, &a); err != nil {
			return err
		}
		if *asJSON {
			if err := writeIndented(io.out, a); err != nil {
				return err
			}
		} else {
			a.print(io.out)
		}
		if a.Error != "" {
			return fmt.Errorf("%s (it can be gone on with: -resume)", a.Error)
		}
		return nil
	})
}

func (a *restoreAnswer) print(out io.Writer) {
	fmt.Fprintf(out, "%s: %s in %s\n", a.Topic, plural(a.Records, "record", "records"), plural(len(a.Partitions), "partition", "partitions"))
	for _, p := range a.Partitions {
		switch {
		case p.Dir == "":
			fmt.Fprintf(out, "  partition %d: nothing of it was there\n", p.Partition)
		default:
			fmt.Fprintf(out, "  partition %d: %d of %s, that were at offsets %d to %d\n", p.Partition, p.Restored, plural(p.Records, "record", "records"), p.Start, p.End)
		}
		for _, l := range p.Lost {
			fmt.Fprintf(out, "    lost: %s\n", l)
		}
	}
}

func runQuarantineReclaim(ctx context.Context, args []string, io console) error {
	f := newFlags("quarantine reclaim", quarantineReclaimAbout, io)
	entry := f.String("entry", "", "`name` of the directory, as list prints it")
	dir := f.String("dir", "", "data `directory` of a stopped node: reclaim on your own word")
	yes := f.Bool("yes", false, "with -dir: do it")
	return f.ask(args, func() string {
		switch {
		case *entry == "":
			return "-entry is missing: list prints the names"
		case *yes && *dir == "":
			return "-yes goes with -dir: a running node asks the cluster"
		}
		return ""
	}, func(c *client) error {
		if *dir != "" {
			return reclaimByHand(*dir, short(*entry), *yes, io.out)
		}
		if err := c.one(); err != nil {
			return err
		}
		return c.give(ctx, io, http.MethodDelete, quarantinePath(*entry, ""), nil)
	})
}
