// Embed is the smallest program with a log of its own: one node, one topic.
package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/stelelog/stele"
)

func main() {
	ctx := context.Background()
	node := must(stele.Open(ctx, stele.Config{
		Cluster: "hello", Name: "a", Dir: "hello-data",
		InitialMembers: []stele.Peer{{Name: "a", Addr: "127.0.0.1:7942"}},
	}))
	defer node.Close(ctx)
	must(0, node.WaitReady(ctx))
	if _, err := node.CreateTopic(ctx, "greetings", stele.TopicConfig{}); !errors.Is(err, stele.ErrTopicExists) {
		must(0, err)
	}
	producer := must(node.NewProducer(stele.ProducerConfig{}))
	at := must(producer.Produce(ctx, "greetings", stele.Record{Value: []byte("hello")})) // synced on return
	reader := must(node.NewReader(ctx, stele.TopicPartition{Topic: "greetings"}, stele.FromOffset(at[0].Offset)))
	batch := must(reader.Fetch(ctx, 1<<20))
	for batch.Next() {
		fmt.Printf("%d: %s\n", batch.Offset(), batch.Record().Value)
	}
	must(0, batch.Err())
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
