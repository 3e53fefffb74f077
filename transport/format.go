package transport

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"time"
)

// The wire, all integers little endian.
//
// A connection starts with greetings, see greeting.go. After that both sides
// send frames:
//
//	 0        4      5        9
//	+--------+------+--------+----------------+
//	| length | kind | crc32c | payload        |
//	| u32    | u8   | u32    | length B       |
//	+--------+------+--------+----------------+
//
// crc32c is over bytes 0 to 4 and the payload. A frame that fails it ends a
// connection, since the next frame cannot be found with certainty.
//
//	kind        payload
//	 1 message  the frame that was sent
//	 2 identity an identity as in a hello: the sender's, from here on
//	 3 request  id u64, timeout in us u64 (0: none), method u8 + B, request
//	 4 response id u64, answer
//	 5 failure  id u64, outcome
//	 6 cancel   id u64
//	 7 open     timeout in us u64 (0: none), method u8 + B
//	 8 data     up to 64 KiB of a stream
//	 9 end      nothing: no more data from this side
//	10 finish   outcome: the handler of the stream returned
//	11 ping     nothing: the sender is alive
//
// An outcome is verdict u8 (0 done, 1 the handler's error, 2 never executed),
// code u8 + B, and the message up to the end of the payload.

const (
	frameHeaderSize = 9
	// maxData is the most bytes of a stream in one frame.
	maxData = 64 << 10
	// maxShort bounds method names, codes, names and addresses.
	maxShort = 255
	// maxMessage bounds the text of an error.
	maxMessage = 4 << 10
	// requestFields bounds what a request carries beside its body.
	requestFields = 8 + 8 + 1 + maxShort
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errFormat is the root of all decoding errors; errChecksum is one.
var (
	errFormat   = errors.New("transport: malformed")
	errChecksum = fmt.Errorf("%w: checksum differs", errFormat)
	errMagic    = fmt.Errorf("%w: not this protocol", errFormat)
)

type frameKind uint8

const (
	frameMessage frameKind = iota + 1
	frameIdentity
	frameRequest
	frameResponse
	frameFailure
	frameCancel
	frameOpen
	frameData
	frameEnd
	frameFinish
	framePing
	numFrameKinds
)

// appendFrameHeader writes the header of a frame whose payload is prefix and
// body, one after the other.
func appendFrameHeader(dst []byte, kind frameKind, prefix, body []byte) []byte {
	start := len(dst)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(prefix)+len(body)))
	dst = append(dst, byte(kind))
	sum := crc32.Checksum(dst[start:], castagnoli)
	sum = crc32.Update(sum, castagnoli, prefix)
	sum = crc32.Update(sum, castagnoli, body)
	return binary.LittleEndian.AppendUint32(dst, sum)
}

func appendFrame(dst []byte, kind frameKind, prefix, body []byte) []byte {
	dst = appendFrameHeader(dst, kind, prefix, body)
	return append(append(dst, prefix...), body...)
}

// parseFrameHeader judges a header against the limit of its connection.
func parseFrameHeader(h []byte, limit int) (frameKind, int, error) {
	n, kind := binary.LittleEndian.Uint32(h), frameKind(h[4])
	switch {
	case kind == 0 || kind >= numFrameKinds:
		return kind, 0, fmt.Errorf("%w: frame kind %d", errFormat, kind)
	case uint64(n) > uint64(limit):
		return kind, 0, fmt.Errorf("%w: frame of %d bytes, at most %d", errFormat, n, limit)
	}
	return kind, int(n), nil
}

func frameChecksumOK(h, payload []byte) bool {
	sum := crc32.Update(crc32.Checksum(h[:5], castagnoli), castagnoli, payload)
	return sum == binary.LittleEndian.Uint32(h[5:])
}

// decodeFrame decodes exactly one frame; the payload is part of b.
func decodeFrame(b []byte, limit int) (frameKind, []byte, error) {
	if len(b) < frameHeaderSize {
		return 0, nil, fmt.Errorf("%w: frame of %d bytes", errFormat, len(b))
	}
	kind, n, err := parseFrameHeader(b, limit)
	payload := b[frameHeaderSize:]
	switch {
	case err != nil:
		return 0, nil, err
	case n != len(payload):
		return 0, nil, fmt.Errorf("%w: %d bytes where the frame says %d", errFormat, len(payload), n)
	case !frameChecksumOK(b, payload):
		return 0, nil, errChecksum
	}
	return kind, payload, nil
}

// readFrame reads one frame into a fresh buffer.
func readFrame(r io.Reader, h *[frameHeaderSize]byte, limit int) (frameKind, []byte, error) {
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return 0, nil, err
	}
	kind, n, err := parseFrameHeader(h[:], limit)
	if err != nil {
		return 0, nil, err
	}
	payload, err := readPayload(r, n)
	if err != nil {
		return 0, nil, err
	}
	if !frameChecksumOK(h[:], payload) {
		return 0, nil, errChecksum
	}
	return kind, payload, nil
}

// readPayload trusts a declared length only up to 1 MiB, then up to four times
// what has really come: a damaged length costs no more memory than that.
func readPayload(r io.Reader, n int) ([]byte, error) {
	if n == 0 {
		return nil, nil
	}
	b := make([]byte, min(n, 1<<20))
	for have := 0; ; {
		m, err := io.ReadFull(r, b[have:])
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		if have += m; have == n {
			return b, nil
		}
		grown := make([]byte, min(n, 4*have))
		copy(grown, b)
		b = grown
	}
}

func appendRequest(dst []byte, id uint64, timeout time.Duration, method string) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, id)
	return appendOpen(dst, timeout, method)
}

// request is a decoded request; body is part of the payload.
type request struct {
	id      uint64
	timeout time.Duration
	method  string
	body    []byte
}

func decodeRequest(b []byte) (request, error) {
	d := decoder{b: b}
	r := request{id: d.u64(), timeout: d.micros(), method: d.short()}
	r.body = d.rest()
	return r, d.end()
}

// appendOpen rounds a timeout up, because 0 means none.
func appendOpen(dst []byte, timeout time.Duration, method string) []byte {
	micros := (max(timeout, 0) + time.Microsecond - 1) / time.Microsecond
	dst = binary.LittleEndian.AppendUint64(dst, uint64(micros))
	return appendShort(dst, method)
}

func decodeOpen(b []byte) (timeout time.Duration, method string, err error) {
	d := decoder{b: b}
	timeout, method = d.micros(), d.short()
	return timeout, method, d.end()
}

func appendID(dst []byte, id uint64) []byte { return binary.LittleEndian.AppendUint64(dst, id) }

// decodeID splits a payload that starts with the id of a call.
func decodeID(b []byte) (id uint64, rest []byte, err error) {
	d := decoder{b: b}
	id, rest = d.u64(), d.rest()
	return id, rest, d.end()
}

type verdict uint8

const (
	verdictDone verdict = iota
	verdictFailed
	verdictNotExecuted
)

// outcome is how a handler ended.
type outcome struct {
	verdict       verdict
	code, message string
}

// outcomeOf describes a handler's error; nil is done.
func outcomeOf(err error) outcome {
	if err == nil {
		return outcome{}
	}
	told := RemoteErrorOf(err)
	return outcome{verdict: verdictFailed, code: told.Code, message: told.Message}
}

// err is the error that the other side sees; nil if done.
func (o outcome) err() error {
	switch o.verdict {
	case verdictDone:
		return nil
	case verdictNotExecuted:
		return fmt.Errorf("%w: %s", ErrUnreachable, o.message)
	}
	return &RemoteError{Code: o.code, Message: o.message}
}

func appendOutcome(dst []byte, o outcome) []byte {
	dst = append(dst, byte(o.verdict))
	dst = appendShort(dst, o.code)
	return append(dst, o.message[:min(len(o.message), maxMessage)]...)
}

func decodeOutcome(b []byte) (outcome, error) {
	d := decoder{b: b}
	var o outcome
	if v := d.bytes(1); v != nil {
		o.verdict = verdict(v[0])
	}
	o.code, o.message = d.short(), string(d.rest())
	if o.verdict > verdictNotExecuted {
		return o, fmt.Errorf("%w: verdict %d", errFormat, o.verdict)
	}
	return o, d.end()
}

// appendShort cuts what is too long: callers that care have checked before.
func appendShort(dst []byte, s string) []byte {
	s = s[:min(len(s), maxShort)]
	dst = append(dst, byte(len(s)))
	return append(dst, s...)
}

// decoder reads fields; after a short read it returns zeros and remembers.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) bytes(n int) []byte {
	if d.bad || n > len(d.b) {
		d.bad = true
		return nil
	}
	b := d.b[:n]
	d.b = d.b[n:]
	return b
}

func (d *decoder) u64() uint64 {
	if b := d.bytes(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// micros reads a timeout; what a Duration cannot hold is malformed.
func (d *decoder) micros() time.Duration {
	n := d.u64()
	if n > uint64(1<<63-1)/uint64(time.Microsecond) {
		d.bad = true
		return 0
	}
	return time.Duration(n) * time.Microsecond
}

func (d *decoder) short() string {
	if n := d.bytes(1); n != nil {
		return string(d.bytes(int(n[0])))
	}
	return ""
}

func (d *decoder) rest() []byte { return d.bytes(len(d.b)) }

func (d *decoder) end() error {
	if d.bad || len(d.b) > 0 {
		return fmt.Errorf("%w: fields do not fit", errFormat)
	}
	return nil
}
