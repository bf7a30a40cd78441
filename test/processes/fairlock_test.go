//go:build unix

package processes

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

const (
	fairLease = 2 * time.Second // watchdog lease
	fairTerm  = 2 * time.Second // waiter lease
)

// fairTrace is what a server did to the line of a fair lock, command by command.
type fairTrace struct {
	done  chan struct{}
	conn  net.Conn
	lines []string
}

// fairMonitor begins a trace. It ends when the test asks for the result.
func fairMonitor(t *testing.T, addr string) *fairTrace {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	f := &fairTrace{done: make(chan struct{}), conn: conn}
	if _, err := conn.Write([]byte("MONITOR\r\n")); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(conn)
	if !lines.Scan() || lines.Text() != "+OK" {
		t.Fatalf("MONITOR: %q, %v", lines.Text(), lines.Err())
	}
	go func() {
		defer close(f.done)
		for lines.Scan() {
			// Only what scripts do.
			if strings.Contains(lines.Text(), " lua] ") {
				f.lines = append(f.lines, lines.Text())
			}
		}
	}()
	t.Cleanup(func() { _ = conn.Close(); <-f.done })
	return f
}

func (f *fairTrace) end() []string {
	_ = f.conn.Close()
	<-f.done
	return f.lines
}

var fairCommand = regexp.MustCompile(`^\+(\d+\.\d+) \[\d+ lua\] (.*)$`)

// Three processes with ten waiters each, some of which lose patience. First the
// holder's process is killed, then one with waiters. Whoever gets the lock is the
// oldest who still waits, and the line never stands still for longer than a lease
// and a waiter lease.
func TestFairOrderAcrossProcesses(t *testing.T) {
	locktest.Nightly(t)
	t.Parallel()
	b := locktest.OnServer(t)
	rdb := b.Client(t)
	k := locktest.FairKeysOf("fair")
	trace := fairMonitor(t, b.Addr)
	children := map[string]*locktest.Child{} // by client id
	dead := map[string]bool{}                // those that were killed
	for range 3 {
		c := locktest.StartChild(t, "fair", b.Addr)
		children[c.Report("ready")] = c
	}
	for _, c := range children {
		c.Order("go")
	}
	grants := func() int { return int(rdb.LLen(bg, "tokens").Val()) }
	more := func(n int) {
		t.Helper()
		from := grants()
		locktest.Eventually(t, fmt.Sprint("there are ", n, " more grants"), func() bool { return grants() >= from+n })
	}
	of := func(holdID string) string { return holdID[:strings.LastIndexByte(holdID, ':')] }
	kill := func(id string) {
		t.Helper()
		children[id].Kill()
		delete(children, id)
		dead[id] = true
		locktest.Eventually(t, "its waiters are gone", func() bool {
			v := locktest.FairState(rdb, "fair")
			for _, m := range []map[string]float64{v.Deadlines, v.Alive} {
				for holdID := range m {
					if of(holdID) == id {
						return false
					}
				}
			}
			return !slices.ContainsFunc(v.Queue, func(holdID string) bool { return of(holdID) == id })
		})
		more(20)
	}
	more(60)

	var holder string
	locktest.Eventually(t, "the holder is killed", func() bool {
		for holdID := range locktest.FairState(rdb, "fair").Hold {
			holder = of(holdID)
			return children[holder] != nil
		}
		return false
	})
	kill(holder)
	var waits string
	locktest.Eventually(t, "one with waiters is killed", func() bool {
		v := locktest.FairState(rdb, "fair")
		for _, holdID := range v.Queue {
			waits = of(holdID)
			return children[waits] != nil
		}
		return false
	})
	kill(waits)
	for _, c := range children {
		c.Order("stop")
		c.Report("done")
		c.Finish()
	}

	tokens := rdb.LRange(bg, "tokens", 0, -1).Val()
	last := int64(0)
	for i, text := range tokens {
		token, err := strconv.ParseInt(text, 10, 64)
		if err != nil || token <= last {
			t.Fatalf("grant %d has token %s, the one before it %d", i, text, last)
		}
		last = token
	}
	rdb.Del(bg, "tokens")
	locktest.OnlyTombstones(t, rdb)

	// The trace: the line as the server's commands made it.
	var line []string
	var popped string // from the head: has the lock next, or is dead
	var before, longest float64
	granted, again := 0, 0
	came := map[string]bool{}
	for _, text := range trace.end() {
		m := fairCommand.FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("MONITOR says %q", text)
		}
		at, _ := strconv.ParseFloat(m[1], 64)
		args := strings.Split(strings.Trim(m[2], `"`), `" "`)
		switch {
		case args[0] == "rpush" && args[1] == k.Queue:
			if came[args[2]] {
				again++
			}
			came[args[2]] = true
			line = append(line, args[2])
		case args[0] == "lrem" && args[1] == k.Queue:
			i := slices.Index(line, args[3])
			line = slices.Delete(line, i, i+1)
		case args[0] == "lpop" && args[1] == k.Queue:
			if popped != "" && !dead[of(popped)] {
				t.Fatalf("%s is removed from the head though it lives", popped)
			}
			popped, line = line[0], line[1:]
		case args[0] == "hset" && args[1] == k.Lock:
			// Who was at the head was taken out just before.
			if popped != args[2] && len(line) > 0 {
				t.Fatalf("%s has the lock, %q waited", args[2], line)
			}
			popped = ""
			granted++
			before = at
		}
		if before > 0 {
			longest = max(longest, at-before)
		}
	}
	if len(line) > 0 {
		t.Errorf("still in line: %q", line)
	}
	if granted < len(tokens) {
		t.Errorf("%d grants in the trace, %d in the sections", granted, len(tokens))
	}
	t.Logf("%d grants, longest pause %.1fs, %d waiters had to line up again", granted, longest, again)
	// A busy machine may add some seconds.
	if bound := (fairLease + fairTerm).Seconds() + 10; longest > bound {
		t.Errorf("nobody got the lock for %.1fs", longest)
	}
}

// childFair has ten waiters that take the lock again and again, until told to stop.
func childFair(t *testing.T, p *locktest.Parent, addr string, _ []string) {
	c, rdb := locktest.ChildClient(t, addr, rlock.WithWatchdogLease(fairLease), rlock.WithWaiterLease(fairTerm))
	l := c.NewFairLock("fair")
	p.Report("ready %s", c.ID())
	p.Await("go")
	stop := make(chan struct{})
	// Only who still holds the lock may write its token down.
	record := redis.NewScript(`if redis.call('hexists', KEYS[1], ARGV[1]) == 1 then redis.call('rpush', KEYS[2], ARGV[2]) end`)
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				ctx, cancel := context.WithCancel(bg)
				if rand.IntN(3) == 0 {
					time.AfterFunc(rand.N(100*time.Millisecond), cancel)
				}
				lease, err := l.Lock(ctx)
				cancel()
				if errors.Is(err, context.Canceled) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if err := record.Run(bg, rdb, []string{"fair", "tokens"}, lease.HoldID(), lease.Token()).Err(); err != nil && !errors.Is(err, redis.Nil) {
					t.Error(err)
				}
				time.Sleep(time.Millisecond) // a section, so that the others line up
				if err := lease.Unlock(bg); err != nil && !errors.Is(err, rlock.ErrLeaseLost) {
					t.Error(err)
				}
			}
		})
	}
	p.Await("stop")
	close(stop)
	wg.Wait()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	p.Report("done")
}
