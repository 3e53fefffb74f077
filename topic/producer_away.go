package topic

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// firstAttempt is how long a batch's first attempt elsewhere may take if no
// replica on this node tells of a change of leader; after each that was not
// answered the next may take twice as long, up to CallTimeout: a leader that is
// merely slow answers in the end.
const firstAttempt = 2 * time.Second

// errLeaderChanged ends an attempt that the leader it was sent to may never
// answer.
var errLeaderChanged = errors.New("topic: the leader changed")

// sendAway sends a batch to the leader's node.
func (l *lane) sendAway(b *batch, to target) {
	m := l.p.m
	request := encodeProduce(l.address, to.term, b.data)
	patience := min(m.cfg.CallTimeout, firstAttempt<<min(b.away, 10))
	op := l.operation(OpForward, b, to.node)
	l.p.spawn(func() {
		m.stats.forwarded.Add(1)
		values, end := m.cfg.Trace.begin(b.values, op)
		response, err := l.callLeader(values, to, request, patience)
		var base storage.Offset
		if err == nil {
			base, err = decodeProduced(response)
		}
		end(err)
		if unanswered(err) {
			b.away++ // it is this attempt's alone until answered
		}
		m.noteRoute(l.address, l.place, to.node, err)
		l.answered(b, base, err)
	})
}

// unanswered reports whether a call ended with nothing said of what became of it.
func unanswered(err error) bool {
	return err != nil && raftlog.OutcomeOf(err) == raftlog.OutcomeUnknown
}

// callLeader makes one attempt to have a batch appended elsewhere, with the
// values of a context and until the producer ends.
//
// One that is given up is of unknown outcome. With an identity the batch is
// sent again and appended once, so there is no reason to wait for a leader that
// has lost its place; without, the answer is waited for.
func (l *lane) callLeader(values context.Context, to target, request []byte, patience time.Duration) ([]byte, error) {
	life := l.p.life
	if values != life {
		life = valued{life, values}
	}
	if l.p.cfg.Anonymous {
		return l.p.m.call(life, to.node, methodProduce, request, 0)
	}
	ctx, cancel := context.WithCancelCause(life)
	var watch sync.WaitGroup
	watch.Go(func() { l.watchLeader(ctx, cancel, to, patience) })
	response, err := l.p.m.call(ctx, to.node, methodProduce, request, 0)
	cancel(nil)
	watch.Wait()
	return response, err
}

// watchLeader gives an attempt up when the replica on this node has heard of
// another leader or term, or if there is none, after patience.
func (l *lane) watchLeader(ctx context.Context, giveUp context.CancelCauseFunc, to target, patience time.Duration) {
	timer := l.p.m.cfg.Clock.NewTimer(patience)
	defer timer.Stop()
	for {
		var changed <-chan struct{}
		expired := timer.C()
		if r := l.p.m.informed(l.address); r != nil {
			changed, expired = r.changed.wait(), nil
			if node, term := r.leader(); node != to.node || term != to.term && to.term != 0 {
				giveUp(errLeaderChanged)
				return
			}
		}
		select {
		case <-changed:
		case <-expired:
			giveUp(context.DeadlineExceeded)
			return
		case <-ctx.Done():
			return
		}
	}
}
