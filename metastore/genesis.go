package metastore

import (
	"strings"

	"github.com/stelelog/stele/raftlog"
)

// maxVoters is how many members of group 1 vote; the others learn.
const maxVoters = 5

// MetaLogDir is where a node keeps the log of group 1, below its directory.
const MetaLogDir = "meta/log"

// Genesis is the content of the metadata at index 1: what the founder made and
// each initial member adopted. It never changes, and is equal on all of them. A
// node that joined later has none: of it only ClusterID and Epoch are set.
type Genesis struct {
	ClusterID raftlog.ClusterID
	Epoch     uint64   // recovery epoch, below 65536; 0 unless recovery was forced
	Members   []Member // 1 or more; ids, names and nonces are distinct
	// Recovered is the recovery epoch that this node was brought to since; 0: none.
	// It is of this node alone, and no part of the content.
	Recovered uint64
}

// epoch is the recovery epoch that this node is in.
func (g Genesis) epoch() uint64 { return max(g.Epoch, g.Recovered) }

// joined reports whether it is that of a node which begins with no state and no
// log, and gets both from the leader.
func (g Genesis) joined() bool { return len(g.Members) == 0 }

// Begin is where the log of group 1 begins: after the genesis, or, of a node that
// joined, with nothing.
func (g Genesis) Begin() *raftlog.Begin {
	if g.joined() {
		return &raftlog.Begin{Dir: MetaLogDir}
	}
	conf := raftlog.ConfState{}
	for i, m := range g.Members {
		if i < maxVoters {
			conf.Voters = append(conf.Voters, m.Replica)
		} else {
			conf.Learners = append(conf.Learners, m.Replica)
		}
	}
	return &raftlog.Begin{Dir: MetaLogDir, Index: genesisIndex, Term: genesisTerm, Conf: conf}
}

// The place of the genesis in the log of group 1: what raft takes as given.
const (
	genesisIndex raftlog.Index = 1
	genesisTerm  raftlog.Term  = 1
)

// checkIDs refuses what no cluster has.
func (g Genesis) checkIDs() error {
	if g.ClusterID.IsZero() {
		return invalid("Genesis.ClusterID", g.ClusterID, "not zero")
	}
	if g.Epoch > maxEpoch {
		return invalid("Genesis.Epoch", g.Epoch, "0 to %d", maxEpoch)
	}
	if g.Recovered > maxEpoch {
		return invalid("Genesis.Recovered", g.Recovered, "0 to %d", maxEpoch)
	}
	return nil
}

// check refuses a genesis that no founder makes.
func (g Genesis) check() error {
	if err := g.checkIDs(); err != nil {
		return err
	}
	if len(g.Members) == 0 {
		return invalid("Genesis.Members", 0, "one or more")
	}
	nodes := map[raftlog.NodeID]bool{}
	replicas := map[raftlog.ReplicaID]bool{}
	nonces := map[raftlog.Nonce]bool{}
	names := map[string]bool{}
	for _, m := range g.Members {
		if err := checkMember(m); err != nil {
			return err
		}
		if epoch, n := splitID(uint64(m.Node)); epoch != g.Epoch || n == 0 {
			return invalid("Genesis.Members.Node", m.Node, "an id of recovery epoch %d", g.Epoch)
		}
		if epoch, n := splitID(uint64(m.Replica)); epoch != g.Epoch || n == 0 {
			return invalid("Genesis.Members.Replica", m.Replica, "an id of recovery epoch %d", g.Epoch)
		}
		if nodes[m.Node] || replicas[m.Replica] || nonces[m.Nonce] || names[m.Name] {
			return invalid("Genesis.Members", m.Name, "members with distinct names, nonces and ids")
		}
		nodes[m.Node], replicas[m.Replica], nonces[m.Nonce], names[m.Name] = true, true, true, true
	}
	return nil
}

func checkMember(m Member) error {
	if len(m.Name) < 1 || len(m.Name) > maxMemberName {
		return invalid("Member.Name", m.Name, "1 to %d bytes", maxMemberName)
	}
	if m.Nonce.IsZero() {
		return invalid("Member.Nonce", m.Nonce, "not zero")
	}
	return checkAddr(m.Addr)
}

func checkAddr(addr string) error {
	if len(addr) > maxAddr || strings.ContainsAny(addr, "\x00\r\n") {
		return invalid("Member.Addr", addr, "up to %d bytes without line ends", maxAddr)
	}
	return nil
}
