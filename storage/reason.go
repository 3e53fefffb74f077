package storage

import (
	"fmt"
	"strconv"
	"time"
)

// Why a directory is in quarantine is in its file REASON, a sealed text (see
// sealedtext.go):
//
//	stele quarantine 2
//	from "<name in topics/>"       of a replica with '.' for '/'
//	kind <word>                    a-z and '-', at most 32 of them
//	time <decimal>                 Unix time in milliseconds; 0: not known
//	reason "<sentence>"
//	crc32c <8 hexadecimal digits>
//
// Version 1 had neither kind nor time, and its reasons are read as of kind
// "other". A word that this release does not know is kept as it is: a newer one
// wrote it.
const (
	reasonFile    = "REASON"
	reasonName    = "quarantine"
	reasonVersion = 2

	maxReasonKind = 32
)

// ReasonKind is why a directory was moved to quarantine.
type ReasonKind string

const (
	// ReasonOther is of a text without a kind: an older release wrote it.
	ReasonOther ReasonKind = "other"
	// ReasonDeleted: its topic was deleted.
	ReasonDeleted ReasonKind = "deleted"
	// ReasonUnknown: no record of the metadata names its incarnation.
	ReasonUnknown ReasonKind = "unknown"
	// ReasonMovedAway: the replica's place is elsewhere, and its group agrees.
	ReasonMovedAway ReasonKind = "moved-away"
	// ReasonLonger: the replica's place is elsewhere, but it holds what its group
	// does not have.
	ReasonLonger ReasonKind = "longer-than-promoted"
	// ReasonMisnamed: its name is not that of a topic and an incarnation.
	ReasonMisnamed ReasonKind = "misnamed"
	// ReasonUnmarked: there is no marker in it.
	ReasonUnmarked ReasonKind = "unmarked"
	// ReasonForeign: its marker names another topic, or another life of it.
	ReasonForeign ReasonKind = "foreign"
	// ReasonDamaged: its marker, or what is in it, is not what was written.
	ReasonDamaged ReasonKind = "damaged"
	// ReasonAdopted: a person gave it the marker that it has; see Adopt.
	ReasonAdopted ReasonKind = "adopted"
	// ReasonRecovery: a forced recovery went on without it.
	ReasonRecovery ReasonKind = "recovery"
)

// HeldForPerson reports whether what is in quarantine for this reason waits for
// a person, whatever becomes of its topic: nothing destroys it of its own accord.
// So it is with every kind that this release does not know.
func (k ReasonKind) HeldForPerson() bool {
	switch k {
	case ReasonOther, ReasonDeleted, ReasonUnknown, ReasonMovedAway:
		return false
	}
	return true
}

func (k ReasonKind) validate() error {
	ok := k != "" && len(k) <= maxReasonKind
	for _, c := range k {
		ok = ok && (c == '-' || 'a' <= c && c <= 'z')
	}
	if !ok {
		return fmt.Errorf("kind %q: want 1 to %d of a-z and '-'", string(k), maxReasonKind)
	}
	return nil
}

// Reason is why, and when, a directory was moved to quarantine.
type Reason struct {
	Kind ReasonKind
	Text string    // a sentence for people
	At   time.Time // by the caller's clock, in whole milliseconds; zero: not known
}

// encodeReason makes the text. The kind is one that validate admits.
func encodeReason(from string, r Reason) []byte {
	var at int64
	if !r.At.IsZero() {
		at = r.At.UnixMilli()
	}
	return encodeSealed(reasonName, reasonVersion, []field{
		{"from", strconv.Quote(from)}, {"kind", string(r.Kind)},
		{"time", strconv.FormatInt(at, 10)}, {"reason", strconv.Quote(r.Text)}})
}

func decodeReason(text []byte) (from string, r Reason, err error) {
	version, err := sealedVersion(reasonName, text)
	if err != nil {
		return "", r, err
	}
	var v []string
	switch version {
	case 1:
		if v, err = decodeSealed(text, "from", "reason"); err == nil {
			v = []string{v[0], string(ReasonOther), "0", v[1]}
		}
	case reasonVersion:
		v, err = decodeSealed(text, "from", "kind", "time", "reason")
	default:
		err = fmt.Errorf("format version %d, this build knows 1 to %d", version, reasonVersion)
	}
	if err != nil {
		return "", r, err
	}
	if from, err = strconv.Unquote(v[0]); err != nil {
		return "", r, fmt.Errorf("%w: from %q", errSealed, v[0])
	}
	if r.Text, err = strconv.Unquote(v[3]); err != nil {
		return "", Reason{}, fmt.Errorf("%w: reason %q", errSealed, v[3])
	}
	r.Kind = ReasonKind(v[1])
	if err = r.Kind.validate(); err != nil {
		return "", Reason{}, fmt.Errorf("%w: %w", errSealed, err)
	}
	at, err := strconv.ParseInt(v[2], 10, 64)
	if err != nil || strconv.FormatInt(at, 10) != v[2] {
		return "", Reason{}, fmt.Errorf("%w: time %q", errSealed, v[2])
	}
	if at != 0 {
		r.At = time.UnixMilli(at).UTC()
	}
	return from, r, nil
}
