package protocol

import (
	"context"
	"fmt"
	"time"

	"github.com/go-rlock/rlock/internal/wire"
)

// asked is a request to one server.
type asked[T any] struct {
	on    *wire.Deployment
	r     wire.Request
	read  func(a wire.Answer) (T, error)
	site  *Site
	names *Names // of the lock whose fencing clock is among the keys; nil: none is
}

// draw notes that the fencing clock of a lock is among the keys.
func (q *asked[T]) draw(n *Names) *asked[T] {
	q.names = n
	return q
}

// Do implements Request. If another key has the fencing clock than the client knew, nothing was
// done, and the request is made again with that.
func (q *asked[T]) Do(ctx context.Context, budget time.Duration) Result[T] {
	a := q.on.Do(ctx, budget, &q.r)
	if a.Err != nil && q.names != nil {
		wrong, err := q.site.wrongClock(ctx, q.names, &q.r, a.Err)
		switch {
		case err != nil:
			a.Err = err
		case wrong:
			unsure := a.Unsure
			a = q.on.Do(ctx, budget, q.r.Renamed(q.site.Clock.key, q.site.clock(q.names)))
			a.Unsure = a.Unsure || unsure
		}
	}
	return q.result(a)
}

func (q *asked[T]) result(a wire.Answer) Result[T] { return result(q.on, &q.r, a, q.read) }

// result reads an answer. Only this function checks whether enough replicas have confirmed.
func result[T any](on *wire.Deployment, q *wire.Request, a wire.Answer, read func(wire.Answer) (T, error)) (r Result[T]) {
	r.Unsure, r.Heard = a.Unsure, a.Heard
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

// entering makes the request of a script that may begin a hold; read reads the reply. If the client wants that, a server in
// quarantine refuses it, and replicas confirm it.
func entering[T any](s *Site, script string, keys []string, args []any, read func(wire.Answer) (T, error)) *asked[T] {
	if s.Quarantine > 0 {
		script += WhenServed
		keys = append(keys, s.Served)
		args = append(args, s.Quarantine.Milliseconds())
	}
	q := looking(s, script, keys, args, read)
	q.r.Acked = s.acks()
	return q
}

// about makes a request about a hold.
func (s *Site) about(script string, keys []string, args []any) *task {
	return &task{s.Wire, wire.Request{Script: s.Scripts[script], Keys: keys, Args: args}}
}

// leaving makes a request that ends a hold: a second copy finds the hold gone.
func (s *Site) leaving(script string, keys []string, args []any) *task {
	t := s.about(script, keys, args)
	t.r.OneEffect = true
	return t
}

// releasing makes a request that lowers the count of a hold to n.
func (s *Site) releasing(script string, n int, keys []string, args []any) *task {
	t := s.about(script, keys, args)
	t.r.OneEffect = n == 0
	return t
}

// acks reports whether replicas have to confirm each lease.
func (s *Site) acks() bool {
	n, _ := s.Wire.Acks()
	return n > 0
}

// grantsAtOnce reports whether each grant of the server counts: neither has it to be
// confirmed by replicas, nor is a new server in quarantine.
func (s *Site) grantsAtOnce() bool { return !s.acks() && s.Quarantine == 0 }

// renewing makes a request that lengthens a lease.
func (s *Site) renewing(script string, lease time.Duration, keys []string, args []any) *task {
	t := s.about(script, keys, args)
	t.r.Told = lease > 0
	t.r.Acked = lease > 0 && s.acks()
	return t
}

// reentering makes a request that enters a hold once more.
func (s *Site) reentering(script string, confirm bool, keys []string, args []any) *task {
	t := s.about(script, keys, args)
	t.r.Acked = confirm && s.acks()
	return t
}

// forcing makes a request that ends all holds, or the one with the id in owner. Without an
// id a second copy would end a newer hold, so it is not sent again.
func (s *Site) forcing(script, owner string, keys []string, args []any) *asked[bool] {
	q := looking(s, script, keys, args, readBool)
	q.r.NoResend = owner == ""
	return q
}

// looking makes a request to run one script; read reads the reply.
func looking[T any](s *Site, script string, keys []string, args []any, read func(wire.Answer) (T, error)) *asked[T] {
	return &asked[T]{on: s.Wire, site: s, r: wire.Request{Script: s.Scripts[script], Keys: keys, Args: args}, read: read}
}

// how returns how scripts publish. It is known when Ready has succeeded.
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

// listen subscribes to a channel. It returns nil as long as it is not known how releases
// are published: the subscription could be to the wrong kind of channel, and stay so.
func (s *Site) listen(channel string, notify func()) (end func()) {
	if !s.Wire.PublishKnown() {
		return nil
	}
	return s.Listen(channel, notify)
}

// listenFor is listen to the messages that consist of a name.
func (s *Site) listenFor(channel, name string, notify func()) (end func()) {
	if !s.Wire.PublishKnown() {
		return nil
	}
	return s.ListenFor(channel, name, notify)
}

// keep is how long a hold that has ended needs its tombstone, ms.
func keep(late bool) any {
	if late {
		return tombstoneMillis
	}
	return 0
}

// millis is a duration in ms. The last one is kept in the form in which it is sent: most
// leases of a client are equally long.
func (s *Site) millis(d time.Duration) any {
	last := s.lastMillis.Load()
	if last == nil || last.of != d {
		last = &boxedMillis{d, d.Milliseconds()}
		s.lastMillis.Store(last)
	}
	return last.ms
}

type boxedMillis struct {
	of time.Duration
	ms any
}

var tombstoneMillis any = TombstoneTTL.Milliseconds()

// servedKey is the name of Site.Served, without prefix.
const servedKey = "rlock:served"

// ServedKey is Site.Served for a prefix.
func ServedKey(prefix string) string { return prefix + servedKey }

// Serve lets a new server grant locks immediately. It reports whether the deployment is new: no
// other process has served before.
func (s *Site) Serve() Request[bool] {
	return looking(s, "lock/serve", []string{s.Served}, nil, readBool)
}
