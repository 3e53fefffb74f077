//go:build !unix

package storage

import "errors"

// errQuota is returned by nothing: such systems say that there is no room.
var errQuota = errors.New("storage: over quota")
