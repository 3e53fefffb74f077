package storage_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/storage"
)

// TestADirectoryInRecoveryIsNotOpened: but by who finishes the recovery.
//
// Property: R33 (red: Open did not look)
func TestADirectoryInRecoveryIsNotOpened(t *testing.T) {
	fs := simfs.New(1)
	s := openStore(t, fs)
	id := adopted(s.Identity())
	id.Recovering = storage.Recovering{Epoch: 1, Plan: [16]byte{7}}
	require.NoError(t, s.SetIdentity(id))
	require.NoError(t, s.Close())

	var recovering *storage.RecoveringError
	_, err := storage.Open(logConfig(fs))
	require.ErrorAs(t, err, &recovering)
	require.Equal(t, id.Recovering, recovering.Recovering)
	require.False(t, recovering.Met)

	cfg := logConfig(fs)
	cfg.Recover = true
	s, err = storage.Open(cfg)
	require.NoError(t, err, "nothing stayed locked")
	id.Fenced = 1
	require.NoError(t, s.SetIdentity(id))
	require.NoError(t, s.Close())
	_, err = storage.Open(logConfig(fs))
	require.ErrorAs(t, err, &recovering)
	require.True(t, recovering.Met)
	require.ErrorContains(t, err, "do not empty it")
	s, err = storage.Open(cfg)
	require.NoError(t, err)
	id.Fenced = 0
	id.Recovering, id.Epoch = storage.Recovering{}, 1
	require.NoError(t, s.SetIdentity(id))
	require.NoError(t, s.Close())
	s = openStore(t, fs)
	require.Equal(t, id, s.Identity())
	require.NoError(t, s.Close())
}

// TestADirectoryIsMovedIntoQuarantine: durably, with its reason, once.
func TestADirectoryIsMovedIntoQuarantine(t *testing.T) {
	fs := simfs.New(1)
	s := openStore(t, fs)
	require.NoError(t, s.QuarantineDir("meta", because("there is none")))
	require.NoError(t, fs.MkdirAll("/node/meta", 0o755))
	writeFile(t, fs, "/node/meta/state", []byte("bytes"))
	require.NoError(t, s.QuarantineDir("meta", because("another one goes on")))
	require.NoError(t, s.QuarantineDir("meta", because("it was moved")))
	require.Error(t, s.QuarantineDir("journal", because("never")))
	require.Error(t, s.QuarantineDir("../other", because("never")))
	require.NoError(t, s.Close())

	s = openStore(t, fs.Crash(simfs.Strict))
	dirs, err := s.Quarantined()
	require.NoError(t, err)
	require.Equal(t, []storage.QuarantinedDir{{Dir: "quarantine/meta~1", From: "meta", Number: 1, Reason: because("another one goes on")}}, dirs)
	require.NoError(t, s.Close())
}

// TestADirectoryIsLockedForReading: as by a node.
func TestADirectoryIsLockedForReading(t *testing.T) {
	fs := simfs.New(1)
	require.NoError(t, openStore(t, fs).Close())
	lock, err := storage.LockDir(fs, "/node")
	require.NoError(t, err)
	_, err = storage.Open(logConfig(fs))
	require.ErrorIs(t, err, storage.ErrLocked)
	require.NoError(t, lock.Close())
	require.NoError(t, openStore(t, fs).Close())
}
