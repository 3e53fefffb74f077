package membership

import (
	"bytes"
	"maps"
	"slices"
	"time"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// tenure is what a leader remembers of one leadership, and of nobody else's:
// whom it heard, who asked for what, whose call failed. It is pure: all times
// are handed in, as durations since some moment of one monotonic clock. It is
// not safe for concurrent use.
//
// Silence is judged by this memory alone. Stamps in the metadata are of other
// leaders' wall clocks, which jump; they only order the heartbeats of one member.
type tenure struct {
	term  raftlog.Term
	begun bool          // a barrier passed: the leadership counts from since
	since time.Duration // when it began, or the process last awoke
	tick  time.Duration // of the last pulse

	heard    map[raftlog.NodeID]time.Duration
	newest   map[raftlog.NodeID]metastore.CommandType // announced in this leadership
	pending  map[raftlog.NodeID]bool                  // heard, and the heartbeat is not yet applied
	failed   map[raftlog.NodeID]time.Duration
	hands    map[raftlog.NodeID]time.Duration // asked for a vote last
	asked    map[raftlog.Nonce]*wish
	backlogs map[raftlog.NodeID]answered
}

// answered is an answer of a member, to a question that was asked when there were so
// many departures.
type answered struct {
	Backlog
	departures uint64
}

// wish is a nonce that wants the name of another life.
type wish struct {
	req    JoinRequest
	of     raftlog.NodeID
	at     time.Duration
	seen   metastore.Stamp
	burned bool // its refusal for good was proposed
}

// maxWishes bounds what strangers can make a leader remember.
const maxWishes = 1024

func newTenure(term raftlog.Term) *tenure {
	return &tenure{
		term: term, heard: map[raftlog.NodeID]time.Duration{}, newest: map[raftlog.NodeID]metastore.CommandType{},
		pending: map[raftlog.NodeID]bool{},
		failed:  map[raftlog.NodeID]time.Duration{}, hands: map[raftlog.NodeID]time.Duration{}, asked: map[raftlog.Nonce]*wish{}, backlogs: map[raftlog.NodeID]answered{},
	}
}

// termOf is the term of a leadership, 0: there is none.
func (t *tenure) termOf() raftlog.Term {
	if t == nil {
		return 0
	}
	return t.term
}

// begin: the barrier of this leadership passed.
func (t *tenure) begin(now time.Duration) {
	if !t.begun {
		t.begun, t.since, t.tick = true, now, now
	}
}

// pauseLimit is how late a pulse may be before the process counts as paused.
const pauseLimit = 5 * time.Second

// pulse is called about once a second. A process that was paused heard nobody
// meanwhile and must not hold that against them: its leadership counts anew.
func (t *tenure) pulse(now time.Duration) {
	if now-t.tick > pauseLimit {
		t.since = now
	}
	t.tick = now
}

// hear notes a sign of life of a member.
func (t *tenure) hear(node raftlog.NodeID, newest metastore.CommandType, now time.Duration) {
	t.heard[node] = now
	t.newest[node] = newest
	t.pending[node] = true
}

// silent is for how long a member has not been heard in this leadership.
func (t *tenure) silent(node raftlog.NodeID, now time.Duration) time.Duration {
	last := t.since
	if h, ok := t.heard[node]; ok {
		last = max(last, h)
	}
	return max(0, now-last)
}

// wants notes that a member asks for a vote.
func (t *tenure) wants(node raftlog.NodeID, now time.Duration) { t.hands[node] = now }

// asks reports whether a member asked for a vote within some time.
func (t *tenure) asks(node raftlog.NodeID, within, now time.Duration) bool {
	at, ok := t.hands[node]
	return ok && now-at <= within
}

// flushed notes that the stamps of heartbeats up to now are applied.
func (t *tenure) flushed(nodes []raftlog.NodeID, proposed time.Duration) {
	for _, n := range nodes {
		if t.heard[n] <= proposed {
			delete(t.pending, n)
		}
	}
}

// called notes the end of a call to a node.
func (t *tenure) called(node raftlog.NodeID, failed bool, now time.Duration) {
	if failed {
		t.failed[node] = now
	} else {
		delete(t.failed, node)
	}
}

// unreachable is how long ago the newest call failed, if none succeeded since;
// else negative.
func (t *tenure) unreachable(node raftlog.NodeID, now time.Duration) time.Duration {
	if at, ok := t.failed[node]; ok {
		return now - at
	}
	return -1
}

// ask notes that a life wants the name of another, the first time, and returns
// what is known since then. What was heard of the other before is applied, or so old
// that it never will be (old is not Pending): a stamp that comes later would be taken
// for a sign of life since.
func (t *tenure) ask(r JoinRequest, old *Known, now time.Duration) Asked {
	w := t.asked[r.Nonce]
	if w == nil || w.of != old.Node {
		if len(t.asked) >= maxWishes {
			t.forgetOldestWish()
		}
		w = &wish{req: r, of: old.Node, at: now, seen: old.Liveness.Stamp}
		t.asked[r.Nonce] = w
		delete(t.pending, old.Node) // it is none by now
	}
	return Asked{Seen: w.seen, Heard: t.heardSince(w)}
}

func (t *tenure) heardSince(w *wish) bool {
	heard, ok := t.heard[w.of]
	return ok && heard > w.at
}

// wanted is the newest command that a life applies which asked for the place of a
// member, and since when that was not heard; 0: there is none.
func (t *tenure) wanted(node raftlog.NodeID) (newest metastore.CommandType) {
	for _, w := range t.asked {
		if w.of == node && !t.heardSince(w) {
			newest = max(newest, w.req.Newest)
		}
	}
	return newest
}

// burnt returns the wishes that are to be refused for good, each once: the other
// life spoke, and the stamp of that is applied. Whoever leads later knows nothing
// of them (J17).
func (t *tenure) burnt(f *Facts) (burnt []metastore.Admission) {
	for _, nonce := range slices.SortedFunc(maps.Keys(t.asked), func(a, b raftlog.Nonce) int { return bytes.Compare(a[:], b[:]) }) {
		w := t.asked[nonce]
		old := f.member(w.of)
		if old == nil || w.burned || !t.heardSince(w) || old.Liveness.Stamp <= w.seen {
			continue
		}
		w.burned = true
		burnt = append(burnt, metastore.Admission{
			Name: w.req.Name, Nonce: nonce, Addr: w.req.Addr, Newest: w.req.Newest, Observer: w.req.Observer,
			Replaces: w.of, Seen: w.seen,
		})
	}
	return burnt
}

func (t *tenure) forgetOldestWish() {
	var oldest raftlog.Nonce
	first := true
	for n, w := range t.asked {
		if first || w.at < t.asked[oldest].at {
			oldest, first = n, false
		}
	}
	delete(t.asked, oldest)
}

// backlogOf returns the last answer of a member that drains. What it answered
// before it stayed after all says nothing: it may have taken records in since, however
// soon it was to leave again (D1).
func (t *tenure) backlogOf(k *Known, departures uint64) Backlog {
	if t == nil {
		return Backlog{}
	}
	if !k.Liveness.Draining() {
		delete(t.backlogs, k.Node)
	}
	b := t.backlogs[k.Node]
	if b.departures != departures {
		return Backlog{}
	}
	return b.Backlog
}
