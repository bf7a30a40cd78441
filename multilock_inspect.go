package rlock

import (
	"context"
	"errors"
)

// inspectable are the lock types of this package but MultiLock.
type inspectable interface {
	IsLocked(ctx context.Context) (bool, error)
	State(ctx context.Context) (State, error)
	HeldBy(ctx context.Context) (int, error)
	ForceUnlock(ctx context.Context) (bool, error)
	ForceUnlockIf(ctx context.Context, owner string) (bool, error)
}

// each calls fn with each member, until it returns false or an error. A member of a
// type of the caller's that has not the methods is refused, before anything is sent.
func (m *MultiLock) each(ctx context.Context, fn func(l inspectable) (bool, error)) error {
	if err := m.check(ctx); err != nil {
		return err
	}
	members := make([]inspectable, len(m.members))
	for i, l := range m.members {
		var ok bool
		if members[i], ok = l.(inspectable); !ok {
			return m.error(invalid("the member %.100q cannot be inspected: a %T has not all of IsLocked, State, HeldBy, ForceUnlock and ForceUnlockIf", l.Name(), l))
		}
	}
	for _, l := range members {
		if more, err := fn(l); err != nil || !more {
			return err
		}
	}
	return nil
}

// IsLocked reports whether anybody holds any of the members: then nobody else can
// have them all. The members are asked one after the other, so the answer is not of
// one moment. Its bounds and errors, for each member, are those of [Lock.IsLocked];
// the errors of all methods match ErrInvalidArgument too, if a member is of a type
// of the caller's that has no such methods.
func (m *MultiLock) IsLocked(ctx context.Context) (locked bool, err error) {
	err = m.each(ctx, func(l inspectable) (bool, error) {
		locked, err = l.IsLocked(ctx)
		return !locked, err
	})
	return locked, err
}

// State returns the states of the members as one: their holders, the longest TTL,
// and how many wait for one of them. Who holds the whole is a holder of each, with
// another id. There is no token: each member has its own ([Lease.Members]). The
// members are asked one after the other, so it is not the state of one moment.
func (m *MultiLock) State(ctx context.Context) (State, error) {
	all := State{Mode: ModeFree}
	err := m.each(ctx, func(l inspectable) (bool, error) {
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

// HeldBy returns how often the owner that ctx descends from has entered the whole:
// as often as that member which it has entered least, according to Redis.
func (m *MultiLock) HeldBy(ctx context.Context) (times int, err error) {
	first := true
	err = m.each(ctx, func(l inspectable) (bool, error) {
		n, err := l.HeldBy(ctx)
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

// ForceUnlock frees all members, whoever holds them, and reports whether any was
// held. It goes on after an error; the errors of all members are joined. What is said
// of [Lock.ForceUnlock] holds for each member. Who held the whole learns that it is
// lost with the first member that tells, and gives the others back.
func (m *MultiLock) ForceUnlock(ctx context.Context) (bool, error) {
	return m.force(ctx, func(l inspectable) (bool, error) { return l.ForceUnlock(ctx) })
}

// ForceUnlockIf frees those members that the owner with this id holds. That can be
// one at most, for a hold of the whole has an id for each member; but then the whole
// is lost, and its client gives the others back.
func (m *MultiLock) ForceUnlockIf(ctx context.Context, owner string) (bool, error) {
	return m.force(ctx, func(l inspectable) (bool, error) { return l.ForceUnlockIf(ctx, owner) })
}

func (m *MultiLock) force(ctx context.Context, fn func(l inspectable) (bool, error)) (held bool, err error) {
	var failed []error
	err = m.each(ctx, func(l inspectable) (bool, error) {
		did, err := fn(l)
		held = held || did
		failed = append(failed, err)
		return true, nil
	})
	return held, errors.Join(append(failed, err)...)
}
