package rlock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// request is one run of a script. Its first key routes it in a cluster.
type request struct {
	script *script
	plain  []any // a command that any node may answer, instead of a script
	keys   []string
	args   []any
	acks   int           // replicas to wait for, 0: none
	within time.Duration // how long to wait for them
	lease  time.Duration // of a renewal: what a reply of 1 confirms
	single bool          // must not run twice: never resend what may have run
	// ends: the request ends a stay, and a reply other than 1 says that there
	// was none. If there are several copies that may be the work of another of
	// them, so all are heard first.
	ends bool

	// hasty: not to be sent again to a server that is not there, or does not run
	// it now: there are others, or other ways.
	hasty bool

	// do is run instead of a script, for what takes more than one server. It
	// bounds itself, or ends with its context.
	do func(ctx context.Context) answer

	// spread is what the watchdog runs instead of do, if there is one. It does not
	// wait: what it asks of several servers goes into lanes. done is called with
	// what came of that, counted from when it was sent; perhaps never, if the same
	// is still under way. Nothing is sent any more once goesOn reports false.
	spread func(lanes *lanes, goesOn func() bool, done func(sent time.Time, a answer))
}

// what is a name for the request, for observers.
func (r *request) what() string {
	switch {
	case r.plain != nil:
		return fmt.Sprint(r.plain[0])
	case r.script == nil:
		return "quorum"
	}
	return r.script.name
}

// answer is what became of a request.
type answer struct {
	val  any
	acks int // replicas that confirmed
	err  error
	// unsure: some copy of the request other than the one that was answered
	// may have run, or may run yet.
	unsure bool
	// last is how copies have failed, if a context ended the call and err says so.
	last error
}

// once is a command that go-redis must not repeat by itself: the library does
// the resending, because it must know of each copy.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true }

func (r *request) command(ctx context.Context, whole bool) once {
	if r.plain != nil {
		return once{redis.NewCmd(ctx, r.plain...)}
	}
	args := make([]any, 0, 3+len(r.keys)+len(r.args))
	if whole {
		args = append(args, "eval", r.script.text)
	} else {
		args = append(args, "evalsha", r.script.sha)
	}
	args = append(args, len(r.keys))
	for _, k := range r.keys {
		args = append(args, k)
	}
	cmd := redis.NewCmd(ctx, append(args, r.args...)...)
	cmd.SetFirstKeyPos(3)
	return once{cmd}
}

// copies is how many copies of a request may be under way at once. The second
// goes out when half of the budget is spent: earlier, or more of them, would
// multiply the load of a server that is merely slow.
const copies = 2

// call runs a request until it is answered, ctx ends, or the budget is spent.
// It returns then, even if go-redis does not: cancelling a context does not
// interrupt go-redis's I/O, and its read time-out may be longer or off. The
// copies that are left behind end with go-redis's time-outs; the caller learns
// of them through answer.unsure.
//
// A reply that is late is asked for again while the first copy may still be
// answered: every script may run twice. Errors that mean "not now" or "not
// here" are tried again until the budget is spent.
func (c *Client) call(ctx context.Context, budget time.Duration, r *request) answer {
	if err := ctx.Err(); err != nil {
		return answer{err: err}
	}
	opCtx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	if r.do != nil {
		a := r.do(opCtx)
		if a.err != nil && ctx.Err() == nil && opCtx.Err() != nil {
			a.err = noAnswer(budget, a.err)
		}
		return a
	}

	answers := make(chan answer, copies) // never full: so many are under way at most
	launch := func() {
		c.background(func() { answers <- c.send(opCtx, r) })
	}
	launch()
	waiting, sent := 1, 1 // copies not yet answered; copies that may have run or may yet
	pause := 10 * time.Millisecond
	// The time that replicas are given to answer is no delay.
	patience := r.within + (budget-r.within)/copies
	late := time.NewTimer(patience)
	defer late.Stop()
	var last error
	var absent *answer // "there is none", from a copy, while others are under way
	answered := 0
	for {
		select {
		case a := <-answers:
			waiting--
			if a.err == nil && r.ends && a.val != int64(1) {
				answered++
				a = a.after(absent)
				if waiting > 0 {
					absent = &a
					continue
				}
				a.unsure = sent > answered
				return a
			}
			if a.err == nil || !transient(a.err) {
				a.unsure = sent > 1 || panicked(a.err)
				return a
			}
			last = a.err
			if notExecuted(a.err) {
				sent--
			}
			if absent != nil && waiting == 0 {
				absent.unsure = sent > answered
				return *absent
			}
			if r.single && !notExecuted(a.err) {
				return answer{err: because(ErrUnreachable, a.err), unsure: true}
			}
			if r.hasty && notExecuted(a.err) {
				if waiting > 0 {
					continue
				}
				return answer{err: because(ErrUnreachable, a.err), unsure: sent > 0}
			}
			c.cfg.observer.Retry(r.what(), a.err)
			c.refreshTopology()
			late.Reset(pause)
			pause = min(2*pause, 200*time.Millisecond)
		case <-late.C:
			if waiting > 0 {
				if r.single || absent != nil {
					continue
				}
				c.cfg.observer.Retry(r.what(), errLate)
				// Perhaps the node hangs and its replica has taken over.
				c.refreshTopology()
			}
			launch()
			waiting++
			sent++
			if waiting < copies { // else one of them has to be answered, or fail, first
				late.Reset(patience)
			}
		case <-opCtx.Done():
			select {
			case a := <-answers: // in the last moment, or while the process was stopped
				if a.err == nil {
					a = a.after(absent)
					a.unsure = sent > 1
					return a
				}
			default:
			}
			if absent != nil {
				absent.unsure = true
				return *absent
			}
			if err := ctx.Err(); err != nil {
				return answer{err: err, unsure: sent > 0, last: last}
			}
			return answer{err: noAnswer(budget, last), unsure: sent > 0}
		}
	}
}

var errLate = errors.New("no reply yet")

// noAnswer is ErrUnreachable with what was seen last. That may be the end of
// our own time limit: it must not look like the end of the caller's context.
func noAnswer(within time.Duration, last error) error {
	err := fmt.Errorf("%w within %v", ErrUnreachable, within)
	if last == nil || errors.Is(last, context.DeadlineExceeded) || errors.Is(last, context.Canceled) {
		return err
	}
	return because(err, last)
}

// send sends one copy and reads its reply. A script that the server does not
// know has not run, so it is sent again in full at once.
func (c *Client) send(ctx context.Context, r *request) (a answer) {
	defer c.gate("reply")
	defer c.caught(goRedis, &a.err)
	if r.acks > 0 {
		return c.sendAcked(ctx, r)
	}
	cmd := r.command(ctx, false)
	err := c.io.Process(ctx, cmd)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		cmd = r.command(ctx, true)
		err = c.io.Process(ctx, cmd)
	}
	return answer{val: c.reply(r, cmd), err: c.foreign(ctx, r, err)}
}

// foreign names what stands at a key of a request that has failed because that is
// no lock. Anything else is returned as it is.
func (c *Client) foreign(ctx context.Context, r *request, err error) error {
	switch {
	case err == nil || r.script == nil:
		return err
	case redis.HasErrorPrefix(err, "FOREIGN"):
		return fmt.Errorf("%w: a hash with other data", ErrForeignKey)
	case !strings.Contains(err.Error(), "WRONGTYPE"): // Redis 6 and miniredis put text before it
		return err
	}
	keys, step := r.keys[:1], 1
	switch r.script.name {
	case "acquire_all":
		keys, step = r.keys[1:], 2
	case "release_all":
		keys, step = r.keys, 2
	}
	for i := 0; i < len(keys); i += step {
		kind := once{redis.NewCmd(ctx, "type", keys[i])}
		if c.io.Process(ctx, kind) == nil && kind.Val() != "hash" && kind.Val() != "none" {
			return fmt.Errorf("%w: %.200q is a %v (WRONGTYPE)", ErrForeignKey, keys[i], kind.Val())
		}
	}
	return because(ErrForeignKey, err)
}

// reply is what a script replied. If Redis did not let it publish, that is told.
func (c *Client) reply(r *request, cmd once) any {
	val := cmd.Val()
	if r.script == nil || !r.script.publishes {
		return val
	}
	if list, ok := val.([]any); ok && len(list) == 2 {
		if why, ok := list[1].(string); ok {
			c.unpublished(errors.New(why))
			return list[0]
		}
	}
	return val
}

// sendAcked sends a copy and, on the same connection, WAIT: Redis counts the
// replicas that have caught up with what that connection wrote last.
func (c *Client) sendAcked(ctx context.Context, r *request) answer {
	node, err := c.nodeFor(ctx, r.keys[0])
	if err != nil {
		return answer{err: err}
	}
	for _, whole := range []bool{false, true} {
		cmd := r.command(ctx, whole)
		wait := once{redis.NewCmd(ctx, "wait", r.acks, r.within.Milliseconds())}
		pipe := node.Pipeline()
		_ = pipe.Process(ctx, cmd)
		_ = pipe.Process(ctx, wait)
		_, _ = pipe.Exec(ctx) // each command has its own error
		err := cmd.Err()
		if !whole && redis.HasErrorPrefix(err, "NOSCRIPT") {
			continue
		}
		if err != nil {
			return answer{err: c.foreign(ctx, r, err)}
		}
		acks, err := wait.Int()
		return answer{val: c.reply(r, cmd), acks: acks, err: err}
	}
	panic("unreachable")
}

// sendBatch sends requests to one node as one pipeline and returns their
// answers in order.
func (c *Client) sendBatch(ctx context.Context, node redis.Cmdable, batch []*request) []answer {
	defer c.gate("batch")
	answers := make([]answer, len(batch))
	if err := c.safely(func() error { c.pipeline(ctx, node, batch, answers); return nil }); err != nil {
		for i := range answers {
			answers[i] = answer{err: err}
		}
	}
	return answers
}

func (c *Client) pipeline(ctx context.Context, node redis.Cmdable, batch []*request, answers []answer) {
	todo := make([]int, len(batch)) // indexes into batch
	for i := range todo {
		todo[i] = i
	}
	for round := 0; round < 3 && len(todo) > 0; round++ {
		pipe := node.Pipeline()
		cmds := make([]once, len(todo))
		var acks int
		var within time.Duration
		loaded := map[*script]bool{}
		for j, i := range todo {
			// The second round is for scripts that the node did not know: the
			// first of each kind goes in full, which loads it for the rest. The
			// third is for a batch that redirections have spread over nodes.
			r := batch[i]
			cmds[j] = r.command(ctx, round == 2 || round == 1 && !loaded[r.script])
			loaded[r.script] = true
			_ = pipe.Process(ctx, cmds[j])
			acks, within = max(acks, r.acks), max(within, r.within)
		}
		wait := once{redis.NewCmd(ctx, "wait", acks, within.Milliseconds())}
		if acks > 0 {
			_ = pipe.Process(ctx, wait)
		}
		_, _ = pipe.Exec(ctx) // each command has its own error
		confirmed, _ := wait.Int()
		unknown := todo[:0]
		for j, i := range todo {
			answers[i] = answer{val: c.reply(batch[i], cmds[j]), acks: confirmed, err: cmds[j].Err()}
			if redis.HasErrorPrefix(cmds[j].Err(), "NOSCRIPT") {
				unknown = append(unknown, i)
			}
		}
		todo = unknown
	}
}

// notNow are the replies of a server that did not run the command, but may run
// it later, or of one that knows who will.
var notNow = []string{"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK", "NOREPLICAS", "NOSCRIPT", "BUSY", "MISCONF", "max number of clients"}

// transient reports whether a request that ended in err may be sent again.
func transient(err error) bool {
	var reply redis.Error
	switch {
	case errors.Is(err, redis.ErrClosed), errors.Is(err, ErrForeignKey), panicked(err):
		return false
	case errors.As(err, &reply):
		return refused(err)
	}
	return true
}

func refused(err error) bool {
	for _, code := range notNow {
		// Redis 6 wraps an error of a command in a script: "ERR Error running
		// script ...: -READONLY You can't write ...".
		if redis.HasErrorPrefix(err, code) || strings.Contains(err.Error(), "-"+code+" ") {
			return true
		}
	}
	return false
}

// neverRan reports whether a reply that is an error says that the script did not
// begin, or did nothing: this user may not run scripts, or the key is no lock.
func neverRan(err error) bool {
	barred := redis.HasErrorPrefix(err, "NOPERM") || redis.HasErrorPrefix(err, "NOAUTH")
	return errors.Is(err, ErrForeignKey) || barred && !strings.Contains(err.Error(), " script")
}

// notExecuted reports whether the server surely did not run the request. All
// other failures of the connection leave that open, errors of the context too:
// go-redis can return one after a command that ran.
func notExecuted(err error) bool {
	var dial *net.OpError
	return refused(err) ||
		errors.As(err, &dial) && dial.Op == "dial" ||
		errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted)
}

func errReply(v any) error { return fmt.Errorf("unexpected reply from Redis: %.100v", v) }

// pair reads a reply that is a list which begins with two integers.
func (a answer) pair() (pair [2]int64, err error) {
	list, _ := a.val.([]any)
	for i := range pair {
		ok := i < len(list)
		if ok {
			pair[i], ok = list[i].(int64)
		}
		if !ok {
			return pair, errReply(a.val)
		}
	}
	return pair, nil
}

// round is the last item of the reply to one who is refused, of a lock that admits
// its waiters in rounds.
func (a answer) round() (round int64, ok bool) {
	list, _ := a.val.([]any)
	if len(list) > 4 {
		round, ok = list[4].(int64)
	}
	return round, ok
}

func (a answer) int() (int64, error) {
	n, ok := a.val.(int64)
	if !ok {
		return 0, errReply(a.val)
	}
	return n, nil
}

// verdicts reads the reply of release_all for so many holds: one for each, or a 1
// for all.
func (a answer) verdicts(n int) ([]int64, error) {
	list, _ := a.val.([]any)
	all := make([]int64, n)
	for i := range all {
		ok := false
		switch {
		case a.err != nil:
			return nil, a.err
		case a.val == int64(1):
			all[i], ok = 1, true
		case len(list) == n:
			all[i], ok = list[i].(int64)
		}
		if !ok {
			return nil, errReply(a.val)
		}
	}
	return all, nil
}

// after adds to the answer to a copy of a request that ends several holds what
// another copy has done: what one of them has freed the other does not find.
func (a answer) after(before *answer) answer {
	list, _ := a.val.([]any)
	if before == nil || list == nil {
		return a
	}
	other, _ := before.val.([]any)
	merged := slices.Clone(list)
	for i := range merged {
		if i < len(other) && other[i] == int64(1) {
			merged[i] = other[i]
		}
	}
	a.val = merged
	return a
}
