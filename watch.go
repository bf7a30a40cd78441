package rlock

import (
	"context"
	"slices"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/watch"
)

// Watch sends the [State] to a channel, now and after each change that a poll shows, until ctx or the client ends:
// that closes the channel. The channel has only the latest state, and no new one while Redis cannot be
// reached, so it does not prove that a lock is free or held. The error matches ErrInvalidArgument or ErrClosed.
func (l Inspection) Watch(ctx context.Context) (<-chan State, error) {
	if err := l.beginCall(ctx); err != nil {
		return nil, err
	}
	defer l.c.endCall()
	states := make(watch.Latest[State], 1)
	l.c.pollers.Show(ctx, l.watched(), statesTo{states})
	return states, nil
}

// statesTo sends states to the channel of a Watch.
type statesTo struct{ watch.Latest[State] }

func (to statesTo) Update(s *watchedState) {
	// The reader gets its own copy of the holders, as other watches get the same slice.
	own := s.State
	own.Holders = slices.Clone(own.Holders)
	to.Send(own)
}

// view identifies the state that a watch shows. Types with the same LockID may show different parts of the state, and
// subscribe to different channels.
type view struct {
	lockID protocol.LockID
	shown  any
}

func (l *core) watched() watch.Source[watchedState] {
	return watch.Source[watchedState]{
		Key: view{l.id(), l.proto.View()},
		Poll: func(ctx context.Context) (watchedState, error) {
			// Unlike State it does not hold up Shutdown.
			r := l.proto.Inspect().Do(ctx, l.c.cfg.commandTimeout)
			if r.Err != nil {
				return watchedState{}, r.Err
			}
			return watchedState{l.stateOf(&r.Outcome), r.Outcome.Value}, nil
		},
		Listen: func(ctx context.Context, notify func()) (end func()) {
			if l.proto.Ready(ctx) != nil {
				return nil
			}
			// A type whose waiters have separate channels may have no channel for watches.
			return l.proto.Listen("", notify)
		},
		Changed: changed,
		Rest: func(s *watchedState) time.Duration {
			if !s.Locked() || s.TTL < 0 {
				return -1
			}
			return s.TTL + time.Millisecond // Redis drops a key in the millisecond after its last one
		},
		Fill: func(s *watchedState) {
			s.Holders = slices.Clone(s.Holders) // Changed compares the original slice later
			l.nameHolders(s.Holders, protocol.GiveUpGrace)
		},
		Failed: func(ctx context.Context, err error) {
			l.c.events.retry(ctx, RetryEvent{Event: Event{Lock: l.name()}, Operation: "watch", Locks: 1, Err: err})
		},
	}
}

func changed(last, s *watchedState) bool {
	if last == nil {
		return true
	}
	if s.Token == 0 && s.held(protocol.Exclusive) && last.held(protocol.Exclusive) && s.Holders[0].HoldID == last.Holders[0].HoldID {
		// If Redis has no room for the token, only the holding client has it. The hold ends there a moment before Redis shows
		// the end.
		s.Token = last.Token
	}
	return s.Mode != last.Mode || s.Token != last.Token || s.value != last.value || !slices.Equal(s.Holders, last.Holders)
}
