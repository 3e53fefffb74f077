//go:build unix

// Bench measures the library: a cluster in this process, over loopback TCP and
// real files in a temporary directory, with the load generator beside it. All
// figures are of the whole cluster together, on one machine's cores and disk.
//
//	go run ./examples/bench                                   # 16 partitions, 1 KiB, 512 in flight
//	go run ./examples/bench -partitions 1,16,128 -value-size 128,1024 -inflight 1,512
//	go run ./examples/bench -mode consume                     # or idle, failover, restart
//	go run ./examples/bench -cpuprofile cpu.out -memprofile mem.out
//
// With lists, one cluster after the other is made, and each has a line in the
// table. Other flags: bench -h.
//
// # Modes
//
//	produce   a closed loop: -inflight records are on their way at any time, in
//	          equal shares for all partitions. One second of warm-up is not
//	          counted. With one in flight of a partition the call is
//	          Producer.ProduceTo, which waits; else it is ProduceToAsync.
//	consume   -load bytes are produced, then read, by a reader for each partition
//	idle      one record is produced to each partition, then nothing happens
//	failover  one caller for each partition produces all the time; the node that
//	          leads partition 0 is aborted, as a crash would end it, and opened
//	          again
//	restart   -load bytes are produced, then all nodes are closed and opened again
//
// Records are sent through the node that leads their partition, or, with
// -via other, through one that does not and has to pass them on. At the end all is
// read back: each partition must hold what was acknowledged, by count and by
// the sum of the numbers in the values, or bench exits with status 1.
//
// # What the figures mean
//
//	records/s     acknowledged, and so synced by a quorum, in -duration
//	MB/s          of values, 1 MB = 1,000,000 B
//	p50 p99 p99.9 from the call to its answer; half, 1 % and 0.1 % took longer
//	CPU s/M       seconds of processor time, user and system, of the whole
//	              process, for a million records
//	written/B     bytes that were written to files for a byte of the values. Each
//	              of three nodes writes a record to its journal and to the
//	              partition's log, so 6 is the floor. It is 9 until both files of
//	              a node's journal were filled once: they are made with zeros
//	allocs        heap objects for a record, the load generator's included
//	rec/batch     records that share a batch; a batch is an entry of raft's log
//	batch/round   batches of the leaders for each round of the journal
//	rounds/s      writes and syncs of the journals, of all nodes
//
// And in the other modes:
//
//	idle CPU %    of one core, for the whole cluster; heap in use and
//	              goroutines are the process's
//	outage        for a partition that the aborted node led: from the abort to
//	              the first acknowledgement of a record that was sent after it
//	back          from opening the node again until it is ready
//	close, ready  of all nodes, one after the other; ready: every partition has a leader
//	first ack     from the opening of the first node to the first acknowledged record
//
// Figures of two runs differ by a tenth easily; on a machine that does
// something else meanwhile they mean nothing.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	o, err := parse(os.Args[1:])
	if err == nil {
		err = profiled(o, func() error { return run(ctx, o) })
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	mode, dir, via                   string
	partitions, valueSizes, inflight []int
	nodes                            int
	duration                         time.Duration
	load                             int64
	asJSON                           bool
	cpuProfile, memProfile           string
}

// cell is one measurement.
type cell struct {
	Mode       string `json:"mode"`
	Via        string `json:"via"`
	Nodes      int    `json:"nodes"`
	Partitions int    `json:"partitions"`
	ValueSize  int    `json:"value_size"`
	Inflight   int    `json:"inflight"` // over all partitions

	duration time.Duration
	load     int64
	dir      string
	tick     time.Duration // 0: the default
}

func parse(args []string) (o options, err error) {
	f := flag.NewFlagSet("bench", flag.ExitOnError)
	f.StringVar(&o.mode, "mode", "produce", "produce, consume, idle, failover or restart")
	f.StringVar(&o.dir, "dir", os.TempDir(), "where the clusters' directories are made, and removed again")
	f.StringVar(&o.via, "via", "leader", "produce through the partition's leader, or through an other node")
	partitions := f.String("partitions", "16", "a list: partitions of the topic")
	sizes := f.String("value-size", "1024", "a list: bytes of a value, at least 8")
	inflight := f.String("inflight", "512", "a list: records on their way at once, over all partitions")
	f.IntVar(&o.nodes, "nodes", 3, "nodes, all of which hold all partitions: 1 to 5")
	f.DurationVar(&o.duration, "duration", 5*time.Second, "how long is measured, where the mode has no end of its own")
	f.Int64Var(&o.load, "load", 256<<20, "bytes of values to produce before consume and restart")
	f.BoolVar(&o.asJSON, "json", false, "print a line of JSON for each cluster instead of the table")
	f.StringVar(&o.cpuProfile, "cpuprofile", "", "write a processor profile of the whole run to this file")
	f.StringVar(&o.memProfile, "memprofile", "", "write a profile of all allocations of the run to this file")
	_ = f.Parse(args) // it exits
	for list, into := range map[*string]*[]int{partitions: &o.partitions, sizes: &o.valueSizes, inflight: &o.inflight} {
		if *into, err = numbers(*list); err != nil {
			return o, err
		}
	}
	return o, o.validate()
}

func numbers(list string) (ns []int, err error) {
	for word := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(word))
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q: want numbers from 1 on, with commas between them", list)
		}
		ns = append(ns, n)
	}
	return ns, nil
}

func (o options) validate() error {
	switch {
	case modes[o.mode] == nil:
		return fmt.Errorf("-mode %s: want produce, consume, idle, failover or restart", o.mode)
	case o.via != "leader" && o.via != "other":
		return fmt.Errorf("-via %s: want leader or other", o.via)
	case o.nodes < 1 || o.nodes > 5:
		return fmt.Errorf("-nodes %d: want 1 to 5", o.nodes)
	case o.mode == "failover" && o.nodes < 3, o.via == "other" && o.nodes < 2:
		return fmt.Errorf("-nodes %d: too few for that", o.nodes)
	case o.duration <= 0 || o.load < 1:
		return fmt.Errorf("-duration %v, -load %d: want more than 0", o.duration, o.load)
	}
	for _, size := range o.valueSizes {
		if size < 8 || size > 1<<20 {
			return fmt.Errorf("-value-size %d: want 8 to %d", size, 1<<20)
		}
	}
	return nil
}

// modes are what measures, by name.
var modes = map[string]func(context.Context, cell, *cluster) (result, error){
	"produce": produce, "consume": consume, "idle": idle, "failover": failover, "restart": restart,
}

func run(ctx context.Context, o options) error {
	var results []result
	for _, partitions := range o.partitions {
		for _, size := range o.valueSizes {
			for _, inflight := range o.inflight {
				r, err := measure(ctx, cell{
					Mode: o.mode, Via: o.via, Nodes: o.nodes, Partitions: partitions, ValueSize: size, Inflight: inflight,
					duration: o.duration, load: o.load, dir: o.dir,
				})
				if err != nil {
					return fmt.Errorf("%s, %d partitions, %d B, %d in flight: %w", o.mode, partitions, size, inflight, err)
				}
				results = append(results, r)
				if o.asJSON {
					if err := r.writeJSON(os.Stdout); err != nil {
						return err
					}
				}
			}
		}
	}
	if o.asJSON {
		return nil
	}
	return writeTable(os.Stdout, o.mode, results)
}

// measure runs one cell with a cluster of its own.
func measure(ctx context.Context, c cell) (r result, err error) {
	k, err := startCluster(ctx, c)
	if err != nil {
		return r, err
	}
	defer func() {
		if e := k.remove(); err == nil {
			err = e
		}
	}()
	return modes[c.Mode](ctx, c, k)
}

// profiled runs f and writes the profiles that were asked for.
func profiled(o options, f func() error) (err error) {
	if o.cpuProfile != "" {
		out, err := os.Create(o.cpuProfile)
		if err != nil {
			return err
		}
		defer out.Close()
		if err := pprof.StartCPUProfile(out); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	if o.memProfile != "" {
		out, e := os.Create(o.memProfile)
		if e != nil {
			return e
		}
		defer func() {
			runtime.GC()
			if e := pprof.Lookup("allocs").WriteTo(out, 0); err == nil {
				err = e
			}
			out.Close()
		}()
	}
	return f()
}
