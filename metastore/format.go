package metastore

// Formats, layout version 1. Integers are unsigned varints in their shortest
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
//
//	member = node replica nonce:id name:str addr:str
//	config = n { field, length, value: a varint of that length }
//	         fields in ascending order, zero ones left out:
//	         1 partitions  2 replicas  3 max batch bytes
//	         4 max record bytes, if below 16 MiB: in commands of type 9 and in what
//	           they wrote
//
// The state: sorted keys, the first byte of each says what it is. On Pebble
// they stand behind 'S' and the generation (u32), so that a restored state is
// built beside the one in use.
//
//	'a'                        applied        index term conf
//	'c' counter(1)             counter        next value, without the epoch
//	'd' incarnation            tombstone      1 name:str
//	'f'                        format         layout version, newest command type applied
//	'i' name                   named producer 1 id epoch token:id       of its holder
//	'k'                        cluster        1 cluster-id:id epoch cluster-version
//	'l' node(u64)              load           replicas leads            of all partitions
//	'm' node(u64)              member         1 member
//	'n' name in lower case     name           incarnation:id
//	'p' incarnation index(u32) partition      1 group n {replica node}  preferred leader first
//	's' key                    setting        value
//	't' incarnation            topic          1 state(1) name:str config
//
//	conf = {n replica} x 4: voters, learners, outgoing voters, next learners; auto-leave(1)
//
// Of this node alone, on Pebble and in no snapshot:
//
//	'L' 'g'                    generation in use (u32)
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
const (
	layoutVersion   = 1
	snapshotVersion = 1
	recordVersion   = 1
	commandVersion  = 1
	answerVersion   = 1
	clusterVersion  = 1
)

// Limits of what is decoded.
const (
	maxSettingKey   = 128
	maxSettingValue = 64 << 10
	maxCommandBytes = 1 << 20
)

// commandType is the number of a command.
type commandType uint16

const (
	typeGenesis          commandType = 1
	typeNoop             commandType = 2
	typeCreateTopic      commandType = 3
	typeTopicDeleting    commandType = 4
	typeTopicDeleted     commandType = 5
	typeAllocateProducer commandType = 6
	typeSetAddress       commandType = 7
	typeSetSetting       commandType = 8
	typeCreateLimited    commandType = 9

	newestCommand = typeCreateLimited
)
