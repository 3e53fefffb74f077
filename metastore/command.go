package metastore

import (
	"encoding/binary"

	"github.com/stelelog/stele/raftlog"
)

// command is one change of the metadata. Its apply decides from the state and
// the command alone: what differs between replicas (time, randomness) is made
// by the proposer and is in the command.
type command interface {
	kind() CommandType
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
// those that bring more records. To move a replica brings some to one node, and
// is how another gets rid of them.
func essential(command []byte) bool {
	if len(command) < 2 {
		return false
	}
	switch CommandType(binary.BigEndian.Uint16(command)) {
	case typeCreateTopic, typeCreateLimited, typeCreateRetained, typeAllocateProducer, typeSeed, typeSeedRetained:
		return false
	}
	return true
}

// decodeCommand reads what encodeCommand wrote. Of a command above newest it
// returns an *UnknownCommandError.
func decodeCommand(b []byte, newest CommandType) (command, error) {
	d := decoder{b: b}
	head := d.bytes(3)
	if d.err != nil {
		return nil, d.err
	}
	kind, version := CommandType(binary.BigEndian.Uint16(head)), head[2]
	if kind == 0 || kind > newest || kind.unassigned() || version == 0 || version > commandVersion {
		return nil, &UnknownCommandError{uint16(kind), version}
	}
	c := d.command(kind)
	return c, d.end()
}

// unassigned: there is no such command.
func (c CommandType) unassigned() bool { return c == typeConfirms }

func (d *decoder) command(kind CommandType) command {
	switch kind {
	case typeGenesis:
		return d.genesis()
	case typeCreateTopic, typeCreateLimited, typeCreateRetained:
		return d.createTopic(kind)
	case typeTopicDeleting:
		return topicDeleting{d.id16()}
	case typeTopicDeleted:
		return topicDeleted{d.id16()}
	case typeAllocateProducer:
		return d.allocateProducer()
	case typeSetAddress:
		return setAddress{raftlog.NodeID(d.uint()), d.id16(), d.string(maxAddr)}
	case typeSetSetting:
		return d.setSetting()
	case typeSetVersion:
		return setVersion{d.uint()}
	}
	return d.memberCommand(kind)
}

// memberCommand reads the commands that came with members, moves and seeds.
func (d *decoder) memberCommand(kind CommandType) command {
	switch kind {
	case typeAdmit:
		return d.admit()
	case typeHeartbeats:
		return d.heartbeats()
	case typeMarkDead:
		return d.markDead()
	case typeSetDeparture:
		return setDeparture{raftlog.NodeID(d.uint()), d.id16(), d.departure()}
	case typeRemoveMember:
		return removeMember{raftlog.NodeID(d.uint())}
	case typeStartMove:
		return d.startMove()
	case typeFinishMove:
		return finishMove{d.endMove()}
	case typeCancelMove:
		return cancelMove{d.endMove()}
	case typeSeed, typeSeedRetained:
		return d.seed(kind)
	case typeSetRetention:
		return d.setRetention()
	case typeRetireTopic:
		return d.retireTopic()
	case typeStepTopic:
		return d.stepTopic()
	case typeRecover:
		return d.recovery()
	case typeEndHold:
		return endHold{d.uintMax(maxEpoch)}
	case typeHashState:
		return hashState{d.id16()}
	case typeStateAgreed:
		return d.stateAgreed()
	}
	return noop{}
}

// noop changes nothing but the applied index.
type noop struct{}

func (noop) kind() CommandType          { return typeNoop }
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

// kind: a build that does not know of a limit or a retention must not skip it, so
// that the command that sets one is of another type. All others stay what such
// builds can apply.
func (c createTopic) kind() CommandType {
	switch {
	case !c.Config.Retention.IsZero():
		return typeCreateRetained
	case c.Config.limitsRecords():
		return typeCreateLimited
	}
	return typeCreateTopic
}

func (d *decoder) createTopic(kind CommandType) createTopic {
	c := d.createTopicBody()
	if d.err == nil && c.kind() != kind {
		d.fail("a config %+v in a command of type %d", c.Config, kind)
	}
	return c
}

func (d *decoder) createTopicBody() createTopic {
	return createTopic{Incarnation: d.id16(), Name: d.string(maxNameBytes), Config: d.config()}
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

func (topicDeleting) kind() CommandType            { return typeTopicDeleting }
func (c topicDeleting) appendBody(b []byte) []byte { return append(b, c.Incarnation[:]...) }
func (topicDeleting) check() error                 { return nil }

// topicDeleted ends a topic whose partitions are sealed, and frees its name.
type topicDeleted struct{ Incarnation raftlog.Incarnation }

func (topicDeleted) kind() CommandType            { return typeTopicDeleted }
func (c topicDeleted) appendBody(b []byte) []byte { return append(b, c.Incarnation[:]...) }
func (topicDeleted) check() error                 { return nil }

// allocateProducer gives out a new producer id or, for a name that has one, the
// next epoch, by compare and set: it says what the proposer holds, so that it
// may be applied twice and grants one epoch. Without a name, a second copy
// wastes an id.
type allocateProducer ProducerRequest

const maxProducerName = 255

func (allocateProducer) kind() CommandType { return typeAllocateProducer }

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

func (setAddress) kind() CommandType { return typeSetAddress }
func (c setAddress) check() error    { return checkAddr(c.Addr) }

func (c setAddress) appendBody(b []byte) []byte {
	return appendString(append(appendUint(b, uint64(c.Node)), c.Nonce[:]...), c.Addr)
}

// setSetting changes a cluster-wide setting.
type setSetting struct{ Key, Value string }

func (setSetting) kind() CommandType { return typeSetSetting }

func (c setSetting) appendBody(b []byte) []byte {
	return appendString(appendString(b, c.Key), c.Value)
}

func (d *decoder) setSetting() setSetting {
	return setSetting{d.string(maxSettingKey), d.string(maxSettingValue)}
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

func (Genesis) kind() CommandType { return typeGenesis }

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
