//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// result is a line of the table; see the package comment. What a mode does not
// measure is 0.
type result struct {
	cell
	Seconds         float64 `json:"seconds,omitempty"`
	Records         int64   `json:"records,omitempty"`
	RecordsPerS     float64 `json:"records_per_s,omitempty"`
	MBPerS          float64 `json:"mb_per_s,omitempty"`
	P50             float64 `json:"p50_ms,omitempty"`
	P99             float64 `json:"p99_ms,omitempty"`
	P999            float64 `json:"p999_ms,omitempty"`
	CPUPerMillion   float64 `json:"cpu_s_per_million,omitempty"`
	WrittenPerByte  float64 `json:"written_bytes_per_value_byte,omitempty"`
	AllocsPerRecord float64 `json:"allocs_per_record,omitempty"`
	PerBatch        float64 `json:"records_per_batch,omitempty"`
	BatchesPerRound float64 `json:"batches_per_round,omitempty"`
	RoundsPerS      float64 `json:"journal_rounds_per_s,omitempty"`

	IdleCPU     float64 `json:"idle_cpu_pct,omitempty"`
	IdleWritten float64 `json:"idle_written_bytes_per_s,omitempty"`
	HeapMiB     float64 `json:"heap_mib,omitempty"`
	Goroutines  int     `json:"goroutines,omitempty"`

	Outage      float64 `json:"outage_ms,omitempty"` // median
	WorstOutage float64 `json:"worst_outage_ms,omitempty"`
	Back        float64 `json:"back_ms,omitempty"`

	Close    float64 `json:"close_ms,omitempty"`
	Ready    float64 `json:"ready_ms,omitempty"`
	FirstAck float64 `json:"first_ack_ms,omitempty"`

	ReadBack uint64 `json:"read_back"` // records, which were all that were acknowledged
}

// account fills in what happened between two samples.
func (r *result) account(from, to sample, records int64) {
	r.Seconds = to.at.Sub(from.at).Seconds()
	r.Records = records
	r.RecordsPerS = float64(records) / r.Seconds
	r.RoundsPerS = (to.rounds - from.rounds) / r.Seconds
	if records == 0 {
		return
	}
	n, bytes := float64(records), float64(records)*float64(r.ValueSize)
	r.MBPerS = bytes / r.Seconds / 1e6
	r.CPUPerMillion = (to.cpu - from.cpu).Seconds() / n * 1e6
	r.WrittenPerByte = float64(to.written-from.written) / bytes
	r.AllocsPerRecord = float64(to.allocs-from.allocs) / n
	if batches := to.batches - from.batches; batches > 0 {
		r.PerBatch = (to.inThem - from.inThem) / batches
		// Each round of a leader has one of each other node beside it.
		r.BatchesPerRound = batches * float64(r.Nodes) / (to.rounds - from.rounds)
	}
}

func (r *result) writeJSON(w io.Writer) error { return json.NewEncoder(w).Encode(r) }

// column is one figure of the table.
type column struct {
	name   string
	format string
	value  func(*result) any
}

var columns = map[string][]column{
	"produce": {
		{"records/s", "%.0f", func(r *result) any { return r.RecordsPerS }},
		{"MB/s", "%.1f", func(r *result) any { return r.MBPerS }},
		{"p50 ms", "%.2f", func(r *result) any { return r.P50 }},
		{"p99 ms", "%.2f", func(r *result) any { return r.P99 }},
		{"p99.9 ms", "%.2f", func(r *result) any { return r.P999 }},
		{"CPU s/M", "%.2f", func(r *result) any { return r.CPUPerMillion }},
		{"written/B", "%.2f", func(r *result) any { return r.WrittenPerByte }},
		{"allocs", "%.2f", func(r *result) any { return r.AllocsPerRecord }},
		{"rec/batch", "%.1f", func(r *result) any { return r.PerBatch }},
		{"batch/round", "%.2f", func(r *result) any { return r.BatchesPerRound }},
		{"rounds/s", "%.0f", func(r *result) any { return r.RoundsPerS }},
	},
	"consume": {
		{"records/s", "%.0f", func(r *result) any { return r.RecordsPerS }},
		{"MB/s", "%.1f", func(r *result) any { return r.MBPerS }},
		{"CPU s/M", "%.2f", func(r *result) any { return r.CPUPerMillion }},
		{"allocs", "%.3f", func(r *result) any { return r.AllocsPerRecord }},
	},
	"idle": {
		{"idle CPU %", "%.2f", func(r *result) any { return r.IdleCPU }},
		{"written B/s", "%.0f", func(r *result) any { return r.IdleWritten }},
		{"rounds/s", "%.1f", func(r *result) any { return r.RoundsPerS }},
		{"heap MiB", "%.1f", func(r *result) any { return r.HeapMiB }},
		{"goroutines", "%d", func(r *result) any { return r.Goroutines }},
	},
	"failover": {
		{"median outage ms", "%.0f", func(r *result) any { return r.Outage }},
		{"worst outage ms", "%.0f", func(r *result) any { return r.WorstOutage }},
		{"back ms", "%.0f", func(r *result) any { return r.Back }},
	},
	"restart": {
		{"close ms", "%.0f", func(r *result) any { return r.Close }},
		{"ready ms", "%.0f", func(r *result) any { return r.Ready }},
		{"first ack ms", "%.0f", func(r *result) any { return r.FirstAck }},
	},
}

func writeTable(w io.Writer, mode string, results []result) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	head := []string{"nodes", "partitions", "value B", "in flight"}
	for _, c := range columns[mode] {
		head = append(head, c.name)
	}
	fmt.Fprintln(t, strings.Join(append(head, "read back", ""), "\t"))
	for i := range results {
		r := &results[i]
		fmt.Fprintf(t, "%d\t%d\t%d\t%d\t", r.Nodes, r.Partitions, r.ValueSize, r.Inflight)
		for _, c := range columns[mode] {
			fmt.Fprintf(t, c.format+"\t", c.value(r))
		}
		fmt.Fprintf(t, "%d\t\n", r.ReadBack)
	}
	return t.Flush()
}
