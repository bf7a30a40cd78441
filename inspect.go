package rlock

import (
	"context"
	"fmt"
	"sort"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/wire"
)

// IsLocked reports whether the lock is held; for one side of a read-write lock, that side.
func (l Inspection) IsLocked(ctx context.Context) (bool, error) {
	held, _, err := l.ofHold(ctx, "")
	return held, err
}

// ofHold requests whether the lock is held, and how often a hold has been entered.
func (l *core) ofHold(ctx context.Context, id string) (held bool, entries int, err error) {
	p, err := ask(ctx, l, func() protocol.Request[protocol.Probed] { return l.proto.Probe(id) })
	return p.Outcome.Held, p.Outcome.Entries, err
}

// State returns the holders of the lock, as Redis shows them now.
func (l Inspection) State(ctx context.Context) (State, error) {
	s, err := l.inspect(ctx)
	return s.State, err
}

// inspect requests the state of the lock.
func (l *core) inspect(ctx context.Context) (watchedState, error) {
	r, err := ask(ctx, l, func() protocol.Request[protocol.State] { return l.proto.Inspect() })
	if err != nil {
		return watchedState{State: State{Mode: ModeFree}}, err
	}
	s := watchedState{l.stateOf(&r.Outcome), r.Outcome.Value}
	l.nameHolders(s.Holders, protocol.GiveUpGrace)
	return s, nil
}

// stateOf completes a state in Redis with the token and the waiters of this client.
func (l *core) stateOf(p *protocol.State) State {
	s := State{Mode: ModeFree, TTL: p.TTL, Token: p.Token, Waiters: p.Waiters}
	if p.Waiters < 0 {
		s.Waiters = l.waiters() + p.Listeners
	}
	for _, h := range p.Holders {
		s.Holders = append(s.Holders, Holder{HoldID: h.HoldID, Count: h.Count, Shared: h.Shared})
	}
	sort.Slice(s.Holders, func(i, j int) bool {
		a, b := &s.Holders[i], &s.Holders[j]
		if a.Shared != b.Shared {
			return b.Shared
		}
		return a.HoldID < b.HoldID
	})
	switch {
	case s.held(protocol.Exclusive):
		s.Mode = ModeExclusive
		if s.Token == 0 {
			s.Token = l.c.watchdog.tokenOf(l.id(), protocol.Exclusive, l.c.numberOf(s.Holders[0].HoldID))
		}
	case s.held(protocol.Shared):
		s.Mode, s.Token = ModeShared, 0
	default:
		s.Token, s.TTL = 0, 0
		s.Waiters -= p.Listeners // a free lock has no waiters
	}
	return s
}

// HoldCount returns how often the hold that ctx descends from was entered; 0 if there is none any more.
func (l Inspection) HoldCount(ctx context.Context) (int, error) {
	if err := l.check(ctx); err != nil {
		return 0, err
	}
	h := chainFrom(ctx).held(l.core, l.side)
	if h == nil {
		return 0, nil
	}
	_, entries, err := l.ofHold(ctx, h.id())
	return entries, err
}

// ForceUnlock ends all holds of the lock, or of this side, no matter who has them, and reports whether
// there was any. The holder loses its lease (ErrRemoved or ErrTakenOver) with its next renewal; a fixed
// lease at Extend or Unlock, or when it ends. After ErrUnreachable or ctx.Err() the outcome is unknown.
func (l Inspection) ForceUnlock(ctx context.Context) (bool, error) { return l.force(ctx, "") }

// ForceUnlockIf is ForceUnlock for the hold with this id only ([Lease.HoldID], [Holder].HoldID). A newer hold
// has another id, unless it was handed over ([WithHandOver]). An empty id is refused.
func (l Inspection) ForceUnlockIf(ctx context.Context, holdID string) (bool, error) {
	if holdID == "" {
		return false, l.check(ctx, invalid("ForceUnlockIf needs a hold id"))
	}
	return l.force(ctx, holdID)
}

func (l *core) force(ctx context.Context, holdID string) (bool, error) {
	if err := l.beginCall(ctx); err != nil {
		return false, err
	}
	defer l.c.endCall()
	if err := l.ready(ctx); err != nil {
		return false, err
	}
	r, err := ask(ctx, l, func() protocol.Request[bool] { return l.proto.ForceUnlock(holdID) })
	if err != nil {
		return false, err
	}
	if !r.Outcome && r.Unsure {
		// Another copy of the request may have ended the hold.
		return false, l.error(fmt.Errorf("%w in time, and the repeated request found nothing: the outcome is unknown", ErrUnreachable))
	}
	l.c.lines.Wake(l.id())
	return r.Outcome, nil
}

// nameHolders adds the processes of holders that are cached, or are received within a time.
func (l *core) nameHolders(holders []Holder, within time.Duration) {
	if l.c.whois == nil || len(holders) == 0 {
		return
	}
	var servers []*wire.Deployment
	if within > 0 && l.c.beginCall() { // Shutdown waits for the requests
		defer l.c.endCall()
		servers = l.servers()
	}
	ids := make([]string, len(holders))
	for i := range holders {
		ids[i] = holders[i].HoldID
	}
	for i, p := range l.c.whois.Name(ids, servers, within) {
		holders[i].Process = Process(p)
	}
}

// nameHolder adds the process of the holder, as nameHolders does.
func (l *core) nameHolder(s *snapshot, within time.Duration) {
	if s.Holder == "" || s.Err != nil {
		return
	}
	one := []Holder{{HoldID: s.Holder}}
	if l.nameHolders(one, within); one[0].Process != (Process{}) {
		s.process = &one[0].Process
	}
}
