package membership

import (
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/raftlog"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

func sampleReply() Reply {
	return Reply{
		Kind: ReplyAccepted, Status: StatusStaged, Node: 4, Replica: 300, ClusterID: raftlog.ClusterID{0xc1}, Epoch: 1,
		Members: []Reached{{1, 101, "a", "a:1"}, {4, 300, "d", "d:1"}}, SegmentBytes: 64 << 20, Behind: []string{"b"},
	}
}

var sampleCalls = []struct {
	name   string
	bytes  []byte
	decode func([]byte) (any, error)
	value  any
}{
	{"join", JoinRequest{Name: "d", Nonce: raftlog.Nonce{4}, Addr: "d:1", Newest: 19, Observer: true, SegmentBytes: 64 << 20}.Encode(),
		func(b []byte) (any, error) { return DecodeJoinRequest(b) }, JoinRequest{Name: "d", Nonce: raftlog.Nonce{4}, Addr: "d:1", Newest: 19, Observer: true, SegmentBytes: 64 << 20}},
	{"member", MemberRequest{Node: 4, Nonce: raftlog.Nonce{4}, Addr: "d:1", Newest: 300}.Encode(),
		func(b []byte) (any, error) { return DecodeMemberRequest(b) }, MemberRequest{Node: 4, Nonce: raftlog.Nonce{4}, Addr: "d:1", Newest: 300}},
	{"backlog request", BacklogRequest{Node: 4, Nonce: raftlog.Nonce{4}, Draining: true}.Encode(),
		func(b []byte) (any, error) { return DecodeBacklogRequest(b) }, BacklogRequest{Node: 4, Nonce: raftlog.Nonce{4}, Draining: true}},
	{"backlog answer", BacklogAnswer{Node: 4, Nonce: raftlog.Nonce{4}, Draining: true, Count: 300}.Encode(),
		func(b []byte) (any, error) { return DecodeBacklogAnswer(b) }, BacklogAnswer{Node: 4, Nonce: raftlog.Nonce{4}, Draining: true, Count: 300}},
	{"order to promote", Order{Kind: OrderPromote, ClusterID: raftlog.ClusterID{0xc1}, Epoch: 1, Node: 4}.Encode(), decodeOrder,
		Order{Kind: OrderPromote, ClusterID: raftlog.ClusterID{0xc1}, Epoch: 1, Node: 4}},
	{"order to forget", Order{Kind: OrderForget, ClusterID: raftlog.ClusterID{0xc1}, Replica: 300}.Encode(), decodeOrder,
		Order{Kind: OrderForget, ClusterID: raftlog.ClusterID{0xc1}, Replica: 300}},
	{"order done", OrderAnswer{Kind: OrderDone}.Encode(), decodeOrderAnswer, OrderAnswer{Kind: OrderDone}},
	{"order elsewhere", OrderAnswer{Kind: OrderElsewhere, Leader: 300}.Encode(), decodeOrderAnswer, OrderAnswer{Kind: OrderElsewhere, Leader: 300}},
	{"order deferred", OrderAnswer{Kind: OrderDeferred, Why: DeferredStandby, Reason: "later"}.Encode(), decodeOrderAnswer,
		OrderAnswer{Kind: OrderDeferred, Why: DeferredStandby, Reason: "later"}},
	{"accepted", sampleReply().Encode(), decodeReply, sampleReply()},
	{"deferred", Reply{Kind: ReplyAccepted, Status: StatusDeferred, Reason: "later"}.Encode(), decodeReply, Reply{Kind: ReplyAccepted, Status: StatusDeferred, Reason: "later"}},
	{"not leader", Reply{Kind: ReplyNotLeader, Leader: 2, Addr: "b:1"}.Encode(), decodeReply, Reply{Kind: ReplyNotLeader, Leader: 2, Addr: "b:1"}},
	{"unconfigured", Unconfigured(raftlog.Nonce{7}), decodeReply, Reply{Kind: ReplyUnconfigured, Nonce: raftlog.Nonce{7}}},
	{"removed", Reply{Kind: ReplyRemoved, Reason: "was removed"}.Encode(), decodeReply, Reply{Kind: ReplyRemoved, Reason: "was removed"}},
	{"other settings", Reply{Kind: ReplyOtherSettings, Reason: "other", SegmentBytes: 4096}.Encode(), decodeReply, Reply{Kind: ReplyOtherSettings, Reason: "other", SegmentBytes: 4096}},
	{"older release", Reply{Kind: ReplyOlderRelease, Reason: "too old", Need: 19}.Encode(), decodeReply, Reply{Kind: ReplyOlderRelease, Reason: "too old", Need: 19}},
	{"state of who joined", State{Renounced: true, Bound: raftlog.Nonce{1}, Joined: &Joined{raftlog.ClusterID{0xc1}, 1, 4, 300, 64 << 20}}.Encode(),
		func(b []byte) (any, error) { return DecodeState(b) }, State{Renounced: true, Bound: raftlog.Nonce{1}, Joined: &Joined{raftlog.ClusterID{0xc1}, 1, 4, 300, 64 << 20}}},
	{"state of who founded", State{Adopted: sampleFounding()}.Encode(),
		func(b []byte) (any, error) { return DecodeState(b) }, State{Adopted: sampleFounding()}},
}

func decodeOrder(b []byte) (any, error) { return DecodeOrder(b) }

func decodeOrderAnswer(b []byte) (any, error) { return DecodeOrderAnswer(b) }

func decodeReply(b []byte) (any, error) { return DecodeReply(b) }

// What a released build wrote or sends stays readable, byte for byte.
func TestGoldenCalls(t *testing.T) {
	path := filepath.Join("testdata", "calls.golden")
	var text strings.Builder
	for _, c := range sampleCalls {
		got, err := c.decode(c.bytes)
		require.NoError(t, err, c.name)
		require.Equal(t, c.value, got, c.name)
		for cut := range c.bytes {
			_, err := c.decode(c.bytes[:cut])
			if cut > 0 || !strings.HasPrefix(c.name, "state") { // no bytes are the zero state
				require.Error(t, err, "%s cut at %d", c.name, cut)
			}
		}
		_, err = c.decode(append(c.bytes[:len(c.bytes):len(c.bytes)], 0))
		require.Error(t, err, "%s with a byte too many", c.name)
		fmt.Fprintf(&text, "%s: %s\n", c.name, hex.EncodeToString(c.bytes))
	}
	if *rewrite {
		require.NoError(t, os.WriteFile(path, []byte(text.String()), 0o644))
	}
	golden, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(golden), text.String())
}

// Property: J12 (red: removed had the code of unconfigured; a status without acceptance decoded)
func TestAnswersAreDistinct(t *testing.T) {
	codes, names := map[ReplyKind]int{}, map[string]bool{}
	for k := ReplyAccepted; k <= ReplyOtherSettings; k++ {
		codes[k] = k.Code()
		require.False(t, names[k.String()])
		names[k.String()] = true
		p := Reply{Kind: k}
		if k == ReplyAccepted {
			p.Status = StatusVoter
		}
		got, err := DecodeReply(p.Encode())
		require.NoError(t, err)
		require.Equal(t, k, got.Kind)
	}
	require.Equal(t, map[ReplyKind]int{ReplyAccepted: 200, ReplyNotLeader: 421, ReplyUnconfigured: 412, ReplyRemoved: 409, ReplyOlderRelease: 409, ReplyOtherSettings: 409}, codes)
	require.Equal(t, 500, ReplyKind(9).Code())

	for name, p := range map[string]Reply{
		"no kind": {}, "a kind too new": {Kind: 7}, "accepted without a status": {Kind: ReplyAccepted},
		"a status too new":              {Kind: ReplyAccepted, Status: 5},
		"a status without acceptance":   {Kind: ReplyRemoved, Status: StatusVoter},
		"a node without a replica":      {Kind: ReplyAccepted, Status: StatusVoter, Node: 1, ClusterID: raftlog.ClusterID{1}},
		"a place without the cluster":   {Kind: ReplyAccepted, Status: StatusVoter, Node: 1, Replica: 1},
		"the cluster without the place": {Kind: ReplyAccepted, Status: StatusVoter, ClusterID: raftlog.ClusterID{1}},
	} {
		_, err := DecodeReply(p.Encode())
		require.Error(t, err, name)
	}
	for name, o := range map[string]Order{
		"an order of no kind": {Node: 1}, "a kind too new": {Kind: 4, Node: 1}, "to promote nobody": {Kind: OrderPromote},
		"to forget a node": {Kind: OrderForget, Node: 1}, "to forget both": {Kind: OrderForget, Node: 1, Replica: 1},
		"to hand over to a replica": {Kind: OrderTransfer, Replica: 1},
	} {
		_, err := DecodeOrder(o.Encode())
		require.Error(t, err, name)
	}
	for name, a := range map[string]OrderAnswer{
		"no kind": {}, "a kind too new": {Kind: 5}, "deferred, for no reason": {Kind: OrderDeferred}, "done, with a reason": {Kind: OrderDone, Why: 1},
	} {
		_, err := DecodeOrderAnswer(a.Encode())
		require.Error(t, err, name)
	}
	_, err := DecodeState(append([]byte{1, 4}, make([]byte, 40)...))
	require.ErrorContains(t, err, "flags", "joined is of version 2")
	_, err = DecodeState(append([]byte{2, 6}, make([]byte, 40)...))
	require.ErrorContains(t, err, "flags", "adopted and joined")
	_, err = DecodeState([]byte{3, 0})
	require.ErrorContains(t, err, "version 3")
}

// Property: S11 (red: a string without its bound)
func FuzzCalls(f *testing.F) {
	for _, c := range sampleCalls {
		f.Add(c.bytes)
	}
	f.Add([]byte{1, 1, 1, 0xff, 0xff, 0xff, 0xff, 0x7f})
	f.Fuzz(func(t *testing.T, b []byte) {
		again := func(encoded []byte, value any, decode func([]byte) (any, error)) {
			got, err := decode(encoded)
			require.NoError(t, err)
			require.Equal(t, value, got)
		}
		if v, err := DecodeJoinRequest(b); err == nil {
			again(v.Encode(), v, func(b []byte) (any, error) { return DecodeJoinRequest(b) })
		}
		if v, err := DecodeMemberRequest(b); err == nil {
			again(v.Encode(), v, func(b []byte) (any, error) { return DecodeMemberRequest(b) })
		}
		if v, err := DecodeBacklogRequest(b); err == nil {
			again(v.Encode(), v, func(b []byte) (any, error) { return DecodeBacklogRequest(b) })
		}
		if v, err := DecodeBacklogAnswer(b); err == nil {
			again(v.Encode(), v, func(b []byte) (any, error) { return DecodeBacklogAnswer(b) })
		}
		if v, err := DecodeOrder(b); err == nil {
			again(v.Encode(), v, decodeOrder)
		}
		if v, err := DecodeOrderAnswer(b); err == nil {
			again(v.Encode(), v, decodeOrderAnswer)
		}
		if v, err := DecodeReply(b); err == nil {
			again(v.Encode(), v, decodeReply)
		}
	})
}
