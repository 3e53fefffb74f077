package sim

import (
	"fmt"
	"strings"
)

// traceLines is how much of a run is shown when it fails.
const traceLines = 100

// traceEvent is formatted only if it is shown.
type traceEvent struct {
	at         int64
	who        string
	what       string
	a, b, c, d uint64
}

func (e traceEvent) String() string {
	return fmt.Sprintf("%10.3f ms  %-7s %-16s %d %d %d %d", float64(e.at)/1000, e.who, e.what, e.a, e.b, e.c, e.d)
}

// trace hashes all that happens and remembers the end of it.
type trace struct {
	hash uint64
	ring [traceLines]traceEvent
	n    int
}

func (t *trace) note(at int64, who, what string, a, b, c, d uint64) {
	h := mix(t.hash, uint64(at))
	for _, s := range [2]string{who, what} {
		for i := range len(s) {
			h = (h ^ uint64(s[i])) * 1099511628211
		}
	}
	t.hash = mix(mix(mix(mix(h, a), b), c), d)
	t.ring[t.n%traceLines] = traceEvent{at, who, what, a, b, c, d}
	t.n++
}

func (t *trace) tail() string {
	var b strings.Builder
	for i := max(0, t.n-traceLines); i < t.n; i++ {
		b.WriteString(t.ring[i%traceLines].String())
		b.WriteByte('\n')
	}
	return b.String()
}

// mix folds v into h: a permutation of h for every v.
func mix(h, v uint64) uint64 {
	h ^= v + 0x9e3779b97f4a7c15 + h<<6 + h>>2
	h *= 0xff51afd7ed558ccd
	return h ^ h>>32
}
