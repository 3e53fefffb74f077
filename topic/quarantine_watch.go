package topic

import (
	"errors"
	"maps"
	"sync"

	"go.uber.org/zap"

	"github.com/stelelog/stele/storage"
)

// QuarantineTotal sums up the directories in quarantine of one kind.
type QuarantineTotal struct {
	Dirs  int
	Bytes int64 // of the files in them
}

// keptKey names what the sweeper may reclaim; replica 0: all of the incarnation.
type keptKey struct {
	incarnation storage.Incarnation
	replica     storage.ReplicaID
}

func (r remains) key() keptKey { return keptKey{r.incarnation, r.replica} }

// keptBoard is what the sweeper knows of the quarantine, for others to see.
type keptBoard struct {
	telling sync.Mutex // held while OnQuarantined, OnReclaimed, OnReclaimRefused or OnRestored is called

	mu     sync.Mutex
	why    map[keptKey]error // why something stayed when it was tried last
	bytes  map[string]int64  // of the directories that were seen; what is in one does not change
	totals map[storage.ReasonKind]QuarantineTotal
}

// of returns why a directory was kept, or nil.
func (b *keptBoard) of(e *storage.QuarantineEntry) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.why[keptKey{e.Incarnation, 0}]; err != nil || !e.OfReplica {
		return err
	}
	return b.why[keptKey{e.Incarnation, e.Replica}]
}

// note keeps why something stays; nil: it does not.
func (b *keptBoard) note(k keptKey, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		delete(b.why, k)
		return
	}
	if b.why == nil {
		b.why = map[keptKey]error{}
	}
	b.why[k] = err
}

// QuarantineTotals returns what was in quarantine when the sweeper looked last, by
// the kind of the reason: after each of its passes. It is cheap.
func (m *Manager) QuarantineTotals() map[storage.ReasonKind]QuarantineTotal {
	m.kept.mu.Lock()
	defer m.kept.mu.Unlock()
	return maps.Clone(m.kept.totals)
}

// survey counts what is in quarantine, and tells of what was not there before. What
// it cannot look at it leaves to the next time.
func (sw *sweeper) survey() {
	dirs, err := sw.cfg.Store.Quarantined()
	if err != nil {
		return // the pass that follows says so
	}
	b := &sw.kept
	seen := map[string]int64{}
	totals := map[storage.ReasonKind]QuarantineTotal{}
	for _, d := range dirs {
		b.mu.Lock()
		bytes, known := b.bytes[d.Dir]
		b.mu.Unlock()
		if !known {
			e, err := sw.cfg.Store.Describe(d.Dir)
			if errors.Is(err, storage.ErrNotQuarantined) {
				continue
			}
			if err != nil {
				sw.cfg.Logger.Warn("a directory in quarantine cannot be looked at", zap.String("dir", d.Dir), zap.Error(err))
				continue
			}
			bytes = e.Bytes
			sw.tellQuarantined(Quarantined{QuarantineEntry: e, Fate: sw.fateOf(&e)})
		}
		seen[d.Dir] = bytes
		t := totals[d.Reason.Kind]
		t.Dirs, t.Bytes = t.Dirs+1, t.Bytes+bytes
		totals[d.Reason.Kind] = t
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bytes, b.totals = seen, totals
}

func (sw *sweeper) tellQuarantined(q Quarantined) {
	if sw.cfg.OnQuarantined == nil {
		return
	}
	sw.kept.telling.Lock()
	defer sw.kept.telling.Unlock()
	sw.cfg.OnQuarantined(q)
}
