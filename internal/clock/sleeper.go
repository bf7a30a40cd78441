package clock

import (
	"time"

	"github.com/go-rlock/rlock/internal/seam"
)

// Sleeper is the sleep of a goroutine that works when something happens. It tells a test
// whether the goroutine works or sleeps; see seam.Env.
type Sleeper struct {
	env   *seam.Env
	timer seam.Timer // nil: it has not slept for a limited time yet
	end   func()     // ends the work that began when it woke
}

// NewSleeper is called when the goroutine is awake.
func NewSleeper(env *seam.Env) *Sleeper {
	s := &Sleeper{}
	s.Begin(env)
	return s
}

// Begin is NewSleeper for a sleeper that is part of something.
func (s *Sleeper) Begin(env *seam.Env) { s.env, s.end = env, env.Begin() }

// Waking is what woke a sleeper.
type Waking int

const (
	ByTime Waking = iota
	ByPoke
	ByNews
	ByClosing
	ByEnd
)

// Sleep sleeps for at most d, or until one of the channels is ready. Any may be nil. If
// several are, as after a pause of the process, the last of the wakings above counts: who
// must end does not look once more, and a run of the simulation can be repeated.
func (s *Sleeper) Sleep(d time.Duration, poke, news, end, closing <-chan struct{}) (why Waking) {
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
		why = ByPoke
	case <-news:
		why = ByNews
	case <-fires:
	case <-end:
		return ByEnd
	case <-closing:
		why = ByClosing
	}
	for i, other := range [...]<-chan struct{}{poke, news, closing, end} {
		select {
		case <-other:
			why = max(why, ByPoke+Waking(i))
		default:
		}
	}
	return why
}

// Stop is called when the goroutine ends.
func (s *Sleeper) Stop() {
	if s.timer != nil {
		s.timer.Stop()
	}
	s.end()
}
