//go:build unix

package processes

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// childDetaches is a command that takes the lock for other commands.
func childDetaches(t *testing.T, p *locktest.Parent, addr string, _ []string) {
	c, _ := locktest.ChildClient(t, addr)
	p.Report("handle %s", detach(t, locktest.MustLock(t, c.NewLock("a"), rlock.WithLease(time.Hour))))
}

// childAdopts goes on with the lock, and unlocks it.
func childAdopts(t *testing.T, p *locktest.Parent, addr string, args []string) {
	c, _ := locktest.ChildClient(t, addr)
	var opts []rlock.AcquireOption
	if len(args) > 1 {
		lease, err := time.ParseDuration(args[1])
		if err != nil {
			t.Fatal(err)
		}
		opts = append(opts, rlock.WithLease(lease))
	}
	l := adopt(t, c, args[0], opts...)
	p.Report("adopted %d", l.Token())
	p.Await("unlock")
	locktest.MustUnlock(t, l)
	p.Report("unlocked")
}

// The process that adopts is killed before it has an answer, or after: the lock is free at the end of its lease, and
// nobody else enters before.
func TestAProcessThatAdoptsIsKilled(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	c := b.NewClient(t)
	l := c.NewLock("a")
	first := locktest.StartChild(t, "detaches", b.Addr)
	handle := first.Report("handle")
	first.Finish()
	second := locktest.StartChild(t, "adopts", b.Addr, handle, locktest.Ample(time.Second).String())
	second.Report("adopted")
	second.Kill()
	stale(t, c, handle)
	_, err := l.TryLock(bg)
	locktest.WantErr(t, err, rlock.ErrNotAcquired)
	locktest.MustUnlock(t, locktest.MustLock(t, l)) // the hour of the holder before does not count
}

// A lock is taken by one command, and freed by another: the first has ended long since.
func TestCommandsPassALockOn(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	first := locktest.StartChild(t, "detaches", b.Addr)
	handle := first.Report("handle")
	first.Finish()
	l := b.NewClient(t).NewLock("a")
	locktest.MustBeHeld(t, l)
	second := locktest.StartChild(t, "adopts", b.Addr, handle)
	second.Report("adopted")
	locktest.MustBeHeld(t, l)
	second.Order("unlock")
	second.Report("unlocked")
	second.Finish()
	locktest.MustBeFree(t, l)
}

var relayFor = flag.Duration("adoption.for", 10*time.Second, "how long processes pass a lock on")

// childRelays takes the lock or adopts it, writes down when it is in, and leaves it to others as often as it unlocks it.
func childRelays(t *testing.T, p *locktest.Parent, addr string, args []string) {
	c, rdb := locktest.ChildClient(t, addr, rlock.WithWatchdogLease(relayLease))
	me, r := args[0], rand.New(rand.NewPCG(uint64(os.Getpid()), 1))
	note := func(what string, l *rlock.Lease) {
		rdb.RPush(bg, "log", fmt.Sprint(what, " ", me, " ", l.Token()))
	}
	p.Report("begins")
	for rdb.Exists(bg, "over").Val() == 0 {
		var l *rlock.Lease
		var err error
		if handle := rdb.LPop(bg, "handles").Val(); handle != "" && r.IntN(8) > 0 {
			if r.IntN(2) == 0 {
				_ = c.Extend(bg, handle, relayLease)
			}
			ctx, cancel := context.WithCancel(bg)
			if r.IntN(4) == 0 {
				time.AfterFunc(time.Duration(r.IntN(2000))*time.Microsecond, cancel)
			}
			if l, err = c.Adopt(ctx, handle); err != nil && !errors.Is(err, rlock.ErrNotAcquired) {
				rdb.RPush(bg, "handles", handle)
			}
			cancel()
		} else {
			l, err = c.NewFencedLock("a").Lock(bg, rlock.WithWait(20*time.Millisecond))
		}
		if err != nil {
			continue
		}
		note("in", l)
		time.Sleep(time.Duration(r.IntN(3000)) * time.Microsecond)
		if l.Err() != nil {
			note("lost", l)
			continue
		}
		note("out", l)
		if r.IntN(2) == 0 {
			_ = l.Unlock(bg)
		} else if handle, err := l.Detach(bg); handle != "" {
			if rdb.RPush(bg, "handles", handle); err == nil {
				rdb.Incr(bg, "detached")
			}
		}
	}
}

const relayLease = 3 * time.Second

// Processes pass a lock on, and some are killed or stopped for a moment meanwhile. Two are never in at a time, and
// tokens only grow.
func TestProcessesPassALockOnUnderFire(t *testing.T) {
	locktest.Nightly(t)
	b := locktest.OnServer(t)
	rdb := b.Client(t)
	r := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 2))
	n, children := 0, map[int]*locktest.Child{}
	begin := func() {
		n++
		children[n] = locktest.StartChild(t, "relays", b.Addr, fmt.Sprint(n))
		children[n].Report("begins")
	}
	for range 4 {
		begin()
	}
	for end := time.Now().Add(*relayFor); time.Now().Before(end); {
		time.Sleep(time.Duration(r.IntN(400)) * time.Millisecond) // the pace of faults
		which := slices.Sorted(maps.Keys(children))[r.IntN(len(children))]
		if r.IntN(2) == 0 {
			children[which].Signal(syscall.SIGSTOP)
			time.Sleep(time.Duration(r.IntN(200)) * time.Millisecond)
			children[which].Signal(syscall.SIGCONT)
			continue
		}
		children[which].Kill()
		rdb.RPush(bg, "log", fmt.Sprint("killed ", which, " 0"))
		delete(children, which)
		begin()
	}
	rdb.Set(bg, "over", 1, 0)
	for _, c := range children {
		c.Finish()
	}
	judgeRelay(t, rdb.LRange(bg, "log", 0, -1).Val(), rdb.Get(bg, "detached").Val())
}

func judgeRelay(t *testing.T, log []string, detached string) {
	t.Helper()
	var in, adopted, kills, lost int
	var inside string // who is in
	var newest int64
	gone := map[string]bool{} // who was killed, or has lost the lock, at any time
	for _, line := range log {
		if f := strings.Fields(line); f[0] == "lost" || f[0] == "killed" {
			gone[f[1]] = true
		}
	}
	for i, line := range log {
		f := strings.Fields(line)
		token, _ := strconv.ParseInt(f[2], 10, 64)
		switch f[0] {
		case "in":
			in++
			if inside != "" && !gone[inside] {
				t.Errorf("line %d: %s, and %s is in", i, line, inside)
			}
			if token < newest {
				t.Errorf("line %d: %s after %d", i, line, newest)
			} else if token == newest {
				adopted++
			}
			inside, newest = f[1], token
		case "killed":
			kills++
			if inside == f[1] {
				inside = ""
			}
		case "lost":
			lost++
			fallthrough
		case "out":
			if inside == f[1] {
				inside = ""
			}
		}
	}
	t.Logf("%d times in, %d of them adopted, of %s detached; %d killed, %d lost", in, adopted, detached, kills, lost)
	if adopted == 0 || kills == 0 {
		t.Error("that shows nothing")
	}
}
