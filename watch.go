package rlock

import (
	"context"
	"slices"
)

// core has Watch for every type; doc.go says what it promises.

// Watch sends the State, now and after each change that it sees: see [State].
func (l *core) Watch(ctx context.Context) (<-chan State, error) {
	if err := l.check(ctx); err != nil {
		return nil, err
	}
	c := l.c
	if !c.begin() {
		return nil, l.error(ErrClosed)
	}
	defer c.end()
	states := make(latest[State], 1)
	l.show(ctx, &watch{tellee: statesTo{states}})
	return states, nil
}

// show has a watch told what there is to see, until the context or the client ends.
func (l *core) show(ctx context.Context, w *watch) {
	if ctx.Err() != nil {
		w.end()
		return
	}
	l.c.pollers.join(w, l.viewed())
	w.until(ctx, func() { l.c.pollers.leave(w) })
}

// latest is a channel, of capacity 1, that has the latest of what was sent if it was not
// read yet. Only one may send.
type latest[T any] chan T

func (c latest[T]) send(v T) {
	select {
	case <-c:
	default:
	}
	c <- v // there is room
}

func (c latest[T]) end() { close(c) }

// statesTo tells a Watch.
type statesTo struct{ latest[State] }

func (to statesTo) tell(s *sighting) {
	// The reader gets its own holders: those of the poller are compared later.
	own := s.State
	own.Holders = slices.Clone(own.Holders)
	to.send(own)
}

// viewed is how a poller looks at the lock.
func (l *core) viewed() viewed {
	return viewed{
		key: view{l.id(), l.asks.View()},
		look: func(ctx context.Context) (sighting, error) {
			// Unlike State it does not hold up Shutdown.
			r := l.asks.Inspect().Do(ctx, l.c.cfg.commandTimeout)
			if r.Err != nil {
				return sighting{}, r.Err
			}
			return sighting{l.stateOf(&r.Outcome), r.Outcome.Value}, nil
		},
		listen: func(ctx context.Context, notify func()) (end func()) {
			if l.asks.Ready(ctx) != nil {
				return nil
			}
			// Where each waiter has a channel of its own there may be none for others.
			return l.asks.Listen("", notify)
		},
		name: l.nameHolders,
	}
}
