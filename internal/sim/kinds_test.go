package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// kinds are the other types of locks. Each plays what Lock does.
var kinds = []kind{
	{
		name: "lock through Redis",
		open: alone(func(c *rlock.Client, name string) rlock.Locker {
			return c.NewLock(name, rlock.WithHandOver(0, 0))
		}),
		holds: plainHolds,
	},
	{
		name: "lock, combined",
		open: alone(func(c *rlock.Client, name string) rlock.Locker {
			return c.NewLock(name, rlock.WithHandOver(0, 0))
		}),
		holds: plainHolds, combined: true,
	},
	{
		name:  "spin",
		open:  alone(func(c *rlock.Client, name string) rlock.Locker { return c.NewSpinLock(name) }),
		holds: plainHolds,
	},
	{
		name:  "fenced",
		open:  alone(func(c *rlock.Client, name string) rlock.Locker { return c.NewFencedLock(name) }),
		holds: plainHolds,
		// A loss of data takes the counter along.
		forgets: true,
	},
	{
		name:  "fair",
		open:  alone(func(c *rlock.Client, name string) rlock.Locker { return c.NewFairLock(name) }),
		holds: plainHolds, queuedInRedis: true, neighbors: true,
	},
	{
		name:  "fair, crowded",
		open:  alone(func(c *rlock.Client, name string) rlock.Locker { return c.NewFairLock(name) }),
		holds: plainHolds, queuedInRedis: true, neighbors: true, crowded: true,
	},
	{
		name: "read-write",
		open: func(c *rlock.Client, name string) (exclusive, shared rlock.Locker) {
			l := c.NewReadWriteLock(name)
			return l.Writer, l.Reader
		},
		holds: sidedHolds,
	},
	{
		name: "read-write, combined",
		open: func(c *rlock.Client, name string) (exclusive, shared rlock.Locker) {
			l := c.NewReadWriteLock(name)
			return l.Writer, l.Reader
		},
		holds: sidedHolds, combined: true,
	},
	{
		name: "readers first",
		open: func(c *rlock.Client, name string) (exclusive, shared rlock.Locker) {
			l := c.NewReadWriteLock(name, rlock.WithReaderPreference())
			return l.Writer, l.Reader
		},
		holds: sidedHolds,
	},
	{
		name: "fair read-write",
		open: func(c *rlock.Client, name string) (exclusive, shared rlock.Locker) {
			l := c.NewFairReadWriteLock(name)
			return l.Writer, l.Reader
		},
		holds: queuedHolds("fairrw"), queuedInRedis: true,
	},
	{
		name:  "fair writers",
		open:  alone(func(c *rlock.Client, name string) rlock.Locker { return c.NewFairReadWriteLock(name).Writer }),
		holds: queuedHolds("fairrw"), queuedInRedis: true, neighbors: true,
	},
	{
		name:  "fair writers, crowded",
		open:  alone(func(c *rlock.Client, name string) rlock.Locker { return c.NewFairReadWriteLock(name).Writer }),
		holds: queuedHolds("fairrw"), queuedInRedis: true, neighbors: true, crowded: true,
	},
	{
		name:  "priority",
		open:  alone(func(c *rlock.Client, name string) rlock.Locker { return c.NewPriorityLock(name) }),
		holds: queuedHolds("priority"), queuedInRedis: true, neighbors: true,
	},
	{
		name: "election",
		open: alone(func(c *rlock.Client, name string) rlock.Locker {
			return locktest.Electing{Election: c.NewElection(name), Value: c.ID() + ":"}
		}),
		holds: queuedHolds("election"), queuedInRedis: true, enteredOnce: true,
		proclaim: func(l rlock.Locker, lease *rlock.Lease, n int) error {
			value := fmt.Sprintf("%s %d", lease.HoldID(), n)
			return l.(locktest.Electing).Proclaim(context.Background(), lease, value)
		},
		several: several{ghost: misattributed},
	},
	{
		name: "permits", open: openPermits(),
		holds: permitHolds, enteredOnce: true, permits: true, called: permitBase,
		several: several{ghost: miscounted},
	},
	{
		name: "fair permits", open: openPermits(rlock.WithFairness()),
		holds: fairPermitHolds, queuedInRedis: true, enteredOnce: true, permits: true,
		several: several{ghost: fairMiscounted},
	},
}

// misattributed tells of a value in Redis that is not of the leader.
func misattributed(w *World, lock string) string {
	base, m := derived(lock, "rlock:election"), w.Redis(0)
	if !m.Exists(base) {
		return ""
	}
	owner, value := m.HGet(base, "exclusive"), m.HGet(base, "value")
	if client := owner[:strings.LastIndexByte(owner, ':')+1]; value != client && !strings.HasPrefix(value, owner+" ") {
		return fmt.Sprintf("%s proclaims %q", owner, value)
	}
	return ""
}

func alone(open func(c *rlock.Client, name string) rlock.Locker) func(*rlock.Client, string) (exclusive, shared rlock.Locker) {
	return func(c *rlock.Client, name string) (exclusive, shared rlock.Locker) { return open(c, name), nil }
}

// sidedHolds are those of a read-write lock. A reader without a live timer is
// none, whatever the hash says.
func sidedHolds(m contents, lock string) map[hold]string {
	holds := map[hold]string{}
	for h, n := range plainHolds(m, lock) {
		owner, writes := strings.CutSuffix(h.owner, ":write")
		if owner == "mode" || !writes && !m.Exists(derived(lock, owner+":rwlock_timeout:1")) {
			continue
		}
		holds[hold{owner, !writes}] = n
	}
	return holds
}

// queuedHolds are those of a lock with a queue of its own.
func queuedHolds(what string) func(contents, string) map[hold]string {
	return func(m contents, lock string) map[hold]string {
		holds := map[hold]string{}
		base := derived(lock, "rlock:"+what)
		if !m.Exists(base) {
			return holds
		}
		members, _ := m.ZMembers(base + ":ends")
		now := m.now.UnixMilli()
		for _, member := range members {
			end, _ := m.ZScore(base+":ends", member)
			switch {
			case int64(end) < now:
			case member == "exclusive":
				holds[hold{m.HGet(base, "exclusive"), false}] = m.HGet(base, "count")
			default:
				holds[hold{member, true}] = m.HGet(base, member)
			}
		}
		return holds
	}
}

func derived(lock, suffix string) string {
	if strings.Contains(lock, "{") {
		return lock + ":" + suffix
	}
	return "{" + lock + "}:" + suffix
}

// repeatable is a scenario for each of the kinds: the same seed gives the same run.
func repeatable(name string) (all []scenario) {
	s := scenarios[slices.IndexFunc(scenarios, func(s scenario) bool { return s.name == name })]
	for _, s.kind = range kinds {
		all = append(all, s)
	}
	return all
}

// The clock of the server jumps, ahead and back: a hold that lived through a jump ahead may be lost, and no
// token comes again.
func TestEachTypeWhileTheClockJumps(t *testing.T) {
	for i, kind := range kinds {
		s := scenario{name: "clocks", rates: lossy, mix: Mix{Jump, Jump, Partition}, faults: 14, runs: 50, kind: kind}
		t.Run(kind.name, func(t *testing.T) {
			if i%4 > 0 && !thorough() && *seedFlag == 0 {
				t.Skip("needs -sim.all")
			}
			t.Parallel()
			s.play(t, (ordinary(s.runs)+9)/10, func(*judge) bool { return true })
		})
	}
}

func TestEachTypeKeepsItsPromises(t *testing.T) {
	for i, kind := range kinds {
		for j, s := range scenarios {
			s.kind = kind
			t.Run(kind.name+"/"+s.name, func(t *testing.T) {
				usual := j == i%len(scenarios) || s.name == "everything" && i%2 == 0 && !brief()
				if !usual && !thorough() && *seedFlag == 0 {
					t.Skip("needs -sim.all")
				}
				t.Parallel()
				s.play(t, (ordinary(s.runs)+9)/10, func(*judge) bool { return true })
			})
		}
	}
}
