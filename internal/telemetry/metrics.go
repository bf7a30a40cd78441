// Package telemetry turns the events of an Observer into measurements. rlockotel and rlockprom
// give them to OpenTelemetry and to Prometheus, so both mean the same.
package telemetry

// Metric is one of Metrics.
type Metric int

// The metrics, in the order of Metrics.
const (
	AcquireDuration Metric = iota
	HoldDuration
	WaitCount
	HoldCount
	Contentions
	Losses
	RenewalDuration
	RenewalFailures
	LeaseMargin
	Leader
)

// Kind is what a metric does with its values.
type Kind int

const (
	Histogram Kind = iota // of durations in seconds
	Counter               // a sum that only grows
	Gauge                 // a sum that may fall: an UpDownCounter
)

// The attributes, by their names in OpenTelemetry. In Prometheus a dot is an underscore.
const (
	TypeKey    = "rlock.type"
	SideKey    = "rlock.side" // of a read-write lock
	LabelKey   = "rlock.label"
	OutcomeKey = "rlock.outcome"
	EndKey     = "rlock.end"
	CauseKey   = "rlock.cause"
	ErrorKey   = "error.type"
)

// Definition says what a metric is.
type Definition struct {
	Name       string // in OpenTelemetry
	Prometheus string // in Prometheus, also if an OpenTelemetry exporter translates Name
	Unit       string // as in UCUM
	Kind       Kind
	Help       string
	Keys       []string // of its attributes
}

// Metrics are all metrics there are, by Metric.
var Metrics = [...]Definition{
	AcquireDuration: {"rlock.acquire.duration", "rlock_acquire_duration_seconds", "s", Histogram,
		"How long acquires have taken, by outcome.", []string{TypeKey, SideKey, LabelKey, OutcomeKey, ErrorKey}},
	HoldDuration: {"rlock.hold.duration", "rlock_hold_duration_seconds", "s", Histogram,
		"How long locks were held, by how that has ended.", []string{TypeKey, SideKey, LabelKey, EndKey}},
	WaitCount: {"rlock.wait.count", "rlock_wait_count", "{acquire}", Gauge,
		"Acquires of this process that wait now.", []string{TypeKey, SideKey, LabelKey}},
	HoldCount: {"rlock.hold.count", "rlock_hold_count", "{hold}", Gauge,
		"Holds of this process now.", []string{TypeKey, SideKey, LabelKey}},
	Contentions: {"rlock.contentions", "rlock_contentions_total", "{contention}", Counter,
		"Acquires that had to wait.", []string{TypeKey, SideKey, LabelKey}},
	Losses: {"rlock.losses", "rlock_losses_total", "{loss}", Counter,
		"Holds that have ended before they were unlocked, by cause.", []string{TypeKey, SideKey, LabelKey, CauseKey}},
	RenewalDuration: {"rlock.renewal.duration", "rlock_renewal_duration_seconds", "s", Histogram,
		"How long renewals have taken until Redis has confirmed them.", []string{TypeKey, SideKey, LabelKey}},
	RenewalFailures: {"rlock.renewal.failures", "rlock_renewal_failures_total", "{failure}", Counter,
		"Renewals that were not confirmed. Most are tried again.", []string{TypeKey, SideKey, LabelKey, ErrorKey}},
	LeaseMargin: {"rlock.lease.margin", "rlock_lease_margin_seconds", "s", Histogram,
		"How much of the lease was left when a renewal was confirmed. It falls before the first loss.", []string{TypeKey, SideKey, LabelKey}},
	Leader: {"rlock.leader", "rlock_leader", "{leader}", Gauge,
		"Elections that this process leads now. The sum over all processes is 1 for each election.", []string{LabelKey}},
}

// Buckets are the bounds of all histograms, in seconds: a quiet acquire takes less than a
// millisecond, and a wait may take minutes.
var Buckets = []float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60}

// Attributes are the attributes of one series. Those that its metric does not have are empty.
type Attributes struct {
	Type, Side, Label string
	// One of these, and Error in addition to Outcome.
	Outcome, End, Cause, Error string
}

// Get returns the value for a key.
func (a *Attributes) Get(key string) string {
	switch key {
	case TypeKey:
		return a.Type
	case SideKey:
		return a.Side
	case LabelKey:
		return a.Label
	case OutcomeKey:
		return a.Outcome
	case EndKey:
		return a.End
	case CauseKey:
		return a.Cause
	case ErrorKey:
		return a.Error
	}
	return ""
}
