//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

const (
	// changeBound is how long a change of the members may take: a vote needs a
	// leader of 12 s, a dead node is one after 30 s, and all its partitions move.
	changeBound = 2 * time.Minute
	// goneStatus is how a process ends that is no member any more.
	goneStatus = 3
)

// clusterState is the cluster as its members describe it.
type clusterState struct {
	Leader  string
	Version uint64 // what all members agreed to apply
	Members []memberState
	Moves   []moveState
}

type memberState struct {
	Name      string
	ID        uint64
	Seat      string // voter, learner, none
	State     string
	Replicas  int
	Departure string
}

type moveState struct {
	Partition int
	To, From  string
}

func (s *clusterState) seats(seat string) (n int) {
	for _, m := range s.Members {
		if m.Seat == seat {
			n++
		}
	}
	return n
}

// first is the first member with a seat, but for one; empty: there is none.
func (s *clusterState) first(seat, but string) string {
	for _, m := range s.Members {
		if m.Seat == seat && m.Name != but {
			return m.Name
		}
	}
	return ""
}

func (s *clusterState) last(seat, but string) (name string) {
	for _, m := range s.Members {
		if m.Seat == seat && m.Name != but {
			name = m.Name
		}
	}
	return name
}

// find is the newest life of a name.
func (s *clusterState) find(name string) (last memberState) {
	for _, m := range s.Members {
		if m.Name == name && m.ID >= last.ID {
			last = m
		}
	}
	return last
}

// settled: all that there are have what they are to have.
func (s *clusterState) settled() bool {
	return s.balanced() && s.seats("voter") == min(len(s.Members), voteLimit)
}

func (s *clusterState) has(name string) bool {
	for _, m := range s.Members {
		if m.Name == name {
			return true
		}
	}
	return false
}

// balanced: nothing moves, and no member has two replicas more than another one.
func (s *clusterState) balanced() bool {
	least, most := s.Members[0].Replicas, s.Members[0].Replicas
	for _, m := range s.Members {
		least, most = min(least, m.Replicas), max(most, m.Replicas)
	}
	return len(s.Moves) == 0 && most-least <= 1
}

// state asks the members in turn.
func (c *cluster) state(ctx context.Context) (*clusterState, error) {
	var s *clusterState
	err := c.ask(ctx, http.MethodGet, "/members", &s)
	if err == nil && len(s.Members) == 0 {
		err = errors.New("a cluster without members")
	}
	return s, err
}

// until asks until the cluster is as it should be.
func (c *cluster) until(ctx context.Context, want func(s *clusterState) bool) error {
	for {
		s, err := c.state(ctx)
		if err == nil && want(s) {
			return nil
		}
		if ended := wait(ctx, 200*time.Millisecond); ended != nil {
			return fmt.Errorf("it is still so: %+v: %w", s, errors.Join(ended, err))
		}
	}
}

// decommission begins to take a member out.
func (c *cluster) decommission(ctx context.Context, name string, force bool) error {
	return c.ask(ctx, http.MethodPost, fmt.Sprintf("/members/%s/decommission?force=%v&when-possible=true", name, force), nil)
}

// ask asks the members in turn until one answers.
func (c *cluster) ask(ctx context.Context, method, path string, v any) error {
	var last error
	for {
		for _, i := range c.members() {
			if last = c.call(ctx, method, i, path, v); last == nil {
				return nil
			}
			var no *refusedError
			if errors.As(last, &no) {
				return last
			}
		}
		if wait(ctx, 100*time.Millisecond) != nil {
			return last
		}
	}
}

// refusedError is an answer that another attempt would not change.
type refusedError struct{ text string }

func (e *refusedError) Error() string { return e.text }

func (c *cluster) call(ctx context.Context, method string, node int, path string, v any) error {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+c.nodes[node].http+path, nil)
	if err != nil {
		return err
	}
	answer, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	switch {
	case err != nil:
		return err
	case answer.StatusCode >= 300:
		var told struct{ Outcome string }
		if json.Unmarshal(text, &told) == nil && told.Outcome == "refused" {
			return &refusedError{fmt.Sprintf("%s %s through %s: %s", method, path, c.nodes[node].name, text)}
		}
		return fmt.Errorf("%s %s through %s: %s: %s", method, path, c.nodes[node].name, answer.Status, text)
	case v == nil:
		return nil
	}
	return json.Unmarshal(text, v)
}

// indexOf is the node of a name.
func (c *cluster) indexOf(name string) (int, error) {
	for i, n := range c.nodes {
		if n.name == name {
			return i, nil
		}
	}
	return 0, fmt.Errorf("no node is called %q", name)
}
