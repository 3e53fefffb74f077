package main

import (
	"cmp"
	"slices"
)

// comparison is what the replicas of one partition have in common.
type comparison struct {
	Topic       string   `json:"topic"`
	Partition   uint32   `json:"partition"`
	Incarnation string   `json:"incarnation"`
	Replicas    []string `json:"replicas"` // directories
	Watermarks  []int64  `json:"high_watermarks"`
	Common      int64    `json:"common"` // offset up to which they were compared: the lowest watermark
	Same        bool     `json:"same"`
}

type placeKey struct {
	topic, incarnation string
	partition          uint32
}

// compare compares the replicas of each partition up to the end of the shortest
// one: one that lags is no damage.
func (all *inspection) compare() {
	var keys []placeKey
	of := map[placeKey][]*group{}
	dirs := map[*group]string{}
	for _, d := range all.Directories {
		for _, g := range d.Groups {
			if g.Topic == "" || g.SetAside {
				continue
			}
			k := placeKey{g.Topic, g.Incarnation, g.Partition}
			if of[k] == nil {
				keys = append(keys, k)
			}
			of[k], dirs[g] = append(of[k], g), d.Dir
		}
	}
	for _, k := range keys {
		c := compareGroups(of[k])
		c.Topic, c.Incarnation, c.Partition = k.topic, k.incarnation, k.partition
		for _, g := range of[k] {
			c.Replicas = append(c.Replicas, dirs[g])
			c.Watermarks = append(c.Watermarks, g.HighWatermark)
		}
		all.Compared = append(all.Compared, c)
		all.Damaged = all.Damaged || !c.Same
	}
}

func compareGroups(groups []*group) *comparison {
	c := &comparison{Same: true, Common: groups[0].HighWatermark}
	for _, g := range groups {
		c.Common = min(c.Common, g.HighWatermark)
	}
	first, ok := groups[0].sumAt(c.Common)
	for _, g := range groups[1:] {
		sum, found := g.sumAt(c.Common)
		c.Same = c.Same && ok && found && sum == first
	}
	return c
}

// sumAt is the hash of the records below an offset; false if no entry of this
// replica ends there, though one of another does: then they differ.
func (g *group) sumAt(next int64) (digest, bool) {
	if next == g.Start {
		return newRecordHash().sum(), true
	}
	i, ok := slices.BinarySearchFunc(g.states, next, func(s recordState, next int64) int { return cmp.Compare(s.next, next) })
	if !ok {
		return digest{}, false
	}
	return g.states[i].sum, true
}
