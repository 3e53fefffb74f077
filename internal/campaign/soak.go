//go:build unix

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// soak runs the load for a while without any fault, and looks at what the nodes
// use: what grows with time, and not with what is stored, grows without end.
func (c *campaign) soak(ctx context.Context) error {
	begun := time.Now()
	every := max(c.soakFor/60, time.Second)
	series := map[string][][]float64{} // by quantity, of each node
	for _, q := range quantities {
		series[q.metric] = make([][]float64, len(c.cluster.nodes))
	}
	for time.Since(begun) < c.soakFor {
		if err := wait(ctx, every); err != nil {
			return err
		}
		line := fmt.Sprintf("%6.0fs", time.Since(begun).Seconds())
		for i, n := range c.cluster.nodes {
			if err := n.fallen(); err != nil {
				return err
			}
			u, err := c.usage(ctx, i)
			if err != nil {
				return err
			}
			for _, q := range quantities {
				series[q.metric][i] = append(series[q.metric][i], u[q.metric])
			}
			line += fmt.Sprintf("  %s: %4.0f MiB, heap %4.0f MiB, %3.0f goroutines, %4.0f descriptors;", n.name,
				u[resident]/(1<<20), u[heap]/(1<<20), u[goroutines], u[descriptors])
			if c.report != nil {
				if err := c.report.Encode(sample{time.Since(begun).Seconds(), n.name, u}); err != nil {
					return err
				}
			}
		}
		sums, violations := c.ledger.sums()
		fmt.Printf("%s %d acknowledged\n", line, sums.Acked)
		if len(violations) > 0 {
			return errors.New(strings.Join(violations, "\n"))
		}
	}
	return grown(series, c.cluster.nodes)
}

// sample is a line of the series.
type sample struct {
	Seconds float64            `json:"s"`
	Node    string             `json:"node"`
	Usage   map[string]float64 `json:"usage"`
}

const (
	resident    = "process_resident_memory_bytes"
	heap        = "go_memstats_heap_inuse_bytes"
	goroutines  = "go_goroutines"
	descriptors = "process_open_fds"
)

// quantities are what must not grow, and by how much they may between the
// second and the last quarter of the time: medians of each. Memory holds the
// index of what is stored; descriptors are kept for segments, up to a limit.
var quantities = []struct {
	metric      string
	share, plus float64
}{
	{resident, 0.25, 64 << 20},
	{heap, 0.25, 64 << 20},
	{goroutines, 0.1, 10},
	{descriptors, 0.1, 50},
}

func grown(series map[string][][]float64, nodes []*node) error {
	var errs []error
	for _, q := range quantities {
		for i, values := range series[q.metric] {
			n := len(values)
			if n < 8 {
				return fmt.Errorf("%d samples are too few to tell", n)
			}
			early, late := median(values[n/4:n/2]), median(values[n*3/4:])
			fmt.Printf("campaign: %s of %s: %.0f in the second quarter, %.0f in the last\n", q.metric, nodes[i].name, early, late)
			if late > early*(1+q.share)+q.plus {
				errs = append(errs, fmt.Errorf("%s of %s grew from %.0f to %.0f", q.metric, nodes[i].name, early, late))
			}
		}
	}
	return errors.Join(errs...)
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// usage is what a node's metrics say that it uses.
func (c *campaign) usage(ctx context.Context, node int) (map[string]float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.cluster.nodes[node].http+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	answer, err := c.cluster.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	found := map[string]float64{}
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if slices.Contains([]string{resident, heap, goroutines, descriptors}, name) {
			if found[name], err = strconv.ParseFloat(value, 64); err != nil {
				return nil, err
			}
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(found) != len(quantities) {
		return nil, fmt.Errorf("node %s tells only %v of what it uses", c.cluster.nodes[node].name, found)
	}
	return found, nil
}
