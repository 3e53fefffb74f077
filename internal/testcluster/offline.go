package testcluster

import (
	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/storage"
)

// CompareOffline reads the files of every member, which must be down, without
// any node: offsets are gapless in each log, and logs of one group are equal
// where they overlap. It returns how many records the longest logs hold in all.
func (c *Cluster) CompareOffline() (records int) {
	c.T.Helper()
	frames := map[storage.GroupID]map[storage.Index]storage.OfflineFrame{}
	ends := map[storage.GroupID]storage.Offset{}
	for _, m := range c.members {
		o, err := storage.ReadOffline(m.FS, Dir)
		require.NoError(c.T, err, "seed %d: %s", c.opts.Seed, m.Name)
		for _, r := range o.Replicas {
			all := frames[r.Group]
			if all == nil {
				all = map[storage.Index]storage.OfflineFrame{}
				frames[r.Group] = all
			}
			for _, a := range c.offlineLog(m, o, r) {
				if b, ok := all[a.Index]; ok {
					same := a.Term == b.Term && a.Verdict == b.Verdict && a.BaseOffset == b.BaseOffset && string(a.Payload) == string(b.Payload)
					require.True(c.T, same, "seed %d: %v of %s differs at index %d of %v", c.opts.Seed, r.Replica, m.Name, a.Index, r.Group)
				}
				all[a.Index] = a
				ends[r.Group] = max(ends[r.Group], a.BaseOffset+storage.Offset(a.Count))
			}
		}
	}
	for g, end := range ends {
		if g != storage.MetadataGroup {
			records += int(end)
		}
	}
	return records
}

// offlineLog returns the frames of a replica's log, checked for gaps. The log of
// a replica that was given the state as a whole begins behind that, and one whose
// front was removed behind that.
func (c *Cluster) offlineLog(m *Member, o *storage.Offline, r storage.ReplicaState) (frames []storage.OfflineFrame) {
	next, index := storage.Offset(0), r.Log.StartIndex+1
	for f, err := range o.Frames(r.Replica) {
		require.NoError(c.T, err, "seed %d: %v of %s", c.opts.Seed, r.Replica, m.Name)
		if len(frames) == 0 && r.Log.StartIndex > 1 {
			next = f.BaseOffset
		}
		require.Equal(c.T, index, f.Index, "seed %d: %v of %s", c.opts.Seed, r.Replica, m.Name)
		require.Equal(c.T, next, f.BaseOffset, "seed %d: %v of %s at index %d", c.opts.Seed, r.Replica, m.Name, f.Index)
		next += storage.Offset(f.Count)
		index++
		frames = append(frames, f)
	}
	return frames
}
