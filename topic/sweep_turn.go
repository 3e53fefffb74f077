package topic

import (
	"slices"
	"time"
)

// turns are those of what could not be reclaimed so far.
type turns map[remains]*turn

// turn is when something was tried last, and is tried again.
type turn struct {
	told  string        // why it was refused
	at    time.Time     // when it was tried last, in vain; zero: never
	pause time.Duration // from then on; 0: it was not refused for what it is itself
}

func (t turns) of(what remains) *turn {
	if t[what] == nil {
		t[what] = &turn{}
	}
	return t[what]
}

// keep forgets what is not here any more, and returns it.
func (t turns) keep(all []remains) (gone []remains) {
	here := make(map[remains]bool, len(all))
	for _, what := range all {
		here[what] = true
	}
	for what := range t {
		if !here[what] {
			delete(t, what)
			gone = append(gone, what)
		}
	}
	return gone
}

// due returns what is to be tried now: first what was never tried, then what was tried
// longest ago. With news of the metadata all pauses begin anew.
func (t turns) due(all []remains, now time.Time, news bool) (due []remains) {
	last := map[remains]time.Time{}
	for _, what := range all {
		if turn := t[what]; turn != nil {
			if news {
				turn.pause = min(turn.pause, firstSweepWait)
			}
			if now.Before(turn.at.Add(turn.pause)) {
				continue
			}
			last[what] = turn.at
		}
		due = append(due, what)
	}
	slices.SortStableFunc(due, func(a, b remains) int { return last[a].Compare(last[b]) })
	return due
}

// refused notes that something was tried in vain; own: for what it is itself.
func (t turns) refused(what remains, now time.Time, own bool) {
	turn := t.of(what)
	turn.at = now
	if own {
		turn.pause = min(max(2*turn.pause, firstSweepWait), lastSweepWait)
	}
}

// next returns how long it is until something is due that was refused; false: nothing
// was.
func (t turns) next(now time.Time) (wait time.Duration, any bool) {
	for _, turn := range t {
		if turn.pause == 0 {
			continue
		}
		if left := max(turn.at.Add(turn.pause).Sub(now), time.Millisecond); !any || left < wait {
			wait, any = left, true
		}
	}
	return wait, any
}
