package topic

import (
	"context"

	"github.com/stelelog/stele/raftlog"
)

// Operation is a piece of work that a host can trace, as far as it is known when
// it begins.
//
//	Name           where                 inside of        lasts until
//	produce        a producer's node     the caller's     the answer; with ProduceAsync, the callback
//	forward        a producer's node     produce          the leader's node has answered, or is not waited for
//	commit         the leader's node     produce,forward  a quorum has the batch, or it is refused
//	fetch          a reader's node       the caller's     there are records
//	create topic   the caller's node     the caller's     the topic has leaders
//	delete topic   the caller's node     the caller's     the topic is gone
//
// A batch of several calls is inside of the first one's operation. What is sent
// again is forwarded, or committed, again. A commit at another node is inside of
// a forward as far as the host's network carries the context's values.
type Operation struct {
	Name      string
	Topic     string
	Partition int            // -1: of the whole topic, or not known yet
	Records   int            // that are appended; 0 for the others
	Bytes     int            // of the records, or of the encoded batch, or that are asked for
	Leader    raftlog.NodeID // that a batch is sent to; 0 for the others
}

// The names of operations.
const (
	OpProduce       = "produce"
	OpForward       = "forward"
	OpCommit        = "commit"
	OpFetch         = "fetch"
	OpCreateTopic   = "create topic"
	OpDeleteTopic   = "delete topic"
	OpUndeleteTopic = "undelete topic"
)

// Trace is told of the beginning of an operation. ctx has the values of the
// context that the operation is inside of. It returns what takes the place of
// ctx, with a value more for example, and a function that is called once with
// the outcome when the operation has ended; nil stands for ctx, and for no
// interest in the end.
//
// Both functions are called from many goroutines, some of which hold locks or
// are needed by others. They return at once and call nothing of this library.
type Trace func(ctx context.Context, op Operation) (context.Context, func(err error))

// begin tells of an operation, if anybody wants to know.
func (t Trace) begin(ctx context.Context, op Operation) (context.Context, func(error)) {
	if t == nil || ctx == nil {
		return ctx, untraced
	}
	inside, end := t(ctx, op)
	if inside == nil {
		inside = ctx
	}
	if end == nil {
		end = untraced
	}
	return inside, end
}

func untraced(error) {}

// valued is a context that ends with one and has the values of another.
type valued struct {
	context.Context
	values context.Context
}

func (v valued) Value(key any) any {
	if value := v.Context.Value(key); value != nil {
		return value
	}
	return v.values.Value(key)
}

// operation is what is done to a batch.
func (l *lane) operation(name string, b *batch, leader raftlog.NodeID) Operation {
	return Operation{Name: name, Topic: l.topic, Partition: int(l.partition), Records: b.count, Bytes: len(b.data), Leader: leader}
}

// sizeOf returns the bytes of records.
func sizeOf(records []Record) int {
	n := 0
	for i := range records {
		n += records[i].Size()
	}
	return n
}
