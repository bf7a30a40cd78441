package rlockotel

import (
	"context"
	"sync"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/telemetry"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// The spans, and the attributes that no metric has.
const (
	acquireSpan = "rlock.acquire"
	holdSpan    = "rlock.hold"

	attemptsKey   = attribute.Key("rlock.attempts")
	contendedKey  = attribute.Key("rlock.contended")
	reentryKey    = attribute.Key("rlock.reentry")
	handedOverKey = attribute.Key("rlock.handed_over")
	tokenKey      = attribute.Key("rlock.token")
	holdIDKey     = attribute.Key("rlock.hold_id")
	linkKey       = attribute.Key("rlock.link") // of a link: what it leads to
)

var (
	toAcquire = []attribute.KeyValue{linkKey.String("acquire")}
	toHolder  = []attribute.KeyValue{linkKey.String("holder")}
)

type tracer struct {
	of     trace.Tracer // nil: no spans
	labels *telemetry.Labels
	links  *links // nil: nobody asked for them

	mu    sync.RWMutex // guards begun
	begun map[subject]trace.SpanStartEventOption
}

// subject is what spans begin with.
type subject struct{ typ, side, label string }

// begins returns the attributes with which the spans of a lock begin.
func (t *tracer) begins(e rlock.Event) trace.SpanStartEventOption {
	s := subject{e.Type, e.Side, t.labels.Of(e)}
	t.mu.RLock()
	o := t.begun[s]
	t.mu.RUnlock()
	if o != nil {
		return o
	}
	kvs := []attribute.KeyValue{attribute.String(telemetry.TypeKey, s.typ), attribute.String(telemetry.LabelKey, s.label)}
	if s.side != "" {
		kvs = append(kvs, attribute.String(telemetry.SideKey, s.side))
	}
	o = trace.WithAttributes(kvs...)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.begun[s] = o
	return o
}

// call is the context of an acquire and of the hold that it begins.
type call struct {
	context.Context                            // with the span of the acquire
	caller          context.Context            // without
	begins          trace.SpanStartEventOption // attributes
	acquire         trace.Span
	hold            trace.Span // nil: it has begun none. Set before any event of the hold
	note            *note      // of the hold, for those who wait for it; nil: there is none
}

type callKey struct{}

func (c *call) Value(key any) any {
	if key == (callKey{}) {
		return c
	}
	return c.Context.Value(key)
}

func callOf(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}

func (t *tracer) start(ctx context.Context, e rlock.StartEvent) context.Context {
	if t.of == nil {
		return ctx
	}
	c := &call{caller: ctx, begins: t.begins(e.Event)}
	c.Context, c.acquire = t.of.Start(ctx, acquireSpan, c.begins)
	return c
}

func (t *tracer) contended(ctx context.Context) {
	if c := callOf(ctx); c != nil {
		c.acquire.AddEvent("contended")
	}
}

func (t *tracer) acquired(ctx context.Context, e rlock.AcquireEvent) {
	c := callOf(ctx)
	if c == nil {
		return
	}
	recording := c.acquire.IsRecording()
	if recording {
		outcome, errorType := telemetry.Outcome(e.Err)
		c.acquire.SetAttributes(attribute.String(telemetry.OutcomeKey, outcome), attemptsKey.Int(e.Attempts), contendedKey.Bool(e.Contended),
			reentryKey.Bool(e.Reentry), handedOverKey.Bool(e.HandedOver))
		if errorType != "" {
			fail(c.acquire, errorType)
		}
	}
	if e.Err == nil && e.Entry == 1 {
		// Next to the acquire and not below it: the acquire has ended long before.
		if recording {
			_, c.hold = t.of.Start(c.caller, holdSpan, c.begins, trace.WithLinks(trace.Link{SpanContext: c.acquire.SpanContext(), Attributes: toAcquire}))
		} else {
			_, c.hold = t.of.Start(c.caller, holdSpan, c.begins)
		}
		if c.hold.IsRecording() {
			c.hold.SetAttributes(holdIDKey.String(e.HoldID), tokenKey.Int64(e.Token))
		}
		if t.links != nil {
			c.note = t.links.holds(e.Event, c.hold.SpanContext())
		}
	}
	if recording && e.Contended && e.HolderID != "" && t.links != nil {
		own := trace.SpanContext{}
		if c.hold != nil {
			own = c.hold.SpanContext()
		}
		t.links.endLinked(c.acquire, e, own)
		return
	}
	c.acquire.End()
}

// fail marks a span. The text of an error has the name of the lock, so it is not shown.
func fail(span trace.Span, errorType string) {
	span.SetAttributes(attribute.String(telemetry.ErrorKey, errorType))
	span.SetStatus(codes.Error, errorType)
}

func (t *tracer) unlocked(ctx context.Context, e rlock.UnlockEvent) {
	if !e.Ends {
		return
	}
	if c := callOf(ctx); c != nil && c.hold != nil {
		if c.hold.IsRecording() {
			c.hold.SetAttributes(attribute.String(telemetry.EndKey, telemetry.Unlocked), handedOverKey.Bool(e.HandedOver))
			if e.Err != nil {
				fail(c.hold, telemetry.ErrorType(e.Err))
			}
		}
		t.ends(c)
	}
}

func (t *tracer) lost(ctx context.Context, e rlock.LossEvent) {
	if c := callOf(ctx); c != nil && c.hold != nil {
		if c.hold.IsRecording() {
			cause := telemetry.Cause(e.Cause)
			c.hold.AddEvent(telemetry.Lost)
			c.hold.SetAttributes(attribute.String(telemetry.EndKey, telemetry.Lost), attribute.String(telemetry.CauseKey, cause))
			fail(c.hold, cause)
		}
		t.ends(c)
	}
}

func (t *tracer) ends(c *call) {
	c.hold.End()
	if c.note != nil {
		t.links.ends(c.note)
	}
}

// renewed notes failures only: a hold of a day is renewed nine thousand times.
func (t *tracer) renewed(ctx context.Context, e rlock.RenewalEvent) {
	if e.Err == nil {
		return
	}
	if c := callOf(ctx); c != nil && c.hold != nil && c.hold.IsRecording() {
		c.hold.AddEvent("renewal failed", trace.WithAttributes(attribute.String(telemetry.ErrorKey, telemetry.ErrorType(e.Err)),
			attribute.Float64("rlock.lease.left", e.Left.Seconds())), trace.WithTimestamp(time.Now()))
	}
}
