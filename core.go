package rlock

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/wait"
	"github.com/go-rlock/rlock/internal/wire"
)

// core is the part that all lock types share: a name and a protocol. Only the protocol
// distinguishes the types.
type core struct {
	proto protocol.Protocol
	names protocol.Names
	token atomic.Int64 // token of the latest hold: see checkToken
	*settings
}

// Inspection has the methods of every type with holds, but [MultiLock], that need no lease: what Redis
// shows of a lock, an [Election], a [Once] or a [DoubleBarrier], and what an operator does with it. Its
// errors are as from an [Inspector].
type Inspection struct{ *core }

// Name is the name of the lock, with the prefix of its client.
func (l Inspection) Name() string { return l.name() }

// newCore makes the core of a lock type of the given family. Unless argErr is set, the caller
// adds a protocol that uses the returned names.
func newCore(c *Client, family, name string, opts lockConfig, optErr error) (*core, *protocol.Names) {
	made := c.made()
	if !made {
		c = noClient
	}
	l := &core{}
	var argErr error
	bounds := opts.handOverBounds()
	l.names.Lock = c.cfg.prefix + name // even if the name is invalid
	switch {
	case !made:
		argErr = errNoClient
	case optErr != nil:
		argErr = optErr
	case name == "":
		argErr = invalid("the lock has no name")
	case opts.maxHold < 0 || opts.maxHold > 0 && opts.maxHold < MinLease:
		argErr = invalid("WithMaxHold(%v): must be at least %v", opts.maxHold, MinLease)
	case bounds.passes < 0 || bounds.passes > MaxHandOverPasses || bounds.within < 0:
		argErr = invalid("WithHandOver(%d, %v): must be from 0 to %d passes, and no negative time", bounds.passes, bounds.within, MaxHandOverPasses)
	default:
		if err := l.names.Derive(l.names.Lock); err != nil {
			argErr = invalid("%v", err)
		}
	}
	if l.settings = &c.usual; family != c.usual.family || opts != c.usual.opts || argErr != nil {
		l.settings = &settings{c: c, family: family, opts: opts, argErr: argErr}
	}
	return l, &l.names
}

// name returns the name of the lock, with the prefix of the client; "" if no constructor made the lock.
func (l *core) name() string {
	if l == nil {
		return ""
	}
	return l.names.Lock
}

func (l *core) id() protocol.LockID { return protocol.LockID{Family: l.family, Name: l.names.Lock} }

// typeName returns the name of the type, for observers.
func (l *core) typeName() string {
	if l.proto == nil { // a type without holds
		return protocol.CounterType(l.family)
	}
	return l.proto.Kind().Type
}

// sideName returns the side of a read-write lock, for observers.
func (l *core) sideName() string {
	switch {
	case l.proto == nil || !l.proto.Kind().Sides:
		return ""
	case l.side == protocol.Shared:
		return "read"
	}
	return "write"
}

// noClient is the client of locks that were made without one. It is not used.
var noClient = &Client{cfg: defaults()}

// check returns why the arguments of a method or of the constructor are invalid, or nil. others are errors of further
// arguments. Each method of a lock calls it first.
func (l *core) check(ctx context.Context, others ...error) error {
	switch {
	case l == nil:
		return &Error{Err: invalid("the lock was not made by a constructor")}
	case l.argErr != nil:
		return l.error(l.argErr)
	case ctx == nil:
		return l.error(errNoContext)
	}
	for _, err := range others {
		if err != nil {
			return l.error(err)
		}
	}
	return nil
}

// beginCall is check, and registers the call with the client. Unless it returns an error, the caller must call
// Client.endCall.
func (l *core) beginCall(ctx context.Context, others ...error) error {
	err := l.check(ctx, others...)
	if err == nil && !l.c.beginCall() {
		err = l.error(ErrClosed)
	}
	return err
}

// hasCore is implemented by the types of this package, and by types of callers that embed one.
type hasCore interface{ cored() *core }

func (l *core) cored() *core { return l }

// named embeds a core, but not the methods of Inspection. Types without holds embed it.
type named struct{ one *core }

func (n named) cored() *core { return n.one }

// coreOf returns the core of a type, or nil.
func coreOf[T any, P interface {
	*T
	hasCore
}](p P) *core {
	if p == nil {
		return nil
	}
	return p.cored()
}

func (l *core) error(err error) error { return &Error{Lock: l.name(), Err: err} }

// validity returns how long a holder may rely on a lease after the time at which the request was sent.
func (l *core) validity(lease time.Duration) time.Duration {
	return l.c.cfg.validity(lease) - protocol.Margin(l.proto)
}

// retryAfter returns after how long a renewal without an answer is repeated.
func (l *core) retryAfter() time.Duration {
	return min(l.c.cfg.commandTimeout, l.c.cfg.watchdogLease/10)
}

func (l *core) with(proto protocol.Protocol) *core {
	other := &core{proto: proto, settings: l.settings}
	other.names.Lock = l.names.Lock
	return other
}

// line returns the key of the line of this client in which an acquire with this hold id waits.
func (l *core) line(id string) wait.Key {
	key := wait.Key{Lock: l.id(), Side: l.side}
	if protocol.EachWaits(l.proto) {
		key.ID = id
	}
	return key
}

// options reads the options of an acquire into a, if the lock can have them.
func options[O callOption](l *core, a *acquireConfig, opts []O) error {
	if err := readOptions(a, opts); err != nil {
		return err
	}
	c := &l.c.cfg
	if a.hasLease {
		if err := checkLease("WithLease", a.lease); err != nil {
			return err
		}
		a.lease = wholeMillis(a.lease)
	} else {
		a.lease = c.watchdogLease
	}
	if c.validity(a.lease) <= 0 {
		return invalid("WithLease(%v): WithDrift(%v, %v) leaves nothing of it", a.lease, c.driftFactor, c.driftFloor)
	}
	if longest := l.longestLease(); longest > 0 && a.lease > longest {
		return invalid("WithLease(%v): longer than the longest lease of the lock, %v", a.lease, longest)
	}
	if protocol.Margin(l.proto) > 0 && l.validity(a.lease) <= 0 {
		return invalid("WithLease(%v): too short for the uncertainty of the clocks", a.lease)
	}
	return nil
}

// longestLease bounds the leases of the lock; 0 if only MaxLease does.
func (l *core) longestLease() time.Duration {
	if own := protocol.LongestLease(l.proto); own > 0 {
		return own
	}
	return l.c.cfg.longest
}

// waiters returns how many waiters of this client the lock has; of a read-write lock, on both
// sides.
func (l *core) waiters() (n int) {
	for _, on := range []protocol.Side{protocol.Exclusive, protocol.Shared} {
		n += l.c.lines.Waiting(wait.Key{Lock: l.id(), Side: on})
	}
	return n
}

// checkToken checks the token of a hold that was granted against earlier, which was l.token before the request was sent:
// a resource with a fence would refuse all that the holder does, and one without may get the writes of two holders. The
// tokens of other names and other objects are not compared. A fall is reported to one caller, or to a second one if a
// grant from before it is read late: the tokens that follow are compared with the lower one, or the lock could not be
// taken until they have caught up.
func (l *core) checkToken(earlier, token int64) error {
	if err := l.hasToken(token); err != nil {
		return err
	}
	earlier = min(earlier, l.token.Load()) // it is lower after a fall that another caller has reported meanwhile
	if token > 0 && token <= earlier {     // a shared hold has no token
		l.token.Store(token)
		return wire.ErrReply(fmt.Sprintf("the fencing token %d is not greater than %d, an earlier one", token, earlier))
	}
	latest := l.token.Load()
	for token > latest && !l.token.CompareAndSwap(latest, token) {
		latest = l.token.Load()
	}
	return nil
}

// hasToken checks that a hold that was granted has a token if its type has tokens: a reply without one is of another
// request, or of a broken proxy.
func (l *core) hasToken(token int64) error {
	if token <= 0 && l.proto.Kind().HasTokens() {
		return wire.ErrReply(fmt.Sprintf("a grant with the fencing token %d", token))
	}
	return nil
}

// confirmed returns why a result does not count, or nil: it has no outcome, or too few replicas have confirmed it. In the
// second case the error matches tooFew.
func confirmed[T any](r *protocol.Result[T], tooFew error) error {
	if r.Err == nil && r.TooFew != nil {
		return because(tooFew, r.TooFew)
	}
	return r.Err
}

func (l *core) handsOver() bool {
	return protocol.Is[protocol.HandedOver](l.proto) && l.opts.handOverBounds().passes > 0
}

// ask sends a request about the lock itself, not about a hold. request is called once the arguments have been checked.
func ask[T any](ctx context.Context, l *core, request func() protocol.Request[T]) (protocol.Result[T], error) {
	if err := l.beginCall(ctx); err != nil {
		return protocol.Result[T]{}, err
	}
	defer l.c.endCall()
	began := l.c.env.Clock.Now()
	r := request().Do(l.c.events.withSubject(ctx, l), l.c.cfg.commandTimeout)
	if r.Err != nil {
		err := l.cutShort(ctx, r.Err, began)
		return protocol.Result[T]{Unsure: r.Unsure}, l.error(err)
	}
	return r, nil
}

// ready is called before a request that may publish.
func (l *core) ready(ctx context.Context) error {
	began := l.c.env.Clock.Now()
	if err := l.proto.Ready(ctx); err != nil {
		return l.error(l.cutShort(ctx, err, began))
	}
	return nil
}

// servers returns the servers of the lock: the clients of its holders introduce themselves on any of them.
func (l *core) servers() []*wire.Deployment {
	if several, ok := l.proto.(protocol.Quorum); ok {
		return several.Wires()
	}
	return []*wire.Deployment{l.c.wire}
}

// ofQuorum reports whether the lock has several servers, some of which may answer while others do not.
func (l *core) ofQuorum() bool { return protocol.Is[protocol.Quorum](l.proto) }

// grace returns how long the servers of the lock may be silent before they count as unreachable: protocol.GiveUpGrace,
// or as long as a distant server takes.
func (l *core) grace() time.Duration {
	grace := protocol.GiveUpGrace
	for _, server := range l.servers() {
		grace = max(grace, server.Patience())
	}
	return grace
}

// settle calls snapshot.settle with the current time.
func (l *core) settle(s *snapshot, answered bool) { s.settle(l.c.env.Clock.Now(), answered, l.grace()) }

// cutShort returns the error of a request that has failed and is not repeated. If the end of ctx has cut the request
// off, the error also says whether Redis was silent since the request began.
func (l *core) cutShort(ctx context.Context, err error, began time.Time) error {
	if ctx.Err() == nil || !wire.Ended(err) {
		return err
	}
	s := snapshot{Status: wait.Status{Pending: began}}
	s.noteFailure(err, l.ofQuorum(), 0)
	l.settle(&s, false)
	return s.why(endOf(ctx), nil, l.c.env.Clock.Now())
}
