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

// defaultConnectTimeout is for the first answer of Redis.
const defaultConnectTimeout = 10 * time.Second

// outageTime is how long Redis gives no answer before it is asked for one, and pingTime how long it has for that before an
// outage is said: a connection that is made again is none, nor is a busy machine.
const (
	outageTime = time.Second
	pingTime   = 5 * time.Second
)

// A link is whether one Redis answers: it sees all that is sent, as a hook of go-redis.
type link struct {
	address string
	secure  bool // by TLS
	changed func()

	mu       sync.Mutex // guards the rest
	answered bool       // once
	failing  bool       // what was sent last has no answer
	cause    error      // of the latest failure; nil after an answer
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
	news := l.failing != failing || !failing && !l.answered
	l.failing = failing
	l.answered = l.answered || !failing
	if l.cause == nil || !errors.Is(cause, context.DeadlineExceeded) { // which says less than what went before
		l.cause = cause
	}
	l.mu.Unlock()
	if news {
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

// links are the links to a deployment. Redis answers if as many do as a RedLock needs.
type links struct {
	all     []*link
	needed  int
	changed chan struct{} // has one if the state may have changed
}

func newLinks(needed int) *links { return &links{needed: needed, changed: make(chan struct{}, 1)} }

// on has a client be seen.
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

// dialing sees the connections of a node of a cluster; what is sent is seen of the cluster.
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

// addresses are those that give no answer.
func (l *links) addresses() string {
	var all []string
	for _, one := range l.all {
		if answered, failing, _ := one.state(); failing || !answered {
			all = append(all, one.address)
		}
	}
	return strings.Join(all, ", ")
}

// cause is why Redis gives no answer, as far as that is known.
func (l *links) cause() error {
	for _, one := range l.all {
		if _, failing, cause := one.state(); failing && cause != nil {
			return cause
		}
	}
	return nil
}

// explained adds to an error, of an outage, where Redis was looked for and what came of it.
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

// hint is for a port that has TLS and a URL that has not, or the other way round: neither says so.
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

// patient returns a context that ends if Redis has not answered once within --connect-timeout. An outage after an answer
// is said when it begins and when it ends, if talks is set. Both are until stop is called, which leaves the context.
func (d *deployment) patient(ctx context.Context, talks bool) (of context.Context, stop func()) {
	of, cancel := context.WithCancelCause(ctx)
	quit, done := make(chan struct{}), make(chan struct{})
	go func() { // until stop
		defer close(done)
		d.watchLinks(quit, cancel, talks)
	}()
	return of, sync.OnceFunc(func() {
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
	news := d.links.changed
	if !talks {
		news = nil // for another that does
	}
	pinged := make(chan bool, 1)
	var since time.Time // of an outage
	var told bool
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
				go func() { pinged <- d.answersPing() }() // not for long; who watches may have gone
			}
		case answers := <-pinged:
			switch {
			case since.IsZero(): // it is over
			case answers: // what has failed had less time
				said.Reset(outageTime)
			default:
				told = true
				d.app.say("%s", d.links.explained("no answer from Redis")+"; this waits until there is one")
			}
		case <-news:
			switch out := d.links.out(); {
			case out && since.IsZero():
				since = time.Now()
				said.Reset(outageTime)
			case !out && !since.IsZero():
				said.Stop()
				if told {
					d.app.say("Redis answers again, after %s", span(time.Since(since)))
				}
				since, told = time.Time{}, false
			}
		}
	}
}
