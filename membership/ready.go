package membership

import "time"

// ReadyFacts is what readiness rests on, at one moment on one node.
type ReadyFacts struct {
	// Removed: this node was told that it is no member any more.
	Removed bool
	// Leader: group 1 has a leader in view of this node; Leads: it is this node.
	Leader, Leads bool
	// SinceContact is how long ago this node heard the present leader of the
	// present term; negative: not yet.
	SinceContact time.Duration
	// CaughtUp is the latch of the metadata.
	CaughtUp bool
}

// Unready is why a node is not ready.
type Unready uint8

const (
	// UnreadyNot: it is ready.
	UnreadyNot Unready = iota
	// UnreadyRemoved: it is no member any more, for ever.
	UnreadyRemoved
	// UnreadyNoLeader: it sees no leader of the metadata.
	UnreadyNoLeader
	// UnreadySilent: it has not heard the leader for the contact timeout.
	UnreadySilent
	// UnreadyCatchingUp: its metadata may be old.
	UnreadyCatchingUp
)

func (u Unready) String() string {
	switch u {
	case UnreadyNot:
		return "ready"
	case UnreadyRemoved:
		return "removed from the cluster"
	case UnreadyNoLeader:
		return "no leader of the metadata in view"
	case UnreadySilent:
		return "the leader of the metadata is silent"
	default:
		return "catching up"
	}
}

// Ready decides whether a node can serve: it leads, or heard the leader within
// contact, and has caught up once. Time alone never makes it ready (H8); a
// removed node never is (H9).
func Ready(f ReadyFacts, contact time.Duration) Unready {
	switch {
	case f.Removed:
		return UnreadyRemoved
	case !f.Leader && !f.Leads:
		return UnreadyNoLeader
	case !f.Leads && (f.SinceContact < 0 || f.SinceContact > contact):
		return UnreadySilent
	case !f.CaughtUp:
		return UnreadyCatchingUp
	}
	return UnreadyNot
}
