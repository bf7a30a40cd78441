package world

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/go-rlock/rlock"
)

// Scenario is a sequence of faults, and what is claimed of it.
type Scenario struct {
	Name  string // the link to it, after the #
	Title string
	Story string // what to watch
	play  func(ctx context.Context, d *director)
	Claim []Claim
}

// Claim is a sentence about a scenario, which its events have to bear out.
type Claim struct {
	Text  string
	holds func(e events) bool
}

// Verdict is whether a claim is true of what has happened.
type Verdict struct {
	Text string `json:"text"`
	True bool   `json:"true"`
}

// Find returns the scenario of a name.
func Find(name string) (Scenario, bool) {
	i := slices.IndexFunc(Scenarios, func(s Scenario) bool { return s.Name == name })
	if i < 0 {
		return Scenario{}, false
	}
	return Scenarios[i], true
}

// Play plays the scenario in a new world, and returns which claims are true of it. The error is the end of ctx, before
// the scenario was over.
func (s Scenario) Play(ctx context.Context, w *World) ([]Verdict, error) {
	d := &director{World: w}
	s.play(ctx, d)
	if d.err != nil {
		return nil, d.err
	}
	return s.Judge(w.Events()), nil
}

// Judge returns which claims are true of events.
func (s Scenario) Judge(happened []Event) (all []Verdict) {
	for _, c := range s.Claim {
		all = append(all, Verdict{c.Text, c.holds(happened)})
	}
	return all
}

// director does the steps of a scenario. After the first error it does nothing.
type director struct {
	*World
	next int // index of the first event that no step has waited for
	err  error
}

func (d *director) await(ctx context.Context, client string, kind Kind) {
	if d.err == nil {
		d.next, d.err = d.Await(ctx, d.next, func(e Event) bool { return e.Client == client && e.Kind == kind })
	}
}

func (d *director) show(ctx context.Context) {
	if d.err == nil {
		d.err = d.Show(ctx)
	}
}

func (d *director) do(step func()) {
	if d.err == nil {
		step()
	}
}

// events is what has happened in a scenario, in order.
type events []Event

// first returns the index of the first event of a kind; -1 without one.
func (e events) first(client string, kind Kind) int {
	return slices.IndexFunc(e, func(e Event) bool { return e.Client == client && e.Kind == kind })
}

func (e events) last(client string, kind Kind) int {
	for i, one := range slices.Backward(e) {
		if one.Client == client && one.Kind == kind {
			return i
		}
	}
	return -1
}

func (e events) count(kind Kind) (n int) {
	for _, one := range e {
		if one.Kind == kind {
			n++
		}
	}
	return n
}

// order reports whether the events at all these indexes exist, in this order.
func order(indexes ...int) bool { return indexes[0] >= 0 && slices.IsSorted(indexes) }

// between returns the time from one event to another, or -1 if one does not exist.
func (e events) between(from, to int) time.Duration {
	if from < 0 || to < 0 {
		return -1
	}
	return e[to].At - e[from].At
}

func (e events) lostBy(client string, causes ...error) bool {
	i := e.first(client, Lost)
	return i >= 0 && slices.ContainsFunc(causes, func(cause error) bool { return errors.Is(e[i].Cause, cause) })
}

// leased returns when the lease of a client began last: with its grant, or with its last renewal.
func (e events) leased(client string) int {
	return max(e.first(client, Held), e.last(client, Renewed))
}

// tokenGrew reports whether the second holder has a higher token than the first.
func (e events) tokenGrew(first, second string) bool {
	i, j := e.first(first, Held), e.first(second, Held)
	return order(i, j) && i != j && e[i].Token > 0 && e[j].Token > e[i].Token
}

// holdAndWait lets A work, and B wait for it, with the fence off.
func holdAndWait(ctx context.Context, d *director) {
	d.do(func() { d.SetFence(false); d.Client("A").Lock() })
	d.await(ctx, "A", Accepted)
	d.do(d.Client("B").Lock)
	d.await(ctx, "B", Waiting)
	d.await(ctx, "A", Renewed)
}

// Scenarios of the page.
var Scenarios = []Scenario{paused, fence, failover, cut, killed, reply}

// pause is longer than a lease.
const pause = Lease + 3*time.Second

func stopA(ctx context.Context, d *director) {
	d.do(func() { d.Client("A").Pause(pause) })
	d.await(ctx, "A", Paused)
	d.await(ctx, "B", Held)
	d.await(ctx, "A", Lost)
	d.await(ctx, "B", Accepted)
	d.await(ctx, "B", Accepted)
	d.do(d.Client("B").Unlock)
	d.await(ctx, "B", Released)
}

// slack is how late an event may be noticed on a slow phone; it is short next to a lease.
const slack = 500 * time.Millisecond

var grantedAfterLease = Claim{"B gets the lock when A's lease is over, and not before.", func(e events) bool {
	after := e.between(e.leased("A"), e.first("B", Held))
	return after >= Lease-slack && after <= Lease+2*slack
}}

var paused = Scenario{
	Name: "paused", Title: "The paused client",
	Story: "A works, and B waits. Then A's process is stopped between its last check and its write, for longer than its lease: a long garbage collection, a suspended machine. There is no fence.",
	play: func(ctx context.Context, d *director) {
		holdAndWait(ctx, d)
		stopA(ctx, d)
	},
	Claim: []Claim{
		grantedAfterLease,
		{"A learns of its loss when it continues: its lease ran out.", func(e events) bool {
			return order(e.first("B", Held), e.first("A", Resumed), e.first("A", Lost)) && e.lostBy("A", rlock.ErrExpired) &&
				e.between(e.first("A", Resumed), e.first("A", Lost)) <= slack
		}},
		{"A's late write takes effect all the same, and overwrites B's: no lock can stop it.", func(e events) bool {
			return order(e.first("A", Resumed), e.first("A", LostUpdate))
		}},
		{"At no time do two processes have a valid lease.", func(e events) bool { return e.count(TwoOwners) == 0 && e.count(Held) == 2 }},
	},
}

var fence = Scenario{
	Name: "fence", Title: "The fence refuses the stale write",
	Story: "A works, and B waits. Then A's process is stopped between its last check and its write, for longer than its lease. But the resource keeps the highest token that it has got, and refuses a lower one.",
	play: func(ctx context.Context, d *director) {
		d.do(func() { d.SetFence(true); d.Client("A").Lock() })
		d.await(ctx, "A", Accepted)
		d.do(d.Client("B").Lock)
		d.await(ctx, "B", Waiting)
		d.await(ctx, "A", Renewed)
		stopA(ctx, d)
	},
	Claim: []Claim{
		grantedAfterLease,
		{"B has a higher token than A.", func(e events) bool { return e.tokenGrew("A", "B") }},
		{"The resource refuses A's late write.", func(e events) bool { return order(e.first("A", Resumed), e.first("A", Refused)) }},
		{"No update is lost.", func(e events) bool { return e.count(LostUpdate) == 0 && e.count(Accepted) >= 3 }},
	},
}

var failover = Scenario{
	Name: "failover", Title: "Two owners after a failover",
	Story: "A works. Redis loses its data, as in a failover to a replica that had not got the lock yet, and B finds the lock free. There is no fence.",
	play: func(ctx context.Context, d *director) {
		d.do(func() { d.SetFence(false); d.Client("A").Lock() })
		d.await(ctx, "A", Accepted)
		d.await(ctx, "A", Renewed) // the next renewal is far away: A writes before it
		d.do(d.LoseData)
		d.do(d.Client("B").Lock)
		d.await(ctx, "B", Held)
		d.await(ctx, "A", Lost)
		d.await(ctx, "B", Accepted)
		d.await(ctx, "B", Accepted)
		d.do(d.Client("B").Unlock)
		d.await(ctx, "B", Released)
	},
	Claim: []Claim{
		{"Two processes believe that they hold the lock.", func(e events) bool {
			return order(e.first("", Flushed), e.first("B", Held), e.first("", TwoOwners), e.first("A", Lost))
		}},
		{"A learns of it with its next renewal, at the latest a third of a lease later.", func(e events) bool {
			after := e.between(e.first("", Flushed), e.first("A", Lost))
			return after >= 0 && after <= Lease/3+slack && e.lostBy("A", rlock.ErrTakenOver, rlock.ErrRemoved)
		}},
		{"Until then both write, and an update is lost.", func(e events) bool {
			return order(e.first("", TwoOwners), max(e.first("A", LostUpdate), e.first("B", LostUpdate)))
		}},
		{"B has a higher token than A, though Redis has forgotten A: a fence would have refused A.", func(e events) bool { return e.tokenGrew("A", "B") }},
	},
}

var cut = Scenario{
	Name: "cut", Title: "The cut network",
	Story: "A works, and B waits. Then A's network is cut. Nobody can reach A, so A has to find out alone.",
	play: func(ctx context.Context, d *director) {
		holdAndWait(ctx, d)
		d.do(d.Client("A").Cut)
		d.await(ctx, "A", Lost)
		d.await(ctx, "B", Held)
		d.await(ctx, "B", Accepted)
		d.do(d.Client("A").Heal)
		d.do(d.Client("B").Unlock)
		d.await(ctx, "B", Released)
	},
	Claim: []Claim{
		{"A is notified at the end of its lease that Redis could not be reached.", func(e events) bool {
			after := e.between(e.leased("A"), e.first("A", Lost))
			return e.lostBy("A", rlock.ErrUnreachable) && after >= Lease-slack && after <= Lease+slack
		}},
		{"That is before B gets the lock.", func(e events) bool { return order(e.first("A", Lost), e.first("B", Held)) }},
		{"A's program ends its work, and writes nothing after B has the lock.", func(e events) bool {
			return order(e.last("A", Accepted), e.first("B", Held)) && e.first("A", Stopped) >= 0
		}},
		{"No update is lost, and never do two processes have a valid lease.", func(e events) bool {
			return e.count(LostUpdate) == 0 && e.count(TwoOwners) == 0 && e.first("B", Accepted) >= 0
		}},
	},
}

var killed = Scenario{
	Name: "killed", Title: "The killed client",
	Story: "A works, and B waits. Then A is killed. It cannot release the lock any more.",
	play: func(ctx context.Context, d *director) {
		holdAndWait(ctx, d)
		d.do(d.Client("A").Kill)
		d.await(ctx, "B", Held)
		d.await(ctx, "B", Accepted)
		d.do(d.Client("B").Unlock)
		d.await(ctx, "B", Released)
	},
	Claim: []Claim{
		{"A has released nothing.", func(e events) bool { return e.first("A", Killed) >= 0 && e.first("A", Released) < 0 }},
		grantedAfterLease,
		{"No update is lost.", func(e events) bool { return e.count(LostUpdate) == 0 && e.first("B", Accepted) >= 0 }},
	},
}

var reply = Scenario{
	Name: "reply", Title: "A lost reply to an acquire",
	Story: "A acquires the lock. Redis grants it, but the reply is lost on the way, with its connection. A cannot know whether it has the lock, and asks again.",
	play: func(ctx context.Context, d *director) {
		d.do(func() { d.SetFence(false); d.Client("A").LoseReply(); d.Client("A").Lock() })
		d.await(ctx, "A", Held)
		d.show(ctx)
		d.do(d.Client("B").Lock)
		d.await(ctx, "B", Waiting)
		d.await(ctx, "A", Accepted)
		d.do(d.Client("A").Unlock)
		d.await(ctx, "A", Released)
		d.await(ctx, "B", Accepted)
		d.do(d.Client("B").Unlock)
		d.await(ctx, "B", Released)
		d.show(ctx)
	},
	Claim: []Claim{
		{"A sends the request again, and then has the lock.", func(e events) bool {
			return order(e.first("A", ReplyLost), e.first("A", Retried), e.first("A", Held))
		}},
		{"Redis has one hold, entered once, though it was granted before.", func(e events) bool {
			i := e.first("", Shown)
			return order(e.first("A", Held), i) && e[i].Holds == 1
		}},
		{"One release frees the lock: B gets it immediately.", func(e events) bool {
			after := e.between(e.first("A", Released), e.first("B", Held))
			return order(e.first("A", Accepted), min(e.first("A", Released), e.first("B", Held))) && after <= slack
		}},
		{"In the end Redis has no hold.", func(e events) bool {
			i := e.last("", Shown)
			return order(e.first("B", Released), i) && e[i].Holds == 0
		}},
	},
}
