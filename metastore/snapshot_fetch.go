package metastore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"go.uber.org/zap"

	"github.com/stelelog/stele/raftlog"
)

// silentSource is how long a stream may bring nothing before it is given up, and
// asked for again: a sender that died must not hold a replica up.
const silentSource = 10 * time.Second

var errSilent = errors.New("metastore: the snapshot's sender says nothing")

// noteBehind wakes the goroutine that brings snapshots: the leader, on that node,
// no longer has what this replica's log needs. It comes again about every second
// until that is no longer so, so that nothing has to be remembered of a try that
// failed. It does not block.
func (s *Store) noteBehind(leader raftlog.NodeID) {
	for {
		select {
		case s.behind <- leader:
			return
		default:
		}
		select { // an earlier leader's word
		case <-s.behind:
		default:
		}
	}
}

// bringSnapshots is a goroutine of the store.
func (s *Store) bringSnapshots() {
	var st *staging // what came of one that was cut
	for {
		select {
		case <-s.life.Done():
			return
		case leader := <-s.behind:
			if s.Failed() == nil {
				st = s.bring(leader, st)
			}
		}
	}
}

// bring fetches a snapshot and puts it in the place of the state. It returns what
// there is of it if it was cut, for the next try.
func (s *Store) bring(leader raftlog.NodeID, st *staging) *staging {
	log := s.config.Logger.With(zap.Stringer("from", leader))
	log.Info("this node's metadata is too far behind: asking for a snapshot")
	st, term, err := s.fetch(leader, st)
	if err == nil {
		log.Info("a metadata snapshot is here", zap.Uint64("index", uint64(st.at.Index)))
		if err = s.install(st, term); err == nil {
			log.Info("this node's metadata goes on from a snapshot", zap.Uint64("index", uint64(st.at.Index)))
			select { // said before it was here
			case <-s.behind:
			default:
			}
			return nil
		}
	}
	if s.life.Err() != nil {
		return nil
	}
	log.Warn("no metadata snapshot yet", zap.Error(err))
	if st != nil && errors.Is(err, errCut) {
		return st
	}
	if st != nil {
		_ = st.discard() // what is left of it the next try removes
	}
	return nil
}

// fetch receives a snapshot, or the rest of the one that st has the beginning of,
// and returns all that came, and the sender's term.
func (s *Store) fetch(from raftlog.NodeID, st *staging) (_ *staging, term raftlog.Term, err error) {
	ctx, cancel := context.WithCancelCause(s.life)
	defer cancel(nil)
	stream, err := s.config.Streamer.OpenStream(ctx, from, MethodSnapshot)
	if err != nil {
		return st, 0, cut(err)
	}
	defer stream.Close()
	defer context.AfterFunc(ctx, func() { _ = stream.Close() })()
	dog := newWatchdog(s.config.Clock, silentSource, func() { cancel(errSilent) })
	defer dog.stop()
	defer func() {
		if cause := context.Cause(ctx); cause != nil && errors.Is(err, errCut) {
			err = fmt.Errorf("%w (%w)", err, cause)
		}
	}()

	request := snapshotRequest{replica: s.config.Replica, above: s.machine.applied().Index}
	if st != nil && st.at.Index > request.above {
		request.index, request.term, request.behind = st.at.Index, st.at.Term, st.last
	}
	out := chunkWriter{w: stream}
	out.write(chunkRequest, request.encode())
	if err := errors.Join(out.err, stream.CloseWrite()); err != nil {
		return st, 0, cut(err)
	}
	in := &chunkReader{r: kicked{stream, dog}}
	answer, err := readStart(in, chunkAnswer, decodeSnapshotAnswer)
	if err != nil {
		return st, 0, err
	}
	switch {
	case answer.kind == answerRefused:
		return st, 0, answer.refused()
	case answer.isRest() && request.index == 0:
		return st, 0, fmt.Errorf("%w: the rest of nothing", errMalformed)
	case answer.isRest() && !answer.goesOn(st.hash):
		return st, 0, fmt.Errorf("%w: the rest of a snapshot with another hash", errMalformed)
	case !answer.isRest():
		if st, err = s.machine.stage(); err != nil {
			return nil, 0, err
		}
		st.hash = answer.hash
	}
	return st, answer.term, st.receive(in)
}

// kicked is a stream whose watchdog sleeps while something comes.
type kicked struct {
	io.Reader
	dog *watchdog
}

func (k kicked) Read(b []byte) (int, error) {
	n, err := k.Reader.Read(b)
	k.dog.kick()
	return n, err
}

// install puts a snapshot that is all here in the place of the state, and begins
// the group's log anew at it, in the order that generations.go gives. Meanwhile
// the group is closed: who proposes or reads tries again.
func (s *Store) install(st *staging, term raftlog.Term) error {
	c, err := st.check()
	if err == nil {
		err = st.of(s.config.Genesis)
	}
	if err == nil {
		err = st.agreed(c, s.agreesOnStates())
	}
	var id [8]byte
	if err == nil {
		_, err = io.ReadFull(s.config.Rand, id[:])
	}
	reset := binary.BigEndian.Uint64(id[:])
	if err == nil {
		err = st.mark(reset)
	}
	if err != nil {
		return err
	}
	begin := raftlog.Begin{Reset: reset, Index: st.at.Index, Term: st.at.Term, Conf: st.at.Conf}
	err = s.config.Host.ResetGroup(s.life, s.config.Replica, begin, term)
	switch {
	case err == nil:
		if err := st.use(c); err != nil {
			return err // the database failed, or was closed: the next open goes on here
		}
		s.hashes.restarts(st.at, st.hash)
	case raftlog.OutcomeOf(err) == raftlog.OutcomeUnknown:
		// The node ends, or its journal failed. The mark stays: whether the reset
		// is durable the next open finds out.
		if failed := s.config.Host.Failed(); failed != nil {
			s.fail(failed)
		}
		return err
	default:
		err = errors.Join(err, st.discard())
	}
	return errors.Join(err, s.reopen())
}

// errUnagreed refuses a state of which nobody says that a majority has it.
var errUnagreed = raftlog.Retry(errors.New("metastore: the snapshot is of a state that no majority of the voters has agreed on"))

// errOtherHash refuses a state that is not the one which its sender has.
var errOtherHash = raftlog.Retry(errors.New("metastore: the snapshot does not have the hash that a majority of the voters agreed on"))

// agreed refuses a state that is not what a majority of the voters has: one without
// a hash, if it or the state in use is of a cluster that agrees on states, and one
// that has another hash.
func (st *staging) agreed(c *catalog, own bool) error {
	if st.hash == nil {
		if own || c.agreesOnStates() {
			return errUnagreed
		}
		return nil
	}
	sum, err := digestOf(st.m.db, st.m.db.pebble, st.generation, func(int) error { return nil })
	if err == nil && sum != *st.hash {
		err = errOtherHash
	}
	return err
}

// reopen opens the group again, unless it was not closed after all.
func (s *Store) reopen() error {
	g, err := s.openGroup(s.options())
	switch {
	case err == nil:
		s.group.set(g)
	case errors.Is(err, raftlog.ErrReplicaOpen):
		return nil
	case errors.Is(err, raftlog.ErrClosed):
		return err
	default:
		s.fail(err)
		return err
	}
	s.leaderMayHaveChanged()
	return nil
}
