package metastore

import (
	"context"
)

// The versions of a cluster say which commands may be proposed, and so which
// builds can take part.
//
//	1  types up to 10   what the first release applies, and the command that
//	                    raises the version, which needs the word of every member
//	2  types up to 21   members, moves, seed, recovery
//	3  types up to 29   proofs: every member answers questions of Confirm; retention;
//	                    states are agreed on; deletions that can be taken back
//
// A command of a version that the cluster does not have is not proposed. One
// that is in the log all the same is refused where it is applied; but then no
// build that does not know it goes on from there.
const (
	firstVersion = 1 // of every genesis

	// versionOfSnapshots is the version of which every member can take the state as a
	// whole; before it the log of group 1 is kept.
	versionOfSnapshots = 2

	// NewestVersion is the highest version of a cluster that this build can be part
	// of.
	NewestVersion = 3
)

// VersionOf returns the highest version of a cluster that a build can be part
// of whose newest command is this one.
func VersionOf(newest CommandType) uint64 {
	switch {
	case newest >= NewestCommand:
		return 3
	case newest >= typeEndHold:
		return 2
	}
	return firstVersion
}

// NewestOf returns the newest command that is proposed in a cluster of a version:
// as Config.Newest it makes a node one of the release that had that version.
func NewestOf(version uint64) CommandType {
	switch {
	case version < 2:
		return typeCreateLimited
	case version == 2:
		return typeEndHold
	}
	return NewestCommand
}

// needs returns the version that a cluster must have for a command. A recovery
// raises the version itself: the members that it leaves all run a build that knows
// it.
func (c CommandType) needs() uint64 {
	switch {
	case c <= typeSetVersion || c == typeRecover:
		return firstVersion
	case c <= typeEndHold:
		return 2
	}
	return 3
}

// allowedAt refuses a command to a cluster of a lower version than it needs.
func (c CommandType) allowedAt(version uint64) error {
	if needs := c.needs(); needs > firstVersion && needs > version {
		return &ClusterVersionError{Needs: needs, Has: version}
	}
	return nil
}

// setVersion raises the version of the cluster. Every member has said that it
// applies what comes with it.
type setVersion struct{ Version uint64 }

func (setVersion) kind() CommandType            { return typeSetVersion }
func (c setVersion) appendBody(b []byte) []byte { return appendUint(b, c.Version) }

func (c setVersion) check() error {
	if c.Version < firstVersion {
		return invalid("Version", c.Version, "%d to %d", firstVersion, NewestVersion)
	}
	return nil
}

// apply: a version that this build does not know stops it, as a command does
// that it does not know. To refuse would be to differ from the builds that know.
func (c setVersion) apply(t *tx) (any, error) {
	if c.Version > NewestVersion {
		t.fail(&NewerStateError{"cluster version", c.Version, NewestVersion})
		return nil, nil
	}
	if k := t.cluster(); k.Version < c.Version {
		k.Version = c.Version
		t.put([]byte{tableCluster}, k.encode())
		t.changes = append(t.changes, change{cluster: true})
	}
	return nil, nil
}

// ClusterVersion returns which commands the cluster may use, as this node knows
// it (stale; it never goes back). 0: this node has no state yet.
func (s *Store) ClusterVersion() (version uint64) {
	s.machine.read(func(c *catalog) { version = c.cluster.Version })
	return version
}

// NewestApplied returns the newest command that was ever applied, as this node
// knows it (stale): a build that does not know it cannot take part.
func (s *Store) NewestApplied() (newest CommandType) {
	s.machine.read(func(c *catalog) { newest = c.newest })
	return newest
}

// SetVersion raises the version of the cluster, for good: from then on no node
// can be part of it whose VersionOf is lower. The caller has heard from every
// member, in this leadership, that it can. Of a version that the cluster has it
// says nil. Only where the metadata is led: else *raftlog.NotLeaderError.
func (s *Store) SetVersion(ctx context.Context, version uint64) error {
	if has := VersionOf(s.config.Newest); version > has {
		return invalid("Version", version, "%d to %d", firstVersion, has)
	}
	_, err := s.lead(ctx, setVersion{version})
	return err
}

// allowed refuses a command before its cluster version. A state that is behind
// refuses what others would not: Retry.
func (s *Store) allowed(c command) error { return s.Require(c.kind().needs()) }

// Require returns nil if the cluster has a version, as this node knows it (stale),
// or a higher one: else a *ClusterVersionError.
func (s *Store) Require(version uint64) error {
	has := s.ClusterVersion()
	if version <= firstVersion || version <= has {
		return nil
	}
	e := &ClusterVersionError{Needs: version, Has: has}
	if s.config.Behind != nil {
		e.Behind = s.config.Behind()
	}
	return e
}
