package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

const membersAbout = `
Members lists the nodes of the cluster: what each is in the metadata's raft group
(a voter, or a learner that has no vote), when it was heard last, how many
partitions it holds, and the replicas that are on their way to or from it. Of two
lives of one name, as after the loss of a disk, the higher ID is the newer one.
A node that was killed is alive, and then dead, when it was not heard for 30 s.
Below it says what is to be done next for a node that leaves, and what that waits
for; whether a recovery was forced, and what it still holds. What the node took in
and has not answered is known to itself and to the one that leads: ask that one.
`

func runMembers(ctx context.Context, args []string, io console) error {
	f := newFlags("members", membersAbout, io)
	asJSON := f.Bool("json", false, "print JSON, as GET /members answers")
	return f.ask(args, nothing, func(c *client) error {
		var a clusterAnswer
		if err := c.callJSON(ctx, http.MethodGet, "/members", nil, nil, &a); err != nil {
			return err
		}
		if *asJSON {
			return writeIndented(io.out, a)
		}
		return a.print(io.out, time.Now())
	})
}

func (a *clusterAnswer) print(out io.Writer, now time.Time) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tID\tSEAT\tSTATE\tHEARD\tADDRESS\tREPLICAS\tMOVES")
	for _, m := range a.Members {
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%d\t%s\n", m.Name, m.ID, m.seat(a.Leader), m.State, m.heard(now), m.Addr, m.Replicas, m.moves())
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, m := range a.Moves {
		instead := ""
		if m.From != "" {
			instead = ", instead of " + m.From
		}
		fmt.Fprintf(out, "%s/%d is on its way to %s%s\n", m.Topic, m.Partition, m.To, instead)
	}
	for _, m := range a.Members {
		(&leavingInfo{m.Name, m.Next, m.Blocked}).print(out)
	}
	for _, r := range a.Strays {
		fmt.Fprintf(out, "replica %d is in the metadata's group, and no member is it: forget -replica %d\n", r, r)
	}
	a.printRecovery(out)
	return nil
}

// seat is a member's seat for a person.
func (m *memberInfo) seat(leader string) string {
	switch {
	case m.Seat == "voter" && m.Name == leader:
		return "voter, leads"
	case m.Observer:
		return m.Seat + ", observer"
	}
	return m.Seat
}

// heard is how long ago a member was heard last, as far as two clocks tell. That is
// recorded every 5 s.
func (m *memberInfo) heard(now time.Time) string {
	if m.Heard.UnixMilli() <= 0 {
		return "-"
	}
	return max(now.Sub(m.Heard), 0).Truncate(time.Second).String() + " ago"
}

func (m *memberInfo) moves() string {
	var parts []string
	if m.MovesIn > 0 {
		parts = append(parts, fmt.Sprintf("%d in", m.MovesIn))
	}
	if m.MovesOut > 0 {
		parts = append(parts, fmt.Sprintf("%d out", m.MovesOut))
	}
	return cmp.Or(strings.Join(parts, ", "), "-")
}

const decommissionAbout = `
Decommission takes a node out of the cluster: its partitions move to the others,
it leaves the metadata's raft group, and its process ends with status 3. Its
directory can never come back; its name can, with an empty one. It returns when
that has begun, durably: the cluster goes on with it by itself. -wait watches it
to its end. -plan says what would happen, and what is in the way, and does nothing:
its exit status is 5 if something is, unless -when-possible goes with it.

It is refused while something is in the way that only a person can change; the
answer says what helps. With -when-possible it begins all the same, and waits.
`

func runDecommission(ctx context.Context, args []string, io console) error {
	f := newFlags("decommission", decommissionAbout, io)
	name := f.String("name", "", "`name` of the node")
	force := f.Bool("force", false, "go on with fewer than three voters, and without a node that is dead")
	cancel := f.Bool("cancel", false, "take it back: the node stays, with what it still has")
	plan := f.Bool("plan", false, "say what would happen and what is in the way, and do nothing")
	whenPossible := f.Bool("when-possible", false, "begin also if something is in the way, and go on when that is gone")
	wait := f.Bool("wait", false, "return when the node is out, however long that takes")
	return f.ask(args, func() string {
		switch {
		case *name == "":
			return "-name is missing"
		case *cancel && (*wait || *force || *whenPossible || *plan):
			return "-cancel goes with no other flag"
		case *plan && *wait:
			return "-plan does nothing: it goes with -force and -when-possible alone"
		}
		return ""
	}, func(c *client) error {
		path := "/members/" + url.PathEscape(*name) + "/decommission"
		var a departureAnswer
		if *cancel {
			if err := c.callJSON(ctx, http.MethodDelete, path, nil, nil, &a); err != nil {
				return err
			}
			fmt.Fprintf(io.out, "%s stays\n", a.Name)
			return nil
		}
		q := url.Values{}
		if *force {
			q.Set("force", "true")
		}
		if *plan {
			var a planAnswer
			if err := c.callJSON(ctx, http.MethodGet, path, q, nil, &a); err != nil {
				return err
			}
			a.print(io.out)
			if len(a.Blocked) > 0 && !*whenPossible {
				return &codeError{exitBlocks, a.Name + " cannot leave as things are"}
			}
			return nil
		}
		if *whenPossible {
			q.Set("when-possible", "true")
		}
		if err := c.callJSON(ctx, http.MethodPost, path, q, nil, &a); err != nil {
			return err
		}
		a.print(io.out)
		if !*wait {
			return nil
		}
		return c.watchOut(ctx, a, io.out)
	})
}

// watchOut tells how a node leaves, until it is no member any more. It asks the
// nodes in turn: the one that leaves ends, and who cannot answer is passed over
// for as long as another one can.
func (c *client) watchOut(ctx context.Context, last departureAnswer, out io.Writer) error {
	for {
		var a clusterAnswer
		if err := c.callJSON(ctx, http.MethodGet, "/members", nil, nil, &a); err != nil {
			return fmt.Errorf("the decommission goes on, and where it stands is not known: %w", err)
		}
		m, ok := a.member(last.ID)
		switch {
		case !ok:
			fmt.Fprintf(out, "%s is out\n", last.Name)
			return nil
		case m.Departure == "":
			return fmt.Errorf("the decommission of %s was taken back", last.Name)
		case m.Departure != last.Departure || uint64(m.Replicas) != last.Replicas || m.Next != last.Next || !slices.Equal(m.Blocked, last.Blocked):
			last.Departure, last.Replicas, last.Next, last.Blocked = m.Departure, uint64(m.Replicas), m.Next, m.Blocked
			last.print(out)
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (a *departureAnswer) print(out io.Writer) {
	fmt.Fprintf(out, "%s %s; partitions still to move: %d\n", a.Name, a.Departure, a.Replicas)
	if a.Next != "" {
		fmt.Fprintf(out, "%s next: %s\n", a.Name, a.Next)
	}
	for _, b := range a.Blocked {
		fmt.Fprintf(out, "%s waits: %s\n", a.Name, b.Reason)
	}
}

func (a *planAnswer) print(out io.Writer) {
	fmt.Fprintf(out, "to take %s out:\n", a.Name)
	for i, step := range a.Steps {
		fmt.Fprintf(out, "%3d  %s\n", i+1, step)
	}
	for _, m := range a.Moves {
		fmt.Fprintf(out, "%s/%d goes to %s\n", m.Topic, m.Partition, m.To)
	}
	for _, b := range a.Blocked {
		fmt.Fprintf(out, "in the way: %s\n", b.Reason)
	}
}

func (a *clusterAnswer) member(id uint64) (memberInfo, bool) {
	for _, m := range a.Members {
		if m.ID == id {
			return m, true
		}
	}
	return memberInfo{}, false
}
