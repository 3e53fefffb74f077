package raftlog

// CutJournal has the journal begin a new generation with the next round, and the
// table say so, although it is not full yet. Two of these that have ended remove
// the files of what was trimmed, which on an idle node would stay. It does not
// wait, and is a matter of minutes: each costs a sync of all logs that were
// written since the last one.
func (h *Host) CutJournal() {
	h.mailbox.post(func(in *inbox) {
		in.calls = append(in.calls, func() {
			h.loop.journal.cut = true
			h.loop.journal.filling.urgent = true
		})
	})
}

// TrimLog lets go the front of the group's log: if more than limit bytes of it
// are at or below upTo, as many of its segments as leave keep bytes of them.
// Followers that need what is gone are told by OnBehind of theirs. Nothing at or
// below upTo may be needed to open the group again: its state machine has it
// durably. It is for StateMachine.Applied alone to call, which is not called
// beside an append.
func (g *Group) TrimLog(upTo Index, limit, keep int64) error { return g.log.Trim(upTo, limit, keep) }
