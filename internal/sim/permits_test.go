package sim

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/go-rlock/rlock"
)

// A PermitSemaphore plays as a lock with two sides: each takes another number of permits.
// There are too few for two of one side, or for both twice.
const (
	permitsOfAll    = 3
	permitsToAlone  = 2 // of which two holds exclude each other
	permitsToBeside = 1
)

// permitsOf is how many permits a hold has.
func permitsOf(h hold) int {
	if h.shared {
		return permitsToBeside
	}
	return permitsToAlone
}

// permitTaker is one of the two sides. It sets the number of permits if there is none: at
// first, or since the data was lost.
type permitTaker struct {
	*rlock.PermitSemaphore
	n int
}

func (l permitTaker) Lock(ctx context.Context, opts ...rlock.AcquireOption) (*rlock.Lease, error) {
	return l.take(ctx, func() (*rlock.Lease, error) { return l.Acquire(ctx, l.n, opts...) })
}

func (l permitTaker) TryLock(ctx context.Context, opts ...rlock.TryOption) (*rlock.Lease, error) {
	return l.take(ctx, func() (*rlock.Lease, error) { return l.TryAcquire(ctx, l.n, opts...) })
}

func (l permitTaker) take(ctx context.Context, acquire func() (*rlock.Lease, error)) (*rlock.Lease, error) {
	for {
		lease, err := acquire()
		if !errors.Is(err, rlock.ErrNotSet) {
			return lease, err
		}
		if _, err := l.TrySetPermits(context.WithoutCancel(ctx), permitsOfAll); err != nil {
			return nil, err
		}
	}
}

func openPermits(opts ...rlock.PermitSemaphoreOption) func(c *rlock.Client, name string) (alone, beside rlock.Locker) {
	return func(c *rlock.Client, name string) (alone, beside rlock.Locker) {
		digits := strings.ReplaceAll(c.ID(), "-", "")
		simClients.Store(digits[:18], c.ID())
		s := c.NewPermitSemaphore(name, opts...)
		return permitTaker{s, permitsToAlone}, permitTaker{s, permitsToBeside}
	}
}

// simClients are the clients of all runs, by what the ids of permits have of their ids. A
// seed gives the same ids in each run.
var simClients sync.Map

// permitHolds are the holds of a PermitSemaphore that have not expired. A hold that has lost
// a part of its permits looks like another.
func permitHolds(m contents, lock string) map[hold]string {
	counts := map[string]int{}
	held := derived(lock, "timeout")
	if m.Exists(held) {
		members, _ := m.ZMembers(held)
		for _, id := range members {
			if end, _ := m.ZScore(held, id); int64(end) > m.now.UnixMilli() {
				counts[id[:14]]++
			}
		}
	}
	holds := map[hold]string{}
	for base, n := range counts {
		client, _ := simClients.Load(fmt.Sprintf("%x", base[:9]))
		number, _ := strconv.ParseInt(fmt.Sprintf("%x", base[9:]), 16, 64)
		holds[hold{fmt.Sprintf("%v:%d", client, number), n == permitsToBeside}] = "1"
	}
	return holds
}

// permitBase is what the ids of a hold's permits begin with.
func permitBase(id string) string {
	client, number, _ := strings.Cut(id, ":")
	n, _ := strconv.ParseUint(number, 10, 64)
	base, _ := hex.DecodeString(fmt.Sprintf("%.18s%010x", strings.ReplaceAll(client, "-", ""), n))
	return string(base)
}

// fairPermitHolds are those of a PermitSemaphore WithFairness.
func fairPermitHolds(m contents, lock string) map[hold]string {
	holds := map[hold]string{}
	base := derived(lock, "rlock:permits")
	if !m.Exists(base + ":ends") {
		return holds
	}
	members, _ := m.ZMembers(base + ":ends")
	for _, id := range members {
		if end, _ := m.ZScore(base+":ends", id); int64(end) >= m.now.UnixMilli() {
			holds[hold{id, m.HGet(base, id) == strconv.Itoa(permitsToBeside)}] = "1"
		}
	}
	return holds
}

// miscounted tells of permits that do not add up: those that are free, and all that are held
// or have expired.
func miscounted(w *World, lock string) string {
	m := w.Redis(0)
	if !m.Exists(lock) {
		return ""
	}
	text, _ := m.Get(lock)
	free, _ := strconv.Atoi(text)
	n := 0
	if held := derived(lock, "timeout"); m.Exists(held) {
		members, _ := m.ZMembers(held)
		n = len(members)
	}
	if free+n != permitsOfAll {
		return fmt.Sprintf("%d permits are free and %d held, of %d", free, n, permitsOfAll)
	}
	return ""
}

// fairMiscounted is miscounted WithFairness.
func fairMiscounted(w *World, lock string) string {
	m, base := w.Redis(0), derived(lock, "rlock:permits")
	if !m.Exists(base) {
		return ""
	}
	n, _ := strconv.Atoi(m.HGet(base, "free"))
	text := fmt.Sprintf("free %d", n)
	fields, _ := m.HKeys(base)
	for _, f := range fields {
		if f != "free" && f != "total" {
			k, _ := strconv.Atoi(m.HGet(base, f))
			n += k
			text += fmt.Sprintf(", %s %d", f, k)
		}
	}
	if n != permitsOfAll {
		return fmt.Sprintf("%s: %d permits of %d", text, n, permitsOfAll)
	}
	return ""
}

// roomLocked looks whether more permits are out than there are, when s has its own.
func (j *judge) roomLocked(lock string, s *openHold, losses int) {
	out, who := permitsOf(s.hold), s.who
	for _, other := range j.locks[lock].open {
		if other == s || j.excusedLocked(other, losses) || j.excusedLocked(s, losses) {
			continue
		}
		for _, l := range other.leases {
			if j.believes(l) {
				out += permitsOf(other.hold)
				who += ", " + other.who
				break
			}
		}
	}
	if out > permitsOfAll {
		j.doubles++
		j.accuseLocked("%d permits of %s are out: %s", out, lock, who)
	}
}

// allBack looks whether all permits are free when everybody has left. Who comes next removes
// what there is of holds that have expired.
func (j *judge) allBack(p *player) {
	for _, name := range lockNames {
		state, err := p.locks[name].(permitTaker).State(context.Background())
		if err == nil && state.Set {
			var n int
			n, err = p.locks[name].(permitTaker).Available(context.Background())
			state.Available = n
		}
		if err != nil || state.Set && (state.Available != permitsOfAll || state.Permits != permitsOfAll) {
			j.accuse("permits of %s are missing: %+v %v", name, state, err)
		}
		if !state.Set {
			continue
		}
		l, err := p.locks[name].Lock(context.Background())
		if err == nil {
			err = l.Unlock(context.Background())
		}
		if err != nil {
			j.accuse("permits of %s: the next one to come: %v", name, err)
		}
	}
}
