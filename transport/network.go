package transport

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/stelelog/stele/internal/clock"
)

// Faults describe a link in one direction. Probabilities are 0 to 1. The zero
// value is a perfect network without delay.
type Faults struct {
	// Every delivery takes a time between MinLatency and MaxLatency.
	MinLatency, MaxLatency time.Duration
	// Loss drops a frame, Duplicate delivers it twice, Reorder lets later
	// frames overtake it, Corrupt flips one bit of its encoding, which the
	// receiver's checksum then finds.
	Loss, Duplicate, Reorder, Corrupt float64
	// CallLoss loses a request or a response; the caller hears nothing until
	// its deadline. Corrupt breaks a call too, at once, as a connection would.
	CallLoss float64
}

// Network connects Memory transports. All of its faults are drawn from its
// seed, per link and class, so that what one link does is not changed by
// traffic of another. Safe for concurrent use. Inside a testing/synctest
// bubble it runs in virtual time; create it there.
type Network struct {
	seed uint64
	clk  clock.Clock

	mu struct {
		sync.Mutex
		nodes   map[string]*Memory // started and not closed
		faults  Faults
		cuts    map[direction]bool
		links   map[linkKey]*simLink
		streams map[*memConn]struct{}
		changed chan struct{} // closed and replaced by every Heal
	}
}

type direction struct{ from, to string }

type linkKey struct {
	direction
	lane lane
}

// simLink draws the fate of what one lane of one direction carries.
type simLink struct {
	rng *rand.Rand
	// last is when the latest frame that keeps the order arrives.
	last time.Time
}

// NewNetwork makes a network without faults; nil for clk is the system clock.
func NewNetwork(seed uint64, clk clock.Clock) *Network {
	if clk == nil {
		clk = clock.System()
	}
	n := &Network{seed: seed, clk: clk}
	n.mu.nodes = make(map[string]*Memory)
	n.mu.cuts = make(map[direction]bool)
	n.mu.links = make(map[linkKey]*simLink)
	n.mu.streams = make(map[*memConn]struct{})
	n.mu.changed = make(chan struct{})
	return n
}

// Transport makes a transport at addr, not started. After the one that had
// this address was closed, which stands for a crash, the new one takes its
// place; nothing that was in flight reaches it.
func (n *Network) Transport(addr string) *Memory { return newMemory(n, addr) }

// SetFaults replaces the faults of every link, for what is sent from now on.
func (n *Network) SetFaults(f Faults) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.faults = f
}

// Cut silences the direction from one address to another: nothing sent or in
// flight arrives, and nobody is told. Streams between the two stall and break
// after five seconds.
func (n *Network) Cut(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.cuts[direction{from, to}] = true
	for s := range n.mu.streams {
		if s.runs(from, to) {
			s.suspectLocked()
		}
	}
}

// Heal ends a Cut of this direction.
func (n *Network) Heal(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.mu.cuts, direction{from, to})
	n.announceLocked()
}

// HealAll ends every Cut.
func (n *Network) HealAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.mu.cuts)
	n.announceLocked()
}

func (n *Network) announceLocked() {
	close(n.mu.changed)
	n.mu.changed = make(chan struct{})
}

// isCut also returns a channel that is closed at the next Heal.
func (n *Network) isCut(from, to string) (bool, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.cuts[direction{from, to}], n.mu.changed
}

func (n *Network) register(m *Memory) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.nodes[m.addr] != nil {
		return fmt.Errorf("transport: address %s is in use", m.addr)
	}
	n.mu.nodes[m.addr] = m
	return nil
}

func (n *Network) unregister(m *Memory) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.nodes[m.addr] == m {
		delete(n.mu.nodes, m.addr)
	}
}

// node returns who listens at addr, nil if nobody does.
func (n *Network) node(addr string) *Memory {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.nodes[addr]
}

func (n *Network) linkLocked(from, to string, l lane) *simLink {
	key := linkKey{direction{from, to}, l}
	link := n.mu.links[key]
	if link == nil {
		h := fnv.New64a()
		fmt.Fprintf(h, "%d %q %q", l, from, to)
		link = &simLink{rng: rand.New(rand.NewPCG(n.seed, h.Sum64()))}
		n.mu.links[key] = link
	}
	return link
}

// fate is what happens to one thing on its way.
type fate struct {
	at      time.Time // arrival
	lost    bool
	corrupt bool
	bit     uint64 // which bit flips, modulo the length
}

// frameFates draws what happens to a frame: no, one or two arrivals.
func (n *Network) frameFates(from, to string, class Class) []fate {
	n.mu.Lock()
	defer n.mu.Unlock()
	f, link := n.mu.faults, n.linkLocked(from, to, lane(class))
	if n.mu.cuts[direction{from, to}] || link.chance(f.Loss) {
		return nil
	}
	at := n.clk.Now().Add(link.latency(f))
	if link.chance(f.Reorder) {
		at = at.Add(1 + time.Duration(link.rng.Int64N(int64(4*max(f.MaxLatency, time.Millisecond)))))
	} else {
		if at.Before(link.last) {
			at = link.last
		}
		link.last = at
	}
	fates := []fate{link.damage(f, at)}
	if link.chance(f.Duplicate) {
		fates = append(fates, link.damage(f, at.Add(link.latency(f))))
	}
	return fates
}

// legFate draws what happens to a request or a response.
func (n *Network) legFate(from, to string) fate {
	n.mu.Lock()
	defer n.mu.Unlock()
	f, link := n.mu.faults, n.linkLocked(from, to, laneCalls)
	ft := link.damage(f, n.clk.Now().Add(link.latency(f)))
	ft.lost = n.mu.cuts[direction{from, to}] || link.chance(f.CallLoss)
	return ft
}

// streamArrival draws when bytes of a stream arrive.
func (n *Network) streamArrival(from, to string) time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.clk.Now().Add(n.linkLocked(from, to, laneStream).latency(n.mu.faults))
}

func (l *simLink) chance(p float64) bool { return p > 0 && l.rng.Float64() < p }

func (l *simLink) latency(f Faults) time.Duration {
	if f.MaxLatency <= f.MinLatency {
		return f.MinLatency
	}
	return f.MinLatency + time.Duration(l.rng.Int64N(int64(f.MaxLatency-f.MinLatency)+1))
}

func (l *simLink) damage(f Faults, at time.Time) fate {
	ft := fate{at: at, corrupt: l.chance(f.Corrupt)}
	if ft.corrupt {
		ft.bit = l.rng.Uint64()
	}
	return ft
}

// apply flips the bit, if any, in place.
func (ft fate) apply(b []byte) {
	if ft.corrupt {
		bit := ft.bit % uint64(8*len(b))
		b[bit/8] ^= 1 << (bit % 8)
	}
}
