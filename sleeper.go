package rlock

import (
	"time"

	"github.com/go-rlock/rlock/internal/seam"
)

// sleeper is the sleep of a goroutine that works when something happens. It tells a test
// whether the goroutine works or sleeps; see seam.Env.
type sleeper struct {
	env   *seam.Env
	timer seam.Timer // nil: it has not slept for a limited time yet
	end   func()     // ends the work that began when it woke
}

// newSleeper is called when the goroutine is awake.
func newSleeper(env *seam.Env) *sleeper {
	s := &sleeper{}
	s.begin(env)
	return s
}

// begin is newSleeper for a sleeper that is part of something.
func (s *sleeper) begin(env *seam.Env) { s.env, s.end = env, env.Begin() }

// waking is what woke a sleeper.
type waking int

const (
	wokenByTime waking = iota
	wokenByPoke
	wokenByNews
	wokenByClosing
	wokenByEnd
)

// sleep sleeps for at most d, or until one of the channels is ready. Any may be nil. If
// several are, as after a pause of the process, the last of the wakings above counts: who
// must end does not look once more, and a run of the simulation can be repeated.
func (s *sleeper) sleep(d time.Duration, poke, news, end, closing <-chan struct{}) (why waking) {
	var fires <-chan time.Time
	switch {
	case s.timer != nil:
		s.timer.Reset(d)
		fires = s.timer.C()
	case d < seam.FarAway: // most waiters wait behind others, without a limit
		s.timer = s.env.Clock.NewTimer(d)
		fires = s.timer.C()
	}
	s.end()
	defer func() { s.end = s.env.Begin() }()
	select {
	case <-poke:
		why = wokenByPoke
	case <-news:
		why = wokenByNews
	case <-fires:
	case <-end:
		return wokenByEnd
	case <-closing:
		why = wokenByClosing
	}
	for i, other := range [...]<-chan struct{}{poke, news, closing, end} {
		select {
		case <-other:
			why = max(why, wokenByPoke+waking(i))
		default:
		}
	}
	return why
}

// stop is called when the goroutine ends.
func (s *sleeper) stop() {
	if s.timer != nil {
		s.timer.Stop()
	}
	s.end()
}
