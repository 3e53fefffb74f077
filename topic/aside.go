package topic

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// The side file of a replica's log, with the producers' state, is a function of the
// entries up to its own. One that is damaged or missing is made again: of an older one
// and the entries behind that, of all entries if the log still has the first, or it is
// another replica's, whose side files are of the same entries.
//
// Another replica is asked over a stream "topic.aside", with the 50 bytes of a fill's
// request, where next is the entry of the side file. It answers with messages of a fill
// (fill_format.go): 4, state, as many as it takes, and 5, end; or 1, refused. It has
// the file until it has a newer one, and a checkpoint after that.
const methodAside = "topic.aside"

// born is the index with which the log of a partition's first replicas begins: of the
// configuration that the group was created with.
const born = 1

// sendAside answers a question for a side file.
func (m *Manager) sendAside(ctx context.Context, r *replica, q fillRequest, w io.Writer) error {
	data, err := r.group.Log().ReadAux(q.next)
	if err != nil {
		return raftlog.Retry(fmt.Errorf("topic: producer state of %v at entry %d: %w", r.address, q.next, err))
	}
	for part := range slices.Chunk(data, fillChunk) {
		if err := m.fillOut.take(ctx, len(part)); err != nil {
			return raftlog.Retry(err)
		}
		if err := writeFill(w, fillState, part); err != nil {
			return err
		}
		m.stats.filledOut.Add(uint64(len(part)))
	}
	return writeFill(w, fillEnd, nil)
}

// mendAside makes the newest side file of a log again if it is damaged, and returns
// how many bytes it has then.
func (m *Manager) mendAside(ctx context.Context, p patient, log *storage.Log) (int64, error) {
	at := log.Position()
	if at.AuxIndex == 0 {
		return 0, nil
	}
	_, damage := log.ReadAux(at.AuxIndex)
	if !errors.As(damage, new(*storage.DamageError)) {
		return 0, damage
	}
	data, err := remade(log, at, p.incarnation)
	if err != nil {
		var e error
		if data, e = m.asideFrom(ctx, p, at.AuxIndex); e != nil {
			return 0, fmt.Errorf("%w; it cannot be made of the log (%w), and no other replica has given it: %w", damage, err, e)
		}
	}
	if err := log.RewriteAux(at.AuxIndex, data); err != nil {
		return 0, err
	}
	m.stats.repaired.Add(uint64(len(data)))
	return int64(len(data)), nil
}

// remade makes the data of a log's newest side file of what else the log has.
func remade(log *storage.Log, at storage.LogPosition, incarnation storage.Incarnation) ([]byte, error) {
	state, err := olderState(log, at, incarnation)
	if err != nil {
		return nil, err
	}
	for i := max(state.index, at.StartIndex) + 1; i <= at.AuxIndex; {
		entries, err := log.Entries(i, at.AuxIndex+1, replayBytes)
		if err != nil {
			return nil, fmt.Errorf("topic: replay entry %d: %w", i, err)
		}
		for _, e := range entries {
			state.apply(e.Index, e.Kind, e.Data)
		}
		i += storage.Index(len(entries))
	}
	return state.appendSnapshot(nil), nil
}

// olderState is the newest state of which the log has all later entries, and which is
// not that of the newest side file.
func olderState(log *storage.Log, at storage.LogPosition, incarnation storage.Incarnation) (*partitionState, error) {
	all, err := log.Asides()
	if err != nil {
		return nil, err
	}
	for _, i := range slices.Backward(all) {
		if i >= at.AuxIndex || i < at.StartIndex {
			continue
		}
		data, err := log.ReadAux(i)
		if err != nil {
			continue
		}
		if state, err := readSnapshot(data, incarnation); err == nil && state.index == i {
			return state, nil
		}
	}
	if at.StartIndex > born {
		return nil, fmt.Errorf("topic: it begins behind entry %d, and there is no older side file", at.StartIndex)
	}
	return newPartitionState(incarnation), nil
}

// asideFrom gets a side file's data that two other replicas have, or the only one that
// can be asked and has it: see vouched.
func (m *Manager) asideFrom(ctx context.Context, p patient, i storage.Index) ([]byte, error) {
	var answer []byte
	last := error(ErrNoReplica)
	for _, node := range p.others {
		var data []byte
		err := m.ask(ctx, node, methodAside, p, i, fillFutile, func(s Stream) error { return m.readAside(ctx, s, &data) })
		var state *partitionState
		if err == nil {
			state, err = readSnapshot(data, p.incarnation)
		}
		switch {
		case err != nil:
			last = err
		case state.index != i:
			last = malformed("the producer state of entry %d, not %d", state.index, i)
		case answer == nil:
			answer = data
		case bytes.Equal(answer, data):
			return data, nil
		default:
			return nil, fmt.Errorf("topic: producer state of %v at entry %d: two other replicas have it, each something else: a person has to look", p.address, i)
		}
	}
	if answer == nil {
		return nil, last
	}
	return answer, nil
}

func (m *Manager) readAside(ctx context.Context, s Stream, data *[]byte) error {
	for {
		kind, body, err := readFill(s, nil)
		switch {
		case err != nil:
			return err
		case kind == fillRefused:
			return fillError(body)
		case kind == fillEnd:
			return nil
		case kind != fillState || len(*data)+len(body) > storage.MaxAux:
			return malformed("a producer state, %d bytes of it, as a message of kind %d with %d", len(*data), kind, len(body))
		}
		*data = append(*data, body...)
		m.stats.filledIn.Add(uint64(len(body)))
		if err := m.fillIn.take(ctx, len(body)); err != nil {
			return err
		}
	}
}
