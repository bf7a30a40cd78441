package wire

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// send sends one copy with a client and reads its reply. A script that the server does not know has not
// run, so its full text is sent immediately. maySearch: the client is io, and the copy may search for hooks.
func (d *Deployment) send(by redis.UniversalClient, s *sentCopy, r *Request, maySearch bool) (a Answer) {
	defer d.cfg.Panics.Caught(GoRedis, &a.Err)
	defer func() { a.unsent = a.Err != nil && s.flight.withdraw() }()
	if r.Acked {
		return d.sendAcked(s, r)
	}
	sent := redis.Cmder(s)
	if maySearch && d.direct.startHookSearch() {
		searching := &searchingCopy{sentCopy: s}
		sent = searching
		defer func() { d.direct.noteHookSearch(searching, a.Err == nil) }()
	}
	cmd, err := command(s), by.Process(&s.io, sent)
	if d.needsText(err) {
		cmd = r.command(&s.io, true)
		err = by.Process(&s.io, cmd)
	}
	if err != nil {
		return Answer{Err: err}
	}
	d.answered()
	return d.answer(r, cmd.Val())
}

// sendAcked sends a copy and, on the same connection, WAIT: Redis counts the
// replicas that have caught up with what that connection wrote last.
func (d *Deployment) sendAcked(s *sentCopy, r *Request) Answer {
	ctx := &s.io
	node, err := d.NodeFor(ctx, r.route())
	if err != nil {
		return Answer{Err: err}
	}
	for try := range 2 {
		cmd := command(s)
		if try > 0 {
			cmd = r.command(ctx, true)
		}
		wait := d.wait(ctx)
		pipe := node.Pipeline()
		_ = pipe.Process(ctx, cmd)
		_ = pipe.Process(ctx, wait)
		sent, err := pipe.Exec(ctx) // each command has its own error
		spread(sent, err)
		err = cmd.Err()
		if try == 0 && d.needsText(err) {
			continue
		}
		if err != nil {
			return Answer{Err: err}
		}
		a := d.answer(r, cmd.Val())
		a.Acks, a.Err = wait.Int()
		a.Unsure = a.Err != nil // the script has run, even if WAIT failed
		return a
	}
	panic("unreachable")
}

// needsText reports whether a failed request has to be sent with the text of its script: the server does not know the
// hash, or this user has no EVALSHA. In the second case all later requests have the text, until EVAL is refused too.
func (d *Deployment) needsText(err error) bool {
	switch {
	case err == nil:
		return false
	case redis.HasErrorPrefix(err, "NOSCRIPT"):
		return true
	case lacks(err, "evalsha"):
		d.sendsText.Store(true)
		return true
	case lacks(err, "eval"):
		d.sendsText.Store(false)
	}
	return false
}

// wait returns the command that waits for replicas.
func (d *Deployment) wait(ctx context.Context) once {
	return once{redis.NewCmd(ctx, "wait", d.cfg.Acks, d.cfg.AckTimeout.Milliseconds())}
}

// answer returns the reply of a script, and reports to Events if Redis did not let the script publish.
func (d *Deployment) answer(r *Request, val any) Answer {
	val, receivers, why := unwrapPublish(r, val)
	if why != "" {
		d.cfg.Events.Unpublished(errors.New(why))
	}
	return Answer{Val: val, Receivers: receivers}
}

// foreign adds the type of the key to the error of a request that failed because a key is in use for
// something else. It requests the type with the given client. It returns any other error unchanged.
func (d *Deployment) foreign(by redis.UniversalClient, ctx context.Context, r *Request, err error) error {
	switch {
	case err == nil || r.Script == nil:
		return err
	case redis.HasErrorPrefix(err, "FOREIGN") && strings.Contains(err.Error(), "string"):
		return fmt.Errorf("%w: a string that is no number", ErrForeignKey)
	case redis.HasErrorPrefix(err, "FOREIGN"):
		return fmt.Errorf("%w: %s", ErrForeignKey, strings.TrimPrefix(err.Error(), "FOREIGN "))
	case !IsWrongType(err):
		return err
	}
	main := r.main()
	keys, _ := r.Words()
	found := &foreignKeys{kinds: map[string]string{}}
	var others []string
	for _, key := range slices.Concat(main, keys) {
		if found.kinds[key] != "" {
			continue
		}
		kind := once{redis.NewCmd(ctx, "type", key)}
		// Safely, because a batch calls this outside of send.
		if d.Safely(func() error { return by.Process(ctx, kind) }) != nil || kind.Val() == "none" {
			continue
		}
		found.kinds[key], _ = kind.Val().(string)
		isMain := slices.Contains(main, key)
		if isMain && kind.Val() != r.kind() {
			found.text = fmt.Sprintf("%.200q is a %v (WRONGTYPE)", key, kind.Val())
			return found
		} else if !isMain {
			others = append(others, fmt.Sprintf("%.200q is a %v", key, kind.Val()))
		}
	}
	if len(others) > 0 {
		found.text = "one of its keys has another type (WRONGTYPE): " + strings.Join(others, ", ")
		return found
	}
	return Because(ErrForeignKey, err)
}

// foreignKeys is ErrForeignKey with the types of the keys.
type foreignKeys struct {
	text  string
	kinds map[string]string // types of the keys that were checked and exist
}

func (e *foreignKeys) Error() string      { return ErrForeignKey.Error() + ": " + e.text }
func (*foreignKeys) Is(target error) bool { return target == ErrForeignKey }

// KindOf returns the type that a key had when a request failed because of the types of its keys. It returns "" if the
// type is not known, or there was no such key.
func KindOf(err error, key string) string {
	var found *foreignKeys
	if !errors.As(err, &found) {
		return ""
	}
	return found.kinds[key]
}

// BatchSize is how many requests go into one pipeline. Other commands get through between
// pipelines, so background requests do not starve waiting callers.
const BatchSize = 100

// sendBatch sends requests to one node as one pipeline and returns their answers in order, in room if
// that is large enough. Requests that one script can do together become one command. flights, unless
// nil, records which of them have left the process.
func (d *Deployment) sendBatch(ctx context.Context, node redis.Cmdable, batch []*Request, flights []flight, room []Answer) []Answer {
	defer d.Gate("batch")
	answers := append(room[:0], make([]Answer, len(batch))...)
	if err := d.Safely(func() error { d.pipeline(ctx, node, batch, flights, answers); return nil }); err != nil {
		for i := range answers {
			answers[i] = Answer{Err: err}
		}
	}
	return answers
}
