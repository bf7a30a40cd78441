package telemetry

import (
	"context"
	"sync"
	"time"

	"github.com/go-rlock/rlock"
)

// Instrument takes the values of one series: a duration in seconds, or what is added.
type Instrument interface {
	Record(ctx context.Context, v float64)
}

// Meter is an Observer that measures.
type Meter struct {
	Labels *Labels
	bind   func(m Metric, a *Attributes) Instrument
	series made[seriesKey, *series]
}

var (
	_ rlock.Observer           = (*Meter)(nil)
	_ rlock.ContentionObserver = (*Meter)(nil)
	_ rlock.RenewalObserver    = (*Meter)(nil)
	_ rlock.LeadershipObserver = (*Meter)(nil)
)

// NewMeter returns a Meter. bind is called once for each series, maybe concurrently, and twice if two
// need a series at the same time.
func NewMeter(labels *Labels, bind func(m Metric, a *Attributes) Instrument) *Meter {
	return &Meter{Labels: labels, bind: bind}
}

type seriesKey struct{ typ, side, label string }

// series are the instruments for the locks of a type and label, of one side.
type series struct {
	attrs Attributes
	meter *Meter

	acquired, notAcquired, cancelled    Instrument
	wait, contentions                   Instrument
	hold, unlocked, lost                Instrument               // nil for a type without holds
	renewal, margin                     Instrument               // made with the first hold: see holds
	leader                              Instrument               // of an Election
	losses, renewalFailures, unacquired made[string, Instrument] // seldom needed, by their labels
	once                                sync.Once
}

// made is a cache of things that are made when they are first needed.
type made[K comparable, V any] struct {
	mu  sync.RWMutex // guards all
	all map[K]V
}

// get returns the thing for a key. If two are made at the same time, one counts.
func (m *made[K, V]) get(key K, make func(key K) V) V {
	m.mu.RLock()
	v, ok := m.all[key]
	m.mu.RUnlock()
	if ok {
		return v
	}
	v = make(key)
	m.mu.Lock()
	defer m.mu.Unlock()
	if other, ok := m.all[key]; ok {
		return other
	}
	if m.all == nil {
		m.all = map[K]V{}
	}
	m.all[key] = v
	return v
}

func (m *Meter) seriesOf(e rlock.Event) *series {
	return m.series.get(seriesKey{e.Type, e.Side, m.Labels.Of(e)}, m.add)
}

func (m *Meter) add(key seriesKey) *series {
	s := &series{attrs: Attributes{Type: key.typ, Side: key.side, Label: key.label}, meter: m}
	s.acquired = s.bind(AcquireDuration, func(a *Attributes) { a.Outcome = Acquired })
	s.notAcquired = s.bind(AcquireDuration, func(a *Attributes) { a.Outcome = NotAcquired })
	s.cancelled = s.bind(AcquireDuration, func(a *Attributes) { a.Outcome = Cancelled })
	s.wait, s.contentions = s.bind(WaitCount, nil), s.bind(Contentions, nil)
	zero(s.wait, s.contentions)
	switch key.typ {
	case "Semaphore", "CountDownLatch", "Barrier":
		return s
	case "Election":
		// Each candidate reports 0, so that the sum over all exists even if none leads.
		s.leader = m.bind(Leader, &Attributes{Label: key.label})
		zero(s.leader)
	}
	s.hold = s.bind(HoldCount, nil)
	s.unlocked = s.bind(HoldDuration, func(a *Attributes) { a.End = Unlocked })
	s.lost = s.bind(HoldDuration, func(a *Attributes) { a.End = Lost })
	zero(s.hold)
	return s
}

// holds makes the series that a lock needs from its first hold on. The losses and the failures begin at 0, so that the
// first one is an increase: a rate ignores a series that begins with 1.
func (s *series) holds() {
	s.once.Do(func() {
		for _, c := range causes {
			zero(s.loss(c.name))
		}
		for _, err := range []error{rlock.ErrUnreachable, rlock.ErrRefused} {
			zero(s.renewalFailure(ErrorType(err)))
		}
		s.renewal, s.margin = s.bind(RenewalDuration, nil), s.bind(LeaseMargin, nil)
	})
}

func zero(all ...Instrument) {
	for _, i := range all {
		i.Record(context.Background(), 0)
	}
}

func (s *series) bind(m Metric, with func(a *Attributes)) Instrument {
	a := s.attrs
	if with != nil {
		with(&a)
	}
	return s.meter.bind(m, &a)
}

func (s *series) loss(cause string) Instrument {
	return s.losses.get(cause, func(string) Instrument {
		return s.bind(Losses, func(a *Attributes) { a.Cause = cause })
	})
}

func (s *series) renewalFailure(errorType string) Instrument {
	return s.renewalFailures.get(errorType, func(string) Instrument {
		return s.bind(RenewalFailures, func(a *Attributes) { a.Error = errorType })
	})
}

func (s *series) failed(errorType string) Instrument {
	return s.unacquired.get(errorType, func(string) Instrument {
		return s.bind(AcquireDuration, func(a *Attributes) { a.Outcome, a.Error = Failed, errorType })
	})
}

// AcquireStart implements rlock.Observer. The series of a candidate begins here, before it leads.
func (m *Meter) AcquireStart(ctx context.Context, e rlock.StartEvent) context.Context {
	if e.Type == "Election" {
		m.seriesOf(e.Event)
	}
	return ctx
}

// AcquireEnd implements rlock.Observer.
func (m *Meter) AcquireEnd(ctx context.Context, e rlock.AcquireEvent) {
	s := m.seriesOf(e.Event)
	if e.Contended {
		s.wait.Record(ctx, -1)
	}
	i := s.acquired
	switch outcome, errorType := Outcome(e.Err); outcome {
	case NotAcquired:
		i = s.notAcquired
	case Cancelled:
		i = s.cancelled
	case Failed:
		i = s.failed(errorType)
	}
	i.Record(ctx, e.Wait.Seconds())
	if e.Err == nil && e.Entry == 1 && s.hold != nil {
		s.holds()
		s.hold.Record(ctx, 1)
	}
}

// Contended implements rlock.ContentionObserver.
func (m *Meter) Contended(ctx context.Context, e rlock.ContentionEvent) {
	s := m.seriesOf(e.Event)
	s.wait.Record(ctx, 1)
	s.contentions.Record(ctx, 1)
}

// Unlocked implements rlock.Observer.
func (m *Meter) Unlocked(ctx context.Context, e rlock.UnlockEvent) {
	if e.Ends {
		s := m.seriesOf(e.Event)
		s.ends(ctx, s.unlocked, e.Held)
	}
}

// Lost implements rlock.Observer.
func (m *Meter) Lost(ctx context.Context, e rlock.LossEvent) {
	s := m.seriesOf(e.Event)
	if s.hold != nil {
		s.ends(ctx, s.lost, e.Held)
		s.loss(Cause(e.Cause)).Record(ctx, 1)
	}
}

func (s *series) ends(ctx context.Context, as Instrument, held time.Duration) {
	if s.hold != nil {
		s.hold.Record(ctx, -1)
		as.Record(ctx, held.Seconds())
	}
}

// Renewed implements rlock.RenewalObserver.
func (m *Meter) Renewed(ctx context.Context, e rlock.RenewalEvent) {
	s := m.seriesOf(e.Event)
	s.holds()
	if e.Err != nil {
		s.renewalFailure(ErrorType(e.Err)).Record(ctx, 1)
		return
	}
	s.renewal.Record(ctx, e.Took.Seconds())
	s.margin.Record(ctx, max(e.Left, 0).Seconds())
}

// Leadership implements rlock.LeadershipObserver.
func (m *Meter) Leadership(ctx context.Context, e rlock.LeadershipEvent) {
	s := m.seriesOf(e.Event)
	switch {
	case s.leader == nil:
	case e.Leads:
		s.leader.Record(ctx, 1)
	default:
		s.leader.Record(ctx, -1)
	}
}
