package raftlog

import (
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

// checkpointDone lets the next rotation come. A checkpoint that failed because
// one log cannot be synced ends that group's appends, not the node: everything
// is still in the journal, which grows until the node is opened again. If it
// was the table or the journal, the next round fails too.
func (l *loop) checkpointDone(err error) {
	l.journal.checkpointing = false
	if err != nil {
		l.h.cfg.Logger.Error("no checkpoint: the journal cannot be cut", zap.Error(err))
		l.journal.filling.urgent = true
		return
	}
	l.h.stats.checkpoints.Add(1)
}
