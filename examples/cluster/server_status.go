package main

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/stelelog/stele"
)

// statusAnswer is what a node knows of itself, as it travels.
type statusAnswer struct {
	Name      string              `json:"name"`
	Addr      string              `json:"addr"`
	ID        uint64              `json:"id"` // 0: not part of a cluster yet
	Cluster   string              `json:"cluster"`
	ClusterID string              `json:"cluster_id"`
	Code      stele.ReadinessCode `json:"code"`
	Reason    string              `json:"reason,omitempty"`
	Members   []memberAnswer      `json:"members"`
	Groups    []groupAnswer       `json:"groups"` // the metadata first
	// Known are all partitions of the cluster, as the node knows them.
	Known []partitionInfo `json:"known"`
	// Leaving are the members that are taken out, as the node knows.
	Leaving []leavingInfo `json:"leaving,omitempty"`
}

// leavingInfo is a member on its way out.
type leavingInfo struct {
	Name    string      `json:"name"`
	Next    string      `json:"next,omitempty"` // what is to be done, as far as the node knows
	Blocked []blockInfo `json:"blocked,omitempty"`
}

func leavingOf(leaving []stele.Progress) (all []leavingInfo) {
	for _, l := range leaving {
		all = append(all, leavingInfo{l.Name, l.Next(), blocksOf(l.Blocked)})
	}
	return all
}

// print says of a member that it leaves, and for what that waits.
func (l *leavingInfo) print(out io.Writer) {
	if l.Next != "" {
		fmt.Fprintf(out, "%s leaves; next: %s\n", l.Name, l.Next)
	}
	for _, b := range l.Blocked {
		fmt.Fprintf(out, "%s waits to leave: %s\n", l.Name, b.Reason)
	}
}

// partitionInfo is a partition, wherever it is.
type partitionInfo struct {
	Topic     string   `json:"topic"`
	Partition uint32   `json:"partition"`
	Group     uint64   `json:"group"`
	On        []string `json:"on"`             // names of the nodes that hold it
	Lost      bool     `json:"lost,omitempty"` // a forced recovery left no replica
}

// knownPartitions are the partitions of one topic, or if it has no name of all.
func knownPartitions(topics []stele.Topic, lost []stele.TopicPartition, names map[stele.NodeID]string, only string) []partitionInfo {
	all := []partitionInfo{}
	for _, t := range topics {
		for _, p := range t.Partitions {
			if only != "" && t.Name != only {
				continue
			}
			info := partitionInfo{
				Topic: t.Name, Partition: p.Index, Group: uint64(p.Group),
				Lost: slices.Contains(lost, stele.TopicPartition{Topic: t.Name, Partition: p.Index}),
			}
			for _, r := range p.Replicas {
				info.On = append(info.On, cmp.Or(names[r.Node], r.Node.String()))
			}
			all = append(all, info)
		}
	}
	return all
}

type memberAnswer struct {
	Name string `json:"name"`
	Addr string `json:"addr"`
	HTTP string `json:"http,omitempty"`
}

// members are the cluster's, or before there is one those of the flags. Only the
// flags know where an HTTP API is.
func (n *nodeFlags) members(known []stele.Member) []memberAnswer {
	all := []memberAnswer{}
	web := map[string]string{}
	for _, p := range n.peers {
		web[p.Name] = p.http
		if len(known) == 0 {
			all = append(all, memberAnswer{p.Name, p.Addr, p.http})
		}
	}
	at := map[string]int{}
	for _, m := range known {
		i, ok := at[m.Name]
		if !ok {
			i = len(all)
			at[m.Name], all = i, append(all, memberAnswer{})
		}
		all[i] = memberAnswer{m.Name, m.Addr, web[m.Name]} // of several lives of a name the newest
	}
	return all
}

// groupAnswer is the node's replica of one raft group.
type groupAnswer struct {
	Topic       string `json:"topic,omitempty"` // empty: the metadata
	Partition   uint32 `json:"partition"`
	Incarnation string `json:"incarnation,omitempty"`
	Group       uint64 `json:"group"`
	Replica     uint64 `json:"replica"`
	Role        string `json:"role"`
	Term        uint64 `json:"term"`
	Leader      string `json:"leader,omitempty"` // name of its node; empty: none is known
	Readable    bool   `json:"readable"`
	Start       int64  `json:"start"`
	// HighWatermark is the first offset that may not be read yet; of the
	// metadata, which have no offsets, the index of the last entry applied.
	HighWatermark int64  `json:"high_watermark"`
	Error         string `json:"error,omitempty"`           // why the replica is not open
	Waits         string `json:"retention_waits,omitempty"` // why nothing is removed that may be due
}

func (s *server) status(w http.ResponseWriter, r *http.Request) error {
	p := newParams(r, "topic")
	if p.err != nil {
		return p.err
	}
	st := s.node.Status()
	names := map[stele.NodeID]string{}
	replicas := map[uint64]string{} // of the metadata
	members := s.node.Members()
	for _, m := range members {
		names[m.Node] = m.Name
		replicas[uint64(m.Replica)] = m.Name
	}
	a := statusAnswer{
		Name: st.Name, Addr: st.Addr, ID: uint64(st.Node), Cluster: s.flags.config.Cluster, ClusterID: st.ClusterID.String(),
		Code: st.Readiness.Code, Reason: st.Readiness.Reason, Members: s.flags.members(members), Groups: []groupAnswer{},
	}
	only := p.values.Get("topic")
	if g := st.Metadata; g.Group != 0 {
		line := groupAnswer{
			Group: uint64(g.Group), Replica: uint64(g.Replica), Role: g.Role.String(), Term: uint64(g.Term),
			Leader: replicas[uint64(g.Leader)], Readable: g.Readable, HighWatermark: int64(g.Applied),
		}
		if g.Failed != nil {
			line.Error = g.Failed.Error()
		}
		a.Groups = append(a.Groups, line)
	}
	for _, g := range st.Partitions {
		if only == "" || g.Topic == only {
			a.Groups = append(a.Groups, partitionAnswer(g, names))
		}
	}
	a.Known = knownPartitions(s.node.Topics(), st.Lost, names, only)
	a.Leaving = leavingOf(s.node.Decommissions())
	writeJSON(w, http.StatusOK, a)
	return nil
}

func partitionAnswer(g stele.PartitionStatus, names map[stele.NodeID]string) groupAnswer {
	line := groupAnswer{
		Topic: g.Topic, Partition: g.Partition, Incarnation: g.Incarnation.String(), Group: uint64(g.Group),
		Replica: uint64(g.Replica), Role: g.Role.String(), Term: uint64(g.Term), Leader: names[g.Leader],
		Readable: g.Readable, Start: int64(g.Start), HighWatermark: int64(g.HighWatermark), Waits: g.RetentionWaits,
	}
	if g.Err != nil {
		line.Error = g.Err.Error()
	}
	return line
}
