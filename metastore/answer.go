package metastore

import (
	"errors"

	"github.com/stelelog/stele/raftlog"
)

// answer is what an attempt to propose came to.
type answer struct {
	index  raftlog.Index // where it was applied, refused or not; 0: it was not, or who knows
	value  any           // *Topic, producer or nil
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
		return appendTopic(append(b, resultTopic), v)
	case producer:
		return appendProducer(append(b, resultProducer), v)
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
		a.value = d.topic()
	case resultProducer:
		a.value = d.producer()
	case resultError:
		a.err = d.error()
	default:
		d.fail("result of kind %d", kind)
	}
	if err := d.end(); err != nil {
		return answer{err: raftlog.Unknown(err)}
	}
	return a
}

func appendTopic(b []byte, t *Topic) []byte {
	b = appendTopicHead(append(b, t.Incarnation[:]...), topicHead{t.State, t.Name, t.Config})
	b = appendUint(b, uint64(len(t.Partitions)))
	for _, p := range t.Partitions {
		b = appendPartition(b, p)
	}
	return b
}

func (d *decoder) topic() *Topic {
	t := &Topic{Incarnation: d.id16()}
	head := d.topicHead()
	t.State, t.Name, t.Config = head.State, head.Name, head.Config
	for i := range d.count(3) {
		t.Partitions = append(t.Partitions, d.partition(uint32(i)))
	}
	return t
}

func appendError(b []byte, err error) []byte {
	code := codeOther
	for c := codeTopicExists; c < codeInvalid; c++ {
		if errors.Is(err, sentinel(c)) {
			code = c
		}
	}
	var invalid *InvalidError
	if errors.As(err, &invalid) {
		code = codeInvalid
	}
	var fenced *ProducerFencedError
	if errors.As(err, &fenced) {
		code = codeFenced
	}
	b = append(b, code, byte(raftlog.OutcomeOf(err)))
	switch code {
	case codeInvalid:
		return appendString(appendString(appendString(b, invalid.Field), invalid.Value), invalid.Allowed)
	case codeFenced:
		return appendUint(appendUint(appendString(b, fenced.Name), uint64(fenced.Held)), uint64(fenced.Epoch))
	}
	text := err.Error()
	return appendString(b, text[:min(len(text), maxErrorText)])
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
