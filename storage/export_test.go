package storage

import (
	"encoding/binary"
	"hash/crc32"
	"slices"
)

// DecodeFrames reads the body of a round.
func DecodeFrames(body []byte) ([]Frame, error) { return decodeFrames(body) }

// EncodeFrames makes the body of a round.
func EncodeFrames(frames []Frame) []byte { return appendBody(nil, frames) }

// DecodeTable reads a copy of the checkpoint table.
func DecodeTable(b []byte) (rows []ReplicaState, err error) {
	t, err := decodeTable(b)
	if err != nil {
		return nil, err
	}
	return t.rows, nil
}

// EncodeTable makes a copy that names generation 1 with salt 2 and key 3.
func EncodeTable(rows []ReplicaState) []byte {
	return encodeTable(nil, &tableCopy{generation: 1, salt: 2, key: 3, rows: rows})
}

// SealTable makes a table's checksum right.
func SealTable(b []byte) []byte {
	if len(b) >= headerSize {
		size := min(uint64(len(b)-headerSize), binary.LittleEndian.Uint64(b[32:]))
		binary.LittleEndian.PutUint32(b, crc32.Checksum(b[4:headerSize+size], castagnoli))
	}
	return b
}

// SealRounds makes the checksums of what looks like a round right, for the key
// of EncodeTable.
func SealRounds(b []byte) []byte {
	for at := 0; at+headerSize <= len(b); at += pageSize {
		h := b[at:]
		size := binary.LittleEndian.Uint32(h[56:])
		if uint64(size) <= uint64(len(h)-headerSize) {
			binary.LittleEndian.PutUint32(h[60:], crc32.Checksum(h[headerSize:headerSize+size], castagnoli))
		}
		binary.LittleEndian.PutUint32(h, headerCRC(3, h))
	}
	return b
}

// ReadJournal reads the journal in a directory as Open does, and changes
// nothing.
func ReadJournal(fs FS, dir string) ([]ReplicaState, error) {
	r, err := readJournal(fs, dir, breakage{})
	if err != nil {
		return nil, err
	}
	return r.states, nil
}

// TrimCount decides how many segments a Trim lets go.
func TrimCount(sizes []int64, whole int, limit, keep int64) int {
	return trimCount(sizes, whole, limit, keep)
}

// Break returns a Config whose store breaks the named rule of the journal.
func Break(c Config, rule string) Config {
	*rules(&c.broken)[rule] = true
	return c
}

// Rules lists the names of the rules that Break knows.
func Rules() []string {
	var names []string
	for name := range rules(&breakage{}) {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func rules(b *breakage) map[string]*bool {
	return map[string]*bool{
		"answer before sync":              &b.answerBeforeSync,
		"retry a failed sync":             &b.retrySync,
		"table not synced":                &b.tableNotSynced,
		"logs not synced":                 &b.logsNotSynced,
		"failed logs trusted":             &b.failedLogsTrusted,
		"directory not synced":            &b.dirNotSynced,
		"no carry":                        &b.noCarry,
		"free behind the newer copy":      &b.reuseBehindNewer,
		"prev is the end that was read":   &b.prevIsReadEnd,
		"append behind a tear":            &b.noRotation,
		"open without rewrite":            &b.noRewrite,
		"open syncs without rewrite":      &b.syncWithoutWrite,
		"reuse a file above the proven":   &b.reuseAboveProven,
		"no generation in the checksum":   &b.anyGeneration,
		"repeated generation numbers":     &b.sameGeneration,
		"no search for holes":             &b.noSearch,
		"closed generation may end short": &b.closedMayEndShort,
		"killed opens pin files":          &b.neverProveNewest,
		"durable copy is written first":   &b.durableFirst,
	}
}

// DurableNames counts the directories whose names the store remembers to be durable.
func (s *Store) DurableNames() int {
	s.logs.mu.Lock()
	defer s.logs.mu.Unlock()
	return len(s.logs.mu.durable)
}
