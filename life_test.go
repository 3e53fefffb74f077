package stele

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/metastore"
)

// doorstep is a node's metadata and topics. read is called whenever its member was
// read, and before that is used.
type doorstep struct {
	departure metastore.Departure
	shut      bool
	read      func()
}

func (s *doorstep) Member(NodeID) (metastore.Member, bool) {
	m := metastore.Member{Liveness: metastore.Liveness{Departure: s.departure}}
	if read := s.read; read != nil {
		s.read = nil
		read()
	}
	return m, true
}

func (s *doorstep) Drain() uint64 { s.shut = true; return 0 }
func (s *doorstep) Undrain()      { s.shut = false }

// TestTheDoorIsAsTheMetadataSay: the departure changes right after one of the two who
// use the door read it, and the other one comes as soon as it is let in.
//
// Property: D1 (red: the own member read before the lock, in follow; in backlog)
func TestTheDoorIsAsTheMetadataSay(t *testing.T) {
	var d door
	s := &doorstep{}
	meanwhile := func(to metastore.Departure, first, other func()) {
		came := false
		s.read = func() {
			s.departure = to
			if came = d.mu.TryLock(); came {
				d.mu.Unlock()
				other()
			}
		}
		first()
		if !came {
			other()
		}
	}
	follow := func() { d.follow(s, s, 1) }
	ask := func() { _, _ = d.backlog(s, s, 1) }

	meanwhile(metastore.Drains, follow, func() {
		draining, bytes := d.backlog(s, s, 1)
		require.True(t, draining)
		require.Zero(t, bytes)
	})
	require.True(t, s.shut, "it said that nothing is left, and takes in nothing")
	meanwhile(metastore.Stays, ask, follow)
	require.False(t, s.shut, "it stays")
}
