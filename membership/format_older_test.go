package membership

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// Who asks in the form of version 1 is answered with what it can read.
//
// Property: J15 (red: answered alike in both forms)
func TestTheFormOfAnAskIsAnswered(t *testing.T) {
	g := NewGenesis(GenesisConfig{
		Name: "d", Nonce: raftlog.Nonce{4}, State: State{Joined: &Joined{ClusterID: raftlog.ClusterID{1}, Node: 4, Replica: 300}},
		Random: func([]byte) {},
	})
	ask := Ask{Kind: AskGenesis, Name: "a", Nonce: raftlog.Nonce{1}, Process: 7, Round: 9}.Encode()
	older, ok := OlderForm(1, Method, ask)
	require.True(t, ok)
	for _, c := range []struct {
		req  []byte
		want AnswerKind
	}{{ask, AnswerMember}, {older, AnswerNo}} {
		b, err := g.HandleCall(t.Context(), c.req)
		require.NoError(t, err)
		require.Equal(t, byte(1), b[0], "answers have one form")
		a, err := DecodeAnswer(b)
		require.NoError(t, err)
		require.Equal(t, Answer{Kind: c.want, Name: "d", Nonce: raftlog.Nonce{4}, Hash: a.Hash, Process: 7, Round: 9}, a)
	}
	_, err := g.HandleCall(t.Context(), append([]byte{3}, ask[1:]...))
	var unsupported *metastore.UnsupportedError
	require.ErrorAs(t, err, &unsupported)
	require.ErrorIs(t, err, raftlog.ErrRefused)

	for version, method := range map[uint64]string{2: Method, 1: MethodJoin} {
		_, ok := OlderForm(version, method, ask)
		require.False(t, ok, "%s at %d", method, version)
	}
}

// What a steward handles is what Calls says.
func TestCallsAreHandled(t *testing.T) {
	s := &Steward{}
	for method := range Calls() {
		if method == Method {
			continue
		}
		_, err := s.HandleCall(t.Context(), method, []byte{9})
		var unsupported *metastore.UnsupportedError
		require.ErrorAs(t, err, &unsupported)
		require.ErrorContains(t, err, "version 9", method)
	}
	_, err := s.HandleCall(t.Context(), "member.other", []byte{1})
	require.ErrorContains(t, err, `"member.other" is not known`)
}
