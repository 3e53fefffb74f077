package main

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"text/tabwriter"

	"github.com/stelelog/stele"
)

func runCreate(ctx context.Context, args []string, io console) error {
	f := newFlags("create", "Create makes a topic and returns when all its partitions have leaders.", io)
	topic := f.String("topic", "", "`name`: 1 to 179 of A-Z a-z 0-9 . _ -")
	partitions := f.Uint("partitions", 3, "how many partitions: 1 to 10000")
	replicas := f.Uint("replicas", 0, "how many nodes hold each partition; 0: three, or all if there are fewer")
	keep := keepFlags(f)
	return f.ask(args, func() string {
		switch {
		case *topic == "":
			return "-topic is missing"
		case *partitions == 0 || *partitions > math.MaxUint32:
			return fmt.Sprintf("-partitions %d: want 1 to 10000", *partitions)
		case *replicas > math.MaxUint32:
			return fmt.Sprintf("-replicas %d: want 0 to the number of nodes", *replicas)
		}
		return ""
	}, func(c *client) error {
		var t topicAnswer
		request := createRequest{Partitions: uint32(*partitions), Replicas: uint32(*replicas), keepRequest: keep()}
		if err := c.callJSON(ctx, http.MethodPost, topicPath(*topic, ""), nil, request, &t); err != nil {
			return err
		}
		each := ""
		if t.Partitions > 1 {
			each = " each"
		}
		fmt.Fprintf(io.out, "created %s: %s on %s%s\n", t.Name,
			plural(t.Partitions, "partition", "partitions"), plural(t.Replicas, "node", "nodes"), each)
		return nil
	})
}

// keepFlags are those that say what a topic keeps.
func keepFlags(f *flags) func() keepRequest {
	age := f.Duration("keep-age", 0, "remove records that were appended longer ago than this `duration`, such as 168h; 0: none")
	bytes := f.Int64("keep-bytes", 0, "remove the oldest records of a partition as long as so many `bytes` stay; 0: none")
	return func() keepRequest { return keeps(stele.Retention{Age: *age, Bytes: *bytes}) }
}

const retainAbout = `
Retain changes what a topic keeps; without -keep-age and -keep-bytes that is
everything. Whole segments go, within some seconds, and do not come back.
`

func runRetain(ctx context.Context, args []string, io console) error {
	f := newFlags("retain", retainAbout, io)
	topic := f.String("topic", "", "`name` of the topic")
	keep := keepFlags(f)
	return f.ask(args, func() string { return missing("-topic", *topic == "") }, func(c *client) error {
		var t topicAnswer
		if err := c.callJSON(ctx, http.MethodPut, topicPath(*topic, "/retention"), nil, keep(), &t); err != nil {
			return err
		}
		fmt.Fprintf(io.out, "%s keeps %s\n", t.Name, t.keepRequest)
		return nil
	})
}

func (k keepRequest) String() string {
	switch {
	case k.KeepAge == "" && k.KeepBytes == 0:
		return "all"
	case k.KeepAge == "":
		return fmt.Sprintf("%d bytes", k.KeepBytes)
	case k.KeepBytes == 0:
		return k.KeepAge
	}
	return fmt.Sprintf("%s, %d bytes", k.KeepAge, k.KeepBytes)
}

func runDelete(ctx context.Context, args []string, io console) error {
	f := newFlags("delete", deleteAbout, io)
	topic := f.String("topic", "", "`name` of the topic")
	grace := f.Duration("grace", 0, "keep it so that it can be brought back for this `duration`, such as 168h; 0: delete it for good. Without this flag the node's -delete-grace counts")
	return f.ask(args, func() string { return missing("-topic", *topic == "") }, func(c *client) error {
		q := url.Values{}
		if f.given("grace") {
			q.Set("grace", grace.String())
		}
		if err := c.callJSON(ctx, http.MethodDelete, topicPath(*topic, ""), q, nil, nil); err != nil {
			return err
		}
		fmt.Fprintf(io.out, "deleted %s\n", *topic)
		return nil
	})
}

const deleteAbout = `
Delete ends a topic. When it returns, nothing is ever appended to it again. With a
grace it keeps its name and its records until that is over, and undelete brings it
back; to delete it again without one ends that at once.
`

func runUndelete(ctx context.Context, args []string, io console) error {
	f := newFlags("undelete", "Undelete brings back a topic that was deleted with a grace, as it was.", io)
	topic := f.String("topic", "", "`name` of the topic")
	return f.ask(args, func() string { return missing("-topic", *topic == "") }, func(c *client) error {
		var t topicAnswer
		if err := c.callJSON(ctx, http.MethodPost, topicPath(*topic, "/undelete"), nil, nil, &t); err != nil {
			return err
		}
		fmt.Fprintf(io.out, "%s is back: %s\n", t.Name, t.Incarnation)
		return nil
	})
}

func runTopics(ctx context.Context, args []string, io console) error {
	f := newFlags("topics", "Topics lists the topics.", io)
	return f.ask(args, nothing, func(c *client) error {
		var topics []topicAnswer
		if err := c.callJSON(ctx, http.MethodGet, "/topics", nil, nil, &topics); err != nil {
			return err
		}
		if len(topics) == 0 {
			fmt.Fprintln(io.out, "no topics")
			return nil
		}
		w := tabwriter.NewWriter(io.out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "TOPIC\tPARTITIONS\tREPLICAS\tSTATE\tKEEPS\tINCARNATION")
		for _, t := range topics {
			state := t.State
			if t.Until != "" {
				state += " until " + t.Until
			}
			fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\t%s\n", t.Name, t.Partitions, t.Replicas, state, t.keepRequest, t.Incarnation)
		}
		return w.Flush()
	})
}
