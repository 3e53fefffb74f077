package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// asProgram makes the test binary be the program: the tests start it as node
// processes, and nothing has to be built.
const asProgram = "CLUSTER_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

// command runs a command in this process.
func runHere(ctx context.Context, in io.Reader, args ...string) (code int, out, errs string) {
	var o, e bytes.Buffer
	code = run(ctx, args, console{in, &o, &e})
	return code, o.String(), e.String()
}

// mustRun runs a command that has to succeed.
func mustRun(t *testing.T, in string, args ...string) string {
	t.Helper()
	code, out, errs := runHere(t.Context(), strings.NewReader(in), args...)
	require.Zero(t, code, "%q: %s%s", args, out, errs)
	return out
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"", 2, "Usage:"},
		{"-h", 0, "verify and compare them"},
		{"help", 0, "Usage:"},
		{"prodcue", 2, "unknown command \"prodcue\"; `cluster -h` lists them"},
		{"produce -h", 0, "-at-least-once"},
		{"node -h", 0, "-advertise"},
		{"node", 2, "-name is missing"},
		{"node -nmae a", 2, "flag provided but not defined: -nmae; `cluster node -h` explains"},
		{"node -name a -log loud", 2, "debug, info, warn or error"},
		{"node -name a -peers a", 2, "name=host:port"},
		{"node -name a -peers a=127.0.0.1:1", 2, "-http is missing"},
		{"node -name a -advertise 127.0.0.1:1", 2, "-peers has 127.0.0.1:7101 for a"},
		{"node -name a -stop-timeout 0s", 2, "want more than 0"},
		{"node -name z", 2, "-name z is not one of -peers (a, b, c)"},
		{"node -name a -http 127.0.0.1:0 -peers a=127.0.0.1:70000 -dir x", 1, "InitialMembers[0].Addr"},
		{"node -name d -join 127.0.0.1:1", 2, "-advertise is missing"},
		{"node -name d -join 127.0.0.1:1 -advertise 127.0.0.1:2", 2, "-http is missing"},
		{"node -name d -join 127.0.0.1:1 -peers d=127.0.0.1:2", 2, "-join and -peers"},
		{"node -name d -join nowhere -advertise 127.0.0.1:2 -http 127.0.0.1:0 -dir x", 1, "Join[0]"},
		{"decommission", 2, "-name is missing"},
		{"decommission -name d -cancel -wait", 2, "-cancel goes with no other flag"},
		{"decommission -name d -plan -wait", 2, "-plan does nothing"},
		{"promote", 2, "-name is missing"},
		{"forget", 2, "-replica is missing"},
		{"transfer", 2, "-to is missing"},
		{"transfer -to a -partition 1", 2, "-partition goes with -topic"},
		{"join -name d", 2, "-join is missing"},
		{"members -http 127.0.0.1:1 -timeout 100ms", 1, "connection refused"},
		{"create lines", 2, "a topic is named by -topic lines"},
		{"create", 2, "-topic is missing"},
		{"create -topic x -partitions 0", 2, "want 1 to 10000"},
		{"create -topic x -partitions 99999999999", 2, "want 1 to 10000"},
		{"delete", 2, "-topic is missing"},
		{"produce -topic x -partition -2", 2, "-1 for any"},
		{"produce -topic x -http ,", 2, "-http is empty"},
		{"produce -topic x -timeout -1s", 2, "want more than 0"},
		{"consume -topic x -from yesterday", 2, "want start, end or an offset from 0"},
		{"consume -topic x -n -1", 2, "want a number from 0"},
		{"status -http 127.0.0.1:1", 1, "connection refused"},
		{"topics -http 127.0.0.1:1 -timeout 100ms", 1, "connection refused"},
		{"recover -h", 0, "cluster recover survey -dir DIR"},
		{"recover", 2, "-dirs is missing"},
		{"recover -yes", 2, "-dirs is missing"},
		{"recover -dirs x -plan y", 2, "-plan goes with -yes"},
		{"recover undo", 2, "unexpected argument \"undo\": want -dirs, or one of survey, plan, apply and end-hold"},
		{"recover .", 2, "directories go behind -dirs"},
		{"recover -dirs does-not-exist", 1, "no such file or directory"},
		{"recover survey", 2, "survey: -dir is missing"},
		{"recover survey -h", 0, "Nothing is changed"},
		{"recover survey -dir .", 1, ". is no directory of a node"},
		{"recover plan", 2, "plan: want the file of one survey"},
		{"recover plan doc.go", 1, "doc.go: invalid character"},
		{"recover apply -dir x", 2, "apply: -plan is missing"},
		{"recover apply -plan x", 2, "apply: -dir is missing"},
		{"recover end-hold", 2, "end-hold: -epoch is missing"},
		{"inspect", 2, "want one directory or several"},
		{"inspect does-not-exist", 2, "cannot read: open does-not-exist: no such file or directory"},
		{"inspect .", 2, "cannot read: . is no directory of a node"},
	} {
		code, out, errs := runHere(t.Context(), strings.NewReader(""), strings.Fields(c.args)...)
		require.Equal(t, c.code, code, "%q: %s", c.args, errs)
		require.Contains(t, out+errs, c.want, "%q", c.args)
	}
	require.NoDirExists(t, "x")
}
