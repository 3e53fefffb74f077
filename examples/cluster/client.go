package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/stelelog/stele"
)

// client talks to the first of some nodes that answers. It is for one goroutine.
type client struct {
	addrs   []string
	timeout time.Duration // of a call, all attempts together
	http    *http.Client
	at      int // the address that is tried first
}

// clientFlags adds the flags that all clients have.
func clientFlags(f *flags) (finish func() (*client, error)) {
	addrs := f.String("http", defaultHTTP, "HTTP `addresses` of nodes, a,b,c: if one cannot serve the next one is asked\n")
	timeout := f.Duration("timeout", 30*time.Second, "how long to try")
	return func() (*client, error) {
		c := &client{addrs: splitAddrs(*addrs), timeout: *timeout, http: &http.Client{Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: 2 * time.Second}).DialContext,
			MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute, DisableCompression: true,
		}}}
		switch {
		case len(c.addrs) == 0:
			return nil, &usageError{"-http is empty: want host:port,..."}
		case c.timeout <= 0:
			return nil, &usageError{fmt.Sprintf("-timeout %v: want more than 0", c.timeout)}
		}
		return c, nil
	}
}

// ask is a command that asks nodes: it parses the arguments, refuses those that wrong
// has words against, and calls do. It is called when all flags are defined.
func (f *flags) ask(args []string, wrong func() string, do func(c *client) error) error {
	finish := clientFlags(f)
	if err := f.parse(args, false); err != nil {
		return err
	}
	c, err := finish()
	if err != nil {
		return err
	}
	defer c.close()
	if text := wrong(); text != "" {
		return &usageError{text}
	}
	return do(c)
}

// missing is what is wrong with a flag that has to be given.
func missing(flag string, is bool) string {
	if is {
		return flag + " is missing"
	}
	return ""
}

func nothing() string { return "" }

// close lets go of idle connections.
func (c *client) close() { c.http.CloseIdleConnections() }

// remoteError is an error that a node answered, or why none did.
type remoteError struct {
	outcome  stele.Outcome
	text     string
	answered bool // by a node
}

func (e *remoteError) Error() string { return e.text }

func remoteOutcome(err error) stele.Outcome {
	var remote *remoteError
	if errors.As(err, &remote) {
		return remote.outcome
	}
	return stele.OutcomeUnknown
}

// hasAnswered reports whether a node answered with the error.
func hasAnswered(err error) bool {
	var remote *remoteError
	return errors.As(err, &remote) && remote.answered
}

// fork is a client for another goroutine.
func (c *client) fork() *client {
	return &client{addrs: c.addrs, timeout: c.timeout, http: c.http, at: c.at}
}

// goOn makes the next address the first.
func (c *client) goOn() { c.at = (c.at + 1) % len(c.addrs) }

// readPatience is how long one of several nodes may take to answer a request
// that only reads, before the next one is asked.
const readPatience = 3 * time.Second

// anyNode calls f for one address after the other until the outcome of its error
// is not retry, in rounds, until the timeout or ctx ends. Then it returns the last
// error that a node answered; if none did, the last one that is not about time. each
// bounds one attempt; 0: the timeout does.
func (c *client) anyNode(ctx context.Context, each time.Duration, f func(ctx context.Context, addr string) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	pause := 50 * time.Millisecond
	var last error
	for {
		for range c.addrs {
			err := c.attempt(ctx, each, f)
			if err == nil || remoteOutcome(err) == stele.OutcomeRefused {
				return err
			}
			c.goOn()
			if remoteOutcome(err) == stele.OutcomeUnknown {
				return err
			}
			if last == nil || hasAnswered(err) || ctx.Err() == nil && !hasAnswered(last) {
				last = err
			}
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, time.Second)
		case <-ctx.Done():
			return fmt.Errorf("tried until the timeout: %w", last)
		}
	}
}

func (c *client) attempt(ctx context.Context, each time.Duration, f func(ctx context.Context, addr string) error) error {
	if each > 0 && len(c.addrs) > 1 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, each)
		defer cancel()
	}
	return f(ctx, c.addrs[c.at])
}

// do sends one request to one node. The caller closes the body of an answer
// that is not an error. Whoever was not reached at all cannot have done
// anything: that is retry; a connection that broke later is unknown, except
// where the request only reads.
func (c *client) do(ctx context.Context, addr, method, path string, query url.Values, body []byte) (*http.Response, error) {
	reached := false
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { reached = true }}
	if query == nil {
		query = url.Values{}
	}
	if deadline, ok := ctx.Deadline(); ok { // less than we have, so that the node's answer still finds us
		left := max(time.Until(deadline)*3/4, time.Millisecond)
		query.Set("timeout", min(left, maxTimeout).String())
	}
	u := url.URL{Scheme: "http", Host: addr, Path: path, RawQuery: query.Encode()}
	var content io.Reader
	if body != nil {
		content = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), method, u.String(), content)
	if err != nil {
		return nil, &remoteError{stele.OutcomeRefused, err.Error(), false}
	}
	answer, err := c.http.Do(req)
	if err != nil {
		outcome := stele.OutcomeUnknown
		if !reached || method == http.MethodGet {
			outcome = stele.OutcomeRetry
		}
		return nil, &remoteError{outcome, describeError(ctx, addr, err), false}
	}
	if answer.StatusCode < 300 {
		return answer, nil
	}
	defer answer.Body.Close()
	var told answerError
	text, err := io.ReadAll(io.LimitReader(answer.Body, 64<<10))
	if err == nil {
		err = json.Unmarshal(text, &told)
	}
	if err != nil || told.Error == "" {
		return nil, &remoteError{stele.OutcomeUnknown, fmt.Sprintf("%s answered %s: %.200s", addr, answer.Status, text), true}
	}
	if answer.StatusCode == http.StatusConflict || answer.StatusCode == http.StatusGone { // an answer; whoever wants another one asks again later
		return nil, &remoteError{stele.OutcomeRefused, told.Error, true}
	}
	return nil, &remoteError{parseOutcome(told.Outcome), told.Error, true}
}

// describeError says why a node did not answer.
func describeError(ctx context.Context, addr string, err error) string {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err // without the URL
	}
	text := err.Error()
	switch {
	case ctx.Err() != nil:
		text = addr + ": no answer in time"
	case !strings.Contains(text, addr):
		text = addr + ": " + text
	}
	return text
}

// parseOutcome reads the word that an outcome travels as.
func parseOutcome(s string) stele.Outcome {
	for _, o := range []stele.Outcome{stele.OutcomeRetry, stele.OutcomeRefused} {
		if s == o.String() {
			return o
		}
	}
	return stele.OutcomeUnknown
}

// callJSON asks any node, and reads its answer into v, if that is not nil.
func (c *client) callJSON(ctx context.Context, method, path string, query url.Values, body, v any) error {
	var content []byte
	if body != nil {
		var err error
		if content, err = json.Marshal(body); err != nil {
			return err
		}
	}
	each := time.Duration(0)
	if method == http.MethodGet {
		each = readPatience
	}
	return c.anyNode(ctx, each, func(ctx context.Context, addr string) error {
		return c.jsonFrom(ctx, addr, method, path, query, content, v)
	})
}

// jsonFrom asks one node.
func (c *client) jsonFrom(ctx context.Context, addr, method, path string, query url.Values, body []byte, v any) error {
	answer, err := c.do(ctx, addr, method, path, query, body)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if v == nil {
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(answer.Body, 64<<20)).Decode(v); err != nil {
		return &remoteError{stele.OutcomeUnknown, fmt.Sprintf("the answer of %s: %v", addr, err), true}
	}
	return nil
}

// topicPath is a topic's path, or with more that of something of it.
func topicPath(topic string, more string) string { return "/topics/" + url.PathEscape(topic) + more }

func itoa[T ~int64 | ~uint32](n T) string { return strconv.FormatInt(int64(n), 10) }
