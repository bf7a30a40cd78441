package rlock

import (
	"context"
	"errors"
	"reflect"
)

var (
	_ Inspector        = (*MultiLock)(nil)
	_ ReleaseRequester = (*MultiLock)(nil)
)

// membersAs are the members as what a method needs of them. One that is no such thing, of a
// type of the caller's, is refused before anything is sent.
func membersAs[T any](ctx context.Context, m *MultiLock) ([]T, error) {
	if err := m.check(ctx); err != nil {
		return nil, err
	}
	all := make([]T, len(m.members))
	for i, l := range m.members {
		var ok bool
		if all[i], ok = l.(T); !ok {
			return nil, m.error(invalid("the member %.100q is a %T, which is no %v", l.Name(), l, reflect.TypeFor[T]()))
		}
	}
	return all, nil
}

// each calls fn with each member, until it returns false or an error.
func (m *MultiLock) each(ctx context.Context, fn func(l Inspector) (bool, error)) error {
	members, err := membersAs[Inspector](ctx, m)
	if err != nil {
		return err
	}
	for _, l := range members {
		if more, err := fn(l); err != nil || !more {
			return err
		}
	}
	return nil
}

// IsLocked reports whether anybody holds any member. The members are asked one after the other. If one
// is no [Inspector], it fails with ErrInvalidArgument.
func (m *MultiLock) IsLocked(ctx context.Context) (locked bool, err error) {
	err = m.each(ctx, func(l Inspector) (bool, error) {
		locked, err = l.IsLocked(ctx)
		return !locked, err
	})
	return locked, err
}

// State returns the states of the members as one: their holders, longest TTL and number of waiters, and
// no token ([Lease.Members] has those).
func (m *MultiLock) State(ctx context.Context) (State, error) {
	all := State{Mode: ModeFree}
	err := m.each(ctx, func(l Inspector) (bool, error) {
		s, err := l.State(ctx)
		if s.Mode == ModeExclusive || all.Mode == ModeFree {
			all.Mode = s.Mode
		}
		all.Holders = append(all.Holders, s.Holders...)
		if s.TTL < 0 || all.TTL >= 0 && s.TTL > all.TTL {
			all.TTL = s.TTL
		}
		all.Waiters += s.Waiters
		return true, err
	})
	if err != nil {
		return State{Mode: ModeFree}, err
	}
	return all, nil
}

// HoldCount returns how often the owner of ctx has entered all members.
func (m *MultiLock) HoldCount(ctx context.Context) (times int, err error) {
	first := true
	err = m.each(ctx, func(l Inspector) (bool, error) {
		n, err := l.HoldCount(ctx)
		if first || n < times {
			times = n
		}
		first = false
		return times > 0, err
	})
	if err != nil {
		return 0, err
	}
	return times, nil
}

// ForceUnlock frees all members, whoever holds them, and reports whether any was held. It goes on after
// an error, and joins the errors.
func (m *MultiLock) ForceUnlock(ctx context.Context) (bool, error) {
	return m.force(ctx, func(l Inspector) (bool, error) { return l.ForceUnlock(ctx) })
}

// ForceUnlockIf frees the member that the hold with this id has. If it was part of a hold of the whole,
// the whole is lost.
func (m *MultiLock) ForceUnlockIf(ctx context.Context, holdID string) (bool, error) {
	return m.force(ctx, func(l Inspector) (bool, error) { return l.ForceUnlockIf(ctx, holdID) })
}

// RequestRelease asks the holders of all members, as ForceUnlock does. If a member is no
// [ReleaseRequester], it fails with ErrInvalidArgument at once.
func (m *MultiLock) RequestRelease(ctx context.Context) (asked bool, err error) {
	members, err := membersAs[ReleaseRequester](ctx, m)
	if err != nil {
		return false, err
	}
	var failed []error
	for _, l := range members {
		one, err := l.RequestRelease(ctx)
		asked = asked || one
		failed = append(failed, err)
	}
	return asked, errors.Join(failed...)
}

func (m *MultiLock) force(ctx context.Context, fn func(l Inspector) (bool, error)) (held bool, err error) {
	var failed []error
	err = m.each(ctx, func(l Inspector) (bool, error) {
		did, err := fn(l)
		held = held || did
		failed = append(failed, err)
		return true, nil
	})
	return held, errors.Join(append(failed, err)...)
}
