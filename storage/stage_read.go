package storage

// Frames appends to buf the frames of the entries of [lo, hi), byte for byte as
// they are in the log and verified: about maxBytes of them, but at least one,
// and none beyond the end of a segment. next is the entry behind the last. The
// errors are those of Entries; ErrCompacted also says that the entries were let
// go meanwhile. The log is not locked while files are read, and is appended to
// beside it. The caller owns the bytes. Safe for concurrent use.
func (l *Log) Frames(lo, hi Index, maxBytes int, buf []byte) (_ []byte, next Index, err error) {
	v, err := l.view()
	switch {
	case err != nil:
		return buf, lo, err
	case lo <= v.pos.StartIndex:
		return buf, lo, ErrCompacted
	case hi > v.pos.LastIndex+1:
		return buf, lo, ErrBeyond
	case lo >= hi:
		return buf, lo, nil
	}
	r := reading{view: v, log: l, maxBytes: int64(max(maxBytes, 1)), buf: buf, from: lo, limit: hi}
	if err := r.run(func(p waypoint) bool { return p.index > lo }); err != nil {
		return buf, lo, err
	}
	return r.buf, r.frames[len(r.frames)-1].Index + 1, nil
}
