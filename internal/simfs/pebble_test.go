package simfs_test

import (
	"fmt"
	"runtime"
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

func TestPebbleKeepsSyncedKeysOverPowerLoss(t *testing.T) {
	for seed := range seeds(t, 300) {
		fs := simfs.New(seed)
		db, err := openPebble(fs)
		require.NoError(t, err)
		n := 20 + int(seed%50)
		for i := range n {
			key := fmt.Appendf(nil, "key-%03d", i)
			require.NoError(t, db.Set(key, make([]byte, 100+i*30), pebble.Sync))
			if i == n/2 {
				require.NoError(t, db.Flush())
			}
		}
		require.NoError(t, db.Set([]byte("unsynced"), nil, pebble.NoSync))
		image := fs.Image(simfs.Random)
		require.NoError(t, db.Close())

		db, err = openPebble(image)
		require.NoError(t, err, "seed %d", seed)
		for i := range n {
			v, closer, err := db.Get(fmt.Appendf(nil, "key-%03d", i))
			require.NoError(t, err, "seed %d, key %d", seed, i)
			require.Len(t, v, 100+i*30)
			require.NoError(t, closer.Close())
		}
		require.NoError(t, db.Close())
	}
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
