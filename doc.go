// Package stele embeds a replicated topic log in a Go program: topics with
// partitions, each replicated by raft over the nodes of a cluster, every record
// synced on a majority before Produce returns.
//
// # How a program uses it
//
//	node, err := stele.Open(ctx, cfg)        // local work only
//	err = node.WaitReady(ctx)                // or poll node.Readiness()
//	topic, err := node.CreateTopic(ctx, "orders", stele.TopicConfig{Partitions: 12})
//
//	producer, err := node.NewProducer(stele.ProducerConfig{})
//	at, err := producer.Produce(ctx, "orders", stele.Record{Key: k, Value: v})
//	producer.ProduceAsync(ctx, "orders", record, func(at stele.Position, err error) { ... })
//
//	reader, err := node.NewReader(ctx, stele.TopicPartition{Topic: "orders", Partition: 3}, stele.FromStart())
//	for record, err := range reader.Records(ctx) { // waits at the end, until ctx ends
//		...
//	}
//
// A key always goes to the same partition; records without one are spread, a
// batch at a time. One producer and any number of goroutines is the fast way:
// records that wait for the same partition travel together. A reader belongs to
// one goroutine. Producer and Reader are documented in package topic, TopicConfig
// in package metastore.
//
// Everything is of one Node and ends with it; the good order is producers
// (Close flushes), readers, node. Node.Close hands leaderships over; a program
// that dies without it loses nothing, and the others need an election, about a
// second with the defaults.
//
// # One page on how it works
//
// A node is a directory and an address in a host program. Nodes that list each
// other as initial members become a cluster: the first by name founds it, when
// all were up once. Others join it while it runs, get a vote, and leave; who is
// silent is marked dead, and a wiped disk is a new node (package membership). The
// cluster agrees on its members and topics in one raft group, group 1, whose state
// every node keeps in a small database (package metastore). Each partition of a
// topic is a raft group of its own, and its log is what readers read (package topic).
//
//	host program
//	  │  Open, CreateTopic, NewProducer, NewReader, Close
//	┌─▼──────────────────────── stele ───────────────────────────┐
//	│ topic        produce, read, one state machine per partition │
//	│ membership   join, vote, leave  metastore   topics, members │
//	│ raftlog      many raft groups, one loop, one outcome each   │
//	│ storage      one journal per node, one log per partition    │──▶ directory
//	│ transport    frames, calls, streams by address              │──▶ network
//	└─────────────────────────────────────────────────────────────┘
//
// Imports point downwards; what a lower package needs of a higher one it
// declares as an interface, and this package joins them.
//
// # One record's way
//
// Produce on any node picks a partition and finds its leader. If that is another
// node, the batch is forwarded, encoded once. The leader proposes it to the
// partition's raft group. All groups of a node share one loop and one journal:
// whatever waits when a sync ends is the next round, one write and one sync for
// all groups, so that batching needs no timer. Followers do the same and answer
// when their round is synced. When a majority has, the batch is applied: it gets
// its offsets, or is recognised as a retry of one that has them, and goes to the
// partition's log. Then Produce returns.
//
// The partition log is not synced: the journal is what promises. Now and then a
// checkpoint syncs the logs, notes how far they reach, and frees old journal
// files; after a crash the journal is replayed from there.
//
// # One name, many lives
//
// Names come back, ids never do. A directory's life, a node, a replica's stint in
// a group, a topic's life under its name: each has an id that is never used
// again, so a late message, a copied directory or an old disk is recognised as
// what it is.
//
// # How long records stay
//
// For ever, unless TopicConfig.Retention or SetRetention says otherwise: by age, by
// bytes of a partition, or whichever is passed first. Whole segments go
// (Config.SegmentBytes), oldest first, never the one that is written: a partition
// that is written slowly keeps up to a segment more. The leader decides, and all
// replicas remove the same: PartitionStatus.Start is the first offset that is there.
// Who asks for an earlier one gets an *OutOfRangeError with it, FromStart begins
// there. Age is counted from when the leader appended a record, whatever timestamp
// that has; while the leader's clock is more than a minute off its peers' it waits,
// and PartitionStatus.RetentionWaits says so. Disk space is free when the next
// checkpoints are written, some minutes later at most. go doc of package topic has
// more.
//
// # What is deleted, and brought back
//
// DeleteTopic is for good, unless it is given a grace (WithGrace, Config.DeleteGrace):
// then UndeleteTopic brings the topic back as it was until that is over, and no record
// is taken or shown meanwhile. It keeps its name and its disk space. Which comes first,
// the end of the grace or UndeleteTopic, is decided once for the whole cluster.
//
// # The life of a cluster
//
// Most of it comes by itself: nodes join (Config.Join), learn, get a vote and
// partitions; who is silent is marked dead; a wiped disk takes the place of its old
// life. What a person decides are calls that any node answers, and that whoever
// leads goes on with:
//
//	Members, DescribeCluster         who is there: as this node knows it, and as of now
//	Promote                          a vote now, or why not
//	TransferLeadership, MoveReplica  of a partition, or of the metadata
//	PlanDecommission, Decommission   a node leaves; Progress, Wait, Cancel
//	Forget                           a voter that no member is
//	Quarantine, ReadQuarantined,     of one node: what is set aside there, may be looked at,
//	RestoreQuarantined,              made a topic again, or given up
//	ReclaimQuarantined
//	Adopt                            offline: what a directory without a marker is
//	SurveyDir, PlanRecovery,         a majority is lost for good: offline, from what is
//	ApplyRecovery, EndHold           left
//
// # Errors
//
// OutcomeOf says of every error whether the same call may be made again: Retry,
// nothing happened; Refused, nothing ever will; Unknown, it may have happened. A
// call that its context ended matches ctx.Err() too, and is Unknown if it could
// have taken effect.
//
// # Logs, metrics and events
//
// Config.Logger (or LogHandler, for log/slog) gets what a person should know;
// each line has the field node. Config.Metrics gets these, all with the labels
// cluster and node; until a node is part of a cluster there are only those of
// the node itself, its events and its transport:
//
//	metric                             kind       labels     what
//	stele_ready                        gauge      -          1 if the node can serve
//	stele_disk_free_bytes              gauge      -          that the file system would give the node
//	stele_disk_ballast_bytes           gauge      -          that the node holds in reserve and can give back
//	stele_disk_full                    gauge      -          1 if producers are refused: less than the reserve is left
//	stele_disk_stalled                 gauge      -          1 if the journal's disk does not answer: the node leads nothing
//	stele_groups                       gauge      -          raft groups that run on the node
//	stele_groups_failed                gauge      -          groups that stopped on the node
//	stele_groups_led                   gauge      -          groups that the node leads (metadata and partitions)
//	stele_replicas_failed              gauge      -          of partitions here, that take no part or cannot be opened
//	stele_members                      gauge      seat       of the cluster: voter, learner, none
//	stele_members_dead                 gauge      -          of them, silent and marked dead
//	stele_members_leaving              gauge      -          of them, on their way out
//	stele_members_spared               gauge      -          silent voters not marked: too few would be left; of the leader
//	stele_members_stray                gauge      -          voters on the metadata that no member is; of the leader
//	stele_members_blocked              gauge      -          of those on their way out, that wait for a person
//	stele_fenced                       gauge      -          1 if the cluster went on in another recovery epoch than the node
//	stele_fenced_peers_total           counter    -          nodes of an older recovery epoch that spoke to it, each once a minute
//	stele_rival_peers_total            counter    -          nodes of another recovery to the same epoch that spoke to it, each once a minute
//	stele_join_attempts_total          counter    -          questions to peers, to be taken in or to find the others
//	stele_leaderless_seconds_total     counter    -          for which the node saw no leader of the metadata
//	stele_metadata_lag_entries         gauge      -          of the metadata, known to be committed and not yet applied
//	stele_replication_lag_entries      gauge      -          that the replica furthest behind lacks, of the groups led here
//	stele_replicas_silent              gauge      -          of partitions led here, that are not heard: under-replicated
//	stele_moves_ended_total            counter    how        of partitions led here: finished, cancelled
//	stele_moves                        gauge      -          replicas of partitions on their way to another node
//	stele_log_verified_bytes_total     counter    -          of partition logs, compared with their checksums
//	stele_log_repaired_bytes_total     counter    -          of them, got again from another replica
//	stele_log_damages_total            counter    -          times that one was found to be damaged
//	stele_logs_damaged                 gauge      -          of which some cannot be read, and no replica has given it yet
//	stele_reclaimed_directories_total  counter    -          that were set aside here, confirmed to be over, and unlinked
//	stele_reclaimed_bytes_total        counter    -          of the files in them
//	stele_quarantined_directories      gauge      kind       in quarantine here, by why they are (QuarantineKind)
//	stele_quarantined_bytes            gauge      kind       of the files in them
//	stele_restored_records_total       counter    -          appended again from quarantine here
//	stele_confirmations_total          counter    result     asked of the voters: confirmed, unread, not_so, held, no_majority, dissent
//	stele_metadata_checks_total        counter    result     comparisons of all nodes' metadata, led here: agreed, split, no_majority, lost
//	stele_removed_bytes_total          counter    -          of log of replicas here, that retention let go
//	stele_removing_bytes               gauge      -          of them, whose files wait for the next checkpoints
//	stele_topics_retired               gauge      -          deleted with a grace that lasts: they can be brought back
//	stele_retention_waits              gauge      -          partitions led here that do not remove what may be due
//	stele_uncommitted_bytes            gauge      -          of proposals that wait for a quorum
//	stele_journal_rounds_total         counter    -          writes and syncs of the journal
//	stele_journal_bytes_total          counter    -          of entries in them
//	stele_journal_sync_seconds         histogram  -          write and sync of a round
//	stele_journal_rotations_total      counter    -          journal files that were begun
//	stele_journal_stalls_total         counter    -          rounds that took longer than Config.DiskStallTimeout
//	stele_checkpoints_total            counter    -          checkpoints that were written
//	stele_proposals_total              counter    -          accepted by a leader's log here
//	stele_proposals_failed_total       counter    -          refused, or ended unknown
//	stele_proposals_overloaded_total   counter    -          refused: too many bytes wait
//	stele_linearizable_reads_total     counter    -          confirmed by a leader
//	stele_entries_applied_total        counter    -          of all groups
//	stele_elections_won_total          counter    -          times that a group here became the leader
//	stele_leadership_lost_total        counter    -          times that one ceased to lead
//	stele_messages_total               counter    way        raft messages: sent, received, stray, dropped
//	stele_produced_records_total       counter    -          through this node, acknowledged
//	stele_produced_bytes_total         counter    -          of them, encoded
//	stele_produced_batches_total       counter    -          that they travelled in
//	stele_produce_retries_total        counter    -          batches that were sent again
//	stele_produce_forwarded_total      counter    -          batches sent to a leader on another node
//	stele_produce_served_total         counter    -          batches taken in for other nodes
//	stele_fetched_local_total          counter    -          fetches answered by a replica of this node
//	stele_fetched_away_total           counter    -          fetches answered by another node
//	stele_events_total                 counter    event      functions of Events that were called
//	stele_events_superseded_total      counter    -          leaders never told, as a newer one came first, and notices that waited too long
//	stele_events_panicked_total        counter    -          functions of Events that panicked
//	stele_events_running_seconds       gauge      -          age of the call of Events that runs, 0: none
//	stele_transport_frames_total       counter    class,way  frames sent, received, dropped
//	stele_transport_bytes_total        counter    class,way  of them
//	stele_transport_reconnects_total   counter    -          connections made again after a loss
//	stele_transport_refused_total      counter    -          handshakes that this node turned away
//	stele_transport_corrupt_total      counter    -          frames that failed their checksum
//
// Worth an alert, with thresholds to begin with:
//
//	stele_ready == 0                                      for 1m   Node.Readiness says why
//	stele_replicas_failed > 0                             for 1m   Status().Partitions says which and why
//	stele_members_dead > 0                                for 5m   bring the node back, or take it out
//	stele_members_spared > 0                              for 1m   a majority of the voters is silent
//	stele_members_blocked > 0                             for 10m  a decommission waits: Decommissions() says for what
//	increase(stele_confirmations_total{result="dissent"}[1h]) > 0  the metadata of a node are damaged: the log says whose word differs
//	increase(stele_metadata_checks_total{result="split"}[1h]) > 0  so that no majority has the same: no node can join
//	stele_quarantined_directories{kind!~"deleted|moved-away"} > 0  for 1h   something waits for a person: Node.Quarantine
//	stele_fenced == 1                                              Node.Readiness says what helps, a plan or an empty directory
//	increase(stele_fenced_peers_total[5m]) > 0                     a node of before a forced recovery is back: the log says what helps
//	increase(stele_rival_peers_total[5m]) > 0                      two recoveries made two clusters: give one up
//	stele_members_stray > 0                               for 1m   something went wrong: DescribeCluster().Strays, Forget
//	increase(stele_log_damages_total[1d]) > 0                      the disk changes bytes: replace it
//	stele_logs_damaged > 0                                for 10m  no other replica has what is damaged here
//	stele_replicas_silent > 0                             for 10m  partitions have fewer copies that keep up
//	rate(stele_leaderless_seconds_total[5m]) > 0.1                 the metadata has no leader for a tenth of the time
//	stele_replication_lag_entries > 100000                for 10m  a replica does not keep up
//	stele_retention_waits > 0                             for 10m  Status().Partitions says why: a clock that is off, mostly
//	stele_disk_full == 1                                           producers are refused: make room
//	increase(stele_journal_stalls_total[1h]) > 2                   the disk of the journal hangs
//	rate(stele_leadership_lost_total[5m]) > 0.1           for 10m  leaders come and go: a slow disk or network
//	rate(stele_proposals_overloaded_total[5m]) > 0        for 5m   more is produced than a quorum takes
//	histogram_quantile(0.99, rate(stele_journal_sync_seconds_bucket[5m])) > 0.5
//	                                                      for 5m   the disk of the journal is slow
//	rate(stele_transport_reconnects_total[5m]) > 0.1      for 10m  the network breaks connections
//	increase(stele_transport_refused_total[5m]) > 0                a stranger, or another Cluster, TLS or release
//	increase(stele_transport_corrupt_total[1h]) > 0                the network changes bytes
//	increase(stele_events_panicked_total[5m]) > 0                  a bug in the host's Events
//	stele_events_running_seconds > 60                              a function of Events hangs: nothing more is told
//
// Config.Events has functions that the node calls, one after the other:
//
//	event              told when
//	ReadinessChanged   the code of Readiness is another one
//	LeaderChanged      a group with a replica here has another leader or term, or none
//	ReplicaFailed      a replica here takes no part any more, or cannot be opened
//	MemberChanged      a node joined, has another seat, address or liveness, or is gone
//	MembershipNoticed  of the node that leads the metadata: who is let in, deferred, refused, promoted, dead, leaves, waits
//	MoveChanged        of the node that leads a partition: a replica is on its way to another node, has arrived, or will not
//	DamageChanged      bytes of a partition log here are not what was written, or are again
//	Reclaimed          what was set aside here was confirmed to be over, and is gone
//	Quarantined        a directory here is in quarantine, moved there just now or found there
//	ReclaimRefused     what was set aside here is kept, for a new reason
//	Restored           records in quarantine here were made a topic
//	NodeFailed         the node can serve no more until it is opened again
//	TopicCreated       this node has applied a topic's creation
//	TopicDeleted       this node has applied the end of a topic's deletion
//	TopicRetired       this node has applied that a topic was deleted with a grace
//	TopicUndeleted     this node has applied that a topic was brought back
//	PeerFenced         a node of before a forced recovery has come back, and is kept out
//	MetadataSplit      of the node that leads the metadata: the voters' copies differ, and no majority has the same
//
// # What runs
//
// Open starts, and Close and Abort stop: what a member does for its membership
// (life.go), the raft loop, the journal's writer, a
// checkpoint now and then, the metadata gate, the reconciler of topics and the
// sweeper, which reclaims, the transport's connections, the one that calls Events if there are any, Pebble's
// own goroutines. Groups that apply entries
// have a goroutine while they do. Nothing of a node is shared with another one in
// the process, and nothing exits or panics the host.
package stele
