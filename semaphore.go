package rlock

import (
	"context"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/wire"
)

// Semaphore is a number of permits that owners in many processes take and put back, the
// counterpart of Redisson's RSemaphore: Java processes can share it.
//
// Redis has only the number of free permits. Nothing records who has taken one: the permits
// of a process that dies are gone, until somebody adds others. If that matters, use a
// PermitSemaphore. Anybody may release permits, also those that were not taken.
//
// A permit is counted once even if replies are lost and requests sent again, unless Redis
// cannot be reached, or the process is stopped, for nine minutes then. A failover that loses
// the newest writes can change the number of permits: WithReplicaAck and
// WithFailoverQuarantine are not for a Semaphore, a CountDownLatch or a Barrier.
//
// A PermitSemaphore and a CountDownLatch of the same name would use the same number: use one
// type for a name. As far as the keys beside it tell, methods that set or change the number
// of another type fail with ErrForeignKey: TrySetPermits and AddPermits of both semaphores,
// SetPermits, and those of a latch. What Java has set is told only while permits of an
// RPermitExpirableSemaphore are held, and a latch is never told.
type Semaphore struct {
	core *core
	asks *protocol.Semaphore
}

const semaphoreFamily = "semaphore"

// NewSemaphore returns the semaphore of a name, for which the rules of
// [Client.NewLock] hold. It sends nothing; invalid arguments are reported by the first
// call. Before permits can be acquired, some must be set: see [Semaphore.TrySetPermits].
func (c *Client) NewSemaphore(name string) *Semaphore {
	l, names := newCore(c, semaphoreFamily, name, lockConfig{}, nil)
	return &Semaphore{l, protocol.NewSemaphore(&l.c.site, names)}
}

// Name returns the name of the semaphore, with the prefix of the client.
func (s *Semaphore) Name() string { return s.core.Name() }

// TrySetPermits sets the number of permits, if none was set before, and reports whether it
// did. Each process may call it: the first one sets.
//
// If Redis gives no answer, or ctx ends, the outcome is unknown. When Redis answers again,
// the client sees to it that late copies of the request change nothing.
func (s *Semaphore) TrySetPermits(ctx context.Context, n int) (bool, error) {
	if err := s.check(ctx, "TrySetPermits", n); err != nil {
		return false, err
	}
	return changeOnce(ctx, s.core, func(op protocol.Op) protocol.Request[bool] { return s.asks.TrySet(op, int64(n)) }, s.asks.Seal)
}

// AddPermits changes the number of permits by n, which may be negative: then fewer are
// free, or less than none until enough are released. It sets the permits if none were set.
// After an error nothing is added: if need be, that is undone in the background.
func (s *Semaphore) AddPermits(ctx context.Context, n int) error {
	if err := s.core.check(ctx); err != nil {
		return err
	}
	if n == 0 || n < -MaxPermits || n > MaxPermits {
		return s.core.error(invalid("AddPermits(%d): must be between 1 and %d, or negative", n, MaxPermits))
	}
	_, err := changeOnce(ctx, s.core, func(op protocol.Op) protocol.Request[protocol.Kept] { return s.asks.Add(op, int64(n)) }, s.asks.Undo)
	return err
}

// Acquire takes n permits. It waits until as many are free, ctx ends, or WithWait, the only
// option that it takes, is over. Then the error matches ErrNotAcquired, and says how many
// were free. If no permits were set, it returns ErrNotSet at once, and does not wait.
//
// The waiters of one client are served in the order in which they came; those for
// many permits are not overtaken by those for few. Others do not wait behind one that asks
// for more permits than clients of this package have set and added: it gets them if others
// that nobody had taken are released, but then it may be overtaken. If Java has set the
// permits, nobody is overtaken. Nothing is promised among clients. If Redis gives no answer for as
// long as a watchdog lease, the error matches ErrUnreachable. After an error nothing is
// taken: if need be, permits are given back in the background.
func (s *Semaphore) Acquire(ctx context.Context, n int, opts ...AcquireOption) error {
	return s.acquire(ctx, "Acquire", n, true, opts)
}

// TryAcquire takes n permits if as many are free now, whoever waits. Otherwise it returns
// ErrNotAcquired, or ErrNotSet.
func (s *Semaphore) TryAcquire(ctx context.Context, n int) error {
	return s.acquire(ctx, "TryAcquire", n, false, nil)
}

// Release puts n permits back, and wakes waiters. Like Unlock it works even if ctx has
// ended, WithUnlockTimeout bounds it, and if Redis does not confirm it the error matches
// ErrUnconfirmed, and it is repeated in the background. As in Redisson it sets the permits
// if none were set. If there would be more than MaxPermits, the error matches
// ErrInvalidArgument.
func (s *Semaphore) Release(ctx context.Context, n int) error {
	if ctx == nil {
		ctx = context.Background()
	}
	if err := s.check(ctx, "Release", n); err != nil {
		return err
	}
	err := surely(ctx, s.core, func(op protocol.Op) protocol.Task { return s.asks.Release(op, int64(n)) }, s.asks.Seal)
	s.core.c.events.Unlocked(UnlockEvent{Lock: s.Name(), Err: err})
	return err
}

// Drain takes all permits that are free, and returns their number; less than 0 if
// AddPermits had removed more than were free, which is made up for. After an error nothing
// is taken, as with Acquire.
func (s *Semaphore) Drain(ctx context.Context) (int, error) {
	if err := s.core.check(ctx); err != nil {
		return 0, err
	}
	n, err := changeOnce(ctx, s.core, s.asks.Drain, s.asks.Undo)
	return int(n), err
}

// Available returns how many permits are free; 0 if none were set, and less if AddPermits
// has removed more than were free.
func (s *Semaphore) Available(ctx context.Context) (int, error) {
	if err := s.core.check(ctx); err != nil {
		return 0, err
	}
	r, err := ask(ctx, s.core, s.asks.Available())
	return int(r.Outcome), err
}

// check returns why the arguments of a method, or of the constructor, are invalid.
func (s *Semaphore) check(ctx context.Context, method string, n int) error {
	if err := s.core.check(ctx); err != nil {
		return err
	}
	return s.core.checkCount(method, n)
}

// checkCount checks a number of permits.
func (l *core) checkCount(method string, n int) error {
	if n < 1 || n > MaxPermits {
		return l.error(invalid("%s(%d): must be between 1 and %d", method, n, MaxPermits))
	}
	return nil
}

func (s *Semaphore) acquire(caller context.Context, method string, n int, wait bool, opts []AcquireOption) error {
	if err := s.check(caller, method, n); err != nil {
		return err
	}
	l, c := s.core, s.core.c
	var o acquireConfig
	err := c.cfg.acquireOptions(&o, opts, wait)
	if err == nil && (o.hasLease || o.hasPriority) {
		err = invalid("a Semaphore takes only WithWait")
	}
	if err != nil {
		return l.error(err)
	}
	if !c.begin() {
		return l.error(ErrClosed)
	}
	defer c.end()

	start := c.clock.Now()
	caller = c.events.AcquireStart(caller, l.name())
	ctx := caller
	if o.hasWait && o.wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.wait)
		defer cancel()
	}
	a := &taking{s: s, n: int64(n)}
	a.inquiry = inquiry{
		c: c, of: l.id(), asks: a, number: c.lastHold.Add(1), need: a.n,
		wait: wait && !(o.hasWait && o.wait == 0), limit: o.wait, sentinel: ErrNotAcquired,
	}
	if err = a.run(caller, ctx); err != nil {
		err = l.error(err)
	}
	told := false
	defer func() {
		if !told && err == nil { // an Observer has ended the goroutine: nobody puts the permits back
			_ = surely(context.Background(), l, func(op protocol.Op) protocol.Task { return s.asks.Release(op, int64(n)) }, s.asks.Seal)
		}
	}()
	c.events.AcquireEnd(caller, AcquireEvent{Lock: l.name(), Wait: c.clock.Now().Sub(start), Attempts: a.tries, Err: err})
	told = true
	return err
}

// taking is one Acquire or TryAcquire. Its looks are one operation: the one that takes the
// permits does so once, whatever became of the others. When it is given up, the next look,
// if there is one, begins another.
type taking struct {
	inquiry
	s      *Semaphore
	n      int64
	page   *page
	op     protocol.Op
	unsure bool // a copy of a look may be under way
	took   bool // a look may have taken the permits
}

func (a *taking) look(ctx context.Context) found {
	c := a.c
	if err := c.wire.Ready(ctx); err != nil {
		return found{err: err}
	}
	if a.page == nil {
		a.page = c.pages.take(c.id)
		a.op = a.page.next()
	}
	unsure := a.unsure
	a.unsure = true                         // until it is answered: an Observer may end the goroutine
	inLine := a.place != nil || a.tries > 1 // else this may be the only look
	r := a.s.asks.Acquire(a.op, a.n, inLine).Do(ctx, c.cfg.commandTimeout)
	a.unsure = unsure || r.Unsure
	if r.Err != nil {
		a.took = a.took || wire.MayHaveRun(r.Err)
		return found{err: r.Err, last: r.Last}
	}
	switch r.Outcome.Verdict {
	case protocol.Granted:
		a.took = true
		c.stopOf("granted", a.number)
		if c.isClosing() {
			return found{err: ErrClosed}
		}
		c.pages.give(a.page)
		return found{done: true, room: r.Outcome.Free}
	case protocol.Busy:
		if a.unsure {
			a.giveUp() // a copy that comes later would take what this wait never learns of
		}
		t := &r.Outcome
		return found{rest: -1, free: permits{known: true, counted: t.Counted, all: t.All, free: t.Free}, beyond: t.Counted && a.n > t.All}
	case protocol.NotSet:
		return found{err: ErrNotSet}
	}
	return found{err: errWithdrawn}
}

func (a *taking) giveUp() (answered bool) {
	if a.page == nil {
		return false
	}
	p, op, effect := a.page, a.op, a.unsure || a.took
	a.page, a.unsure, a.took = nil, false, false // the next look is a new operation
	return a.c.forget(a.of, p, effect, func() protocol.Task { return a.s.asks.Undo(op) })
}

func (a *taking) listen(notify func()) (end func()) { return a.s.asks.Listen(notify) }
