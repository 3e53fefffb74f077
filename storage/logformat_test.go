package storage_test

import (
	"bytes"
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/storage"
)

var rewriteLogs = flag.Bool("rewrite-logs", false, "write testdata/logs anew")

func goldenFrame() *storage.FrameView {
	return &storage.FrameView{Index: 17, Term: 4, Kind: storage.EntryNormal, Verdict: storage.VerdictData,
		BaseOffset: 1000, Count: 3, Payload: []byte("a batch of three")}
}

// The formats of version 1, to the byte: a directory that was written is read by
// every later release.
func TestGoldenFormats(t *testing.T) {
	id := storage.Identity{Nonce: storage.Nonce{1, 2, 3}, Name: "orders-1", Cluster: "or\"ders",
		ClusterID: storage.ClusterID{4, 5}, Epoch: 1, Node: 7, Genesis: []byte{0, 1, 255}}
	recovering := id
	recovering.Recovering, recovering.Fenced = storage.Recovering{Epoch: 2, Plan: [16]byte{7, 8}}, 3
	for name, b := range map[string][]byte{
		"IDENTITY.2":   storage.EncodeIdentity(recovering),
		"frame.hex":    storage.EncodeFrame(3, goldenFrame()),
		"waypoint.hex": storage.EncodeWaypoints(3, 17, 1000, 65536),
		"aux.hex":      storage.EncodeAux(3, 17, []byte("what it knows")),
		"IDENTITY":     storage.EncodeIdentity(id),
		"INCARNATION":  storage.EncodeMarker("orders", testIncarnation),
		"REASON":       storage.EncodeReason("orders@00", because("no record\nnames it")),
		"FORMAT":       storage.EncodeFormat(),
	} {
		path := filepath.Join("testdata", "logs", name)
		if filepath.Ext(name) == ".hex" {
			b = []byte(hex.Dump(b))
		}
		if *rewriteLogs {
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
			require.NoError(t, os.WriteFile(path, b, 0o644))
		}
		want, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, string(want), string(b), name)
	}
	f, err := storage.DecodeFrame(storage.EncodeFrame(3, goldenFrame()), 3)
	require.NoError(t, err)
	require.Equal(t, goldenFrame(), &f)
	have, err := storage.DecodeIdentity(storage.EncodeIdentity(id))
	require.NoError(t, err)
	require.Equal(t, id, have)
	have, err = storage.DecodeIdentity(storage.EncodeIdentity(recovering))
	require.NoError(t, err)
	require.Equal(t, recovering, have)
	require.Equal(t, 1, storage.DecodeWaypoints(storage.EncodeWaypoints(3, 17, 1000, 65536), 3))
	require.Equal(t, 0, storage.DecodeWaypoints(storage.EncodeWaypoints(3, 17, 1000, 65536), 4))
}

// Every bit of a frame and of a side file is covered.
func TestEveryBitIsCovered(t *testing.T) {
	frame := storage.EncodeFrame(3, goldenFrame())
	aux := storage.EncodeAux(3, 17, []byte("what it knows"))
	for bit := range 8 * len(frame) {
		b := bytes.Clone(frame)
		b[bit/8] ^= 1 << (bit % 8)
		_, err := storage.DecodeFrame(b, 3)
		require.Error(t, err, "bit %d", bit)
	}
	for bit := range 8 * len(aux) {
		b := bytes.Clone(aux)
		b[bit/8] ^= 1 << (bit % 8)
		_, err := storage.DecodeAux(b, 3, 17)
		require.Error(t, err, "bit %d", bit)
	}
}

// Property: S11 (red: the length of the input was not looked at, nor compared with the frame's)
func FuzzFrame(f *testing.F) {
	f.Add(storage.EncodeFrame(3, goldenFrame()))
	f.Add(storage.EncodeFrame(3, goldenFrame())[:60])
	f.Add(storage.EncodeFrame(3, goldenFrame())[:20])
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, b := range [][]byte{b, storage.SealFrame(bytes.Clone(b))} {
			frame, err := storage.DecodeFrame(b, 3)
			if err == nil {
				again := storage.EncodeFrame(3, &frame)
				require.Equal(t, b[:len(again)], again)
			}
		}
	})
}

// Property: S11 (red: a waypoint that is cut off was read)
func FuzzWaypoints(f *testing.F) {
	f.Add(storage.EncodeWaypoints(3, 17, 1000, 65536))
	f.Add(storage.EncodeWaypoints(3, 17, 1000, 65536)[:20])
	f.Fuzz(func(t *testing.T, b []byte) {
		require.LessOrEqual(t, storage.DecodeWaypoints(b, 3), len(b)/40)
		require.Equal(t, len(b)/40, storage.DecodeWaypoints(storage.SealWaypoints(bytes.Clone(b), 3), 3))
	})
}

// Property: S11 (red: the length of a side file was not looked at)
func FuzzAux(f *testing.F) {
	f.Add(storage.EncodeAux(3, 17, []byte("x")))
	f.Add(storage.EncodeAux(3, 17, []byte("x"))[:10])
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, b := range [][]byte{b, storage.SealAux(bytes.Clone(b))} {
			if data, err := storage.DecodeAux(b, 3, 17); err == nil {
				require.Equal(t, b, storage.EncodeAux(3, 17, data))
			}
		}
	})
}

// Property: S11 (red: the number of lines was not looked at)
func FuzzSealedTexts(f *testing.F) {
	f.Add(storage.EncodeIdentity(storage.Identity{Name: "n", Genesis: []byte("g")}))
	f.Add(storage.EncodeIdentity(storage.Identity{Name: "n", Recovering: storage.Recovering{Epoch: 1}, Fenced: 1}))
	f.Add(storage.EncodeMarker("orders", testIncarnation))
	f.Add(storage.EncodeReason("a", because("b")))
	f.Add(storage.EncodeFormat())
	f.Add([]byte("stele topic 1\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, b := range [][]byte{b, storage.SealText(b), storage.SealText(b[:max(len(b)-16, 0)])} {
			if id, err := storage.DecodeIdentity(b); err == nil {
				again, err := storage.DecodeIdentity(storage.EncodeIdentity(id))
				require.NoError(t, err)
				require.Equal(t, id, again)
			}
			if name, inc, err := storage.DecodeMarker(b); err == nil {
				require.Equal(t, b, storage.EncodeMarker(name, inc))
			}
			if from, why, err := storage.DecodeReason(b); err == nil {
				haveFrom, have, err := storage.DecodeReason(storage.EncodeReason(from, why))
				require.NoError(t, err)
				require.Equal(t, from, haveFrom)
				require.Equal(t, why, have)
			}
		}
	})
}
