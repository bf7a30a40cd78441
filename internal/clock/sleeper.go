package clock

import (
	"time"

	"github.com/go-rlock/rlock/internal/seam"
)

// Sleeper lets a goroutine sleep until something happens. A test can find out whether the goroutine
// works or sleeps; see seam.Env.
type Sleeper struct {
	env     *seam.Env
	timer   seam.Timer // nil before the first sleep with a limit
	endWork func()     // ends the work that began when the goroutine woke
}

// NewSleeper returns the sleeper of a goroutine that is awake.
func NewSleeper(env *seam.Env) *Sleeper {
	s := &Sleeper{}
	s.Begin(env)
	return s
}

// Begin is NewSleeper for a Sleeper that is a field.
func (s *Sleeper) Begin(env *seam.Env) { s.env, s.endWork = env, env.Begin() }

// Waking is the reason why a sleep has ended.
type Waking int

const (
	ByTime Waking = iota
	ByPoke
	ByMessage
	ByClosing
	ByEnd
)

// Sleep sleeps for at most d, or until one of the channels is ready. Any may be nil. If several are
// ready, as after a pause of the process, Sleep returns the last of the constants above: a goroutine
// that must end sends no further request, and a run of the simulation can be repeated.
func (s *Sleeper) Sleep(d time.Duration, poke, messages, end, closing <-chan struct{}) (why Waking) {
	var fires <-chan time.Time
	switch {
	case s.timer != nil:
		s.timer.Reset(d)
		fires = s.timer.C()
	case d < seam.FarAway: // most waiters wait behind others, without a limit
		s.timer = s.env.Clock.NewTimer(d)
		fires = s.timer.C()
	}
	s.endWork()
	defer func() { s.endWork = s.env.Begin() }()
	select {
	case <-poke:
		why = ByPoke
	case <-messages:
		why = ByMessage
	case <-fires:
	case <-end:
		return ByEnd
	case <-closing:
		why = ByClosing
	}
	for i, other := range [...]<-chan struct{}{poke, messages, closing, end} {
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
	s.endWork()
}
