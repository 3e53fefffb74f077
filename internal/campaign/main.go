//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var o options
	flag.IntVar(&o.rounds, "rounds", 30, "how many rounds")
	flag.IntVar(&o.first, "first", 0, "number of the first round")
	flag.Uint64Var(&o.seed, "seed", 1, "what the rounds do follows from it")
	flag.IntVar(&o.nodes, "nodes", 3, "how many nodes, 3 to 5")
	flag.IntVar(&o.partitions, "partitions", 4, "how many partitions, 1 to 64")
	flag.DurationVar(&o.pause, "pause", 20*time.Millisecond, "pause of each of the 4 writers between two requests of up to 50 records")
	flag.IntVar(&o.inspect, "inspect", 10, "stop all nodes and inspect their files every so many rounds, and at the end")
	flag.StringVar(&o.story, "story", "", "no rounds: "+storyNames())
	flag.IntVar(&o.times, "times", 1, "how often a story goes through the nodes")
	flag.DurationVar(&o.soakFor, "soak", 0, "no rounds: run the load for so long without faults, and look at what the nodes use")
	flag.StringVar(&o.network, "network", "auto", "auto: namespaces and cut links if root on Linux; on: those or an error; off: loopback")
	flag.StringVar(&o.dir, "dir", "", "where the nodes have their directories (default: a temporary one, which goes away if all is well)")
	flag.StringVar(&o.binary, "binary", "", "the program examples/cluster (default: it is built)")
	flag.StringVar(&o.old, "old", "", "for -story upgrade: that program as of an earlier release (default: it is built from the history of this repository)")
	flag.StringVar(&o.out, "out", "", "append a JSON line for each round to this file")
	flag.Parse()
	if known(o.story) {
		o.nodes = storyOf(o.story).nodes
	}
	if err := o.validate(); err != nil {
		fmt.Fprintln(os.Stderr, "campaign:", err)
		os.Exit(2)
	}
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "campaign:", err)
		os.Exit(1)
	}
}

// options are the command line.
type options struct {
	rounds, first, nodes, partitions, inspect int
	seed                                      uint64
	pause, soakFor                            time.Duration
	network, dir, binary, old, out, story     string
	times                                     int
}

func (o *options) validate() error {
	switch {
	case flag.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	case o.rounds < 1 || o.first < 0:
		return fmt.Errorf("-rounds %d -first %d: want at least 1, and at least 0", o.rounds, o.first)
	case o.nodes < 3 || o.nodes > 5:
		return fmt.Errorf("-nodes %d: want 3 to 5", o.nodes)
	case o.partitions < 1 || o.partitions > 64:
		return fmt.Errorf("-partitions %d: want 1 to 64", o.partitions)
	case o.story != "" && !known(o.story):
		return fmt.Errorf("-story %q: want one of %s", o.story, storyNames())
	case o.times < 1 || o.times > 1000:
		return fmt.Errorf("-times %d: want 1 to 1000", o.times)
	case o.old != "" && o.story != upgradeName:
		return fmt.Errorf("-old %s: want it with -story %s only", o.old, upgradeName)
	case o.inspect < 1 || o.pause < 0 || o.soakFor < 0:
		return fmt.Errorf("-inspect %d -pause %v -soak %v: want at least 1, at least 0, at least 0", o.inspect, o.pause, o.soakFor)
	case !slices.Contains([]string{"auto", "on", "off"}, o.network):
		return fmt.Errorf("-network %q: want auto, on or off", o.network)
	}
	return nil
}

// replicas is how many each partition has.
func (o *options) replicas() int {
	if o.story != "" {
		return 3
	}
	return o.nodes
}

const (
	topicName = "campaign"
	// serveBound is how long what should serve may take to serve.
	serveBound = 30 * time.Second
)

// campaign is one run.
type campaign struct {
	options
	cluster *cluster
	ledger  *ledger
	prober  *http.Client
	report  *json.Encoder // nil: none
	reports []report
	longest time.Duration // that a partition took nothing in a story
}

func run(ctx context.Context, o options) (err error) {
	kept := o.dir != ""
	if !kept {
		if o.dir, err = os.MkdirTemp("", "campaign"); err != nil {
			return err
		}
	}
	if o.binary == "" {
		o.binary = filepath.Join(o.dir, "cluster")
		build := exec.CommandContext(ctx, "go", "build", "-o", o.binary, "github.com/stelelog/stele/examples/cluster")
		build.Stdout, build.Stderr = os.Stderr, os.Stderr
		if err := build.Run(); err != nil {
			return fmt.Errorf("build examples/cluster: %w", err)
		}
	}
	if o.story == upgradeName && o.old == "" {
		if o.old, err = buildOld(ctx, o.dir); err != nil {
			return err
		}
	}
	w, err := o.newNetwork()
	if err != nil {
		return err
	}
	defer w.close()
	c := &campaign{options: o, ledger: newLedger(o.partitions), prober: &http.Client{Timeout: 4 * time.Second}}
	if o.out != "" {
		f, err := os.OpenFile(o.out, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		defer f.Close()
		c.report = json.NewEncoder(f)
	}
	if c.cluster, err = newCluster(o.binary, o.dir, o.nodes, o.spare(), w); err != nil {
		return err
	}
	defer c.cluster.killAll()
	what := fmt.Sprintf("rounds %d to %d", o.first, o.first+o.rounds-1)
	if o.story != "" {
		what = o.story
	}
	if o.soakFor > 0 {
		what = fmt.Sprintf("load for %v", o.soakFor)
	}
	fmt.Printf("campaign: seed %d, %s, %d nodes in %s, links can be cut: %v\n", o.seed, what, o.nodes, o.dir, w.tag != "")
	err = c.run(ctx)
	c.summarize()
	if err == nil && !kept {
		return os.RemoveAll(o.dir)
	}
	if err != nil {
		err = fmt.Errorf("%w\nthe directories and logs are in %s", err, o.dir)
	}
	return err
}

func (o *options) newNetwork() (*network, error) {
	if o.network == "off" || o.network == "auto" && (runtime.GOOS != "linux" || os.Geteuid() != 0) {
		return &network{}, nil
	}
	w, err := newNetwork(o.nodes + o.spare())
	if err != nil && o.network == "auto" {
		fmt.Fprintln(os.Stderr, "campaign: no links are cut: ", err)
		return &network{}, nil
	}
	return w, err
}

func (c *campaign) run(ctx context.Context) error {
	if c.story == upgradeName {
		for _, i := range c.cluster.members()[:2] { // they found the cluster with one of this build
			c.cluster.nodes[i].runs(c.cluster.binary, c.old)
		}
	}
	if err := c.startAll(ctx); err != nil {
		return err
	}
	if err := c.create(ctx); err != nil {
		return err
	}
	load := startLoad(ctx, c.cluster, c.ledger, topicName, c.seed+uint64(c.first), c.pause)
	defer load.end()
	work := c.allRounds
	if c.story != "" {
		load.pulse(ctx)
		work = c.tell
	}
	if c.soakFor > 0 {
		work = c.soak
	}
	if err := work(ctx); err != nil {
		return err
	}
	load.endWriting()
	if err := c.allRead(ctx); err != nil {
		return err
	}
	load.end()
	return c.inspectAll(ctx)
}

func (c *campaign) allRounds(ctx context.Context) error {
	for i := range c.rounds {
		n := c.first + i
		if err := c.round(ctx, planRound(c.seed, n, c.nodes, c.cluster.net.tag != "")); err != nil {
			return fmt.Errorf("round %d: %w", n, err)
		}
		if (i+1)%c.inspect == 0 && i+1 < c.rounds {
			if err := c.inspectAll(ctx); err != nil {
				return fmt.Errorf("after round %d: %w", n, err)
			}
			if err := c.startAll(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// startAll starts the nodes and waits until all are ready.
func (c *campaign) startAll(ctx context.Context) error {
	for _, i := range c.cluster.members() {
		if err := c.cluster.nodes[i].start(); err != nil {
			return err
		}
	}
	return c.await(ctx, c.cluster.awaitReady, nil)
}

// await does something with all nodes but those left out, within serveBound.
func (c *campaign) await(ctx context.Context, f func(ctx context.Context, node int) error, without func(node int) bool) error {
	ctx, cancel := context.WithTimeout(ctx, serveBound)
	defer cancel()
	errs := make([]error, len(c.cluster.nodes))
	var wg sync.WaitGroup
	for _, i := range c.cluster.members() {
		if without == nil || !without(i) {
			wg.Go(func() { errs[i] = f(ctx, i) })
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (c *campaign) create(ctx context.Context) error { return c.createTopic(ctx, 0, topicName) }

func (c *campaign) createTopic(ctx context.Context, node int, name string) error {
	body := strings.NewReader(fmt.Sprintf(`{"partitions": %d, "replicas": %d}`, c.partitions, c.replicas()))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+c.cluster.nodes[node].http+"/topics/"+name, body)
	if err != nil {
		return err
	}
	answer, err := (&http.Client{Timeout: serveBound}).Do(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode >= 300 {
		return fmt.Errorf("create the topic: %s", answer.Status)
	}
	return nil
}

// probe has a node take a record for each partition; it tries until ctx ends.
func (c *campaign) probe(ctx context.Context, node int) error {
	w := &load{cluster: c.cluster, ledger: c.ledger, topic: topicName, http: c.prober}
	for p := range c.partitions {
		for {
			numbers := c.ledger.issue(1)
			body := fmt.Appendf(nil, "%d probe\n", numbers[0])
			if w.produce(ctx, unordered, node, p, numbers, body) {
				break
			}
			if wait(ctx, 20*time.Millisecond) != nil {
				return fmt.Errorf("partition %d could not be written through node %s", p, c.cluster.nodes[node].name)
			}
		}
	}
	return nil
}

// round does one fault and checks what must hold.
func (c *campaign) round(ctx context.Context, r *round) error {
	if r.fault.aim {
		if leads := c.cluster.busiest(ctx); leads >= 0 {
			r.victims = []int{leads}
		}
	}
	out := report{Seed: c.seed, Round: r.number, Fault: r.String()}
	struckAt := time.Now()
	if err := r.fault.strike(ctx, c.cluster, r); err != nil {
		return fmt.Errorf("%v: %w", r, err)
	}
	if r.fault.majority {
		if err := c.await(ctx, c.probe, r.struck); err != nil {
			return fmt.Errorf("%v: a majority does not serve: %w", r, err)
		}
		out.ServedAfter = time.Since(struckAt).Seconds()
	}
	if err := wait(ctx, r.hold-time.Since(struckAt)); err != nil {
		return err
	}
	if err := r.fault.heal(ctx, c.cluster, r); err != nil {
		return fmt.Errorf("%v: heal: %w", r, err)
	}
	healedAt := time.Now()
	if err := c.healed(ctx); err != nil {
		return fmt.Errorf("%v: healed: %w", r, err)
	}
	out.HealedAfter = time.Since(healedAt).Seconds()
	var violations []string
	out.counts, violations = c.ledger.sums()
	c.note(out)
	if len(violations) > 0 {
		return fmt.Errorf("%v:\n%s", r, strings.Join(violations, "\n"))
	}
	return nil
}

// healed waits until everything serves again.
func (c *campaign) healed(ctx context.Context) error {
	for _, i := range c.cluster.members() {
		if err := c.cluster.nodes[i].fallen(); err != nil {
			return err
		}
	}
	if err := c.await(ctx, c.cluster.awaitReady, nil); err != nil {
		return err
	}
	if err := c.await(ctx, c.probe, nil); err != nil {
		return err
	}
	return c.allRead(ctx)
}

// allRead waits until what is acknowledged by now is read.
func (c *campaign) allRead(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, serveBound)
	defer cancel()
	ends := c.ledger.acknowledgedEnds()
	for {
		behind := ""
		for p, end := range c.ledger.ends() {
			if end < ends[p] {
				behind += fmt.Sprintf(" partition %d: %d of %d records;", p, end, ends[p])
			}
		}
		if behind == "" {
			return nil
		}
		if wait(ctx, 20*time.Millisecond) != nil {
			return fmt.Errorf("acknowledged, but not read:%s", behind)
		}
	}
}

// inspectAll stops the nodes and reads their files.
func (c *campaign) inspectAll(ctx context.Context) error {
	if err := c.cluster.stop(c.cluster.members()); err != nil {
		return err
	}
	if err := c.cluster.inspect(ctx, topicName, c.replicas(), c.ledger.acknowledgedEnds()); err != nil {
		return err
	}
	_, violations := c.ledger.sums()
	if len(violations) > 0 {
		return errors.New(strings.Join(violations, "\n"))
	}
	fmt.Printf("campaign: the files of all nodes are sound and hold the same records\n")
	return nil
}

// report is a line of the summary.
type report struct {
	Seed        uint64  `json:"seed"`
	Round       int     `json:"round"`
	Fault       string  `json:"fault"`
	ServedAfter float64 `json:"served_after_s,omitempty"` // by the nodes that were not struck, through each, to each partition
	HealedAfter float64 `json:"healed_after_s"`           // all nodes ready, serving every partition, everything read
	counts
}

func (c *campaign) note(r report) {
	c.reports = append(c.reports, r)
	served := ""
	if r.ServedAfter > 0 {
		served = fmt.Sprintf("the others serve after %.2fs, ", r.ServedAfter)
	}
	fmt.Printf("%4d  %s: %sall serve %.2fs after it healed; %d acknowledged, %d unknown, %d rejected\n",
		r.Round, r.Fault, served, r.HealedAfter, r.Acked, r.Unknown, r.Rejected)
	if c.report != nil {
		if err := c.report.Encode(r); err != nil {
			fmt.Fprintln(os.Stderr, "campaign:", err)
		}
	}
}

func (c *campaign) summarize() {
	var served, healed []float64
	for _, r := range c.reports {
		healed = append(healed, r.HealedAfter)
		if r.ServedAfter > 0 {
			served = append(served, r.ServedAfter)
		}
	}
	sums, violations := c.ledger.sums()
	if len(c.reports) > 0 {
		fmt.Printf("campaign: %d rounds; the others served after %s, all served %s after it healed\n",
			len(c.reports), spread(served), spread(healed))
	}
	fmt.Printf("campaign: %d records sent: %d acknowledged, %d unknown, %d rejected, %d of them refused; %d read; %d acknowledged and unread; %s lost; %d violations\n",
		sums.Sent, sums.Acked, sums.Unknown, sums.Rejected, sums.Refused, sums.Read, c.ledger.unread(), connections(sums.Lost), len(violations))
	if c.story != "" {
		fmt.Printf("campaign: the longest pause in acknowledged writes of a partition: %d ms\n", c.longest.Milliseconds())
	}
	for _, s := range c.ledger.sentences() {
		fmt.Println(s)
	}
}

// spread says how long something took.
func spread(s []float64) string {
	if len(s) == 0 {
		return "-"
	}
	slices.Sort(s)
	return fmt.Sprintf("%.2fs (median), %.2fs (at most)", s[len(s)/2], s[len(s)-1])
}
