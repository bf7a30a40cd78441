package protocol

import (
	"context"
	"fmt"
	"time"

	"github.com/go-rlock/rlock/internal/wire"
)

// scriptRequest is a request to one server that runs a script.
type scriptRequest[T any] struct {
	on    *wire.Deployment
	r     wire.Request
	read  func(a wire.Answer) (T, error)
	site  *Site
	names *Names // names of the lock whose fencing clock is among the keys; nil if no clock is
}

// draw notes that the fencing clock of a lock is among the keys.
func (q *scriptRequest[T]) draw(n *Names) *scriptRequest[T] {
	q.names = n
	return q
}

// Do implements Request. If the fencing clock is at another key than the client used, the script has changed
// nothing, and the request is sent again with the right key.
func (q *scriptRequest[T]) Do(ctx context.Context, budget time.Duration) Result[T] {
	a := q.on.Do(ctx, budget, &q.r)
	if a.Err != nil && q.names != nil {
		wrong, err := q.site.wrongClock(ctx, q.names, &q.r, a.Err)
		switch {
		case err != nil:
			a.Err = err
		case wrong:
			unsure := a.Unsure
			a = q.on.Do(ctx, budget, q.r.Renamed(q.site.Clock.clockKey, q.site.clock(q.names)))
			a.Unsure = a.Unsure || unsure
		}
	}
	return q.result(a)
}

func (q *scriptRequest[T]) result(a wire.Answer) Result[T] { return result(q.on, &q.r, a, q.read) }

// result reads an answer. Only this function checks whether enough replicas have confirmed.
func result[T any](on *wire.Deployment, q *wire.Request, a wire.Answer, read func(wire.Answer) (T, error)) (r Result[T]) {
	r.Unsure, r.Receivers = a.Unsure, a.Receivers
	if r.Outcome, r.Err = read(a); r.Err == nil && q.Acked {
		if n, within := on.Acks(); a.Acks < n {
			r.TooFew = fmt.Errorf("%d of %d replicas confirmed within %v", a.Acks, n, within)
		}
	}
	return r
}

// task is a request about a hold to one server.
type task struct {
	on *wire.Deployment
	r  wire.Request
}

// Do implements Request.
func (t *task) Do(ctx context.Context, budget time.Duration) Result[Kept] {
	return t.result(t.on.Do(ctx, budget, &t.r))
}

func (t *task) result(a wire.Answer) Result[Kept] {
	r := result(t.on, &t.r, a, readKept)
	if r.Err != nil && overwritten(&t.r, r.Err) {
		r.Outcome, r.Err = Overwritten, nil
	}
	return r
}

// Name implements Task.
func (t *task) Name() string { return t.r.Name() }

// OfQuorum implements Task.
func (t *task) OfQuorum() bool { return false }

// Send implements Task.
func (t *task) Send(d Dispatch) {
	to := d.Recipient // not all of d
	d.Round.Add(&t.r, func(sent time.Time, a wire.Answer) { to.Done(sent, t.result(a)) })
}

// newEnterRequest makes the request of a script that may begin a hold; read reads the reply. If the client has a
// quarantine, a server in quarantine refuses the request. If it requires replicas, they confirm the hold.
func newEnterRequest[T any](s *Site, script string, keys []string, args []any, read func(wire.Answer) (T, error)) *scriptRequest[T] {
	if s.Quarantine > 0 {
		script += WhenServed
		keys = append(keys, s.Served)
		args = append(args, s.Quarantine.Milliseconds())
	}
	q := newRequest(s, script, keys, args, read)
	q.r.Acked = s.acks()
	return q
}

// newTask makes a request about a hold.
func (s *Site) newTask(script string, keys []string, args []any) *task {
	return &task{s.Wire, wire.Request{Script: s.Scripts[script], Keys: keys, Args: args}}
}

// newEndTask makes a request that ends a hold: a second copy finds the hold gone.
func (s *Site) newEndTask(script string, keys []string, args []any) *task {
	t := s.newTask(script, keys, args)
	t.r.OneEffect = true
	return t
}

// newReleaseTask makes a request that lowers the count of a hold to n.
func (s *Site) newReleaseTask(script string, n int, keys []string, args []any) *task {
	t := s.newTask(script, keys, args)
	t.r.OneEffect = n == 0
	return t
}

// acks reports whether replicas have to confirm each lease.
func (s *Site) acks() bool {
	n, _ := s.Wire.Acks()
	return n > 0
}

// grantsAtOnce reports whether every grant of the server is final: the client requires no confirmation by
// replicas and has no quarantine.
func (s *Site) grantsAtOnce() bool { return !s.acks() && s.Quarantine == 0 }

// newRenewTask makes a request that lengthens a lease.
func (s *Site) newRenewTask(script string, lease time.Duration, keys []string, args []any) *task {
	t := s.newTask(script, keys, args)
	t.r.Reported = lease > 0
	t.r.Acked = lease > 0 && s.acks()
	return t
}

// newReenterTask makes a request that enters a hold again.
func (s *Site) newReenterTask(script string, confirm bool, keys []string, args []any) *task {
	t := s.newTask(script, keys, args)
	t.r.Acked = confirm && s.acks()
	return t
}

// newForceRequest makes a request that ends all holds, or only the hold with the id in owner. Without an
// id a second copy could end a newer hold, so the request is not sent again.
func (s *Site) newForceRequest(script, owner string, keys []string, args []any) *scriptRequest[bool] {
	q := newRequest(s, script, keys, args, readBool)
	q.r.NoResend = owner == ""
	return q
}

// newRequest makes a request to run one script; read reads the reply.
func newRequest[T any](s *Site, script string, keys []string, args []any, read func(wire.Answer) (T, error)) *scriptRequest[T] {
	return &scriptRequest[T]{on: s.Wire, site: s, r: wire.Request{Script: s.Scripts[script], Keys: keys, Args: args}, read: read}
}

// how returns the command with which scripts publish. It is known when Ready has succeeded.
func (s *Site) how() any {
	switch command := s.Wire.PublishCommand(); command { // constants are not boxed anew
	case "publish":
		return "publish"
	case "spublish":
		return "spublish"
	default:
		return command
	}
}

// listen subscribes to a channel. It returns nil until the publish command is known: before that, the
// subscription could be to the wrong kind of channel, and would stay there.
func (s *Site) listen(channel string, notify func()) (end func()) {
	if !s.Wire.PublishKnown() {
		return nil
	}
	return s.Listen(channel, notify)
}

// identify subscribes to the channel of this client next to the channel of a lock's waiters: see Identified.
func (s *Site) identify(channel string) (end func()) {
	if !s.Wire.PublishKnown() {
		return nil
	}
	return s.ListenTo(channel+":"+s.Client, nil, func(string) {})
}

// listenFor is listen for messages that consist of a name.
func (s *Site) listenFor(channel, name string, notify func()) (end func()) {
	if !s.Wire.PublishKnown() {
		return nil
	}
	return s.ListenFor(channel, name, notify)
}

// tombstoneArg returns how long a hold that has ended needs its tombstone, in ms.
func tombstoneArg(lateCopies bool) any {
	if lateCopies {
		return tombstoneMillis
	}
	return 0
}

// millis returns a duration in ms, boxed. It caches the latest value, because most leases of a client are
// equally long.
func (s *Site) millis(d time.Duration) any {
	last := s.lastMillis.Load()
	if last == nil || last.duration != d {
		last = &boxedMillis{d, d.Milliseconds()}
		s.lastMillis.Store(last)
	}
	return last.ms
}

type boxedMillis struct {
	duration time.Duration
	ms       any
}

var tombstoneMillis any = TombstoneTTL.Milliseconds()

// servedKey is the name of Site.Served, without prefix.
const servedKey = "rlock:served"

// ServedKey is Site.Served for a prefix.
func ServedKey(prefix string) string { return prefix + servedKey }

// Serve lets a new server grant locks immediately. It reports whether the deployment is new: no
// other server process has granted locks with the prefix before.
func (s *Site) Serve() Request[bool] {
	return newRequest(s, "lock/serve", []string{s.Served}, nil, readBool)
}
