package rlock

import (
	"time"

	"github.com/go-rlock/rlock/internal/seam"
)

// sleeper is a goroutine that works when something happens, and sleeps in between. It
// tells a test which of the two it does; see seam.Env.
type sleeper struct {
	env   *seam.Env
	timer seam.Timer
	end   func() // of the work since it is awake
}

// newSleeper is called by the goroutine, which is awake.
func newSleeper(env *seam.Env) *sleeper {
	return &sleeper{env: env, timer: env.Clock.NewTimer(seam.FarAway), end: env.Begin()}
}

// waking is why a sleeper sleeps no longer.
type waking int

const (
	wokenByTime waking = iota
	wokenByPoke
	wokenByNews
	wokenByEnd
	wokenByClosing
)

// sleep sleeps for d at most, or until one of the channels is ready, of which any may
// be nil.
func (s *sleeper) sleep(d time.Duration, poke, news, end, closing <-chan struct{}) (why waking) {
	s.timer.Reset(d)
	s.end()
	defer func() { s.end = s.env.Begin() }()
	select {
	case <-poke:
		return wokenByPoke
	case <-news:
		return wokenByNews
	case <-s.timer.C():
		return wokenByTime
	case <-end:
		return wokenByEnd
	case <-closing:
		return wokenByClosing
	}
}

// stop is called when the goroutine ends.
func (s *sleeper) stop() {
	s.timer.Stop()
	s.end()
}
