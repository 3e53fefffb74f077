package metastore

import (
	"encoding/binary"
	"math"
	"strings"
	"time"

	"github.com/stelelog/stele/raftlog"
)

// The first bytes of the state's keys.
const (
	tableApplied   = 'a'
	tableCounter   = 'c'
	tableTombstone = 'd'
	tableSeeded    = 'e'
	tableFormat    = 'f'
	tableLiveness  = 'h'
	tableProducer  = 'i'
	tableCluster   = 'k'
	tableLoad      = 'l'
	tableMember    = 'm'
	tableName      = 'n'
	tableOut       = 'o'
	tablePartition = 'p'
	tableRemoved   = 'r'
	tableSetting   = 's'
	tableTopic     = 't'
	tableMoves     = 'v'
	tableRecovery  = 'x'
)

// tables is all of them.
const tables = "acdefhiklmnoprstvx"

// tablesOfTwo is those that came with version 2 of a cluster.
const tablesOfTwo = "ehorvx"

func keyNode(table byte, n raftlog.NodeID) []byte {
	return binary.BigEndian.AppendUint64([]byte{table}, uint64(n))
}

func keyIncarnation(table byte, i raftlog.Incarnation) []byte {
	return append([]byte{table}, i[:]...)
}

func keyString(table byte, s string) []byte { return append([]byte{table}, s...) }

// keyName: names that differ only in case are the same name.
func keyName(name string) []byte { return keyString(tableName, foldName(name)) }

// foldName: topic names are ASCII.
func foldName(name string) string { return strings.ToLower(name) }

func keyPartition(i raftlog.Incarnation, index uint32) []byte {
	return binary.BigEndian.AppendUint32(keyIncarnation(tablePartition, i), index)
}

// applied is how far the state machine is: of the same batch as the effects.
type applied struct {
	Index raftlog.Index
	Term  raftlog.Term
	Conf  raftlog.ConfState // as of Index
}

func (a applied) encode() []byte {
	return appendConf(appendUint(appendUint(nil, uint64(a.Index)), uint64(a.Term)), a.Conf)
}

func (d *decoder) applied() applied {
	return applied{raftlog.Index(d.uint()), raftlog.Term(d.uint()), d.conf()}
}

// format says what a build must know to read the state and to go on from it.
type format struct {
	Layout uint64
	Newest CommandType // newest type that was ever applied
}

func (f format) encode() []byte {
	return appendUint(appendUint(nil, f.Layout), uint64(f.Newest))
}

func (d *decoder) format() format {
	return format{d.uint(), d.commandType()}
}

// know refuses what a newer build than one that applies commands up to newest
// wrote.
func (f format) know(newest CommandType) error {
	if f.Layout > layoutVersion {
		return &NewerStateError{"layout version", f.Layout, layoutVersion}
	}
	if f.Newest > newest {
		return &NewerStateError{"newest command type", uint64(f.Newest), uint64(newest)}
	}
	return nil
}

// cluster is what the genesis said of the cluster as a whole.
type cluster struct {
	ID      raftlog.ClusterID
	Epoch   uint64
	Version uint64
}

func (c cluster) encode() []byte {
	b := append([]byte{recordVersion}, c.ID[:]...)
	return appendUint(appendUint(b, c.Epoch), c.Version)
}

func (d *decoder) cluster() (c cluster) {
	d.version(recordVersion)
	return cluster{d.id16(), d.uintMax(maxEpoch), d.uint()}
}

// load counts what a member holds of all topics.
type load struct{ Replicas, Leads uint64 }

func (l load) encode() []byte { return appendUint(appendUint(nil, l.Replicas), l.Leads) }

func (d *decoder) load() load { return load{d.uint(), d.uint()} }

// limitsRecords reports whether records are to be smaller than any topic's.
func (c TopicConfig) limitsRecords() bool {
	return c.MaxRecordBytes != 0 && c.MaxRecordBytes != MaxRecordBytes
}

func appendConfig(b []byte, c TopicConfig) []byte {
	fields := [...]uint64{uint64(c.Partitions), uint64(c.Replicas), uint64(c.MaxBatchBytes), 0,
		uint64(c.Retention.rounded().Age.Milliseconds()), uint64(c.Retention.Bytes)}
	if c.limitsRecords() {
		fields[3] = uint64(c.MaxRecordBytes)
	}
	n := 0
	for _, v := range fields {
		if v != 0 {
			n++
		}
	}
	b = appendUint(b, uint64(n))
	for i, v := range fields {
		if v != 0 {
			value := appendUint(nil, v)
			b = append(appendUint(appendUint(b, uint64(i+1)), uint64(len(value))), value...)
		}
	}
	return b
}

func (d *decoder) config() (c TopicConfig) {
	last := uint64(0)
	for range d.count(3) { // of at least so many bytes
		id := d.uint()
		value := decoder{b: d.bytes(int(d.uintMax(binary.MaxVarintLen64)))}
		v := value.uintMax(MaxRetentionBytes)
		if err := value.end(); err != nil && d.err == nil {
			d.fail("config field %d: %v", id, err)
		}
		if id <= last || v == 0 {
			d.fail("config field %d is out of order or zero", id)
		}
		last = id
		if id < 5 && v > math.MaxUint32 {
			d.fail("config field %d is %d", id, v)
		}
		switch id {
		case 1:
			c.Partitions = uint32(v)
		case 2:
			c.Replicas = uint32(v)
		case 3:
			c.MaxBatchBytes = uint32(v)
		case 4:
			if c.MaxRecordBytes = uint32(v); !c.limitsRecords() {
				d.fail("config field %d is its default", id)
			}
		case 5:
			if v > uint64(MaxRetentionAge.Milliseconds()) {
				d.fail("config field %d is %d", id, v)
			}
			c.Retention.Age = time.Duration(v) * time.Millisecond
		case 6:
			c.Retention.Bytes = int64(v)
		default:
			d.fail("config field %d is not known", id)
		}
	}
	return c
}

// topicHead is a topic without its partitions, which have keys of their own.
type topicHead struct {
	State    TopicState
	Name     string
	Config   TopicConfig
	Deletion Deletion
}

func appendTopicHead(b []byte, t topicHead) []byte {
	return appendConfig(appendString(append(b, byte(t.State)), t.Name), t.Config)
}

func (d *decoder) topicHead() (t topicHead) {
	t.State = TopicState(d.byte())
	if d.err == nil && (t.State < TopicActive || t.State > newestState) {
		d.fail("topic state %d", t.State)
	}
	t.Name = d.string(maxNameBytes)
	if t.Config = d.config(); t.Config.MaxRecordBytes == 0 {
		t.Config.MaxRecordBytes = MaxRecordBytes
	}
	return t
}

// encode: until its first deletion with a grace a topic is what the first release
// writes.
func (t topicHead) encode() []byte {
	if t.Deletion.Number == 0 {
		return appendTopicHead([]byte{1}, t)
	}
	b := appendUint(appendUint(appendTopicHead([]byte{2}, t), t.Deletion.Number), t.Deletion.First)
	return appendUint(appendUint(b, uint64(t.Deletion.At)), uint64(t.Deletion.Until))
}

func (d *decoder) topicRecord() (t topicHead) {
	version := d.versionUpTo(topicVersion)
	t = d.topicHead()
	if version == 2 {
		if t.Deletion = (Deletion{d.uint(), d.uint(), Stamp(d.uint()), Stamp(d.uint())}); t.Deletion.Number == 0 {
			d.fail("a topic of version 2 that was never deleted")
		}
	} else if t.State > TopicDeleted {
		d.fail("topic state %d in version 1", t.State)
	}
	return t
}

// appendPartition: until its first move a partition is what the first release
// writes.
func appendPartition(b []byte, p Partition) []byte {
	version := byte(1)
	if p.Generation > 0 {
		version = 2
	}
	b = appendUint(append(b, version), uint64(p.Group))
	b = appendUint(b, uint64(len(p.Replicas)))
	for _, a := range p.Replicas {
		b = appendAssignment(b, a)
	}
	if version == 1 {
		return b
	}
	b = appendReplicas(appendUint(b, p.Generation), p.first)
	if p.Target == nil {
		return append(b, 0)
	}
	b = appendAssignment(append(b, 1), p.Target.Add)
	return appendUint(appendUint(b, uint64(p.Target.Remove)), uint64(p.Target.Started))
}

func appendAssignment(b []byte, a Assignment) []byte {
	return appendUint(appendUint(b, uint64(a.Replica)), uint64(a.Node))
}

func (d *decoder) assignment() Assignment {
	return Assignment{raftlog.ReplicaID(d.uint()), raftlog.NodeID(d.uint())}
}

// partition reads a partition's value; its index is in the key.
func (d *decoder) partition(index uint32) Partition {
	version := d.versionUpTo(partitionVersion)
	p := Partition{Index: index, Group: raftlog.GroupID(d.uint())}
	if n := d.count(2); n > 0 {
		p.Replicas = make([]Assignment, n)
	}
	for i := range p.Replicas {
		p.Replicas[i] = d.assignment()
	}
	if version < 2 {
		return p
	}
	if p.Generation = d.uint(); p.Generation == 0 {
		d.fail("a partition of version 2 that was never moved")
	}
	p.first = d.replicas()
	if d.flag() {
		p.Target = &Target{d.assignment(), raftlog.ReplicaID(d.uint()), Stamp(d.uint())}
	}
	return p
}

func encodeTombstone(name string) []byte { return appendString([]byte{recordVersion}, name) }

func (d *decoder) tombstone() string {
	d.version(recordVersion)
	return d.string(maxNameBytes)
}

// producer is what a producer writes with.
type producer struct {
	ID    ProducerID
	Epoch uint32
}

func appendProducer(b []byte, p producer) []byte {
	return appendUint(appendUint(b, uint64(p.ID)), uint64(p.Epoch))
}

func (d *decoder) producer() producer { return producer{ProducerID(d.uint()), d.uint32()} }

// namedProducer is a producer's name: what was given out last, and to whom.
type namedProducer struct {
	producer
	Token [16]byte
}

func (n namedProducer) encode() []byte {
	return append(appendProducer([]byte{recordVersion}, n.producer), n.Token[:]...)
}

func (d *decoder) namedProducer() namedProducer {
	d.version(recordVersion)
	return namedProducer{d.producer(), d.id16()}
}
