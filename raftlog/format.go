package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	pb "go.etcd.io/raft/v3/raftpb"
)

// A frame carries raft messages of many groups from one node to another. The
// transport guards it with a checksum and says between which nodes and in
// which cluster it travels; a frame of another version is dropped as a whole.
//
//	frame    version 1 | message ...
//	message  type 1 | flags 1 | group v | from v | to v | term v
//	         [index v | log term v]     flag position
//	         [commit v]                 flag commit
//	         [reject hint v]            flag hint
//	         [length v | context ...]   flag context
//	         [count v | entry ...]      flag entries
//	entry    length<<2|kind v | term - term of the entry before v | data ...
//	         in MsgReadIndex and its response just one: length<<2 v | data ...
//
// "1" is one byte, "v" an unsigned varint. Types are raft's numbers. Flag bit
// 0 is raft's reject. The entries of MsgApp follow the position: the first has
// index + 1, and the term before it is the log term; terms in a log never
// fall, so differences are small and unsigned. Snapshots do not travel in
// frames.
//
// What nodes tell each other about replicas beside raft travels in frames of its
// own, which builds that do not know it drop as a whole:
//
//	frame    version 2 | notice ...
//	notice   kind 1 | length v | group v | from v | to v | term v | start v
//
// The length is that of what follows it. Kind 1, "behind": the leader from says
// in term that to needs a snapshot, as its own log holds entries above start.
// Kind 2, "removed": from was addressed by to, which is in its group no more;
// term and start are 0. Notices of other kinds are skipped,
// as are further fields of known ones.
const (
	frameVersion  = 1
	noticeVersion = 2
)

const (
	flagReject = 1 << iota
	flagPosition
	flagCommit
	flagHint
	flagContext
	flagEntries

	flagsKnown = 1<<iota - 1
)

// Classes of traffic, which must not delay each other.
const (
	// ClassControl is for what elections and reads wait for.
	ClassControl uint8 = 0
	// ClassAppend is for entries and their acknowledgements.
	ClassAppend uint8 = 1
	// ClassBulk is for catching up.
	ClassBulk uint8 = 2

	numClasses = 3
)

var errFrame = errors.New("raftlog: malformed frame")

// travels says which messages go from node to node, and how.
func travels(t pb.MessageType) (class uint8, ok bool) {
	switch t {
	case pb.MsgApp, pb.MsgAppResp:
		return ClassAppend, true
	case pb.MsgVote, pb.MsgVoteResp, pb.MsgPreVote, pb.MsgPreVoteResp,
		pb.MsgHeartbeat, pb.MsgHeartbeatResp,
		pb.MsgReadIndex, pb.MsgReadIndexResp,
		pb.MsgTransferLeader, pb.MsgTimeoutNow:
		return ClassControl, true
	}
	return 0, false
}

// looseEntries says that the entries of a message carry data alone: raft
// keeps the context of a read there.
func looseEntries(t pb.MessageType) bool {
	return t == pb.MsgReadIndex || t == pb.MsgReadIndexResp
}

// appendMessage appends m to a frame, which begins with frameVersion. On an
// error it returns the frame as it was.
func appendMessage(frame []byte, group GroupID, m *pb.Message) ([]byte, error) {
	t := m.GetType()
	if _, ok := travels(t); !ok {
		return frame, fmt.Errorf("raftlog: %v does not travel", t)
	}
	b := append(frame, byte(t), messageFlags(m))
	b = binary.AppendUvarint(b, uint64(group))
	b = binary.AppendUvarint(b, m.GetFrom())
	b = binary.AppendUvarint(b, m.GetTo())
	b = binary.AppendUvarint(b, m.GetTerm())
	flags := b[len(frame)+1]
	if flags&flagPosition != 0 {
		b = binary.AppendUvarint(b, m.GetIndex())
		b = binary.AppendUvarint(b, m.GetLogTerm())
	}
	if flags&flagCommit != 0 {
		b = binary.AppendUvarint(b, m.GetCommit())
	}
	if flags&flagHint != 0 {
		b = binary.AppendUvarint(b, m.GetRejectHint())
	}
	if flags&flagContext != 0 {
		b = binary.AppendUvarint(b, uint64(len(m.GetContext())))
		b = append(b, m.GetContext()...)
	}
	if flags&flagEntries == 0 {
		return b, nil
	}
	b = binary.AppendUvarint(b, uint64(len(m.GetEntries())))
	if looseEntries(t) {
		return appendLooseEntries(b, m.GetEntries()), nil
	}
	b, ok := appendEntries(b, m)
	if !ok {
		return frame, fmt.Errorf("raftlog: entries of %v do not follow (%d, term %d)", t, m.GetIndex(), m.GetLogTerm())
	}
	return b, nil
}

func messageFlags(m *pb.Message) byte {
	var flags byte
	if m.GetReject() {
		flags |= flagReject
	}
	if m.GetIndex() != 0 || m.GetLogTerm() != 0 {
		flags |= flagPosition
	}
	if m.GetCommit() != 0 {
		flags |= flagCommit
	}
	if m.GetRejectHint() != 0 {
		flags |= flagHint
	}
	if len(m.GetContext()) != 0 {
		flags |= flagContext
	}
	if len(m.GetEntries()) != 0 {
		flags |= flagEntries
	}
	return flags
}

func appendEntries(b []byte, m *pb.Message) (_ []byte, ok bool) {
	index, term := m.GetIndex(), m.GetLogTerm()
	for _, e := range m.GetEntries() {
		index++
		if e.GetIndex() != index || e.GetTerm() < term {
			return nil, false
		}
		b = binary.AppendUvarint(b, uint64(len(e.GetData()))<<2|uint64(e.GetType())&3)
		b = binary.AppendUvarint(b, e.GetTerm()-term)
		b = append(b, e.GetData()...)
		term = e.GetTerm()
	}
	return b, true
}

func appendLooseEntries(b []byte, entries []*pb.Entry) []byte {
	for _, e := range entries {
		b = binary.AppendUvarint(b, uint64(len(e.GetData()))<<2)
		b = append(b, e.GetData()...)
	}
	return b
}

// wireMessage is a message and the values that its fields point to: one
// allocation instead of ten.
type wireMessage struct {
	pb.Message
	kind                                         pb.MessageType
	to, from, term, logTerm, index, commit, hint uint64
	rejected                                     bool
}

// wireEntry is the same for an entry.
type wireEntry struct {
	pb.Entry
	kind        pb.EntryType
	term, index uint64
}

// frameReader reads the messages of a frame. Their data aliases the frame,
// unless that would keep more than twice its own size alive.
type frameReader struct {
	rest  []byte
	total int
}

// openFrame checks the version.
func openFrame(frame []byte) (frameReader, error) {
	if len(frame) == 0 || frame[0] != frameVersion {
		return frameReader{}, fmt.Errorf("%w: version", errFrame)
	}
	return frameReader{rest: frame[1:], total: len(frame)}, nil
}

// more reports whether messages are left.
func (r *frameReader) more() bool { return len(r.rest) > 0 }

// next returns the next message, its group, and the bytes of its entries.
func (r *frameReader) next() (GroupID, *pb.Message, int, error) {
	if len(r.rest) < 2 {
		return 0, nil, 0, fmt.Errorf("%w: short message", errFrame)
	}
	w := &wireMessage{kind: pb.MessageType(r.rest[0])}
	flags := r.rest[1]
	if _, ok := travels(w.kind); !ok || flags&^flagsKnown != 0 {
		return 0, nil, 0, fmt.Errorf("%w: type %d, flags %#x", errFrame, r.rest[0], flags)
	}
	r.rest = r.rest[2:]
	var group uint64
	ok := r.uvarints(&group, &w.from, &w.to, &w.term)
	if ok && flags&flagPosition != 0 {
		ok = r.uvarints(&w.index, &w.logTerm)
	}
	if ok && flags&flagCommit != 0 {
		ok = r.uvarints(&w.commit)
	}
	if ok && flags&flagHint != 0 {
		ok = r.uvarints(&w.hint)
	}
	w.point(flags)
	if ok && flags&flagContext != 0 {
		var n uint64
		ok = r.uvarints(&n)
		var context []byte
		if ok {
			context, ok = r.bytes(n)
		}
		w.Context = append([]byte(nil), context...)
	}
	size := 0
	if ok && flags&flagEntries != 0 {
		size, ok = r.entries(w)
	}
	if !ok {
		return 0, nil, 0, fmt.Errorf("%w: %v", errFrame, w.kind)
	}
	return GroupID(group), &w.Message, size, nil
}

// point makes the fields of the message point to the values beside it. What
// did not travel stays absent.
func (w *wireMessage) point(flags byte) {
	w.Type, w.To, w.From, w.Term = &w.kind, &w.to, &w.from, &w.term
	if flags&flagPosition != 0 {
		w.Index, w.LogTerm = &w.index, &w.logTerm
	}
	if flags&flagCommit != 0 {
		w.Commit = &w.commit
	}
	if flags&flagHint != 0 {
		w.RejectHint = &w.hint
	}
	if flags&flagReject != 0 {
		w.rejected = true
		w.Reject = &w.rejected
	}
}

// slabEntries is how many entries are allocated at once: a count is only a
// claim until the entries were read.
const slabEntries = 64

// entries reads the entries of w and returns how many bytes of data they have.
func (r *frameReader) entries(w *wireMessage) (int, bool) {
	var count uint64
	if !r.uvarints(&count) || count == 0 || math.MaxUint64-w.index < count {
		return 0, false
	}
	if looseEntries(w.kind) {
		return r.looseEntry(w, count)
	}
	if count > uint64(len(r.rest))/2 { // no entry has fewer bytes
		return 0, false
	}
	var slab []wireEntry
	size, term := 0, w.logTerm
	for i := range count {
		if len(slab) == 0 {
			n := min(count-i, slabEntries)
			slab = make([]wireEntry, n)
			w.Entries = slices.Grow(w.Entries, int(n))
		}
		e := &slab[0]
		slab = slab[1:]
		var head, rise uint64
		if !r.uvarints(&head, &rise) || head&3 > uint64(pb.EntryConfChangeV2) || math.MaxUint64-term < rise {
			return 0, false
		}
		data, ok := r.data(head >> 2)
		if !ok {
			return 0, false
		}
		term += rise
		size += len(data)
		e.kind, e.term, e.index = pb.EntryType(head&3), term, w.index+1+i
		e.Type, e.Term, e.Index, e.Data = &e.kind, &e.term, &e.index, data
		w.Entries = append(w.Entries, &e.Entry)
	}
	r.unpin(w.Entries, size)
	return size, true
}

// looseEntry reads the one entry of a read.
func (r *frameReader) looseEntry(w *wireMessage, count uint64) (int, bool) {
	var head uint64
	if count != 1 || !r.uvarints(&head) || head&3 != 0 {
		return 0, false
	}
	data, ok := r.data(head >> 2)
	if !ok {
		return 0, false
	}
	w.Entries = []*pb.Entry{{Data: data}}
	r.unpin(w.Entries, len(data))
	return len(data), true
}

// data reads the data of an entry; nil if it has none.
func (r *frameReader) data(n uint64) ([]byte, bool) {
	if n == 0 {
		return nil, true
	}
	if n > MaxProposalBytes {
		return nil, false
	}
	return r.bytes(n)
}

// unpin copies the data of entries into a buffer of its own if it would keep a
// much larger frame alive.
func (r *frameReader) unpin(entries []*pb.Entry, size int) {
	if size == 0 || 2*size >= r.total {
		return
	}
	own := make([]byte, 0, size)
	for _, e := range entries {
		if e.Data != nil {
			from := len(own)
			own = append(own, e.Data...)
			e.Data = own[from:len(own):len(own)]
		}
	}
}

// uvarints reads one varint into each of into.
func (r *frameReader) uvarints(into ...*uint64) bool {
	for _, p := range into {
		v, n := binary.Uvarint(r.rest)
		if n <= 0 {
			return false
		}
		*p, r.rest = v, r.rest[n:]
	}
	return true
}

func (r *frameReader) bytes(n uint64) ([]byte, bool) {
	if n > uint64(len(r.rest)) {
		return nil, false
	}
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b, true
}

// noticeKind is what a notice says.
type noticeKind byte

const (
	noticeBehind  noticeKind = 1
	noticeRemoved noticeKind = 2
)

// notice is what a node tells another one about a replica there.
type notice struct {
	kind     noticeKind
	group    GroupID
	from, to ReplicaID
	term     Term
	start    Index
}

// isNotices tells frames with notices from frames with messages.
func isNotices(frame []byte) bool { return len(frame) > 0 && frame[0] == noticeVersion }

// appendNotice appends n to a frame, which begins with noticeVersion.
func appendNotice(frame []byte, n notice) []byte {
	var body [5 * binary.MaxVarintLen64]byte
	b := body[:0]
	for _, v := range [...]uint64{uint64(n.group), uint64(n.from), uint64(n.to), uint64(n.term), uint64(n.start)} {
		b = binary.AppendUvarint(b, v)
	}
	frame = binary.AppendUvarint(append(frame, byte(n.kind)), uint64(len(b)))
	return append(frame, b...)
}

// readNotices returns the notices of a frame that this build knows.
func readNotices(frame []byte) ([]notice, error) {
	if !isNotices(frame) {
		return nil, fmt.Errorf("%w: version", errFrame)
	}
	r := frameReader{rest: frame[1:]}
	var out []notice
	for r.more() {
		kind := noticeKind(r.rest[0])
		r.rest = r.rest[1:]
		var length uint64
		ok := r.uvarints(&length)
		var body []byte
		if ok {
			body, ok = r.bytes(length)
		}
		if !ok {
			return out, fmt.Errorf("%w: notice", errFrame)
		}
		if kind != noticeBehind && kind != noticeRemoved {
			continue
		}
		var group, from, to, term, start uint64
		if fields := (frameReader{rest: body}); !fields.uvarints(&group, &from, &to, &term, &start) {
			return out, fmt.Errorf("%w: notice %d", errFrame, kind)
		}
		out = append(out, notice{kind, GroupID(group), ReplicaID(from), ReplicaID(to), Term(term), Index(start)})
	}
	return out, nil
}
