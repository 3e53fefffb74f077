package storage

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
)

// EncodeWaypoints makes an index file of one waypoint, with good checksums.
func EncodeWaypoints(g GroupID, i Index, o Offset, pos int64) []byte {
	return appendWaypoint(nil, g, waypoint{i, o, pos, 1})
}

// The decoders, for the fuzz tests and the golden files.

func EncodeFrame(g GroupID, f *FrameView) []byte { return appendFrame(nil, g, f) }

func DecodeFrame(b []byte, g GroupID) (FrameView, error) {
	f, size, err := decodeHeader(b, g)
	if err == nil && len(b) < frameHeader+size {
		return f, errEndsEarly
	}
	if err == nil {
		err = f.setPayload(b, size)
	}
	return f, err
}

func DecodeWaypoints(b []byte, g GroupID) int { return len(decodeWaypoints(b, g)) }

func EncodeAux(g GroupID, i Index, data []byte) []byte { return encodeAux(g, i, data) }

func DecodeAux(b []byte, g GroupID, i Index) ([]byte, error) { return decodeAux(b, g, i) }

func EncodeIdentity(id Identity) []byte { return encodeIdentity(id) }

func DecodeIdentity(b []byte) (Identity, error) { return decodeIdentity(b) }

func EncodeMarker(name string, inc Incarnation) []byte { return encodeMarker(name, inc) }

func DecodeMarker(b []byte) (string, Incarnation, error) { return decodeMarker(b) }

func EncodeFormat() []byte { return encodeSealed(formatKind, formatVersion, nil) }

func EncodeReason(from string, why Reason) []byte { return encodeReason(from, why) }

func DecodeReason(b []byte) (string, Reason, error) { return decodeReason(b) }

// The seals make the checksums of an input right, so that a fuzz test gets past
// them. They change b or return a copy.

func SealFrame(b []byte) []byte {
	if len(b) >= frameHeader {
		binary.LittleEndian.PutUint32(b, crc32.Checksum(b[4:frameHeader], castagnoli))
	}
	return b
}

func SealWaypoints(b []byte, g GroupID) []byte {
	for rest := b; len(rest) >= waypointSize; rest = rest[waypointSize:] {
		binary.LittleEndian.PutUint32(rest, waypointChecksum(rest[4:waypointSize], g))
	}
	return b
}

func SealAux(b []byte) []byte {
	if len(b) >= 4 {
		binary.LittleEndian.PutUint32(b, crc32.Checksum(b[4:], castagnoli))
	}
	return b
}

func SealText(b []byte) []byte {
	return fmt.Appendf(slices.Clone(b), "crc32c %08x\n", crc32.Checksum(b, castagnoli))
}
