//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

const (
	upgradeName = "upgrade"
	// oldCommit is the last one of which all that nodes say is of version 1.
	oldCommit = "aeefb80"
)

// buildOld builds the program of an earlier release from the history of the
// repository that the campaign is run in.
func buildOld(ctx context.Context, dir string) (string, error) {
	source, binary := filepath.Join(dir, "earlier"), filepath.Join(dir, "cluster-earlier")
	top, err := exec.CommandContext(ctx, "git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		return "", fmt.Errorf("-old is missing, and this is no repository with a history to build it from: %w", err)
	}
	for _, c := range []struct {
		in   string
		args []string
	}{
		{".", []string{"git", "clone", "--quiet", "--no-checkout", string(top[:len(top)-1]), source}},
		{source, []string{"git", "checkout", "--quiet", oldCommit}},
		{source, []string{"go", "build", "-o", binary, "./examples/cluster"}},
	} {
		cmd := exec.CommandContext(ctx, c.args[0], c.args[1:]...)
		cmd.Dir, cmd.Stdout, cmd.Stderr = c.in, os.Stderr, os.Stderr
		if err := cmd.Run(); err != nil {
			return "", fmt.Errorf("-old is missing, and commit %s cannot be built from the history: %v: %w", oldCommit, c.args, err)
		}
	}
	return binary, os.RemoveAll(source)
}

// runs has a node that does not run be another program when it is started.
func (n *node) runs(before, now string) {
	n.command = slices.Clone(n.command)
	n.command[slices.Index(n.command, before)] = now
}

// upgradeStory rolls an earlier release out of the cluster. After each step every
// node creates a topic, so that it calls whoever leads the metadata then.
func upgradeStory(ctx context.Context, c *campaign) error {
	u := &upgrade{c, 0}
	old, now := c.old, c.cluster.binary
	steps := []struct {
		what      string
		node      int
		kill      bool
		from, to  string
		mustStay1 bool // a node of the earlier release is there
	}{
		{"back to the earlier release: c", 2, false, now, old, false},
		{"upgrade a", 0, false, old, now, true},
		{"kill -9 and upgrade b", 1, true, old, now, true},
		{"restart c, of the earlier release", 2, false, old, old, true}, // another one leads then
		{"back to the earlier release: a", 0, false, now, old, false},
		{"upgrade a again", 0, false, old, now, true},
		{"restart c, of the earlier release", 2, false, old, old, true},
		{"upgrade c", 2, false, old, now, false},
	}
	for _, s := range steps {
		err := c.step(ctx, s.what, func(ctx context.Context) error {
			if err := u.become(ctx, s.node, s.kill, s.from, s.to); err != nil {
				return err
			}
			if err := u.createOnEach(ctx); err != nil {
				return err
			}
			if s.mustStay1 {
				return u.staysAtOne(ctx)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if err := c.stepUntil(ctx, "the cluster's version rises", func(s *clusterState) bool { return s.Version > 1 }); err != nil {
		return err
	}
	fourth := c.cluster.outsiders()[0]
	err := c.step(ctx, "start "+c.cluster.nodes[fourth].name, func(ctx context.Context) error {
		if err := c.cluster.nodes[fourth].start(); err != nil {
			return err
		}
		return c.takenIn(ctx, []int{fourth})
	})
	if err != nil {
		return err
	}
	return c.stepUntil(ctx, "all have what they are to have", (*clusterState).settled)
}

type upgrade struct {
	*campaign
	topics int
}

// become ends a node and starts it as another program.
func (u *upgrade) become(ctx context.Context, i int, kill bool, from, to string) error {
	if kill {
		u.cluster.nodes[i].kill()
	} else if err := u.cluster.stop([]int{i}); err != nil {
		return err
	}
	u.cluster.nodes[i].runs(from, to)
	return u.comeBack(ctx, i)
}

func (u *upgrade) createOnEach(ctx context.Context) error {
	for _, i := range u.cluster.members() {
		u.topics++
		if err := u.createTopic(ctx, i, fmt.Sprint("upgrade-", u.topics)); err != nil {
			return fmt.Errorf("through %s: %w", u.cluster.nodes[i].name, err)
		}
	}
	return nil
}

// staysAtOne checks that the cluster's version is what the earlier release can
// be part of, and says who leads.
func (u *upgrade) staysAtOne(ctx context.Context) error {
	for _, i := range u.cluster.members() {
		var s clusterState
		if u.cluster.get(ctx, i, "/members", &s) != nil {
			continue // the earlier release does not have it
		}
		fmt.Printf("         %s leads the metadata\n", s.Leader)
		if s.Version != 1 {
			return fmt.Errorf("the cluster's version is %d while a node of the earlier release is in it", s.Version)
		}
		return nil
	}
	return errors.New("no node of this build answers")
}
