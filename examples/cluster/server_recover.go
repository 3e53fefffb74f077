package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/stelelog/stele"
)

// recoveryInfo is a forced recovery that the cluster went through.
type recoveryInfo struct {
	Epoch      uint64    `json:"epoch"`       // that it began
	Plan       string    `json:"plan"`        // its plan's id, as recover prints it
	Planned    time.Time `json:"planned"`     // by the clock of whoever planned it
	LeftBehind []uint64  `json:"left_behind"` // ids of members that did not come along
	Forced     int       `json:"forced"`      // partitions that went on from one replica
	Lost       int       `json:"lost"`        // partitions of which none was left
	Held       bool      `json:"held"`        // what was set aside may not be destroyed
}

func recoveriesOf(recoveries []stele.Recovery) (all []recoveryInfo) {
	for _, r := range recoveries {
		info := recoveryInfo{
			Epoch: r.Epoch, Plan: hex.EncodeToString(r.Plan[:]), Planned: r.Stamp.Time().UTC(), LeftBehind: []uint64{},
			Forced: len(r.Forced), Lost: len(r.Lost), Held: r.DestructionHeld,
		}
		for _, n := range r.LeftBehind {
			info.LeftBehind = append(info.LeftBehind, uint64(n))
		}
		all = append(all, info)
	}
	return all
}

// printRecovery says of the newest recovery what it was, and what is held still.
func (a *clusterAnswer) printRecovery(out io.Writer) {
	if len(a.Recoveries) == 0 {
		return
	}
	r := a.Recoveries[len(a.Recoveries)-1]
	held := "nothing is held"
	for _, r := range a.Recoveries {
		if r.Held {
			held = fmt.Sprintf("what was set aside is held: recover end-hold -epoch %d", r.Epoch)
		}
	}
	fmt.Fprintf(out, "recovery epoch %d, plan %s of %s: left behind %s; %s from one replica, %d lost; %s\n", r.Epoch, r.Plan, r.Planned.Format(time.RFC3339),
		plural(len(r.LeftBehind), "node", "nodes"), plural(r.Forced, "partition went on", "partitions went on"), r.Lost, held)
}

func (s *server) endHold(ctx context.Context, r *http.Request, _ *params) (string, error) {
	text := r.PathValue("epoch")
	epoch, err := strconv.ParseUint(text, 10, 64)
	if err != nil || epoch == 0 {
		return "", badRequest("epoch %q: want a number above 0", text)
	}
	return "nothing is held for recoveries up to epoch " + text, s.node.EndHold(ctx, epoch)
}
