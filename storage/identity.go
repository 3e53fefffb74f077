package storage

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
)

// Identity says whose a directory is. A fresh one has only the nonce and the
// names; the rest is set once, when the node is adopted by a cluster.
type Identity struct {
	Nonce     Nonce  // of this life of the directory; never changes
	Name      string // what the host calls the node; never changes
	Cluster   string // name of the cluster; never changes
	ClusterID ClusterID
	Epoch     uint64 // recovery epoch
	Node      NodeID // 0: not known yet
	Genesis   []byte // the adopted genesis, opaque here; nil: none

	// Recovering is the forced recovery that has begun to change the directory, and
	// has not ended; if Fenced is set, too, it includes the directory and has not
	// begun to change it. Until it has ended Open refuses. The zero value: none.
	Recovering Recovering
	// Fenced is a newer recovery epoch than Epoch that the node has met: its
	// cluster went on without it, or without what Recovering has to make of it. 0: none.
	Fenced uint64
}

// IdentityError says that a directory is not the one that was asked for.
type IdentityError struct {
	Path  string
	Field string // "format version", "node name", "cluster name", "nonce"
	Have  string // in the directory
	Want  string // as configured
}

func (e *IdentityError) Error() string {
	return fmt.Sprintf("storage: %s: the %s is %q, not %q", e.Path, e.Field, e.Have, e.Want)
}

const (
	identityFile    = "IDENTITY"
	identityKind    = "identity"
	identityVersion = 1
	// recoveredVersion is of an identity that says something of a recovery which
	// a build of version 1 must not overlook.
	recoveredVersion = 2
)

// encodeIdentity makes the sealed text
//
//	stele identity 1
//	nonce <32 hexadecimal digits>
//	name "<node name>"
//	cluster "<cluster name>"
//	cluster-id <32 hexadecimal digits, zeros: none yet>
//	epoch <decimal>
//	node <decimal, 0: none yet>
//	genesis <hexadecimal digits, none: not adopted>
//	crc32c <8 hexadecimal digits>
//
// or, while a recovery is under way or once the node was fenced, as version 2
// with three more lines before the last one:
//
//	recovering <decimal: the epoch to be, 0: none>
//	plan <32 hexadecimal digits: of that recovery>
//	fenced <decimal: the newer epoch that was met, 0: none>
func encodeIdentity(id Identity) []byte {
	fields := []field{
		{"nonce", id.Nonce.String()},
		{"name", strconv.Quote(id.Name)},
		{"cluster", strconv.Quote(id.Cluster)},
		{"cluster-id", id.ClusterID.String()},
		{"epoch", strconv.FormatUint(id.Epoch, 10)},
		{"node", strconv.FormatUint(uint64(id.Node), 10)},
		{"genesis", hex.EncodeToString(id.Genesis)},
	}
	if id.Recovering == (Recovering{}) && id.Fenced == 0 {
		return encodeSealed(identityKind, identityVersion, fields)
	}
	return encodeSealed(identityKind, recoveredVersion, append(fields,
		field{"recovering", strconv.FormatUint(id.Recovering.Epoch, 10)},
		field{"plan", hex.EncodeToString(id.Recovering.Plan[:])},
		field{"fenced", strconv.FormatUint(id.Fenced, 10)}))
}

func decodeIdentity(text []byte) (Identity, error) {
	var id Identity
	version, err := sealedVersion(identityKind, text)
	if err != nil {
		return id, err
	}
	keys := []string{"nonce", "name", "cluster", "cluster-id", "epoch", "node", "genesis"}
	if version == recoveredVersion {
		keys = append(keys, "recovering", "plan", "fenced")
	}
	v, err := decodeSealed(text, keys...)
	if err != nil {
		return id, err
	}
	var node uint64
	var errs [10]error // of the fields
	errs[0] = decodeHex(id.Nonce[:], v[0])
	id.Name, errs[1] = strconv.Unquote(v[1])
	id.Cluster, errs[2] = strconv.Unquote(v[2])
	errs[3] = decodeHex(id.ClusterID[:], v[3])
	id.Epoch, errs[4] = strconv.ParseUint(v[4], 10, 64)
	node, errs[5] = strconv.ParseUint(v[5], 10, 64)
	id.Genesis, errs[6] = hex.DecodeString(v[6])
	if version == recoveredVersion {
		id.Recovering.Epoch, errs[7] = strconv.ParseUint(v[7], 10, 64)
		errs[8] = decodeHex(id.Recovering.Plan[:], v[8])
		id.Fenced, errs[9] = strconv.ParseUint(v[9], 10, 64)
	}
	if err := errors.Join(errs[:]...); err != nil {
		return Identity{}, err
	}
	id.Node = NodeID(node)
	if len(id.Genesis) == 0 {
		id.Genesis = nil
	}
	return id, nil
}

func decodeHex(to []byte, s string) error {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(to) {
		return fmt.Errorf("%q: want %d hexadecimal digits", s, 2*len(to))
	}
	copy(to, b)
	return nil
}

// readIdentity returns the identity of the directory, or an error that is
// fs.ErrNotExist if it has none.
func readIdentity(fsys FS, dir string) (Identity, error) {
	path := fsys.PathJoin(dir, identityFile)
	text, err := readSmall(fsys, path, maxSealedText)
	if err != nil {
		return Identity{}, err
	}
	version, err := sealedVersion(identityKind, text)
	if err != nil {
		return Identity{}, &DamageError{Path: path, Reason: err.Error()}
	}
	if version > recoveredVersion {
		return Identity{}, &IdentityError{Path: path, Field: "format version",
			Have: strconv.Itoa(version), Want: strconv.Itoa(recoveredVersion)}
	}
	id, err := decodeIdentity(text)
	if err != nil {
		return Identity{}, &DamageError{Path: path, Reason: err.Error()}
	}
	return id, nil
}

// newIdentity begins a life: the nonce and the names are durable on return.
func newIdentity(fsys FS, dir, name, cluster string, random func() uint64) (Identity, error) {
	id := Identity{Name: name, Cluster: cluster}
	for id.Nonce.IsZero() {
		binary.BigEndian.PutUint64(id.Nonce[:8], random())
		binary.BigEndian.PutUint64(id.Nonce[8:], random())
	}
	return id, replaceFile(fsys, fsys.PathJoin(dir, identityFile), encodeIdentity(id))
}

// check compares the identity with what was configured.
func (id Identity) check(path, name, cluster string) error {
	if id.Name != name {
		return &IdentityError{Path: path, Field: "node name", Have: id.Name, Want: name}
	}
	if id.Cluster != cluster {
		return &IdentityError{Path: path, Field: "cluster name", Have: id.Cluster, Want: cluster}
	}
	return nil
}

// Identity returns what the directory's IDENTITY says. The Genesis is shared
// and must not be changed. Safe for concurrent use.
func (s *Store) Identity() Identity { return s.home.current() }

// Fresh reports whether this Open found an empty directory and began its life.
func (s *Store) Fresh() bool { return s.home.fresh }

// SetIdentity replaces the directory's IDENTITY, whole or not at all; it is
// durable on return. The nonce and the names cannot change (*IdentityError).
// After another error the old one or the new one is on the disk, and Identity
// still returns the old one. Safe for concurrent use.
func (s *Store) SetIdentity(id Identity) error { return s.home.set(id) }

func (h *home) current() Identity {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.identity
}

func (h *home) set(id Identity) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	path := h.fs.PathJoin(h.dir, identityFile)
	old := h.mu.identity
	if id.Nonce != old.Nonce {
		return &IdentityError{Path: path, Field: "nonce", Have: old.Nonce.String(), Want: id.Nonce.String()}
	}
	if err := old.check(path, id.Name, id.Cluster); err != nil {
		return err
	}
	text := encodeIdentity(id)
	if len(text) > maxSealedText {
		return fmt.Errorf("storage: %s: %d bytes are more than %d", path, len(text), maxSealedText)
	}
	if err := replaceFile(h.fs, path, text); err != nil {
		return fmt.Errorf("storage: write %s: %w", path, err)
	}
	id.Genesis = bytes.Clone(id.Genesis)
	h.mu.identity = id
	return nil
}

// isMissing reports whether err says that there is no such file.
func isMissing(err error) bool { return errors.Is(err, fs.ErrNotExist) }
