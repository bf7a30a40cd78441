package protocol

import (
	"context"
	"fmt"
	"time"

	"github.com/go-rlock/rlock/internal/wire"
)

// asked is a request of one server.
type asked[T any] struct {
	on   *wire.Deployment
	r    *wire.Request
	read func(a *wire.Answer) (T, error)
}

// Do implements Request.
func (q *asked[T]) Do(ctx context.Context, budget time.Duration) Result[T] {
	return q.result(q.on.Do(ctx, budget, q.r))
}

// result reads an answer. It is the one place that asks whether enough replicas have
// confirmed.
func (q *asked[T]) result(a wire.Answer) (r Result[T]) {
	r.Unsure, r.Last = a.Unsure, a.Last
	if r.Outcome, r.Err = q.read(&a); r.Err == nil && a.Acks < q.r.Acks {
		r.TooFew = fmt.Errorf("%d of %d replicas confirmed within %v", a.Acks, q.r.Acks, q.r.Within)
	}
	return r
}

// task is a request of one server about a hold.
type task struct{ asked[Kept] }

// Name implements Task.
func (t *task) Name() string { return t.r.Name() }

// OfQuorum implements Task.
func (t *task) OfQuorum() bool { return false }

// Send implements Task.
func (t *task) Send(d Dispatch) {
	d.Round.Add(t.r, d.Renewal, func(sent time.Time, a wire.Answer) { d.Done(sent, t.result(a)) })
}

// keeps makes a task whose reply is 1 (or 2, if entries are left) for a hold that is
// as asked; 0 if there is no such hold, and -1 if others hold the lock.
func keeps(on *wire.Deployment, r *wire.Request) *task {
	return &task{asked[Kept]{on, r, readKept}}
}

func readKept(a *wire.Answer) (Kept, error) {
	n, err := a.Int()
	switch {
	case err != nil:
		return Removed, err
	case n > 0:
		return Done, nil
	case n < 0:
		return TakenOver, nil
	}
	return Removed, nil
}
