package rlock

import "context"

// core has Watch for every type; doc.go says what it promises.

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
		key: view{l.id(), l.asks.View()},
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
