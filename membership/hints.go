package membership

import "slices"

// Limits of what a walk believes.
const (
	maxHints   = 4   // "the leader is there" answers that one attempt follows
	maxLeaders = 8   // addresses of leaders that are remembered
	maxAddr    = 261 // bytes of an address
)

// Leaders are the addresses at which leaders were found or said to be: at most
// 8, newest first, each once. The zero value has none.
type Leaders struct{ addrs []string }

// Remember makes addr the newest.
func (l *Leaders) Remember(addr string) {
	at := slices.Index(l.addrs, addr)
	if at < 0 {
		at = min(len(l.addrs), maxLeaders-1)
	}
	l.addrs = slices.Concat([]string{addr}, l.addrs[:at], l.addrs[min(at+1, len(l.addrs)):])
}

// All returns the addresses, newest first.
func (l *Leaders) All() []string { return slices.Clone(l.addrs) }

// Walk is one attempt to find the leader: remembered leaders, then peers, each
// asked once; an answer that names the leader is followed at once, at most four
// times. No answer ends a walk but the leader's.
type Walk struct {
	check func(addr string) bool
	queue []string
	asked []string
	hints int
}

// NewWalk begins an attempt. check is the transport's test of an address, nil:
// every address is good. self is not asked.
func NewWalk(peers []string, leaders *Leaders, self string, check func(string) bool) *Walk {
	w := &Walk{check: check, queue: slices.Concat(leaders.addrs, peers)}
	if self != "" {
		w.asked = append(w.asked, self)
	}
	return w
}

// Next returns whom to ask next; none: the attempt is over.
func (w *Walk) Next() (addr string, ok bool) {
	for len(w.queue) > 0 {
		addr, w.queue = w.queue[0], w.queue[1:]
		if addr != "" && !slices.Contains(w.asked, addr) {
			w.asked = append(w.asked, addr)
			return addr, true
		}
	}
	return "", false
}

// Hint takes an answer that names the leader's address, and reports whether the
// walk goes there. A hint that is no address, one too many, or one that was
// asked already changes nothing.
func (w *Walk) Hint(addr string) bool {
	if w.hints == maxHints || !w.Good(addr) || slices.Contains(w.asked, addr) {
		return false
	}
	w.hints++
	w.queue = slices.Insert(w.queue, 0, addr)
	return true
}

// Good reports whether addr can be an address.
func (w *Walk) Good(addr string) bool {
	return addr != "" && len(addr) <= maxAddr && (w.check == nil || w.check(addr))
}
