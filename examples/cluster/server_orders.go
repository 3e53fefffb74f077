package main

import (
	"context"
	"net/http"
	"strconv"

	"github.com/stelelog/stele"
)

// orderAnswer is what became of an order.
type orderAnswer struct {
	Done string `json:"done"` // a sentence
}

// order is a handler of a call that has no result.
func order(call func(ctx context.Context, r *http.Request, p *params) (done string, err error), known ...string) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		p := newParams(r, known...)
		ctx, cancel := p.within(r)
		defer cancel()
		if p.err != nil {
			return p.err
		}
		done, err := call(ctx, r, p)
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusOK, orderAnswer{done})
		return nil
	}
}

func (s *server) promote(ctx context.Context, r *http.Request, _ *params) (string, error) {
	name := r.PathValue("member")
	return name + " has a vote", s.node.Promote(ctx, name)
}

func (s *server) forget(ctx context.Context, r *http.Request, _ *params) (string, error) {
	text := r.PathValue("replica")
	id, err := strconv.ParseUint(text, 10, 64)
	if err != nil || id == 0 {
		return "", badRequest("replica %q: want a number above 0", text)
	}
	return "replica " + text + " is out of the metadata's group", s.node.Forget(ctx, stele.ReplicaID(id))
}

func (s *server) transferMetadata(ctx context.Context, _ *http.Request, p *params) (string, error) {
	to := p.values.Get("to")
	return to + " leads the metadata", s.node.TransferLeadership(ctx, stele.TopicPartition{}, to)
}

func (s *server) transferPartition(ctx context.Context, r *http.Request, p *params) (string, error) {
	to := p.values.Get("to")
	at := stele.TopicPartition{Topic: r.PathValue("topic"), Partition: uint32(p.number("partition", 1<<31, 0))}
	if p.err != nil {
		return "", p.err
	}
	return to + " leads " + at.String(), s.node.TransferLeadership(ctx, at, to)
}
