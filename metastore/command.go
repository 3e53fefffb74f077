package metastore

import (
	"encoding/binary"

	"github.com/stelelog/stele/raftlog"
)

// command is one change of the metadata. Its apply decides from the state and
// the command alone: what differs between replicas (time, randomness) is made
// by the proposer and is in the command.
type command interface {
	kind() commandType
	// appendBody adds the encoding of what follows the header.
	appendBody(b []byte) []byte
	// check refuses what no state would accept, with an *InvalidError.
	check() error
	// apply changes t, or refuses with an error that is the command's result.
	// What it wrote before it refused is dropped.
	apply(t *tx) (any, error)
}

func encodeCommand(c command) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(c.kind()))
	return c.appendBody(append(b, commandVersion))
}

// essential reports whether a command is taken in on a full disk too: all but
// those that bring more records.
func essential(command []byte) bool {
	if len(command) < 2 {
		return false
	}
	switch commandType(binary.BigEndian.Uint16(command)) {
	case typeCreateTopic, typeAllocateProducer:
		return false
	}
	return true
}

// decodeCommand reads what encodeCommand wrote. Of a command that a newer
// build made it returns an *UnknownCommandError.
func decodeCommand(b []byte) (command, error) {
	d := decoder{b: b}
	head := d.bytes(3)
	if d.err != nil {
		return nil, d.err
	}
	kind, version := commandType(binary.BigEndian.Uint16(head)), head[2]
	if kind == 0 || kind > newestCommand || version == 0 || version > commandVersion {
		return nil, &UnknownCommandError{uint16(kind), version}
	}
	c := d.command(kind)
	return c, d.end()
}

func (d *decoder) command(kind commandType) command {
	switch kind {
	case typeGenesis:
		return d.genesis()
	case typeCreateTopic:
		return d.createTopic(false)
	case typeCreateLimited:
		return d.createTopic(true)
	case typeTopicDeleting:
		return topicDeleting{d.id16()}
	case typeTopicDeleted:
		return topicDeleted{d.id16()}
	case typeAllocateProducer:
		return d.allocateProducer()
	case typeSetAddress:
		return setAddress{raftlog.NodeID(d.uint()), d.id16(), d.string(maxAddr)}
	case typeSetSetting:
		return setSetting{d.string(maxSettingKey), d.string(maxSettingValue)}
	}
	return noop{}
}

// noop changes nothing but the applied index.
type noop struct{}

func (noop) kind() commandType          { return typeNoop }
func (noop) appendBody(b []byte) []byte { return b }
func (noop) check() error               { return nil }
func (noop) apply(*tx) (any, error)     { return nil, nil }

// createTopic carries wishes; where the replicas go and which ids they get is
// decided when it is applied, from the state of that index. So a proposal is
// never stale, and a proposer needs no view of the members.
type createTopic struct {
	Incarnation raftlog.Incarnation
	Name        string
	Config      TopicConfig
}

// kind: a build that does not know of a limit must not skip it, so that the
// command that sets one is of another type. All others stay what such builds can
// apply.
func (c createTopic) kind() commandType {
	if c.Config.limitsRecords() {
		return typeCreateLimited
	}
	return typeCreateTopic
}

func (d *decoder) createTopic(limited bool) createTopic {
	c := createTopic{Incarnation: d.id16(), Name: d.string(maxNameBytes), Config: d.config()}
	if c.Config.limitsRecords() != limited {
		d.fail("a limit of %d bytes for records", c.Config.MaxRecordBytes)
	}
	return c
}

func (c createTopic) appendBody(b []byte) []byte {
	return appendConfig(appendString(append(b, c.Incarnation[:]...), c.Name), c.Config)
}

func (c createTopic) check() error {
	if c.Incarnation.IsZero() {
		return invalid("TopicSpec.Incarnation", c.Incarnation, "not zero")
	}
	if err := checkTopicName(c.Name); err != nil {
		return err
	}
	return c.Config.check()
}

// topicDeleting begins the end of a topic.
type topicDeleting struct{ Incarnation raftlog.Incarnation }

func (topicDeleting) kind() commandType            { return typeTopicDeleting }
func (c topicDeleting) appendBody(b []byte) []byte { return append(b, c.Incarnation[:]...) }
func (topicDeleting) check() error                 { return nil }

// topicDeleted ends a topic whose partitions are sealed, and frees its name.
type topicDeleted struct{ Incarnation raftlog.Incarnation }

func (topicDeleted) kind() commandType            { return typeTopicDeleted }
func (c topicDeleted) appendBody(b []byte) []byte { return append(b, c.Incarnation[:]...) }
func (topicDeleted) check() error                 { return nil }

// allocateProducer gives out a new producer id or, for a name that has one, the
// next epoch, by compare and set: it says what the proposer holds, so that it
// may be applied twice and grants one epoch. Without a name, a second copy
// wastes an id.
type allocateProducer ProducerRequest

const maxProducerName = 255

func (allocateProducer) kind() commandType { return typeAllocateProducer }

func (c allocateProducer) appendBody(b []byte) []byte {
	b = append(appendString(b, c.Name), c.Token[:]...)
	if !c.Holds {
		return append(b, 0)
	}
	return appendUint(append(b, 1), uint64(c.Held))
}

func (d *decoder) allocateProducer() (c allocateProducer) {
	c.Name, c.Token, c.Holds = d.string(maxProducerName), d.id16(), d.flag()
	if c.Holds {
		c.Held = d.uint32()
	}
	return c
}

func (c allocateProducer) check() error {
	switch {
	case len(c.Name) > maxProducerName:
		return invalid("ProducerRequest.Name", c.Name, "up to %d bytes", maxProducerName)
	case c.Name != "" && c.Token == [16]byte{}:
		return invalid("ProducerRequest.Token", "zero", "random bytes for a producer with a name")
	}
	return nil
}

// setAddress changes where a member is reached; the nonce says which life of
// it speaks.
type setAddress struct {
	Node  raftlog.NodeID
	Nonce raftlog.Nonce
	Addr  string
}

func (setAddress) kind() commandType { return typeSetAddress }
func (c setAddress) check() error    { return checkAddr(c.Addr) }

func (c setAddress) appendBody(b []byte) []byte {
	return appendString(append(appendUint(b, uint64(c.Node)), c.Nonce[:]...), c.Addr)
}

// setSetting changes a cluster-wide setting.
type setSetting struct{ Key, Value string }

func (setSetting) kind() commandType { return typeSetSetting }

func (c setSetting) appendBody(b []byte) []byte {
	return appendString(appendString(b, c.Key), c.Value)
}

func (c setSetting) check() error {
	if len(c.Key) < 1 || len(c.Key) > maxSettingKey {
		return invalid("Setting.Key", c.Key, "1 to %d bytes", maxSettingKey)
	}
	if len(c.Value) > maxSettingValue {
		return invalid("Setting.Value", len(c.Value), "up to %d bytes", maxSettingValue)
	}
	return nil
}

func (Genesis) kind() commandType { return typeGenesis }

func (g Genesis) appendBody(b []byte) []byte {
	b = appendUint(append(b, g.ClusterID[:]...), g.Epoch)
	b = appendUint(b, uint64(len(g.Members)))
	for _, m := range g.Members {
		b = appendMember(b, m)
	}
	return b
}

func (d *decoder) genesis() (g Genesis) {
	g.ClusterID = d.id16()
	g.Epoch = d.uint()
	for range d.count(minMemberBytes) {
		g.Members = append(g.Members, d.member())
	}
	return g
}
