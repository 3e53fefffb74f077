package topic

import (
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"github.com/stelelog/stele/storage"
)

// What the tests of the calls see of them.

// EncodeError is an error as a response says it.
func EncodeError(err error) []byte { return encodeError(err) }

// DecodeResponse returns the error of a response, or nil.
func DecodeResponse(resp []byte) error {
	_, err := decodeResponse(resp)
	return err
}

// WireExample is a request or response.
type WireExample struct {
	Name  string
	Bytes []byte
}

// WireExamples returns one of each kind.
func WireExamples(i storage.Incarnation) []WireExample {
	a := address{i, 5}
	fetched := make([]byte, fetchedHead, fetchedHead+3)
	putFetched(fetched, Fetched{Start: 1, HighWatermark: 9, Next: 7})
	return []WireExample{
		{"produce", encodeProduce(a, 3, []byte("batch"))},
		{"fetch", encodeFetch(a, fetchCall{FetchRequest{From: 4, MaxBytes: 1 << 20, Seen: 8}, 500})},
		{"offsets", a.append(nil, flagLinearizable)},
		{"seal", a.append(nil, 0)},
		{"produced", encodeProduced(11)},
		{"fetched", append(fetched, "xyz"...)},
		{"offsets_are", encodeOffsets(offsets{start: 2, end: 12})},
		{"sealed", responseHead(0)},
		{"since", encodeSince(a, 1_700_000_000_000)},
		{"since_is", encodeSinceIs(offsets{2, 12, 7})},
		{"transfer", encodeTransfer(a, 21)},
		{"clock", a.append(nil, 0)},
		{"sums_are", append(responseHead(0), encodeSums([]storage.SegmentSum{{First: 2, Last: 9, Sum: [32]byte{1, 2}}, {First: 10, Last: 10}})...)},
		{"clock_is", encodeClock(time.UnixMilli(1_700_000_000_000))},
		{"close", append(a.append(nil, 0), encodeClose(KindRestore, 300)...)},
		{"time", address{}.append(nil, 0)},
	}
}

// DecodeAll reads data as whatever may arrive.
func DecodeAll(data []byte) []error {
	_, _, body, err := decodeAddress(data)
	_, _, produce := decodeProduce(body)
	_, fetch := decodeFetch(body)
	_, produced := decodeProduced(data)
	_, fetched := decodeFetched(data)
	_, are := decodeOffsets(data)
	_, since := decodeSince(body)
	_, sinceIs := decodeSinceIs(data)
	_, transfer := decodeTransfer(body)
	_, clock := decodeClock(data)
	_, _, closes := decodeClose(body)
	return []error{err, produce, fetch, produced, fetched, are, since, sinceIs, transfer, clock, closes}
}

// EncodeProduce is the call that appends a batch.
func EncodeProduce(i storage.Incarnation, partition uint32, batch []byte) []byte {
	return encodeProduce(address{i, partition}, 0, batch)
}

// DecodeProduced is its answer.
func DecodeProduced(resp []byte) (storage.Offset, error) { return decodeProduced(resp) }

// EncodeClose closes or opens a partition for a deletion.
func EncodeClose(i storage.Incarnation, partition uint32, kind Kind, number uint64) []byte {
	return append(address{i, partition}.append(nil, 0), encodeClose(kind, number)...)
}

// EncodeSeal has a partition be sealed.
func EncodeSeal(i storage.Incarnation, partition uint32) []byte {
	return address{i, partition}.append(nil, 0)
}

// EncodeFetch asks for records from an offset on.
func EncodeFetch(i storage.Incarnation, partition uint32, from storage.Offset) []byte {
	return encodeFetch(address{i, partition}, fetchCall{FetchRequest{From: from, MaxBytes: 1 << 20}, 100})
}

// DecodeFetched returns the batches of the answer.
func DecodeFetched(resp []byte) ([]byte, error) {
	f, err := decodeFetched(resp)
	return f.Data, err
}

// EncodeFill asks for the log of a partition, on behalf of a replica.
func EncodeFill(i storage.Incarnation, partition uint32, g storage.GroupID, r storage.ReplicaID) []byte {
	return fillRequest{address: address{i, partition}, group: g, replica: r}.encode()
}

// RefusedFill returns why a fill is refused; nil: it is not.
func RefusedFill(r io.Reader) error {
	kind, body, err := readFill(r, nil)
	if err == nil && kind == fillRefused {
		err = fillError(body)
	}
	return err
}

// CallsHandled are the calls that a manager answers, and the streams.
func CallsHandled() (names []string) {
	for name := range (&Manager{}).calls() {
		names = append(names, name)
	}
	return append(names, methodFill, methodFrames, methodAside, methodTime)
}

// ForeignRequest is a request of a method about a partition, whole and well formed, that
// names a replica of a group where it names one; for a stream, what its asker sends.
func ForeignRequest(method string, i storage.Incarnation, partition uint32, g storage.GroupID, r storage.ReplicaID, batch []byte) ([]byte, error) {
	a := address{i, partition}
	switch method {
	case methodProduce:
		return encodeProduce(a, 0, batch), nil
	case methodFetch:
		return EncodeFetch(i, partition, 0), nil
	case methodOffsets, methodSeal, methodClock:
		return a.append(nil, 0), nil
	case methodSince:
		return encodeSince(a, 0), nil
	case methodClose:
		return EncodeClose(i, partition, KindRetire, 1), nil
	case methodTransfer:
		return encodeTransfer(a, r), nil
	case methodLeft:
		return encodeLeft(a, g, r, copyEnd{}), nil
	case methodSums:
		return binary.LittleEndian.AppendUint64(a.append(nil, 0), 0), nil
	case methodFill, methodFrames, methodAside:
		return fillRequest{address: a, group: g, replica: r, next: 2}.encode(), nil
	}
	return nil, fmt.Errorf("no request of %q", method)
}
