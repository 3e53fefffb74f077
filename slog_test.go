package stele_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
)

// object is one that marshals itself.
type object struct{ name string }

func (o object) MarshalLogObject(e zapcore.ObjectEncoder) error {
	e.AddString("name", o.name)
	e.AddDuration("age", time.Second)
	if err := e.AddObject("inner", zapcore.ObjectMarshalerFunc(func(e zapcore.ObjectEncoder) error {
		e.OpenNamespace("deep")
		e.AddInt("x", 1)
		return nil
	})); err != nil {
		return err
	}
	if o.name == "bad" {
		return errors.New("cannot be shown")
	}
	return nil
}

// Each field as a text handler shows it: it writes each type in its own way.
func TestSlogFields(t *testing.T) {
	at := time.Date(2024, 2, 29, 12, 0, 0, 5, time.UTC)
	var nobody *netip.Addr
	for _, f := range []struct {
		field zap.Field
		want  string
	}{
		{zap.Skip(), ""},
		{zap.String("k", "a b"), `k="a b"`},
		{zap.ByteString("k", []byte("a b")), `k="a b"`},
		{zap.Binary("k", []byte("xyz")), `k="xyz"`},
		{zap.Bool("k", true), "k=true"},
		{zap.Int("k", -1), "k=-1"},
		{zap.Int8("k", -8), "k=-8"},
		{zap.Int16("k", -16), "k=-16"},
		{zap.Int32("k", -32), "k=-32"},
		{zap.Uint("k", 1), "k=1"},
		{zap.Uint8("k", 8), "k=8"},
		{zap.Uint16("k", 16), "k=16"},
		{zap.Uint32("k", 32), "k=32"},
		{zap.Uint64("k", 1<<63), "k=9223372036854775808"},
		{zap.Uintptr("k", 9), "k=9"},
		{zap.Float32("k", 0.5), "k=0.5"},
		{zap.Float64("k", 0.25), "k=0.25"},
		{zap.Complex64("k", 1i), "k=(0+1i)"},
		{zap.Complex128("k", 1i), "k=(0+1i)"},
		{zap.Duration("k", 1500*time.Millisecond), "k=1.5s"},
		{zap.Time("k", at), "k=2024-02-29T12:00:00.000Z"},
		{zap.Time("k", time.Time{}), "k=0001-01-01T00:00:00.000Z"},
		{zap.Error(errors.New("no way")), `error="no way"`},
		{zap.Error(nil), ""},
		{zap.Stringer("k", netip.MustParseAddr("::1")), "k=::1"},
		{zap.Stringer("k", nobody), "k=<nil>"},
		{zap.Any("k", map[string]int{"a": 1}), "k=map[a:1]"},
		{zap.Strings("k", []string{"a", "b"}), `k="[a b]"`},
		{zap.Durations("k", []time.Duration{time.Second}), "k=[1s]"},
		{zap.Object("k", object{"n"}), "k.name=n k.age=1s k.inner.deep.x=1"},
		{zap.Object("k", object{"bad"}), `k.name=bad k.age=1s k.inner.deep.x=1 kError="cannot be shown"`},
		{zap.Inline(object{"n"}), "name=n age=1s inner.deep.x=1"},
		{zap.Dict("k", zap.Int("a", 1), zap.Int("b", 2)), "k.a=1 k.b=2"},
	} {
		for _, how := range []string{"with", "write"} {
			var out bytes.Buffer
			log := zap.New(stele.NewSlogCore(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: fieldsOnly})))
			if how == "with" {
				log.With(f.field).Info("hello")
			} else {
				log.Info("hello", f.field)
			}
			require.Equal(t, f.want, strings.TrimSpace(out.String()), "%s: %v", how, f.field)
		}
	}
}

// fieldsOnly hides what every record has.
func fieldsOnly(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == slog.MessageKey) {
		return slog.Attr{}
	}
	return a
}

// What zap's own encoder and the handler make of the same calls is the same, as
// far as JSON can tell.
func TestSlogIsWhatZapSays(t *testing.T) {
	config := zap.NewProductionEncoderConfig()
	config.NameKey, config.LevelKey, config.TimeKey = "logger", "level", ""
	config.EncodeDuration = zapcore.NanosDurationEncoder
	config.EncodeLevel = zapcore.CapitalLevelEncoder
	noTime := func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
	use := func(log *zap.Logger) {
		log.Info("plain")
		log.Debug("not enabled")
		log.Warn("fields", zap.Int("a", 1), zap.Duration("d", time.Second), zap.Error(errors.New("x")))
		named := log.Named("storage").With(zap.String("node", "a")).Named("journal")
		named.Error("named", zap.Strings("s", []string{"x"}))
		spaced := named.With(zap.Int("before", 1), zap.Namespace("in"), zap.Int("b", 2))
		spaced.Info("in a namespace", zap.Int("c", 3))
		spaced.With(zap.Namespace("deeper"), zap.Int("d", 4)).Info("deeper", zap.Int("e", 5), zap.Namespace("last"), zap.Int("f", 6))
		one, two := spaced.With(zap.Int("one", 1)), spaced.With(zap.Int("two", 2))
		one.Info("siblings share nothing")
		two.Info("siblings share nothing")
		spaced.Info("nor does what they come from")
		log.Info("at once", zap.Namespace("ns"), zap.Int("a", 1), zap.Object("o", object{"n"}))
	}
	var want, got bytes.Buffer
	use(zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(config), zapcore.AddSync(&want), zapcore.InfoLevel)))
	use(zap.New(stele.NewSlogCore(slog.NewJSONHandler(&got, &slog.HandlerOptions{ReplaceAttr: noTime}))))
	wantLines, gotLines := strings.Split(strings.TrimSpace(want.String()), "\n"), strings.Split(strings.TrimSpace(got.String()), "\n")
	require.Len(t, gotLines, len(wantLines))
	for i := range wantLines {
		require.JSONEq(t, wantLines[i], gotLines[i])
		require.Equal(t, strings.Count(wantLines[i], `"`), strings.Count(gotLines[i], `"`), "a key twice: %s", gotLines[i])
	}
}

func TestSlogLevels(t *testing.T) {
	var level slog.LevelVar
	var out bytes.Buffer
	core := stele.NewSlogCore(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: &level}))
	for zapLevel, want := range map[zapcore.Level]slog.Level{
		zap.DebugLevel: slog.LevelDebug, zap.InfoLevel: slog.LevelInfo, zap.WarnLevel: slog.LevelWarn, zap.ErrorLevel: slog.LevelError,
		zap.DPanicLevel: slog.LevelError + 4, zap.PanicLevel: slog.LevelError + 8, zap.FatalLevel: slog.LevelError + 12,
	} {
		level.Set(want)
		require.True(t, core.Enabled(zapLevel), "%v", zapLevel)
		level.Set(want + 1)
		require.False(t, core.Enabled(zapLevel), "%v", zapLevel)
	}
	level.Set(slog.LevelWarn)
	zap.New(core).Info("no")
	require.Empty(t, out.String())
}

func TestSlogSource(t *testing.T) {
	var out bytes.Buffer
	log := zap.New(stele.NewSlogCore(slog.NewJSONHandler(&out, &slog.HandlerOptions{AddSource: true})), zap.AddCaller(), zap.AddStacktrace(zap.ErrorLevel))
	_, _, line, _ := runtime.Caller(0)
	log.Error("here")
	var entry struct {
		Source     slog.Source
		Stacktrace string
	}
	require.NoError(t, json.Unmarshal(out.Bytes(), &entry))
	require.Equal(t, "slog_test.go", filepath.Base(entry.Source.File))
	require.Equal(t, line+1, entry.Source.Line)
	require.Contains(t, entry.Source.Function, "TestSlogSource")
	require.Contains(t, entry.Stacktrace, "TestSlogSource")
}

// counting counts how often a handler is given attributes.
type counting struct {
	slog.Handler
	n *int
}

func (c counting) WithAttrs(attrs []slog.Attr) slog.Handler {
	*c.n++
	return counting{c.Handler.WithAttrs(attrs), c.n}
}

// times is a Stringer that counts.
type times struct{ n *int }

func (s times) String() string { *s.n++; return fmt.Sprint(*s.n) }

func TestSlogWithIsDoneOnce(t *testing.T) {
	var given, texts int
	log := zap.New(stele.NewSlogCore(counting{slog.NewTextHandler(&bytes.Buffer{}, nil), &given}))
	log = log.With(zap.Stringer("a", times{&texts}), zap.Namespace("n"), zap.Stringer("b", times{&texts}))
	for range 3 {
		log.Info("x")
	}
	require.Equal(t, 1, given)
	require.Equal(t, 2, texts)
}

func TestANodeLogsToSlog(t *testing.T) {
	var out bytes.Buffer
	config := func(cfg *stele.Config) {
		cfg.LogHandler = slog.NewJSONHandler(&out, &slog.HandlerOptions{AddSource: true})
	}
	testcluster.Run(t, testcluster.Options{Nodes: 1, Config: config}, func(c *testcluster.Cluster) {
		c.StartAll()
		cfg := c.Config(0)
		cfg.Logger = zap.NewNop()
		_, err := stele.Open(context.Background(), cfg)
		require.ErrorContains(c.T, err, "Config.LogHandler = \"*slog.JSONHandler\": want nil beside Logger")
	})
	require.Contains(t, out.String(), `"msg":"founded the cluster","node":"node-1","logger":"membership"`)
	require.Contains(t, out.String(), `genesis.go`)
}
