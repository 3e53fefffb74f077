package stele

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/stelelog/stele/membership"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
	"github.com/stelelog/stele/transport"
)

// Peer is an initial member of a cluster: the name that its host program gives
// it and the address at which the others reach it.
type Peer struct {
	Name string
	Addr string
}

// Config says what a node is and where it lives. The zero value of a field
// means its default; Cluster, Name, Dir, and InitialMembers or Join have none.
//
// A Config is copied by Open; what it points to (Logger, TLS, Transport, ...)
// must not be changed while the node runs.
type Config struct {
	// Cluster is the name of the cluster, in every handshake: nodes of
	// differently named clusters refuse each other. 1 to 179 letters, digits,
	// '.', '_' or '-'.
	Cluster string
	// Name is what the host calls this node, unlike every other member: with
	// InitialMembers it is one of them. Same rule as Cluster.
	Name string
	// Dir is the node's data directory, made if missing and locked while the
	// node is open. Each node has its own.
	Dir string
	// InitialMembers are the nodes that form the cluster, equal on all of them
	// (order does not matter): 1 to 5, with distinct addresses and with names
	// that differ in more than the case of letters. Nothing is formed before all
	// of them are up once. From then on the names stay as they are; an address
	// may be changed on all nodes, by opening each of them again. A member whose
	// disk was wiped joins the cluster as a new node; see Join.
	InitialMembers []Peer
	// Join, in place of InitialMembers, are addresses of nodes of a running
	// cluster: 1 to 64. A node with an empty directory asks there to become a
	// member, for as long as it takes. One that is a member uses them only to find
	// the others when it is out of touch with them. They need not be all, nor the
	// first ones, and this node's own address may be among them.
	Join []string
	// Observer makes a node that joins, or whose disk was wiped, one that never
	// votes on the metadata, and takes no vote over; it holds partitions as every
	// other.
	Observer bool
	// MaxVersion is the highest version of the cluster that this node takes part in,
	// for a host that may go back to an older release: nobody can use what came with
	// later versions (see package metastore) while this node is a member. It is
	// refused meanwhile with a *ClusterVersionError that names this node. A directory
	// that took part in a higher version is not opened. Default: the newest that
	// this build knows, 3; 1 to that.
	MaxVersion uint64
	// InitialState is what the cluster begins with: given by each of its initial
	// members, it is made once.
	InitialState InitialState

	// NoRebalance leaves replicas where they are, unless their node is taken out of
	// the cluster. Else they are spread evenly, also over a node that joins. It is
	// heeded by the node that leads the metadata: set it on all nodes or on none.
	NoRebalance bool
	// NoLeaderRebalance leaves the leaderships of partitions where they are. Else a
	// node that leads in the place of a partition's preferred leader (the first of
	// its Replicas) hands over to that one, a few partitions at a time, once it has
	// been well for a while. Set it on all nodes or on none.
	NoLeaderRebalance bool

	// Advertise is the address at which the others reach this node. Default: the
	// one in InitialMembers; with Join that of Listen or Listener, if it names a
	// host and a port. With Transport it is Transport's affair.
	Advertise string
	// Listen is the TCP address to listen on. Default: this node's address in
	// InitialMembers, or Advertise. Unused with Transport.
	Listen string
	// Listener replaces Listen; the node closes it.
	Listener net.Listener
	// Dialer replaces net.Dialer for outgoing TCP connections.
	Dialer func(ctx context.Context, network, addr string) (net.Conn, error)
	// TLS turns on mutual TLS between the nodes, with their names in their
	// certificates. Default: none. See TLS.
	TLS *TLS
	// Secret, equal on all nodes, must be proven by whoever connects, before it
	// is told anything. It is simpler than TLS and less: it decides who may
	// connect, and does not hide or protect what is sent afterwards. Both may be
	// used. 16 to 1024 bytes, drawn at random; default: none.
	Secret []byte
	// ServerTLS and ClientTLS are for experts, in place of TLS: the TCP transport
	// uses them as they are, and nothing compares certificates with names of
	// nodes. Set both or neither.
	ServerTLS, ClientTLS *tls.Config
	// Transport replaces the built-in TCP: the host's own network. The node
	// starts it and closes it.
	Transport transport.Transport

	// FS replaces the machine's file system, for tests.
	FS storage.FS
	// Logger receives what the node has to say, each line with the field node.
	// Default: nothing is logged.
	Logger *zap.Logger
	// LogHandler replaces Logger, for a host that logs with log/slog; see
	// NewSlogCore.
	LogHandler slog.Handler
	// Events are functions of the host that the node calls when something
	// happened to it. Default: none.
	Events Events
	// Trace is told of the beginning and end of operations, for a host that makes
	// spans of them: see Operation. Default: nobody is, at no cost.
	Trace topic.Trace
	// Metrics is where the node registers its metrics, with the labels cluster
	// and node; they are unregistered by Close and Abort. Default: nowhere.
	Metrics prometheus.Registerer

	// Tick is the unit of raft's time. Default 50 ms, 5 ms to 10 s.
	Tick time.Duration
	// ElectionTicks is how long a follower waits for its leader, in ticks; the
	// real timeout is random between one and two of these. Default 10, 3 to 1000.
	ElectionTicks int
	// HeartbeatTicks is how often a leader speaks, in ticks. Default 2, 1 to
	// half of ElectionTicks.
	HeartbeatTicks int
	// ContactTimeout: a node whose metadata leader was silent for this long is
	// not ready. Default 5 s, at least twice the election timeout.
	ContactTimeout time.Duration
	// CallTimeout bounds one call between nodes. Default 10 s, 100 ms to 10 min.
	CallTimeout time.Duration

	// JournalBytes is the size of one journal file; two are in use, more while
	// a checkpoint is behind. Default 128 MiB, 16 KiB to 1 GiB.
	JournalBytes int64
	// SegmentBytes is the size at which a partition log begins a new file. It is
	// equal on all nodes of a cluster, and a directory keeps the one that it began
	// with: replicas of a partition have equal files. Nodes with different ones form
	// no cluster, and one that would join with another is refused. Default: what the
	// directory began with; in a new one, what the cluster has that the node joins,
	// and 64 MiB in one that forms. 4 KiB to 1 GiB.
	SegmentBytes int64
	// UncommittedBytes bounds what one raft group holds that no quorum has
	// confirmed; above it proposals are refused at once, and producers try
	// again. A single record of any permitted size passes when nothing waits.
	// Default 8 MiB, 64 KiB to 1 GiB.
	UncommittedBytes int64

	// DiskReserve is how many bytes of the disk are not for records. Half of it
	// the node holds in files of its own (<Dir>/reserve), which it gives back when
	// its writes find no room, so that a disk that others fill up does not end it.
	// When less than the reserve is left producers and new topics are refused
	// with *DiskFullError until there is room again; see DiskStatus.Full. Default
	// 256 MiB, 1 MiB to 1 TiB; negative: none, and the disk must never be full.
	// What one second's records and a checkpoint need should fit.
	DiskReserve int64
	// DiskStallTimeout is how long a write and sync of the journal may take before
	// the disk counts as stalled, and the node hands its leaderships over.
	// Default 2 s, 100 ms to 1 h. It should be longer than the slowest sync of a
	// disk that is well.
	DiskStallTimeout time.Duration
	// DeleteGrace is how long a topic is kept, and can be brought back (UndeleteTopic),
	// that a DeleteTopic on this node deletes without saying (WithGrace): 1 s to 10
	// years. Default: it is not.
	DeleteGrace time.Duration
	// VerifyInterval is how often all bytes of the partition logs on this node are read
	// and compared with their checksums. What is not as it was written is got again
	// from another replica: see Events.DamageChanged. Default 24 h, 1 min to 10,000 h.
	VerifyInterval time.Duration
	// VerifyBytesPerSecond bounds what is read for that; a round may take longer than
	// the interval. Default 8 MiB, 64 KiB to 64 GiB.
	VerifyBytesPerSecond int64

	// StartupSweepWait is how long a node that starts opens no partition before it
	// has taken stock of what earlier processes left: then that is left for later.
	// Default 1 min, 1 s to 10 min.
	StartupSweepWait time.Duration
	// SweepInterval is how often the node looks for what was deleted or moved away
	// and can be given back to the disk, beside when that has just happened. Default
	// 10 min, 1 s to 24 h.
	SweepInterval time.Duration
	// MetadataCheckInterval is how often the node that leads the metadata has all
	// nodes compare theirs: 1 s to 24 h, default 10 min. A node whose metadata is not
	// what a majority has is damaged, and stops (Events.NodeFailed, with an error that
	// matches metastore.ErrStateDiverged).
	MetadataCheckInterval time.Duration
}

const (
	maxMembers = 5 // that form a cluster
	maxJoin    = 64
	maxAddr    = 261

	defaultSegment = 64 << 20
	defaultTick    = 50 * time.Millisecond
)

func (c Config) withDefaults() Config {
	orDuration := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	orDuration(&c.Tick, defaultTick)
	orDuration(&c.ContactTimeout, 5*time.Second)
	orDuration(&c.CallTimeout, 10*time.Second)
	orInt := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	orInt(&c.ElectionTicks, 10)
	orInt(&c.HeartbeatTicks, 2)
	orInt64 := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	c.MaxVersion = cmp.Or(c.MaxVersion, metastore.NewestVersion)
	orInt64(&c.JournalBytes, 128<<20)
	orInt64(&c.UncommittedBytes, 8<<20)
	orInt64(&c.DiskReserve, 256<<20)
	orDuration(&c.DiskStallTimeout, 2*time.Second)
	orDuration(&c.VerifyInterval, 24*time.Hour)
	orInt64(&c.VerifyBytesPerSecond, 8<<20)
	orDuration(&c.StartupSweepWait, time.Minute)
	orDuration(&c.SweepInterval, 10*time.Minute)
	orDuration(&c.MetadataCheckInterval, 10*time.Minute)
	switch {
	case c.Logger == nil && c.LogHandler != nil:
		c.Logger, c.LogHandler = zap.New(NewSlogCore(c.LogHandler), zap.AddCaller()), nil
	case c.Logger == nil:
		c.Logger = zap.NewNop()
	}
	if c.FS == nil {
		c.FS = storage.DiskFS()
	}
	if c.Advertise == "" {
		c.Advertise = c.self().Addr
	}
	if c.Listen == "" && c.Listener == nil {
		c.Listen = c.Advertise
	}
	if c.Advertise == "" && c.Transport == nil {
		c.Advertise = c.Listen
		if c.Listener != nil {
			c.Advertise = c.Listener.Addr().String()
		}
	}
	return c
}

// self is this node in InitialMembers, or the zero Peer.
func (c *Config) self() Peer {
	for _, p := range c.InitialMembers {
		if p.Name == c.Name {
			return p
		}
	}
	return Peer{}
}

// ConfigError names a field of Config that cannot be used. It is Refused.
type ConfigError struct {
	Field   string
	Value   any
	Allowed string
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("stele: Config.%s = %v: want %s", e.Field, quoted(e.Value), e.Allowed)
}

// Unwrap makes the error match ErrRefused.
func (e *ConfigError) Unwrap() error { return ErrRefused }

func quoted(v any) any {
	if s, ok := v.(string); ok {
		return strconv.Quote(s)
	}
	return v
}

func (c *Config) validate() error {
	for _, f := range []struct{ field, value string }{{"Cluster", c.Cluster}, {"Name", c.Name}} {
		if err := storage.ValidateName(f.value); err != nil {
			return &ConfigError{f.field, f.value, nameRule}
		}
	}
	if c.Dir == "" {
		return &ConfigError{"Dir", c.Dir, "a directory"}
	}
	if err := c.validateMembers(); err != nil {
		return err
	}
	if c.Listener != nil && c.Listen != "" {
		return &ConfigError{"Listen", c.Listen, "empty beside Listener"}
	}
	if c.Transport == nil && c.Listener == nil {
		if _, port, err := net.SplitHostPort(c.Listen); err != nil || port == "" {
			return &ConfigError{"Listen", c.Listen, "host:port; the host may be empty"}
		}
	}
	if c.LogHandler != nil { // beside Logger, else withDefaults has taken it
		return &ConfigError{"LogHandler", fmt.Sprintf("%T", c.LogHandler), "nil beside Logger"}
	}
	if err := c.validateTrust(); err != nil {
		return err
	}
	return c.validateRanges()
}

// peers are the initial members as membership wants them.
func (c *Config) peers() []membership.Peer {
	var peers []membership.Peer
	for _, p := range c.InitialMembers {
		peers = append(peers, membership.Peer(p))
	}
	return peers
}

// terms is what the initial members must have in common, beside each other:
// with other terms they form no cluster.
func (c *Config) terms() string {
	return fmt.Sprintf("%s segment-bytes=%d", c.Cluster, cmp.Or(c.SegmentBytes, defaultSegment))
}

// fits checks that the cluster that the directory was founded with, if it was,
// is the one that is configured.
func (c *Config) fits(founding *membership.Founding) error {
	if founding == nil || len(c.InitialMembers) == 0 {
		return nil
	}
	var have, want []string
	for _, p := range c.InitialMembers {
		have = append(have, p.Name)
	}
	for _, m := range founding.Members {
		want = append(want, m.Name)
	}
	slices.Sort(have)
	slices.Sort(want)
	if slices.Equal(have, want) {
		return nil
	}
	return &ConfigError{"InitialMembers", strings.Join(have, ", "), fmt.Sprintf(
		"the names that the cluster of %s was founded with, %s; addresses may change", c.Dir, strings.Join(want, ", "))}
}

// addrOf is where this node's configuration says that a member is reached.
func (c *Config) addrOf(name string) (addr string, ok bool) {
	for _, p := range c.InitialMembers {
		if p.Name == name {
			return p.Addr, true
		}
	}
	return "", false
}

// checkAddr reports whether an address that another node gave can be dialled.
func (c *Config) checkAddr(addr string) bool {
	return addr != "" && len(addr) <= maxAddr && (c.Transport != nil || dialable(addr))
}

// joinPeers are the addresses at which a node asks to be taken in.
func (c *Config) joinPeers() []string {
	peers := slices.Clone(c.Join)
	for _, p := range c.InitialMembers {
		if p.Name != c.Name {
			peers = append(peers, p.Addr)
		}
	}
	return peers
}

// transport is the host's, or a new TCP. nameAt is the name of the node that
// should be at an address, "" if none is known there.
func (c *Config) transport(nameAt func(addr string) string) (transport.Transport, error) {
	if c.Transport != nil {
		return c.Transport, nil
	}
	return transport.NewTCP(transport.TCPConfig{
		Listen: c.Listen, Advertise: c.Advertise, Listener: c.Listener, Dialer: c.Dialer,
		TLS: c.TLS, Secret: c.Secret, PeerName: nameAt, ServerTLS: c.ServerTLS, ClientTLS: c.ClientTLS,
		Logger: c.Logger.Named("transport"),
	})
}

// raftlog is the configuration of the node's raft groups.
func (c *Config) raftlog(node raftlog.NodeID, store *storage.Store, sender raftlog.Sender) raftlog.Config {
	return raftlog.Config{
		Node: node, Store: store, Sender: sender, Logger: c.Logger.Named("raftlog"),
		Tick: c.Tick, ElectionTicks: c.ElectionTicks, HeartbeatTicks: c.HeartbeatTicks,
		MaxUncommittedBytes: c.UncommittedBytes, StallTimeout: c.DiskStallTimeout,
	}
}

// newProcess is a number that no other start of a process has.
func newProcess() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: the runtime ends the process instead
	return binary.LittleEndian.Uint64(b[:])
}

const nameRule = "1 to 179 letters, digits, '.', '_' or '-', and neither \".\" nor \"..\""

func (c *Config) validateMembers() error {
	if len(c.Join) > 0 {
		return c.validateJoin()
	}
	if n := len(c.InitialMembers); n < 1 || n > maxMembers {
		return &ConfigError{"InitialMembers", n, fmt.Sprintf("1 to %d members, or Join", maxMembers)}
	}
	names, addrs := map[string]string{}, map[string]bool{}
	for i, p := range c.InitialMembers {
		field := fmt.Sprintf("InitialMembers[%d]", i)
		switch {
		case storage.ValidateName(p.Name) != nil:
			return &ConfigError{field + ".Name", p.Name, nameRule}
		case names[strings.ToLower(p.Name)] != "":
			return &ConfigError{field + ".Name", p.Name, fmt.Sprintf(
				"a name that differs from the others in more than the case of letters, and %q is one of them", names[strings.ToLower(p.Name)])}
		case p.Addr == "" || len(p.Addr) > maxAddr:
			return &ConfigError{field + ".Addr", p.Addr, fmt.Sprintf("an address of 1 to %d bytes", maxAddr)}
		case addrs[p.Addr]:
			return &ConfigError{field + ".Addr", p.Addr, "addresses that occur once"}
		}
		if c.Transport == nil {
			if !dialable(p.Addr) {
				return &ConfigError{field + ".Addr", p.Addr, dialableRule}
			}
		}
		names[strings.ToLower(p.Name)], addrs[p.Addr] = p.Name, true
	}
	if c.self().Name == "" {
		return &ConfigError{"Name", c.Name, "the name of one of InitialMembers"}
	}
	return nil
}

func (c *Config) validateJoin() error {
	if n := len(c.InitialMembers); n > 0 {
		return &ConfigError{"InitialMembers", n, "none beside Join: a cluster is formed, or joined"}
	}
	if len(c.InitialState.Settings)+len(c.InitialState.Topics) > 0 {
		return &ConfigError{"InitialState", "set", "none beside Join: it is made by the initial members"}
	}
	if n := len(c.Join); n > maxJoin {
		return &ConfigError{"Join", n, fmt.Sprintf("1 to %d addresses", maxJoin)}
	}
	for i, addr := range c.Join {
		field := fmt.Sprintf("Join[%d]", i)
		if addr == "" || len(addr) > maxAddr {
			return &ConfigError{field, addr, fmt.Sprintf("an address of 1 to %d bytes", maxAddr)}
		}
		if c.Transport == nil && !dialable(addr) {
			return &ConfigError{field, addr, dialableRule}
		}
	}
	if c.Transport == nil && !dialable(c.Advertise) || len(c.Advertise) > maxAddr {
		return &ConfigError{"Advertise", c.Advertise, dialableRule}
	}
	return nil
}

const dialableRule = "host:port that peers can dial, with a port of 1 to 65535"

// dialable reports whether an address names one host and one port.
func dialable(addr string) bool {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || host == "" {
		return false
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

func (c *Config) validateRanges() error {
	election := time.Duration(c.ElectionTicks) * c.Tick
	for _, r := range []struct {
		field       string
		value       any
		ok          bool
		description string
	}{
		{"Tick", c.Tick, c.Tick >= 5*time.Millisecond && c.Tick <= 10*time.Second, "5ms to 10s"},
		{"ElectionTicks", c.ElectionTicks, c.ElectionTicks >= 3 && c.ElectionTicks <= 1000, "3 to 1000"},
		{"HeartbeatTicks", c.HeartbeatTicks, c.HeartbeatTicks >= 1 && c.HeartbeatTicks <= c.ElectionTicks/2, "1 to half of ElectionTicks"},
		{"ContactTimeout", c.ContactTimeout, c.ContactTimeout >= 2*election, fmt.Sprintf("at least two election timeouts (%v)", 2*election)},
		{"CallTimeout", c.CallTimeout, c.CallTimeout >= 100*time.Millisecond && c.CallTimeout <= 10*time.Minute, "100ms to 10m"},
		{"JournalBytes", c.JournalBytes, c.JournalBytes >= 16<<10 && c.JournalBytes <= 1<<30, "16 KiB to 1 GiB"},
		{"SegmentBytes", c.SegmentBytes, c.SegmentBytes == 0 || c.SegmentBytes >= 4<<10 && c.SegmentBytes <= 1<<30, "4 KiB to 1 GiB"},
		{"DiskReserve", c.DiskReserve, c.DiskReserve < 0 || c.DiskReserve >= 1<<20 && c.DiskReserve <= 1<<40, "1 MiB to 1 TiB, or negative for none"},
		{"DiskStallTimeout", c.DiskStallTimeout, c.DiskStallTimeout >= 100*time.Millisecond && c.DiskStallTimeout <= time.Hour, "100ms to 1h"},
		{"DeleteGrace", c.DeleteGrace, c.DeleteGrace == 0 || c.DeleteGrace >= metastore.MinDeleteGrace && c.DeleteGrace <= metastore.MaxDeleteGrace, "0, or 1s to 87600h"},
		{"VerifyInterval", c.VerifyInterval, c.VerifyInterval >= time.Minute && c.VerifyInterval <= 10_000*time.Hour, "1m to 10000h"},
		{"VerifyBytesPerSecond", c.VerifyBytesPerSecond, c.VerifyBytesPerSecond >= 64<<10 && c.VerifyBytesPerSecond <= 64<<30, "64 KiB to 64 GiB"},
		{"StartupSweepWait", c.StartupSweepWait, c.StartupSweepWait >= time.Second && c.StartupSweepWait <= 10*time.Minute, "1s to 10m"},
		{"SweepInterval", c.SweepInterval, c.SweepInterval >= time.Second && c.SweepInterval <= 24*time.Hour, "1s to 24h"},
		{"MetadataCheckInterval", c.MetadataCheckInterval, c.MetadataCheckInterval >= time.Second && c.MetadataCheckInterval <= 24*time.Hour, "1s to 24h"},
		{"MaxVersion", c.MaxVersion, c.MaxVersion >= 1 && c.MaxVersion <= metastore.NewestVersion, fmt.Sprintf("1 to %d", metastore.NewestVersion)},
		{"UncommittedBytes", c.UncommittedBytes, c.UncommittedBytes >= 64<<10 && c.UncommittedBytes <= 1<<30, "64 KiB to 1 GiB"},
	} {
		if !r.ok {
			return &ConfigError{r.field, r.value, r.description}
		}
	}
	return nil
}
