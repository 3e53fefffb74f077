package storage

import (
	"encoding/binary"
	"fmt"
)

// appendJournalFrame appends the encoded frame to b.
func appendJournalFrame(b []byte, f *Frame) []byte {
	kind := f.Kind
	if kind == FrameReset && f.Begin.Log != nil {
		kind = frameStaged
	}
	b = binary.AppendUvarint(b, uint64(kind))
	b = binary.AppendUvarint(b, uint64(f.Group))
	b = binary.AppendUvarint(b, uint64(f.Replica))
	switch kind {
	case FrameAppend, FrameCarry:
		b = appendHardState(b, f.Hard)
		b = appendEntries(b, f.Entries)
	case FrameCreated, FrameReset:
		b = appendBegin(b, f.Begin)
	case frameStaged:
		b = appendStaged(appendBegin(b, f.Begin), f.Begin.Log)
	}
	return b
}

// appendStaged appends what a Begin does not say of a log.
func appendStaged(b []byte, p *LogPosition) []byte {
	for _, v := range [...]uint64{uint64(p.StartIndex), uint64(p.StartTerm), uint64(p.SegIndex), uint64(p.SegOffset),
		uint64(p.SegBytes), uint64(p.AuxIndex)} {
		b = binary.AppendUvarint(b, v)
	}
	return b
}

func appendHardState(b []byte, h HardState) []byte {
	b = binary.AppendUvarint(b, uint64(h.Term))
	b = binary.AppendUvarint(b, uint64(h.Vote))
	return binary.AppendUvarint(b, uint64(h.Commit))
}

func appendEntries(b []byte, entries []Entry) []byte {
	if len(entries) == 0 {
		return append(b, 0, 0)
	}
	b = binary.AppendUvarint(b, uint64(entries[0].Index))
	b = binary.AppendUvarint(b, uint64(len(entries)))
	for i := range entries {
		e := &entries[i]
		b = binary.AppendUvarint(b, uint64(e.Term))
		b = append(b, byte(e.Kind))
		b = binary.AppendUvarint(b, uint64(len(e.Data)))
		b = append(b, e.Data...)
	}
	return b
}

func appendBegin(b []byte, g *Begin) []byte {
	b = appendString(b, g.Dir)
	b = binary.AppendUvarint(b, g.Reset)
	b = binary.AppendUvarint(b, uint64(g.Index))
	b = binary.AppendUvarint(b, uint64(g.Term))
	b = binary.AppendUvarint(b, uint64(g.NextOffset))
	return appendConf(b, &g.Conf)
}

func appendString(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

func appendConf(b []byte, c *ConfState) []byte {
	for _, ids := range [...][]ReplicaID{c.Voters, c.Learners, c.VotersOutgoing, c.LearnersNext} {
		b = binary.AppendUvarint(b, uint64(len(ids)))
		for _, id := range ids {
			b = binary.AppendUvarint(b, uint64(id))
		}
	}
	return appendBool(b, c.AutoLeave)
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

// decodeFrames reads the body of a round. The data of the entries aliases it.
func decodeFrames(body []byte) ([]Frame, error) {
	var frames []Frame
	d := decoder{b: body}
	for len(d.b) > 0 {
		f := d.frame()
		if d.err != nil {
			return nil, fmt.Errorf("frame %d of the round: %w", len(frames), d.err)
		}
		frames = append(frames, f)
	}
	return frames, nil
}

func (d *decoder) frame() Frame {
	kind := d.uvarint()
	f := Frame{Group: GroupID(d.uvarint()), Replica: ReplicaID(d.uvarint())}
	switch {
	case d.err != nil:
		return f
	case kind < uint64(FrameAppend) || kind > uint64(frameStaged):
		d.fail(fmt.Errorf("kind %d %w", kind, errUnknown))
		return f
	}
	f.Kind = FrameKind(kind)
	switch f.Kind {
	case FrameAppend, FrameCarry:
		f.Hard = d.hardState()
		f.Entries = d.entries()
	case FrameCreated, FrameReset:
		f.Begin = d.begin()
	case frameStaged:
		f.Kind, f.Begin = FrameReset, d.begin()
		f.Begin.Log = d.staged(f.Begin)
	}
	return f
}

// staged reads where the log of a reset stands.
func (d *decoder) staged(g *Begin) *LogPosition {
	p := &LogPosition{
		Reset: g.Reset, LastIndex: g.Index, LastTerm: g.Term, NextOffset: g.NextOffset, Exists: true,
		StartIndex: Index(d.uvarint()),
		StartTerm:  Term(d.uvarint()),
		SegIndex:   Index(d.uvarint()),
		SegOffset:  d.offset(),
		SegBytes:   int64(d.offset()),
		AuxIndex:   Index(d.uvarint()),
	}
	if err := checkPosition(*p); d.err == nil && err != nil {
		d.fail(err)
	}
	return p
}

func (d *decoder) hardState() HardState {
	return HardState{Term: Term(d.uvarint()), Vote: ReplicaID(d.uvarint()), Commit: Index(d.uvarint())}
}

func (d *decoder) entries() []Entry {
	index := Index(d.uvarint())
	n := d.count(3)
	if n == 0 || d.err != nil {
		return nil
	}
	entries := make([]Entry, n)
	for i := range entries {
		e := &entries[i]
		e.Index = index + Index(i)
		e.Term = Term(d.uvarint())
		kind := d.byte()
		if kind > byte(EntryConfChangeV2) {
			d.fail(fmt.Errorf("entry kind %d %w", kind, errUnknown))
		}
		e.Kind = EntryKind(kind)
		if size := d.uvarint(); size > 0 {
			e.Data = d.bytes(size)
		}
	}
	return entries
}

func (d *decoder) begin() *Begin {
	return &Begin{
		Dir:        d.string(),
		Reset:      d.uvarint(),
		Index:      Index(d.uvarint()),
		Term:       Term(d.uvarint()),
		NextOffset: d.offset(),
		Conf:       d.conf(),
	}
}

func (d *decoder) string() string { return string(d.bytes(d.uvarint())) }

func (d *decoder) offset() Offset {
	v := Offset(d.uvarint())
	if v < 0 {
		d.fail(fmt.Errorf("offset %d is negative", v))
	}
	return v
}

func (d *decoder) conf() ConfState {
	return ConfState{
		Voters:         d.ids(),
		Learners:       d.ids(),
		VotersOutgoing: d.ids(),
		LearnersNext:   d.ids(),
		AutoLeave:      d.bool(),
	}
}

func (d *decoder) ids() []ReplicaID {
	n := d.count(1)
	if n == 0 {
		return nil
	}
	ids := make([]ReplicaID, n)
	for i := range ids {
		ids[i] = ReplicaID(d.uvarint())
	}
	return ids
}
