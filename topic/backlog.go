package topic

import (
	"errors"

	"github.com/stelelog/stele/raftlog"
)

// ErrDraining refuses records on a node that leaves its cluster: all that its
// producers took in before is delivered first. Retry: through another node.
var ErrDraining = raftlog.Retry(errors.New("topic: the node is leaving its cluster and takes in no more records"))

// Drain has the producers of this node take in no more records, which they
// refuse with ErrDraining, and returns how many bytes of records they took in and
// have not answered. Once it returned 0 it goes on to, until Undrain.
func (m *Manager) Drain() (bytes uint64) {
	m.draining.Store(true)
	m.mu.RLock()
	defer m.mu.RUnlock()
	for p := range m.mu.producers {
		bytes += p.room.taken()
	}
	return bytes
}

// Undrain takes Drain back.
func (m *Manager) Undrain() { m.draining.Store(false) }

// taken is how many bytes are given out.
func (b *budget) taken() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return uint64(b.mu.used)
}
