package storage_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/storage"
)

// randomly runs one seed of a random program with random faults.
func randomly(seed uint64, cfg storage.Config) error {
	return newWorld(seed, cfg, 4).run(120)
}

// Choices of world.frame.
const (
	create = iota
	destroy
	setAside
	reset
	appendSome
)

// script is a short life with all that a journal does. Fault n is the nth of
// its operations.
func script(w *world) error {
	steps := []func() error{
		w.open,
		w.rounds(create, create, create, create, appendSome, appendSome, appendSome),
		w.applySome, w.applySome,
		w.rotation(appendSome, appendSome),
		w.checkpoint,
		w.rounds(appendSome, create, destroy, appendSome, appendSome),
		w.applySome, w.applySome,
		w.rotation(appendSome, setAside),
		w.rounds(create, appendSome, appendSome, appendSome, appendSome),
		w.checkpoint,
		w.applySome,
		w.rotation(appendSome, reset),
		w.rounds(appendSome, reset, appendSome, appendSome),
		w.mark,
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) rounds(choices ...int) func() error {
	return func() error {
		for w.force = choices; len(w.force) > 0; {
			if err := w.round(false); err != nil {
				return err
			}
		}
		return nil
	}
}

func (w *world) rotation(choices ...int) func() error {
	return func() error {
		w.force = choices
		return w.round(true)
	}
}

func injected(err error) bool {
	return errors.Is(err, simfs.ErrCrashed) || errors.Is(err, errInjected)
}

// everywhere runs the script with a fault at each of its operations, and then
// opens what is left with a crash at each of the operations of that; then what
// that leaves must hold what was promised.
func everywhere(seed uint64, cfg storage.Config, every int64) error {
	for n := 1 + int64(seed)%every; ; n += every {
		for _, fault := range []error{simfs.ErrCrashed, errInjected} {
			w := newWorld(seed, cfg, 8)
			w.setFault(func(op simfs.Op) error {
				if op.Seq == n && (fault != errInjected || op.Kind == simfs.OpSync || op.Kind == simfs.OpWrite) {
					return fault
				}
				return nil
			})
			err := script(w)
			if err != nil && !injected(err) {
				return fmt.Errorf("fault %v at %d: %w", fault, n, err)
			}
			if err := openEverywhere(w, seed, n); err != nil {
				return fmt.Errorf("fault %v at %d: %w", fault, n, err)
			}
			if err == nil && fault == simfs.ErrCrashed {
				return nil // no operation n
			}
		}
	}
}

// openEverywhere crashes the opening of what w left at every second of its
// operations, beginning at from.
func openEverywhere(w *world, seed uint64, from int64) error {
	for _, kind := range []simfs.Survival{simfs.Strict, simfs.Random, simfs.Kill} {
		for m := 1 + (from+int64(kind))%2; ; m += 2 {
			f := w.fork(kind, seed)
			f.setFault(simfs.CrashAt(m))
			err := f.open()
			if err != nil && !injected(err) {
				return fmt.Errorf("kind %v: %w", kind, err)
			}
			done := err == nil
			again := simfs.Random
			if m%3 == 0 {
				again = simfs.Kill
			}
			g := f.fork(again, seed)
			if err := g.open(); err != nil {
				return fmt.Errorf("kind %v, open crashed at %d with %v: %w", kind, m, again, err)
			}
			if done {
				break
			}
		}
	}
	return nil
}

// killedOpens opens again and again, killed or failed each time at the same
// sync, then loses power while it opens.
func killedOpens(seed uint64, cfg storage.Config) error {
	w := newWorld(seed, cfg, 8)
	if err := script(w); err != nil {
		return err
	}
	for _, fault := range []error{simfs.ErrCrashed, errInjected} {
		for n := int64(1); n <= 6; n++ {
			if err := killedAtSync(w, seed, fault, n); err != nil {
				return fmt.Errorf("%w at sync %d: %w", fault, n, err)
			}
		}
	}
	return nil
}

func killedAtSync(w *world, seed uint64, fault error, n int64) error {
	f := w
	for opens := range 8 {
		f = f.fork(simfs.Kill, seed)
		f.setFault(failNth(n, fault, func(op simfs.Op) bool {
			return op.Kind == simfs.OpSync && strings.HasPrefix(op.Path, "/node/journal/")
		}))
		if err := f.open(); err != nil && !injected(err) {
			return err
		}
		f = f.fork(simfs.Kill, seed)
		if err := f.countFiles(7); err != nil {
			return err
		}
		if opens > 2 {
			continue
		}
		for k := int64(1); k <= 24; k++ {
			g := f.fork(simfs.Kill, seed)
			g.setFault(simfs.CrashAt(k))
			if err := g.open(); err != nil && !injected(err) {
				return err
			}
			g = g.fork(simfs.Strict, seed)
			if err := g.open(); err != nil {
				return fmt.Errorf("power lost at %d: %w", k, err)
			}
		}
	}
	return nil
}

// openTwice opens what a killed or failed checkpoint left, kills that at each
// operation, opens again, takes the power at each operation of that, and opens.
// So every page of the table that is only in the page cache has its chance to
// be missed.
func openTwice(seed uint64, cfg storage.Config) error {
	for _, fault := range []error{nil, simfs.ErrCrashed, errInjected} {
		w := newWorld(seed, cfg, 8)
		n := 0
		w.setFault(func(op simfs.Op) error {
			if op.Kind == simfs.OpSync && strings.Contains(op.Path, "journal/checkpoint.") {
				if n++; n == 4 { // open synced three
					return fault
				}
			}
			return nil
		})
		if err := script(w); err != nil && !injected(err) {
			return err
		}
		if err := killAndCut(w, seed); err != nil {
			return fmt.Errorf("after %v: %w", fault, err)
		}
	}
	return nil
}

func killAndCut(w *world, seed uint64) error {
	for m := int64(1); ; m++ {
		f := w.fork(simfs.Kill, seed)
		f.setFault(simfs.CrashAt(m))
		err := f.open()
		if err != nil && !injected(err) {
			return err
		}
		done := err == nil
		for k := int64(1); ; k++ {
			g := f.fork(simfs.Kill, seed)
			g.setFault(simfs.CrashAt(k))
			if err = g.open(); err != nil && !injected(err) {
				return fmt.Errorf("killed at %d: %w", m, err)
			}
			for image := range uint64(2) {
				h := g.fork(simfs.Random, image)
				if err := h.open(); err != nil {
					return fmt.Errorf("killed at %d, power lost at %d: %w", m, k, err)
				}
			}
			if err == nil {
				break
			}
		}
		if done {
			return nil
		}
	}
}

// damaged changes one place of the journal at a time, after the last mark was
// written, and opens.
func damaged(seed uint64, cfg storage.Config) error {
	w := newWorld(seed, cfg, 8)
	if err := script(w); err != nil {
		return err
	}
	names, err := w.fs.List("/node/journal")
	if err != nil {
		return err
	}
	w.fs.Crash(simfs.Strict)
	for _, name := range names {
		for at := int64(0); at < 128<<10; at += 512 {
			f := w.fork(simfs.Strict, seed)
			path := "/node/journal/" + name
			info, err := f.fs.Stat(path)
			if err != nil {
				return err
			}
			if at >= info.Size() {
				break
			}
			if at%4096 == 512 {
				err = f.fs.ZeroPage(path, at)
			} else {
				err = f.fs.Flip(path, at+f.rng.Int64N(min(512, info.Size()-at)), 3)
			}
			if err != nil {
				return err
			}
			err = f.open()
			var damage *storage.DamageError
			if err != nil && (!errors.As(err, &damage) || strings.HasPrefix(name, "checkpoint")) {
				return fmt.Errorf("%s changed at %d: %w", name, at, err)
			}
		}
	}
	return nil
}

// Property: S3 (red: chunks of 5000 bytes were searched, so that most pages were not)
//
// Journal files may be of any size: what was synced behind a damaged round is
// found all the same.
func TestDamageIsFoundInFilesOfOddSizes(t *testing.T) {
	for _, size := range []int64{40<<10 + 1, 40<<10 + 4095, 1<<20 - 1, 1<<20 + 1, 2<<20 + 5000} {
		fs := simfs.New(1)
		s := openTest(t, fs)
		for range 5 {
			require.NoError(t, s.WriteRound(nil))
		}
		require.NoError(t, s.Close())
		fs = fs.Crash(simfs.Kill)
		require.NoError(t, fs.Truncate("/node/journal/2.journal", size))
		for _, page := range []int64{3, 4, 5} { // the sixth is left
			require.NoError(t, fs.Flip("/node/journal/2.journal", page*4096+1, 1))
		}
		_, err := storage.Open(testConfig(fs))
		var damage *storage.DamageError
		require.ErrorAs(t, err, &damage, "a file of %d bytes", size)
		require.Equal(t, int64(3*4096), damage.Offset)
	}
}

func seeds(n uint64) uint64 {
	if testing.Short() {
		return n/5 + 1
	}
	return n
}

// Property: R2, S1 (red: a round was answered before its sync; a carry had no vote)
// Property: R23 (red: an append left the entries behind it)
// Property: S8 (red: a new file was used before its name was synced; the directory that was found was not synced)
// Property: S12 (red: a round of an earlier life of a file was read)
func TestCrashesAtRandom(t *testing.T) {
	for seed := range seeds(120) {
		require.NoError(t, randomly(seed, testConfig(nil)), "seed %d", seed)
	}
}

// Property: R31 (red: open went on behind what it had read)
// Property: R22 (red: a reset left the commit where it was; raft's own restart: TestClusterLosesPower in raftlog)
// Property: S8 (red: the new journal's name was not synced)
func TestCrashesEverywhere(t *testing.T) {
	every := int64(1)
	if testing.Short() {
		every = 5
	}
	require.NoError(t, everywhere(1, testConfig(nil), every))
}

// Property: S12 (red: open did not write the table's copy again)
func TestCrashesInOpen(t *testing.T) {
	for seed := range seeds(2) {
		require.NoError(t, openTwice(seed, testConfig(nil)), "seed %d", seed)
	}
}

// Property: S12 (red: generations of killed opens were kept; the newest of them was believed without a write)
func TestKilledOpensPinNoFiles(t *testing.T) {
	require.NoError(t, killedOpens(1, testConfig(nil)))
}

// Property: S3 (red: nothing was looked for behind the first bad round; a closed generation could end short)
func TestDamageIsNoTornTail(t *testing.T) {
	for seed := range seeds(3) {
		require.NoError(t, damaged(seed, testConfig(nil)), "seed %d", seed)
	}
	require.NoError(t, damaged(31, testConfig(nil)), "a seed that damages a closed generation's end")
}

// TestMutants breaks one rule of the journal at a time: each must be found by
// its crashes.
//
// Property: S12 (red: every one of them)
func TestMutants(t *testing.T) {
	sparsely := func(seed uint64, cfg storage.Config) error { return everywhere(seed, cfg, 5) }
	// Seeds begin a little before the one that finds it, to be quick.
	mutants := map[string]struct {
		from uint64
		run  func(uint64, storage.Config) error
	}{
		"answer before sync":              {0, randomly},
		"append behind a tear":            {0, sparsely},
		"closed generation may end short": {20, damaged},
		"directory not synced":            {0, randomly},
		"durable copy is written first":   {7, openTwice},
		"failed logs trusted":             {160, randomly},
		"free behind the newer copy":      {0, damaged},
		"killed opens pin files":          {0, killedOpens},
		"logs not synced":                 {0, randomly},
		"no carry":                        {0, randomly},
		"no generation in the checksum":   {0, randomly},
		"no search for holes":             {0, damaged},
		"open syncs without rewrite":      {0, openTwice},
		"open without rewrite":            {0, openTwice},
		"prev is the end that was read":   {0, randomly},
		"repeated generation numbers":     {0, randomly},
		"retry a failed sync":             {0, randomly},
		"reuse a file above the proven":   {0, randomly},
		"table not synced":                {0, randomly},
	}
	for _, rule := range storage.Rules() {
		t.Run(rule, func(t *testing.T) {
			require.Contains(t, mutants, rule)
			m := mutants[rule]
			const budget = 60
			for seed := m.from; seed < m.from+budget; seed++ {
				if err := m.run(seed, storage.Break(testConfig(nil), rule)); err != nil {
					t.Logf("found by seed %d: %v", seed, err)
					return
				}
			}
			t.Fatalf("not found by %d seeds", budget)
		})
	}
}
