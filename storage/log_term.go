package storage

import (
	"errors"
	"sort"
)

// Term returns the term of the entry i, of [StartIndex, LastIndex]. Terms never
// fall, so between two places of the same term no file is read. The errors are
// those of Entries. Safe for concurrent use.
func (l *Log) Term(i Index) (Term, error) {
	v, err := l.view()
	switch {
	case err != nil:
		return 0, err
	case i < v.pos.StartIndex:
		return 0, ErrCompacted
	case i > v.pos.LastIndex:
		return 0, ErrBeyond
	case i == v.pos.StartIndex:
		return v.pos.StartTerm, nil
	case i == v.pos.LastIndex || v.pos.StartTerm == v.pos.LastTerm:
		return v.pos.LastTerm, nil
	}
	k := sort.Search(len(v.segments), func(k int) bool { return v.segments[k].first.index > i }) - 1
	s := v.segments[k]
	behind := v.pos.LastTerm
	if k+1 < len(v.segments) {
		behind = v.segments[k+1].first.termBefore
	}
	at, next, ok := s.pointBefore(func(p waypoint) bool { return p.index > i })
	if ok {
		behind = next.termBefore
	}
	if at.termBefore != 0 && at.termBefore == behind {
		return behind, nil
	}
	r := reading{view: v, log: l, maxBytes: 1, from: i, limit: i + 1}
	return r.term(k)
}

// term reads the term of the frame that is wanted, in segment k.
func (r *reading) term(k int) (Term, error) {
	s := r.segments[k]
	t, err := r.termOnce(k)
	var damage *DamageError
	if errors.As(err, &damage) && s.forgetIndex() {
		t, err = r.termOnce(k)
	}
	r.log.met(err, s)
	return t, err
}

func (r *reading) termOnce(k int) (term Term, err error) {
	s := r.segments[k]
	hd, end, err := r.pin(k)
	if err != nil {
		return 0, err
	}
	defer r.log.logs.files.unpin(hd)
	at := s.lookup(func(p waypoint) bool { return p.index > r.from }, end)
	at, err = s.walk(hd.file, at, end, func(f *FrameView) bool {
		term = f.Term
		return f.Index < r.from
	})
	if err == nil && at.index != r.from {
		err = s.damage(at.pos, errEndsEarly)
	}
	return term, err
}

var errEndsEarly = errors.New("the segment ends too early")
