package metastore

// Formats, layout version 1. What comes with commands above 9 is of cluster
// version 2, above 21 of version 3: there is none of it in a cluster that is below. Integers are unsigned varints in their shortest
// form unless a size is given (u16, u32, u64: big-endian); id is 16 bytes, str
// a varint length and that many bytes, "n x" a varint count and that many x.
// Every value has exactly one encoding. What a decoder does not know it
// refuses.
//
// A command, as the log of group 1 holds it. Numbers are never reused.
//
//	 0        2         3
//	+----------+---------+----------
//	| type u16 | version | body ...
//	+----------+---------+----------
//
//	 1 genesis         cluster-id:id epoch n member      the content at index 1: never proposed
//	 2 no-op
//	 3 create topic    incarnation:id name:str config
//	 4 topic deleting  incarnation:id
//	 5 topic deleted   incarnation:id
//	 6 allocate producer  name:str token:id holds(1) [epoch]
//	                   name empty: anonymous, token zero; epoch if holds is 1: of
//	                   the one that asks, else it takes the name over
//	 7 set address     node nonce:id addr:str
//	 8 set setting     key:str value:str                 empty value: removed
//	 9 create topic    as 3, with field 4 of config: of a build that knows it
//	10 set version     version                          of the cluster; proposed at version 1, once all members can
//	11 admit           name:str nonce:id addr:str newest observer(1) stamp replaces seen
//	                   replaces: a node, 0: none; seen: the stamp of it that the leader judged
//	12 heartbeats      n {node nonce:id stamp newest}   newest: command type that the node applies
//	13 mark dead       n {node judged}                  judged: a stamp, as seen
//	14 set departure   node nonce:id departure(1)       0 stays  1 drains  2 drains, forced  3 leaves
//	15 remove member   node
//	16 start move      incarnation:id index generation node remove stamp
//	                   node: where to; remove: the replica that it replaces, 0: none
//	17 finish move     incarnation:id index generation add      add: the replica that came in
//	18 cancel move     as 17
//	19 seed            n {key:str value:str} n {incarnation:id name:str config}
//	20 recover         epoch plan:id stamp n {node nonce:id replica} n {group replica} n {group}
//	                   who is left, and its replica of group 1 from now on; partitions that
//	                   go on from one replica; those of which none is left. Never proposed:
//	                   a forced recovery writes it into the log (recover.go)
//	21 end hold        epoch                            destruction is held no longer
//	22                 none: it is never in a log. A build announces it, or a later one,
//	                   that is of version 3 and so answers "meta.confirm"
//	23 create topic    as 9, with fields 5 and 6 of config, one of them or both
//	24 set retention   incarnation:id age bytes         as fields 5 and 6; 0: all is kept
//	25 seed            as 19, with fields 5 and 6 of some config
//	26 retire topic    incarnation:id number stamp until     deleted with a grace, for the number-th time;
//	                   until: a stamp, when the grace ends
//	27 step topic      incarnation:id number to(1) stamp     to: a state; stamp: of a purge, else 0
//	28 hash state      nonce:id                         every replica hashes its state as of this command
//	29 state agreed    index nonce:id hash(32) n {replica}
//	                   index and nonce of a command 28; who has the hash, ascending
//
//	stamp  = milliseconds since 1970 by the clock of the leader that proposed
//	member = node replica nonce:id name:str addr:str
//	config = n { field, length, value: a varint of that length }
//	         fields in ascending order, zero ones left out:
//	         1 partitions  2 replicas  3 max batch bytes
//	         4 max record bytes, if below 16 MiB: in commands of type 9 and in what
//	           they wrote
//	         5 retention age, ms  6 retention bytes: in commands of types 23 and 25, and
//	           in what 23 to 25 wrote
//
// The state: sorted keys, the first byte of each says what it is. On Pebble
// they stand behind 'S' and the generation (u32), so that a restored state is
// built beside the one in use.
//
//	'a'                        applied        index term conf
//	'c' counter(1)             counter        next value, without the epoch
//	'd' incarnation            tombstone      1 name:str
//	'e'                        seeded         1                 none: it was not
//	'f'                        format         layout version, newest command type applied
//	'h' node(u64)              liveness       1 flags(1) departure(1) stamp newest replaces
//	                                          flags: 1 dead, 2 observer; none: as the genesis leaves a member
//	'i' name                   named producer 1 id epoch token:id       of its holder
//	'k'                        cluster        1 cluster-id:id epoch cluster-version
//	'l' node(u64)              load           replicas leads            of all partitions
//	'm' node(u64)              member         1 member
//	'n' name in lower case     name           incarnation:id
//	'o' nonce                  out            1 node            of the life that was removed; 0: refused for good
//	'p' incarnation index(u32) partition      1 group n {replica node}  preferred leader first
//	                                          2 group n {replica node} generation n {replica} move(1) [replica node remove stamp]
//	                                          1 until the first move, 2 from then on, when generation is above 0;
//	                                          the second list is the group's first configuration; move 1: one is under way
//	'r' node(u64)              removed        1 nonce:id name:str
//	's' key                    setting        value
//	't' incarnation            topic          1 state(1) name:str config
//	                                          2 state(1) name:str config number first stamp until
//	                                          states: 1 active, 2 deleting, 3 deleted; 4 retiring, 5 retired and
//	                                          6 restoring in 2 only, which is from the first deletion with a grace on
//	'v'                        moves          how many are under way; none: 0
//	'x' epoch(u64)             recovery       1 held(1) plan:id stamp n {node} n {group replica} n {group}
//	                                          the nodes that it left behind; partitions as in the command
//
//	conf = {n replica} x 4: voters, learners, outgoing voters, next learners; auto-leave(1)
//
// Of this node alone, on Pebble and in no snapshot:
//
//	'L' 'g'                    generation in use (u32)
//	'L' 's'                    generation (u32) of a state that waits for the
//	                           reset (u64) of this replica's log; generations.go
//	'L' 'd'                    index (u64), own hash(32) and agreed hash(32) of a state
//	                           that is not what a majority has; statehash.go
//
// The hash of a state is sha256 of
//
//	1 {key:str value:str} ... number-of-keys(u64)      all keys, ascending
//
// A snapshot is a header, chunks of keys and values in ascending order without
// 'a' and 'f', and an end. All three travel as:
//
//	 0            4          8      9
//	+------------+----------+------+-----------
//	| length u32 | crc  u32 | kind | body ...      length: of kind and body
//	+------------+----------+------+-----------    crc32c: of the chunk's number (u32), kind and body
//
//	kind 1 header  snapshot-version layout-version newest-type index term conf
//	kind 2 chunk   {key:str value:str} ...
//	kind 3 end     number of keys
//
// A stream "meta.snapshot": the asker sends chunk 0 of kind 4; the answer is chunk
// 0 of kind 5, and behind it, unless it is a refusal, a snapshot whose chunks are
// numbered on. The rest of a snapshot is one too, of the keys behind the one that
// was named, and its end counts those alone.
//
//	kind 4 request  1 replica above index term behind:str    index 0: of nothing
//	kind 5 answer   1 kind(1): 1 whole, 2 rest: term of who answers
//	                           3 refused: reason:str
//	                           4 whole, 5 rest, of version 3: term hash(32), on which a
//	                           majority of the voters agreed
//
// A call "meta.propose": the request is a command, the answer is
//
//	1 index leader-node kind(1) ...    index: where it was applied, refused or not; 0: it was not
//
//	 kind 0 no result
//	      1 topic     incarnation:id state(1) name:str config n partition-value
//	      2 producer  id epoch
//	      3 error     code(1) outcome(1) text:str
//	                  code 5: code(1) outcome(1) field:str value:str allowed:str
//	                  code 6: code(1) outcome(1) name:str held epoch
//	                  code 7: code(1) outcome(1) node name:str
//	                  code 8: code(1) outcome(1) needs has
//	                  code 9: code(1) outcome(1) newest needs
//	                  code 24: code(1) outcome(1) name:str incarnation:id stamp until
//	      4 member    member liveness-value
//	      5 each      n { 0 or 1, error as above }      0: done
//	      6 move      index partition-value
//	      7 flag      0 or 1
//	      8 topic     incarnation:id topic-value n partition-value      topic-value: of 't', in version 2
//
// A call "meta.confirm", of version 3: the request is
//
//	1 nonce:id epoch replica index n {voter} n {outgoing voter} kind(1) ...
//
//	 kind 1 incarnation:id    is dead
//	      2 group replica     is removed
//
// epoch: recovery epoch; replica: of group 1, that is asked; index: what the
// answer has to cover; the voters, and the outgoing ones while joint, are those as
// of it. The answer is
//
//	1 nonce:id epoch replica applied says(1)
//
//	 says 1 yes                 3 not that far yet   5 another recovery epoch   7 another replica
//	      2 no, at that index   4 held               6 other voters
//
// A call "meta.statehash", of version 3: the request is
//
//	1 nonce:id epoch replica index
//
// nonce and index of a command 28; epoch: recovery epoch; replica: of group 1, that
// is asked. The answer is
//
//	1 nonce:id epoch replica index has(1) [hash(32)]      epoch and replica of who answers
//
//	 has 1 the hash      3 not applied or hashed yet      5 another replica
//	     2 none          4 another recovery epoch
const (
	layoutVersion    = 1
	snapshotVersion  = 1
	recordVersion    = 1
	partitionVersion = 2 // newest of a partition's record
	topicVersion     = 2 // and of a topic's
	commandVersion   = 1
	answerVersion    = 1
)

// Limits of what is decoded.
const (
	maxSettingKey   = 128
	maxSettingValue = 64 << 10
	maxCommandBytes = 1 << 20
)

// CommandType is the number of a command. What a build can apply, and so which
// logs and states it can go on from, is told by the newest one that it knows.
type CommandType uint16

const (
	typeGenesis          CommandType = 1
	typeNoop             CommandType = 2
	typeCreateTopic      CommandType = 3
	typeTopicDeleting    CommandType = 4
	typeTopicDeleted     CommandType = 5
	typeAllocateProducer CommandType = 6
	typeSetAddress       CommandType = 7
	typeSetSetting       CommandType = 8
	typeCreateLimited    CommandType = 9
	typeSetVersion       CommandType = 10
	typeAdmit            CommandType = 11
	typeHeartbeats       CommandType = 12
	typeMarkDead         CommandType = 13
	typeSetDeparture     CommandType = 14
	typeRemoveMember     CommandType = 15
	typeStartMove        CommandType = 16
	typeFinishMove       CommandType = 17
	typeCancelMove       CommandType = 18
	typeSeed             CommandType = 19
	typeRecover          CommandType = 20
	typeEndHold          CommandType = 21
	// typeConfirms is no command: see above.
	typeConfirms       CommandType = 22
	typeCreateRetained CommandType = 23
	typeSetRetention   CommandType = 24
	typeSeedRetained   CommandType = 25
	typeRetireTopic    CommandType = 26
	typeStepTopic      CommandType = 27
	typeHashState      CommandType = 28
	typeStateAgreed    CommandType = 29
)

// NewestCommand is the newest command that this build applies: what a node
// announces when it joins and with its heartbeats.
const NewestCommand = typeStateAgreed
