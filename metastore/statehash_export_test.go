package metastore

import (
	"maps"
	"slices"

	"github.com/stelelog/stele/raftlog"
)

// Damage changes a store's state behind the log's back, and all that it keeps in
// memory. A nil value removes a key. f is given all of the state.
func Damage(s *Store, f func(state map[string][]byte, set func(key string, value []byte))) error {
	m := s.machine
	return m.db.run(func() error {
		state := map[string][]byte{}
		err := dump(m.db.newest(), func(key, value []byte) error {
			state[string(key)] = slices.Clone(value)
			return nil
		})
		if err != nil {
			return err
		}
		x := newTx(m.db.newest())
		f(maps.Clone(state), func(key string, value []byte) { x.writes[key] = value })
		if err := m.db.write(x); err != nil {
			return err
		}
		_, c, err := loadState(m.db.newest(), NewestCommand)
		if err != nil {
			return nil // it is found when it is opened
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.mu.catalog = c
		return nil
	})
}

// Dump returns a store's state, and the index that it is of.
func Dump(s *Store) (state map[string][]byte, at raftlog.Index, err error) {
	state = map[string][]byte{}
	src, err := s.machine.source()
	if err != nil {
		return nil, 0, err
	}
	err = s.machine.db.run(func() error {
		return dump(stateView{src.held, src.of}, func(key, value []byte) error {
			state[string(key)] = slices.Clone(value)
			return nil
		})
	})
	if err == nil {
		err = src.close()
	}
	return state, src.at.Index, err
}

// KeyOfTopic is where a topic is, and KeyOfTombstone what remains of it.
func KeyOfTopic(i raftlog.Incarnation) string     { return string(keyIncarnation(tableTopic, i)) }
func KeyOfPartition(i raftlog.Incarnation) string { return string(keyPartition(i, 0)) }
func KeyOfName(name string) string                { return string(keyName(name)) }
func KeyOfTombstone(i raftlog.Incarnation) string { return string(keyIncarnation(tableTombstone, i)) }
func TombstoneOf(name string) []byte              { return encodeTombstone(name) }

// KeyOfCluster is where the cluster's version is, KeyOfFormat where the newest
// command is that was applied.
const (
	KeyOfCluster = string(rune(tableCluster))
	KeyOfFormat  = string(rune(tableFormat))
)

// ClusterAt returns the cluster's record with another version, FormatAt that of the
// format with another command.
func ClusterAt(record []byte, version uint64) []byte {
	d := decoder{b: record}
	c := d.cluster()
	c.Version = version
	return c.encode()
}

// ClusterOf returns the cluster's record with another recovery epoch.
func ClusterOf(record []byte, epoch uint64) []byte {
	d := decoder{b: record}
	c := d.cluster()
	c.Epoch = epoch
	return c.encode()
}

// KeyOfMember is where a member is.
func KeyOfMember(n raftlog.NodeID) string { return string(keyNode(tableMember, n)) }

// AppliedBy returns the record of what was applied with other voters.
func AppliedBy(record []byte, voters ...raftlog.ReplicaID) []byte {
	d := decoder{b: record}
	at := d.applied()
	at.Conf = raftlog.ConfState{Voters: voters}
	return at.encode()
}

func FormatAt(newest CommandType) []byte { return format{layoutVersion, newest}.encode() }

// Held is how many states a store holds.
func Held(s *Store) int {
	s.sources.mu.Lock()
	defer s.sources.mu.Unlock()
	return len(s.sources.mu.held)
}
