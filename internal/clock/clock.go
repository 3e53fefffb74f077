// Package clock is the time seam: everything that needs the time or a timer
// takes a Clock. Inside a testing/synctest bubble System is virtual.
package clock

import "time"

// Clock tells the time and starts timers. It is safe for concurrent use.
type Clock interface {
	Now() time.Time
	// NewTimer sends the time on its channel once, after d.
	NewTimer(d time.Duration) Timer
	// NewTicker sends the time on its channel every d; slow receivers lose ticks.
	NewTicker(d time.Duration) Ticker
	// AfterFunc calls f in a goroutine of its own after d.
	AfterFunc(d time.Duration, f func()) Stopper
}

// Stopper stops a timer; it reports whether the timer was still running.
type Stopper interface{ Stop() bool }

// Timer is a running timer.
type Timer interface {
	Stopper
	C() <-chan time.Time
	Reset(d time.Duration) bool
}

// Ticker is a running ticker.
type Ticker interface {
	C() <-chan time.Time
	Stop()
}

// System is the machine's clock.
func System() Clock { return system{} }

type system struct{}

func (system) Now() time.Time                              { return time.Now() }
func (system) NewTimer(d time.Duration) Timer              { return timer{time.NewTimer(d)} }
func (system) NewTicker(d time.Duration) Ticker            { return ticker{time.NewTicker(d)} }
func (system) AfterFunc(d time.Duration, f func()) Stopper { return time.AfterFunc(d, f) }

type timer struct{ *time.Timer }

func (t timer) C() <-chan time.Time { return t.Timer.C }

type ticker struct{ *time.Ticker }

func (t ticker) C() <-chan time.Time { return t.Ticker.C }
