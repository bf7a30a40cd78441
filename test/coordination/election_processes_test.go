//go:build unix

package coordination

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

var kills = flag.Int("election.kills", 8, "how many leaders are killed, half of them in each of two elections")

// leaderLease is the watchdog lease of leaders that are killed.
var leaderLease = locktest.Ample(2 * time.Second)

// childLead campaigns, and then notes in a file each moment in which it believes that it
// leads.
func childLead(t *testing.T, p *locktest.Parent, addr string, args []string) {
	c, _ := locktest.ChildClient(t, addr, rlock.WithWatchdogLease(leaderLease), rlock.WithWaiterLease(10*time.Second))
	f, err := os.Create(args[0])
	if err != nil {
		t.Fatal(err)
	}
	p.Report("begins")
	lease, err := c.NewElection("job").Campaign(bg, args[0])
	if err != nil {
		t.Fatal(err)
	}
	for first := true; ; time.Sleep(time.Millisecond) {
		now := time.Now()
		if lease.Err() == nil {
			fmt.Fprintf(f, "%d\n", now.UnixNano())
		}
		if first {
			p.Report("leads %d", now.UnixNano())
			first = false
		}
		select {
		case <-p.Orders:
			// On a machine that is too slow for the lease it may be lost, and another leads.
			if err := lease.Unlock(bg); err != nil && !errors.Is(err, rlock.ErrExpired) && !errors.Is(err, rlock.ErrTakenOver) {
				t.Error(err)
			}
			return
		default:
		}
	}
}

// Leaders are killed, one after the other. The next one leads when the lease is over, never
// before, and nobody believes to lead at the same time.
func TestKilledLeadersAreFollowedAndNeverOverlap(t *testing.T) {
	locktest.Nightly(t)
	t.Parallel()
	for _, name := range []string{"one", "two"} { // which take half of the time
		locktest.Beside(t, name, func(t *testing.T) { killLeaders(t, (*kills+1)/2) })
	}
}

func killLeaders(t *testing.T, kills int) {
	b := locktest.OnServer(t)
	e := b.NewClient(t).NewElection("job")
	seen := mustObserve(t, bg, e)
	dir := t.TempDir()
	type leader struct {
		*locktest.Child
		file string
	}
	var line, all []leader
	start := func() {
		file := filepath.Join(dir, fmt.Sprint(len(all)))
		c := leader{locktest.StartChild(t, "lead", b.Addr, file), file}
		c.Report("begins")
		// They come in order.
		n := len(line)
		locktest.Eventually(t, "it has come", func() bool {
			s, err := e.State(bg)
			return err == nil && len(s.Holders)+s.Waiters > n
		})
		line, all = append(line, c), append(all, c)
	}
	for range 3 {
		start()
	}
	led := func(c leader) time.Time {
		var at int64
		fmt.Sscan(c.Report("leads"), &at)
		return time.Unix(0, at)
	}
	led(line[0])
	var gaps []time.Duration
	for i := range kills {
		killed := time.Now()
		line[0].Kill()
		line = line[1:]
		gap := led(line[0]).Sub(killed)
		gaps = append(gaps, gap)
		if gap > leaderLease+locktest.Patience { // the most that a busy machine may take
			t.Errorf("leader %d came after %v", i+1, gap)
		}
		start()
	}
	slices.Sort(gaps)
	t.Logf("%d gaps after a crash: median %v, longest %v", len(gaps), gaps[len(gaps)/2], gaps[len(gaps)-1])

	// Those that are left resign.
	for i := range line {
		asked := time.Now()
		line[i].Order("resign")
		if i+1 < len(line) {
			t.Logf("after a resignation: %v", led(line[i+1]).Sub(asked))
		}
		line[i].Finish()
	}
	endsOn(t, seen, rlock.Leader{})
	var last time.Time
	for i, c := range all {
		first, latest := believed(t, c.file)
		if !first.After(last) {
			t.Errorf("leader %d believed so %v before leader %d stopped", i, last.Sub(first), i-1)
		}
		last = latest
	}
}

// believed is when a leader first and last believed to lead.
func believed(t *testing.T, file string) (first, last time.Time) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		var at int64
		if n, _ := fmt.Sscan(lines.Text(), &at); n == 1 {
			last = time.Unix(0, at)
			if first.IsZero() {
				first = last
			}
		}
	}
	if first.IsZero() {
		t.Fatalf("%s never led", file)
	}
	return first, last
}
