package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"
)

// desk counts the requests that a server works on, and takes no more in when the
// node stops. It is safe for concurrent use.
type desk struct {
	sync.Mutex
	busy  int
	empty chan struct{} // nil: it takes requests in; closed when none is worked on any more
}

// enter takes a request in; leave is called behind it.
func (d *desk) enter() bool {
	d.Lock()
	defer d.Unlock()
	if d.empty != nil {
		return false
	}
	d.busy++
	return true
}

func (d *desk) leave() {
	d.Lock()
	defer d.Unlock()
	if d.busy--; d.busy == 0 && d.empty != nil {
		close(d.empty)
	}
}

// close takes no more in. The channel is closed when what was taken in has ended.
func (d *desk) close() <-chan struct{} {
	d.Lock()
	defer d.Unlock()
	if d.empty == nil {
		d.empty = make(chan struct{})
		if d.busy == 0 {
			close(d.empty)
		}
	}
	return d.empty
}

// lastOfConnection has the client send no more on this connection if the node stops:
// what it sends while connections are closed is lost, and it would not know whether
// anything came of it. It is called before the answer begins.
func (s *server) lastOfConnection(w http.ResponseWriter) {
	if s.life.Err() != nil {
		w.Header().Set("Connection", "close")
	}
}

// stop ends the node in good order. What was taken in is answered, and readers that
// follow are told to go elsewhere; then leaderships are handed over, while whoever asks
// is still told, by an answer, to ask another node. Only then connections are closed. It
// becomes an abort after the timeout, or with a second signal.
func (s *server) stop(timeout time.Duration, signals <-chan os.Signal, log *zap.Logger) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	aborted := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(aborted)
		select {
		case <-signals:
			log.Warn("aborting")
			cancel()
			s.node.Abort()
		case <-ctx.Done():
			s.node.Abort()
		case <-done:
		}
	}()
	s.endLife()
	answered := s.desk.close()
	if err := s.closeProducer(min(timeout/2, 3*time.Second)); err != nil {
		log.Warn("some records were not answered", zap.Error(err))
	}
	handOver, enough := context.WithTimeout(ctx, timeout/2)
	select {
	case <-answered:
	case <-handOver.Done(): // who does not read, or waits for a quorum, gets no more than half of it
	}
	enough()
	err := errors.Join(s.node.Close(ctx), s.http.Shutdown(ctx))
	late := ctx.Err()
	close(done)
	<-aborted
	_ = s.http.Close()
	switch {
	case errors.Is(late, context.DeadlineExceeded):
		return fmt.Errorf("aborted: the stop took longer than %v", timeout)
	case late != nil:
		return errors.New("aborted by a second signal")
	case err != nil:
		return fmt.Errorf("stop: %w", err)
	}
	log.Info("stopped")
	return nil
}
