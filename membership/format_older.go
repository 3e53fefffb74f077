package membership

import (
	"errors"
	"slices"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// Calls are the calls of this package, by the version of the cluster that they
// came with.
func Calls() map[string]uint64 {
	return map[string]uint64{
		Method:     1,
		MethodJoin: 2, MethodPromote: 2, MethodHeartbeat: 2, MethodBacklog: 2, MethodOrder: 2,
	}
}

// OlderForm returns a request, which this build encoded, in the form of a lower
// version of the cluster; ok is false if that has no other form of it. The request
// is not changed.
func OlderForm(version uint64, method string, req []byte) (older []byte, ok bool) {
	if method != Method || version >= askForm || len(req) == 0 || req[0] != askForm {
		return nil, false
	}
	older = slices.Clone(req)
	older[0] = formatVersion
	return older, true
}

// unreadable is what a caller is told whose request cannot be decoded.
func unreadable(method string, err error) error {
	if errors.Is(err, errNewer) {
		return &metastore.UnsupportedError{Call: method, Cause: err}
	}
	return raftlog.Refused(err)
}
