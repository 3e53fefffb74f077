package transport

import (
	"container/list"
	"errors"
	"net"
	"net/netip"
	"sync"
)

var (
	errCrowded = errors.New("transport: too many connections without a handshake")
	errTooSlow = errors.New("transport: handshake took too long")
)

// strangers are connections that have not said who they are. When there are
// too many, the oldest one of the host that has the most goes: an honest peer
// needs milliseconds and few places, so that a flood from elsewhere cannot push
// it out at all, and one from its own host not by merely holding places.
type strangers struct {
	max int

	mu     sync.Mutex
	all    *list.List     // of *stranger, oldest first
	byHost map[string]int // how many of all
	// ending counts admitted ones that have not left: all, and the dropped ones
	// whose goroutines have not noticed yet.
	ending int
}

// crowd is how many may be ending, in multiples of max. Goroutines notice at
// once that they were dropped, unless the machine is so busy that more of them
// would not help.
const crowd = 8

type stranger struct {
	raw  net.Conn
	host string
	why  error // set before raw is closed by somebody else
	elem *list.Element
}

func newStrangers(limit int) *strangers {
	return &strangers{max: limit, all: list.New(), byHost: make(map[string]int)}
}

// admit never waits. It returns nil if there is no room even for ending one.
func (s *strangers) admit(raw net.Conn) *stranger {
	st := &stranger{raw: raw, host: hostOf(raw.RemoteAddr())}
	s.mu.Lock()
	if s.ending >= crowd*s.max {
		s.mu.Unlock()
		return nil
	}
	s.ending++
	var out *stranger
	if s.all.Len() >= s.max {
		out = s.crowderLocked()
		s.removeLocked(out, errCrowded)
	}
	st.elem = s.all.PushBack(st)
	s.byHost[st.host]++
	s.mu.Unlock()
	if out != nil {
		_ = out.raw.Close()
	}
	return st
}

// crowderLocked is the oldest stranger of the host that has the most.
func (s *strangers) crowderLocked() *stranger {
	var out *stranger
	for e := s.all.Front(); e != nil; e = e.Next() {
		st := e.Value.(*stranger)
		if out == nil || s.byHost[st.host] > s.byHost[out.host] {
			out = st
		}
		if s.byHost[out.host] > s.all.Len()/2 {
			break // none has more
		}
	}
	return out
}

func (s *strangers) drop(st *stranger, why error) {
	s.mu.Lock()
	was := s.removeLocked(st, why)
	s.mu.Unlock()
	if was {
		_ = st.raw.Close()
	}
}

func (s *strangers) removeLocked(st *stranger, why error) bool {
	if st.elem == nil {
		return false
	}
	s.all.Remove(st.elem)
	st.elem, st.why = nil, why
	if s.byHost[st.host]--; s.byHost[st.host] == 0 {
		delete(s.byHost, st.host)
	}
	return true
}

// leave ends being a stranger, once; it returns why the connection was dropped, nil
// if it was not.
func (s *strangers) leave(st *stranger) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending--
	s.removeLocked(st, st.why)
	return st.why
}

// hostOf is what strangers are counted and logged by: an address without its
// port, which changes with every try; of IPv6 the network of 64 bits, all of
// whose addresses one host may have.
func hostOf(a net.Addr) string {
	if a == nil {
		return "unknown" // a connection of the host's that does not say
	}
	host, _, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return host
	}
	if ip = ip.Unmap().WithZone(""); ip.Is4() {
		return ip.String()
	}
	network, _ := ip.Prefix(64) // 64 fits every IPv6 address
	return network.String()
}
