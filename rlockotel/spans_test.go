package rlockotel_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/rlockotel"
	"github.com/redis/go-redis/extra/redisotel/v9"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric/noop"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

var bg = context.Background()

func TestMain(m *testing.M) { locktest.Main(m) }

// tracing is one process with its spans.
type tracing struct {
	t        testing.TB
	exporter *tracetest.InMemoryExporter
	provider *sdktrace.TracerProvider
	observer *rlockotel.Observer
}

func newTracing(t testing.TB, opts ...rlockotel.Option) *tracing {
	t.Helper()
	x := &tracing{t: t, exporter: tracetest.NewInMemoryExporter()}
	x.provider = sdktrace.NewTracerProvider(sdktrace.WithSyncer(x.exporter))
	o, err := rlockotel.New(append([]rlockotel.Option{rlockotel.WithTracerProvider(x.provider), rlockotel.WithMeterProvider(noop.NewMeterProvider())}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	x.observer = o
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(bg, locktest.Patience)
		defer cancel()
		if err := o.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		_ = x.provider.Shutdown(bg)
	})
	return x
}

// span waits for the n-th span of a name.
func (x *tracing) span(name string, n int) (found tracetest.SpanStub) {
	x.t.Helper()
	locktest.Eventually(x.t, "there is the span "+name, func() bool {
		i := 0
		for _, s := range x.exporter.GetSpans() {
			if s.Name == name {
				if i++; i == n {
					found = s
					return true
				}
			}
		}
		return false
	})
	return found
}

func attrs(of []attribute.KeyValue) map[string]string {
	all := map[string]string{}
	for _, kv := range of {
		all[string(kv.Key)] = kv.Value.String()
	}
	return all
}

func wantAttrs(t *testing.T, s tracetest.SpanStub, want ...string) {
	t.Helper()
	got := attrs(s.Attributes)
	for _, w := range want {
		if key, value, _ := strings.Cut(w, "="); got[key] != value {
			t.Errorf("%s: %s is %q, want %q", s.Name, key, got[key], value)
		}
	}
}

func (x *tracing) request() (context.Context, trace.Span) {
	return x.provider.Tracer("test").Start(bg, "request")
}

func TestSpansOfAPair(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	x := newTracing(t)
	rdb := b.Client(t)
	if err := redisotel.InstrumentTracing(rdb, redisotel.WithTracerProvider(x.provider)); err != nil {
		t.Fatal(err)
	}
	c := locktest.NewClient(t, rdb, rlock.WithObserver(x.observer))
	locktest.MustUnlock(t, locktest.MustLock(t, c.NewLock("before"))) // what a client asks once
	x.exporter.Reset()

	ctx, request := x.request()
	lease := locktest.MustLockCtx(t, ctx, c.NewLock("order:17"))
	inner := locktest.MustLockCtx(t, lease.Context(ctx), c.NewLock("order:17"))
	locktest.MustUnlock(t, inner)
	locktest.MustUnlock(t, lease)
	request.End()

	acquire, again, hold := x.span("rlock.acquire", 1), x.span("rlock.acquire", 2), x.span("rlock.hold", 1)
	of := request.SpanContext()
	for _, s := range []tracetest.SpanStub{acquire, again, hold} {
		if s.SpanContext.TraceID() != of.TraceID() || s.Parent.SpanID() != of.SpanID() || s.Status.Code != codes.Unset || s.SpanKind != trace.SpanKindInternal {
			t.Errorf("%s: %+v, below %+v", s.Name, s.Status, s.Parent)
		}
		wantAttrs(t, s, "rlock.type=Lock", "rlock.label=order:*")
		for _, kv := range s.Attributes {
			if strings.Contains(kv.Value.String(), "17") && strings.Contains(kv.Value.String(), "order") {
				t.Errorf("%s has the lock's name: %v", s.Name, kv)
			}
		}
	}
	wantAttrs(t, acquire, "rlock.outcome=acquired", "rlock.attempts=1", "rlock.contended=false", "rlock.reentry=false")
	wantAttrs(t, again, "rlock.reentry=true")
	wantAttrs(t, hold, "rlock.end=unlocked", "rlock.hold_id="+lease.HoldID())
	if len(hold.Links) != 1 || hold.Links[0].SpanContext.SpanID() != acquire.SpanContext.SpanID() || attrs(hold.Links[0].Attributes)["rlock.link"] != "acquire" {
		t.Errorf("the hold links to %+v", hold.Links)
	}
	if hold.StartTime.Before(acquire.StartTime) || hold.EndTime.Before(again.EndTime) {
		t.Error("the hold is not from the grant to the release")
	}
	// The command of the acquire is below it.
	below := false
	for _, s := range x.exporter.GetSpans() {
		below = below || s.SpanKind == trace.SpanKindClient && s.Parent.SpanID() == acquire.SpanContext.SpanID()
	}
	if !below {
		t.Error("no command is below the acquire")
	}
	for _, s := range x.exporter.GetSpans() {
		if s.Name == "rlock.hold" && s.SpanContext.SpanID() != hold.SpanContext.SpanID() {
			t.Error("the re-entry has a hold of its own")
		}
	}
}

func TestStatusIsAnErrorForErrorsOnly(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	x := newTracing(t)
	rdb := b.Client(t)
	c := locktest.NewClient(t, rdb, rlock.WithObserver(x.observer))
	theirs := locktest.MustLock(t, b.NewClient(t).NewLock("a"))
	_, err := c.NewLock("a").TryLock(bg)
	locktest.WantErr(t, err, rlock.ErrNotAcquired)
	refused := x.span("rlock.acquire", 1)
	wantAttrs(t, refused, "rlock.outcome=not_acquired", "error.type=")
	// As it is told: on a slow machine a wait that is cancelled has seen no answer yet.
	e := rlock.Event{Lock: "a", Type: "Lock"}
	ctx := x.observer.AcquireStart(bg, rlock.StartEvent{Event: e})
	x.observer.Contended(ctx, rlock.ContentionEvent{Event: e})
	x.observer.AcquireEnd(ctx, rlock.AcquireEvent{Event: e, Contended: true, Err: fmt.Errorf("%w: %w", rlock.ErrNotAcquired, context.Canceled)})
	cancelled := x.span("rlock.acquire", 2)
	wantAttrs(t, cancelled, "rlock.outcome=cancelled", "rlock.contended=true", "error.type=")
	for _, s := range []tracetest.SpanStub{refused, cancelled} {
		if s.Status.Code != codes.Unset {
			t.Errorf("%+v", s.Status)
		}
	}
	if len(cancelled.Events) != 1 || cancelled.Events[0].Name != "contended" {
		t.Errorf("events: %+v", cancelled.Events)
	}
	locktest.MustUnlock(t, theirs)

	rdb.Set(bg, "foreign", "text", 0)
	_, err = c.NewLock("foreign").TryLock(bg)
	locktest.WantErr(t, err, rlock.ErrForeignKey)
	failed := x.span("rlock.acquire", 3)
	wantAttrs(t, failed, "rlock.outcome=error", "error.type=foreign_key")
	if failed.Status.Code != codes.Error || strings.Contains(failed.Status.Description, "foreign ") {
		t.Errorf("%+v", failed.Status)
	}

	lease := locktest.MustLock(t, c.NewLock("lost"))
	rdb.Del(bg, "lost")
	locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost)
	lost := x.span("rlock.hold", 1)
	wantAttrs(t, lost, "rlock.end=lost", "rlock.cause=removed", "error.type=removed")
	if lost.Status.Code != codes.Error || len(lost.Events) != 1 || lost.Events[0].Name != "lost" {
		t.Errorf("%+v %+v", lost.Status, lost.Events)
	}
}

// exists waits for the trace of a hold in Redis.
func exists(t *testing.T, rdb redis.UniversalClient, lock, holdID string) {
	t.Helper()
	locktest.Eventually(t, "the trace of the holder is in Redis", func() bool {
		return rdb.Exists(bg, "{"+lock+"}:rlock:trace:"+holdID).Val() == 1
	})
}

func TestWaitLinksToItsHolderInAnotherProcess(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		process := func() (*tracing, *rlock.Client) {
			x := newTracing(t, rlockotel.WithHolderLinks(b.Client(t)))
			return x, b.NewClient(t, rlock.WithObserver(x.observer))
		}
		theirs, theirClient := process()
		ours, ourClient := process()

		ctx, request := theirs.request()
		before := locktest.MustLockCtx(t, ctx, theirClient.NewLock("a"))
		exists(t, rdb, "a", before.HoldID())
		if ttl := rdb.PTTL(bg, "{a}:rlock:trace:"+before.HoldID()).Val(); ttl <= 0 || ttl > time.Minute {
			t.Errorf("it is kept for %v", ttl)
		}
		next := locktest.Begin(t, bg, ourClient.NewLock("a"))
		locktest.Eventually(t, "it waits", func() bool { return locktest.Subscribers(t, rdb, "a") == 1 })
		// Refused, without waiting: there is nothing to explain.
		_, err := ourClient.NewLock("a").TryLock(bg)
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		locktest.MustUnlock(t, before)
		request.End()
		lease := next.Held()
		returned := time.Now()

		tried, waited, hold := ours.span("rlock.acquire", 1), ours.span("rlock.acquire", 2), theirs.span("rlock.hold", 1)
		if len(tried.Links) != 0 {
			t.Errorf("a TryLock links to %+v", tried.Links)
		}
		if len(waited.Links) != 1 {
			t.Fatalf("links: %+v", waited.Links)
		}
		to := waited.Links[0]
		if to.SpanContext.TraceID() != request.SpanContext().TraceID() || to.SpanContext.SpanID() != hold.SpanContext.SpanID() ||
			!to.SpanContext.IsRemote() || attrs(to.Attributes)["rlock.link"] != "holder" {
			t.Errorf("it links to %+v, and not to %+v", to, hold.SpanContext)
		}
		if waited.EndTime.After(returned) {
			t.Errorf("the acquire ends %v after it has returned", waited.EndTime.Sub(returned))
		}
		if waited.SpanContext.TraceID() == request.SpanContext().TraceID() {
			t.Error("it is in the trace of the holder")
		}
		locktest.MustUnlock(t, lease)
		// No lock can have the name of such a key.
		_, err = ourClient.NewLock("{a}:rlock:trace:" + lease.HoldID()).TryLock(bg)
		locktest.WantErr(t, err, rlock.ErrInvalidArgument)
	})
}

// commands notes the commands that are sent for links.
type commands struct {
	mu  sync.Mutex // guards the rest
	all []string
	err error
}

func (c *commands) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *commands) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (c *commands) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.mu.Lock()
		for _, cmd := range cmds {
			if name := cmd.Name(); name == "get" || name == "set" {
				c.all = append(c.all, name)
			}
		}
		err := c.err
		c.mu.Unlock()
		if err != nil {
			return err
		}
		return next(ctx, cmds)
	}
}

func (c *commands) sent() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.all, " ")
}

// Redis hears of sampled holds that last, and of waits, and of nothing else.
func TestLinksCostLittle(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	seen := &commands{}
	rdb := b.Client(t)
	rdb.AddHook(seen)
	x := newTracing(t, rlockotel.WithHolderLinks(rdb))
	never := newTracing(t, rlockotel.WithHolderLinks(rdb), rlockotel.WithTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))))

	unsampled := locktest.MustLock(t, b.NewClient(t, rlock.WithObserver(never.observer)).NewLock("unsampled"))
	c := b.NewClient(t, rlock.WithObserver(x.observer))
	lease := locktest.MustLock(t, c.NewLock("a"))
	exists(t, rdb, "a", lease.HoldID())
	if got := seen.sent(); got != "set" {
		t.Errorf("sent: %s", got)
	}
	// An unsampled holder has left nothing: the wait has no link, and one GET.
	next := locktest.Begin(t, bg, c.NewLock("unsampled"))
	locktest.Eventually(t, "it waits", func() bool { return locktest.Subscribers(t, rdb, "unsampled") == 1 })
	locktest.MustUnlock(t, unsampled)
	got := next.Held()
	if s := x.span("rlock.acquire", 2); len(s.Links) != 0 {
		t.Errorf("links: %+v", s.Links)
	}
	locktest.MustUnlock(t, got)
	locktest.MustUnlock(t, lease)
	if err := x.observer.Shutdown(bg); err != nil {
		t.Fatal(err)
	}
	if sets := strings.Count(seen.sent(), "set"); strings.Count(seen.sent(), "get") != 1 || sets > 2 { // the second hold may have lasted
		t.Errorf("sent: %s", seen.sent())
	}
	// After Shutdown nothing is sent any more, and spans end at once.
	was := seen.sent()
	lease = locktest.MustLock(t, c.NewLock("b"))
	next = locktest.Begin(t, bg, c.NewLock("b"))
	locktest.Eventually(t, "it waits", func() bool { return locktest.Subscribers(t, rdb, "b") == 1 })
	locktest.MustUnlock(t, lease)
	locktest.MustUnlock(t, next.Held())
	x.span("rlock.acquire", 4)
	if seen.sent() != was {
		t.Errorf("after Shutdown: %s", seen.sent())
	}
}

func TestSpansEndAlthoughRedisDoesNotSayWhoHeld(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	rdb := b.Client(t)
	rdb.AddHook(&commands{err: errors.New("no")})
	x := newTracing(t, rlockotel.WithHolderLinks(rdb))
	c := b.NewClient(t, rlock.WithObserver(x.observer))
	lease := locktest.MustLock(t, c.NewLock("a"))
	next := locktest.Begin(t, bg, c.NewLock("a"))
	locktest.Eventually(t, "it waits", func() bool { return locktest.Subscribers(t, b.Client(t), "a") == 1 })
	locktest.MustUnlock(t, lease)
	locktest.MustUnlock(t, next.Held())
	if s := x.span("rlock.acquire", 2); len(s.Links) != 0 {
		t.Errorf("links: %+v", s.Links)
	}
	x.span("rlock.hold", 2)
}

func TestOptions(t *testing.T) {
	t.Parallel()
	for name, opt := range map[string]rlockotel.Option{
		"no labels": rlockotel.WithMaxLabels(0), "no client": rlockotel.WithHolderLinks(nil),
		"no meters": rlockotel.WithMeterProvider(nil), "no tracers": rlockotel.WithTracerProvider(nil),
	} {
		if _, err := rlockotel.New(opt); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := rlockotel.New(nil); err != nil {
		t.Error(err)
	}
}
