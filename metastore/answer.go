package metastore

import (
	"errors"

	"github.com/stelelog/stele/raftlog"
)

// answer is what an attempt to propose came to.
type answer struct {
	index  raftlog.Index // where it was applied, refused or not; 0: it was not, or who knows
	value  any           // *Topic, producer, Member, []error, Partition, bool or nil
	err    error         // with an outcome
	leader raftlog.NodeID
}

// failedAnswer is that of an attempt which the state machine did not answer.
// An error that says nothing of its outcome leaves it unknown.
func failedAnswer(err error) answer {
	a := answer{err: err}
	var notLeader *raftlog.NotLeaderError
	if errors.As(err, &notLeader) {
		a.leader = notLeader.Node
	}
	if raftlog.OutcomeOf(err) == raftlog.OutcomeUnknown && !errors.Is(err, raftlog.ErrOutcomeUnknown) {
		a.err = raftlog.Unknown(err)
	}
	return a
}

// Kinds of results.
const (
	resultNone     byte = 0
	resultTopic    byte = 1
	resultProducer byte = 2
	resultError    byte = 3
	resultMember   byte = 4
	resultEach     byte = 5
	resultMove     byte = 6
	resultFlag     byte = 7
	resultRetired  byte = 8
)

// Codes of errors.
const (
	codeOther          byte = 0
	codeTopicExists    byte = 1
	codeTopicNotFound  byte = 2
	codeTopicDeleting  byte = 3
	codeMemberNotFound byte = 4
	codeInvalid        byte = 5
	codeFenced         byte = 6
	codeRemoved        byte = 7
	codeClusterVersion byte = 8
	codeOlderRelease   byte = 9
	codeNonceRefused   byte = 10
	codeNameTaken      byte = 11
	codeStale          byte = 12
	codeMemberDead     byte = 13
	codeMemberDraining byte = 14
	codeMemberLeaving  byte = 15
	codeNotDraining    byte = 16
	codeNotLeaving     byte = 17
	codeMemberInUse    byte = 18
	codeMovePending    byte = 19
	codeTooManyMoves   byte = 20
	codeReplicaExists  byte = 21
	codeTooFewNodes    byte = 22
	codeRestoring      byte = 23
	codeRetired        byte = 24

	newestCode = codeRetired
)

// sentinel returns the error that a code stands for, nil for the others.
func sentinel(code byte) error {
	switch code {
	case codeTopicExists:
		return ErrTopicExists
	case codeTopicNotFound:
		return ErrTopicNotFound
	case codeTopicDeleting:
		return ErrTopicDeleting
	case codeMemberNotFound:
		return ErrMemberNotFound
	case codeNonceRefused:
		return ErrNonceRefused
	case codeNameTaken:
		return ErrNameTaken
	case codeStale:
		return ErrStale
	case codeMemberDead:
		return ErrMemberDead
	case codeMemberDraining:
		return ErrMemberDraining
	case codeMemberLeaving:
		return ErrMemberLeaving
	case codeNotDraining:
		return ErrNotDraining
	case codeNotLeaving:
		return ErrNotLeaving
	case codeMemberInUse:
		return ErrMemberInUse
	case codeMovePending:
		return ErrMovePending
	case codeTooManyMoves:
		return ErrTooManyMoves
	case codeReplicaExists:
		return ErrReplicaExists
	case codeTooFewNodes:
		return ErrTooFewNodes
	case codeRestoring:
		return ErrTopicRestoring
	}
	return nil
}

func encodeAnswer(a answer) []byte {
	b := appendUint(appendUint([]byte{answerVersion}, uint64(a.index)), uint64(a.leader))
	if a.err != nil {
		return appendError(append(b, resultError), a.err)
	}
	switch v := a.value.(type) {
	case *Topic:
		return appendTopic(b, v)
	case producer:
		return appendProducer(append(b, resultProducer), v)
	case Member:
		return appendLiveness(appendMember(append(b, resultMember), v), v.Liveness)
	case []error:
		return appendEach(append(b, resultEach), v)
	case Partition:
		return appendPartition(appendUint(append(b, resultMove), uint64(v.Index)), v)
	case bool:
		return appendFlag(append(b, resultFlag), v)
	}
	return append(b, resultNone)
}

// decodeAnswer reads what encodeAnswer wrote. What cannot be read says nothing
// of what happened.
func decodeAnswer(b []byte) (a answer) {
	d := decoder{b: b}
	d.version(answerVersion)
	a.index = raftlog.Index(d.uint())
	a.leader = raftlog.NodeID(d.uint())
	switch kind := d.byte(); kind {
	case resultNone:
	case resultTopic:
		a.value = d.topic((*decoder).topicHead)
	case resultRetired:
		a.value = d.topic((*decoder).topicRecord)
		if t := a.value.(*Topic); d.err == nil && t.Deletion.Number == 0 {
			d.fail("a topic that was never deleted")
		}
	case resultProducer:
		a.value = d.producer()
	case resultError:
		a.err = d.error()
	case resultMember:
		m := d.member()
		m.Liveness = d.liveness()
		a.value = m
	case resultEach:
		a.value = d.each()
	case resultMove:
		a.value = d.partition(d.uint32())
	case resultFlag:
		a.value = d.flag()
	default:
		d.fail("result of kind %d", kind)
	}
	if err := d.end(); err != nil {
		return answer{err: raftlog.Unknown(err)}
	}
	return a
}

func appendTopic(b []byte, t *Topic) []byte {
	head := topicHead{t.State, t.Name, t.Config, t.Deletion}
	if t.Deletion.Number == 0 {
		b = appendTopicHead(append(append(b, resultTopic), t.Incarnation[:]...), head)
	} else {
		b = append(append(append(b, resultRetired), t.Incarnation[:]...), head.encode()...)
	}
	b = appendUint(b, uint64(len(t.Partitions)))
	for _, p := range t.Partitions {
		b = appendPartition(b, p)
	}
	return b
}

func (d *decoder) topic(readHead func(*decoder) topicHead) *Topic {
	t := &Topic{Incarnation: d.id16()}
	head := readHead(d)
	t.State, t.Name, t.Config, t.Deletion = head.State, head.Name, head.Config, head.Deletion
	for i := range d.count(3) {
		t.Partitions = append(t.Partitions, d.partition(uint32(i)))
	}
	return t
}

// appendEach adds an error, or none, for each item of a command.
func appendEach(b []byte, each []error) []byte {
	b = appendUint(b, uint64(len(each)))
	for _, err := range each {
		if b = appendFlag(b, err != nil); err != nil {
			b = appendError(b, err)
		}
	}
	return b
}

func (d *decoder) each() []error {
	each := make([]error, d.count(1))
	for i := range each {
		if d.flag() {
			each[i] = d.error()
		}
	}
	return each
}

func appendError(b []byte, err error) []byte {
	code := codeOther
	for c := codeOther; c <= newestCode; c++ {
		if is := sentinel(c); is != nil && errors.Is(err, is) {
			code = c
		}
	}
	var invalid *InvalidError
	var fenced *ProducerFencedError
	var removed *RemovedError
	var version *ClusterVersionError
	var older *OlderReleaseError
	var retired *TopicRetiredError
	outcome := byte(raftlog.OutcomeOf(err))
	switch {
	case errors.As(err, &invalid):
		b = append(b, codeInvalid, outcome)
		return appendString(appendString(appendString(b, invalid.Field), invalid.Value), invalid.Allowed)
	case errors.As(err, &fenced):
		b = appendString(append(b, codeFenced, outcome), fenced.Name)
		return appendUint(appendUint(b, uint64(fenced.Held)), uint64(fenced.Epoch))
	case errors.As(err, &removed):
		return appendString(appendUint(append(b, codeRemoved, outcome), uint64(removed.Node)), removed.Name)
	case errors.As(err, &version):
		return appendUint(appendUint(append(b, codeClusterVersion, outcome), version.Needs), version.Has)
	case errors.As(err, &older):
		return appendUint(appendUint(append(b, codeOlderRelease, outcome), uint64(older.Newest)), uint64(older.Needs))
	}
	if errors.As(err, &retired) {
		b = appendString(append(b, codeRetired, outcome), retired.Name)
		return appendUint(appendUint(append(b, retired.Incarnation[:]...), uint64(retired.At)), uint64(retired.Until))
	}
	text := err.Error()
	return appendString(append(b, code, outcome), text[:min(len(text), maxErrorText)])
}

// maxErrorText bounds each text of an error that travels, in bytes.
const maxErrorText = 1 << 12

func (d *decoder) error() error {
	code, outcome := d.byte(), raftlog.Outcome(d.byte())
	switch code {
	case codeInvalid:
		return &InvalidError{d.string(maxErrorText), d.string(maxErrorText), d.string(maxErrorText)}
	case codeFenced:
		return &ProducerFencedError{d.string(maxProducerName), d.uint32(), d.uint32()}
	case codeRemoved:
		return &RemovedError{raftlog.NodeID(d.uint()), d.string(maxMemberName)}
	case codeClusterVersion:
		return &ClusterVersionError{Needs: d.uint(), Has: d.uint()}
	case codeOlderRelease:
		return &OlderReleaseError{d.commandType(), d.commandType()}
	case codeRetired:
		return &TopicRetiredError{d.string(maxNameBytes), d.id16(), Stamp(d.uint()), Stamp(d.uint())}
	}
	e := &peerError{text: d.string(maxErrorText), is: sentinel(code)}
	if e.is != nil {
		return e // it has an outcome
	}
	switch {
	case outcome == raftlog.OutcomeRetry && code == codeOther:
		e.is = raftlog.ErrRetry
	case outcome == raftlog.OutcomeRefused && code == codeOther:
		e.is = raftlog.ErrRefused
	default:
		e.is = raftlog.ErrOutcomeUnknown
	}
	return e
}

// peerError is an error that another node answered.
type peerError struct {
	text string
	is   error
}

func (e *peerError) Error() string { return e.text }

// Unwrap gives the refusal or the outcome.
func (e *peerError) Unwrap() error { return e.is }
