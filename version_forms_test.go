package stele

import (
	"context"
	"errors"
	"maps"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/membership"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/topic"
	"github.com/stelelog/stele/transport"
)

// allCalls are the calls and streams of all parts, by the version that they came
// with.
func allCalls() map[string]uint64 {
	all := membership.Calls()
	maps.Copy(all, metastore.Calls())
	maps.Copy(all, topic.Calls())
	return all
}

// olderNode answers what a node of version 1 knows, and the rest with refusal.
type olderNode struct {
	refusal error
	asked   int
}

func (o *olderNode) HandleFrame(transport.Peer, transport.Class, []byte) {}

func (o *olderNode) HandleStream(context.Context, transport.Peer, string, transport.Stream) error {
	return o.refusal
}

func (o *olderNode) HandleCall(_ context.Context, _ transport.Peer, method string, req []byte) ([]byte, error) {
	o.asked++
	if allCalls()[method] != 1 || req[0] != 1 {
		return nil, o.refusal
	}
	return req, nil
}

// Every call that version 1 had is served by a node that knows nothing else, in
// one attempt, whatever it says of the newer form. Every other one ends typed.
//
// Property: J15 (red: no second attempt; a plain refusal ended the attempt)
func TestEveryCallOfAnOlderNode(t *testing.T) {
	for _, refusal := range []error{
		codedError{raftlog.Refused(errors.New("membership: malformed: version 2, this build knows 1"))}, // version 1 itself
		codedError{&metastore.UnsupportedError{Call: "any"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			net := transport.NewNetwork(1, clock.System())
			old := &olderNode{refusal: refusal}
			n := &network{transport: net.Transport("new:1")}
			there := net.Transport("old:1")
			for tr, h := range map[transport.Transport]transport.Handler{n.transport: &olderNode{}, there: old} {
				require.NoError(t, tr.Start(transport.Identity{Cluster: "test", Name: "a", Process: 1}, h))
				defer tr.Close()
			}
			for method, since := range allCalls() {
				req, attempts := []byte{1, 2, 3}, 1
				if method == membership.Method {
					req, attempts = membership.Ask{Kind: membership.AskGenesis, Name: "a"}.Encode(), 2
				}
				old.asked = 0
				answer, err := n.CallAddr(t.Context(), "old:1", method, req)
				if since == 1 {
					require.NoError(t, err, method)
					require.Equal(t, byte(1), answer[0], method)
					require.Equal(t, attempts, old.asked, method)
					continue
				}
				require.ErrorIs(t, err, ErrRefused, method)
				var unsupported *metastore.UnsupportedError
				require.Equal(t, refusal.(codedError).ErrorCode() == codeUnsupported, errors.As(err, &unsupported), "%s: %v", method, err)
			}
		})
	}
}

// A member that said what it knows is asked in that form at once; an answer that
// is a refusal of something else stays one.
func TestFormsOfCalls(t *testing.T) {
	ask := membership.Ask{Kind: membership.AskGenesis, Name: "a"}.Encode()
	older := append([]byte{1}, ask[1:]...)
	for announced, want := range map[uint64][2][]byte{0: {ask, older}, 1: {older, nil}, 2: {ask, older}} {
		first, then := forms(func() uint64 { return announced }, membership.Method, ask)
		require.Equal(t, want, [2][]byte{first, then}, "%d", announced)
		got, err := membership.DecodeAsk(first)
		require.NoError(t, err)
		require.Equal(t, "a", got.Name)
	}
	first, then := forms(func() uint64 { panic("it does not matter") }, "topic.produce", ask)
	require.Equal(t, ask, first)
	require.Nil(t, then)
}

// What a part handles is what it says that it handles, and nothing else is
// refused as anything but unknown.
func TestPartsKnowTheirCalls(t *testing.T) {
	unsupported := func(err error) bool {
		var e *metastore.UnsupportedError
		return errors.As(err, &e)
	}
	n := &network{}
	n.genesis = membership.NewGenesis(membership.GenesisConfig{Random: func([]byte) {}})
	for _, method := range []string{"", "genesi", "consumer.join"} {
		_, err := n.route(t.Context(), transport.Peer{}, method, nil)
		require.True(t, unsupported(err) || errors.Is(err, ErrNotReady), "%q: %v", method, err)
	}
	_, err := n.route(t.Context(), transport.Peer{}, membership.Method, []byte{9, 1})
	require.True(t, unsupported(err), "%v", err)
	require.Equal(t, codeUnsupported, codedError{err}.ErrorCode())
	_, err = n.route(t.Context(), transport.Peer{}, membership.Method, []byte{1, 1})
	require.False(t, unsupported(err), "of a form that it knows: %v", err)
}
