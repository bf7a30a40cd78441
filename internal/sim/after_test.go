package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-rlock/rlock"
)

// inPeace locks when all faults are over. A FencedLock whose counter was lost with the data reports that once.
func inPeace(ctx context.Context, w *World, s scenario, l rlock.Locker) (*rlock.Lease, error) {
	lease, err := l.Lock(ctx)
	if s.kind.forgets && w.Stats().Losses > 0 && errors.Is(err, rlock.ErrRefused) && strings.Contains(err.Error(), "the fencing token") {
		return l.Lock(ctx)
	}
	return lease, err
}

// after is the part of a run when all faults are over and all leases unlocked.
func after(w *World, j *judge, s scenario, players []*player, workers []*worker, healed time.Duration) {
	ctx := context.Background()

	// A new client gets in within a lease and a poll: it may have to wait for the
	// clean-up of what was left, but not longer.
	fresh := newPlayer(w, s, "fresh")
	patience := lockLease + lockPoll + time.Second + s.kind.recovers
	for _, name := range lockNames {
		l, err := fresh.locks[name].Lock(ctx, rlock.WithWait(patience))
		if back, _ := j.revived(name); err != nil && back > 0 {
			time.Sleep(longestFix + time.Second)
			l, err = fresh.locks[name].Lock(ctx, rlock.WithWait(patience))
		}
		if err != nil {
			j.accuse("%s cannot be had %v after everybody has left: %v; Redis: %s\n%s", name, patience, err, w.contents(), j.histories())
			continue
		}
		if err := l.Unlock(ctx); err != nil {
			j.accuse("Unlock of %s in peace: %v", name, err)
		}
	}

	// When the last late copy has run, nobody holds anything, without waiting
	// for the end of a lease.
	time.Sleep(max(0, healed+max(s.rates.LateWithin, 4*time.Second)+time.Second-w.Elapsed()) + 3*time.Second)
	for _, name := range lockNames {
		switch back, others := j.revived(name); {
		case others == 0 && back > 0:
			j.mu.Lock()
			j.excused.left += back
			j.mu.Unlock()
			time.Sleep(longestFix + time.Second) // it kept fresh out of too few servers, or came later
		case others > 0:
			j.accuse("%s is held by nobody: %s\n%s", name, w.contents(), j.histories())
		}
	}

	// Everybody gets on, the counts are right again.
	j.say("once more")
	before := j.acquired
	var work sync.WaitGroup
	for _, k := range workers {
		work.Go(func() {
			k.h.Sleep(k.who, k.between(0, 20*time.Millisecond))
			q := j.asks(k.who, lockNames[0], false, nil)
			l, err := inPeace(ctx, w, s, k.locks[lockNames[0]])
			if err != nil {
				j.accuse("%s: in peace, Lock returned %v", k.who, err)
				return
			}
			j.handed(q, l)
			losses := w.Stats().Losses
			var open []*rlock.Lease
			for n := k.r.IntN(3); n > 0 && !s.kind.enteredOnce; n-- {
				inner, err := k.locks[lockNames[0]].Lock(l.Context(ctx))
				if err != nil {
					j.accuse("%s: in peace, a re-entry returned %v", k.who, err)
					break
				}
				open = append(open, inner)
			}
			open = append(open, l)
			for len(open) > 0 {
				if n := k.count(lockNames[0], grip{Lease: l}); n != strconv.Itoa(len(open)) && losses == w.Stats().Losses && !s.kind.uncounted {
					j.accuse("%s: in peace, the count in Redis is %q with %d open leases", k.who, n, len(open))
				}
				k.h.Sleep(k.who, k.between(0, 5*time.Millisecond))
				if len(open) == 1 {
					j.unlocks(lockNames[0], l)
				}
				if err := open[0].Unlock(ctx); err != nil {
					j.accuse("%s: in peace, Unlock returned %v", k.who, err)
				}
				open = open[1:]
			}
		})
	}
	start := w.Elapsed()
	work.Wait()
	if took := w.Elapsed() - start; took > time.Duration(len(workers))*(lockPoll/2) {
		j.accuse("%d workers took %v to get the lock once each", j.acquired-before, took)
	}

	handOvers(w, j, s)

	// Redis forgets everything but the clocks, and the number of permits.
	time.Sleep(time.Minute + longestFix)
	if s.kind.permits {
		j.allBack(fresh)
	}
	var left []string
	for i := range w.servers {
		for _, key := range w.keysOf(i) {
			// The record of a vote outlives the vote: the next one to vote replaces it.
			if s.kind.permits && (slices.Contains(lockNames, key) || strings.HasSuffix(key, ":rlock:permits") || strings.HasSuffix(key, ":rlock:all")) {
				continue
			}
			if s.kind.permits && strings.Contains(key, ":rlock:op:") && w.Redis(i).TTL(key) > 0 { // of their setting
				continue
			}
			if !remains(key) && !(strings.HasSuffix(key, ":rlock:red") && j.cameBack(i, w.Redis(i).HGet(key, "attempt"))) {
				left = append(left, key)
			}
		}
	}
	if len(left) > 0 {
		j.accuse("left in Redis: %s; all: %s\n%s", strings.Join(left, ", "), w.contents(), j.histories())
	}

	// A client that is closed leaves nothing: no hold, no waiter.
	for _, p := range append(players, fresh) {
		l, err := inPeace(ctx, w, s, p.locks[lockNames[0]])
		if err != nil {
			j.accuse("%s: Lock before Close: %v", p.h.Name, err)
			p.close()
			continue
		}
		waiter := make(chan error, 1)
		go func() {
			_, err := p.locks[lockNames[0]].Lock(ctx)
			waiter <- err
		}()
		p.h.Sleep("close", 10*time.Millisecond)
		closed := make(chan error, len(p.cs))
		go func() {
			for _, c := range p.cs {
				closed <- c.Close()
			}
		}()
		<-l.Done()
		if err := l.Err(); !errors.Is(err, rlock.ErrClosed) {
			j.accuse("%s: a lease during Close: %v", p.h.Name, err)
		}
		p.h.Sleep("leave", 10*time.Millisecond)
		if !j.held(lockNames[0]) {
			j.accuse("%s: Close took the lock from its holder: %s", p.h.Name, w.contents())
		}
		if err := l.Unlock(ctx); err != nil {
			j.accuse("%s: Unlock during Close: %v", p.h.Name, err)
		}
		for range p.cs {
			if err := <-closed; err != nil {
				j.accuse("%s: Close: %v", p.h.Name, err)
			}
		}
		if err := <-waiter; !errors.Is(err, rlock.ErrClosed) {
			j.accuse("%s: a waiter after Close: %v", p.h.Name, err)
		}
		if j.held(lockNames[0]) {
			j.accuse("%s: Close left a hold: %s", p.h.Name, w.contents())
		}
		for _, rdb := range p.rdbs {
			rdb.Close()
		}
	}
}

// held reports whether Redis shows a holder.
func (j *judge) held(lock string) bool {
	return len(j.s.kind.holdsIn(j.w, lock)) > 0
}

// remains reports whether a key is one that outlives the holds: a counter, or who
// may vote.
func remains(key string) bool {
	return strings.Contains(key, "rlock:clock") || strings.Contains(key, "redisson_lock_token:") ||
		strings.HasSuffix(key, "rlock:red:counter") || strings.Contains(key, "rlock:red:highest") ||
		strings.Contains(key, "rlock:red:admitted") || strings.Contains(key, "rlock:red:since")
}

// exists, keys and contents look into Redis past the network. Expiry is lazy
// there, so a key without time left is none.
func (w *World) exists(key string) bool { return slices.Contains(w.keys(), key) }

func (w *World) keys() (keys []string) {
	for i := range w.servers {
		keys = append(keys, w.keysOf(i)...)
	}
	return keys
}

func (w *World) keysOf(i int) []string {
	m := w.Redis(i)
	return slices.DeleteFunc(m.Keys(), func(k string) bool { return !m.Exists(k) })
}

func (w *World) contents() string {
	var out []string
	for i := range w.servers {
		m := w.Redis(i)
		for _, k := range w.keysOf(i) {
			text := fmt.Sprint(i, ": ", k)
			if m.Type(k) == "hash" {
				fields, _ := m.HKeys(k)
				for _, f := range fields {
					text += fmt.Sprintf(" %s=%s", f, m.HGet(k, f))
				}
			}
			out = append(out, fmt.Sprintf("%s (%v)", text, m.TTL(k)))
		}
	}
	return strings.Join(out, "; ")
}
