package stele_test

import (
	"path/filepath"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/testcluster"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

// sealedGroups are the groups in which some member was about to apply a seal.
type sealedGroups struct {
	mu     sync.Mutex
	groups map[raftlog.GroupID]bool
}

func (s *sealedGroups) applied(_ int, g raftlog.GroupID, e *raftlog.Entry) {
	if g == storage.MetadataGroup {
		return
	}
	b, _, err := topic.ReadBatch(e.Data)
	if err != nil || b.Kind() != topic.KindSeal {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.groups == nil {
		s.groups = map[raftlog.GroupID]bool{}
	}
	s.groups[g] = true
}

func (s *sealedGroups) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.groups)
}

func (s *sealedGroups) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.groups = nil
}

// returns has the member come back.
func (s *recreateStory) returns() {
	s.down = false
	if s.how == "cut off" {
		s.note("member %d is heard again", s.victim)
		s.c.Rejoin(s.victim)
		return
	}
	s.note("member %d starts", s.victim)
	s.l.starts(s.victim)
	s.start()
}

// start starts the member as it was, and has it read at once.
func (s *recreateStory) start() {
	if s.cell.role == "voter" {
		s.c.Start(s.victim)
	} else {
		s.c.StartWith(s.victim, s.asObserver)
	}
	s.l.load(s.victim)
}

// comeHome has the member come back, and go down again first if the story says so.
func (s *recreateStory) comeHome() {
	if !s.down {
		return
	}
	switch {
	case s.came && s.first != s.cell.step: // and has done so already
	case s.cell.step == "startup":
		for range 1 + s.rng.IntN(3) {
			s.again("startup", s.after(1+s.rng.IntN(80), anyOp), time.Duration(1+s.rng.IntN(3000))*time.Millisecond)
		}
	case s.cell.step == "reclaim" && s.first != "reclaim":
		s.again("reclaim", s.after(1+s.rng.IntN(3), unlinks), 2*time.Minute)
	}
	s.returns()
}

// again starts the member, and has it go down again.
func (s *recreateStory) again(step string, spring func(strike func()), d time.Duration) {
	awaited := s.trap(step, spring)
	s.returns()
	awaited(d)
}

// finish demands what the story promised.
func (s *recreateStory) finish() {
	c, t := s.c, s.c.T
	c.WaitReady()
	s.note("all are ready")
	for i := range c.Size() {
		if s.l.loads[i] == nil || i == s.victim {
			s.l.load(i)
		}
	}
	s.l.rounds.Store(roundsOfLife)
	before := s.l.acked()
	c.Eventually(func() bool { return s.l.acked() > before+10 }, "records are taken in")
	s.l.stopAll()
	all := others(c)
	deadline := time.Now().Add(20 * time.Minute)
	c.Sleep(12 * time.Second) // what producers sent last and did not wait for
	for s.leftovers() != "" && time.Now().Before(deadline) {
		c.Sleep(time.Second)
	}
	require.Empty(t, s.leftovers(), "seed %d: it is not given back", s.seed)
	s.note("nothing is left of earlier lives")
	records := s.l.verify(all...)
	require.Positive(t, records)
	for _, i := range all {
		c.Close(i)
	}
	require.Equal(t, records, c.CompareOffline(), "seed %d", s.seed)
	for _, i := range all {
		s.verifyDisk(i)
	}
}

// leftovers is a directory that some member has, and should not.
func (s *recreateStory) leftovers() string {
	for i := range s.c.Size() {
		fs := s.c.Member(i).FS
		for _, dir := range []string{"topics", "quarantine"} {
			names, err := fs.List(filepath.Join(testcluster.Dir, dir))
			if err != nil {
				continue // there never was one
			}
			for _, name := range names {
				if dir == "quarantine" || name != storyTopic+"@"+s.living().String() {
					return filepath.Join(s.c.Member(i).Name, dir, name)
				}
			}
		}
	}
	return ""
}

// living is the life that is left.
func (s *recreateStory) living() storage.Incarnation { return s.l.ids[len(s.l.ids)-1] }

// verifyDisk: the journal of a member, which is closed, knows no replica but those of
// the metadata and of the life that is left.
func (s *recreateStory) verifyDisk(i int) {
	o, err := storage.ReadOffline(s.c.Member(i).FS, testcluster.Dir)
	require.NoError(s.c.T, err)
	require.Empty(s.c.T, o.Quarantined)
	for _, r := range o.Replicas {
		if inc, ok := r.Incarnation(); r.Group != storage.MetadataGroup && (!ok || inc != s.living() || r.Status != storage.ReplicaLive) {
			s.c.T.Errorf("seed %d: the journal of member %d knows %v of %v in %s, %v", s.seed, i, r.Replica, r.Group, r.Dir, r.Status)
		}
	}
}
