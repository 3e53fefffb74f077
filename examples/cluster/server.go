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
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/stelelog/stele"
)

const (
	maxRecord  = 16 << 20              // the library's limit of a record, in bytes
	maxBody    = maxRecord + (1 << 20) // of a produce request: the largest record and its separator, or many small ones
	maxBodies  = 256 << 20             // of all produce requests together
	maxRecords = 100_000               // of a produce request

	bodyTimeout    = 30 * time.Second // to receive a request
	writeTimeout   = 30 * time.Second // to take a piece of an answer
	defaultTimeout = 10 * time.Second // of a call, if ?timeout= says nothing
	maxTimeout     = 5 * time.Minute
)

// server is the HTTP API of one node. doc.go describes it.
type server struct {
	node     *stele.Node
	flags    *nodeFlags
	http     *http.Server
	life     context.Context // ends when the node is to stop
	endLife  context.CancelFunc
	bodies   budget
	desk     desk
	producer struct {
		sync.Mutex
		*stele.Producer // nil before the first record
	}
}

func newServer(node *stele.Node, flags *nodeFlags, registry *prometheus.Registry) *server {
	s := &server{node: node, flags: flags}
	s.bodies.left = maxBodies
	s.life, s.endLife = context.WithCancel(context.Background())
	mux := http.NewServeMux()
	metrics := promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
	for pattern, handle := range map[string]func(http.ResponseWriter, *http.Request) error{
		"GET /metrics":                          func(w http.ResponseWriter, r *http.Request) error { metrics.ServeHTTP(w, r); return nil },
		"GET /ready":                            s.ready,
		"GET /status":                           s.status,
		"GET /topics":                           s.listTopics,
		"GET /topics/{topic}":                   s.describeTopic,
		"POST /topics/{topic}":                  s.createTopic,
		"DELETE /topics/{topic}":                s.deleteTopic,
		"POST /topics/{topic}/undelete":         s.undeleteTopic,
		"PUT /topics/{topic}/retention":         s.setRetention,
		"GET /members":                          s.members,
		"POST /members/{member}/decommission":   s.decommission,
		"DELETE /members/{member}/decommission": s.cancelDecommission,
		"GET /members/{member}/decommission":    s.planDecommission,
		"POST /members/{member}/promote":        order(s.promote),
		"DELETE /strays/{replica}":              order(s.forget),
		"DELETE /recoveries/{epoch}/hold":       order(s.endHold),
		"GET /quarantine":                       s.listQuarantine,
		"GET /quarantine/{dir}/records":         s.readQuarantined,
		"DELETE /quarantine/{dir}":              s.reclaimQuarantined,
		"POST /quarantine/restore":              s.restoreQuarantined,
		"POST /metadata/leader":                 order(s.transferMetadata, "to"),
		"POST /topics/{topic}/leader":           order(s.transferPartition, "to", "partition"),
		"POST /topics/{topic}/records":          s.produce,
		"GET /topics/{topic}/records":           s.consume,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			limitTime(w, r)
			s.lastOfConnection(w)
			if pattern != "GET /ready" { // which says that the node stops
				if !s.desk.enter() {
					writeError(w, errStopping)
					return
				}
				defer s.desk.leave()
			}
			if err := handle(w, r); err != nil {
				s.lastOfConnection(w)
				if errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, stele.ErrPartitionLost) {
					err = noted(err, leaderless(s.node.Status(), r.PathValue("topic")))
				}
				writeError(w, err)
			}
		})
	}
	s.http = &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
	}
	return s
}

// limitTime bounds how long a client may take to send a body and to take an
// answer. Handlers that wait in between move the second limit.
func limitTime(w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(time.Now().Add(writeTimeout)) // a connection that has no deadlines has broken
	if r.ContentLength != 0 {
		_ = control.SetReadDeadline(time.Now().Add(bodyTimeout))
	}
}

// readAll reads a body of at most so many bytes. Behind it nothing limits how
// long the connection is silent: the answer may take its time.
func readAll(w http.ResponseWriter, r *http.Request, most int64) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, &requestError{http.StatusRequestEntityTooLarge, stele.OutcomeRefused, fmt.Sprintf("the body has more than %d bytes", most)}
	case err != nil:
		return nil, &requestError{http.StatusBadRequest, stele.OutcomeRetry, fmt.Sprintf("the body did not arrive: %v", err)}
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	return body, nil
}

// budget bounds bytes that are held at the same time.
type budget struct {
	sync.Mutex
	left int64
}

func (b *budget) take(n int64) bool {
	b.Lock()
	defer b.Unlock()
	if b.left < n {
		return false
	}
	b.left -= n
	return true
}

func (b *budget) give(n int64) {
	b.Lock()
	defer b.Unlock()
	b.left += n
}

// theProducer is the one that all requests share, so that what they bring for
// the same partition travels together.
func (s *server) theProducer() (*stele.Producer, error) {
	s.producer.Lock()
	defer s.producer.Unlock()
	if s.life.Err() != nil {
		return nil, &requestError{http.StatusServiceUnavailable, stele.OutcomeRetry, "the node is stopping"}
	}
	if s.producer.Producer == nil {
		p, err := s.node.NewProducer(stele.ProducerConfig{})
		if err != nil {
			return nil, err
		}
		s.producer.Producer = p
	}
	return s.producer.Producer, nil
}

// closeProducer waits until what was produced is answered.
func (s *server) closeProducer(timeout time.Duration) error {
	s.producer.Lock()
	p := s.producer.Producer
	s.producer.Unlock()
	if p == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return p.Close(ctx)
}

// requestError refuses a request that the library was not asked about.
type requestError struct {
	status  int
	outcome stele.Outcome
	text    string
}

func (e *requestError) Error() string { return e.text }

func badRequest(format string, args ...any) error {
	return &requestError{http.StatusBadRequest, stele.OutcomeRefused, fmt.Sprintf(format, args...)}
}

// answerError is an error as it travels.
type answerError struct {
	Error   string `json:"error"`
	Outcome string `json:"outcome"` // retry, refused or unknown
}

// outcomeOf is an error's outcome in one word.
func outcomeOf(err error) stele.Outcome {
	var request *requestError
	if errors.As(err, &request) {
		return request.outcome
	}
	outcome := stele.OutcomeOf(err)
	var fenced *stele.EpochFencedError
	if outcome == stele.OutcomeRefused && errors.As(err, &fenced) {
		return stele.OutcomeRetry // not here, ever: at a node that came along
	}
	return outcome
}

func writeError(w http.ResponseWriter, err error) {
	var request *requestError
	var nobody *stele.NoMemberError
	var blocked *stele.BlockedError
	var noVote *stele.NoVoteError
	var stays *stele.ReclaimError
	var restore *stele.RestoreError
	var retired *stele.TopicRetiredError
	status := http.StatusInternalServerError // it may have happened
	switch outcome := outcomeOf(err); {
	case errors.As(err, &request):
		status = request.status
	case errors.Is(err, stele.ErrTopicNotFound), errors.As(err, &nobody), errors.Is(err, stele.ErrNotQuarantined):
		status = http.StatusNotFound
	case errors.Is(err, stele.ErrTopicExists), errors.As(err, &blocked), errors.As(err, &noVote), errors.As(err, &stays), errors.As(err, &restore), errors.As(err, &retired):
		status = http.StatusConflict
	case outcome == stele.OutcomeRefused:
		status = http.StatusBadRequest
	case outcome == stele.OutcomeRetry:
		status = http.StatusServiceUnavailable
	}
	writeJSON(w, status, answerError{err.Error(), outcomeOf(err).String()})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // a client that went away needs no answer
}

// readJSON reads a small body strictly; none at all is the zero value.
func readJSON(w http.ResponseWriter, r *http.Request, v any) error {
	body, err := readAll(w, r, 64<<10)
	if err != nil || len(body) == 0 {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return badRequest("the body: %v", err)
	}
	return nil
}

// params are the parameters of a request. Names that the request does not have
// are an error, so that a mistyped one does not go unnoticed.
type params struct {
	values url.Values
	err    error
}

func newParams(r *http.Request, known ...string) *params {
	p := &params{values: r.URL.Query()}
	known = append(known, "timeout")
	for name := range p.values {
		if !slices.Contains(known, name) {
			p.fail("unknown parameter %q: there are %q", name, known)
		}
	}
	return p
}

func (p *params) fail(format string, args ...any) {
	if p.err == nil {
		p.err = badRequest(format, args...)
	}
}

// number is a parameter from 0 to most; absent if there is none.
func (p *params) number(name string, most, absent int64) int64 {
	s := p.values.Get(name)
	if s == "" {
		return absent
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > most {
		p.fail("%s=%q: want 0 to %d", name, s, most)
	}
	return n
}

func (p *params) flag(name string) bool {
	s := p.values.Get(name)
	if s == "" {
		return false
	}
	v, err := strconv.ParseBool(s)
	if err != nil {
		p.fail("%s=%q: want true or false", name, s)
	}
	return v
}

// within is the request's context, with its timeout.
func (p *params) within(r *http.Request) (context.Context, context.CancelFunc) {
	d := defaultTimeout
	if s := p.values.Get("timeout"); s != "" {
		v, err := time.ParseDuration(s)
		if err != nil || v <= 0 || v > maxTimeout {
			p.fail("timeout=%q: want a duration of up to %v", s, maxTimeout)
		}
		d = v
	}
	return context.WithTimeout(r.Context(), d)
}

// ready answers 200 if the node can serve, else 503, and why.
func (s *server) ready(w http.ResponseWriter, _ *http.Request) error {
	r := s.node.Readiness()
	answer := struct {
		Code   stele.ReadinessCode `json:"code"`
		Reason string              `json:"reason,omitempty"`
	}{r.Code, r.Reason}
	status := http.StatusOK
	if !r.Ready() {
		status = http.StatusServiceUnavailable
	}
	if s.life.Err() != nil {
		status, answer.Code, answer.Reason = http.StatusServiceUnavailable, stele.Closed, "the node is stopping"
	}
	writeJSON(w, status, answer)
	return nil
}
