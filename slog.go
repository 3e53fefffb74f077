package stele

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"go.uber.org/zap/zapcore"
)

// NewSlogCore returns a core that hands every entry to h, for a host that logs
// with log/slog and has things to say to zap:
//
//	zap.New(stele.NewSlogCore(slog.Default().Handler()))
//
// A node takes the handler itself: see Config.LogHandler.
//
// h decides which levels are enabled; zap's levels above Error come as
// slog.LevelError+4, +8 and +12. Fields become attributes with their types:
// durations, times and errors as such, a Stringer as its text, an object or a
// namespace as a group, an array as a slice. The name of the logger is the
// attribute "logger", a stack trace "stacktrace", and the caller, if zap was
// asked for it, is the record's source. What a With adds is converted once.
//
// h is called with context.Background(), from many goroutines.
func NewSlogCore(h slog.Handler) zapcore.Core { return slogCore{handler: h} }

// slogCore is immutable.
type slogCore struct {
	handler slog.Handler // with all that a With added outside of namespaces
	open    *attrGroup   // the innermost namespace that a With opened, or nil
}

// attrGroup is a namespace and what is in it so far.
type attrGroup struct {
	above *attrGroup
	name  string
	attrs []slog.Attr
}

// slogLevel: both begin at Info, with 0; slog leaves room between the levels.
func slogLevel(l zapcore.Level) slog.Level { return slog.Level(4 * l) }

func (c slogCore) Enabled(l zapcore.Level) bool {
	return c.handler.Enabled(context.Background(), slogLevel(l))
}

func (c slogCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

func (c slogCore) With(fields []zapcore.Field) zapcore.Core {
	enc := attrEncoder{in: c.open}
	enc.add(fields)
	if len(enc.outside) > 0 {
		c.handler = c.handler.WithAttrs(enc.outside)
	}
	c.open = enc.in
	return c
}

func (c slogCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	var pc uintptr
	if e.Caller.Defined {
		pc = e.Caller.PC + 1 // zap has the call, slog wants where it returns to
	}
	r := slog.NewRecord(e.Time, slogLevel(e.Level), e.Message, pc)
	enc := attrEncoder{in: c.open}
	enc.add(fields)
	if e.LoggerName != "" {
		r.AddAttrs(slog.String("logger", e.LoggerName))
	}
	r.AddAttrs(enc.outside...)
	if group, ok := enc.in.whole(); ok {
		r.AddAttrs(group)
	}
	if e.Stack != "" {
		r.AddAttrs(slog.String("stacktrace", e.Stack))
	}
	return c.handler.Handle(context.Background(), r)
}

// Sync does nothing: a handler has nothing like it.
func (slogCore) Sync() error { return nil }

// whole returns the outermost namespace around g, with all that is in it.
func (g *attrGroup) whole() (group slog.Attr, ok bool) {
	for ; g != nil; g = g.above {
		attrs := g.attrs
		if ok {
			attrs = append(slices.Clip(attrs), group)
		}
		group, ok = slog.Attr{Key: g.name, Value: slog.GroupValue(attrs...)}, true
	}
	return group, ok
}

// attrEncoder makes attributes of fields. What it was given is not changed.
type attrEncoder struct {
	outside []slog.Attr // before any namespace
	in      *attrGroup  // the innermost namespace, or nil
}

var _ zapcore.ObjectEncoder = (*attrEncoder)(nil)

func (e *attrEncoder) add(fields []zapcore.Field) {
	for i := range fields {
		if err, ok := fields[i].Interface.(error); ok && fields[i].Type == zapcore.ErrorType {
			e.put(fields[i].Key, slog.AnyValue(err)) // the handler may look into it
			continue
		}
		fields[i].AddTo(e)
	}
}

func (e *attrEncoder) put(key string, v slog.Value) {
	if e.in == nil {
		e.outside = append(e.outside, slog.Attr{Key: key, Value: v})
		return
	}
	in := *e.in // others may have it, too
	in.attrs = append(slices.Clip(in.attrs), slog.Attr{Key: key, Value: v})
	e.in = &in
}

// OpenNamespace puts what follows into a group.
func (e *attrEncoder) OpenNamespace(key string) { e.in = &attrGroup{above: e.in, name: key} }

func (e *attrEncoder) AddObject(key string, o zapcore.ObjectMarshaler) error {
	var inner attrEncoder
	err := o.MarshalLogObject(&inner)
	if group, ok := inner.in.whole(); ok {
		inner.outside = append(inner.outside, group)
	}
	e.put(key, slog.GroupValue(inner.outside...))
	return err
}

func (e *attrEncoder) AddArray(key string, a zapcore.ArrayMarshaler) error {
	m := zapcore.NewMapObjectEncoder()
	err := m.AddArray(key, a)
	e.put(key, slog.AnyValue(m.Fields[key]))
	return err
}

func (e *attrEncoder) AddReflected(key string, v any) error {
	e.put(key, slog.AnyValue(v))
	return nil
}

func (e *attrEncoder) AddBinary(key string, v []byte)          { e.put(key, slog.AnyValue(v)) }
func (e *attrEncoder) AddByteString(key string, v []byte)      { e.put(key, slog.StringValue(string(v))) }
func (e *attrEncoder) AddBool(key string, v bool)              { e.put(key, slog.BoolValue(v)) }
func (e *attrEncoder) AddComplex128(key string, v complex128)  { e.put(key, slog.AnyValue(v)) }
func (e *attrEncoder) AddComplex64(key string, v complex64)    { e.put(key, slog.AnyValue(v)) }
func (e *attrEncoder) AddDuration(key string, v time.Duration) { e.put(key, slog.DurationValue(v)) }
func (e *attrEncoder) AddFloat64(key string, v float64)        { e.put(key, slog.Float64Value(v)) }
func (e *attrEncoder) AddFloat32(key string, v float32)        { e.put(key, slog.Float64Value(float64(v))) }
func (e *attrEncoder) AddInt(key string, v int)                { e.put(key, slog.IntValue(v)) }
func (e *attrEncoder) AddInt64(key string, v int64)            { e.put(key, slog.Int64Value(v)) }
func (e *attrEncoder) AddInt32(key string, v int32)            { e.AddInt64(key, int64(v)) }
func (e *attrEncoder) AddInt16(key string, v int16)            { e.AddInt64(key, int64(v)) }
func (e *attrEncoder) AddInt8(key string, v int8)              { e.AddInt64(key, int64(v)) }
func (e *attrEncoder) AddString(key, v string)                 { e.put(key, slog.StringValue(v)) }
func (e *attrEncoder) AddTime(key string, v time.Time)         { e.put(key, slog.TimeValue(v)) }
func (e *attrEncoder) AddUint(key string, v uint)              { e.AddUint64(key, uint64(v)) }
func (e *attrEncoder) AddUint64(key string, v uint64)          { e.put(key, slog.Uint64Value(v)) }
func (e *attrEncoder) AddUint32(key string, v uint32)          { e.AddUint64(key, uint64(v)) }
func (e *attrEncoder) AddUint16(key string, v uint16)          { e.AddUint64(key, uint64(v)) }
func (e *attrEncoder) AddUint8(key string, v uint8)            { e.AddUint64(key, uint64(v)) }
func (e *attrEncoder) AddUintptr(key string, v uintptr)        { e.AddUint64(key, uint64(v)) }
