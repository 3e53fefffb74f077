package raftlog

import (
	"errors"

	"github.com/stelelog/stele/storage"
	"go.uber.org/zap"
)

// checkpoint is the checkpointer goroutine.
func (h *Host) checkpoint(generation uint64, states []storage.ReplicaState) {
	err := h.cfg.Store.Checkpoint(generation, states)
	h.mailbox.post(func(in *inbox) {
		in.calls = append(in.calls, func() { h.loop.checkpointDone(err) })
	})
}

// checkpointDone lets the next rotation come. A log that could not be synced
// ends its group here: it would fail at its next append. The checkpoint is made
// without it. Any other failure leaves everything in the journal, and the next
// rotation, when as much was written again, brings another try; if it was the
// table or the journal, the next round fails.
func (l *loop) checkpointDone(err error) {
	l.journal.checkpointing = false
	var logs *storage.LogsFailedError
	switch {
	case errors.As(err, &logs):
		for i, r := range logs.Replicas {
			if g := l.h.group(r); g != nil {
				l.failGroup(g, logs.Errs[i])
			}
		}
	case err != nil:
		l.h.cfg.Logger.Error("no checkpoint: the journal cannot be cut", zap.Error(err))
		return
	}
	l.h.stats.checkpoints.Add(1)
}
