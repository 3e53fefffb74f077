package stele

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"iter"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/membership"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// The nouns of a forced recovery; see SurveyDir.
type (
	// Survey is what a stopped node's directory holds.
	Survey = membership.Survey
	// RecoveryPlan is what a forced recovery will do.
	RecoveryPlan = membership.RecoveryPlan
	// RecoveryError: a forced recovery was refused, and nothing was changed.
	RecoveryError = membership.RecoveryError
	// RecoveryRefusal is why.
	RecoveryRefusal = membership.RecoveryRefusal
	// RecoveringError: a forced recovery of the directory has begun and not ended.
	RecoveringError = storage.RecoveringError
	// Recovery is a forced recovery that the cluster went through.
	Recovery = metastore.Recovery
)

// Why a recovery is refused.
const (
	RefusedMajority = membership.RefusedMajority
	RefusedMixed    = membership.RefusedMixed
	RefusedNothing  = membership.RefusedNothing
	RefusedStranger = membership.RefusedStranger
	RefusedMismatch = membership.RefusedMismatch
	RefusedFenced   = membership.RefusedFenced
)

// SurveyDir reads the directory of a stopped node for a forced recovery: the last
// resort when the majority of a cluster's voters is lost for good, or of a
// partition's replicas, so that those that are left can never elect a leader. It has
// three steps:
//
//	SurveyDir       on each machine that is left, with the node's configuration
//	PlanRecovery    once, with all surveys
//	ApplyRecovery   on each of these machines, with the one plan
//
// Surveys and plans are values that travel as JSON. When the nodes are started
// again they are the cluster, in the next recovery epoch; the others can never
// return (see EpochFencedError), and their directories should be destroyed once
// nobody wants to read them any more. So be sure that they are lost: of a cluster
// that still serves, a recovery of some nodes of it fences all the others. And make
// one plan: two of the same epoch, each applied somewhere, make two clusters, which
// keep apart and say so, and of which one has to be given up.
//
// A node that stopped with metastore.ErrStateDiverged has metadata that no node is
// opened with any more (Survey.Damaged). It comes along, with its partitions, and gets
// the metadata of another one; alone it is not enough.
//
// Of cfg it needs Cluster, Name, Dir and FS. Nothing is changed, but LOCK is taken
// meanwhile. Errors: ErrLocked (Retry); Refused: *IdentityError, *RecoveringError,
// *DamageError, *FormatError.
func SurveyDir(cfg Config) (Survey, error) {
	cfg = cfg.withDefaults()
	s, err := surveyDir(&cfg)
	if err != nil {
		return Survey{}, refusedUnless(fmt.Errorf("stele: survey of %s: %w", cfg.Dir, err))
	}
	return s, nil
}

func surveyDir(cfg *Config) (_ Survey, err error) {
	if _, err := cfg.FS.Stat(cfg.Dir); err != nil {
		return Survey{}, err
	}
	lock, err := storage.LockDir(cfg.FS, cfg.Dir)
	if err != nil {
		return Survey{}, err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	off, err := storage.ReadOffline(cfg.FS, cfg.Dir)
	if err != nil {
		return Survey{}, err
	}
	id := &off.Identity
	if err := id.Unfinished(cfg.Dir); err != nil && id.Fenced == 0 { // else nothing was changed
		return Survey{}, err
	}
	if err := cfg.isOf(id); err != nil {
		return Survey{}, err
	}
	state, err := membership.DecodeState(id.Genesis)
	if err != nil {
		return Survey{}, err
	}
	place, _ := state.Place(id.Name, id.Nonce)
	s := Survey{
		Version: 1, Cluster: id.Cluster, ClusterID: membership.ID(id.ClusterID), Epoch: id.Epoch,
		Name: id.Name, Node: id.Node, Nonce: membership.ID(id.Nonce), Replica: place.Replica, Logs: []raftlog.LogEnd{},
		Fenced: id.Fenced, Awaits: membership.ID(id.Recovering.Plan),
	}
	if s.SegmentBytes, err = segmentBytesOf(cfg, place.SegmentBytes); err != nil {
		return Survey{}, err
	}
	meta, err := readMetadata(cfg, off, state, place.Replica)
	if err != nil {
		return Survey{}, err
	}
	s.Metadata, s.Plan, s.Damaged = membership.Surveyed(meta), meta.Plan, meta.Diverged != nil
	if r := state.Recovered; r != nil {
		s.Plan = r.Plan // its metadata may be those of before
	}
	for _, st := range off.Replicas {
		var machine raftlog.Index
		if st.Replica == place.Replica {
			machine = meta.Applied
		}
		s.Logs = append(s.Logs, raftlog.LogEndOf(st, machine))
	}
	return s, nil
}

// segmentBytesOf is what a directory began with; else if it says nothing.
func segmentBytesOf(cfg *Config, otherwise int64) (int64, error) {
	path := cfg.FS.PathJoin(cfg.Dir, metaName, settingsFile)
	text, err := readSettings(cfg.FS, path)
	if errors.Is(err, fs.ErrNotExist) {
		return otherwise, nil
	}
	if err != nil {
		return 0, err
	}
	s, err := decodeSettings(path, text)
	return s.segmentBytes, err
}

// isOf refuses a directory of another node than the configured one.
func (c *Config) isOf(id *storage.Identity) error {
	path := c.FS.PathJoin(c.Dir, "IDENTITY")
	switch {
	case id.Name != c.Name:
		return &IdentityError{Path: path, Field: "node name", Have: id.Name, Want: c.Name}
	case id.Cluster != c.Cluster:
		return &IdentityError{Path: path, Field: "cluster name", Have: id.Cluster, Want: c.Cluster}
	}
	return nil
}

// readMetadata reads the metadata as of the last entry of the node's own log.
func readMetadata(cfg *Config, off *storage.Offline, state membership.State, replica raftlog.ReplicaID) (*metastore.Offline, error) {
	var st storage.ReplicaState
	for _, have := range off.Replicas {
		if have.Replica == replica && have.Group == raftlog.MetadataGroup {
			st = have
		}
	}
	return metastore.ReadOffline(metastore.OfflineConfig{
		FS: cfg.FS, Dir: metaDB(cfg), Reset: st.Log.Reset, Genesis: genesisOf(state, cfg.Name, off.Identity.Nonce),
		Log: func(above raftlog.Index, conf raftlog.ConfState) iter.Seq2[raftlog.Entry, error] {
			return raftlog.EntriesAbove(st, above, conf, func(yield func(storage.Entry, error) bool) {
				for f, err := range off.Frames(replica) {
					e := storage.Entry{}
					if err == nil {
						e = storage.Entry{Index: f.Index, Term: f.Term, Kind: f.Kind, Data: f.Payload}
					}
					if !yield(e, err) {
						return
					}
				}
			})
		},
	})
}

// PlanRecovery decides what a forced recovery does to the nodes that were
// surveyed. Survey every directory that can still be read: what is in none of
// them is lost, and who is not surveyed can never return. Read the plan before it
// is applied: what it says is lost stays lost.
//
// *RecoveryError (Refused), with RefusedMajority if a majority of the cluster and of
// each partition is left: then all go on by themselves when they are started.
func PlanRecovery(surveys ...Survey) (*RecoveryPlan, error) {
	var id membership.ID
	_, _ = rand.Read(id[:]) // never fails: the runtime ends the process instead
	return membership.PlanRecovery(surveys, id, metastore.Stamp(clock.System().Now().UnixMilli()))
}

// ApplyRecovery makes the directory of a stopped node what the plan says. Until
// it returns nil no node can be opened on the directory, also not after a crash:
// apply the same plan again. Repeating it is harmless. Nothing is removed: what
// does not go on is set aside, in place or in quarantine.
//
// Of cfg it needs Cluster, Name, Dir, FS and JournalBytes. Errors:
// ErrLocked (Retry); Refused: *RecoveryError, with RefusedMismatch if the directory
// is not what was surveyed; *RecoveringError if another plan was begun; and those
// of Open. Any other error: the outcome is unknown, apply it again.
func ApplyRecovery(cfg Config, plan *RecoveryPlan) error {
	cfg = cfg.withDefaults()
	if err := plan.Check(); err != nil {
		return err
	}
	store, err := storage.Open(storage.Config{
		FS: cfg.FS, Dir: cfg.Dir, Name: cfg.Name, Cluster: cfg.Cluster,
		JournalFileSize: cfg.JournalBytes, SegmentSize: cmp.Or(cfg.SegmentBytes, defaultSegment), Logger: cfg.Logger.Named("storage"), Recover: true,
	})
	if err != nil {
		return refusedUnless(fmt.Errorf("stele: recover %s: %w", cfg.Dir, err))
	}
	r := &recovery{cfg: &cfg, store: store, plan: plan}
	if err := errors.Join(r.apply(), store.Close()); err != nil {
		return fmt.Errorf("stele: recover %s: %w", cfg.Dir, err)
	}
	return nil
}

// recovery applies a plan to one directory, in the order that package storage
// argues for.
type recovery struct {
	cfg   *Config
	store *storage.Store
	plan  *RecoveryPlan
	node  *membership.PlannedNode
	state membership.State
}

func (r *recovery) apply() error {
	done, err := r.check()
	if done || err != nil {
		return err
	}
	frames, err := r.frames()
	if err != nil {
		return err
	}
	id := r.store.Identity()
	id.Fenced = 0
	id.Recovering = storage.Recovering{Epoch: r.plan.To, Plan: r.plan.ID}
	if err := r.store.SetIdentity(id); err != nil {
		return raftlog.Unknown(err)
	}
	if len(frames) > 0 {
		if err := r.store.WriteRound(frames); err != nil {
			return raftlog.Unknown(err)
		}
	}
	if !r.node.GoesOn {
		if err := r.beginAnew(); err != nil {
			return raftlog.Unknown(err)
		}
	}
	id.Recovering = storage.Recovering{}
	id.Epoch, id.Genesis = r.plan.To, r.plan.State(r.state, r.node).Encode()
	if err := r.store.SetIdentity(id); err != nil {
		return raftlog.Unknown(err)
	}
	return nil
}

// check refuses a directory that the plan is not for; done: it was applied.
func (r *recovery) check() (done bool, err error) {
	id := r.store.Identity()
	mismatch := func(format string, args ...any) (bool, error) {
		return false, &RecoveryError{Code: RefusedMismatch, Reason: fmt.Sprintf(format, args...)}
	}
	if r.state, err = membership.DecodeState(id.Genesis); err != nil {
		return false, refusedUnless(err)
	}
	begun := id.Recovering
	switch r.node = r.plan.Of(id.Nonce); {
	case r.node == nil:
		return mismatch("the plan is not about this life of %q (nonce %v)", id.Name, id.Nonce)
	case membership.ID(id.ClusterID) != r.plan.ClusterID || id.Node != r.node.Node:
		return mismatch("the directory is of %v in cluster %v, the plan is for %v in cluster %v", id.Node, id.ClusterID, r.node.Node, r.plan.ClusterID)
	case begun.Epoch != 0 && id.Fenced == 0 && begun != (storage.Recovering{Epoch: r.plan.To, Plan: r.plan.ID}):
		return false, refusedUnless(id.Unfinished(r.cfg.Dir))
	case begun.Epoch == 0 && r.state.Recovered != nil && r.state.Recovered.Plan == r.plan.ID:
		return true, nil
	case id.Epoch != r.plan.From:
		return mismatch("the directory is in recovery epoch %d, the plan is for epoch %d", id.Epoch, r.plan.From)
	}
	return false, nil
}

// frames are what becomes of the replicas, without what was done before a crash.
func (r *recovery) frames() ([]storage.Frame, error) {
	var frames []storage.Frame
	states := map[raftlog.ReplicaID]storage.ReplicaState{}
	for _, st := range r.store.Replicas() {
		states[st.Replica] = st
	}
	for _, f := range r.node.Forced {
		st, ok := states[f.Replica]
		end := raftlog.LogEndOf(st, 0)
		switch {
		case ok && end.LastTerm() == f.Term:
			continue // before the crash
		case !ok || st.Group != f.Group || end.SetAside || end.Last != f.Last || end.LastTerm() != f.LastTerm:
			return nil, &RecoveryError{Code: RefusedMismatch, Reason: fmt.Sprintf(
				"the log of %v of %v ends with entry %d of term %d, the survey says %d of term %d: the node ran since, or lost power; survey and plan again",
				f.Replica, f.Group, end.Last, end.LastTerm(), f.Last, f.LastTerm)}
		}
		var data [][]byte
		if f.Group == raftlog.MetadataGroup {
			command, err := r.plan.Command()
			if err != nil {
				return nil, err
			}
			data = append(data, command)
		}
		entries, err := raftlog.ForcedEntries(st, f.Term, data...)
		if err != nil {
			return nil, refusedUnless(err)
		}
		frames = append(frames, raftlog.ForcedFrame(st, entries))
	}
	for _, id := range r.node.SetAside {
		if st, ok := states[id]; ok && st.Status == storage.ReplicaLive {
			frames = append(frames, storage.Frame{Kind: storage.FrameSetAside, Group: st.Group, Replica: id})
		}
	}
	return frames, nil
}

// beginAnew moves the metadata of the node aside: it gets those that go on.
func (r *recovery) beginAnew() error {
	for _, dir := range []string{metaDB(r.cfg), r.cfg.FS.PathJoin(r.store.Dir(), metastore.MetaLogDir)} {
		_, err := r.cfg.FS.Stat(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err == nil {
			reason := fmt.Sprintf("a forced recovery to epoch %d went on from the metadata of another node (plan %v)", r.plan.To, r.plan.ID)
			return r.store.QuarantineDir(metaName, storage.Reason{Kind: storage.ReasonRecovery, Text: reason, At: clock.System().Now()})
		}
	}
	return nil
}

// metaName is the directory of the metadata, below the node's.
const metaName = "meta"

func metaDB(cfg *Config) string { return cfg.FS.PathJoin(cfg.Dir, metaName, "db") }

// genesisOf is what the metadata of a life begin with.
func genesisOf(state membership.State, name string, nonce raftlog.Nonce) metastore.Genesis {
	place, _ := state.Place(name, nonce)
	g := metastore.Genesis{ClusterID: place.ClusterID, Epoch: place.Epoch}
	f := state.Adopted
	if f == nil {
		return g
	}
	if state.Recovered != nil {
		node, _ := f.Node(name, nonce)
		if place.Replica != raftlog.ReplicaID(node) {
			return g // it began its metadata anew
		}
		g.Epoch, g.Recovered = 0, place.Epoch
	}
	for i, m := range f.Members {
		g.Members = append(g.Members, metastore.Member{
			Node: raftlog.NodeID(i + 1), Name: m.Name, Nonce: m.Nonce, Replica: raftlog.ReplicaID(i + 1), Addr: m.Addr,
		})
	}
	return g
}

// EndHold ends what a forced recovery holds: from now on what was set aside or is
// in quarantine may be destroyed. A person decides that, who has looked at it and
// needs no more of it. epoch is the newest recovery that the person knows of, as in
// Cluster.Recoveries; later ones stay held.
func (n *Node) EndHold(ctx context.Context, epoch uint64) error {
	p, err := n.serving(ctx, "Node.EndHold")
	if err != nil {
		return err
	}
	return p.meta.EndHold(ctx, epoch)
}

// membersOf is who came along with a recovery, for a node that has no metadata.
func membersOf(r *membership.Recovered) []metastore.Member {
	var members []metastore.Member
	for _, m := range r.Members {
		members = append(members, metastore.Member{Node: m.Node, Name: m.Name, Replica: m.Replica, Addr: m.Addr})
	}
	return members
}
