package rlock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// core is what every lock type is made of: a name, what may be asked of Redis
// under it, and the ways in. Its exported methods are those of every type.
type core struct {
	protocol
	c    *Client
	name string // with prefix
	id   lockID
	side side
	keys names
	bad  error // what is wrong with the arguments of the constructor
	opts lockConfig

	// How its waiters wait, apart from the channel of the protocol.
	placed   bool // Redis keeps their order: each has a line of its own here
	standing bool // they leave a trace in Redis, to be kept fresh and taken away
	backoff  func(who int64, turn int) time.Duration
	listen   func(stay string, notify func()) (end func()) // instead of the channel
	hesitate time.Duration                                 // a pause, random up to this, after each message

	// silent: its releases are not announced.
	silent bool

	// longest is the longest lease, and margin what is taken off each, beside the
	// drift, if the type needs that; 0: nothing.
	longest, margin time.Duration

	// kept: a fixed lease needs looking after too; see hold.keepAt.
	kept bool

	// prioritized: its acquires may say how urgent they are.
	prioritized bool
}

// lockID tells the locks of a client apart. Types of one family that have the
// same name are one lock: they exclude each other, and an owner of one may
// enter the other.
type lockID struct{ family, name string }

// side is the side of a read-write lock. All other locks have one.
type side int

const (
	exclusive side = iota
	shared
)

func (s side) other() side { return 1 - s }

// newCore makes the core of a lock type of the given family, which takes the
// special options with these names. The caller adds the protocol.
func newCore(c *Client, family, name string, opts []LockOption, takes ...string) *core {
	made := c.made()
	if !made {
		c = noClient
	}
	l := &core{c: c, name: c.cfg.prefix + name}
	l.id = lockID{family, l.name}
	l.longest = c.cfg.longest
	err := apply(opts, &l.opts)
	switch {
	case !made:
		l.bad = errNoClient
	case err != nil:
		l.bad = err
	case name == "":
		l.bad = invalid("the lock has no name")
	case l.opts.maxHold < 0 || l.opts.maxHold > 0 && l.opts.maxHold < MinLease:
		l.bad = invalid("WithMaxHold(%v): must be at least %v", l.opts.maxHold, MinLease)
	default:
		l.keys, l.bad = deriveNames(l.name)
	}
	for _, option := range l.opts.special {
		if l.bad == nil && !slices.Contains(takes, option) {
			l.bad = invalid("%s is not an option of this type of lock", option)
		}
	}
	return l
}

// noClient is the client of locks that were made without one. It is not used.
var noClient = &Client{cfg: defaults()}

// check is what is wrong with the arguments of a method, or of the constructor: it
// comes first in each method of a lock.
func (l *core) check(ctx context.Context) error {
	switch {
	case l == nil:
		return &Error{Err: invalid("the lock was not made by a constructor")}
	case l.bad != nil:
		return l.error(l.bad)
	case ctx == nil:
		return l.error(errNoContext)
	}
	return nil
}

func (l *core) error(err error) error { return &Error{Lock: l.name, Err: err} }

func (l *core) script(name string) *script { return l.c.scripts[name] }

// validity is how long after sending its request a holder may rely on a lease.
func (l *core) validity(lease time.Duration) time.Duration {
	return l.c.cfg.validity(lease) - l.margin
}

// line is where a stay waits in this client.
func (l *core) line(stay string) lineKey {
	key := lineKey{lock: l.id, side: l.side}
	if l.placed {
		key.stay = stay
	}
	return key
}

const (
	// tombstoneTTL is for how long after the end of a stay its late copies are
	// stopped. A copy that is under way for longer has outlived every time-out
	// of client and server.
	tombstoneTTL = time.Minute

	// giveUpGrace is how long a caller whose wait is over stays to see its
	// acquire undone. Redis answers within it unless something is wrong.
	giveUpGrace = 100 * time.Millisecond
)

// retryAfter is when a renewal without an answer is repeated.
func (l *core) retryAfter() time.Duration {
	return min(l.c.cfg.commandTimeout, l.c.cfg.watchdogLease/10)
}

// attempt is one Lock or TryLock call that may begin a stay.
type attempt struct {
	core    *core
	chain   *chain // of the caller's context
	owned   *owned // by the owner in it, if there is one
	opts    acquireConfig
	stay    string
	number  int64 // of the stay
	under   *hold // the caller's hold of the other side, which lets it in here
	tries   int
	splits  int // looks in a row at which nobody had a quorum
	reentry bool
	unsure  bool      // a copy of the acquire may be under way
	granted bool      // Redis has, or may have, granted the lock, and no lease was made of it yet
	stands  bool      // it may stand among the waiters in Redis
	leads   bool      // it waits as the head of its line
	failing time.Time // when the first look began since which Redis gives no answer; zero: it does
	seen    sight
	place   *waiter // where it stands in line, if it is the head; others see what it sees

	// Where waiters are admitted in rounds: the one that it has waited since, and
	// the latest that it was refused in itself. It goes first in any other round
	// than the one that it has waited since.
	round, refused int64
}

// noRound is the round of an attempt that was not refused yet.
const noRound = math.MaxInt64

// waitsSince notes the round that the attempt has waited since.
func (a *attempt) waitsSince(round int64) {
	if a.round == noRound {
		a.round = round
	}
}

// lock is Lock and TryLock of every type.
func (l *core) lock(ctx context.Context, wait bool, opts []AcquireOption) (lease *Lease, err error) {
	if err := l.check(ctx); err != nil {
		return nil, err
	}
	c := l.c
	a := &attempt{core: l, round: noRound, refused: noRound}
	if a.opts, err = l.options(opts, wait); err != nil {
		return nil, l.error(err)
	}
	if !c.begin() {
		return nil, l.error(ErrClosed)
	}
	defer c.end()

	start := c.clock.Now()
	ctx = c.cfg.observer.AcquireStart(ctx, l.name)
	lease, err = l.acquire(ctx, a, wait)
	e := AcquireEvent{Lock: l.name, Wait: c.clock.Now().Sub(start), Attempts: a.tries, Reentry: a.reentry, Err: err}
	if lease != nil {
		e.Owner, e.Token = lease.Owner(), lease.Token()
	}
	c.cfg.observer.AcquireEnd(ctx, e)
	return lease, err
}

// options are the options of an acquire, if the lock can have them.
func (l *core) options(opts []AcquireOption, wait bool) (a acquireConfig, err error) {
	if a, err = l.c.cfg.acquireOptions(opts, wait); err != nil {
		return a, err
	}
	if l.longest > 0 && a.lease > l.longest {
		return a, invalid("WithLease(%v): longer than the longest lease of the lock, %v", a.lease, l.longest)
	}
	if l.margin > 0 && l.validity(a.lease) <= 0 {
		return a, invalid("WithLease(%v): nothing of it is left after the clocks' uncertainty", a.lease)
	}
	if a.hasPriority && !l.prioritized {
		return a, invalid("WithPriority is for a PriorityLock")
	}
	return a, nil
}

func (l *core) acquire(caller context.Context, a *attempt, wait bool) (*Lease, error) {
	c := l.c
	if caller.Err() != nil {
		return nil, l.error(ended(caller))
	}
	// One deadline bounds everything: the turn, the commands, the waiting.
	ctx := caller
	if a.opts.hasWait && a.opts.wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, a.opts.wait)
		defer cancel()
	}
	wait = wait && !(a.opts.hasWait && a.opts.wait == 0)

	take := (*turn).take
	if !wait {
		take = (*turn).takeUnlessEntering
	}
	a.chain = chainFrom(ctx)
	for {
		h := a.chain.find(l, l.side)
		if h == nil {
			break
		}
		if err := take(h.turn, ctx, c.closing); err != nil {
			return nil, a.error(a.interrupted(caller, err))
		}
		lease, err := l.enterAgain(ctx, caller, a, h)
		h.turn.give()
		if lease != nil || err != nil {
			return lease, err
		}
		// All its leases were unlocked meanwhile: it is not found again.
	}
	if own := a.chain.own(); own != nil {
		a.owned = own.at(l)
		defer a.owned.leave()
		turn := a.owned.turn
		if err := take(turn, ctx, c.closing); err != nil {
			return nil, a.error(a.interrupted(caller, err))
		}
		defer turn.give()
		if h := a.owned.held(l.side); h != nil {
			if lease, err := l.enterAgain(ctx, caller, a, h); lease != nil || err != nil {
				return lease, err
			}
			a.owned.clear(h) // all its leases are unlocked: a new stay begins
		}
		turn.setEntering(true)
		defer turn.setEntering(false)
	}
	a.stay, a.number = l.newStay()
	if err := a.lean(); err != nil {
		return nil, err
	}
	lease, err := a.run(ctx, wait)
	if err == nil {
		return lease, nil
	}
	answered := a.giveUp()
	a.seen.settle(c.clock.Now(), answered)
	return nil, a.error(a.interrupted(caller, err))
}

// enterAgain adds a lease to a hold whose turn the caller has. It returns nothing if
// all its leases are unlocked.
func (l *core) enterAgain(ctx, caller context.Context, a *attempt, h *hold) (*Lease, error) {
	c := l.c
	h.lock()
	h.checkLocked(c.clock.Now())
	n, state, cause := len(h.leases)+1, h.state, h.cause
	h.unlock()
	a.reentry = true
	switch {
	case n == 1:
		a.reentry = false
		return nil, nil
	case state != held:
		// Never a fresh hold here: the outer section would go on unaware that
		// it was alone for a while.
		return nil, h.error(cause)
	case l.opts.nonReentrant:
		return nil, h.error(ErrReentrant)
	}

	a.tries++
	sent := h.ask(a.opts.lease)
	a.looks()
	// Through the lock by which it was entered: another one of the same name may
	// not know all that is to be known of it.
	r := h.core.reenter(h.stay, a.opts.lease, n)
	if a.opts.hasLease {
		l.acked(r)
	}
	ans := c.call(ctx, c.cfg.commandTimeout+r.within, r)
	reply, err := ans.pair()
	if ans.err != nil {
		err = ans.err
	}
	h.lock()
	h.checkLocked(c.clock.Now()) // first: a lease that ran out meanwhile was not removed
	if err == nil && reply[0] == -2 {
		h.loseLocked(c.clock.Now(), absence(-reply[1]))
	}
	if err == nil && h.state != held {
		err = h.cause
	}
	if err == nil && ans.acks < r.acks {
		ans.err = because(ErrUnreachable, errAcks(r, ans))
		err = ans.err
	}
	if err == nil {
		lease := h.lease(sent, !a.opts.hasLease)
		h.addLocked(lease)
		renewAt := h.renewAt
		if r.do != nil || r.acks == c.cfg.acks { // else the replicas may not know
			h.confirmLocked(sent, a.opts.lease)
		}
		switch {
		case lease.renewed:
			h.renewed++
		case h.renewed > 0 && a.opts.lease < c.cfg.watchdogLease:
			h.renewAt = renewAt // a short fixed lease does not put off the next renewal
		}
		c.watchdog.move(&h.entry, h.nextLocked())
		h.unlock()
		return lease, nil
	}
	h.unlock()
	if errors.Is(err, ErrUnlocked) {
		// Its last lease was unlocked meanwhile, by one that could not wait for
		// the turn any longer.
		a.reentry = false
		return nil, nil
	}
	if ans.err != nil {
		// Perhaps counted in Redis, but not here: the next operation sets the
		// count right.
		a.see(r, ans, reply[0])
		a.seen.settle(c.clock.Now(), false)
		refused := a.error(a.interrupted(caller, ans.err))
		refused.Owner = h.stay
		return nil, refused
	}
	return nil, h.error(err)
}

// lean looks at what the caller holds of the other side. A writer may read: the
// new hold then stands under the same id. A reader that wants to write would
// wait for itself.
func (a *attempt) lean() error {
	l := a.core
	h := a.chain.held(l, l.side.other())
	if h == nil {
		return nil
	}
	h.lock()
	defer h.unlock()
	h.checkLocked(l.c.clock.Now())
	switch {
	case len(h.leases) == 0:
		return nil // all unlocked
	case h.state != held:
		return h.error(h.cause) // as with a re-entry: never a fresh hold here
	case l.side == exclusive:
		return h.error(ErrUpgrade)
	}
	a.under = h
	if !h.lent {
		// Once only: late copies of the release of one reading could end the
		// next, if it had the same id.
		h.lent = true
		a.stay = h.stay
	}
	return nil
}

// fall deals with the news that the hold is gone under which the caller was to
// enter. The attempt goes on as that of a new owner if the hold was unlocked
// meanwhile.
func (a *attempt) fall(others int64) error {
	h := a.under
	if h == nil {
		return fmt.Errorf("unexpected reply from Redis: {-2, %d}", others)
	}
	h.lock()
	defer h.unlock()
	now := h.core.c.clock.Now()
	h.checkLocked(now)
	h.loseLocked(now, absence(-others))
	if errors.Is(h.cause, ErrUnlocked) {
		a.under = nil
		a.stay, a.number = h.core.c.newStay()
		return nil
	}
	return h.cause
}

// line is where the attempt waits in this client. One that is let in by its
// caller's hold of the other side does not stand behind others: they may wait for
// that very hold to end.
func (a *attempt) line() lineKey {
	key := a.core.line(a.stay)
	if a.under != nil {
		key.stay = a.stay
	}
	return key
}

// subscribe begins to listen to what wakes waiters. There may be nothing.
func (l *core) subscribe(stay string, notify func()) (end func()) {
	if l.listen != nil {
		return l.listen(stay, notify)
	}
	// Before it is known how releases are announced, a subscription would be to
	// the wrong kind of channel, and stay so.
	channel := l.channel(stay)
	if _, known := l.c.publishMode(); channel == "" || !known {
		return nil
	}
	return l.c.hub.subscribe(channel, notify).close
}

// run makes the stay's first entry.
func (a *attempt) run(ctx context.Context, wait bool) (*Lease, error) {
	c, l := a.core.c, a.core
	var rest time.Duration
	// Those who already wait have the first right. With nobody in line, look.
	if !wait || c.queues.waiting(a.line()) == 0 {
		var lease *Lease
		var err error
		a.leads = wait // as far as is known
		began := c.clock.Now()
		lease, rest, err = a.try(ctx, wait)
		if lease != nil {
			return lease, nil
		}
		switch {
		case err == nil && !wait:
			return nil, ErrNotAcquired // see attempt.error
		case err != nil && (!wait || !worthRepeating(err)):
			return nil, err
		case err != nil:
			a.failing = began
		}
	}
	c.cfg.observer.Contended(l.name)
	return a.wait(ctx, rest)
}

// try looks once, and takes the lock if it is free. It returns a lease, or for
// how long the lock is held by another (-1: for ever), or an error.
func (a *attempt) try(ctx context.Context, wait bool) (lease *Lease, rest time.Duration, err error) {
	c, l := a.core.c, a.core
	a.tries++
	a.looks()
	if err := l.ready(ctx); err != nil {
		a.see(&request{}, answer{err: err}, 0)
		return nil, 0, err
	}
	sent := c.clock.Now()
	r := c.served(l.acked(l.enter(a, wait)))
	a.stands = a.stands || l.standing && wait && (l.placed || a.leads)
	ans := c.call(ctx, c.cfg.commandTimeout+r.within, r)
	a.unsure = a.unsure || ans.unsure
	reply, err := ans.pair()
	a.see(r, ans, reply[0])
	switch {
	case ans.err != nil:
		// A script that failed half-way (a command that the ACL forbids) may
		// have left a hold without a TTL.
		var reply redis.Error
		a.granted = a.granted || errors.As(ans.err, &reply) && !neverRan(ans.err)
		return nil, 0, ans.err
	case err != nil:
		return nil, 0, err
	case reply[0] == 0:
		if round, ok := ans.round(); ok {
			a.refused = round
			a.waitsSince(round)
		}
		// A foreign TTL may be longer than a Duration.
		return nil, time.Duration(min(reply[1], (365*24*time.Hour).Milliseconds())) * time.Millisecond, nil
	case reply[0] == -3:
		rest = time.Duration(reply[1]) * time.Millisecond
		if !wait {
			return nil, 0, because(ErrNotAcquired, quarantined{rest})
		}
		return nil, rest, nil
	case reply[0] == -2:
		if err := a.fall(reply[1]); err != nil {
			return nil, 0, err
		}
		return a.try(ctx, wait)
	case reply[0] == -4:
		return nil, 0, because(ErrForeignKey, errOtherType)
	case reply[0] != 1:
		return nil, 0, fmt.Errorf("unexpected reply from Redis: the stay has ended (%d)", reply[0])
	}

	lease, err = a.accept(sent, r, ans, reply[1])
	return lease, 0, err
}

// accept makes a lease of a grant. From here the grant is either handed out or
// given back.
func (a *attempt) accept(sent time.Time, r *request, ans answer, token int64) (*Lease, error) {
	c, l := a.core.c, a.core
	a.granted = true
	if r.acks > ans.acks {
		return nil, because(ErrNotAcquired, errAcks(r, ans))
	}
	c.gate("granted")
	if !c.clock.Now().Before(sent.Add(l.validity(a.opts.lease))) {
		return nil, because(ErrNotAcquired, errShortLease)
	}
	if c.isClosing() {
		return nil, ErrClosed
	}
	h := &hold{core: l, owned: a.owned, stay: a.stay, number: a.number, token: token, since: sent, unsure: a.unsure}
	if a.owned != nil {
		h.turn = a.owned.turn
	} else {
		h.turn = newTurn()
	}
	a.granted = false
	return h.begin(sent, a.opts), nil
}

// wait stands in line and, as its head, looks whenever the lock may be free:
// after a message or a local release, when the holder's lease is over, after
// the subscription was confirmed or rebuilt, and at the longest poll. rest is
// for how long the lock is held as far as is known; 0 means look at once.
func (a *attempt) wait(ctx context.Context, rest time.Duration) (lease *Lease, err error) {
	c, l := a.core.c, a.core
	w, head := c.queues.join(a.line(), c.clock.Now())
	a.leads = false
	if head {
		a.lead(w)
	}
	defer func() {
		if a.place == nil {
			a.seen = c.queues.seen(w, a.seen)
		}
		var got *hold
		if lease != nil {
			got = lease.of.(*hold)
		}
		c.queues.leave(w, got, a.refused)
	}()
	timer := c.clock.NewTimer(farAway)
	defer timer.Stop()
	asleep := c.work()
	defer func() { asleep() }()
	sleep := func(wake <-chan struct{}) error {
		asleep()
		defer func() { asleep = c.work() }()
		if err := ctx.Err(); err != nil {
			return err // whatever else has happened
		}
		select {
		case <-wake:
		case <-timer.C():
		case <-ctx.Done():
			return ctx.Err()
		case <-c.closing:
			return ErrClosed
		}
		if l.side == shared {
			c.gateOf("woken", a.number) // many may be, at once
		} else {
			c.gate("woken")
		}
		return nil
	}

	for !head {
		if err := sleep(w.wake); err != nil {
			return nil, err
		}
		if err := ctx.Err(); err != nil {
			return nil, err // a thousand that are cancelled at once need not look
		}
		n := c.queues.turn(w)
		if n.admitted {
			a.waitsSince(n.round)
		}
		switch {
		case n.err != nil:
			return nil, n.err // the head has found out that Redis gives no answer
		case n.head:
			head, rest = true, 0
			a.lead(w)
			if n.behind != nil && n.behind.alive() {
				rest = n.behind.restOfLease()
			}
		case n.admitted:
			if lease, _, err = a.try(ctx, true); lease != nil || err != nil && !worthRepeating(err) {
				return lease, err
			}
		}
	}

	for failures, turn := 0, 0; ; turn++ {
		if rest == 0 || turn > 0 {
			began := c.clock.Now()
			lease, rest, err = a.try(ctx, true)
			switch {
			case lease != nil:
				return lease, nil
			case err == nil:
				failures, a.failing = 0, time.Time{}
			case !worthRepeating(err):
				return nil, err
			default:
				if a.failing.IsZero() {
					a.failing = began
				}
				if c.clock.Now().Sub(a.failing) >= c.cfg.watchdogLease {
					c.queues.fail(w, a.failing, err)
					return nil, err
				}
				rest = min(50*time.Millisecond<<min(failures, 5), time.Second)
				failures++
			}
		}
		c.queues.subscribe(w, func(notify func()) (end func()) { return l.subscribe(a.stay, notify) })
		pause := c.cfg.longestPoll
		if l.standing {
			// Never later than a third. Those who came together do not look together.
			pause = min(pause, c.cfg.waiterLease/3-jitter(c.seed, a.number, turn, c.cfg.waiterLease/12))
		}
		if l.backoff != nil {
			pause = min(pause, l.backoff(a.number, turn))
		}
		if rest >= 0 {
			// Redis drops a key in the millisecond after its last one. The
			// jitter keeps the heads of many processes apart.
			pause = min(pause, rest+time.Millisecond+jitter(c.seed, a.number, turn, 2*time.Millisecond))
		}
		timer.Reset(pause)
		if err := sleep(w.wake); err != nil {
			return nil, err
		}
		if l.hesitate > 0 {
			timer.Reset(jitter(c.seed, a.number, turn, l.hesitate))
			if err := sleep(nil); err != nil {
				return nil, err
			}
		}
	}
}

var errOtherType = errors.New("another type of lock holds the name, and the two do not exclude each other")

// worthRepeating reports whether Lock goes on after err: Redis may come back,
// and does within a failover. It bears that for as long as a watchdog lease.
func worthRepeating(err error) bool {
	return errors.Is(err, ErrUnreachable) || errors.Is(err, ErrNoQuorum) || errors.Is(err, errShortLease)
}

// giveUp undoes what the attempt may have left in Redis, now or when a copy of
// its acquire arrives late. The caller waits for it, but not for long: the
// watchdog goes on alone.
//
// It reports whether Redis has answered.
func (a *attempt) giveUp() (answered bool) {
	if !a.unsure && !a.granted && !a.stands {
		return false
	}
	c, l := a.core.c, a.core
	now := c.clock.Now()
	u := c.cleanUp(l.abandon(a.stay, a.unsure || a.granted), now, now.Add(a.opts.lease+tombstoneTTL))
	grace := time.NewTimer(giveUpGrace)
	defer grace.Stop()
	select {
	case <-u.done:
		c.queues.wake(l.id)
		return true
	case <-grace.C:
		return false
	}
}
