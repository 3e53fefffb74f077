package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], console{os.Stdin, os.Stdout, os.Stderr}))
}

// console is what a command reads and writes.
type console struct {
	in       io.Reader
	out, err io.Writer
}

// command is one sub-command. It parses its arguments itself.
type command struct {
	name, args, about string
	run               func(ctx context.Context, args []string, io console) error
}

func commands() []command {
	return []command{
		{"node", "-name NAME [-peers ...]", "run one node of a cluster, until SIGTERM or Ctrl-C", runNode},
		{"join", "-name NAME -join ADDR,...", "the same as node, for one that joins a running cluster", runJoin},
		{"create", "-topic T [-partitions N]", "create a topic", runCreate},
		{"retain", "-topic T [-keep-age D] [-keep-bytes N]", "change what a topic keeps", runRetain},
		{"delete", "-topic T [-grace D]", "delete a topic", runDelete},
		{"undelete", "-topic T", "bring back a topic that was deleted with a grace", runUndelete},
		{"topics", "", "list the topics", runTopics},
		{"produce", "-topic T", "append the lines of standard input", runProduce},
		{"consume", "-topic T [-from X] [-follow]", "print records", runConsume},
		{"status", "", "who leads what, and who is behind", runStatus},
		{"members", "", "who is in the cluster, and how it is", runMembers},
		{"decommission", "-name NAME [-plan|-wait|...]", "take a node out of the cluster", runDecommission},
		{"promote", "-name NAME", "give a node its vote, or say why it has none yet", runPromote},
		{"transfer", "-to NAME [-topic T]", "have another node lead a partition, or the metadata", runTransfer},
		{"forget", "-replica N", "take out a replica of the metadata that no member is", runForget},
		{"inspect", "DIR...", "read the directories of stopped nodes, verify and compare them", runInspect},
		{"quarantine", "list|show|restore|reclaim|adopt ...", "what nodes have set aside: list, look, restore, give up", runQuarantine},
		{"recover", "-dirs DIR,... [-yes] | STEP ...", "make a cluster again whose majority is lost", runRecover},
	}
}

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
	exitUnread = 2 // of inspect
	exitGone   = 3 // of a node: it is no member any more
	exitFenced = 4 // of a node: a forced recovery left it behind
	exitApply  = 6 // of a node: the plan of a forced recovery has to be applied to its directory
	exitBlocks = 5 // of decommission -plan: something is in the way
)

// usageError is a command line that makes no sense. It was explained already if
// it has no text.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

// run runs one command and returns the exit code.
func run(ctx context.Context, args []string, io console) int {
	if len(args) == 0 || slices.Contains([]string{"-h", "-help", "--help", "help"}, args[0]) {
		usage(io.err)
		if len(args) == 0 {
			return exitUsage
		}
		return exitOK
	}
	all := commands()
	i := slices.IndexFunc(all, func(c command) bool { return c.name == args[0] })
	if i < 0 {
		fmt.Fprintf(io.err, "cluster: unknown command %q; `cluster -h` lists them\n", args[0])
		return exitUsage
	}
	err := all[i].run(ctx, args[1:], io)
	var wrong *usageError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return exitOK
	case errors.As(err, &wrong):
		fmt.Fprintf(io.err, "cluster %s: %s; `cluster %s -h` explains\n", args[0], wrong.text, args[0])
		return exitUsage
	}
	fmt.Fprintf(io.err, "cluster %s: %v\n", args[0], err)
	var unread *unreadError
	var coded *codeError
	switch {
	case errors.As(err, &unread):
		return exitUnread
	case errors.As(err, &coded):
		return coded.code
	}
	return exitFailed
}

// plural is a number and what it counts.
func plural[N ~int | ~uint32 | ~uint64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

func usage(w io.Writer) {
	fmt.Fprint(w, "Cluster runs one node of a replicated topic log per process, and talks to nodes.\n\nUsage:\n\n")
	for _, c := range commands() {
		fmt.Fprintf(w, "  cluster %-42s %s\n", c.name+" "+c.args, c.about)
	}
	fmt.Fprint(w, "\n`cluster COMMAND -h` explains the flags of a command.\n")
}

// flags are the flags of a command, with the sentence that its -h begins with.
type flags struct {
	*flag.FlagSet
	io console
}

func newFlags(name, about string, out console) *flags {
	f := &flags{flag.NewFlagSet(name, flag.ContinueOnError), out}
	f.SetOutput(io.Discard) // errors are told by run
	f.Usage = func() {
		fmt.Fprintf(out.err, "%s\n\nFlags of `cluster %s`:\n\n", strings.TrimSpace(about), name)
		f.SetOutput(out.err)
		f.PrintDefaults()
		f.SetOutput(io.Discard)
	}
	return f
}

// given reports whether a flag is on the command line.
func (f *flags) given(name string) bool {
	found := false
	f.Visit(func(g *flag.Flag) { found = found || g.Name == name })
	return found
}

// parse refuses what is left behind the flags, unless positional says that it is
// wanted.
func (f *flags) parse(args []string, positional bool) error {
	usage := f.Usage
	f.Usage = func() {} // a wrong flag gets one line, not a page
	err := f.Parse(args)
	f.Usage = usage
	switch {
	case errors.Is(err, flag.ErrHelp):
		f.Usage()
		return err
	case err != nil:
		return &usageError{err.Error()}
	case f.NArg() > 0 && !positional:
		hint := ""
		if f.Lookup("topic") != nil {
			hint = fmt.Sprintf(" (a topic is named by -topic %s)", f.Arg(0))
		}
		return &usageError{fmt.Sprintf("unexpected argument %q%s", f.Arg(0), hint)}
	}
	return nil
}
