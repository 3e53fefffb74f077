package topic

import (
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// identity is who a producer is in one lane: its batches there are numbered
// from 0. The zero value is nobody yet.
type identity struct {
	id    ProducerID
	epoch ProducerEpoch
	used  bool     // up: another one is needed
	token [16]byte // tells the producer from others of its name; drawn once
}

// identifyLocked reports whether the lane may number batches; if not, it will
// be pumped when it may.
func (l *lane) identifyLocked() bool {
	if l.p.cfg.Anonymous || l.mu.identity.id != 0 && !l.mu.identity.used {
		return true
	}
	if l.mu.asking {
		return false
	}
	known, ok := l.p.ask(l)
	if !ok {
		l.mu.asking = true
		return false
	}
	l.mu.identity = known
	return true
}

// ask returns the producer's identity if it is of use to the lane, or has the
// lane told later.
func (p *Producer) ask(l *lane) (identity, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last, known := l.mu.identity, p.mu.identity
	if known.id != 0 && (known.id != last.id || known.epoch != last.epoch) {
		return known, true
	}
	p.mu.asking = append(p.mu.asking, l)
	if len(p.mu.asking) == 1 && !p.mu.closed {
		p.running.Go(p.identify)
	}
	return identity{}, false
}

// identify gets an identity from the metadata for all lanes that ask.
//
// A named producer that needs another epoch says which one it holds: if a newer
// producer has taken the name over, it gets none and must not fence that one.
// Asking again, after an answer that was lost, grants nothing twice.
func (p *Producer) identify() {
	var b backoff
	p.mu.Lock()
	if p.mu.identity.token == [16]byte{} {
		_, _ = rand.Read(p.mu.identity.token[:]) // never fails: the runtime ends the process instead
	}
	last := p.mu.identity
	p.mu.Unlock()
	request := metastore.ProducerRequest{Name: p.cfg.Name, Token: last.token, Held: uint32(last.epoch), Holds: last.id != 0}
	for p.life.Err() == nil {
		id, epoch, err := p.m.cfg.Meta.AllocateProducer(p.life, request)
		if err == nil {
			p.identified(identity{id: ProducerID(id), epoch: ProducerEpoch(epoch), token: last.token})
			return
		}
		var fenced *metastore.ProducerFencedError
		if errors.As(err, &fenced) {
			err = &FencedError{Producer: last.id, Epoch: last.epoch, Current: ProducerEpoch(fenced.Epoch)}
		}
		if errors.Is(err, raftlog.ErrRefused) {
			p.fence(err)
			return
		}
		p.mu.Lock()
		lanes := append([]*lane(nil), p.mu.asking...)
		p.mu.Unlock()
		for _, l := range lanes {
			l.waitingFor(err)
		}
		b.wait(p.life, p.m.cfg.Clock, nil)
	}
}

func (p *Producer) identified(now identity) {
	p.mu.Lock()
	p.mu.identity = now
	lanes := p.mu.asking
	p.mu.asking = nil
	p.mu.Unlock()
	for _, l := range lanes {
		l.mu.Lock()
		l.mu.identity, l.mu.asking = now, false
		l.unlock(l.pumpLocked(nil))
	}
}

// waitingFor ends calls that have waited too long for an identity.
func (l *lane) waitingFor(err error) {
	l.mu.Lock()
	l.mu.last = raftlog.Retry(fmt.Errorf("%w: %w", metastore.ErrUnavailable, withoutOutcome{err}))
	l.unlock(l.expireLocked(nil))
}
