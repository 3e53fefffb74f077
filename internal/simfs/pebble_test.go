package simfs_test

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2"
	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
)

// quiet is a Pebble logger whose Fatalf, which Pebble expects not to return,
// ends the goroutine that called it and no more.
type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(string, ...any) { runtime.Goexit() }

func openPebble(fs *simfs.FS) (*pebble.DB, error) {
	return pebble.Open("db", &pebble.Options{
		FS: fs, FormatMajorVersion: pebble.FormatNewest, Logger: quiet{}, MemTableSize: 64 << 10,
	})
}

// Power is lost before the n-th operation, for every n that a short life of a
// store has, the opening included. The hook takes the image, so that the store
// that lost its power can be closed.
func TestPebbleKeepsSyncedKeysOverPowerLoss(t *testing.T) {
	for seed := range seeds(t, 380) {
		fs := simfs.New(seed)
		var acked atomic.Int64
		safe := int64(0)
		var image *simfs.FS
		fs.SetHook(func(op simfs.Op) error {
			if op.Seq == 1+int64(seed%190) {
				safe = acked.Load()
				image = fs.Image(simfs.Random)
			}
			return nil
		})
		db, err := openPebble(fs)
		require.NoError(t, err)
		for i := range int64(60) {
			require.NoError(t, db.Set(key(i), make([]byte, 100+i*30), pebble.Sync))
			require.NoError(t, db.Set([]byte("unsynced"), key(i), pebble.NoSync))
			acked.Store(i + 1)
			if i%20 == 19 {
				require.NoError(t, db.Flush())
			}
		}
		require.NoError(t, db.Close())
		require.NotNil(t, image, "only %d operations", fs.Ops())
		requireKeys(t, image, safe, seed)
	}
}

func TestPebbleKeepsSyncedKeysOverKillAndPowerLoss(t *testing.T) {
	for seed := range seeds(t, 100) {
		fs := simfs.New(seed)
		db, err := openPebble(fs)
		require.NoError(t, err)
		for i := range int64(10) {
			require.NoError(t, db.Set(key(i), make([]byte, 100+i*30), pebble.Sync))
		}
		killed := fs.Image(simfs.Kill)
		require.NoError(t, db.Close())
		db, err = openPebble(killed)
		require.NoError(t, err)
		for i := int64(10); i < 20; i++ {
			require.NoError(t, db.Set(key(i), make([]byte, 100+i*30), pebble.Sync))
		}
		lost := killed.Image(simfs.Random)
		require.NoError(t, db.Close())
		requireKeys(t, lost, 20, seed)
	}
}

func key(i int64) []byte { return fmt.Appendf(nil, "key-%03d", i) }

func requireKeys(t *testing.T, fs *simfs.FS, keys int64, seed uint64) {
	db, err := openPebble(fs)
	require.NoError(t, err, "seed %d", seed)
	for i := range keys {
		v, closer, err := db.Get(key(i))
		require.NoError(t, err, "seed %d, key %d of %d", seed, i, keys)
		require.Len(t, v, int(100+i*30))
		require.NoError(t, closer.Close())
	}
	require.NoError(t, db.Close())
}

func TestPebbleRunsInABubble(t *testing.T) {
	for seed := range seeds(t, 20) {
		synctest.Test(t, func(t *testing.T) {
			fs := simfs.New(seed)
			db, err := openPebble(fs)
			require.NoError(t, err)
			require.NoError(t, db.Set([]byte("k"), []byte("v"), pebble.Sync))
			image := fs.Image(simfs.Random)
			require.NoError(t, db.Close())
			db, err = openPebble(image)
			require.NoError(t, err)
			_, closer, err := db.Get([]byte("k"))
			require.NoError(t, err)
			require.NoError(t, closer.Close())
			require.NoError(t, db.Close())
		})
	}
}
