package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/storage"
)

const recoverAbout = `
Recover is the last resort: the majority of the cluster's voters is lost for good,
disks and all, or that of a partition's replicas, so that nothing can be elected any
more. From the directories of stopped nodes that are left it makes the cluster again,
in another recovery epoch. What only lost nodes had is gone. While the cluster and
every partition have a majority it is refused.

Directories on one machine, with -dirs: without -yes it prints what would happen and
changes nothing; with -yes it keeps the plan in a file and then applies it to all.
Directories on several machines, one step after the other:

  cluster recover survey -dir DIR > a.json           on each machine
  cluster recover plan a.json b.json > plan.json     once, with all surveys: read what it says
  cluster recover apply -plan plan.json -dir DIR     on each machine; then start the nodes

  cluster recover end-hold -epoch N    what was set aside may be destroyed from now on

Exit status: 1 if it was refused or failed, and the last line says whether the same
plan is to be applied again; 2 if the command line makes no sense.
`

const surveyAbout = `
Survey prints, as JSON, what the directory of a stopped node holds, for recover plan.
Nothing is changed.
`

const planAbout = `
Plan decides what a recovery does to the directories that were surveyed, and prints
that as JSON for recover apply, and in words to standard error. Give the surveys of
all directories that can still be read: what is in none of them is lost, and nodes
that are not among them can never return.
`

const applyAbout = `
Apply makes the directory of a stopped node what the plan says. Nothing is removed:
what does not go on is set aside. After a crash it is to be repeated, with the same
plan, and until then no node starts on the directory; once more is harmless.
`

const endHoldAbout = `
End-hold ends what a recovery holds: from now on the nodes may destroy what was set
aside or is in quarantine. It is asked of a cluster that runs, by a person who has
looked at that and needs no more of it. "cluster members" names the epoch.
`

func runRecover(ctx context.Context, args []string, io console) error {
	if len(args) > 0 {
		for _, step := range []command{
			{name: "survey", run: runSurvey}, {name: "plan", run: runPlan},
			{name: "apply", run: runApply}, {name: "end-hold", run: runEndHold},
		} {
			if step.name != args[0] {
				continue
			}
			err := step.run(ctx, args[1:], io)
			var wrong *usageError
			if errors.As(err, &wrong) {
				return &usageError{step.name + ": " + wrong.text}
			}
			return err
		}
	}
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		if _, err := os.Stat(args[0]); err == nil {
			return &usageError{fmt.Sprintf("unexpected argument %q: directories go behind -dirs", args[0])}
		}
		return &usageError{fmt.Sprintf("unexpected argument %q: want -dirs, or one of survey, plan, apply and end-hold", args[0])}
	}
	return runRecoverAll(args, io)
}

// runRecoverAll is a recovery whose directories are all on this machine.
func runRecoverAll(args []string, io console) error {
	f := newFlags("recover", recoverAbout, io)
	list := f.String("dirs", "", "`directories` of all nodes that are left, DIR,DIR,...")
	yes := f.Bool("yes", false, "do what the plan says, to all of them")
	file := f.String("plan", "", "the new `file` in which -yes keeps the plan, to apply it again after a crash (default recovery-plan-EPOCH.json)")
	if err := f.parse(args, false); err != nil {
		return err
	}
	dirs := splitAddrs(*list)
	switch {
	case len(dirs) == 0:
		return &usageError{"-dirs is missing, or one of survey, plan, apply and end-hold"}
	case !*yes && f.given("plan"):
		return &usageError{"-plan goes with -yes: nothing is kept without it"}
	}
	var surveys []stele.Survey
	for _, dir := range dirs {
		s, err := survey(dir)
		if err != nil {
			return err
		}
		surveys = append(surveys, s)
	}
	plan, err := planOf(surveys)
	if err != nil {
		return err
	}
	if *file == "" {
		*file = fmt.Sprintf("recovery-plan-%d.json", plan.To)
	}
	printPlan(io.out, plan)
	if !*yes {
		fmt.Fprintln(io.out, "Nothing was changed. With -yes it is done.")
		return nil
	}
	// Some directories may be done and others not when the machine stops, and then
	// no other plan will do: so it is durable before the first one is begun.
	if err := keepPlan(*file, plan); err != nil {
		return fmt.Errorf("the plan could not be kept, nothing was changed: %w", err)
	}
	for i, dir := range dirs {
		if err := applyTo(dir, plan, io.out); err != nil {
			return fmt.Errorf("%w; it is left to do: cluster recover apply -plan %s -dir DIR, for %s", err, *file, strings.Join(dirs[i:], " and "))
		}
	}
	return nil
}

func runSurvey(_ context.Context, args []string, io console) error {
	f := newFlags("recover survey", surveyAbout, io)
	dir := f.String("dir", "", "data `directory` of a stopped node")
	if err := f.parse(args, false); err != nil {
		return err
	}
	if *dir == "" {
		return &usageError{"-dir is missing"}
	}
	s, err := survey(*dir)
	if err != nil {
		return err
	}
	return writeIndented(io.out, s)
}

func runPlan(_ context.Context, args []string, io console) error {
	f := newFlags("recover plan", planAbout, io)
	if err := f.parse(args, true); err != nil {
		return err
	}
	if f.NArg() == 0 {
		return &usageError{"want the file of one survey or several"}
	}
	surveys := make([]stele.Survey, f.NArg())
	for i, file := range f.Args() {
		if err := readValue(file, &surveys[i]); err != nil {
			return err
		}
	}
	plan, err := planOf(surveys)
	if err != nil {
		return err
	}
	printPlan(io.err, plan)
	return writeIndented(io.out, plan)
}

func runApply(_ context.Context, args []string, io console) error {
	f := newFlags("recover apply", applyAbout, io)
	file := f.String("plan", "", "`file` with what recover plan printed")
	dir := f.String("dir", "", "data `directory` of a stopped node")
	if err := f.parse(args, false); err != nil {
		return err
	}
	switch {
	case *file == "":
		return &usageError{"-plan is missing"}
	case *dir == "":
		return &usageError{"-dir is missing"}
	}
	var plan stele.RecoveryPlan
	if err := readValue(*file, &plan); err != nil {
		return err
	}
	return applyTo(*dir, &plan, io.out)
}

func runEndHold(ctx context.Context, args []string, io console) error {
	f := newFlags("recover end-hold", endHoldAbout, io)
	epoch := f.Uint64("epoch", 0, "the newest recovery `epoch` that you know of; what later ones hold stays held")
	return f.ask(args, func() string {
		if *epoch == 0 {
			return "-epoch is missing: `cluster members` names it"
		}
		return ""
	}, func(c *client) error {
		return c.give(ctx, io, http.MethodDelete, "/recoveries/"+url.PathEscape(strconv.FormatUint(*epoch, 10))+"/hold", nil)
	})
}

// planOf plans a recovery, and says in which epoch the directories are that one is
// refused for.
func planOf(surveys []stele.Survey) (*stele.RecoveryPlan, error) {
	plan, err := stele.PlanRecovery(surveys...)
	if err != nil && surveys[0].Epoch > 0 {
		err = fmt.Errorf("in recovery epoch %d: %w", surveys[0].Epoch, err)
	}
	return plan, err
}

// survey surveys a directory, whose node and cluster it names itself.
func survey(dir string) (stele.Survey, error) {
	cfg, err := configOf(dir)
	if err != nil {
		return stele.Survey{}, err
	}
	return stele.SurveyDir(cfg)
}

// configOf is the configuration of a stopped node, as far as recoveries need it.
func configOf(dir string) (stele.Config, error) {
	dir = filepath.Clean(dir)
	if err := isNodeDir(dir); err != nil {
		return stele.Config{}, err
	}
	unlock, err := lockStopped(dir)
	if err != nil {
		return stele.Config{}, err
	}
	defer unlock()
	off, err := storage.ReadOffline(storage.DiskFS(), dir)
	if err != nil {
		return stele.Config{}, err
	}
	return stele.Config{Cluster: off.Identity.Cluster, Name: off.Identity.Name, Dir: dir}, nil
}

func applyTo(dir string, plan *stele.RecoveryPlan, out io.Writer) error {
	cfg, err := configOf(dir)
	if err != nil {
		return fmt.Errorf("the plan was not applied: %w", err)
	}
	err = stele.ApplyRecovery(cfg, plan)
	switch {
	case err == nil:
		fmt.Fprintf(out, "%s: %s is in recovery epoch %d, and can be started when all are\n", cfg.Dir, cfg.Name, plan.To)
		return nil
	case stele.OutcomeOf(err) == stele.OutcomeUnknown:
		return fmt.Errorf("perhaps applied in part, apply the same plan again: %w", err)
	}
	return fmt.Errorf("the plan was not applied: %w", err)
}

// keepPlan writes a plan durably into a file that is not there yet: one that is
// there may be that of a recovery which has not come to its end.
func keepPlan(file string, plan *stele.RecoveryPlan) error {
	var text bytes.Buffer
	if err := writeIndented(&text, plan); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%w: if it is the plan of a recovery that was interrupted, apply that, else name another file by -plan", err)
	}
	if err != nil {
		return err
	}
	_, err = f.Write(text.Bytes())
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(file)) // which holds its name
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func writeIndented(out io.Writer, v any) error {
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// readValue reads a survey or a plan strictly, so that neither is taken for the
// other, and half of one for all of it.
func readValue(file string, v any) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var has struct{ Survey, Plan json.RawMessage }
	_ = json.Unmarshal(text, &has) // what is wrong is found below
	switch _, wantsPlan := v.(*stele.RecoveryPlan); {
	case wantsPlan && has.Survey != nil:
		return fmt.Errorf("%s is a survey, not a plan: recover plan makes a plan of all surveys", file)
	case !wantsPlan && has.Survey == nil && has.Plan != nil:
		return fmt.Errorf("%s is a plan, not a survey: recover apply takes it", file)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return fmt.Errorf("%s: there is more behind its end", file)
	}
	return nil
}
