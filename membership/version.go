package membership

import (
	"time"

	"github.com/stelelog/stele/metastore"
)

// silentForVersion is how long a member is not heard at all by a leader before it
// holds a new version of the cluster back no more.
const silentForVersion = 10 * time.Minute

// NextVersion returns the version that the cluster is to have, which may be the
// present one: the newest that every member can be part of, by what it announced
// in this leadership, which must include a majority of the voters. Skipping what
// it cannot apply would make a member differ from the others (C9).
//
// A member that was not heard once in ten minutes of this leadership, in raft
// neither, does not count: before version 2 it could not be replaced, for ever. If
// it returns with a build that is too old, that stops by itself and says so. One
// that raft hears is there: builds of version 1 announce nothing.
//
// Of a member whose disk was lost, and whose new life asks for its place, what that
// one applies counts, as soon as it would get the place (Admit): else a disk that is
// lost before version 2 is replaced only after those ten minutes.
func NextVersion(f *Facts) uint64 {
	if !f.Leads {
		return f.Version
	}
	var oldest metastore.CommandType
	first := true
	for i := range f.Members {
		k := &f.Members[i]
		if k.gone() {
			continue
		}
		if applies := f.applies(k); first || applies < oldest {
			oldest, first = applies, false
		}
	}
	if !f.quorum(f.Conf, func(k *Known) bool { return k.Announced > 0 }) {
		return f.Version
	}
	return max(f.Version, metastore.VersionOf(oldest))
}

// applies is what a member, or the life that is about to take its place, said that
// it applies.
func (f *Facts) applies(k *Known) metastore.CommandType {
	if k.Wanted > 0 && f.replaceable(k) && k.Idle >= f.Rules.ReplaceAfter {
		return k.Wanted
	}
	return k.Announced
}

// gone reports whether a member holds no version back.
func (k *Known) gone() bool {
	return k.Announced == 0 && min(k.Silent, k.Idle) >= silentForVersion
}

// Behind returns the names of the members, by node id, that hold the cluster's
// version below the newest one that this build knows: they have not said, in this
// leadership, that they can be part of it.
func Behind(f *Facts) (names []string) {
	if !f.Leads || f.Version >= metastore.NewestVersion {
		return nil
	}
	for i := range f.Members {
		k := &f.Members[i]
		if !k.gone() && metastore.VersionOf(f.applies(k)) < metastore.NewestVersion {
			names = append(names, k.Name)
		}
	}
	return names
}
