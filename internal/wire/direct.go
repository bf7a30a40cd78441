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

// A caller sends the first copy of its request itself, on its own goroutine, if the server is near and few requests are
// under way. A worker in between would cost two hand-overs between goroutines, which is most of the time that a request
// costs this process.
//
// A goroutine that calls go-redis cannot return before go-redis does, and go-redis ignores the context while it reads. So
// such a copy has a timeout that is as short as a caller may have to wait after the end of its context. When the timeout
// has passed, the reply and the connection are lost, and the copy may have run or may run yet. The call continues with its
// second copy, by a worker. The timeout is many times what a near server takes, and longer than a process with a part of a
// processor usually waits for its turn.
//
// If the context never ends, like the context of each Unlock, the timeout is almost as long as a worker's: an Unlock
// with a lost reply would have to return ErrUnconfirmed. A request with less time than that is sent by a worker.
//
// After a lost reply, workers send until one of them gets a fast reply: a server that stops costs at most mostDirect
// connections.

const (
	// heldUp is the timeout of a copy that its caller sends. steadyWithin is the longest timeout if the context never ends. A
	// worker would wait for half of the budget; a call that begins a moment late has less than that.
	heldUp       = 75 * time.Millisecond
	steadyWithin = 1400 * time.Millisecond
	// nearby is how fast the replies of a near server are.
	nearby = time.Millisecond
	// mostDirect is how many callers send at a time. With more, the processors are busy, and hand-overs between goroutines
	// cost little: 8 callers made a tenth fewer pairs a second with 8 than with 4, and 1 made no difference to 4. To leave
	// all requests to workers for 50 ms after a burst made no difference either.
	mostDirect = 4
)

// direct has what the callers of a deployment need to send copies themselves.
type direct struct {
	rdb        *redis.Client // nil if only workers send, as to a cluster, whose nodes have separate hooks
	usesRDB    bool          // the timeouts of rdb are short enough, and rdb is used itself
	steady     time.Duration // timeout of a copy whose context never ends
	ways       atomic.Pointer[ways]
	later      laterHooks   // hook of rdb that detects later hooks
	hookSearch atomic.Bool  // a copy of a worker has searched for earlier hooks of rdb, or searches now
	cut        atomic.Int64 // when a copy last got no reply in time, in Unix nanoseconds; 0 if that never happened
}

// ways has the way for contexts that may end, and the way for others.
type ways [2]way

// way is how a caller sends a copy itself.
type way struct {
	client redis.UniversalClient // nil if the caller may not send
	within time.Duration
}

// prepare prepares direct sending with a client. Callers send only after a copy of a worker has met no hook: a hook that
// blocks would hold up the caller.
func (s *direct) prepare(rdb redis.UniversalClient, unlockTimeout time.Duration) {
	s.steady = min(steadyWithin, unlockTimeout*7/15)
	r, ok := rdb.(*redis.Client)
	if !ok {
		return
	}
	brief := func(d time.Duration) bool { return d > 0 && d <= heldUp }
	o := r.Options()
	s.usesRDB = o.ContextTimeoutEnabled || brief(o.ReadTimeout) && brief(o.WriteTimeout)
	s.rdb, s.later = r, laterHooks{new(atomic.Bool)}
	r.AddHook(s.later)
}

// direct returns how the caller may send the first copy itself; zero if it may not. The caller may return a little after
// its context has been canceled, but not after the deadline of the context.
func (c *call) direct(now time.Time) (by way) {
	s := &c.d.direct
	all := s.ways.Load()
	if all == nil || c.d.hasLimiter || s.hooked() || c.r.Script == nil || c.r.Acked || c.r.NoResend {
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

// byWorker marks a context by its type. A value would be found by a search, and would be visible to hooks.
type byWorker struct{ context.Context }

// ByWorker returns ctx for a request that a worker must send. It has to be passed to Do itself, not a context derived from
// it.
func ByWorker(ctx context.Context) context.Context { return byWorker{ctx} }

// laterHooks is a hook that does nothing but detect hooks that are added after it. When a hook is added, and before it is
// used, go-redis calls ProcessHook of each hook with the next function in the chain. That function is one of go-redis
// unless another hook was added. A client has one laterHooks per Deployment.
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

// hooked reports whether a hook was added later. The client that WithTimeout returns shares the connections of rdb, but
// none of its hooks: go-redis 9.22 and 9.23 drop them.
func (s *direct) hooked() bool { return s.rdb != nil && s.later.Load() }

// startHookSearch reports whether a copy of a worker has to search for earlier hooks. Only one copy searches at a time.
func (s *direct) startHookSearch() bool {
	return s.rdb != nil && !s.hookSearch.Load() && s.hookSearch.CompareAndSwap(false, true)
}

// noteHookSearch records the result of a copy that searched for hooks. If the copy was not sent, the next one searches.
// Callers do not send to servers that announce maintenance, because go-redis then changes the timeouts of connections.
func (s *direct) noteHookSearch(c *searchingCopy, answered bool) {
	switch {
	case !c.argsCalled.Load() && !answered:
		s.hookSearch.Store(false)
		return
	case !c.plain():
		return
	}
	if s.usesRDB {
		s.ways.Store(&ways{{s.rdb, heldUp}, {s.rdb, s.steady}})
		return
	}
	brief := s.rdb.WithTimeout(heldUp)
	if m := brief.Options().MaintNotificationsConfig; m == nil || m.Mode == maintnotifications.ModeDisabled {
		s.ways.Store(&ways{{brief, heldUp}, {s.rdb.WithTimeout(s.steady), s.steady}})
	}
}

// searchingCopy is a copy that searches for hooks.
type searchingCopy struct {
	*sentCopy
	argsCalled, hooked atomic.Bool
}

// Args implements redis.Cmder.
func (c *searchingCopy) Args() []any {
	c.argsCalled.Store(true)
	if !unhooked() {
		c.hooked.Store(true)
	}
	return c.sentCopy.Args()
}

// plain reports whether the copy was written, and met no hook.
func (c *searchingCopy) plain() bool { return c.argsCalled.Load() && !c.hooked.Load() }

// unhooked reports whether only functions of go-redis are on the stack between its caller searchingCopy.Args and
// Deployment.send. A hook that continues on another goroutine is detected too.
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

// HeldUp returns for how long, at most, a call that has just returned was held up after the end of its context.
func (d *Deployment) HeldUp() time.Duration {
	if time.Since(time.Unix(0, d.direct.cut.Load())) > heldUp {
		return 0
	}
	return heldUp
}
