package stele_test

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
)

// table returns the lines of the table in the package documentation that begins
// with a line of these words.
func table(t *testing.T, header string) (lines []string) {
	t.Helper()
	text, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	in := false
	for line := range strings.Lines(string(text)) {
		line, indented := strings.CutPrefix(line, "//\t")
		switch {
		case !indented:
			in = false
		case in:
			lines = append(lines, strings.TrimSpace(line))
		}
		if indented && strings.HasPrefix(strings.Join(strings.Fields(line), " "), header) {
			in = true
		}
	}
	require.NotEmpty(t, lines, "no table %q in doc.go", header)
	return lines
}

func TestTheTableOfMetrics(t *testing.T) {
	var documented []string
	for _, line := range table(t, "metric kind labels what") {
		f := strings.Fields(line)
		require.Greater(t, len(f), 3, "says nothing: %s", line)
		documented = append(documented, strings.Join(f[:3], " "))
	}
	registry := prometheus.NewRegistry()
	var gathered, events []string
	testcluster.Run(t, testcluster.Options{Nodes: 1, Config: func(cfg *stele.Config) { cfg.Metrics = registry }}, func(c *testcluster.Cluster) {
		c.StartAll()
		families, err := registry.Gather()
		require.NoError(c.T, err)
		for _, f := range families {
			labels := map[string]bool{}
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					labels[l.GetName()] = true
					if l.GetName() == "event" {
						events = append(events, l.GetValue())
					}
				}
			}
			require.True(c.T, labels["cluster"] && labels["node"], f.GetName())
			require.NotEmpty(c.T, f.GetHelp(), f.GetName())
			var own []string
			for l := range labels {
				if l != "cluster" && l != "node" {
					own = append(own, l)
				}
			}
			slices.Sort(own)
			shown := "-"
			if len(own) > 0 {
				shown = strings.Join(own, ",")
			}
			gathered = append(gathered, f.GetName()+" "+strings.ToLower(f.GetType().String())+" "+shown)
		}
	})
	slices.Sort(documented)
	slices.Sort(gathered)
	require.Equal(t, gathered, documented, "doc.go and what a registry gathers")
	require.ElementsMatch(t, fieldsOf(stele.Events{}), events)

	known := map[string]bool{}
	for _, d := range documented {
		known[strings.Fields(d)[0]] = true
	}
	text, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	for _, name := range regexp.MustCompile(`stele_[a-z_]+`).FindAllString(string(text), -1) {
		require.True(t, known[strings.TrimSuffix(name, "_bucket")], "%s in doc.go is no metric", name)
	}
}

func TestTheTableOfEvents(t *testing.T) {
	var documented []string
	for _, line := range table(t, "event told when") {
		documented = append(documented, strings.Fields(line)[0])
	}
	require.Equal(t, fieldsOf(stele.Events{}), documented)
}

func fieldsOf(v any) (names []string) {
	for f := range reflect.TypeOf(v).Fields() {
		names = append(names, f.Name)
	}
	return names
}
