package topic

import (
	"bytes"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

func exampleFill() (fillRequest, fillCut) {
	q := fillRequest{address: address{storage.Incarnation{1, 2, 3}, 5}, group: 77, replica: 1 << 40, next: 901}
	c := fillCut{
		replica: 12, term: 9, start: storage.LogStart{Index: 1, Term: 1}, last: 2000, lastIn: 8, next: 5000, aux: 1900, first: 901,
		conf: storage.ConfState{Voters: []storage.ReplicaID{10, 11, 12}, Learners: []storage.ReplicaID{1 << 40}},
	}
	return q, c
}

// wire returns a whole fill.
func exampleWire(t require.TestingT) []byte {
	q, c := exampleFill()
	var b bytes.Buffer
	b.Write(q.encode())
	require.NoError(t, writeFill(&b, fillIsCut, c.encode()))
	require.NoError(t, writeFill(&b, fillFrames, []byte("frames")))
	require.NoError(t, writeFill(&b, fillState, []byte("producers")))
	require.NoError(t, writeFill(&b, fillEnd, nil))
	require.NoError(t, writeFill(&b, fillRefused, encodeError(raftlog.Retry(ErrNoReplica))))
	return b.Bytes()
}

func TestTheFormatOfAFillIsPinned(t *testing.T) {
	have := hex.Dump(exampleWire(t))
	path := filepath.Join("testdata", "fill-v1.hex")
	if os.Getenv("STELE_REWRITE") != "" {
		require.NoError(t, os.WriteFile(path, []byte(have), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), have)
}

func TestAFillIsReadAsItWasWritten(t *testing.T) {
	wantRequest, wantCut := exampleFill()
	wire := exampleWire(t)
	q, err := decodeFillRequest(wire[:fillRequestSize])
	require.NoError(t, err)
	require.Equal(t, wantRequest, q)
	r := bytes.NewReader(wire[fillRequestSize:])
	var kinds []byte
	for range 5 {
		kind, body, err := readFill(r, nil)
		require.NoError(t, err)
		kinds = append(kinds, kind)
		switch kind {
		case fillIsCut:
			c, err := decodeFillCut(body)
			require.NoError(t, err)
			require.Equal(t, wantCut, c)
		case fillRefused:
			require.ErrorIs(t, fillError(body), ErrNoReplica)
		}
	}
	require.Equal(t, []byte{fillIsCut, fillFrames, fillState, fillEnd, fillRefused}, kinds)
}

// Whatever bit of a fill is changed, somebody notices: the frames' own bits, when
// they are staged, at the latest.
func TestEveryBitOfAFillIsCovered(t *testing.T) {
	wire := exampleWire(t)
	whole := func(wire []byte) error {
		if _, err := decodeFillRequest(wire[:fillRequestSize]); err != nil {
			return err
		}
		r := bytes.NewReader(wire[fillRequestSize:])
		for r.Len() > 0 {
			if _, _, err := readFill(r, nil); err != nil {
				return err
			}
		}
		return nil
	}
	require.NoError(t, whole(wire))
	for bit := range 8 * len(wire) {
		bad := slices.Clone(wire)
		bad[bit/8] ^= 1 << (bit % 8)
		require.Error(t, whole(bad), "bit %d", bit)
	}
	for n := range len(wire) - 1 {
		if n >= fillRequestSize {
			require.Error(t, func() error {
				r := bytes.NewReader(wire[fillRequestSize:n])
				for range 5 {
					if _, _, err := readFill(r, nil); err != nil {
						return err
					}
				}
				return nil
			}(), "%d bytes", n)
		}
	}
}

// FuzzFill: an error, never a panic, and no more memory than what came justifies.
func FuzzFill(f *testing.F) {
	wire := exampleWire(f)
	f.Add(wire[:fillRequestSize])
	f.Add(wire[fillRequestSize:])
	_, c := exampleFill()
	f.Add(c.encode())
	f.Add([]byte{0, 0, 0, 0, fillFrames, 0xff, 0xff, 0xff, 0x03})
	f.Fuzz(func(t *testing.T, b []byte) {
		if q, err := decodeFillRequest(b); err == nil {
			require.Equal(t, b, q.encode())
		}
		if c, err := decodeFillCut(b); err == nil {
			again, err := decodeFillCut(c.encode())
			require.NoError(t, err)
			require.Equal(t, c, again)
		}
		_, body, err := readFill(bytes.NewReader(b), nil)
		require.LessOrEqual(t, cap(body), 4*len(b)+2*fillChunk)
		if err == nil {
			_ = fillError(body)
		}
	})
}

func TestAPacerSpreadsBytesOverTime(t *testing.T) {
	b := pacer{rate: 1000}
	at := time.Unix(100, 0)
	require.Equal(t, time.Second, b.due(at, 1000))
	require.Equal(t, 1500*time.Millisecond, b.due(at, 500))
	require.Equal(t, 600*time.Millisecond, b.due(at.Add(time.Second), 100))
	require.Equal(t, 100*time.Millisecond, b.due(at.Add(time.Hour), 100), "a pause is not saved up")
}

func TestRounds(t *testing.T) {
	at := time.Unix(100, 0)
	var r rounds
	see := func(after time.Duration, match, last storage.Index) bool {
		at = at.Add(after)
		r.observe(at, match, last)
		return r.close()
	}
	require.False(t, see(0, 0, 100), "it has nothing")
	require.False(t, see(moveEvery, 0, 100))
	require.False(t, see(moveEvery, 50, 100), "half of what there was")
	require.Equal(t, storage.Index(50), r.missing)
	require.False(t, see(5*time.Second, 100, 5000), "the round took too long")
	require.False(t, see(4*time.Second, 5000, 9000))
	require.True(t, see(moveEvery, 9000, 9900), "it keeps up, though it never has all")
	require.True(t, see(moveEvery, 9500, 10000))
	require.True(t, see(moveEvery, 9900, 10000))
	require.False(t, see(time.Second, 9900, 20000), "it fell back")
	require.False(t, see(time.Second, 0, 20000), "another term has begun")
}
