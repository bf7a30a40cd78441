package rlock

import (
	"context"
	"errors"
	"time"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/watch"
)

// Election chooses one leader among candidates in many processes, in order of arrival. The leadership is a
// [Lease], whose token is higher than those before: check it, as a leader that was stopped may act on a
// lease that is over. When a leader resigns, the next candidate leads immediately; when it dies, at the end
// of its lease. ForceUnlock deposes it. Other methods: [Inspection]. Details:
// https://go-rlock.github.io/rlock/latest/synchronizers/#election
type Election struct{ inspected }

// Leader is the leader of an election; the zero Leader means that there is none.
type Leader struct {
	Value   string  // value that the leader proclaims
	HoldID  string  // Lease.HoldID
	Token   int64   // Lease.Token
	Process Process // process of the leader
}

// NewElection returns an election of one leader.
func (c *Client) NewElection(name string, opts ...HoldOption) *Election {
	cfg, err := lockOptions(lockConfig{}, opts, HoldOption.optionOfAnyHold)
	cfg.nonReentrant = true
	l, names := newCore(c, protocol.ElectionFamily, name, cfg, err)
	l.proto = protocol.NewElection(&l.c.site, names)
	return &Election{newInspected(l)}
}

// Campaign waits until it leads, with this value, until Unlock resigns. Options and errors are as for
// [Locker]; WithWait(0) never waits in line.
func (e *Election) Campaign(ctx context.Context, value string, opts ...AcquireOption) (*Lease, error) {
	if err := coreOf(e).check(ctx, checkValue(value)); err != nil {
		return nil, err
	}
	all := make([]AcquireOption, 0, len(opts)+1)
	all = append(append(all, opts...), valueOption(value))
	lease, err := lock(ctx, coreOf(e), true, all)
	if err == nil {
		e.reportLeadership(lease)
	}
	return lease, err
}

// reportLeadership reports the beginning and the end of a leadership to the Observer.
func (e *Election) reportLeadership(lease *Lease) {
	events := coreOf(e).c.events
	if !observes[LeadershipObserver](events) {
		return
	}
	h := lease.hold
	ctx, event := h.observed.ctx, LeadershipEvent{Event: h.event(lease.entry), Leads: true}
	events.Always(func() { events.leadership(ctx, event) })
	lease.onEnd(func(cause error) {
		ends := event
		ends.Leads, ends.Cause = false, cause
		events.Always(func() { events.leadership(ctx, ends) })
	})
}

func checkValue(value string) error {
	if len(value) > MaxValueLength {
		return invalid("the value is %d bytes long, longer than %d", len(value), MaxValueLength)
	}
	return nil
}

// Proclaim changes the value of the leader that has the lease; the latest call counts. Errors are those
// of [Lease.Extend]; another's lease, or a value longer than [MaxValueLength], is refused with
// ErrInvalidArgument. After ErrUnreachable or ctx.Err() the value may change all the same, or later.
func (e *Election) Proclaim(ctx context.Context, lease *Lease, value string) error {
	if err := coreOf(e).check(ctx, checkValue(value)); err != nil {
		return err
	}
	l := coreOf(e)
	if lease.none() {
		return l.error(ErrNotHeld)
	}
	h := lease.hold
	if h == nil || h.core.c != l.c || h.core.id() != l.id() {
		return l.error(invalid("the lease is not of this election"))
	}
	if !l.c.beginCall() {
		return h.error(ErrClosed)
	}
	defer l.c.endCall()
	if err := lease.Err(); err != nil {
		return err
	}
	began := l.c.env.Clock.Now()
	if err := l.proto.Ready(ctx); err != nil {
		return h.error(l.cutShort(ctx, err, began))
	}
	// The hold belongs to this client, so Redis compares only numbers of this client.
	number := l.c.lastHold.Add(1)
	r := l.proto.(*protocol.Election).Proclaim(h.id(), value, number).Do(l.c.events.withSubject(ctx, l), l.c.cfg.commandTimeout)
	switch {
	case r.Err != nil:
		return h.error(l.cutShort(ctx, r.Err, began))
	case r.Outcome != protocol.Done:
		return h.error(h.isGone(r.Outcome))
	}
	return nil
}

// Leader returns the leader. The error matches ErrNoLeader if there is none.
func (e *Election) Leader(ctx context.Context) (Leader, error) {
	s, err := coreOf(e).inspect(ctx)
	leader := leaderOf(&s)
	if err == nil && leader == (Leader{}) {
		err = coreOf(e).error(ErrNoLeader)
	}
	return leader, err
}

// Candidates returns the waiting candidates, in order: at most a hundred ids as in Leader.HoldID. A dead
// one stays for a waiter lease. Errors: see [Inspector].
func (e *Election) Candidates(ctx context.Context) (holdIDs []string, err error) {
	l := coreOf(e)
	r, err := ask(ctx, l, func() protocol.Request[[]string] { return l.proto.(*protocol.Election).Candidates() })
	return r.Outcome, err
}

func leaderOf(s *watchedState) Leader {
	if !s.Locked() {
		return Leader{}
	}
	first := s.Holders[0]
	return Leader{Value: s.value, HoldID: first.HoldID, Token: s.Token, Process: first.Process}
}

// Observe returns a channel that gets the current leader, and each new one or new value; the zero Leader if
// there is none. It has only the latest, and no new one while Redis cannot be reached: then, and up to a poll
// after that ([WithLongestPoll]), it may show a leader that has lost the lease. It is closed when ctx or
// the client ends. The error matches ErrInvalidArgument or ErrClosed.
func (e *Election) Observe(ctx context.Context) (<-chan Leader, error) {
	l := coreOf(e)
	if err := l.beginCall(ctx); err != nil {
		return nil, err
	}
	defer l.c.endCall()
	leaders := make(watch.Latest[Leader], 1)
	l.c.pollers.Show(ctx, l.watched(), &leadersTo{Latest: leaders})
	return leaders, nil
}

// leadersTo sends leaders to the channel of an Observe.
type leadersTo struct {
	watch.Latest[Leader]
	latest    Leader
	hasLatest bool
}

func (to *leadersTo) Update(s *watchedState) {
	leader := leaderOf(s)
	known := leader
	known.Process = to.latest.Process // a change of only the Process is not sent
	if !to.hasLatest || known != to.latest {
		to.latest, to.hasLatest = leader, true
		to.Send(leader)
	}
}

// Run campaigns, and calls fn with the context of the leadership. When fn returns or panics while it
// leads, Run resigns, and returns the error of fn, as [Do] does. After a loss it drops that and
// campaigns again, as it does while Redis is away or refuses it for now. Otherwise it returns the error
// of Campaign: ctx.Err(), ErrClosed, ErrReentrant, ErrInvalidArgument or ErrRefused; and ErrNotRun if fn
// was never called.
func (e *Election) Run(ctx context.Context, value string, fn func(ctx context.Context) error) error {
	if err := coreOf(e).check(ctx, checkValue(value)); err != nil {
		return notRun{err}
	}
	if fn == nil {
		return notRun{coreOf(e).error(invalid("Run needs a function"))}
	}
	for ran := false; ; {
		lease, err := e.Campaign(ctx, value)
		switch {
		case err == nil:
			ran = true
			if lost, err := lead(ctx, lease, fn); !lost {
				return err
			}
		case ctx.Err() != nil || !worthRepeating(err) && !errors.Is(err, ErrNotAcquired):
			if !ran {
				err = notRun{err}
			}
			return err
		default:
			s := clock.NewSleeper(&coreOf(e).c.env)
			s.Sleep(time.Second, nil, nil, ctx.Done(), coreOf(e).c.closing)
			s.Stop()
		}
	}
}

// lead calls fn and resigns. It reports whether the leadership was lost before.
func lead(ctx context.Context, lease *Lease, fn func(ctx context.Context) error) (lost bool, err error) {
	cut, err, unlock := lease.under(ctx, fn)
	if errors.Is(unlock, ErrLeaseLost) {
		return true, nil
	}
	return false, cut.result(err, unlock)
}
