package rlock

import (
	"context"
	"errors"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
)

// Election chooses one leader among the candidates of any number of processes. Campaign
// waits in order of arrival, and returns the leadership as a [Lease]: it is renewed until
// Unlock resigns, or until it is lost, and its token is higher than that of every leader
// before. As with locks, no two leaders both trust their leases, but a leader that was
// stopped may act on one that is over: have what it writes to check Lease.Token or its
// [Lease.Context]. In the function of Run, [LeaseFrom] has the lease.
//
// The leader proclaims a value, such as its address. It is there from the moment in which
// it leads, changes with [Election.Proclaim], and goes with the leadership: nobody ever
// sees the value of one leader with the token of another.
//
// When a leader resigns, the next candidate leads at once; when it dies, at the end of its
// lease. A candidate keeps its place by reporting each third of the waiter lease
// ([WithWaiterLease]); one that died delays those behind it by at most a waiter lease. A
// candidate that leads already, in the sense that its context descends from that lease,
// gets ErrReentrant. [Inspector] methods see an election as a lock that its leader holds:
// ForceUnlock deposes the leader.
//
// Redisson has no such type. Its keys are rlock's own, and a lock of the same name has
// nothing to do with it.
type Election struct{ inspected }

// Leader is who leads an election; the zero Leader is nobody.
type Leader struct {
	Value  string // what it proclaims
	HoldID string // Lease.HoldID
	Token  int64  // Lease.Token
}

// NewElection returns the election of a name: see [Client.NewLock].
func (c *Client) NewElection(name string, opts ...ElectionOption) *Election {
	cfg, err := lockOptions(opts, ElectionOption.election)
	cfg.nonReentrant = true
	l, names := newCore(c, electionFamily, name, cfg, err)
	l.asks = protocol.NewElection(&l.c.site, names)
	return &Election{inspected{l}}
}

func (e *Election) core() *core {
	if e == nil {
		return nil
	}
	return e.inspected.core
}

// Campaign waits until it leads, with this value from the beginning. Options and errors are
// those of [Locker]; WithWait(0) leads only if nobody does or goes first, and leaves no
// place in the queue.
func (e *Election) Campaign(ctx context.Context, value string, opts ...AcquireOption) (*Lease, error) {
	if err := e.checkValue(ctx, value); err != nil {
		return nil, err
	}
	all := make([]AcquireOption, 0, len(opts)+1)
	all = append(append(all, opts...), valueOption(value))
	lease, err := lock(ctx, e.core(), true, all)
	if err == nil {
		e.tell(lease)
	}
	return lease, err
}

// tell tells the Observer of a leadership, and of its end.
func (e *Election) tell(lease *Lease) {
	events := e.core().c.events
	if events.leaderships == nil {
		return
	}
	h := lease.of.(*hold)
	ctx, begins := h.observed().ctx, LeadershipEvent{Event: h.event(lease.entry), Leads: true}
	events.surely(func() { events.leadership(ctx, begins) })
	lease.onEnd(func(cause error) {
		ends := begins
		ends.Leads, ends.Cause = false, cause
		events.surely(func() { events.leadership(ctx, ends) })
	})
}

func (e *Election) checkValue(ctx context.Context, value string) error {
	if err := e.core().check(ctx); err != nil {
		return err
	}
	if len(value) > MaxValueLength {
		return e.core().error(invalid("the value is %d bytes long, longer than %d", len(value), MaxValueLength))
	}
	return nil
}

// Proclaim changes the value of the leader that has the lease. Of several calls for a lease
// the latest counts, whatever copies of their requests arrive when. The error matches
//   - ErrLeaseLost, and the cause, if the lease is lost, maybe as Redis says now;
//   - ErrUnlocked, ErrClosed or ErrNotHeld, if the lease has ended or is none;
//   - ErrInvalidArgument, if the lease is not of this election and client, or the value is
//     longer than MaxValueLength;
//   - ErrUnreachable, if Redis did not answer within the command time-out, or ctx.Err():
//     the value may change all the same, also a little later;
//   - or ErrRefused, if Redis replied with an error.
func (e *Election) Proclaim(ctx context.Context, lease *Lease, value string) error {
	if err := e.checkValue(ctx, value); err != nil {
		return err
	}
	if lease.none() {
		return e.core().error(ErrNotHeld)
	}
	l := e.core()
	h, ok := lease.of.(*hold)
	if !ok || h.core.c != l.c || h.core.id() != l.id() {
		return l.error(invalid("the lease is not of this election"))
	}
	if !l.c.begin() {
		return h.error(ErrClosed)
	}
	defer l.c.end()
	if err := lease.Err(); err != nil {
		return err
	}
	began := l.c.clock.Now()
	if err := l.asks.Ready(ctx); err != nil {
		return h.error(cutShort(ctx, err, nil, false, began, l.c.clock.Now()))
	}
	// The hold is of this client, and so are all numbers that are ever compared.
	number := l.c.lastHold.Add(1)
	r := l.asks.(*protocol.Election).Proclaim(h.id(), value, number).Do(l.c.events.about(ctx, l), l.c.cfg.commandTimeout)
	switch {
	case r.Err != nil:
		return h.error(cutShort(ctx, r.Err, r.Last, false, began, l.c.clock.Now()))
	case r.Outcome != protocol.Done:
		return h.error(h.isGone(r.Outcome))
	}
	return nil
}

// Leader returns who leads now. The error matches ErrNoLeader if nobody does; otherwise
// bounds and errors are those of an [Inspector].
func (e *Election) Leader(ctx context.Context) (Leader, error) {
	l := e.core()
	if err := l.check(ctx); err != nil {
		return Leader{}, err
	}
	r, err := ask(ctx, l, l.asks.Inspect())
	if err != nil {
		return Leader{}, err
	}
	leader := leaderOf(&sighting{l.stateOf(&r.Outcome), r.Outcome.Value})
	if leader == (Leader{}) {
		return leader, l.error(ErrNoLeader)
	}
	return leader, nil
}

// Candidates returns the owners that wait to lead, in the order in which they would, the first
// hundred at the most: what Leader.HoldID would be of each. The client of one is what precedes the
// colon ([Client.ID]). The leader is not among them; one that has died is, for a waiter lease at the
// most. Bounds and errors are those of an [Inspector].
func (e *Election) Candidates(ctx context.Context) (owners []string, err error) {
	l := e.core()
	if err := l.check(ctx); err != nil {
		return nil, err
	}
	r, err := ask(ctx, l, l.asks.(*protocol.Election).Candidates())
	return r.Outcome, err
}

func leaderOf(s *sighting) Leader {
	if !s.Locked() {
		return Leader{}
	}
	return Leader{Value: s.value, HoldID: s.Holders[0].HoldID, Token: s.Token}
}

// Observe returns a channel on which the leader is sent, at once and after each change of
// the leader or its value; the zero Leader if nobody leads. The channel has the latest:
// what was not read in time is left out, and so are changes that come within some
// milliseconds of each other. A change is announced by a message; without one, as after a
// broken connection, it is seen at the longest poll or the end of the lease at the latest.
// While Redis cannot be reached nothing is sent. All Observe and Watch of a client and an
// election share one connection and one look.
//
// The channel is closed when ctx or the client ends. The error matches ErrInvalidArgument, or
// ErrClosed if the client has shut down; there is no channel then.
func (e *Election) Observe(ctx context.Context) (<-chan Leader, error) {
	l := e.core()
	if err := l.check(ctx); err != nil {
		return nil, err
	}
	if !l.c.begin() {
		return nil, l.error(ErrClosed)
	}
	defer l.c.end()
	leaders := make(latest[Leader], 1)
	l.show(ctx, &watch{tellee: &leadersTo{latest: leaders}})
	return leaders, nil
}

// leadersTo tells an Observe.
type leadersTo struct {
	latest[Leader]
	last Leader
	some bool
}

func (to *leadersTo) tell(s *sighting) {
	if leader := leaderOf(s); !to.some || leader != to.last {
		to.last, to.some = leader, true
		to.send(leader)
	}
}

// Run campaigns, and calls fn with the context of the leadership: it ends with ctx, and when
// the leadership is lost; [LeaseFrom] returns the lease, for its token and for Proclaim. When
// fn returns while it leads, Run resigns and returns the error of fn; ErrClosed instead of
// context.Canceled, if the client shuts down and ctx has not ended. If the leadership was lost
// before that, Run drops what fn returned and campaigns again. It does so too when Redis cannot
// be reached or refuses it for now, or too few replicas confirm.
//
// Run returns the error of Campaign if that fails for another reason: the end of ctx, which
// it matches, ErrClosed, ErrReentrant, ErrInvalidArgument, or ErrRefused. If Redis
// does not confirm that it resigned, the error matches ErrUnconfirmed too. Run resigns if
// fn panics.
func (e *Election) Run(ctx context.Context, value string, fn func(ctx context.Context) error) error {
	if err := e.checkValue(ctx, value); err != nil {
		return err
	}
	if fn == nil {
		return e.core().error(invalid("Run needs a function"))
	}
	for {
		lease, err := e.Campaign(ctx, value)
		switch {
		case err == nil:
			if again, err := lead(ctx, lease, fn); !again {
				return err
			}
		case ctx.Err() != nil || !worthRepeating(err) && !errors.Is(err, ErrNotAcquired):
			return err
		default:
			s := newSleeper(&e.core().c.env)
			s.sleep(time.Second, nil, nil, ctx.Done(), e.core().c.closing)
			s.stop()
		}
	}
}

// lead calls fn and resigns. It reports whether the leadership was lost before.
func lead(ctx context.Context, lease *Lease, fn func(ctx context.Context) error) (again bool, err error) {
	returned := false
	defer func() {
		if !returned { // a panic
			_ = lease.Unlock(ctx)
		}
	}()
	inside := lease.Context(ctx)
	err = fn(inside)
	returned = true
	cut := cutOffOf(ctx, inside)
	unlockErr := lease.Unlock(ctx)
	if errors.Is(unlockErr, ErrLeaseLost) {
		return true, nil
	}
	return false, cut.result(err, unlockErr)
}
