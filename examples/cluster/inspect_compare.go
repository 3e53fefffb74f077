package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// comparison is what the replicas of one partition have in common.
type comparison struct {
	Topic       string             `json:"topic"`
	Partition   uint32             `json:"partition"`
	Incarnation string             `json:"incarnation"`
	Replicas    []*comparedReplica `json:"replicas"`
	End         int64              `json:"end"` // the highest watermark that any of them has
	Result      string             `json:"result"`
	// Why it was not compared, or what was left out.
	Why string `json:"why,omitempty"`
}

// Results of a comparison.
const (
	// resultEqual: all replicas have the same records, each as far as it goes,
	// and at least two have any. One that lags is no damage.
	resultEqual     = "equal"
	resultDifferent = "different"
	// resultPartly: the same records, as far as they could be read, and one could
	// not be read to its end.
	resultPartly      = "partly"
	resultNotCompared = "not compared"
)

// comparedReplica is a replica beside the longest one of its partition.
type comparedReplica struct {
	Dir           string `json:"dir"`
	Start         int64  `json:"start_offset"`
	HighWatermark int64  `json:"high_watermark"`  // up to which it was read, and compared
	Broken        string `json:"error,omitempty"` // why it was not read to its end
	Same          bool   `json:"same"`            // as the longest one, up to its high watermark
}

type placeKey struct {
	topic, incarnation string
	partition          uint32
}

// compare compares the replicas of each partition.
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
		for i, g := range of[k] {
			c.Replicas[i].Dir = dirs[g]
		}
		all.Compared = append(all.Compared, c)
		all.Damaged = all.Damaged || c.Result == resultDifferent
	}
}

// compareGroups compares each replica with the longest one, up to its own end.
func compareGroups(groups []*group) *comparison {
	longest := slices.MaxFunc(groups, func(a, b *group) int { return cmp.Compare(a.HighWatermark, b.HighWatermark) })
	c := &comparison{End: longest.HighWatermark, Result: resultEqual}
	begun, broken, starts := 0, 0, 0
	for _, g := range groups {
		r := &comparedReplica{Start: g.Start, HighWatermark: g.HighWatermark, Broken: g.Broken, Same: true}
		c.Replicas = append(c.Replicas, r)
		if g.Broken != "" {
			broken++
		}
		if g.HighWatermark == 0 { // it has none of the records, wherever they begin
			continue
		}
		begun++
		if g.Start != longest.Start {
			starts++
			continue
		}
		sum, ok := longest.sumAt(g.HighWatermark)
		own, _ := g.sumAt(g.HighWatermark)
		r.Same = ok && sum == own
	}
	different := slices.ContainsFunc(c.Replicas, func(r *comparedReplica) bool { return !r.Same })
	switch {
	case different:
		c.Result = resultDifferent
	case len(groups) < 2:
		c.Result, c.Why = resultNotCompared, "fewer than two replicas"
	case broken > 0:
		c.Result = resultPartly
	case starts > 0:
		c.Result, c.Why = resultNotCompared, "they begin at different offsets"
	case begun == 1:
		c.Result, c.Why = resultNotCompared, "only one replica has records"
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

// text says what is worth saying of a comparison.
func (c *comparison) text() string {
	switch {
	case c.Result == resultDifferent:
		return "DIFFERENT: " + c.differences()
	case c.Result == resultNotCompared:
		return fmt.Sprintf("not compared: %s; %s", c.Why, c.ends())
	case c.Result == resultPartly:
		return "compared only " + c.brokenEnds()
	case c.even():
		return ""
	}
	return "equal, each as far as it goes: " + c.ends()
}

func (c *comparison) ends() string {
	var ends []string
	for _, r := range c.Replicas {
		ends = append(ends, fmt.Sprintf("%s has [%d, %d)", r.Dir, r.Start, r.HighWatermark))
	}
	return strings.Join(ends, ", ")
}

func (c *comparison) brokenEnds() string {
	var ends []string
	for _, r := range c.Replicas {
		if r.Broken != "" {
			ends = append(ends, fmt.Sprintf("up to %d of %d, as %s cannot be read further", r.HighWatermark, c.End, r.Dir))
		}
	}
	return strings.Join(ends, ", ")
}

// differences names the replicas that are not as the longest one, which may be
// the wrong one itself.
func (c *comparison) differences() string {
	var as, others []string
	for _, r := range c.Replicas {
		if r.Same {
			as = append(as, r.Dir)
		} else {
			others = append(others, fmt.Sprintf("%s below offset %d", r.Dir, r.HighWatermark))
		}
	}
	return fmt.Sprintf("%s from %s", strings.Join(others, ", "), strings.Join(as, " and "))
}

// even reports whether no replica knows more than another.
func (c *comparison) even() bool {
	for _, r := range c.Replicas {
		if r.HighWatermark != c.End {
			return false
		}
	}
	return true
}

// summary counts the partitions by result. It claims equality of those only that
// were compared.
func (all *inspection) summary() string {
	by := map[string]int{}
	for _, c := range all.Compared {
		by[c.Result]++
	}
	text := fmt.Sprintf("%d of %d partitions are equal on all replicas given, each as far as it goes", by[resultEqual], len(all.Compared))
	for _, of := range []struct{ result, text string }{
		{resultDifferent, "different"},
		{resultPartly, "compared only in part"},
		{resultNotCompared, "not compared"},
	} {
		if n := by[of.result]; n > 0 {
			text += fmt.Sprintf("; %s: %d", of.text, n)
		}
	}
	return text
}
