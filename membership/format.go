package membership

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/stelelog/stele/raftlog"
)

// Formats. All integers are unsigned varints unless a size is given; str is a
// varint length and that many bytes; nonce is 16 bytes. The first byte is the
// version.
//
// Between initial members:
//
//	Ask      = form(1) kind(1) name:str nonce hash(32) process round [founding]   founding: AskShow, AskOffer
//	Answer   = 1 kind(1) name:str nonce hash(32) process round [founding]   founding: AnswerGenesis
//	founding = cluster id(16) founder:nonce n {name:str nonce addr:str}
//
// An Ask of form 2 comes from a build that knows answers of kind 5, which came with
// cluster version 2; one of form 1 is answered with kind 4 instead. Nothing else
// differs.
//
// In the node's IDENTITY, which has a checksum:
//
//	State    = 1 flags(1: 1 renounced, 2 adopted) bound:nonce n {left:nonce} [founding]
//	State    = 2 flags(1: 1 renounced, 4 joined)  bound:nonce n {left:nonce} [joined]
//	State    = 3 flags(1: 1 renounced, 2 adopted, 4 joined) bound:nonce n {left:nonce} [founding] [joined] recovered
//	joined   = cluster id(16) epoch node replica segment-bytes
//	recovered = plan(16) joined n {node replica name:str addr:str}
//
// Version 3 is of a life that went through a forced recovery. Version 2 is written
// only by a life that joined, so that a build that knows version 1 alone can go on with every other directory. IDENTITY is replaced as
// a whole: a crash leaves the state before or after, and a life that forgot that
// it joined asks again and gets the same ids.
//
// Between members and who wants to be one:
//
//	JoinRequest    = 1 flags(1: 1 observer) name:str nonce addr:str newest segment-bytes
//	MemberRequest  = 1 node nonce addr:str newest
//	BacklogRequest = 1 flags(1: 1 draining) node nonce
//	BacklogAnswer  = 1 flags(1: 1 draining) node nonce count
//	Reply          = 1 kind(1) status(1) reason:str place leader addr:str nonce need segment-bytes n {name:str}
//	place          = node replica cluster id(16) epoch n {node replica name:str addr:str}
//	Order          = 1 kind(1) cluster id(16) epoch node replica
//	OrderAnswer    = 1 kind(1) why(1) reason:str leader
const (
	formatVersion = 1
	joinedVersion = 2 // of State
	askForm       = 2 // newest of Ask
	// recoveredVersion, of State, is that of a life that went through a recovery.
	recoveredVersion = 3
)

// Limits of the decoders: far above what genesis needs.
const (
	maxString  = 1 << 10
	maxMembers = 64
	maxLeft    = 1 << 16
)

// AskKind is what a peer wants.
type AskKind uint8

const (
	AskGenesis AskKind = 1 // is there a genesis?
	AskProbe   AskKind = 2 // remember me as the founder
	AskShow    AskKind = 3 // founder, there is this genesis of another
	AskOffer   AskKind = 4 // here is the genesis
)

// Ask is a request between initial members.
type Ask struct {
	Kind           AskKind
	Name           string
	Nonce          raftlog.Nonce
	Hash           [32]byte // of the asker's member list
	Process, Round uint64   // repeated by the answer
	Founding       *Founding
}

// AnswerKind is what a member answers.
type AnswerKind uint8

const (
	AnswerUnconfigured AnswerKind = 1 // no cluster known here
	AnswerGenesis      AnswerKind = 2 // there is one, this
	AnswerRenounced    AnswerKind = 3 // shown another's genesis: this life will never found
	AnswerNo           AnswerKind = 4 // not to this asker
	AnswerMember       AnswerKind = 5 // in a cluster that this life joined: ask it to join
)

// Answer is a member's answer.
type Answer struct {
	Kind           AnswerKind
	Name           string
	Nonce          raftlog.Nonce
	Hash           [32]byte
	Process, Round uint64
	Founding       *Founding
}

var (
	errFormat = errors.New("membership: malformed")
	errNewer  = errors.New("membership: of a newer release")
)

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendFounding(b []byte, f *Founding) []byte {
	b = append(b, f.ClusterID[:]...)
	b = append(b, f.Founder[:]...)
	b = binary.AppendUvarint(b, uint64(len(f.Members)))
	for _, m := range f.Members {
		b = appendString(b, m.Name)
		b = append(b, m.Nonce[:]...)
		b = appendString(b, m.Addr)
	}
	return b
}

func appendHead(b []byte, form, kind byte, name string, nonce raftlog.Nonce, hash [32]byte, process, round uint64, f *Founding) []byte {
	b = append(b, form, kind)
	b = appendString(b, name)
	b = append(b, nonce[:]...)
	b = append(b, hash[:]...)
	b = binary.AppendUvarint(b, process)
	b = binary.AppendUvarint(b, round)
	if f != nil {
		b = appendFounding(b, f)
	}
	return b
}

// Encode returns the message as it travels.
func (a Ask) Encode() []byte {
	return appendHead(nil, askForm, byte(a.Kind), a.Name, a.Nonce, a.Hash, a.Process, a.Round, a.Founding)
}

// Encode returns the message as it travels.
func (a Answer) Encode() []byte {
	return appendHead(nil, formatVersion, byte(a.Kind), a.Name, a.Nonce, a.Hash, a.Process, a.Round, a.Founding)
}

// DecodeAsk reads what Ask.Encode wrote, or wrote at cluster version 1.
func DecodeAsk(b []byte) (a Ask, err error) {
	r := reader{b: b}
	var kind byte
	kind, a.Name, a.Nonce, a.Hash, a.Process, a.Round = r.head(askForm)
	a.Kind = AskKind(kind)
	if a.Kind < AskGenesis || a.Kind > AskOffer {
		r.fail("ask of kind %d", kind)
	}
	if a.Kind == AskShow || a.Kind == AskOffer {
		a.Founding = r.founding()
	}
	return a, r.end()
}

// DecodeAnswer reads what Answer.Encode wrote.
func DecodeAnswer(b []byte) (a Answer, err error) {
	r := reader{b: b}
	var kind byte
	kind, a.Name, a.Nonce, a.Hash, a.Process, a.Round = r.head(formatVersion)
	a.Kind = AnswerKind(kind)
	if a.Kind < AnswerUnconfigured || a.Kind > AnswerMember {
		r.fail("answer of kind %d", kind)
	}
	if a.Kind == AnswerGenesis {
		a.Founding = r.founding()
	}
	return a, r.end()
}

// Encode returns the state as IDENTITY carries it.
func (s State) Encode() []byte {
	var flags byte
	if s.Renounced {
		flags |= flagRenounced
	}
	if s.Adopted != nil {
		flags |= flagAdopted
	}
	version := byte(formatVersion)
	if s.Joined != nil {
		version, flags = joinedVersion, flags|flagJoined
	}
	if s.Recovered != nil {
		version = recoveredVersion
	}
	b := append([]byte{version, flags}, s.Bound[:]...)
	b = binary.AppendUvarint(b, uint64(len(s.Left)))
	for _, n := range s.Left {
		b = append(b, n[:]...)
	}
	if s.Adopted != nil {
		b = appendFounding(b, s.Adopted)
	}
	if s.Joined != nil {
		b = appendJoined(b, s.Joined)
	}
	if s.Recovered != nil {
		b = appendRecovered(b, s.Recovered)
	}
	return b
}

// The flags of a State.
const (
	flagRenounced = 1
	flagAdopted   = 2
	flagJoined    = 4
)

// DecodeState reads what State.Encode wrote; no bytes are the zero State.
func DecodeState(b []byte) (s State, err error) {
	if len(b) == 0 {
		return State{}, nil
	}
	r := reader{b: b}
	version, flags := r.byte(), r.byte()
	switch {
	case version == formatVersion && flags&^(flagRenounced|flagAdopted) == 0:
	case version == joinedVersion && flags&^flagRenounced == flagJoined:
	case version == recoveredVersion && (flags&^flagRenounced == flagJoined || flags&^flagRenounced == flagAdopted):
	default:
		r.fail("state of version %d with flags %#x, this build knows version %d", version, flags, recoveredVersion)
	}
	s.Renounced = flags&flagRenounced != 0
	r.take(s.Bound[:])
	n := r.count(maxLeft, len(raftlog.Nonce{}))
	for range n {
		var nonce raftlog.Nonce
		r.take(nonce[:])
		s.Left = append(s.Left, nonce)
	}
	if flags&flagAdopted != 0 {
		s.Adopted = r.founding()
	}
	if flags&flagJoined != 0 {
		s.Joined = r.joined()
	}
	if version == recoveredVersion {
		s.Recovered = r.recovered()
	}
	return s, r.end()
}

// reader decodes; the first error stays.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s", errFormat, fmt.Sprintf(format, args...))
		r.b = nil
	}
}

func (r *reader) take(dst []byte) {
	if len(r.b) < len(dst) {
		r.fail("too short")
		return
	}
	copy(dst, r.b)
	r.b = r.b[len(dst):]
}

func (r *reader) byte() byte {
	var b [1]byte
	r.take(b[:])
	return b[0]
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail("bad number")
		return 0
	}
	r.b = r.b[n:]
	return v
}

// count reads a number of items of at least size bytes each.
func (r *reader) count(limit, size int) int {
	n := r.uvarint()
	if n > uint64(limit) || n > uint64(len(r.b)/size) {
		r.fail("%d items", n)
		return 0
	}
	return int(n)
}

func (r *reader) string() string {
	n := r.count(maxString, 1)
	s := string(r.b[:n])
	r.b = r.b[n:]
	return s
}

func (r *reader) version() { r.versionUpTo(formatVersion) }

func (r *reader) versionUpTo(newest byte) {
	switch v := r.byte(); {
	case r.err == nil && v > newest:
		r.err = fmt.Errorf("%w: version %d, this build knows %d", errNewer, v, newest)
		r.b = nil
	case v == 0:
		r.fail("version 0")
	}
}

func (r *reader) head(newest byte) (kind byte, name string, nonce raftlog.Nonce, hash [32]byte, process, round uint64) {
	r.versionUpTo(newest)
	kind = r.byte()
	name = r.string()
	r.take(nonce[:])
	r.take(hash[:])
	return kind, name, nonce, hash, r.uvarint(), r.uvarint()
}

func (r *reader) founding() *Founding {
	var f Founding
	r.take(f.ClusterID[:])
	r.take(f.Founder[:])
	for range r.count(maxMembers, 18) {
		m := FoundingMember{Name: r.string()}
		r.take(m.Nonce[:])
		m.Addr = r.string()
		f.Members = append(f.Members, m)
	}
	return &f
}

func (r *reader) end() error {
	if r.err == nil && len(r.b) > 0 {
		r.fail("%d bytes too many", len(r.b))
	}
	return r.err
}
