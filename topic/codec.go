package topic

import (
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
)

// zstdWindow is how far back a zstd frame refers, in bytes: what a batch is
// meant to be large. A decoder needs no more memory than that beside its output.
const zstdWindow = TargetBatchSize

// packer compresses, with what it needs again and again. It is for one
// goroutine at a time; the zero value is ready.
type packer struct {
	scratch []byte
	zstd    *zstd.Encoder // nil: not needed yet
}

// compress returns src as codec writes it, in the packer's space, and the codec
// that was used: none if compression does not pay.
func (p *packer) compress(codec Codec, src []byte) ([]byte, Codec) {
	var packed []byte
	switch codec {
	case CodecS2:
		if need := s2.MaxEncodedLen(len(src)); len(p.scratch) < need {
			p.scratch = make([]byte, need)
		}
		packed = s2.Encode(p.scratch, src)
	case CodecZstd:
		if p.zstd == nil {
			encoder, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false),
				zstd.WithWindowSize(zstdWindow), zstd.WithLowerEncoderMem(true))
			if err != nil { // of options, which do not change
				return src, CodecNone
			}
			p.zstd = encoder
		}
		packed = p.zstd.EncodeAll(src, p.scratch[:0])
		p.scratch = packed[:cap(packed)]
	default:
		return src, CodecNone
	}
	if len(packed) >= len(src) {
		return src, CodecNone
	}
	return packed, codec
}

// unpacker decompresses. It is for one goroutine at a time; the zero value is
// ready.
type unpacker struct {
	zstd *zstd.Decoder // nil: not needed yet
}

// decompress returns the size bytes that src stands for: src itself for
// CodecNone, else in scratch's space if that is large enough. It allocates at
// most size bytes, which the caller has checked against maxRecordsSize. What
// becomes larger is corrupt, and so is a zstd frame that refers further back than
// zstdWindow.
func (u *unpacker) decompress(codec Codec, scratch, src []byte, size int) ([]byte, error) {
	switch codec {
	case CodecNone:
		if len(src) != size {
			return nil, corrupt("%d bytes of records, %d declared", len(src), size)
		}
		return src, nil
	case CodecS2:
		if n, err := s2.DecodedLen(src); err != nil || n != size {
			return nil, corrupt("s2 block of %d bytes, %d declared", n, size)
		}
		out, err := s2.Decode(space(scratch, size), src)
		if err != nil {
			return nil, corrupt("s2: %v", err)
		}
		return out, nil
	case CodecZstd:
		return u.decodeZstd(scratch, src, size)
	default:
		return nil, corrupt("unknown codec %d", codec)
	}
}

func (u *unpacker) decodeZstd(scratch, src []byte, size int) ([]byte, error) {
	if u.zstd == nil {
		decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxMemory(maxRecordsSize), zstd.WithDecoderMaxWindow(zstdWindow), zstd.WithDecodeAllCapLimit(true))
		if err != nil { // of options, which do not change
			return nil, corrupt("zstd: %v", err)
		}
		u.zstd = decoder
	}
	out, err := u.zstd.DecodeAll(src, space(scratch, size)[:0:size])
	switch {
	case err != nil:
		return nil, corrupt("zstd: %v", err)
	case len(out) != size:
		return nil, corrupt("zstd frame of %d bytes, %d declared", len(out), size)
	}
	return out, nil
}

// space returns size bytes, of scratch if it has them.
func space(scratch []byte, size int) []byte {
	if cap(scratch) < size {
		return make([]byte, size)
	}
	return scratch[:size]
}
