package transport

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/stelelog/stele/internal/clock"
)

const (
	refusalLogEvery = time.Minute
	// maxRefusalPeers bounds the memory that strangers can claim; while it is
	// full, further ones are refused without a line.
	maxRefusalPeers = 1024
)

// refusalLog writes at most one line per peer and minute.
type refusalLog struct {
	log *zap.Logger
	clk clock.Clock

	mu     sync.Mutex
	logged map[string]time.Time
	full   time.Time // when that was last said
}

func newRefusalLog(log *zap.Logger, clk clock.Clock) *refusalLog {
	return &refusalLog{log: log, clk: clk, logged: make(map[string]time.Time)}
}

// note logs that a handshake with a peer failed. peer is what groups lines: a
// host without its port for those that came, an address for those we dialled.
func (l *refusalLog) note(peer, message string, fields ...zap.Field) {
	if l.due(peer) {
		l.log.Warn(message, append(fields, zap.String("peer", peer))...)
	}
}

func (l *refusalLog) due(peer string) bool {
	now := l.clk.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if last, ok := l.logged[peer]; ok && now.Sub(last) < refusalLogEvery {
		return false
	}
	if len(l.logged) >= maxRefusalPeers && !l.makeRoomLocked(now) {
		return false
	}
	l.logged[peer] = now
	return true
}

// makeRoomLocked forgets peers that may be logged again. When there are none it
// says so and does not search again for a minute.
func (l *refusalLog) makeRoomLocked(now time.Time) bool {
	if now.Sub(l.full) < refusalLogEvery {
		return false
	}
	for p, last := range l.logged {
		if now.Sub(last) >= refusalLogEvery {
			delete(l.logged, p)
		}
	}
	if len(l.logged) < maxRefusalPeers {
		return true
	}
	l.full = now
	l.log.Warn("more peers are refused than are logged one by one", zap.Int("logged", maxRefusalPeers))
	return false
}

// panicError is a handler's panic, which must not end the host.
type panicError struct{ value any }

func (e *panicError) Error() string     { return fmt.Sprintf("handler panicked: %v", e.value) }
func (e *panicError) ErrorCode() string { return "panic" }

// guarded calls a handler's methods under recover.
type guarded struct {
	h   Handler
	log *zap.Logger
}

func (g guarded) recovered(what string, err *error) {
	if v := recover(); v != nil {
		*err = &panicError{v}
		g.log.Error("handler panicked", zap.String("in", what), zap.Any("panic", v), zap.ByteString("stack", debug.Stack()))
	}
}

func (g guarded) frame(from Peer, class Class, frame []byte) (err error) {
	defer g.recovered("frame", &err)
	g.h.HandleFrame(from, class, frame)
	return nil
}

func (g guarded) call(ctx context.Context, from Peer, method string, req []byte) (resp []byte, err error) {
	defer g.recovered(method, &err)
	return g.h.HandleCall(ctx, from, method, req)
}

func (g guarded) stream(ctx context.Context, from Peer, method string, s Stream) (err error) {
	defer g.recovered(method, &err)
	return g.h.HandleStream(ctx, from, method, s)
}
