//go:build unix

package storage

import "syscall"

const errQuota = syscall.EDQUOT
