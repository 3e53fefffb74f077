package main

import (
	"net/http"
	"time"

	"github.com/stelelog/stele"
)

// topicAnswer is a topic as it travels.
type topicAnswer struct {
	Name        string `json:"name"`
	Incarnation string `json:"incarnation"`
	State       string `json:"state"`
	Partitions  uint32 `json:"partitions"`
	Replicas    uint32 `json:"replicas"`
	Until       string `json:"until,omitempty"` // when the grace of a deletion ends
	keepRequest
}

// keepRequest is what a topic keeps; all, if it is empty.
type keepRequest struct {
	KeepAge   string `json:"keep_age,omitempty"`   // as of time.ParseDuration
	KeepBytes int64  `json:"keep_bytes,omitempty"` // of each partition
}

func (k keepRequest) retention() (r stele.Retention, err error) {
	if r.Bytes = k.KeepBytes; k.KeepAge != "" {
		if r.Age, err = time.ParseDuration(k.KeepAge); err != nil {
			return r, badRequest("keep_age %q: want a duration such as 168h", k.KeepAge)
		}
	}
	return r, nil
}

func keeps(r stele.Retention) (k keepRequest) {
	if k.KeepBytes = r.Bytes; r.Age > 0 {
		k.KeepAge = r.Age.String()
	}
	return k
}

func answerOf(t stele.Topic) topicAnswer {
	until := ""
	if t.State == stele.TopicRetiring || t.State == stele.TopicRetired {
		until = t.Deletion.Until.Time().UTC().Format(time.RFC3339)
	}
	return topicAnswer{t.Name, t.Incarnation.String(), t.State.String(), t.Config.Partitions, t.Config.Replicas, until, keeps(t.Config.Retention)}
}

// createRequest is what a topic's creator decides; 0 is the library's default.
type createRequest struct {
	Partitions    uint32 `json:"partitions"`
	Replicas      uint32 `json:"replicas"`
	MaxBatchBytes uint32 `json:"max_batch_bytes"`
	keepRequest
}

func (s *server) listTopics(w http.ResponseWriter, r *http.Request) error {
	p := newParams(r)
	ctx, cancel := p.within(r)
	defer cancel()
	if p.err != nil {
		return p.err
	}
	topics, err := s.node.ListTopics(ctx)
	if err != nil {
		return err
	}
	answer := make([]topicAnswer, len(topics))
	for i, t := range topics {
		answer[i] = answerOf(t)
	}
	writeJSON(w, http.StatusOK, answer)
	return nil
}

func (s *server) describeTopic(w http.ResponseWriter, r *http.Request) error {
	p := newParams(r)
	ctx, cancel := p.within(r)
	defer cancel()
	if p.err != nil {
		return p.err
	}
	t, err := s.node.DescribeTopic(ctx, r.PathValue("topic"))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, answerOf(t))
	return nil
}

func (s *server) createTopic(w http.ResponseWriter, r *http.Request) error {
	p := newParams(r)
	ctx, cancel := p.within(r)
	defer cancel()
	if p.err != nil {
		return p.err
	}
	var c createRequest
	if err := readJSON(w, r, &c); err != nil {
		return err
	}
	keep, err := c.retention()
	if err != nil {
		return err
	}
	t, err := s.node.CreateTopic(ctx, r.PathValue("topic"), stele.TopicConfig{
		Partitions: c.Partitions, Replicas: c.Replicas, MaxBatchBytes: c.MaxBatchBytes, Retention: keep,
	})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusCreated, answerOf(t))
	return nil
}

func (s *server) setRetention(w http.ResponseWriter, r *http.Request) error {
	p := newParams(r)
	ctx, cancel := p.within(r)
	defer cancel()
	if p.err != nil {
		return p.err
	}
	var k keepRequest
	if err := readJSON(w, r, &k); err != nil {
		return err
	}
	keep, err := k.retention()
	if err != nil {
		return err
	}
	t, err := s.node.SetRetention(ctx, r.PathValue("topic"), keep)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, answerOf(t))
	return nil
}

func (s *server) undeleteTopic(w http.ResponseWriter, r *http.Request) error {
	p := newParams(r)
	ctx, cancel := p.within(r)
	defer cancel()
	if p.err != nil {
		return p.err
	}
	t, err := s.node.UndeleteTopic(ctx, r.PathValue("topic"))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, answerOf(t))
	return nil
}

func (s *server) deleteTopic(w http.ResponseWriter, r *http.Request) error {
	p := newParams(r, "grace")
	var opts []stele.DeleteOption
	if text := p.values.Get("grace"); text != "" {
		grace, err := time.ParseDuration(text)
		if err != nil {
			p.fail("grace=%q: want a duration such as 168h", text)
		}
		opts = append(opts, stele.WithGrace(grace))
	}
	ctx, cancel := p.within(r)
	defer cancel()
	if p.err != nil {
		return p.err
	}
	if err := s.node.DeleteTopic(ctx, r.PathValue("topic"), opts...); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
