package topic_test

import (
	"context"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

var rewriteWire = flag.Bool("rewrite-wire", false, "write the golden file of the calls anew")

// someErrors are errors as calls answer them.
func someErrors() []error {
	return []error{
		topic.ErrTopicIncarnationMismatch, topic.ErrSealed, topic.ErrCorruptBatch, topic.ErrUnknownProducer,
		topic.ErrOverloaded, topic.ErrPartitionClosed, topic.ErrNotReadable, topic.ErrTopicDeleted, topic.ErrNoReplica,
		&topic.TooLargeError{Record: -1, Size: 2, Max: 1},
		&topic.OutOfRangeError{Offset: 7, Start: 1, End: 5},
		&topic.BehindError{Seen: 9, HighWatermark: 4},
		&topic.FencedError{Producer: 3, Epoch: 1, Current: 2},
		&topic.OutOfOrderError{Producer: 3, Epoch: 1, First: 9, Next: 8},
		&topic.OutOfOrderError{Producer: 3, Epoch: 1, First: 7, Next: 8},
		&raftlog.NotLeaderError{Group: 2, Leader: 21, Node: 1},
		&raftlog.DiskFullError{Left: 5, Reserve: 100},
		raftlog.Unknown(raftlog.ErrLeadershipLost),
		raftlog.Retry(errors.New("something else")),
		raftlog.Refused(errors.New("something else")),
		raftlog.Unknown(&raftlog.NotLeaderError{Group: 2}),
		fmt.Errorf("in the middle: %w", topic.ErrSealed),
		errors.New("without an outcome"),
		topic.ErrRetired, topic.ErrPassed, topic.ErrNotYet,
	}
}

func TestErrorsSurviveTheTrip(t *testing.T) {
	for _, want := range someErrors() {
		got := topic.DecodeResponse(topic.EncodeError(want))
		require.Equal(t, want.Error(), got.Error())
		require.Equal(t, raftlog.OutcomeOf(want), raftlog.OutcomeOf(got), "%v", want)
		oneOutcome(t, got)
	}
	var order *topic.OutOfOrderError
	require.ErrorAs(t, topic.DecodeResponse(topic.EncodeError(&topic.OutOfOrderError{First: 7, Next: 8, Producer: 5})), &order)
	require.Equal(t, topic.ProducerID(5), order.Producer)
	var leader *raftlog.NotLeaderError
	require.ErrorAs(t, topic.DecodeResponse(topic.EncodeError(&raftlog.NotLeaderError{Node: 3})), &leader)
	require.Equal(t, storage.NodeID(3), leader.Node)
	var full *raftlog.DiskFullError
	require.ErrorAs(t, topic.DecodeResponse(topic.EncodeError(&raftlog.DiskFullError{Left: 5, Reserve: 100})), &full)
	require.Equal(t, raftlog.DiskFullError{Left: 5, Reserve: 100}, *full)
	require.ErrorIs(t, topic.DecodeResponse(topic.EncodeError(topic.ErrSealed)), topic.ErrSealed)
}

func TestCallsSayWhichVersionTheyCameWith(t *testing.T) {
	require.ElementsMatch(t, topic.CallsHandled(), slices.Collect(maps.Keys(topic.Calls())))
}

// wireGolden is every call and answer as it was first released.
func wireGolden() string {
	var b strings.Builder
	for _, call := range topic.WireExamples(someIncarnation) {
		fmt.Fprintf(&b, "%s %s\n", call.Name, hex.EncodeToString(call.Bytes))
	}
	for _, err := range someErrors() {
		fmt.Fprintf(&b, "error %s\n", hex.EncodeToString(topic.EncodeError(err)))
	}
	return b.String()
}

func TestCallsKeepTheirFormat(t *testing.T) {
	path := filepath.Join("testdata", "calls.v1")
	if *rewriteWire {
		require.NoError(t, os.WriteFile(path, []byte(wireGolden()), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), wireGolden())
}

// Property: S11 (red: fetched did not check the length)
func FuzzCalls(f *testing.F) {
	for _, call := range topic.WireExamples(someIncarnation) {
		f.Add(call.Bytes)
	}
	for _, err := range someErrors() {
		f.Add(topic.EncodeError(err))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, err := range topic.DecodeAll(data) {
			if err != nil {
				oneOutcome(t, err)
			}
		}
	})
}

// Property: P9 (red: malformed requests were answered without an outcome)
func TestStrangeCallsAreRefused(t *testing.T) {
	m := new(topic.Manager)
	_, err := m.HandleCall(context.Background(), 2, "topic.nonsense", nil)
	require.ErrorIs(t, err, raftlog.ErrRefused)
	_, err = m.HandleCall(context.Background(), 2, "topic.produce", []byte{1})
	require.ErrorIs(t, err, raftlog.ErrRefused)
}
