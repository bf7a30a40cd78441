package main

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// defaultConnectTimeout bounds the wait for the first answer of Redis.
const defaultConnectTimeout = 10 * time.Second

// After outageTime without an answer, a PING is sent. After pingTime without its reply, an outage is reported: a new
// connection, or a busy machine, is no outage.
const (
	outageTime = time.Second
	pingTime   = 5 * time.Second
)

// A link records whether one Redis answers. It is a hook of go-redis, which is called for all commands.
type link struct {
	address string
	secure  bool // the connection uses TLS
	changed func()

	mu       sync.Mutex // guards the rest
	answered bool       // Redis has answered once
	failing  bool       // the latest command got no answer
	cause    error      // cause of the latest failure; nil after an answer
}

func (l *link) note(err error) {
	var reply redis.Error
	switch {
	case err == nil, errors.As(err, &reply):
		l.set(false, nil)
	case errors.Is(err, context.Canceled): // no caller waits for the answer any more
	default:
		l.set(true, err)
	}
}

func (l *link) set(failing bool, cause error) {
	l.mu.Lock()
	isChange := l.failing != failing || !failing && !l.answered
	l.failing = failing
	l.answered = l.answered || !failing
	if l.cause == nil || !errors.Is(cause, context.DeadlineExceeded) { // a deadline says less than an earlier cause
		l.cause = cause
	}
	l.mu.Unlock()
	if isChange {
		l.changed()
	}
}

func (l *link) state() (answered, failing bool, cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.answered, l.failing, l.cause
}

// DialHook implements redis.Hook: go-redis dials several times before a command fails.
func (l *link) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		if err != nil {
			l.note(err)
		}
		return conn, err
	}
}

// ProcessHook implements redis.Hook.
func (l *link) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		l.note(err)
		return err
	}
}

// ProcessPipelineHook implements redis.Hook.
func (l *link) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		l.note(err)
		return err
	}
}

// links are the links to a deployment. Redis counts as answering if as many servers answer as a RedLock needs.
type links struct {
	all     []*link
	needed  int
	changed chan struct{} // capacity 1: the state may have changed
}

func newLinks(needed int) *links { return &links{needed: needed, changed: make(chan struct{}, 1)} }

// on adds a link for a client.
func (l *links) on(rdb redis.UniversalClient, address string, secure bool) {
	one := &link{address: address, secure: secure, changed: func() {
		select {
		case l.changed <- struct{}{}:
		default:
		}
	}}
	l.all = append(l.all, one)
	rdb.AddHook(one)
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		cluster.OnNewNode(func(node *redis.Client) { node.AddHook(dialing{one}) })
	}
}

// dialing is the hook of a node of a cluster. It records only the connections: the hook of the cluster client records the
// commands.
type dialing struct{ *link }

func (dialing) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (dialing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// answered reports whether Redis has answered once since the program began.
func (l *links) answered() bool {
	n := 0
	for _, one := range l.all {
		if yes, _, _ := one.state(); yes {
			n++
		}
	}
	return n >= l.needed
}

// out reports whether Redis gives no answer now.
func (l *links) out() bool {
	n := 0
	for _, one := range l.all {
		if _, failing, _ := one.state(); failing {
			n++
		}
	}
	return n > len(l.all)-l.needed
}

// addresses returns the addresses of the servers that give no answer.
func (l *links) addresses() string {
	var all []string
	for _, one := range l.all {
		if answered, failing, _ := one.state(); failing || !answered {
			all = append(all, one.address)
		}
	}
	return strings.Join(all, ", ")
}

// cause returns why Redis gives no answer, or nil if not known.
func (l *links) cause() error {
	for _, one := range l.all {
		if _, failing, cause := one.state(); failing && cause != nil {
			return cause
		}
	}
	return nil
}

// explained adds the address and the failure of Redis to the error of an outage.
func (l *links) explained(text string) string {
	if l == nil {
		return text
	}
	if where := l.addresses(); where != "" && !strings.Contains(text, where) {
		text += ", from " + where
	}
	cause := l.cause()
	if cause != nil && !strings.Contains(text, cause.Error()) {
		text += ": " + plain(cause)
	}
	return text + l.hint(cause)
}

// hint returns a hint if probably only one of URL and port uses TLS: the errors do not show that.
func (l *links) hint(cause error) string {
	secure := l.all[0].secure
	switch {
	case secure && !l.answered() && (cause == nil || errors.Is(cause, context.DeadlineExceeded)):
		return " (a port without TLS does not answer a rediss:// URL)"
	case !secure && !l.answered() && (errors.Is(cause, io.EOF) || errors.Is(cause, syscall.ECONNRESET)):
		return " (a port with TLS wants a rediss:// URL)"
	}
	return ""
}

// silence is the cause with which a wait ends if Redis has not answered once.
type silence struct{ time.Duration }

func (s silence) Error() string { return "no answer for " + span(s.Duration) }

// patient returns a context that ends if Redis has not answered once within --connect-timeout. If talks is set, it reports
// the beginning and the end of later outages. stop ends both, but not the context.
func (d *deployment) patient(ctx context.Context, talks bool) (bounded context.Context, stop func()) {
	bounded, cancel := context.WithCancelCause(ctx)
	quit, done := make(chan struct{}), make(chan struct{})
	go func() { // ends with stop
		defer close(done)
		d.watchLinks(quit, cancel, talks)
	}()
	return bounded, sync.OnceFunc(func() {
		close(quit)
		<-done
	})
}

// answersPing reports whether Redis answers within pingTime: on a busy machine requests with less time fail.
func (d *deployment) answersPing() bool {
	ctx, cancel := context.WithTimeout(context.Background(), pingTime)
	defer cancel()
	answers := make(chan bool, len(d.rdbs))
	for _, rdb := range d.rdbs {
		go func() {
			err := rdb.Ping(ctx).Err()
			var reply redis.Error
			answers <- err == nil || errors.As(err, &reply)
		}()
	}
	n := 0
	for range d.rdbs {
		if <-answers {
			n++
		}
	}
	return n >= d.links.needed
}

func (d *deployment) watchLinks(quit <-chan struct{}, end context.CancelCauseFunc, talks bool) {
	first := time.NewTimer(d.app.connectTimeout)
	defer first.Stop()
	if d.app.connectTimeout == 0 {
		first.Stop()
	}
	said := time.NewTimer(0)
	defer said.Stop()
	<-said.C
	changed := d.links.changed
	if !talks {
		changed = nil // another goroutine that talks receives from it
	}
	pinged := make(chan bool, 1)
	var since time.Time // beginning of an outage
	var reported bool
	for {
		select {
		case <-quit:
			return
		case <-first.C:
			if !d.links.answered() {
				end(silence{d.app.connectTimeout})
				return
			}
		case <-said.C:
			if d.links.answered() || d.app.connectTimeout == 0 {
				go func() { pinged <- d.answersPing() }() // ends soon; the receiver may have ended
			}
		case answers := <-pinged:
			switch {
			case since.IsZero(): // the outage is over
			case answers: // the failed command had less time
				said.Reset(outageTime)
			default:
				reported = true
				d.app.say("%s", d.links.explained("no answer from Redis")+"; this waits until there is one")
			}
		case <-changed:
			switch out := d.links.out(); {
			case out && since.IsZero():
				since = time.Now()
				said.Reset(outageTime)
			case !out && !since.IsZero():
				said.Stop()
				if reported {
					d.app.say("Redis answers again, after %s", span(time.Since(since)))
				}
				since, reported = time.Time{}, false
			}
		}
	}
}
