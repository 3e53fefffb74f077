package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
)

// give sends an order, and prints what became of it.
func (c *client) give(ctx context.Context, io console, method, path string, q url.Values) error {
	var a orderAnswer
	if err := c.callJSON(ctx, method, path, q, nil, &a); err != nil {
		return err
	}
	fmt.Fprintln(io.out, a.Done)
	return nil
}

const promoteAbout = `
Promote gives a node a vote on the metadata, if it may have one now, and else says
why not. A node asks for its vote itself, every two seconds, unless it was started
with -observer: so this is to learn why it has none yet.
`

func runPromote(ctx context.Context, args []string, io console) error {
	f := newFlags("promote", promoteAbout, io)
	name := f.String("name", "", "`name` of the node")
	return f.ask(args, func() string { return missing("-name", *name == "") }, func(c *client) error {
		return c.give(ctx, io, http.MethodPost, "/members/"+url.PathEscape(*name)+"/promote", nil)
	})
}

const forgetAbout = `
Forget takes a replica out of the metadata's raft group that is left over there and
that no member is: members lists such replicas, and there are none unless something
went wrong. It refuses members: those are decommissioned.
`

func runForget(ctx context.Context, args []string, io console) error {
	f := newFlags("forget", forgetAbout, io)
	replica := f.Uint64("replica", 0, "`number` of the replica, as members shows it")
	return f.ask(args, func() string { return missing("-replica", *replica == 0) }, func(c *client) error {
		return c.give(ctx, io, http.MethodDelete, "/strays/"+strconv.FormatUint(*replica, 10), nil)
	})
}

const transferAbout = `
Transfer hands the leadership of a partition, or of the metadata, over to a node;
it returns when that node leads. Some time later a partition goes back to the node
that is its preferred leader, if that is well.
`

func runTransfer(ctx context.Context, args []string, io console) error {
	f := newFlags("transfer", transferAbout, io)
	to := f.String("to", "", "`name` of the node that is to lead")
	topic := f.String("topic", "", "the `topic` of the partition; without it the metadata")
	partition := f.Uint("partition", 0, "`number` of the partition")
	return f.ask(args, func() string {
		switch {
		case *to == "":
			return "-to is missing"
		case *topic == "" && f.given("partition"):
			return "-partition goes with -topic"
		}
		return ""
	}, func(c *client) error {
		q := url.Values{"to": {*to}}
		if *topic == "" {
			return c.give(ctx, io, http.MethodPost, "/metadata/leader", q)
		}
		q.Set("partition", strconv.FormatUint(uint64(*partition), 10))
		return c.give(ctx, io, http.MethodPost, "/topics/"+url.PathEscape(*topic)+"/leader", q)
	})
}
