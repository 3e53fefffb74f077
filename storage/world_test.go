package storage_test

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/storage"
)

// world is a node that is driven at random and crashed, beside a model of what
// it has promised: what a WriteRound or Rotate that returned nil held, or an
// Open that returned.
type world struct {
	cfg  storage.Config
	rng  *rand.Rand
	fs   *simfs.FS
	s    *storage.Store
	logs map[storage.ReplicaID]*storage.Log

	failed map[storage.ReplicaID]bool // whose logs failed in this process

	promised model
	maybe    model // promised and the round that failed; nil: none did

	capture     []storage.ReplicaState // of a rotation whose checkpoint is due
	captured    uint64
	nextReplica storage.ReplicaID
	force       []int          // choices of the next frames, instead of the dice
	fault       simfs.Hook     // what goes wrong next
	between     func(simfs.Op) // called before an operation
	replicas    int            // at most
	broken      string         // a rule of resets that the caller breaks
}

// Rules of resets that a caller of the store keeps.
const (
	stagedNotSynced = "the staged log is not synced before the reset"
	unlinkedEarly   = "the old log is unlinked before the reset"
)

func newWorld(seed uint64, cfg storage.Config, replicas int) *world {
	rng := rand.New(rand.NewPCG(seed, 1))
	cfg.Rand = rng.Uint64
	return &world{cfg: cfg, rng: rng, fs: simfs.New(seed), promised: model{}, replicas: replicas}
}

// fork returns a world that goes on from an image of this one's disk.
func (w *world) fork(kind simfs.Survival, salt uint64) *world {
	f := *w
	f.rng = rand.New(rand.NewPCG(salt, 2))
	f.cfg.Rand = f.rng.Uint64
	f.fs = w.fs.Crash(kind)
	f.fault, f.between, f.force = nil, nil, nil
	return &f
}

// open opens the node until it is open, through crashes, and compares.
func (w *world) open() error {
	w.cfg.FS = w.fs
	s, err := storage.Open(w.cfg)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	w.s, w.logs, w.capture = s, map[storage.ReplicaID]*storage.Log{}, nil
	w.failed = map[storage.ReplicaID]bool{}
	states := s.Replicas()
	now, errA := w.compare(states, w.promised)
	if errA != nil && w.maybe != nil {
		var errB error
		if now, errB = w.compare(states, w.maybe); errB != nil {
			return fmt.Errorf("lost: %w (nor, with the round that failed: %w)", errA, errB)
		}
	} else if errA != nil {
		return fmt.Errorf("lost: %w", errA)
	}
	w.promised, w.maybe = now, nil
	return w.countFiles(4)
}

// countFiles bounds what opens leave behind.
func (w *world) countFiles(most int) error {
	names, err := w.fs.List("/node/journal")
	if err != nil {
		return nil
	}
	if n := len(names) - 2; n > most {
		return fmt.Errorf("lost: pins: %d journal files: %v", n, names)
	}
	return nil
}

var errInjected = errors.New("injected")

// crash ends the process, or the power, and starts again, perhaps to be crashed
// again while it opens.
func (w *world) crash() error {
	for {
		w.fs = w.fs.Crash(simfs.Survival(w.rng.IntN(4)))
		w.setFault(nil)
		if w.rng.IntN(2) == 0 {
			w.setFault(w.drawFault(30))
		}
		err := w.open()
		if err == nil {
			w.setFault(nil)
			return nil
		}
		if !errors.Is(err, simfs.ErrCrashed) && !errors.Is(err, errInjected) {
			return err
		}
	}
}

// drawFault draws what goes wrong within about so many operations. Half of the
// faults aim: at the sync behind a write, where most rules have their reason.
func (w *world) drawFault(within int64) simfs.Hook {
	err := simfs.ErrCrashed
	if w.rng.IntN(5) == 0 {
		err = errInjected
	}
	n := 1 + w.rng.Int64N(within)
	switch w.rng.IntN(4) {
	case 0:
		return failNth(1+n/10, err, func(op simfs.Op) bool {
			return op.Kind == simfs.OpSync && strings.Contains(op.Path, "/checkpoint.")
		})
	case 1:
		return failNth(1+n/5, err, func(op simfs.Op) bool {
			return op.Kind == simfs.OpSync && strings.HasSuffix(op.Path, ".journal")
		})
	}
	if err == errInjected && w.rng.IntN(2) == 0 {
		return failNth(1+n/10, err, func(op simfs.Op) bool {
			return op.Kind == simfs.OpSync && strings.HasPrefix(op.Path, "/node/logs/")
		})
	}
	if err == errInjected { // of all others only files and journals: a directory's stays
		return failNth(1+n/3, err, func(op simfs.Op) bool {
			return op.Kind == simfs.OpSync || op.Kind == simfs.OpWrite
		})
	}
	return simfs.CrashAt(w.fs.Ops() + n)
}

func (w *world) setFault(h simfs.Hook) {
	w.fault = h
	w.fs.SetHook(func(op simfs.Op) error {
		if w.between != nil {
			w.between(op)
		}
		if w.fault != nil {
			return w.fault(op)
		}
		return nil
	})
}

// failNth fails the nth operation that is aimed at.
func failNth(n int64, err error, aim func(simfs.Op) bool) simfs.Hook {
	return func(op simfs.Op) error {
		if aim(op) {
			if n--; n == 0 {
				return err
			}
		}
		return nil
	}
}

// run drives the node for a number of steps and returns what it lost.
func (w *world) run(steps int) error {
	if err := w.crash(); err != nil { // before anything was there
		return err
	}
	w.plan()
	for range steps {
		err := w.step()
		if err == nil {
			continue
		}
		if !errors.Is(err, simfs.ErrCrashed) && !errors.Is(err, errInjected) {
			return err
		}
		if err := w.crash(); err != nil {
			return err
		}
		w.plan()
	}
	return nil
}

// plan chooses the next fault; sometimes none.
func (w *world) plan() {
	if w.rng.IntN(10) > 0 {
		w.setFault(w.drawFault(60))
	}
}

func (w *world) step() error {
	switch n := w.rng.IntN(20); {
	case n < 7:
		return w.round(false)
	case n < 11:
		return w.applySome()
	case n < 13 || w.s.NeedsRotation():
		if err := w.round(true); err != nil || w.rng.IntN(3) > 0 {
			return err
		}
		return simfs.ErrCrashed // just behind a first round
	case n < 16:
		return w.checkpoint()
	case n < 17:
		return w.mark()
	case n < 18 && w.rng.IntN(4) == 0:
		return w.reopen()
	}
	return w.round(false)
}

func (w *world) reopen() error {
	if err := w.s.Close(); err != nil {
		return err
	}
	return w.open()
}

func (w *world) mark() error {
	w.maybe = w.promised
	if err := w.s.WriteRound(nil); err != nil {
		return err
	}
	w.maybe = nil
	return nil
}

// round writes a few frames, at the beginning of a generation if rotate.
func (w *world) round(rotate bool) error {
	states := w.states()
	next := w.promised.clone()
	var frames []storage.Frame
	for range 1 + w.rng.IntN(3) {
		f, err := w.frame(next)
		if err != nil {
			return err
		}
		next.apply(f)
		frames = append(frames, f...)
	}
	w.maybe = next
	var err error
	if rotate {
		var g uint64
		if g, err = w.s.Rotate(states, frames); err == nil {
			w.capture, w.captured = states, g
		}
	} else {
		err = w.s.WriteRound(frames)
	}
	if err != nil {
		return err
	}
	w.promised, w.maybe = next, nil
	return w.follow(frames)
}

// states is what the node would capture: the promised states.
func (w *world) states() []storage.ReplicaState {
	var states []storage.ReplicaState
	for _, id := range w.promised.ids(false) {
		r := w.promised[id]
		st := storage.ReplicaState{Group: r.group, Replica: id, Status: storage.ReplicaLive,
			Dir: r.dir, Hard: r.hard, Conf: r.start.Conf, Log: r.applied}
		if r.aside {
			st.Status = storage.ReplicaSetAside
		} else {
			st.Conf = r.conf(r.applied.LastIndex)
			st.Tail = slices.Clone(r.from(r.applied.LastIndex + 1))
			st.Hard.Commit = max(st.Hard.Commit, r.applied.LastIndex)
		}
		states = append(states, st)
	}
	return states
}

// frame makes frames for one replica.
func (w *world) frame(m model) ([]storage.Frame, error) {
	live := m.ids(true)
	n := w.rng.IntN(40)
	if len(w.force) > 0 {
		n, w.force = w.force[0], w.force[1:]
	}
	if len(live) == 0 || n == 0 && len(live) < w.replicas {
		w.nextReplica++
		id := w.nextReplica
		return []storage.Frame{{Kind: storage.FrameCreated, Group: storage.GroupID(id + 100), Replica: id,
			Begin: &storage.Begin{Dir: fmt.Sprintf("logs/%d", id), Index: 1, Term: 1, NextOffset: 3,
				Conf: wideConf(id, id+1)}}}, nil
	}
	id := live[w.rng.IntN(len(live))]
	r := m[id]
	f := storage.Frame{Group: r.group, Replica: id}
	switch n {
	case 1:
		f.Kind = storage.FrameDestroyed
	case 2:
		f.Kind = storage.FrameSetAside
	case 3:
		f.Kind = storage.FrameReset
		index := r.hard.Commit + storage.Index(w.rng.IntN(4))
		f.Begin = &storage.Begin{Reset: w.rng.Uint64(), Index: index, Term: r.hard.Term + 1, NextOffset: 9,
			Conf: wideConf(id)}
		if w.rng.IntN(2) == 0 {
			if err := w.stage(r, f.Begin); err != nil {
				return nil, err
			}
		}
		if w.broken == unlinkedEarly {
			if err := w.closeLog(id); err != nil {
				return nil, err
			}
			if err := w.unlinkSegments("/node/" + r.dir); err != nil {
				return nil, err
			}
		}
	default:
		w.appendFrame(r, &f)
	}
	return []storage.Frame{f}, nil
}

// stage writes the log of a reset beside the one in use, and makes it durable.
func (w *world) stage(r *replicaModel, b *storage.Begin) error {
	n := storage.Index(1 + w.rng.IntN(int(min(b.Index, 3))))
	pos := emptyLog(b)
	pos.StartIndex, pos.StartTerm, pos.Exists = b.Index-n, b.Term-1, true
	pos.SegIndex, pos.SegOffset = pos.StartIndex+1, b.NextOffset-2*storage.Offset(n)
	b.Log = &pos
	var bytes []byte
	offset := pos.SegOffset
	for _, e := range stagedEntries(b) {
		bytes = append(bytes, storage.EncodeFrame(r.group, &storage.FrameView{Index: e.Index, Term: e.Term,
			Verdict: storage.VerdictData, BaseOffset: offset, Count: 2, Payload: e.Data})...)
		offset += 2
	}
	pos.SegBytes = int64(len(bytes))
	dir := fmt.Sprintf("/node/%s/%020d.reset", r.dir, b.Reset)
	if err := w.fs.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := w.fs.Create(fmt.Sprintf("%s/%020d-%020d.seg", dir, pos.SegIndex, pos.SegOffset), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(bytes)
	if err == nil && w.broken != stagedNotSynced {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	for ; dir != "/"; dir = path.Dir(dir) {
		d, err := w.fs.OpenDir(dir)
		if err != nil {
			return err
		}
		if err := errors.Join(d.Sync(), d.Close()); err != nil {
			return err
		}
	}
	return nil
}

// stagedEntries are the entries of a staged log.
func stagedEntries(b *storage.Begin) (entries []storage.Entry) {
	if b.Log == nil {
		return nil
	}
	for i := b.Log.StartIndex + 1; i <= b.Index; i++ {
		entries = append(entries, storage.Entry{Index: i, Term: b.Term, Data: fmt.Appendf(nil, "%d staged for %d", i, b.Reset)})
	}
	return entries
}

func (w *world) appendFrame(r *replicaModel, f *storage.Frame) {
	f.Kind = storage.FrameAppend
	f.Hard = r.hard
	last := r.last()
	if w.rng.IntN(4) == 0 { // a new term, perhaps a vote, perhaps a conflict
		f.Hard.Term += storage.Term(1 + w.rng.IntN(2))
		f.Hard.Vote = storage.ReplicaID(w.rng.IntN(3))
		last -= storage.Index(w.rng.IntN(int(last-r.hard.Commit) + 1))
	} else if f.Hard.Vote == 0 {
		f.Hard.Vote = storage.ReplicaID(w.rng.IntN(3))
	}
	for range w.rng.IntN(4) {
		last++
		size := w.rng.IntN(200)
		if w.rng.IntN(8) == 0 {
			size = w.rng.IntN(9000)
		}
		data := fmt.Sprintf("%v.%d.%d.%x", f.Replica, last, f.Hard.Term, w.rng.Uint32())
		f.Entries = append(f.Entries, storage.Entry{Index: last, Term: f.Hard.Term,
			Data: []byte(data + strings.Repeat("x", size))})
	}
	if len(f.Entries) == 0 {
		last = r.last()
	}
	f.Hard.Commit += storage.Index(w.rng.IntN(int(last-f.Hard.Commit) + 1))
}

// follow does what may be done once the frames are durable: the logs that they
// end are unlinked, those that a reset replaced by the next open of the log.
func (w *world) follow(frames []storage.Frame) error {
	for i := range frames {
		f := &frames[i]
		if f.Kind != storage.FrameDestroyed && f.Kind != storage.FrameSetAside && f.Kind != storage.FrameReset {
			continue
		}
		if err := w.closeLog(f.Replica); err != nil {
			return err
		}
		if r := w.promised[f.Replica]; f.Kind == storage.FrameReset && r != nil && !r.aside {
			delete(w.failed, f.Replica) // it has another log now
			if w.rng.IntN(2) == 0 {
				continue // the node falls before it opens the log
			}
			if _, err := w.openLog(f.Replica, r); err != nil {
				return err
			}
			continue
		}
		if err := w.unlinkLogs(fmt.Sprintf("/node/logs/%d", f.Replica)); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) closeLog(id storage.ReplicaID) error {
	l := w.logs[id]
	if l == nil {
		return nil
	}
	delete(w.logs, id)
	if err := l.Close(); err != nil && !w.failed[id] {
		return err
	}
	return nil
}

// openLog returns the log of a live replica, open.
func (w *world) openLog(id storage.ReplicaID, r *replicaModel) (*storage.Log, error) {
	if l := w.logs[id]; l != nil {
		return l, nil
	}
	l, err := w.s.OpenLog(storage.ReplicaState{Group: r.group, Replica: id,
		Status: storage.ReplicaLive, Dir: r.dir, Log: r.applied})
	if err == nil {
		w.logs[id] = l
		err = w.otherLogs(r)
	}
	return l, err
}

// otherLogs checks that a log which was opened is the only one of its replica.
func (w *world) otherLogs(r *replicaModel) error {
	names, err := w.fs.List("/node/" + r.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	for _, name := range names {
		reset := strings.HasSuffix(name, ".reset")
		if reset && name != fmt.Sprintf("%020d.reset", r.start.Reset) || !reset && r.start.Reset != 0 {
			return fmt.Errorf("lost: pins: %s/%s beside the log of reset %d", r.dir, name, r.start.Reset)
		}
	}
	return nil
}

// unlinkSegments removes the segments in a replica's directory.
func (w *world) unlinkSegments(dir string) error {
	names, err := w.fs.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	for _, n := range names {
		if strings.HasSuffix(n, ".seg") {
			if err := w.fs.Remove(dir + "/" + n); err != nil {
				return err
			}
		}
	}
	return nil
}

// unlinkLogs removes what is in a replica's directory.
func (w *world) unlinkLogs(dir string) error {
	names, err := w.fs.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	for _, n := range names {
		if err := w.fs.RemoveAll(dir + "/" + n); err != nil {
			return err
		}
	}
	return nil
}

// applySome writes committed entries to a log.
func (w *world) applySome() error {
	live := w.promised.ids(true)
	if len(live) == 0 {
		return nil
	}
	id := live[w.rng.IntN(len(live))]
	if w.failed[id] {
		return nil
	}
	r := w.promised[id]
	n := int(r.hard.Commit - r.applied.LastIndex)
	if n <= 0 {
		return nil
	}
	l, err := w.openLog(id, r)
	if err != nil {
		return err
	}
	offset := l.NextOffset()
	var entries []storage.LogEntry
	for _, e := range r.from(r.applied.LastIndex + 1)[:1+w.rng.IntN(n)] {
		entries = append(entries, storage.LogEntry{Entry: e, Verdict: storage.VerdictData, BaseOffset: offset, Count: 2})
		offset += 2
	}
	if err := l.Append(entries); err != nil {
		return err
	}
	if w.rng.IntN(3) == 0 {
		if err := l.Trim(l.Position().LastIndex, 1, 0); err != nil {
			return err
		}
	}
	r.applied = l.Position()
	r.trimmed = max(r.trimmed, r.applied.StartIndex)
	return nil
}

// checkpoint writes the table for the last rotation; in the middle of it there
// may be a round, which may be a rotation.
func (w *world) checkpoint() error {
	if w.capture == nil {
		return nil
	}
	states, generation := w.capture, w.captured
	w.capture = nil
	var inner error
	n := w.rng.IntN(6)
	w.between = func(op simfs.Op) {
		if !strings.HasPrefix(op.Path, "/node/journal/") {
			return // a log that is being synced cannot be closed by a round
		}
		if n--; n == 0 {
			w.between = nil
			inner = w.round(w.rng.IntN(3) == 0)
		}
	}
	err := w.s.Checkpoint(generation, states)
	w.between = nil
	var failed *storage.LogsFailedError
	if errors.As(err, &failed) && !errors.Is(err, simfs.ErrCrashed) {
		for _, id := range failed.Replicas {
			w.failed[id] = true
		}
		err = nil // the node goes on without their logs
	}
	return errors.Join(err, inner)
}
