package transport

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
)

// A connection starts with greetings, the dialler first, all integers little
// endian. Their layout up to the body is the same in every protocol version, so
// that any two versions can at least refuse each other.
//
//	 0          4        5        6      7      8        10       14
//	+----------+--------+--------+------+------+--------+--------+-----------+
//	| F5 53 54 | newest | oldest | kind | lane | length | crc32c | body      |
//	|       4C | u8     | u8     | u8   | u8   | u16    | u32    | length B  |
//	+----------+--------+--------+------+------+--------+--------+-----------+
//
//	newest, oldest   protocol versions that the sender speaks; both sides use
//	                 the smaller of the two newest, if neither oldest is above
//	kind             see below
//	lane             0 control, 1 append, 2 bulk, 3 calls, 4 stream
//	crc32c           Castagnoli, over bytes 0 to 9 and the body
//
//	kind            from        body
//	1 hello         dialler     its identity; with a join secret, seal B (32 B)
//	2 welcome       acceptor    its identity; with a join secret, seal B (32 B)
//	3 refuse        acceptor    a Refusal u8, in place of any answer
//	4 knock         dialler     nonce, 32 B
//	5 challenge     acceptor    nonce, 32 B
//	6 proof         dialler     seal, 32 B
//	7 counterproof  acceptor    seal, 32 B
//
// Without a join secret hello and welcome are all. With one, 4 to 7 come
// before, in this order, see secret.go; all greetings of a connection then have
// the same lane, and all of one side the same versions. Whoever does not even
// send a greeting gets no answer at all.
//
// An identity is
//
//	 0            16       24       32        40
//	+------------+--------+--------+---------+---------+--------+---------+
//	| cluster id | node   | epoch  | process | cluster | name   | address |
//	| 16 B       | u64    | u64    | u64     | u8 + B  | u8 + B | u8 + B  |
//	+------------+--------+--------+---------+---------+--------+---------+

const (
	protocolVersion = 1 // spoken; also the oldest spoken

	greetingSize = 14
	// maxGreetingBody is an identity, of 40 fixed bytes and three short
	// strings, and a seal.
	maxGreetingBody = 40 + 3*256 + sealSize
)

var magic = [4]byte{0xf5, 'S', 'T', 'L'}

type greetingKind uint8

const (
	greetHello greetingKind = iota + 1
	greetWelcome
	greetRefuse
	greetKnock
	greetChallenge
	greetProof
	greetCounterproof
	numGreetings
)

// lane is what a connection carries: a class, calls, or one stream.
type lane uint8

const (
	laneCalls  = lane(NumClasses)
	laneStream = laneCalls + 1
	numLanes   = laneStream + 1
)

func (l lane) String() string {
	switch l {
	case laneCalls:
		return "calls"
	case laneStream:
		return "stream"
	}
	return Class(l).String()
}

// greeting is the decoded fixed part.
type greeting struct {
	newest, oldest uint8
	kind           greetingKind
	lane           lane
	length         int
	crc            uint32
	raw            [greetingSize]byte
}

// speaks reports whether this side and the sender share a protocol version.
func (g greeting) speaks() bool {
	return g.oldest <= protocolVersion && g.newest >= protocolVersion
}

func appendGreeting(dst []byte, kind greetingKind, l lane, body []byte) []byte {
	start := len(dst)
	dst = append(dst, magic[:]...)
	dst = append(dst, protocolVersion, protocolVersion, byte(kind), byte(l))
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(body)))
	sum := crc32.Update(crc32.Checksum(dst[start:], castagnoli), castagnoli, body)
	dst = binary.LittleEndian.AppendUint32(dst, sum)
	return append(dst, body...)
}

// parseGreeting judges the fixed part, so that nothing is allocated or awaited
// for a stranger beyond it.
func parseGreeting(h [greetingSize]byte) (greeting, error) {
	if [4]byte(h[:]) != magic {
		return greeting{}, errMagic
	}
	g := greeting{
		newest: h[4], oldest: h[5], kind: greetingKind(h[6]), lane: lane(h[7]),
		length: int(binary.LittleEndian.Uint16(h[8:])),
		crc:    binary.LittleEndian.Uint32(h[10:]),
		raw:    h,
	}
	switch {
	case g.oldest > g.newest:
		return g, fmt.Errorf("%w: versions %d to %d", errFormat, g.oldest, g.newest)
	case !g.speaks():
		return g, nil // the rest may mean anything
	case g.kind == 0 || g.kind >= numGreetings:
		return g, fmt.Errorf("%w: greeting kind %d", errFormat, g.kind)
	case g.lane >= numLanes:
		return g, fmt.Errorf("%w: lane %d", errFormat, g.lane)
	case g.length > maxGreetingBody:
		return g, fmt.Errorf("%w: greeting body of %d bytes, at most %d", errFormat, g.length, maxGreetingBody)
	}
	return g, nil
}

// readGreeting reads one greeting. If the versions do not match it returns
// before the body.
func readGreeting(r io.Reader) (greeting, []byte, error) {
	var h [greetingSize]byte
	// The magic alone first: a stranger that says less than a greeting, and
	// waits, is known at once.
	if _, err := io.ReadFull(r, h[:len(magic)]); err != nil {
		return greeting{}, nil, err
	}
	if [4]byte(h[:]) != magic {
		return greeting{}, nil, errMagic
	}
	if _, err := io.ReadFull(r, h[len(magic):]); err != nil {
		return greeting{}, nil, err
	}
	g, err := parseGreeting(h)
	if err != nil || !g.speaks() {
		return g, nil, err
	}
	body := make([]byte, g.length)
	if _, err := io.ReadFull(r, body); err != nil {
		return g, nil, err
	}
	if crc32.Update(crc32.Checksum(h[:10], castagnoli), castagnoli, body) != g.crc {
		return g, nil, errChecksum
	}
	return g, body, nil
}

func appendPeer(dst []byte, p Peer) []byte {
	dst = append(dst, p.ClusterID[:]...)
	dst = binary.LittleEndian.AppendUint64(dst, p.Node)
	dst = binary.LittleEndian.AppendUint64(dst, p.Epoch)
	dst = binary.LittleEndian.AppendUint64(dst, p.Process)
	dst = appendShort(dst, p.Cluster)
	dst = appendShort(dst, p.Name)
	return appendShort(dst, p.Addr)
}

func decodePeer(b []byte) (Peer, error) {
	d := decoder{b: b}
	var p Peer
	copy(p.ClusterID[:], d.bytes(16))
	p.Node, p.Epoch, p.Process = d.u64(), d.u64(), d.u64()
	p.Cluster, p.Name, p.Addr = d.short(), d.short(), d.short()
	return p, d.end()
}
