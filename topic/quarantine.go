package topic

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// # Quarantine
//
// What may not be served is moved to quarantine, and what is over is reclaimed from
// there by itself (sweep.go). What stays waits for something, or for a person, who
// asks four things:
//
//	what is it?              Quarantine: why and since when it is there, how large it
//	                         is, and what the metadata say of it (Fate)
//	can I have its records?  ReadQuarantined, to look; RestoreQuarantined, to have
//	                         them as a new topic
//	may it go?               ReclaimQuarantined, which asks the cluster
//	may I say what it is?    Adopt, of one without a marker, while its node does not run:
//	                         then it can also be reclaimed
//
//	Fate      the metadata here say that               it goes
//	deleted   its topic was deleted                    by itself, when a majority of the voters confirms it;
//	                                                   by a call, if the kind of its Reason waits for a person
//	lives     its topic is there                       a replica's: when a majority and its own group say that
//	                                                   it was removed; a topic's: never
//	unknown   no topic of this life was ever there     never
//	none      (its name is no topic's)                 never
//	unread    nothing: they have not caught up         not now
//
// # What nobody can prove
//
// "Never" is meant: of an incarnation that the metadata do not know no majority can
// say that it is dead. It may be a topic's that a forced recovery lost, another
// cluster's, or one whose creation is still on its way; "there is none" may become
// false, and a proof must not. So no call of this module destroys it, on a running
// node or a stopped one. What is left is a person, who knows more than the cluster:
// it can be read and restored, and the directory can be moved or removed with the
// means of the system while the node is stopped. Nothing of the node needs it.
//
// What RestoreQuarantined makes is another topic, with an incarnation of its own.
// No call brings a quarantined directory back into service.

// Fate is what the metadata here say of a directory in quarantine. They may be old:
// it explains, and proves nothing.
type Fate string

// What the metadata here say of a directory in quarantine.
const (
	FateDeleted Fate = "deleted" // its topic was deleted
	FateLives   Fate = "lives"   // its topic is there
	FateUnknown Fate = "unknown" // they know no topic of this life
	FateNone    Fate = "none"    // its name is no topic's
	FateUnread  Fate = "unread"  // they have not caught up, or have failed
)

// Quarantined is a directory in quarantine.
type Quarantined struct {
	storage.QuarantineEntry
	Fate Fate
	// Kept is why it was not reclaimed when that was tried last; nil: it was not, or
	// it is about to go.
	Kept error
}

// Quarantine lists what is in quarantine on this node, by name. It asks nobody, and
// lists files: a directory that is destroyed meanwhile may be missing. Errors are
// Retry: what the disk says, ErrClosed, ctx.Err().
func (m *Manager) Quarantine(ctx context.Context) ([]Quarantined, error) {
	ctx, cancel, err := m.whileOpen(ctx)
	defer cancel()
	var all []Quarantined
	if err == nil {
		all, err = m.quarantine(ctx)
	}
	if err != nil {
		return nil, explain(ctx, readError(err), "list the quarantine")
	}
	return all, nil
}

func (m *Manager) quarantine(ctx context.Context) ([]Quarantined, error) {
	dirs, err := m.cfg.Store.Quarantined()
	if err != nil {
		return nil, err
	}
	all := make([]Quarantined, 0, len(dirs))
	for _, d := range dirs {
		if ctx.Err() != nil {
			return nil, endOf(ctx, raftlog.Retry(ctx.Err()))
		}
		e, err := m.cfg.Store.Describe(d.Dir)
		if errors.Is(err, storage.ErrNotQuarantined) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, Quarantined{e, m.fateOf(&e), m.kept.of(&e)})
	}
	return all, nil
}

// fateOf is what the metadata here say.
func (m *Manager) fateOf(e *storage.QuarantineEntry) Fate {
	if e.Incarnation.IsZero() {
		return FateNone
	}
	t, err := m.cfg.Meta.TopicByIncarnation(e.Incarnation)
	switch {
	case errors.Is(err, metastore.ErrTopicNotFound):
		return FateUnknown
	case err != nil:
		return FateUnread
	case t.State == metastore.TopicDeleted:
		return FateDeleted
	}
	return FateLives
}

// QuarantineReason is why a call about a directory in quarantine was refused.
type QuarantineReason string

// Why a call about a directory in quarantine was refused.
const (
	// QuarantineNameless: its name is not that of a topic's life, so that nobody
	// can be asked about it.
	QuarantineNameless QuarantineReason = "nameless"
	// QuarantineUnknown: the metadata know no topic of this life. Nobody can prove
	// that it is dead.
	QuarantineUnknown QuarantineReason = "unknown"
	// QuarantineLives: its topic is there, and the directory is not one replica's.
	QuarantineLives QuarantineReason = "lives"
	// QuarantineForeign: its marker does not say the same as its name.
	QuarantineForeign QuarantineReason = "foreign"
	// QuarantineUnconfirmed: it is not confirmed that it is over; Err says why not,
	// mostly a *metastore.ConfirmError.
	QuarantineUnconfirmed QuarantineReason = "unconfirmed"
	// QuarantineBusy: it is being read.
	QuarantineBusy QuarantineReason = "busy"
)

// ReclaimError says why a directory in quarantine was not reclaimed. Everything of
// it is where it was. Its outcome is Retry if that may change (unconfirmed, busy),
// else Refused.
type ReclaimError struct {
	Dir    string // relative to the node's directory
	Reason QuarantineReason
	Detail string // for a person
	Err    error  // what it was asked and not told, or nil
}

func (e *ReclaimError) Error() string {
	return fmt.Sprintf("topic: %s was not reclaimed: %s: %s", e.Dir, e.Reason, e.Detail)
}

// Is gives the error its outcome.
func (e *ReclaimError) Is(target error) bool {
	if e.Reason == QuarantineUnconfirmed || e.Reason == QuarantineBusy {
		return target == raftlog.ErrRetry
	}
	return target == raftlog.ErrRefused
}

// Unwrap gives the error behind it, without its outcome.
func (e *ReclaimError) Unwrap() error {
	if e.Err == nil {
		return nil
	}
	return withoutOutcome{e.Err}
}

// ReclaimQuarantined destroys one directory in quarantine, which is named in full,
// if it is confirmed to be over: by a majority of the voters on the metadata, and, if
// it is a replica's whose topic lives, by its own group. It also reclaims what waits
// for a person. On nil it is gone, durably.
//
// Errors: *ReclaimError; storage.ErrNotQuarantined (Refused); what the disk says
// (Retry): some of it may be gone then, and the call may be repeated.
func (m *Manager) ReclaimQuarantined(ctx context.Context, dir string) (Reclaimed, error) {
	ctx, cancel, err := m.whileOpen(ctx)
	defer cancel()
	var got Reclaimed
	if err == nil {
		got, err = m.reclaimQuarantined(ctx, dir)
	}
	return got, explain(ctx, err, "reclaim %q", dir)
}

func (m *Manager) reclaimQuarantined(ctx context.Context, dir string) (Reclaimed, error) {
	e, err := m.describe(dir)
	if err != nil {
		return Reclaimed{}, err
	}
	what, err := m.reclaimable(ctx, &e)
	if err != nil {
		return Reclaimed{}, err
	}
	if what.replica != 0 {
		if err := m.hasLeft(ctx, what); err != nil {
			return Reclaimed{}, unconfirmed(&e, err)
		}
	}
	p, err := m.cfg.Meta.Confirm(ctx, what.claim())
	if err != nil {
		return Reclaimed{}, unconfirmed(&e, err)
	}
	got := Reclaimed{Incarnation: e.Incarnation, Replica: what.replica}
	done, err := m.cfg.Store.DestroyQuarantined(p, e.Dir, what.group)
	got.Dirs, got.Bytes = done.Dirs, done.Bytes
	m.noteReclaimed(got)
	if len(got.Dirs) > 0 {
		m.aside.flash() // what the journal says of its replicas goes next
	}
	switch {
	case err != nil:
		return got, raftlog.Retry(withoutOutcome{err})
	case len(done.Kept) > 0:
		refused := &ReclaimError{Dir: e.Dir, Reason: QuarantineForeign, Detail: done.Kept[0].Reason}
		if done.Kept[0].Busy {
			refused.Reason = QuarantineBusy
		}
		return got, refused
	}
	return got, nil
}

func unconfirmed(e *storage.QuarantineEntry, err error) error {
	return &ReclaimError{Dir: e.Dir, Reason: QuarantineUnconfirmed, Detail: textOf(err), Err: err}
}

// describe looks at a directory that a caller named.
func (m *Manager) describe(dir string) (storage.QuarantineEntry, error) {
	e, err := m.cfg.Store.Describe(dir)
	if errors.Is(err, storage.ErrNotQuarantined) {
		return e, raftlog.Refused(err)
	}
	if err != nil {
		return e, raftlog.Retry(err)
	}
	return e, nil
}

// reclaimable returns what has to be confirmed before a directory goes, after a
// linearizable read.
func (m *Manager) reclaimable(ctx context.Context, e *storage.QuarantineEntry) (remains, error) {
	refuse := func(why QuarantineReason, format string, args ...any) (remains, error) {
		return remains{}, &ReclaimError{Dir: e.Dir, Reason: why, Detail: fmt.Sprintf(format, args...)}
	}
	if e.Incarnation.IsZero() {
		return refuse(QuarantineNameless, "its name is not that of a topic's life, about which the cluster could be asked")
	}
	if e.Foreign != nil && e.Files > 0 {
		return refuse(QuarantineForeign, "%v", e.Foreign)
	}
	if err := m.barrier(ctx); err != nil {
		return remains{}, unconfirmed(e, err)
	}
	t, err := m.cfg.Meta.TopicByIncarnation(e.Incarnation)
	switch {
	case errors.Is(err, metastore.ErrTopicNotFound):
		return refuse(QuarantineUnknown, "the metadata know no topic of the incarnation %v, so that nobody can prove that it is dead", e.Incarnation)
	case err != nil:
		return remains{}, unconfirmed(e, err)
	case t.State == metastore.TopicDeleted:
		return remains{incarnation: e.Incarnation}, nil
	case !e.OfReplica:
		return refuse(QuarantineLives, "the topic %q lives, and the directory is not that of one replica", t.Name)
	case int(e.Partition) >= len(t.Partitions):
		return refuse(QuarantineUnknown, "the topic %q has no partition %d", t.Name, e.Partition)
	}
	return remains{incarnation: e.Incarnation, replica: e.Replica, group: t.Partitions[e.Partition].Group, partition: e.Partition}, nil
}

// noteReclaimed tells of what was reclaimed, by the sweeper or by a call.
func (m *Manager) noteReclaimed(got Reclaimed) {
	if len(got.Dirs) == 0 {
		return
	}
	m.stats.reclaimedDirs.Add(uint64(len(got.Dirs)))
	m.stats.reclaimedBytes.Add(uint64(got.Bytes))
	m.cfg.Logger.Info("what was set aside was confirmed to be over, and is gone",
		zap.Stringer("incarnation", got.Incarnation), zap.Stringer("replica", got.Replica), zap.Strings("dirs", got.Dirs), zap.Int64("bytes", got.Bytes))
	if m.cfg.OnReclaimed != nil {
		m.kept.telling.Lock()
		defer m.kept.telling.Unlock()
		m.cfg.OnReclaimed(got)
	}
}
