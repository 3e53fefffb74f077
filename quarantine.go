package stele

import (
	"context"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

// The nouns of the quarantine: see Node.Quarantine.
type (
	// Quarantined is a directory in quarantine.
	Quarantined = topic.Quarantined
	// QuarantineReason is why, and since when, a directory is in quarantine.
	QuarantineReason = storage.Reason
	// QuarantineKind is what kind of reason that is.
	QuarantineKind = storage.ReasonKind
	// QuarantinedLog is a partition's log in a directory in quarantine.
	QuarantinedLog = storage.QuarantinedLog
	// Fate is what the metadata here say of a directory in quarantine.
	Fate = topic.Fate
	// QuarantineSource names a log in quarantine.
	QuarantineSource = topic.QuarantineSource
	// QuarantineReader reads the records of a log in quarantine.
	QuarantineReader = topic.QuarantineReader
	// ReadRecord is a record and its offset.
	ReadRecord = topic.ReadRecord
	// AdoptConfig says what a directory without a marker is: see Adopt.
	AdoptConfig = topic.AdoptConfig
	// Adopted is a directory that has the marker that a person gave it.
	Adopted = storage.Adopted
	// AdoptError refuses an adoption. Nothing was changed.
	AdoptError = storage.AdoptError
	// RestoreConfig says what Node.RestoreQuarantined restores.
	RestoreConfig = topic.RestoreConfig
	// Restored is what a restore has done, and what Events.Restored tells.
	Restored = topic.Restored
	// RestoredPartition is what a restore has done for one partition.
	RestoredPartition = topic.RestoredPartition
	// LostRange is a part of a log in quarantine that cannot be read.
	LostRange = topic.LostRange

	// QuarantineDamageError: a log in quarantine cannot be read from a place on.
	QuarantineDamageError = topic.QuarantineDamageError
	// ReclaimError: a directory in quarantine was not reclaimed.
	ReclaimError = topic.ReclaimError
	// RestoreError: a restore did not come to its end.
	RestoreError = topic.RestoreError
	// ConfirmError: it is not confirmed that something is over.
	ConfirmError = metastore.ConfirmError
)

// What the metadata here say of a directory in quarantine.
const (
	FateDeleted Fate = topic.FateDeleted // its topic was deleted
	FateLives   Fate = topic.FateLives   // its topic is there
	FateUnknown Fate = topic.FateUnknown // they know no topic of this life
	FateNone    Fate = topic.FateNone    // its name is no topic's
	FateUnread  Fate = topic.FateUnread  // they have not caught up
)

// Why a directory in quarantine is not reclaimed (ReclaimError.Reason).
const (
	ReclaimNameless    = topic.QuarantineNameless    // its name is no topic's life
	ReclaimUnknown     = topic.QuarantineUnknown     // nobody can prove that it is over
	ReclaimLives       = topic.QuarantineLives       // its topic is there
	ReclaimForeign     = topic.QuarantineForeign     // its marker says otherwise
	ReclaimUnconfirmed = topic.QuarantineUnconfirmed // not confirmed, for now
	ReclaimBusy        = topic.QuarantineBusy        // it is being read
)

// Why a restore does not come to its end (RestoreError.Reason).
const (
	RestoreNothing     = topic.RestoreNothing     // there is no log
	RestoreMixed       = topic.RestoreMixed       // of more than one life of a topic
	RestoreLost        = topic.RestoreLost        // damaged or missing, and not Partial
	RestoreDiffers     = topic.RestoreDiffers     // the topic holds something else
	RestoreInterrupted = topic.RestoreInterrupted // go on with Resume
)

// ErrNotQuarantined: nothing of that name is in quarantine, or no longer. It is
// Refused.
var ErrNotQuarantined = storage.ErrNotQuarantined

// Quarantine lists what is in quarantine on this node, by name: directories that may
// not be served, and are kept. Each says why and since when it is there (Reason), how
// large it is, whose it is, and what the metadata here say of it (Fate). It asks no
// other node. Errors are Retry.
//
// What a deleted topic left goes by itself (Config.SweepInterval); all else waits for
// a person, who may look at it (ReadQuarantined), have its records back
// (RestoreQuarantined), or give it up (ReclaimQuarantined). go doc of package topic
// has more.
func (n *Node) Quarantine(ctx context.Context) ([]Quarantined, error) {
	p, err := n.serving(ctx, "Node.Quarantine")
	if err != nil {
		return nil, err
	}
	return p.topics.Quarantine(ctx)
}

// ReadQuarantined opens a log in quarantine, to look at its records: all that this
// node had applied of the partition, whole and in order, or up to where it is damaged
// (*QuarantineDamageError). It changes nothing and asks nobody. While the reader is
// open the directory is not reclaimed: close it. Errors: ErrNotQuarantined (Refused);
// what the disk says (Retry).
func (n *Node) ReadQuarantined(ctx context.Context, from QuarantineSource) (*QuarantineReader, error) {
	p, err := n.serving(ctx, "Node.ReadQuarantined")
	if err != nil {
		return nil, err
	}
	return p.topics.ReadQuarantined(ctx, from)
}

// RestoreQuarantined makes a new topic of what logs in quarantine on this node hold:
// each partition in order, with keys, values, headers and timestamps, replicated as
// whatever is produced. The directories stay. What was done is said with an error,
// too; with RestoreInterrupted (Unknown), RestoreConfig.Resume goes on.
//
//	Refused  *RestoreError, ErrNotQuarantined, ErrTopicExists, *InvalidError
//	Retry    nothing was made: what the disk says, ctx ended
//	Unknown  *RestoreError with RestoreInterrupted; the topic's creation
func (n *Node) RestoreQuarantined(ctx context.Context, cfg RestoreConfig) (Restored, error) {
	p, err := n.serving(ctx, "Node.RestoreQuarantined")
	if err != nil {
		return Restored{}, err
	}
	return p.topics.RestoreQuarantined(ctx, cfg)
}

// ReclaimQuarantined destroys one directory in quarantine, named in full, for ever:
// if a majority of the voters on the metadata confirm that the topic's life is over,
// or, of one replica's, that it was removed, and its group says so too. It takes what
// waits for a person as well.
//
// What nobody can confirm stays: of a life that the metadata do not know no majority
// can say that it is over. Such a directory can be moved away, or removed, while the
// node is stopped. So is it with what a forced recovery holds, until EndHold.
//
// Errors: *ReclaimError, Retry or Refused; ErrNotQuarantined (Refused); what the disk
// says (Retry).
func (n *Node) ReclaimQuarantined(ctx context.Context, dir string) (Reclaimed, error) {
	p, err := n.serving(ctx, "Node.ReclaimQuarantined")
	if err != nil {
		return Reclaimed{}, err
	}
	return p.topics.ReclaimQuarantined(ctx, dir)
}

// Adopt gives a directory without a marker, which is on a node that does not run, the one
// that a person says it should have: of that topic, and that life of it. It does so only
// if nothing that is left contradicts: the directory's name, every frame of every log, the
// incarnation in every batch, and what the node's journal knows. Where a node does not
// find a marker it moves the directory to quarantine, and never adopts it by itself.
//
// It does not put the directory back into service: a replica votes, and acknowledges, and
// nobody can say that nothing is missing behind what this one holds. The directory stays
// in quarantine, or is moved there; RestoreQuarantined makes a topic of its records once
// the node runs. On nil that is durable; it may be repeated. AdoptConfig.At is now, unless
// it is set. go doc of storage.Adopt has more.
//
//	Retry    ErrLocked: the node runs; what the disk says; ctx ended
//	Refused  *NilContextError, *AdoptError, ErrNotQuarantined: nothing was changed; what is
//	         wrong with the node's directory as a whole
func Adopt(ctx context.Context, cfg AdoptConfig) (Adopted, error) {
	if err := needs(ctx, "Adopt"); err != nil {
		return Adopted{}, err
	}
	if cfg.At.IsZero() {
		cfg.At = clock.System().Now()
	}
	return topic.Adopt(ctx, cfg)
}

// quarantineKinds are the kinds that have series of metrics; others count as other.
var quarantineKinds = [...]QuarantineKind{
	storage.ReasonOther, storage.ReasonDeleted, storage.ReasonUnknown, storage.ReasonMovedAway, storage.ReasonLonger,
	storage.ReasonMisnamed, storage.ReasonUnmarked, storage.ReasonForeign, storage.ReasonDamaged, storage.ReasonAdopted, storage.ReasonRecovery,
}
