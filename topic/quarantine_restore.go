package topic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"go.uber.org/zap"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// # Restoring
//
// RestoreQuarantined makes a new topic, under a name that is free, and appends to it
// what logs in quarantine on this node hold: each partition to the partition of the
// same number, in order, with keys, values, headers and timestamps, through the
// leaders and so on all replicas. Records get new offsets from 0 on, new append
// times, and no memory of the producers that wrote them. What was a duplicate was
// none of the topic's records, and is none of these. The directories stay.
//
// All logs are read once before anything is made, so that what is damaged or missing
// is known: without RestoreConfig.Partial the call is refused then.
//
// # Going on
//
// A call that did not come to its end leaves the topic with what it has appended,
// which is a beginning of each partition. With RestoreConfig.Resume another call
// compares that, record for record, with the logs, and appends the rest; a topic that
// holds anything else is refused. It may be called on another node only if that
// holds the same directories. While a restore runs nobody else should append: the
// call notices, and is refused, since the order would be nobody's.
//
// A node holds the partitions that were its own. Of a topic with more nodes than
// replicas each one has a part, which it can restore as a topic of its own.

// RestoreConfig says what RestoreQuarantined restores.
type RestoreConfig struct {
	// Dirs are directories in quarantine, all of one life of a topic. Where more
	// than one log of a partition is in them, it is the one of which most can be
	// read.
	Dirs []string
	// Topic is the name of the topic that is made.
	Topic string
	// Config is what the topic is made with. Partitions: by default as many as are
	// known of the old one, or as the highest partition in Dirs asks for. Keys keep
	// their partitions only if it is the number that the old one had.
	Config metastore.TopicConfig
	// Partial accepts that some partitions are not in Dirs, or damaged: what can be
	// read is restored, and the answer says what was lost.
	Partial bool
	// Resume goes on with a restore that did not come to its end. If there is no
	// such topic it is made.
	Resume bool
}

// Restored is what a restore has done.
type Restored struct {
	Topic metastore.Topic // zero: none was made
	// Incarnation is the life of which the records were, as they say themselves.
	Incarnation storage.Incarnation
	Partitions  []RestoredPartition // of the new topic, all
	Records     uint64              // in the new topic
}

// RestoredPartition is what became of a partition.
type RestoredPartition struct {
	Partition uint32
	Dir       string         // of the log; empty: there is none in the directories
	Start     storage.Offset // in the log: of its first record, and
	End       storage.Offset // behind the last one that can be read
	Records   uint64         // that can be read
	Restored  uint64         // of them, in the new topic, at the offsets from 0 on
	Found     uint64         // of these, that were there before the call
	Lost      []LostRange    // that cannot be read
}

// LostRange is a part of a log in quarantine that cannot be read.
type LostRange struct {
	From storage.Offset
	To   storage.Offset // behind it; NoOffset: to the log's end, wherever that was
	Err  error          // a *QuarantineDamageError
}

// RestoreReason is why a restore did not come to its end.
type RestoreReason string

// Why a restore did not come to its end.
const (
	RestoreNothing     RestoreReason = "nothing"     // no log in the directories
	RestoreMixed       RestoreReason = "mixed"       // the directories are of more than one life of a topic
	RestoreLost        RestoreReason = "lost"        // damaged or missing; see RestoreConfig.Partial
	RestoreDiffers     RestoreReason = "differs"     // the topic holds what was not restored to it
	RestoreInterrupted RestoreReason = "interrupted" // it was begun; see RestoreConfig.Resume
)

// RestoreError says why a restore did not come to its end. RestoreInterrupted is
// Unknown, as some of it is done, and RestoreConfig.Resume goes on with it. All
// others are Refused: nothing was made, but by an earlier call.
type RestoreError struct {
	Topic     string
	Reason    RestoreReason
	Partition int // -1: none in particular
	Detail    string
	Err       error // behind it, or nil
}

func (e *RestoreError) Error() string {
	where := ""
	if e.Partition >= 0 {
		where = fmt.Sprintf("partition %d: ", e.Partition)
	}
	return fmt.Sprintf("topic: restore to %q: %s: %s%s", e.Topic, e.Reason, where, e.Detail)
}

// Is gives the error its outcome.
func (e *RestoreError) Is(target error) bool {
	if e.Reason == RestoreInterrupted {
		return target == raftlog.ErrOutcomeUnknown
	}
	return target == raftlog.ErrRefused
}

// Unwrap gives the error behind it, without its outcome.
func (e *RestoreError) Unwrap() error {
	if e.Err == nil {
		return nil
	}
	return withoutOutcome{e.Err}
}

// restoresAtOnce is how many partitions are restored side by side.
const restoresAtOnce = 8

// RestoreQuarantined restores records from quarantine as a new topic: see above.
// What it returns says what was done, also with an error.
//
// Errors: *RestoreError; storage.ErrNotQuarantined (Refused); those of CreateTopic,
// of which metastore.ErrTopicExists says that the name is taken;
// *metastore.InvalidError for too few partitions. If nothing was made yet, what the
// disk says, and ctx.Err(), are Retry.
func (m *Manager) RestoreQuarantined(ctx context.Context, cfg RestoreConfig) (Restored, error) {
	ctx, cancel, err := m.whileOpen(ctx)
	defer cancel()
	rs := &restore{m: m, cfg: cfg}
	if err == nil {
		err = rs.run(ctx)
	}
	if err != nil {
		return rs.done, explain(ctx, err, "restore to %q", cfg.Topic)
	}
	if m.cfg.OnRestored != nil {
		m.kept.telling.Lock()
		defer m.kept.telling.Unlock()
		m.cfg.OnRestored(rs.done)
	}
	return rs.done, nil
}

// restore is one call of RestoreQuarantined.
type restore struct {
	m        *Manager
	cfg      RestoreConfig
	sources  map[uint32]QuarantineSource
	done     Restored
	producer *Producer
	view     *topicView
}

func (rs *restore) fail(why RestoreReason, partition int, err error, format string, args ...any) error {
	return &RestoreError{Topic: rs.cfg.Topic, Reason: why, Partition: partition, Detail: fmt.Sprintf(format, args...), Err: err}
}

func (rs *restore) run(ctx context.Context) error {
	if storage.ValidateName(rs.cfg.Topic) != nil { // before anything is read
		return &metastore.InvalidError{Field: "Topic.Name", Value: fmt.Sprintf("%.80q", rs.cfg.Topic), Allowed: allowedName}
	}
	if err := rs.survey(ctx); err != nil {
		return err
	}
	if err := rs.checkLost(); err != nil {
		return err
	}
	if err := rs.make(ctx); err != nil {
		return err
	}
	err := rs.appendAll(ctx)
	for i := range rs.done.Partitions {
		rs.done.Records += rs.done.Partitions[i].Restored
		rs.m.stats.restored.Add(rs.done.Partitions[i].Restored - rs.done.Partitions[i].Found)
	}
	var differs *RestoreError
	if err != nil && !errors.As(err, &differs) {
		err = rs.fail(RestoreInterrupted, -1, err, "%s", textOf(err))
	}
	return err
}

// survey reads all logs, and chooses one for each partition.
func (rs *restore) survey(ctx context.Context) error {
	best := map[uint32]RestoredPartition{}
	rs.sources = map[uint32]QuarantineSource{}
	partitions := max(rs.cfg.Config.Partitions, 1)
	named := rs.cfg.Config.Partitions
	for _, dir := range rs.cfg.Dirs {
		e, err := rs.m.describe(dir)
		if err != nil {
			return err
		}
		if t, err := rs.m.cfg.Meta.TopicByIncarnation(e.Incarnation); err == nil && named == 0 {
			partitions = max(partitions, uint32(len(t.Partitions)))
		}
		for _, l := range e.Logs {
			source := QuarantineSource{Dir: e.Dir, Partition: l.Partition, Replica: l.Replica}
			p, err := rs.look(ctx, source)
			if err != nil {
				return err
			}
			if have, ok := best[l.Partition]; !ok || have.less(&p) {
				best[l.Partition], rs.sources[l.Partition] = p, source
			}
			if named != 0 && l.Partition >= named {
				return &metastore.InvalidError{Field: "RestoreConfig.Config.Partitions", Value: fmt.Sprint(named), Allowed: fmt.Sprintf("more than %d, which is in %s", l.Partition, e.Dir)}
			}
			partitions = max(partitions, l.Partition+1)
		}
	}
	if len(best) == 0 {
		return rs.fail(RestoreNothing, -1, nil, "there is no log of a partition in %q", rs.cfg.Dirs)
	}
	for i := range partitions {
		p := best[i]
		p.Partition = i
		rs.done.Partitions = append(rs.done.Partitions, p)
	}
	return nil
}

// less reports whether q has more that can be read.
func (p *RestoredPartition) less(q *RestoredPartition) bool {
	return cmp.Or(cmp.Compare(p.Records, q.Records), cmp.Compare(len(q.Lost), len(p.Lost))) < 0
}

// look reads a log to its end.
func (rs *restore) look(ctx context.Context, source QuarantineSource) (p RestoredPartition, err error) {
	r, err := rs.m.readQuarantined(source)
	if err != nil {
		return p, err
	}
	defer r.Close()
	p.Partition, p.Dir = source.Partition, r.frames.Log().Dir
	p.Start, p.End = r.Offset(), r.Offset()
	for {
		record, lost, err := r.recordOrLost(ctx)
		if err == io.EOF {
			break
		}
		if err != nil {
			return p, err
		}
		if lost != nil {
			p.Lost = append(p.Lost, *lost)
			continue
		}
		p.Records, p.End = p.Records+1, record.Offset+1
	}
	is, of := r.Incarnation(), &rs.done.Incarnation
	if !is.IsZero() && !of.IsZero() && is != *of {
		return p, rs.fail(RestoreMixed, -1, nil, "the records in %s are of incarnation %v, others of %v", p.Dir, is, *of)
	}
	if of.IsZero() {
		*of = is
	}
	return p, nil
}

// recordOrLost returns the next record, or what of the log cannot be read before the
// next one. io.EOF: there is no more.
func (r *QuarantineReader) recordOrLost(ctx context.Context) (ReadRecord, *LostRange, error) {
	record, err := r.record(ctx)
	var damage *QuarantineDamageError
	if !errors.As(err, &damage) {
		return record, nil, err
	}
	lost := &LostRange{From: damage.Offset, To: NoOffset, Err: err}
	if r.ended = !r.Skip(); !r.ended {
		lost.To = r.Offset()
	}
	return record, lost, nil
}

// checkLost refuses what is not whole, unless it was asked for.
func (rs *restore) checkLost() error {
	if rs.cfg.Partial {
		return nil
	}
	for i := range rs.done.Partitions {
		switch p := &rs.done.Partitions[i]; {
		case p.Dir == "":
			return rs.fail(RestoreLost, i, nil, "no log of it is in the directories; RestoreConfig.Partial restores what is there")
		case len(p.Lost) > 0:
			return rs.fail(RestoreLost, i, p.Lost[0].Err, "%s; RestoreConfig.Partial restores what can be read", textOf(p.Lost[0].Err))
		}
	}
	return nil
}

// make makes the topic, or finds the one that a resumed restore has made.
func (rs *restore) make(ctx context.Context) error {
	name, config := rs.cfg.Topic, rs.cfg.Config
	config.Partitions = uint32(len(rs.done.Partitions))
	var err error
	if rs.cfg.Resume {
		rs.done.Topic, err = rs.m.active(ctx, name)
		if err == nil && len(rs.done.Topic.Partitions) != len(rs.done.Partitions) {
			err = rs.fail(RestoreDiffers, -1, nil, "the topic has %d partitions, %d were to be restored", len(rs.done.Topic.Partitions), len(rs.done.Partitions))
		}
		if !errors.Is(err, metastore.ErrTopicNotFound) {
			return err
		}
	}
	rs.done.Topic, err = rs.m.createTopic(ctx, name, config)
	if err != nil && rs.done.Topic.Name != "" {
		err = rs.fail(RestoreInterrupted, -1, err, "%s", textOf(err))
	}
	if err == nil {
		rs.m.cfg.Logger.Info("a topic was made for records from quarantine", zap.String("topic", name),
			zap.Stringer("incarnation", rs.done.Topic.Incarnation), zap.Strings("dirs", rs.cfg.Dirs))
	}
	return err
}

// appendAll appends to all partitions, some at a time, and returns the first error.
func (rs *restore) appendAll(ctx context.Context) (err error) {
	if rs.producer, err = rs.m.NewProducer(ProducerConfig{}); err != nil {
		return err
	}
	defer func() { // ctx may have ended; what is on its way gets an answer or is given up
		closing, cancel := within(context.WithoutCancel(ctx), rs.m.cfg.Clock, rs.m.cfg.CallTimeout)
		defer cancel()
		_ = rs.producer.Close(closing)
	}()
	if rs.view, err = rs.producer.view(ctx, rs.cfg.Topic); err != nil {
		return err
	}
	if have, want := rs.view.topic.Incarnation, rs.done.Topic.Incarnation; have != want {
		return fmt.Errorf("topic: %q is another topic by now: incarnation %v, not %v", rs.cfg.Topic, have, want)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var group sync.WaitGroup
	var once sync.Once
	slots := make(chan struct{}, restoresAtOnce)
	for i := range rs.done.Partitions {
		if p := &rs.done.Partitions[i]; p.Dir != "" {
			slots <- struct{}{}
			group.Go(func() {
				defer func() { <-slots }()
				if e := rs.appendPartition(ctx, p); e != nil {
					once.Do(func() { err = e; stop() })
				}
			})
		}
	}
	group.Wait()
	return err
}

// appendPartition appends the records of a log to its partition.
func (rs *restore) appendPartition(ctx context.Context, p *RestoredPartition) error {
	r, err := rs.m.readQuarantined(rs.sources[p.Partition])
	if err != nil {
		return err
	}
	defer r.Close()
	if rs.cfg.Resume {
		if err := rs.compare(ctx, p, r); err != nil {
			return err
		}
	}
	var chunk []Record
	size, limit := 0, rs.producer.lane(rs.view, p.Partition).limit
	for {
		record, err := r.surely(ctx)
		n := record.Size() + recordOverhead
		if len(chunk) > 0 && (err != nil || size+n > limit) {
			if err := rs.append(ctx, p, chunk); err != nil {
				return err
			}
			chunk, size = chunk[:0], 0
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		chunk, size = append(chunk, record.Record), size+n
	}
}

// compare goes through what an earlier call has appended.
func (rs *restore) compare(ctx context.Context, p *RestoredPartition, r *QuarantineReader) error {
	differs := func(format string, args ...any) error {
		return rs.fail(RestoreDiffers, int(p.Partition), nil, format, args...)
	}
	at := TopicPartition{rs.cfg.Topic, p.Partition}
	end, err := rs.m.newReader(ctx, at, FromEnd())
	if err != nil {
		return err
	}
	defer end.Close()
	there, err := rs.m.newReader(ctx, at, FromStart())
	if err != nil {
		return err
	}
	defer there.Close()
	if there.incarnation != rs.done.Topic.Incarnation || end.incarnation != there.incarnation {
		return fmt.Errorf("topic: %q is another topic by now", rs.cfg.Topic)
	}
	if there.Offset() != 0 {
		return differs("it begins at offset %d", there.Offset())
	}
	if end.Offset() == 0 {
		return nil
	}
	for have, err := range there.Records(ctx) {
		if err != nil {
			return err
		}
		want, err := r.surely(ctx)
		if err != nil && err != io.EOF {
			return err
		}
		if err == io.EOF || !sameRecord(&have.Record, &want.Record) {
			return differs("the record at offset %d is not one of the log's", have.Offset)
		}
		p.Restored, p.Found = p.Restored+1, p.Found+1
		if have.Offset+1 >= end.Offset() {
			break
		}
	}
	return nil
}

// surely returns the next record that can be read.
func (r *QuarantineReader) surely(ctx context.Context) (ReadRecord, error) {
	for {
		record, lost, err := r.recordOrLost(ctx)
		if lost == nil {
			return record, err
		}
	}
}

func sameRecord(a, b *Record) bool {
	same := func(a, b []byte) bool { return string(a) == string(b) && (a == nil) == (b == nil) }
	return same(a.Key, b.Key) && same(a.Value, b.Value) && a.Timestamp.Equal(b.Timestamp) &&
		slices.EqualFunc(a.Headers, b.Headers, func(a, b Header) bool { return a.Key == b.Key && same(a.Value, b.Value) })
}

// append appends records that fit into one batch, as often as it takes while nothing
// happens.
func (rs *restore) append(ctx context.Context, p *RestoredPartition, records []Record) error {
	if err := tooLarge(records, int(rs.view.topic.Config.MaxRecordBytes)); err != nil {
		return err
	}
	var pause backoff
	for {
		at, err := rs.producer.produce(ctx, rs.producer.lane(rs.view, p.Partition), records)
		switch {
		case err == nil && at[0].Offset != storage.Offset(p.Restored):
			return rs.fail(RestoreDiffers, int(p.Partition), nil, "records were appended at offset %d instead of %d: somebody else appends to it", at[0].Offset, p.Restored)
		case err == nil:
			p.Restored += uint64(len(records))
			return nil
		case raftlog.OutcomeOf(err) != raftlog.OutcomeRetry || ctx.Err() != nil || rs.m.life.Err() != nil:
			return err
		}
		pause.wait(ctx, rs.m.cfg.Clock, nil)
	}
}
