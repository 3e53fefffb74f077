package membership

import (
	"fmt"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// Judgement is the decision about who is dead.
type Judgement struct {
	Marks []metastore.DeadMark
	// Spared are silent voters that are not marked because too few voters would
	// be left, and Alive how many of the voters are heard.
	Spared []raftlog.NodeID
	Alive  int
	Voters int
}

// MarkDead decides which members are dead. A leader marks nobody before it has
// led for DeadAfter: whoever lives has been heard by then (H2, H3). If the
// marks would leave fewer live voters than a majority (of each half, while
// joint), no voter is marked in this pass: more likely this leader hears badly,
// and a majority that is dead cannot be helped by marks (H5). Members that do
// not vote are judged as usual.
func MarkDead(f *Facts) Judgement {
	var j Judgement
	if !f.Leads || f.LedFor < f.Rules.DeadAfter {
		return j
	}
	var voters, others []metastore.DeadMark
	for i := range f.Members {
		k := &f.Members[i]
		if k.Seat == SeatVoter {
			j.Voters++
			if f.alive(k) {
				j.Alive++
			}
		}
		if k.Liveness.Dead || f.alive(k) || k.Pending {
			continue
		}
		m := metastore.DeadMark{Node: k.Node, Judged: k.Liveness.Stamp}
		if k.Seat == SeatVoter {
			voters = append(voters, m)
		} else {
			others = append(others, m)
		}
	}
	if !f.quorum(f.Conf, f.alive) {
		for _, m := range voters {
			j.Spared = append(j.Spared, m.Node)
		}
		voters = nil
	}
	j.Marks = append(voters, others...)
	return j
}

// String says why voters were spared.
func (j Judgement) String() string {
	return fmt.Sprintf("%d of %d voters were heard, which is no majority: the silent ones %v are not marked dead", j.Alive, j.Voters, j.Spared)
}
