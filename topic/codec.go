package topic

import "github.com/klauspost/compress/s2"

// compress returns src as codec writes it, in the space of scratch, which it
// may grow, and the codec that was used: none if compression does not pay.
func compress(codec Codec, scratch *[]byte, src []byte) ([]byte, Codec) {
	if codec != CodecS2 {
		return src, CodecNone
	}
	if need := s2.MaxEncodedLen(len(src)); len(*scratch) < need {
		*scratch = make([]byte, need)
	}
	packed := s2.Encode(*scratch, src)
	if len(packed) >= len(src) {
		return src, CodecNone
	}
	return packed, CodecS2
}

// decompress returns the size bytes that src stands for: src itself for
// CodecNone, else in scratch's space if that is large enough. It allocates at
// most size bytes, which the caller has checked against maxRecordsSize, and
// nothing if the block declares another size.
func decompress(codec Codec, scratch, src []byte, size int) ([]byte, error) {
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
		if cap(scratch) < size {
			scratch = make([]byte, size)
		}
		out, err := s2.Decode(scratch[:size], src)
		if err != nil {
			return nil, corrupt("s2: %v", err)
		}
		return out, nil
	default:
		return nil, corrupt("unknown codec %d", codec)
	}
}
