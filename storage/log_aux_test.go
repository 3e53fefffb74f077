package storage_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/storage"
)

// aside writes a side file at the end of a log.
func (f *failingLogs) aside(i int) {
	require.NoError(f.t, f.logs[i].WriteAux(f.states[i].Log.LastIndex, nil))
	f.states[i].Log = f.logs[i].Position()
}

// sideFiles lists the side files of a replica that have their names.
func (f *failingLogs) sideFiles(i int) (names []string) {
	all, err := f.fs.List("/node/" + f.states[i].Dir)
	require.NoError(f.t, err)
	slices.Sort(all)
	for _, name := range all {
		if strings.HasSuffix(name, ".aux") {
			names = append(names, name)
		}
	}
	return names
}

// A side file goes when neither copy of the table names it any more, and stays
// as long as one does: a log that failed is opened with that of its last
// position.
func TestSideFilesGoBehindTheOlderCheckpoint(t *testing.T) {
	f := newFailingLogs(t)
	f.fs.SetHook(nil)
	var failed *storage.LogsFailedError
	for n, want := range []int{1, 2, 2, 2, 2} {
		if n == 2 {
			f.fs.SetHook(failLogOf7)
		}
		for i := range f.states {
			if i == 1 || n < 3 {
				f.write(i, true)
				f.aside(i)
			}
		}
		states := slices.Clone(f.states)
		g, err := f.s.Rotate(states, nil)
		require.NoError(t, err)
		if n == 2 { // it goes on until the checkpoint finds that it failed
			f.write(0, true)
			f.aside(0)
		}
		err = f.s.Checkpoint(g, states)
		require.Equal(t, n >= 2, errors.As(err, &failed), "%v", err)
		require.Len(t, f.sideFiles(1), want)
		require.Len(t, f.sideFiles(0), min(want, 2))
	}
	s, err := storage.Open(testConfig(f.fs.Image(simfs.Strict)))
	require.NoError(t, err)
	for _, st := range s.Replicas() {
		l, err := s.OpenLog(st)
		require.NoError(t, err)
		_, err = l.ReadAux(st.Log.AuxIndex)
		require.NoError(t, err)
	}
	require.NoError(t, s.Close())
	require.NoError(t, f.s.Close())
}

// A log that was opened again stands at a side file that no copy of the table
// names yet.
func TestSideFilesOfALogThatIsOpenedAgain(t *testing.T) {
	f := newFailingLogs(t)
	f.fs.SetHook(nil)
	f.write(1, true)
	f.aside(1)
	require.NoError(t, f.checkpoint())
	f.write(1, true)
	f.aside(1)
	states := slices.Clone(f.states)
	g, err := f.s.Rotate(states, nil)
	require.NoError(t, err)
	f.write(1, true)
	f.aside(1)
	require.NoError(t, f.logs[1].Close())
	f.logs[1], err = f.s.OpenLog(f.states[1])
	require.NoError(t, err)
	require.NoError(t, f.s.Checkpoint(g, states))
	require.Len(t, f.sideFiles(1), 3)
	require.NoError(t, f.s.Close())

	f.s, err = storage.Open(testConfig(f.fs))
	require.NoError(t, err)
	st := f.s.Replicas()[1]
	require.Equal(t, states[1].Log, st.Log)
	_, err = f.s.OpenLog(st)
	require.NoError(t, err)
	require.NoError(t, f.s.Close())
}
