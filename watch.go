package rlock

import "context"

// Watch tells who holds the lock, without contending for it: it takes no lock,
// stands in no line and delays nobody. The channel gets the state of now, and
// then a new one whenever the mode, the holders, their counts or the token have
// changed. TTL and Waiters are those of that moment; that they change is not told.
// The channel is closed when ctx ends or the client is shut down.
//
// It keeps the latest state only: one that was not read is replaced by a newer one.
// So a slow reader misses what was in between, but never the latest, and delays
// nobody. What came and went between two looks is not seen at all: a watch is for
// dashboards, tests and decisions that can be wrong for a moment, and no way to be
// sure that a lock is free or held.
//
// A watch looks when it begins, when a release is announced (not by a SpinLock; where
// Redis keeps the queue, it is announced to the next in line alone), when the holder's
// lease is over, and otherwise by polling, because an acquire is not announced by any
// client of the protocol: 10 ms after each change or message, then after pauses that
// double up to WithLongestPoll. So it sees most changes within milliseconds and every
// lasting one within WithLongestPoll, at a cost of at most a hundred cheap commands a
// second while the lock is busy and one for each WithLongestPoll while it is not. The
// watches of one lock in a client share these looks, and one goroutine: fifty cost
// what one costs. (Two RedLock values are two locks here.) Those of a client share its
// subscribed connection.
//
// While Redis cannot be reached, or answers with an error, nothing is delivered; it
// goes on when Redis is back. The errors are told to the Observer (Retry).
//
// Watch itself fails at once with an error that matches ErrInvalidArgument, if the
// lock was made with arguments that are wrong, or ErrClosed.
func (l *core) Watch(ctx context.Context) (<-chan State, error) {
	if err := l.check(ctx); err != nil {
		return nil, err
	}
	c := l.c
	if !c.begin() {
		return nil, l.error(ErrClosed)
	}
	defer c.end()
	w := &watch{states: make(chan State, 1)}
	if ctx.Err() != nil {
		close(w.states)
		return w.states, nil
	}
	c.pollers.join(w, l.viewed())
	w.until(ctx, func() { c.pollers.leave(w) })
	return w.states, nil
}

// viewed is how a poller looks at the lock.
func (l *core) viewed() viewed {
	return viewed{
		key: view{l.id, l.asks.View()},
		look: func(ctx context.Context) (State, error) {
			// Unlike State it does not hold up Shutdown.
			r := l.asks.Inspect().Do(ctx, l.c.cfg.commandTimeout)
			if r.Err != nil {
				return State{}, r.Err
			}
			return l.stateOf(&r.Outcome), nil
		},
		listen: func(ctx context.Context, notify func()) (end func()) {
			// Where each waiter has a channel of its own there is none for others.
			if l.asks.QueuedInRedis() || l.asks.Ready(ctx) != nil {
				return nil
			}
			return l.asks.Listen("", notify)
		},
	}
}
