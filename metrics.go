package stele

import (
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
	"github.com/stelelog/stele/transport"
)

// metrics shows a node's counters to the host's registerer. It keeps none of
// its own: each scrape reads what the parts counted. The package
// documentation has the table.
type metrics struct {
	node       *Node
	registerer prometheus.Registerer // nil: the host wants none
	host       []number
	descs      map[string]*prometheus.Desc // by name without its prefix
}

// newMetrics registers the metrics of n, with the labels cluster and node.
func newMetrics(n *Node) (*metrics, error) {
	m := &metrics{node: n, host: hostNumbers(), descs: map[string]*prometheus.Desc{}}
	for _, d := range []struct {
		name, help string
		labels     []string
	}{
		{"ready", "1 if the node can serve.", nil},
		{"disk_free_bytes", "Bytes that the file system would give the node.", nil},
		{"disk_ballast_bytes", "Bytes that the node holds in reserve.", nil},
		{"disk_full", "1 if less than the reserve is left.", nil},
		{"disk_stalled", "1 if the journal's disk does not answer.", nil},
		{"groups_led", "Raft groups that the node leads.", nil},
		{"replicas_failed", "Replicas of partitions on the node that take no part or cannot be opened.", nil},
		{"members", "Members of the cluster by seat.", []string{"seat"}},
		{"members_dead", "Members that are marked dead.", nil},
		{"members_leaving", "Members on their way out.", nil},
		{"members_spared", "Silent voters that are not marked dead, because too few would be left; told by the leader.", nil},
		{"members_stray", "Voters on the metadata that no member is; told by the leader.", nil},
		{"members_blocked", "Members on their way out that wait for a person.", nil},
		{"fenced", "1 if the cluster went on in another recovery epoch than the node.", nil},
		{"rival_peers_total", "Times that a node of another forced recovery to the same epoch spoke, each counted once a minute.", nil},
		{"fenced_peers_total", "Times that a node of an older recovery epoch spoke, each counted once a minute.", nil},
		{"join_attempts_total", "Questions of the node to peers, to be taken in or to find the others.", nil},
		{"leaderless_seconds_total", "Time for which the node saw no leader of the metadata.", nil},
		{"metadata_lag_entries", "Entries of the metadata that the node knows to be committed and has not applied.", nil},
		{"replication_lag_entries", "Entries that the replica furthest behind, of the groups that the node leads, lacks.", nil},
		{"replicas_silent", "Replicas of partitions led by the node that it does not hear from.", nil},
		{"moves_ended_total", "Moves of partitions led by the node that have ended.", []string{"how"}},
		{"log_verified_bytes_total", "Bytes of partition logs that were compared with their checksums.", nil},
		{"log_repaired_bytes_total", "Bytes of partition logs that were got again from another replica.", nil},
		{"log_damages_total", "Times that a partition log was found to be damaged.", nil},
		{"logs_damaged", "Partition logs of which some cannot be read.", nil},
		{"reclaimed_directories_total", "Directories that were set aside on the node and unlinked, against proofs.", nil},
		{"reclaimed_bytes_total", "Bytes of the files in them.", nil},
		{"quarantined_directories", "Directories in quarantine on the node, by why they are there.", []string{"kind"}},
		{"quarantined_bytes", "Bytes of the files in them.", []string{"kind"}},
		{"restored_records_total", "Records appended again from quarantine on the node.", nil},
		{"metadata_checks_total", "Comparisons of all nodes' metadata that the node led, by what came of them.", []string{"result"}},
		{"confirmations_total", "Questions of the node to the voters whether something is over, by what came of them.", []string{"result"}},
		{"moves", "Replicas of partitions on their way to another node.", nil},
		{"removed_bytes_total", "Bytes of log of the node's replicas that retention let go.", nil},
		{"removing_bytes", "Bytes of them whose files wait for the next checkpoints.", nil},
		{"topics_retired", "Topics that were deleted with a grace that lasts.", nil},
		{"retention_waits", "Partitions led by the node that do not remove what may be due.", nil},
		{"messages_total", "Raft messages by way.", []string{"way"}},
		{"journal_sync_seconds", "Write and sync of a journal round.", nil},
		{"produced_records_total", "Records produced through this node and acknowledged.", nil},
		{"produced_bytes_total", "Their bytes.", nil},
		{"produced_batches_total", "Batches that they travelled in.", nil},
		{"produce_retries_total", "Batches that were sent again.", nil},
		{"produce_forwarded_total", "Batches sent to a leader on another node.", nil},
		{"produce_served_total", "Batches taken in for other nodes.", nil},
		{"fetched_local_total", "Fetches answered by a replica of this node.", nil},
		{"fetched_away_total", "Fetches answered by another node.", nil},
		{"events_total", "Functions of Events that were called.", []string{"event"}},
		{"events_superseded_total", "Leaders that were never told because a newer one came first, and what leaders told that nobody took in time.", nil},
		{"events_panicked_total", "Functions of Events that panicked.", nil},
		{"events_running_seconds", "For how long the function of Events that runs has run; 0 if none does.", nil},
		{"transport_frames_total", "Frames by class and way.", []string{"class", "way"}},
		{"transport_bytes_total", "Bytes of frames by class and way.", []string{"class", "way"}},
		{"transport_reconnects_total", "Connections made again after a loss.", nil},
		{"transport_refused_total", "Handshakes that the node turned away.", nil},
		{"transport_corrupt_total", "Frames that failed their checksum.", nil},
	} {
		m.descs[d.name] = describe(d.name, d.help, d.labels...)
	}
	if n.cfg.Metrics == nil {
		return m, nil
	}
	r := prometheus.WrapRegistererWith(prometheus.Labels{"cluster": n.cfg.Cluster, "node": n.cfg.Name}, n.cfg.Metrics)
	if err := r.Register(m); err != nil {
		return nil, fmt.Errorf("stele: register metrics: %w", err)
	}
	m.registerer = r
	return m, nil
}

func (m *metrics) unregister() {
	if m.registerer != nil {
		m.registerer.Unregister(m)
	}
}

// number is a metric that is one number of the host.
type number struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*raftlog.Stats) float64
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("stele_"+name, help, labels, nil)
}

// hostNumbers are the metrics that a raftlog.Host counts.
func hostNumbers() []number {
	counter := func(name, help string, value func(*raftlog.Stats) uint64) number {
		return number{describe(name, help), prometheus.CounterValue, func(s *raftlog.Stats) float64 { return float64(value(s)) }}
	}
	gauge := func(name, help string, value func(*raftlog.Stats) int64) number {
		return number{describe(name, help), prometheus.GaugeValue, func(s *raftlog.Stats) float64 { return float64(value(s)) }}
	}
	return []number{
		gauge("groups", "Raft groups that run on the node.", func(s *raftlog.Stats) int64 { return int64(s.Groups) }),
		gauge("groups_failed", "Raft groups that stopped on the node.", func(s *raftlog.Stats) int64 { return int64(s.GroupsFailed) }),
		gauge("uncommitted_bytes", "Bytes of proposals that wait for a quorum.", func(s *raftlog.Stats) int64 { return s.UncommittedBytes }),
		counter("journal_rounds_total", "Writes and syncs of the journal.", func(s *raftlog.Stats) uint64 { return s.Rounds }),
		counter("journal_bytes_total", "Bytes of entries written to the journal.", func(s *raftlog.Stats) uint64 { return s.RoundBytes }),
		counter("journal_rotations_total", "Generations of the journal that were begun.", func(s *raftlog.Stats) uint64 { return s.Rotations }),
		counter("journal_stalls_total", "Rounds of the journal that took longer than the stall timeout.", func(s *raftlog.Stats) uint64 { return s.Stalls }),
		counter("checkpoints_total", "Checkpoint tables that were written.", func(s *raftlog.Stats) uint64 { return s.Checkpoints }),
		counter("proposals_total", "Proposals accepted by a leader's log.", func(s *raftlog.Stats) uint64 { return s.Proposals }),
		counter("proposals_failed_total", "Proposals refused or of unknown outcome.", func(s *raftlog.Stats) uint64 { return s.ProposalsFailed }),
		counter("proposals_overloaded_total", "Proposals refused because too many bytes wait.", func(s *raftlog.Stats) uint64 { return s.Overloads }),
		counter("linearizable_reads_total", "Linearizable reads confirmed by a leader.", func(s *raftlog.Stats) uint64 { return s.Reads }),
		counter("entries_applied_total", "Raft entries applied.", func(s *raftlog.Stats) uint64 { return s.EntriesApplied }),
		counter("elections_won_total", "Times that a group of the node became the leader.", func(s *raftlog.Stats) uint64 { return s.ElectionsWon }),
		counter("leadership_lost_total", "Times that a group of the node ceased to lead.", func(s *raftlog.Stats) uint64 { return s.LeadershipLost }),
	}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(out chan<- *prometheus.Desc) {
	for _, n := range m.host {
		out <- n.desc
	}
	for _, d := range m.descs {
		out <- d
	}
}

// Collect reads the counters of the parts; of a node that is not part of a
// cluster yet there are only those of the network.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	m.send(out, "ready", prometheus.GaugeValue, one(m.node.Readiness().Ready()))
	m.collectDisk(out)
	m.collectTransport(out, m.node.net.transport.Stats())
	m.collectEvents(out, m.node.events)
	m.count(out, "join_attempts_total", m.node.asked.Load())
	m.send(out, "fenced", prometheus.GaugeValue, one(m.node.net.fence.now() != nil))
	m.count(out, "fenced_peers_total", m.node.net.fence.peers.Load())
	m.count(out, "rival_peers_total", m.node.net.fence.rivals.Load())
	if p := m.node.net.parts.Load(); p != nil {
		m.collectHost(out, p.host.Stats())
		m.collectTopics(out, p)
		m.collectMembers(out, p)
	}
}

func (m *metrics) collectMembers(out chan<- prometheus.Metric, p *parts) {
	seats := map[Seat]int{}
	dead, leaving := 0, 0
	for _, member := range m.node.members(p) {
		seats[member.Seat]++
		if member.Liveness.Dead {
			dead++
		}
		if member.Liveness.Draining() {
			leaving++
		}
	}
	for _, seat := range []Seat{SeatVoter, SeatLearner, SeatNone} {
		m.send(out, "members", prometheus.GaugeValue, float64(seats[seat]), seat.String())
	}
	m.send(out, "members_dead", prometheus.GaugeValue, float64(dead))
	m.send(out, "members_leaving", prometheus.GaugeValue, float64(leaving))
	m.send(out, "members_spared", prometheus.GaugeValue, float64(p.steward.Gauges().Spared))
	m.send(out, "members_stray", prometheus.GaugeValue, float64(p.steward.Gauges().Strays))
	m.send(out, "moves", prometheus.GaugeValue, float64(len(p.meta.Moves())))
	blocked := 0
	for _, at := range p.leaving() {
		if len(at.Blocked) > 0 {
			blocked++
		}
	}
	m.send(out, "members_blocked", prometheus.GaugeValue, float64(blocked))
	m.send(out, "leaderless_seconds_total", prometheus.CounterValue, m.node.leaderless.total().Seconds())
}

func (m *metrics) send(out chan<- prometheus.Metric, name string, kind prometheus.ValueType, value float64, labels ...string) {
	out <- prometheus.MustNewConstMetric(m.descs[name], kind, value, labels...)
}

func (m *metrics) count(out chan<- prometheus.Metric, name string, value uint64, labels ...string) {
	m.send(out, name, prometheus.CounterValue, float64(value), labels...)
}

func (m *metrics) collectDisk(out chan<- prometheus.Metric) {
	d := m.node.diskStatus()
	for name, value := range map[string]float64{
		"disk_free_bytes": float64(d.Free), "disk_ballast_bytes": float64(d.Ballast),
		"disk_full": one(d.Full), "disk_stalled": one(d.Stalled > 0),
	} {
		m.send(out, name, prometheus.GaugeValue, value)
	}
}

// one is 1 for true.
func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (m *metrics) collectHost(out chan<- prometheus.Metric, s raftlog.Stats) {
	for _, n := range m.host {
		out <- prometheus.MustNewConstMetric(n.desc, n.kind, n.value(&s))
	}
	m.count(out, "messages_total", s.MessagesSent, "sent")
	m.count(out, "messages_total", s.MessagesReceived, "received")
	m.count(out, "messages_total", s.MessagesStray, "stray")
	m.count(out, "messages_total", s.MessagesDropped, "dropped")
	buckets := map[float64]uint64{}
	var count uint64
	for i, n := range s.SyncLatency.Counts {
		count += n
		if i < len(s.SyncLatency.Bounds) {
			buckets[s.SyncLatency.Bounds[i].Seconds()] = count
		}
	}
	out <- prometheus.MustNewConstHistogram(m.descs["journal_sync_seconds"], count, s.SyncLatency.Sum.Seconds(), buckets)
}

func (m *metrics) collectTopics(out chan<- prometheus.Metric, p *parts) {
	s := p.topics.Stats()
	m.count(out, "produced_records_total", s.Records)
	m.count(out, "produced_bytes_total", s.Bytes)
	m.count(out, "produced_batches_total", s.Batches)
	m.count(out, "produce_retries_total", s.Retries)
	m.count(out, "produce_forwarded_total", s.Forwarded)
	m.count(out, "produce_served_total", s.Served)
	m.count(out, "fetched_local_total", s.FetchedLocal)
	m.count(out, "fetched_away_total", s.FetchedAway)
	m.count(out, "moves_ended_total", s.Moved, "finished")
	m.count(out, "moves_ended_total", s.MovesCancelled, "cancelled")
	m.count(out, "log_verified_bytes_total", s.Verified)
	m.count(out, "log_repaired_bytes_total", s.Repaired)
	m.count(out, "log_damages_total", s.Damages)
	m.count(out, "reclaimed_directories_total", s.ReclaimedDirs)
	m.count(out, "reclaimed_bytes_total", s.ReclaimedBytes)
	m.count(out, "restored_records_total", s.Restored)
	m.collectQuarantine(out, p.topics.QuarantineTotals())
	asked := p.meta.ConfirmStats()
	m.count(out, "confirmations_total", asked.Confirmed, "confirmed")
	for reason, n := range asked.Refused {
		m.count(out, "confirmations_total", n, string(reason))
	}
	for result, n := range p.meta.StateHashStats().Rounds {
		m.count(out, "metadata_checks_total", n, string(result))
	}
	m.count(out, "removed_bytes_total", s.Removed)
	m.send(out, "removing_bytes", prometheus.GaugeValue, float64(m.node.store.TrimmedBytes()))
	led, failed, silent, damaged, waits := 0, 0, 0, 0, 0
	meta := p.meta.GroupStatus()
	var lag raftlog.Index
	if meta.Role.IsLeader() {
		led++
		for _, f := range meta.Progress {
			lag = max(lag, meta.Last-min(f.Match, meta.Last))
		}
	}
	for _, s := range p.topics.Status() {
		if s.Role.IsLeader() {
			led++
		}
		silent += len(s.Silent)
		if s.RetentionWaits != "" {
			waits++
		}
		lag = max(lag, s.Lag)
		if s.Err != nil {
			failed++
		}
		if s.Damage != nil {
			damaged++
		}
	}
	m.send(out, "replicas_failed", prometheus.GaugeValue, float64(failed))
	m.send(out, "logs_damaged", prometheus.GaugeValue, float64(damaged))
	m.send(out, "groups_led", prometheus.GaugeValue, float64(led))
	retired := 0
	for _, t := range p.meta.Topics() {
		if isRetired(t.State) {
			retired++
		}
	}
	m.send(out, "topics_retired", prometheus.GaugeValue, float64(retired))
	m.send(out, "retention_waits", prometheus.GaugeValue, float64(waits))
	m.send(out, "replicas_silent", prometheus.GaugeValue, float64(silent))
	m.send(out, "replication_lag_entries", prometheus.GaugeValue, float64(lag))
	m.send(out, "metadata_lag_entries", prometheus.GaugeValue, float64(metadataLag(meta)))
}

// metadataLag is how many entries a node knows to be committed and has not applied.
func metadataLag(s raftlog.Status) raftlog.Index { return s.Commit - min(s.Applied, s.Commit) }

func (m *metrics) collectQuarantine(out chan<- prometheus.Metric, totals map[QuarantineKind]topic.QuarantineTotal) {
	sums := map[QuarantineKind]topic.QuarantineTotal{}
	for kind, t := range totals {
		if !slices.Contains(quarantineKinds[:], kind) {
			kind = storage.ReasonOther
		}
		sums[kind] = topic.QuarantineTotal{Dirs: sums[kind].Dirs + t.Dirs, Bytes: sums[kind].Bytes + t.Bytes}
	}
	for _, kind := range quarantineKinds {
		m.send(out, "quarantined_directories", prometheus.GaugeValue, float64(sums[kind].Dirs), string(kind))
		m.send(out, "quarantined_bytes", prometheus.GaugeValue, float64(sums[kind].Bytes), string(kind))
	}
}

func (m *metrics) collectEvents(out chan<- prometheus.Metric, l *eventLoop) {
	for e, name := range eventNames {
		m.count(out, "events_total", l.told[e].Load(), name)
	}
	m.count(out, "events_superseded_total", l.superseded.Load())
	m.count(out, "events_panicked_total", l.panics.Load())
	m.send(out, "events_running_seconds", prometheus.GaugeValue, l.busy().Seconds())
}

func (m *metrics) collectTransport(out chan<- prometheus.Metric, s transport.Stats) {
	for i, c := range s.Classes {
		class := transport.Class(i).String()
		m.count(out, "transport_frames_total", c.FramesSent, class, "sent")
		m.count(out, "transport_frames_total", c.FramesReceived, class, "received")
		m.count(out, "transport_frames_total", c.FramesDropped, class, "dropped")
		m.count(out, "transport_bytes_total", c.BytesSent, class, "sent")
		m.count(out, "transport_bytes_total", c.BytesReceived, class, "received")
		m.count(out, "transport_bytes_total", c.BytesDropped, class, "dropped")
	}
	m.count(out, "transport_reconnects_total", s.Reconnects)
	m.count(out, "transport_refused_total", s.Refused)
	m.count(out, "transport_corrupt_total", s.Corrupt)
}
