package metastore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"

	"github.com/stelelog/stele/raftlog"
)

// database is the state on Pebble, with everything that Pebble might do to its
// process kept inside.
//
// Every call into Pebble is made by run, in a goroutine of its own. When
// Pebble meets an error that it cannot go on from it calls Fatalf and expects
// not to return; that goroutine is parked there for good, whatever locks it
// holds, and so may be any that waits for it. One whose write failed is parked
// in the write (see failStopFS). Their callers do not wait: run returns as
// soon as the database has failed. A failed database is abandoned: it is not
// closed, and keeps its goroutines, its open files and the lock of its
// directory until the process ends. Going on after such an error, in any way,
// is what Pebble is not made for.
//
// The write-ahead log is not synced by commits (see write).
type database struct {
	pebble *pebble.DB
	log    *zap.Logger
	failed chan struct{} // closed when err is set

	mu struct {
		sync.Mutex
		err        error // why the database failed
		closed     bool
		generation uint32
	}
	running sync.WaitGroup // calls in Pebble; Add under mu, and not after closed
}

const (
	prefixState = 'S'
	prefixLocal = 'L'
)

// openDatabase opens or makes the database in dir. If ctx has ended by then it
// closes it again.
func openDatabase(ctx context.Context, fs vfs.FS, dir string, log *zap.Logger) (*database, error) {
	d := &database{log: log, failed: make(chan struct{})}
	cache := pebble.NewCache(4 << 20)
	defer cache.Unref()
	var armed atomic.Bool
	opts := &pebble.Options{
		FS:                 failStopFS{fs, d, &armed},
		Cache:              cache,
		FormatMajorVersion: pebble.FormatNewest,
		Logger:             pebbleLogger{d},
		MemTableSize:       1 << 20, // metadata is small, and embedded in somebody's process
		MaxOpenFiles:       64,
		EventListener: &pebble.EventListener{
			BackgroundError: func(err error) { log.Error("pebble: a background job failed and is tried again", zap.Error(err)) },
		},
	}
	err := d.run(func() (err error) {
		if d.pebble, err = pebble.Open(dir, opts); err != nil {
			return fmt.Errorf("metastore: open %s: %w", dir, err)
		}
		if err := syncAbove(fs, dir); err != nil {
			return errors.Join(err, d.pebble.Close())
		}
		armed.Store(true)
		return d.readGeneration()
	})
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, raftlog.Retry(errors.Join(ctx.Err(), d.close()))
	}
	return d, nil
}

// syncAbove makes the directory's name durable, and that of the one that it is in:
// who made them has perhaps not, and what is synced in the database is to be there
// after a crash.
func syncAbove(fs vfs.FS, dir string) error {
	for range 2 {
		dir = fs.PathDir(dir)
		d, err := fs.OpenDir(dir)
		if err == nil {
			err = errors.Join(d.Sync(), d.Close())
		}
		if err != nil {
			return fmt.Errorf("metastore: sync %s: %w", dir, err)
		}
	}
	return nil
}

// run calls f, which alone may use Pebble, and returns its error; or, as soon
// as the database has failed, why. f then may never end, and must not touch
// what its caller goes on using.
func (d *database) run(f func() error) error {
	d.mu.Lock()
	if d.mu.err != nil || d.mu.closed {
		defer d.mu.Unlock()
		if d.mu.err != nil {
			return d.mu.err
		}
		return ErrClosed
	}
	d.running.Add(1)
	d.mu.Unlock()
	return d.start(func() error {
		defer d.running.Done()
		return f()
	})
}

func (d *database) start(f func() error) error {
	done := make(chan error, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				d.fail(fmt.Errorf("metastore: pebble panicked: %v", p))
			}
		}()
		done <- f()
	}()
	select {
	case err := <-done:
		return err
	case <-d.failed:
		return d.failure()
	}
}

// fail makes every call fail, running ones too. The first error stays.
func (d *database) fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.err == nil {
		d.mu.err = err
		close(d.failed)
		d.log.Error("the metadata database failed and is abandoned", zap.Error(err))
	}
}

// failure returns why the database failed, nil if it did not.
func (d *database) failure() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.err
}

// close waits for running calls and closes Pebble. A failed database is
// abandoned instead; the error says why it failed. Later calls do nothing.
func (d *database) close() error {
	d.mu.Lock()
	if d.mu.err != nil || d.mu.closed {
		defer d.mu.Unlock()
		return d.mu.err
	}
	d.mu.closed = true
	d.mu.Unlock()
	return d.start(func() error {
		d.running.Wait()
		if d.pebble == nil {
			return nil
		}
		return d.pebble.Close()
	})
}

// The functions below are called inside run.

// newest is the view of the state as it is now.
func (d *database) newest() view { return stateView{d.pebble, d.generation()} }

// stateView is the state of one generation, in the database or in a snapshot
// of it.
type stateView struct {
	pebble.Reader
	generation uint32
}

func stateKey(generation uint32, key []byte) []byte {
	b := binary.BigEndian.AppendUint32([]byte{prefixState}, generation)
	return append(b, key...)
}

const stateKeyPrefix = 1 + 4

func (v stateView) get(key []byte) ([]byte, error) {
	return getPebble(v.Reader, stateKey(v.generation, key))
}

func (v stateView) scan(prefix []byte, f func(key, value []byte) error) error {
	return scanPebble(v.Reader, stateKey(v.generation, prefix), f)
}

// getPebble returns a copy of the value, nil if there is none.
func getPebble(r pebble.Reader, key []byte) ([]byte, error) {
	v, closer, err := r.Get(key)
	if err == pebble.ErrNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("metastore: read: %w", err)
	}
	v = append([]byte{}, v...)
	return v, closer.Close()
}

// scanPebble calls f with the state's keys that begin with prefix, a key on
// Pebble.
func scanPebble(r pebble.Reader, prefix []byte, f func(key, value []byte) error) error {
	return scanRange(r, prefix, after(prefix), f)
}

// scanRange does it for the keys from first on and below end.
func scanRange(r pebble.Reader, first, end []byte, f func(key, value []byte) error) (err error) {
	it, err := r.NewIter(&pebble.IterOptions{LowerBound: first, UpperBound: end})
	if err != nil {
		return fmt.Errorf("metastore: read: %w", err)
	}
	defer func() {
		if e := it.Close(); e != nil && err == nil {
			err = fmt.Errorf("metastore: read: %w", e)
		}
	}()
	for it.First(); it.Valid(); it.Next() {
		v, err := it.ValueAndErr()
		if err != nil {
			return fmt.Errorf("metastore: read: %w", err)
		}
		if err := f(it.Key()[stateKeyPrefix:], v); err != nil {
			return err
		}
	}
	return nil
}

// after returns the first key that is above all keys with this prefix.
func after(prefix []byte) []byte {
	b := slices.Clone(prefix)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i]++; b[i] != 0 {
			return b[:i+1]
		}
	}
	return nil
}

// write commits what t holds as one batch: on the disk is all of it or nothing,
// the effects of the commands as well as the applied index.
//
// It does not wait for a sync, and need not: what a crash takes away is a
// suffix of the batches, the applied index in the database goes back with
// them, and the raft log, whose entries were durable before they were applied,
// is replayed from there.
func (d *database) write(t *tx) error {
	b := d.pebble.NewBatch()
	defer b.Close()
	for _, key := range t.written("") {
		k := stateKey(d.generation(), []byte(key))
		var err error
		if v := t.writes[key]; v == nil {
			err = b.Delete(k, nil)
		} else {
			err = b.Set(k, v, nil)
		}
		if err != nil {
			return fmt.Errorf("metastore: write: %w", err)
		}
	}
	return commit(b)
}

func commit(b *pebble.Batch) error {
	if err := b.Commit(pebble.NoSync); err != nil {
		return fmt.Errorf("metastore: write: %w", err)
	}
	return nil
}

// pebbleLogger is what Pebble talks to.
type pebbleLogger struct{ d *database }

func (pebbleLogger) Infof(string, ...any) {}

func (l pebbleLogger) Errorf(format string, args ...any) {
	l.d.log.Error("pebble: " + fmt.Sprintf(format, args...))
}

// Fatalf fails the database, and never returns: Pebble has no way to go on.
func (l pebbleLogger) Fatalf(format string, args ...any) {
	l.d.fail(fmt.Errorf("metastore: pebble: "+format, args...))
	select {}
}
