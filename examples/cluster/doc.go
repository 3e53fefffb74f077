// Cluster runs one node of a replicated topic log per process, over TCP, and
// talks to any of them over a small HTTP API that belongs to this example.
//
// # Three nodes in three terminals
//
// Once, from the root of the repository:
//
//	mkdir -p /tmp/stele && go build -o /tmp/stele/cluster ./examples/cluster
//
// In three terminals; what is not said defaults to three nodes on this machine,
// with directories below cluster-data:
//
//	cd /tmp/stele && ./cluster node -name a
//	cd /tmp/stele && ./cluster node -name b
//	cd /tmp/stele && ./cluster node -name c
//
// In a fourth:
//
//	cd /tmp/stele
//	./cluster create -topic lines -partitions 6
//	seq 100000 | ./cluster produce -topic lines
//	./cluster consume -topic lines | sort -n | tail -n 1
//	./cluster status
//
// A topic keeps everything, unless it is told how much:
//
//	./cluster create -topic events -keep-age 168h -keep-bytes 10737418240
//	./cluster retain -topic lines -keep-bytes 1073741824
//	./cluster status                               START is the first offset that is left
//
// Whole segments of 64 MiB go, never the last one of a partition.
//
// A topic that is deleted with a grace can be brought back until that is over:
//
//	./cluster delete -topic events -grace 72h
//	./cluster topics
//	./cluster undelete -topic events
//
// Kill any node (kill -9) while produce runs, and start it again: the others go
// on, and it catches up. Ctrl-C in the three terminals stops the nodes in good
// order; then
//
//	./cluster inspect cluster-data/a cluster-data/b cluster-data/c
//
// verifies what they hold and compares the replicas.
//
// On three machines all nodes get the same -peers, and clients the addresses
// behind the @:
//
//	PEERS=a=10.0.0.1:7100@10.0.0.1:8100,b=10.0.0.2:7100@10.0.0.2:8100,c=10.0.0.3:7100@10.0.0.3:8100
//	./cluster node -name a -dir /var/lib/cluster -peers $PEERS
//	./cluster status -http 10.0.0.1:8100,10.0.0.2:8100,10.0.0.3:8100
//
// Nobody is asked who they are, neither by nodes nor by the HTTP API: both belong
// into a network of their own.
//
// # Growing and shrinking
//
// A fourth node, on an empty directory, joins while the others run:
//
//	./cluster node -name d -join 127.0.0.1:7101,127.0.0.1:7102 \
//	    -advertise 127.0.0.1:7104 -http 127.0.0.1:8104
//	./cluster members
//	./cluster status -http 127.0.0.1:8101,127.0.0.1:8104
//
// It gets the metadata, first without a vote (a learner), then with one (a voter),
// and is ready; with -observer it stays without. New topics are placed on it too,
// and partitions move to it until all nodes hold about as many. One address in
// -join that answers is enough; it is needed again only when the node is out of
// touch with the others.
//
//	./cluster promote -name d                  why it has no vote yet, if it has none
//	./cluster transfer -to d                   it leads the metadata
//	./cluster transfer -to d -topic lines      and a partition, until that goes back
//	./cluster decommission -name d -plan       what would happen, and what is in the way
//	./cluster decommission -name d -wait
//
// The last one takes it out: it gets no more replicas, those that it has move to the others, it
// leaves the metadata's raft group, and its process ends with status 3. Whoever
// leads the metadata goes on with that, whatever happens to who began it.
// -cancel takes it back until the node begins to leave the metadata's group. What
// could not come to its end is refused, unless -when-possible, and says what helps:
// a node that is lost for good, say, is decommissioned with -force, from any other.
// The exit status of -plan is 5 if something is in the way, unless -when-possible goes
// with it. In the first seconds of a cluster it may have to be tried again.
//
// members says how long ago each node was heard. One that was killed is alive until
// that is 30 s; status asks the nodes themselves, and knows at once.
//
// A node whose disk was lost is started as before, on an empty directory, with the
// same -name: it waits until the cluster counts its old life as dead, and takes its
// place.
//
// # When a majority is lost
//
// Of the voters, or of a partition's replicas, for good, disks and all: stop all that
// is left. If its directories are on one machine,
//
//	./cluster recover -dirs cluster-data/c         what would happen, and what is lost
//	./cluster recover -dirs cluster-data/c -yes    do it; the plan is kept in recovery-plan-1.json
//
// and else, so that all of them are in one plan,
//
//	./cluster recover survey -dir DIR > c.json             on each machine
//	./cluster recover plan c.json d.json > plan.json       once; in words to standard error
//	./cluster recover apply -plan plan.json -dir DIR       on each machine
//
// Then start the nodes as before. apply is repeated, with the same plan, if it was
// interrupted: until then no node starts on the directory. Of all these the exit
// status is 0 if it is done; 1 if it was refused or failed, and the last line says
// whether the plan was not applied or has to be applied again; 2 if the command
// line makes no sense. It is refused while the cluster and every partition have a
// majority left.
//
// A node that was left behind and comes back is fenced: it says so when it meets one
// of the others, and its process ends with status 4. Such a node takes part again only
// with an empty directory. One that is in the plan, and was started before the plan was
// applied to its directory, ends with status 6: apply it, and do not empty that
// directory, as it may hold what no other node has. The cluster grows back with empty
// directories: a lost node is started as before, under its name, without -join.
// members shows the recovery. What was set aside stays until somebody who needs no
// more of it says
//
//	./cluster recover end-hold -epoch 1
//
// A node that took the metadata of another one keeps its own in quarantine/meta~1 for
// ever: with the node stopped,
//
//	./cluster quarantine reclaim -dir cluster-data/b -entry meta~1 -yes
//
// removes it.
//
// # Quarantine
//
// What a node may not serve any more it moves aside, into its directory quarantine.
// What a deleted topic left goes by itself; all else waits for a person:
//
//	./cluster quarantine list                                   on all nodes: what, why, since when
//	./cluster quarantine show -http H -entry NAME               one directory, and what may be done
//	./cluster quarantine show -http H -entry NAME -partition 0  its records
//	./cluster quarantine restore -http H -entry NAME -topic new its records as a new topic
//	./cluster quarantine reclaim -http H -entry NAME            destroy it, if the cluster confirms that it is over
//
// -http names the one node whose it is. Of a stopped node list and show read the
// directory that -dir names.
//
// Of some directories nobody can prove that they are over: those of a life of a topic
// that the cluster does not know, and those without a name. No call of the library
// destroys them. A person who is sure of it says so, with the node stopped, and the
// directory named in full:
//
//	./cluster quarantine reclaim -dir cluster-data/a -entry NAME -yes
//
// A directory without a marker is nobody's. Who knows whose it is says so, with the node
// stopped; what is in it is verified, and it can be restored when the node runs again:
//
//	./cluster quarantine adopt -dir cluster-data/a -entry NAME -topic T -incarnation ID -yes
//
// # Inspect
//
// Inspect works on the directories of stopped nodes, or on copies, and changes
// nothing. It reads, with all checksums: FORMAT and IDENTITY, both copies of the
// checkpoint table, the journal, the marker of each topic directory, and of each
// partition the segments and the side files with the state of its producers. It
// decides again what became of every entry, and holds the log against that and
// against the journal.
//
// It does not read the database of the metadata (meta/db, which has checksums of
// its own and is opened and judged when the node starts), the index files (.idx:
// hints, of which each is checked before it is followed, and which a node goes
// without if they are gone or wrong), temporary files and what is in quarantine.
//
// Of several directories it compares each replica with the longest one of its
// partition, up to its own end. What fewer than two directories hold is not
// compared, and the last line does not count it as equal.
//
// # The HTTP API
//
//	GET    /ready                           200 or 503, and why: {"code": ..., "reason": ...}
//	GET    /metrics                         for Prometheus
//	GET    /status[?topic=T]                what this node knows of itself and its replicas
//	GET    /members                         the cluster: who is in it, and what is on its way
//	GET    /members/NAME/decommission       what would happen, and what is in the way: [?force=true]
//	POST   /members/NAME/decommission       take a node out: [?force=true][?when-possible=true];
//	                                        asked again: where it stands
//	DELETE /members/NAME/decommission       take that back
//	POST   /members/NAME/promote            give it a vote, or say why not
//	POST   /metadata/leader?to=NAME         hand the metadata's leadership over
//	DELETE /strays/REPLICA                  take out a replica of the metadata that no member is
//	DELETE /recoveries/EPOCH/hold           end what forced recoveries up to an epoch hold
//	GET    /quarantine                      what is in quarantine on this node
//	GET    /quarantine/NAME/records?partition=N    the records of one of its logs, as consume answers:
//	                                        [&replica=R][&from=OFFSET][&n=MAX]
//	POST   /quarantine/restore              make a topic of records: {"dirs": [NAME, ...], "topic": T,
//	                                        "partitions": 6, "replicas": 3, "partial": true, "resume": true}
//	DELETE /quarantine/NAME                 destroy it, if that is confirmed
//	GET    /topics                          all topics
//	GET    /topics/T                        one topic
//	POST   /topics/T                        create: {"partitions": 6, "replicas": 3, "keep_age": "168h",
//	                                        "keep_bytes": 1073741824}, all optional
//	PUT    /topics/T/retention              what it keeps: {"keep_age": "168h", "keep_bytes": 0}; none: all
//	DELETE /topics/T                        delete: [?grace=168h], in which it can be brought back
//	POST   /topics/T/undelete               bring it back
//	POST   /topics/T/leader?to=NAME         hand a partition's leadership over: [&partition=N]
//	POST   /topics/T/records                produce
//	GET    /topics/T/records?partition=N    consume
//
// A request that waits for other nodes takes ?timeout=, 10s if it is not given, 5m
// at most.
//
// An error is an answer of 400 or more with {"error": ..., "outcome": ...}. The
// outcome says what it means for the request: retry (nothing happened, here or
// elsewhere it may succeed), refused (nothing happened, nothing ever will),
// unknown (it may have happened, or may yet). 409 is an answer, whatever its outcome:
// a name that is taken, a decommission that is blocked, a vote that has to wait. An answer that does not arrive, or
// not whole, is unknown.
//
// A node that stops answers what it has taken in, then everything with 503 and retry,
// and Connection: close, until it has handed over what it leads.
//
// # Produce
//
//	POST /topics/T/records[?partition=N][&key-separator=S]
//
// The body has a record in each line, of any bytes but the line feed; the last
// line feed may be missing. It has at most 17 MiB and 100,000 lines. With a
// key-separator what is before the first one in a line is the record's key, and
// a line without one has no key. A key chooses the partition, unless one is given;
// lines without keys go to any, about 1 MiB of a request to the same.
//
// The answer, status 200, has a line for each run of records to which the same
// happened, in the order of the records, and a last line with their number:
//
//	ok COUNT PARTITION OFFSET     COUNT records at OFFSET, OFFSET+1, ...
//	retry COUNT SENTENCE          not appended; it may succeed later
//	refused COUNT SENTENCE        not appended, and never will be
//	unknown COUNT SENTENCE        perhaps appended, now or later
//	end TOTAL
//
// ok means synced by a majority of the replicas. Nothing is answered before all
// of the request's records are. Records of one request for one partition are
// appended in their order; without keys none behind one that failed is sent.
// All requests of a node share one idempotent producer, so what it repeats is
// appended once; but what a client sends again is another record.
//
// # Consume
//
//	GET /topics/T/records?partition=N[&from=start|end|OFFSET][&n=MAX][&follow=true]
//
// The answer, with the header Stele-Offset for the first offset, has a JSON object
// in each line: partition, offset, timestamp (ms), key and value. A key or value
// that is null is not there; one that is not UTF-8 is key64 or value64, in
// base64. The last line is {"next": OFFSET}, where to go on, with error and
// outcome if that is why it ended. Without follow it ends with the last record
// that was acknowledged before the request; with it, never.
package main
