package wire

import (
	"context"
	"reflect"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// The first copy of a request to a server that is near is sent by its caller, in its own goroutine, while few are under
// way: each worker between them costs two hand-overs between goroutines, which is most of what a request costs this
// process. Whoever calls go-redis cannot leave before go-redis returns, and go-redis does not look at a context while it
// reads. So the timeout of such a copy is as short as a caller may have to wait after its context has ended. When it has
// passed, the reply is lost, the connection with it, and the copy may have run or may run yet: the call goes on with its
// second copy, by a worker. It is many times what such a server takes, and longer than a process that has a part of a
// processor usually waits for its turn. If the context never ends, as that of each Unlock, it is almost as long as a worker
// waits: an Unlock whose reply is lost has to say ErrUnconfirmed. One that has less time than that is left to a worker.
// After a lost reply workers send, until one of them has a fast answer: a server that stops costs at most mostDirect
// connections.

const (
	// heldUp is the timeout of a copy that its caller sends, and steadyWithin that of one whose context never ends, at most.
	// A worker would wait for half of the budget; a call that begins a moment late has less than that.
	heldUp       = 75 * time.Millisecond
	steadyWithin = 1400 * time.Millisecond
	// nearby is in how much time a server answers if it is near.
	nearby = time.Millisecond
	// mostDirect is how many callers send at a time. With more the processors are busy, and hand-overs between goroutines
	// cost little: with 8 of 8 there were a tenth fewer pairs a second than with 4, and 4 made no difference to 1. Leaving all
	// to workers for 50 ms after more were under way made none either.
	mostDirect = 4
)

// direct says how callers send copies themselves.
type direct struct {
	rdb    *redis.Client // nil: workers send, as to a cluster, whose nodes have hooks of their own
	own    bool          // the timeouts of rdb are used as they are
	steady time.Duration // the timeout of a copy whose context never ends
	ways   atomic.Pointer[ways]
	later  laterHooks   // of rdb
	looked atomic.Bool  // a copy of a worker has looked for hooks that rdb had before, or does
	cut    atomic.Int64 // when a copy was without an answer last, in nanoseconds of Unix; 0: none was
}

// ways are those for contexts that may end and for others.
type ways [2]way

// way is how a caller sends a copy itself.
type way struct {
	client redis.UniversalClient // nil: it does not
	within time.Duration
}

// open says of which client the copies are sent. None is, until a worker's has met no hook: one that blocks would hold up
// the caller.
func (s *direct) open(rdb redis.UniversalClient, unlockTimeout time.Duration) {
	s.steady = min(steadyWithin, unlockTimeout*7/15)
	r, ok := rdb.(*redis.Client)
	if !ok {
		return
	}
	brief := func(d time.Duration) bool { return d > 0 && d <= heldUp }
	o := r.Options()
	s.own = o.ContextTimeoutEnabled || brief(o.ReadTimeout) && brief(o.WriteTimeout)
	s.rdb, s.later = r, laterHooks{new(atomic.Bool)}
	r.AddHook(s.later)
}

// direct returns how the caller sends the first copy itself; zero: it may not. It is held up until after the end of its
// context, but not beyond the deadline of one.
func (c *call) direct(now time.Time) (by way) {
	s := &c.d.direct
	all := s.ways.Load()
	if all == nil || c.d.limited || s.hooked() || c.r.Script == nil || c.r.Acked || c.r.NoResend {
		return by
	}
	if by = all[0]; c.ctx.Done() == nil && (c.patience >= all[1].within || c.r.OneEffect) {
		by = all[1]
	}
	until, ends := c.ctx.Deadline()
	_, worker := c.ctx.(byWorker)
	if worker || c.patience < by.within || ends && until.Sub(now) <= by.within {
		return way{}
	}
	return by
}

// byWorker is a context whose type says how to send, as a value could; that is for hooks and would have to be looked up.
type byWorker struct{ context.Context }

// ByWorker is ctx for a request that its caller does not send itself. It has to be that which Do gets.
func ByWorker(ctx context.Context) context.Context { return byWorker{ctx} }

// laterHooks says whether a hook was added to a client after this one, which changes nothing. go-redis asks each for the
// function in its place when it adds one, before that is used, and when it opens a connection: it gives what those that were
// added later have made of its own. The client has one for each Deployment that was opened with it.
type laterHooks struct{ *atomic.Bool }

func (laterHooks) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h laterHooks) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	if f := runtime.FuncForPC(reflect.ValueOf(next).Pointer()); f == nil || !ofGoRedis(f.Name()) {
		h.Store(true)
	}
	return next
}
func (laterHooks) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func ofGoRedis(function string) bool {
	return strings.HasPrefix(function, "github.com/redis/go-redis/v9.")
}

// hooked reports whether a hook was added later. A client that WithTimeout of go-redis returns shares the connections, but
// has none of the hooks of the other: those of 9.22 and 9.23 are dropped.
func (s *direct) hooked() bool { return s.rdb != nil && s.later.Load() }

// looks reports whether a copy of a worker is to look for hooks that were there before.
func (s *direct) looks() bool {
	return s.rdb != nil && !s.looked.Load() && s.looked.CompareAndSwap(false, true)
}

// found notes what a copy has met. If it has met nobody, and was not sent, the next one looks. Connections whose server has
// announced maintenance have other timeouts.
func (s *direct) found(c *lookingCopy, answered bool) {
	switch {
	case !c.asked.Load() && !answered:
		s.looked.Store(false)
		return
	case !c.plain():
		return
	}
	if s.own {
		s.ways.Store(&ways{{s.rdb, heldUp}, {s.rdb, s.steady}})
		return
	}
	brief := s.rdb.WithTimeout(heldUp)
	if m := brief.Options().MaintNotificationsConfig; m == nil || m.Mode == maintnotifications.ModeDisabled {
		s.ways.Store(&ways{{brief, heldUp}, {s.rdb.WithTimeout(s.steady), s.steady}})
	}
}

// lookingCopy is a copy that looks for hooks.
type lookingCopy struct {
	*sentCopy
	asked, hooked atomic.Bool
}

// Args implements redis.Cmder.
func (c *lookingCopy) Args() []any {
	c.asked.Store(true)
	if !unhooked() {
		c.hooked.Store(true)
	}
	return c.sentCopy.Args()
}

// plain reports whether the copy was written, and met no hook.
func (c *lookingCopy) plain() bool { return c.asked.Load() && !c.hooked.Load() }

// unhooked reports whether all that is between lookingCopy.Args, which calls it, and Deployment.send is go-redis. A hook
// that has another goroutine go on is seen, too.
func unhooked() bool {
	var pcs [64]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])])
	for {
		f, more := frames.Next()
		if !ofGoRedis(f.Function) && !strings.HasPrefix(f.Function, "github.com/redis/go-redis/v9/") {
			return f.Function == "github.com/go-rlock/rlock/internal/wire.(*Deployment).send"
		}
		if !more {
			return false
		}
	}
}

// HeldUp is for how long at most a call that has just ended was held up after its context had ended.
func (d *Deployment) HeldUp() time.Duration {
	if time.Since(time.Unix(0, d.direct.cut.Load())) > heldUp {
		return 0
	}
	return heldUp
}
