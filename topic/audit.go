package topic

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"go.uber.org/zap"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// # The audit
//
// Checksums tell bytes that are not what this node wrote. That it wrote what the
// others did, they do not: memory may have changed before the checksum was made, and
// a bug may decide otherwise here than there. So replicas compare the digests of
// their sealed segments, which are functions of the entries alone, when one of them
// has verified its log. One that differs from what a majority of the partition's
// replicas agree upon is damaged, and gets that segment from them. Without such a
// majority nothing is changed, and a person is told.

// sums are the digests of a replica's segments, as they were verified last.
type sums struct {
	mu  sync.Mutex
	all map[storage.Index]storage.SegmentSum // by first entry
}

func (s *sums) note(sum storage.SegmentSum) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[storage.Index]storage.SegmentSum{}
	}
	s.all[sum.First] = sum
}

// is reports whether a segment has a digest.
func (s *sums) is(sum storage.SegmentSum) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[sum.First] == sum
}

// from returns those of segments from an entry on, oldest first, and forgets those
// that are no longer of the log, which begins behind start.
func (s *sums) from(first, start storage.Index) []storage.SegmentSum {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.all, func(i storage.Index, _ storage.SegmentSum) bool { return i <= start })
	var all []storage.SegmentSum
	for i, sum := range s.all {
		if i >= first {
			all = append(all, sum)
		}
	}
	slices.SortFunc(all, func(a, b storage.SegmentSum) int { return cmp.Compare(a.First, b.First) })
	return all
}

// audited is what the comparison of one segment says.
type audited int

const (
	agrees    audited = iota // or too few are known to tell
	minority                 // a majority of the replicas has something else
	undecided                // all are known, and no majority has one of them
)

// audit judges a segment of this replica, one of so many, by what others have that
// begins at the same entry; agreed is what the majority has. It is pure.
func audit(mine storage.SegmentSum, others map[raftlog.NodeID]storage.SegmentSum, replicas int) (result audited, agreed storage.SegmentSum) {
	count := map[storage.SegmentSum]int{mine: 1}
	for _, sum := range others {
		count[sum]++
	}
	for sum, n := range count {
		if n > replicas/2 {
			if sum == mine {
				return agrees, mine
			}
			return minority, sum
		}
	}
	if len(count) > 1 && len(others)+1 == replicas {
		return undecided, storage.SegmentSum{}
	}
	return agrees, mine
}

// sumSize is how many bytes a digest takes on the wire, maxSums how many travel.
const (
	sumSize = 48
	maxSums = 4096
)

func encodeSums(all []storage.SegmentSum) []byte {
	b := make([]byte, 0, sumSize*len(all))
	for i := range all {
		b = binary.LittleEndian.AppendUint64(b, uint64(all[i].First))
		b = binary.LittleEndian.AppendUint64(b, uint64(all[i].Last))
		b = append(b, all[i].Sum[:]...)
	}
	return b
}

func decodeSums(b []byte) ([]storage.SegmentSum, error) {
	if len(b)%sumSize != 0 || len(b)/sumSize > maxSums {
		return nil, malformed("sums of %d bytes", len(b))
	}
	all := make([]storage.SegmentSum, len(b)/sumSize)
	for i := range all {
		part := b[i*sumSize:][:sumSize]
		all[i].First = storage.Index(binary.LittleEndian.Uint64(part))
		all[i].Last = storage.Index(binary.LittleEndian.Uint64(part[8:]))
		copy(all[i].Sum[:], part[16:])
		if all[i].First == 0 || all[i].Last < all[i].First || i > 0 && all[i].First <= all[i-1].Last {
			return nil, malformed("sum of entries %d to %d", all[i].First, all[i].Last)
		}
	}
	return all, nil
}

func (m *Manager) serveSums(_ context.Context, r *replica, _ byte, body []byte) ([]byte, error) {
	if len(body) != 8 {
		return nil, malformed("sums with %d bytes", len(body))
	}
	all := r.sums.from(storage.Index(binary.LittleEndian.Uint64(body)), r.group.Log().Start().Index)
	all = all[:min(len(all), maxSums)]
	return append(responseHead(sumSize*len(all)), encodeSums(all)...), nil
}

// sumsOf asks another node for the digests of its replica.
func (s *scrubber) sumsOf(node raftlog.NodeID, r *replica, first storage.Index) ([]storage.SegmentSum, error) {
	request := r.address.append(nil, 0)
	request = binary.LittleEndian.AppendUint64(request, uint64(first))
	response, err := s.call(s.life, node, methodSums, request, 0)
	if err != nil {
		return nil, err
	}
	body, err := decodeResponse(response)
	if err != nil {
		return nil, err
	}
	return decodeSums(body)
}

// audit compares the digests of a replica whose log was just verified with those of
// the others. What they are to give it is for heal.
func (s *scrubber) audit(r *replica) {
	mine := r.sums.from(0, r.group.Log().Start().Index)
	place := r.where()
	if len(mine) == 0 || len(place.Replicas) < 3 {
		return // of two that differ nobody can say which is right
	}
	known := map[storage.Index]map[raftlog.NodeID]storage.SegmentSum{}
	for _, node := range s.others(place, 0) {
		theirs, err := s.sumsOf(node, r, mine[0].First)
		if err != nil {
			s.log(r).Debug("digests are not compared with another replica's in this round", zap.Stringer("other", node), zap.Error(err))
			continue
		}
		for _, sum := range theirs {
			if known[sum.First] == nil {
				known[sum.First] = map[raftlog.NodeID]storage.SegmentSum{}
			}
			known[sum.First][node] = sum
		}
	}
	wrong := false
	for _, sum := range mine {
		switch result, agreed := audit(sum, known[sum.First], len(place.Replicas)); result {
		case minority:
			wrong = !s.replace(r, sum, agreed, known[sum.First]) || wrong
		case undecided:
			wrong = true
			s.damaged(r, sum.First, fmt.Errorf("topic: the replicas of %v differ in the entries %d to %d, and no majority agrees: a person has to look", r.address, sum.First, sum.Last))
		}
	}
	if !wrong && s.ill[r] == nil {
		s.sound(r)
	}
}

// replace gets a segment from nodes that have what the majority agrees upon, and
// reports whether it is that now, or no longer of the log.
func (s *scrubber) replace(r *replica, mine, agreed storage.SegmentSum, others map[raftlog.NodeID]storage.SegmentSum) bool {
	reason := fmt.Errorf("topic: the entries %d to %d of %v are not what a majority of its replicas has", mine.First, mine.Last, r.address)
	s.damaged(r, mine.First, reason)
	p := patient{address: r.address, group: r.where().Group, replica: r.id, agreed: true}
	for node, sum := range others {
		if sum == agreed {
			p.others = append(p.others, node)
		}
	}
	slices.Sort(p.others)
	v := s.verifier(r, mine.First)
	for v.Segment() == mine.First && s.life.Err() == nil {
		last := v.Next()
		n, err := s.Manager.repair(s.life, p, r.group.Log(), v)
		r.repaired.Add(n)
		if errors.Is(err, storage.ErrCompacted) || errors.Is(err, storage.ErrClosed) {
			return true
		}
		if err == nil {
			_, err = v.Reread()
		}
		if err == nil && v.Segment() == mine.First && v.Next() > agreed.Last {
			_, err = v.Step(1) // what was too much is cut
		}
		if err == nil && v.Segment() == mine.First && v.Next() == last {
			err = errors.New("what was written is not there")
		}
		if err != nil {
			s.damaged(r, last, fmt.Errorf("%w; got from those, it is not right: %w", reason, err))
			r.group.SetDamaged(true)
			return false // the next round tries again
		}
	}
	return r.sums.is(agreed)
}
