package storage

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"strconv"
	"strings"
)

// The partition log on the disk.
//
// A log is a directory of segment files, which hold nothing but frames, one for
// each entry of the raft log, in order and without gaps. All integers are
// little-endian.
//
//	<first index, 20 digits>-<base offset, 20 digits>.seg
//
//	 0          4      5      6         7      8               16
//	+----------+------+------+---------+------+---------------+---------------+
//	| crc32c   | form | kind | verdict | zero | group         | index         |
//	+----------+------+------+---------+------+-------+-------+-------+-------+
//	 24                32                       40      44      48      52
//	| term             | base offset            | count | size  | crc32c| payload ...
//	+------------------+------------------------+-------+-------+-------+------
//	                                                             of the payload
//
// The first checksum covers bytes 4 to 52, so the size is believed before the
// payload is read and a walk may skip payloads; the payload's own checksum is
// among the bytes that it covers. The group is there because a frame that the
// disk returns from another log would pass all other checks.
//
// Where a segment ends is a function of the entries and the segment size alone:
// before the frame that would pass the size, never empty. So the segments of
// two replicas can be compared byte by byte.
//
// Beside a segment lies an index of waypoints (.idx) that is only ever a hint:
// it is not synced and not missed. Each record is one place where a frame
// begins:
//
//	 0          4       8               16              24              32
//	+----------+-------+---------------+---------------+---------------+---------------+
//	| crc32c   | zero  | index         | base offset   | position      | term before   |
//	+----------+-------+---------------+---------------+---------------+---------------+
//
// and its checksum covers bytes 4 to 40 and then the group.
//
// A side file (.aux) holds what the state machine knows at one index:
//
//	 0          4      5         8               16              24
//	+----------+------+---------+---------------+---------------+-------------
//	| crc32c   | form | zero    | group         | index         | data ...
//	+----------+------+---------+---------------+---------------+-------------
//
// with a checksum over all behind it.
const (
	frameHeader   = 52
	frameFormat   = 1
	waypointSize  = 40
	auxHeader     = 24
	auxFormat     = 1
	segmentSuffix = ".seg"
	indexSuffix   = ".idx"
	auxSuffix     = ".aux"
)

// MaxFramePayload is the largest payload of a log's frame, in bytes. A batch
// is at most 16 MiB, so this is never met by a healthy caller.
const MaxFramePayload = 64 << 20

// FrameView is one frame of a partition log. The Payload is borrowed from the
// buffer that it was read into.
type FrameView struct {
	Index      Index
	Term       Term
	Kind       EntryKind
	Verdict    Verdict
	BaseOffset Offset // of its first record; for frames without offsets: the next offset
	Count      uint32 // offsets that it occupies; 0 unless VerdictData
	Payload    []byte
}

// NextOffset is the offset behind the frame.
func (f *FrameView) NextOffset() Offset { return f.BaseOffset + Offset(f.Count) }

// checkShape refuses what no state machine decides and no disk should hold.
func (f *FrameView) checkShape() error {
	switch {
	case f.Kind > EntryConfChangeV2:
		return fmt.Errorf("entry kind %d", f.Kind)
	case f.Verdict < VerdictData || f.Verdict > VerdictControl:
		return fmt.Errorf("verdict %d", f.Verdict)
	case (f.Verdict == VerdictData) != (f.Count > 0):
		return fmt.Errorf("verdict %d with %d offsets", f.Verdict, f.Count)
	case f.BaseOffset < 0 || f.BaseOffset > math.MaxInt64-Offset(f.Count):
		return fmt.Errorf("base offset %d", f.BaseOffset)
	case f.Index == 0 || f.Term == 0:
		return fmt.Errorf("index %d, term %d", f.Index, f.Term)
	case len(f.Payload) > MaxFramePayload:
		return fmt.Errorf("payload of %d bytes", len(f.Payload))
	}
	return nil
}

// appendFrame appends the encoded frame to b.
func appendFrame(b []byte, g GroupID, f *FrameView) []byte {
	at := len(b)
	b = append(b, 0, 0, 0, 0, frameFormat, byte(f.Kind), byte(f.Verdict), 0)
	b = binary.LittleEndian.AppendUint64(b, uint64(g))
	b = binary.LittleEndian.AppendUint64(b, uint64(f.Index))
	b = binary.LittleEndian.AppendUint64(b, uint64(f.Term))
	b = binary.LittleEndian.AppendUint64(b, uint64(f.BaseOffset))
	b = binary.LittleEndian.AppendUint32(b, f.Count)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(f.Payload)))
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(f.Payload, castagnoli))
	binary.LittleEndian.PutUint32(b[at:], crc32.Checksum(b[at+4:], castagnoli))
	return append(b, f.Payload...)
}

// decodeHeader reads the header at the start of b, which may end anywhere. The
// frame has no Payload yet; size is the payload's.
func decodeHeader(b []byte, g GroupID) (f FrameView, size int, err error) {
	if len(b) < frameHeader {
		return f, 0, fmt.Errorf("a frame header is cut off after %d bytes", len(b))
	}
	h := b[:frameHeader]
	if binary.LittleEndian.Uint32(h) != crc32.Checksum(h[4:], castagnoli) {
		return f, 0, fmt.Errorf("the checksum of a frame header differs")
	}
	if h[4] != frameFormat || h[7] != 0 {
		return f, 0, fmt.Errorf("unknown frame format %d.%d", h[4], h[7])
	}
	if have := GroupID(binary.LittleEndian.Uint64(h[8:])); have != g {
		return f, 0, fmt.Errorf("a frame of group %v in the log of group %v", have, g)
	}
	f = FrameView{
		Kind:       EntryKind(h[5]),
		Verdict:    Verdict(h[6]),
		Index:      Index(binary.LittleEndian.Uint64(h[16:])),
		Term:       Term(binary.LittleEndian.Uint64(h[24:])),
		BaseOffset: Offset(binary.LittleEndian.Uint64(h[32:])),
		Count:      binary.LittleEndian.Uint32(h[40:]),
	}
	length := binary.LittleEndian.Uint32(h[44:])
	if length > MaxFramePayload {
		return f, 0, fmt.Errorf("a frame has a payload of %d bytes", length)
	}
	if err := f.checkShape(); err != nil {
		return f, 0, fmt.Errorf("a frame has %w", err)
	}
	return f, int(length), nil
}

// payloadSize is what the header at the start of b says of its payload's size;
// at most MaxFramePayload, and nobody vouches for it.
func payloadSize(b []byte) int {
	return int(min(binary.LittleEndian.Uint32(b[44:]), MaxFramePayload))
}

// setPayload takes the payload of the frame whose header is at the start of b;
// b holds all of it.
func (f *FrameView) setPayload(b []byte, size int) error {
	f.Payload = b[frameHeader : frameHeader+size : frameHeader+size]
	if binary.LittleEndian.Uint32(b[48:]) != crc32.Checksum(f.Payload, castagnoli) {
		return fmt.Errorf("the checksum of the payload of entry %d differs", f.Index)
	}
	return nil
}

// follows checks that f is the frame that belongs at the place p.
func (f *FrameView) follows(p waypoint) error {
	switch {
	case f.Index != p.index:
		return fmt.Errorf("entry %d where entry %d belongs", f.Index, p.index)
	case f.BaseOffset != p.offset:
		return fmt.Errorf("entry %d has base offset %d, want %d", f.Index, f.BaseOffset, p.offset)
	case f.Term < p.termBefore:
		return fmt.Errorf("entry %d of term %d follows one of term %d", f.Index, f.Term, p.termBefore)
	}
	return nil
}

// appendWaypoint appends the encoded waypoint to b.
func appendWaypoint(b []byte, g GroupID, p waypoint) []byte {
	at := len(b)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, uint64(p.index))
	b = binary.LittleEndian.AppendUint64(b, uint64(p.offset))
	b = binary.LittleEndian.AppendUint64(b, uint64(p.pos))
	b = binary.LittleEndian.AppendUint64(b, uint64(p.termBefore))
	binary.LittleEndian.PutUint32(b[at:], waypointChecksum(b[at+4:], g))
	return b
}

func waypointChecksum(b []byte, g GroupID) uint32 {
	var group [8]byte
	binary.LittleEndian.PutUint64(group[:], uint64(g))
	return crc32.Update(crc32.Checksum(b, castagnoli), castagnoli, group[:])
}

// decodeWaypoints returns the waypoints of an index file. What is not whole, or
// not of this group, is left out.
func decodeWaypoints(b []byte, g GroupID) []waypoint {
	var points []waypoint
	for ; len(b) >= waypointSize; b = b[waypointSize:] {
		if binary.LittleEndian.Uint32(b) != waypointChecksum(b[4:waypointSize], g) {
			continue
		}
		points = append(points, waypoint{
			index:      Index(binary.LittleEndian.Uint64(b[8:])),
			offset:     Offset(binary.LittleEndian.Uint64(b[16:])),
			pos:        int64(binary.LittleEndian.Uint64(b[24:])),
			termBefore: Term(binary.LittleEndian.Uint64(b[32:])),
		})
	}
	return points
}

// encodeAux makes a side file.
func encodeAux(g GroupID, i Index, data []byte) []byte {
	b := make([]byte, auxHeader, auxHeader+len(data))
	b[4] = auxFormat
	binary.LittleEndian.PutUint64(b[8:], uint64(g))
	binary.LittleEndian.PutUint64(b[16:], uint64(i))
	b = append(b, data...)
	binary.LittleEndian.PutUint32(b, crc32.Checksum(b[4:], castagnoli))
	return b
}

// decodeAux returns the data of a side file, which aliases b.
func decodeAux(b []byte, g GroupID, i Index) ([]byte, error) {
	switch {
	case len(b) < auxHeader:
		return nil, fmt.Errorf("cut off after %d bytes", len(b))
	case binary.LittleEndian.Uint32(b) != crc32.Checksum(b[4:], castagnoli):
		return nil, fmt.Errorf("the checksum differs")
	case b[4] != auxFormat || b[5]|b[6]|b[7] != 0:
		return nil, fmt.Errorf("unknown format %d", b[4])
	case GroupID(binary.LittleEndian.Uint64(b[8:])) != g || Index(binary.LittleEndian.Uint64(b[16:])) != i:
		return nil, fmt.Errorf("it is of entry %d of group %d", binary.LittleEndian.Uint64(b[16:]),
			binary.LittleEndian.Uint64(b[8:]))
	}
	return b[auxHeader:], nil
}

// segmentName is the name of the segment that begins with entry i at offset o.
func segmentName(i Index, o Offset) string {
	return fmt.Sprintf("%020d-%020d%s", i, o, segmentSuffix)
}

// parseSegmentName is the inverse of segmentName.
func parseSegmentName(name string) (Index, Offset, bool) {
	stem, ok := strings.CutSuffix(name, segmentSuffix)
	first, base, cut := strings.Cut(stem, "-")
	i, errI := strconv.ParseUint(first, 10, 64)
	o, errO := strconv.ParseInt(base, 10, 64)
	if !ok || !cut || errI != nil || errO != nil || segmentName(Index(i), Offset(o)) != name {
		return 0, 0, false
	}
	return Index(i), Offset(o), true
}

func auxName(i Index) string { return fmt.Sprintf("%020d%s", i, auxSuffix) }

// parseAuxName is the inverse of auxName.
func parseAuxName(name string) (Index, bool) {
	i, err := strconv.ParseUint(strings.TrimSuffix(name, auxSuffix), 10, 64)
	if err != nil || auxName(Index(i)) != name {
		return 0, false
	}
	return Index(i), true
}
