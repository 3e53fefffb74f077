package main

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"text/tabwriter"
)

func runCreate(ctx context.Context, args []string, io console) error {
	f := newFlags("create", "Create makes a topic and returns when all its partitions have leaders.", io)
	topic := f.String("topic", "", "`name`: 1 to 179 of A-Z a-z 0-9 . _ -")
	partitions := f.Uint("partitions", 3, "how many partitions: 1 to 10000")
	replicas := f.Uint("replicas", 0, "how many nodes hold each partition; 0: three, or all if there are fewer")
	finish := clientFlags(f)
	if err := f.parse(args, false); err != nil {
		return err
	}
	c, err := finish()
	switch {
	case err != nil:
		return err
	case *topic == "":
		return &usageError{"-topic is missing"}
	case *partitions == 0 || *partitions > math.MaxUint32:
		return &usageError{fmt.Sprintf("-partitions %d: want 1 to 10000", *partitions)}
	case *replicas > math.MaxUint32:
		return &usageError{fmt.Sprintf("-replicas %d: want 0 to the number of nodes", *replicas)}
	}
	defer c.close()
	var t topicAnswer
	request := createRequest{Partitions: uint32(*partitions), Replicas: uint32(*replicas)}
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
}

func runDelete(ctx context.Context, args []string, io console) error {
	f := newFlags("delete", "Delete ends a topic. When it returns, nothing is ever appended to it again.", io)
	topic := f.String("topic", "", "`name` of the topic")
	finish := clientFlags(f)
	if err := f.parse(args, false); err != nil {
		return err
	}
	c, err := finish()
	switch {
	case err != nil:
		return err
	case *topic == "":
		return &usageError{"-topic is missing"}
	}
	defer c.close()
	if err := c.callJSON(ctx, http.MethodDelete, topicPath(*topic, ""), nil, nil, nil); err != nil {
		return err
	}
	fmt.Fprintf(io.out, "deleted %s\n", *topic)
	return nil
}

func runTopics(ctx context.Context, args []string, io console) error {
	f := newFlags("topics", "Topics lists the topics.", io)
	finish := clientFlags(f)
	if err := f.parse(args, false); err != nil {
		return err
	}
	c, err := finish()
	if err != nil {
		return err
	}
	defer c.close()
	var topics []topicAnswer
	if err := c.callJSON(ctx, http.MethodGet, "/topics", nil, nil, &topics); err != nil {
		return err
	}
	if len(topics) == 0 {
		fmt.Fprintln(io.out, "no topics")
		return nil
	}
	w := tabwriter.NewWriter(io.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TOPIC\tPARTITIONS\tREPLICAS\tSTATE\tINCARNATION")
	for _, t := range topics {
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\n", t.Name, t.Partitions, t.Replicas, t.State, t.Incarnation)
	}
	return w.Flush()
}
