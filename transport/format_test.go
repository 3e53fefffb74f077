package transport

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var rewrite = flag.Bool("rewrite", false, "write the golden file anew")

// samples are one of everything on the wire, by name, in order.
func samples() []struct {
	name string
	b    []byte
} {
	me := Peer{Addr: "orders-1:7942", Identity: Identity{
		Cluster: "orders", Name: "orders-1", ClusterID: [16]byte{0: 0xc1, 15: 0xd1}, Node: 3, Epoch: 1, Process: 0x0102030405060708,
	}}
	body := appendPeer(nil, me)
	sealed := sealedGreetings(body)
	return []struct {
		name string
		b    []byte
	}{
		{"hello", appendGreeting(nil, greetHello, lane(Append), body)},
		{"welcome", appendGreeting(nil, greetWelcome, laneCalls, body)},
		{"refuse", appendGreeting(nil, greetRefuse, 0, []byte{byte(RefusedClusterID)})},
		{"knock", sealed[0]},
		{"challenge", sealed[1]},
		{"proof", sealed[2]},
		{"counterproof", sealed[3]},
		{"hello-sealed", sealed[4]},
		{"welcome-sealed", sealed[5]},
		{"message", appendFrame(nil, frameMessage, nil, []byte("heartbeat"))},
		{"message-empty", appendFrame(nil, frameMessage, nil, nil)},
		{"identity", appendFrame(nil, frameIdentity, nil, body)},
		{"request", appendFrame(nil, frameRequest, appendRequest(nil, 7, 2*time.Second, "produce"), []byte("batch"))},
		{"response", appendFrame(nil, frameResponse, appendID(nil, 7), []byte("offset"))},
		{"failure", appendFrame(nil, frameFailure, appendOutcome(appendID(nil, 7), outcome{verdictFailed, "not_leader", "ask n2"}), nil)},
		{"failure-busy", appendFrame(nil, frameFailure, appendOutcome(appendID(nil, 8), outcome{verdict: verdictNotExecuted, message: "busy"}), nil)},
		{"cancel", appendFrame(nil, frameCancel, appendID(nil, 7), nil)},
		{"open", appendFrame(nil, frameOpen, appendOpen(nil, 0, "segments"), nil)},
		{"data", appendFrame(nil, frameData, nil, []byte("segment bytes"))},
		{"end", appendFrame(nil, frameEnd, nil, nil)},
		{"finish", appendFrame(nil, frameFinish, appendOutcome(nil, outcome{}), nil)},
		{"ping", appendFrame(nil, framePing, nil, nil)},
	}
}

// greetings is how many of the samples are such; then come frames.
const greetings = 9

// sealedGreetings are those of a handshake with a secret, in order, whose
// nonces and binding are not at random.
func sealedGreetings(identity []byte) [][]byte {
	s := newSeals([]byte("the secret of the golden file"), "orders")
	s.binding = [32]byte(bytes.Repeat([]byte{0xb1}, 32))
	var all [][]byte
	say := func(kind greetingKind, body []byte) {
		b := appendGreeting(nil, kind, lane(Append), body)
		s.said = append(s.said, b...)
		all = append(all, b)
	}
	say(greetKnock, bytes.Repeat([]byte{0xd1}, nonceSize))
	say(greetChallenge, bytes.Repeat([]byte{0xac}, nonceSize))
	say(greetProof, s.seal(labelProof, s.said, nil))
	say(greetCounterproof, s.seal(labelCounterproof, s.said, nil))
	say(greetHello, s.sealed(labelHello, identity))
	say(greetWelcome, s.sealed(labelWelcome, identity))
	return all
}

const golden = "testdata/wire-v1.golden"

// The bytes of version 1 never change: nodes of two releases talk.
func TestWireGolden(t *testing.T) {
	var now strings.Builder
	for _, s := range samples() {
		fmt.Fprintf(&now, "%s %s\n", s.name, hex.EncodeToString(s.b))
	}
	if *rewrite {
		require.NoError(t, os.WriteFile(golden, []byte(now.String()), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), now.String())
}

func TestWireRoundTrip(t *testing.T) {
	for _, s := range samples()[:2] {
		g, body, err := readGreeting(bytes.NewReader(s.b))
		require.NoError(t, err)
		p, err := decodePeer(body)
		require.NoError(t, err)
		require.Equal(t, "orders-1", p.Name)
		require.Equal(t, uint64(3), p.Node)
		require.True(t, g.speaks())
	}
	r, err := decodeRequest(appendRequest(nil, 9, time.Nanosecond, "m"))
	require.NoError(t, err)
	require.Equal(t, time.Microsecond, r.timeout, "a deadline never becomes none")
}

// Every flipped bit of a frame is found: by its limits or by its checksum.
func TestFrameFindsEveryFlippedBit(t *testing.T) {
	for _, s := range samples()[greetings:] {
		for bit := range 8 * len(s.b) {
			b := bytes.Clone(s.b)
			b[bit/8] ^= 1 << (bit % 8)
			_, _, err := decodeFrame(b, 1<<20)
			require.ErrorIs(t, err, errFormat, "%s, bit %d", s.name, bit)
		}
	}
	for _, s := range samples()[:greetings] {
		for bit := range 8 * len(s.b) {
			b := bytes.Clone(s.b)
			b[bit/8] ^= 1 << (bit % 8)
			g, _, err := readGreeting(bytes.NewReader(b))
			require.True(t, err != nil || !g.speaks(), "%s, bit %d", s.name, bit)
		}
	}
}

// allocated is what f allocates, roughly.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// fewBytes is what decoding may allocate beyond a multiple of its input: one
// trusted mebibyte, and what the runtime does meanwhile.
const fewBytes = 1<<20 + 256<<10

// Property: S11 (red: fields read past the end of their input)
func FuzzGreeting(f *testing.F) {
	for _, s := range samples()[:greetings] {
		f.Add(s.b)
	}
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		g, body, err := readGreeting(r)
		if err != nil || !g.speaks() {
			return
		}
		require.LessOrEqual(t, len(body), len(b))
		if g.newest == protocolVersion && g.oldest == protocolVersion {
			require.Equal(t, b[:len(b)-r.Len()], appendGreeting(nil, g.kind, g.lane, body))
		}
		if p, err := decodePeer(body); err == nil {
			require.Equal(t, body, appendPeer(nil, p))
		}
	})
}

// Property: S11 (red: a payload allocated at its declared length)
func FuzzFrame(f *testing.F) {
	for _, s := range samples()[greetings:] {
		f.Add(s.b)
	}
	f.Add([]byte{0xff, 0xff, 0xff, 0x01, 1, 0, 0, 0, 0, 9})
	f.Fuzz(func(t *testing.T, b []byte) {
		var kind frameKind
		var payload []byte
		var err error
		var h [frameHeaderSize]byte
		r := bytes.NewReader(b)
		spent := allocated(func() { kind, payload, err = readFrame(r, &h, DefaultMaxFrame) })
		require.LessOrEqual(t, spent, uint64(6*len(b)+fewBytes))
		if err != nil {
			require.True(t, errors.Is(err, errFormat) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF), "%v", err)
			return
		}
		used := b[:len(b)-r.Len()]
		require.Equal(t, used, appendFrame(nil, kind, nil, payload))
		k, p, err := decodeFrame(used, DefaultMaxFrame)
		require.NoError(t, err)
		require.Equal(t, kind, k)
		require.Equal(t, len(payload), len(p))
	})
}

// Property: S11 (red: fields read past the end of their input; a timeout that overflows)
func FuzzPayload(f *testing.F) {
	for _, s := range samples()[greetings:] {
		f.Add(s.b[frameHeaderSize:])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, err := decodePeer(b); err == nil {
			require.Equal(t, b, appendPeer(nil, p))
		}
		if r, err := decodeRequest(b); err == nil {
			require.Equal(t, b, append(appendRequest(nil, r.id, r.timeout, r.method), r.body...))
		}
		if timeout, method, err := decodeOpen(b); err == nil {
			require.Equal(t, b, appendOpen(nil, timeout, method))
		}
		if id, rest, err := decodeID(b); err == nil {
			require.Equal(t, b, append(appendID(nil, id), rest...))
		}
		if o, err := decodeOutcome(b); err == nil {
			if len(o.message) <= maxMessage {
				require.Equal(t, b, appendOutcome(nil, o))
			}
			require.Equal(t, o.verdict == verdictDone, o.err() == nil)
		}
	})
}

// A handler's error crosses the wire as its code and its text, cut if absurd.
func TestOutcomeIsBounded(t *testing.T) {
	o, err := decodeOutcome(appendOutcome(nil, outcomeOf(errors.New(strings.Repeat("x", 1<<20)))))
	require.NoError(t, err)
	require.Len(t, o.message, maxMessage)
	require.NoError(t, outcomeOf(nil).err())
	require.Equal(t, &RemoteError{Message: context.Canceled.Error()}, outcomeOf(context.Canceled).err())
}

func TestJudge(t *testing.T) {
	id := func(cluster string, c byte) Identity {
		return Identity{Cluster: cluster, Name: "n", ClusterID: [16]byte{c}}
	}
	for _, c := range []struct {
		mine, theirs Identity
		want, told   Refusal
	}{
		{id("a", 0), id("a", 0), 0, RefusedSilently},
		{id("a", 1), id("a", 0), 0, RefusedSilently},
		{id("a", 0), id("a", 1), 0, RefusedSilently},
		{id("a", 1), id("a", 1), 0, RefusedSilently},
		{id("a", 1), id("a", 2), RefusedClusterID, RefusedClusterID},
		{id("a", 0), id("b", 0), RefusedCluster, RefusedSilently},
		{id("a", 1), id("b", 2), RefusedCluster, RefusedSilently}, // not even that ids differ
		{id("a", 1), id("b", 1), RefusedCluster, RefusedSilently},
		{id("a", 1), Identity{Cluster: "a"}, RefusedProtocol, RefusedSilently},
	} {
		got := Admit(c.mine, c.theirs)
		require.Equal(t, c.want, got, "%v and %v", c.mine, c.theirs)
		require.Equal(t, c.told, got.Told())
	}
}
