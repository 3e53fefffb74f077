package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/stelelog/stele"
)

const nodeAbout = `
Node runs one node until SIGTERM or Ctrl-C; a second one aborts. All nodes get
the same -peers, and the cluster is founded when all of them were up once.

With -join in place of -peers a node with an empty directory becomes a member of
a cluster that runs. Started again, it is still the one that it became.

Without both it is one of three nodes on this machine: run it three times, with
-name a, b and c. Exit status: 0 after a clean stop; 1 if the node failed or was
aborted, and the last line says why; 2 if the command line makes no sense; 3 if
the node is no member any more, and 4 if a forced recovery left it behind: it takes
part again only with an empty directory; 6 if the plan of a forced recovery, which
includes the node, is to be applied to its directory: see recover, and do not empty
that directory, as it may hold what no other node has.
`

// nodeFlags is the command line of a node.
type nodeFlags struct {
	config stele.Config
	peers  []peer
	http   string
	level  zapcore.Level
	stop   time.Duration
}

func parseNode(args []string, io console) (*nodeFlags, error) {
	f := newFlags("node", nodeAbout, io)
	var n nodeFlags
	f.StringVar(&n.config.Name, "name", "", "`name` of this node: one of -peers, or with -join its own")
	f.StringVar(&n.config.Cluster, "cluster", "example", "`name` of the cluster: nodes of another one are refused")
	f.StringVar(&n.config.Dir, "dir", "", "data `directory` of this node (default cluster-data/NAME)")
	f.StringVar(&n.config.Listen, "listen", "", "`address` to listen on for the other nodes (default that in -peers, or -advertise)")
	f.StringVar(&n.http, "http", "", "`address` of the HTTP API (default that behind @ in -peers; with -join there is none, and it has to be given)")
	f.StringVar(&n.config.Advertise, "advertise", "", "`address` at which the others reach this node: has to be given with -join, and is that in -peers else")
	join := f.String("join", "", "`addresses` of nodes of a running cluster, not of their HTTP APIs, to become a member there: addr,...")
	f.BoolVar(&n.config.Observer, "observer", false, "hold partitions, and never vote on the metadata: for a node that joins")
	peers := f.String("peers", defaultPeers, "all initial `members`, this one too, equal on all: name=addr[@http-addr],...\n")
	level := f.String("log", "info", "`level` of the log: debug, info, warn or error")
	f.DurationVar(&n.config.DeleteGrace, "delete-grace", 0, "how long a topic that is deleted through this node can be brought back, unless delete -grace says otherwise; 0: it cannot")
	f.DurationVar(&n.stop, "stop-timeout", 10*time.Second, "how long a clean stop may take before it becomes an abort")
	if err := f.parse(args, false); err != nil {
		return nil, err
	}
	if n.config.Name == "" {
		return nil, &usageError{"-name is missing: one of the names in -peers, or with -join a new one"}
	}
	var err error
	if n.level, err = zapcore.ParseLevel(*level); err != nil {
		return nil, &usageError{fmt.Sprintf("-log %q: want debug, info, warn or error", *level)}
	}
	if n.config.Join = splitAddrs(*join); len(n.config.Join) > 0 {
		if f.given("peers") {
			return nil, &usageError{"-join and -peers: a cluster is joined, or founded"}
		}
		return &n, n.completeJoin()
	}
	if n.peers, err = parsePeers(*peers); err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(n.peers, func(p peer) bool { return p.Name == n.config.Name }) {
		return nil, &usageError{fmt.Sprintf("-name %s is not one of -peers (%s)", n.config.Name, namesOf(n.peers))}
	}
	return &n, n.complete()
}

// completeJoin checks the command line of a node that joins.
func (n *nodeFlags) completeJoin() error {
	switch {
	case n.config.Advertise == "":
		return &usageError{"-advertise is missing: the address at which the others reach this node"}
	case n.http == "":
		return &usageError{"-http is missing: the address of this node's HTTP API"}
	}
	n.peers = []peer{{stele.Peer{Name: n.config.Name, Addr: n.config.Advertise}, n.http}}
	return n.completeAny()
}

// complete fills in what follows from -peers.
func (n *nodeFlags) complete() error {
	advertise := n.config.Advertise
	for _, p := range n.peers {
		n.config.InitialMembers = append(n.config.InitialMembers, p.Peer)
		if p.Name != n.config.Name {
			continue
		}
		if n.http == "" {
			n.http = p.http
		}
		if advertise != "" && advertise != p.Addr {
			return &usageError{fmt.Sprintf("-advertise %s: -peers has %s for %s, and the others dial that", advertise, p.Addr, p.Name)}
		}
	}
	if n.http == "" {
		return &usageError{"-http is missing: the address of this node's HTTP API, or name=addr@http-addr in -peers"}
	}
	return n.completeAny()
}

// completeAny checks what all nodes have.
func (n *nodeFlags) completeAny() error {
	if n.config.Dir == "" {
		n.config.Dir = filepath.Join("cluster-data", n.config.Name)
	}
	if n.stop <= 0 {
		return &usageError{fmt.Sprintf("-stop-timeout %v: want more than 0", n.stop)}
	}
	return nil
}

func newLogger(w zapcore.WriteSyncer, level zapcore.Level) *zap.Logger {
	enc := zap.NewDevelopmentEncoderConfig()
	enc.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05.000")
	enc.EncodeLevel = zapcore.CapitalLevelEncoder
	enc.ConsoleSeparator = "  "
	return zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(enc), zapcore.Lock(w), level))
}

// runJoin is node, of which it expects -join.
func runJoin(ctx context.Context, args []string, io console) error {
	asks := func(a string) bool {
		flag, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(a, "-"), "-"), "=")
		return strings.HasPrefix(a, "-") && (flag == "join" || flag == "h" || flag == "help")
	}
	if !slices.ContainsFunc(args, asks) {
		return &usageError{"-join is missing: addresses of nodes of the running cluster"}
	}
	return runNode(ctx, args, io)
}

// runNode is the only command that stays.
func runNode(ctx context.Context, args []string, io console) error {
	n, err := parseNode(args, io)
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)

	log := newLogger(zapcore.AddSync(io.err), n.level)
	listener, err := net.Listen("tcp", n.http)
	if err != nil {
		return fmt.Errorf("-http: %w", err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	n.config.Logger, n.config.Metrics = log, registry
	node, err := stele.Open(ctx, n.config)
	var unfinished *stele.RecoveringError
	if errors.As(err, &unfinished) {
		return errors.Join(&codeError{exitApply, err.Error()}, listener.Close())
	}
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	s := newServer(node, n, registry)
	log.Info("serving", zap.String("node", node.Name()), zap.String("peers_reach_it_at", node.Addr()),
		zap.String("http", listener.Addr().String()), zap.String("dir", n.config.Dir))
	served := make(chan error, 1)
	go func() { served <- s.http.Serve(listener) }()

	err = watch(node, log, signals, served)
	return errors.Join(err, s.stop(n.stop, signals, log))
}

// codeError is an end with an exit code of its own.
type codeError struct {
	code int
	text string
}

func (e *codeError) Error() string { return e.text }

// watch returns when the node is to be stopped: nil for a signal, an error if
// it cannot serve any more.
func watch(node *stele.Node, log *zap.Logger, signals <-chan os.Signal, served <-chan error) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	var last stele.Readiness
	for {
		if r := node.Readiness(); r != last {
			last = r
			log.Info(r.String())
			switch r.Code {
			case stele.Failed:
				return fmt.Errorf("the node cannot go on: %v", r)
			case stele.Removed:
				return &codeError{exitGone, r.Reason} // where a decommission ends
			case stele.Fenced:
				return &codeError{exitFenced, r.Reason}
			case stele.NotRecovered:
				return &codeError{exitApply, r.Reason}
			}
		}
		select {
		case s := <-signals:
			log.Info("stopping", zap.Stringer("signal", s))
			return nil
		case err := <-served:
			return fmt.Errorf("the HTTP server ended: %w", err)
		case <-tick.C:
		}
	}
}
