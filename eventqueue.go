package stele

import (
	"slices"

	"github.com/stelelog/stele/membership"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/topic"
)

// What parts of the node tell one by one, for nothing shows it afterwards: it waits in
// a queue for the host.

// queuedAtMost is how much of what leaders here tell waits for a slow host.
const queuedAtMost = 256

// onMembership is what the steward calls; nil if nobody wants to know.
func (l *eventLoop) onMembership() func(membership.Event) {
	f := l.events.MembershipNoticed
	if f == nil {
		return nil
	}
	return func(e membership.Event) {
		l.enqueue(func() { l.tell(membershipNoticed, func() { f(e) }) })
	}
}

// onMove is what the mover calls; nil if nobody wants to know.
func (l *eventLoop) onMove() func(topic.MoveProgress) {
	f := l.events.MoveChanged
	if f == nil {
		return nil
	}
	return func(p topic.MoveProgress) {
		l.enqueue(func() { l.tell(moveChanged, func() { f(p) }) })
	}
}

// onDamage is what the scrubber calls; nil if nobody wants to know.
func (l *eventLoop) onDamage() func(topic.DamageChange) {
	f := l.events.DamageChanged
	if f == nil {
		return nil
	}
	return func(d topic.DamageChange) {
		l.enqueue(func() { l.tell(damageChanged, func() { f(d) }) })
	}
}

// onReclaimed and onReclaimRefused are what the sweeper calls; nil if nobody wants
// to know.
func (l *eventLoop) onReclaimed() func(topic.Reclaimed) {
	f := l.events.Reclaimed
	if f == nil {
		return nil
	}
	return func(r topic.Reclaimed) {
		l.enqueue(func() { l.tell(reclaimed, func() { f(r) }) })
	}
}

func (l *eventLoop) onReclaimRefused() func(topic.ReclaimRefusal) {
	f := l.events.ReclaimRefused
	if f == nil {
		return nil
	}
	return func(r topic.ReclaimRefusal) {
		l.enqueue(func() { l.tell(reclaimRefused, func() { f(r) }) })
	}
}

// onQuarantined and onRestored are what the sweeper and restores call; nil if nobody
// wants to know.
func (l *eventLoop) onQuarantined() func(topic.Quarantined) {
	f := l.events.Quarantined
	if f == nil {
		return nil
	}
	return func(q topic.Quarantined) {
		l.enqueue(func() { l.tell(quarantined, func() { f(q) }) })
	}
}

func (l *eventLoop) onRestored() func(topic.Restored) {
	f := l.events.Restored
	if f == nil {
		return nil
	}
	return func(r topic.Restored) {
		l.enqueue(func() { l.tell(restored, func() { f(r) }) })
	}
}

// onMetadataSplit is what the metadata calls; nil if nobody wants to know.
func (l *eventLoop) onMetadataSplit() func(metastore.StateSplit) {
	f := l.events.MetadataSplit
	if f == nil {
		return nil
	}
	return func(s metastore.StateSplit) {
		l.enqueue(func() { l.tell(metadataSplit, func() { f(s) }) })
	}
}

// enqueue keeps what is to be told, and drops the oldest of too much.
func (l *eventLoop) enqueue(tell func()) {
	l.mu.Lock()
	if len(l.mu.queue) >= queuedAtMost {
		l.mu.queue = slices.Delete(l.mu.queue, 0, 1)
		l.superseded.Add(1)
	}
	l.mu.queue = append(l.mu.queue, tell)
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// tellQueued tells what leaders here told.
func (l *eventLoop) tellQueued() {
	l.mu.Lock()
	queue := l.mu.queue
	l.mu.queue = nil
	l.mu.Unlock()
	for _, tell := range queue {
		tell()
	}
}
