package coordination

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/modeltest"
)

// onceModel is what a Once should be: a result that is kept, or one who runs and others who
// wait.
type onceModel struct {
	rdb     redis.UniversalClient
	name    string
	all     []*rlock.Once // of several clients
	kept    bool
	result  string
	runner  *doing
	waiting []*doing
	late    []*doing // those that run on without the lock
	n       int
}

func (m *onceModel) any(t *rapid.T) *rlock.Once { return rapid.SampledFrom(m.all).Draw(t, "client") }

func (m *onceModel) do(t *rapid.T) {
	if len(m.waiting) >= 5 {
		t.Skip("enough wait")
	}
	m.n++
	o := m.any(t)
	d := does(o, fmt.Sprint("r", m.n))
	switch {
	case m.kept:
		d.want(t, m.result, false)
	case m.runner == nil:
		d.runs(t)
		m.runner = d
	default:
		m.waiting = append(m.waiting, d)
		select {
		case <-d.done:
			t.Fatalf("it does not wait: %q, %v, %v", d.got, d.ran, d.err)
		case <-d.inside:
			t.Fatal("two run")
		case <-time.After(time.Millisecond):
		}
	}
}

func (m *onceModel) succeed(t *rapid.T) {
	if m.runner == nil {
		t.Skip("nobody runs")
	}
	m.runner.succeeds(t)
	m.runner.want(t, m.runner.result, true)
	m.kept, m.result, m.runner = true, m.runner.result, nil
	for _, d := range m.waiting {
		if d.end(t); !d.heard() {
			d.want(t, m.result, false)
		}
	}
	m.waiting = nil
}

// heard reports whether one that waited has heard of a failure of then.
func (d *doing) heard() bool { return d.mayFail && !d.ran && errors.Is(d.err, rlock.ErrFailed) }

var errOnPurpose = errors.New("on purpose")

func (m *onceModel) fail(t *rapid.T) {
	if m.runner == nil {
		t.Skip("nobody runs")
	}
	m.runner.fate <- func() error { return errOnPurpose }
	m.runner.end(t)
	// With a lost reply it cannot confirm the release.
	if err := m.runner.err; !errors.Is(err, errOnPurpose) || errors.Is(err, rlock.ErrLeaseLost) {
		t.Fatal(err)
	}
	for _, d := range m.waiting {
		d.mayFail = true // unless it is not in line yet, or only since
	}
	m.next(t)
}

// next waits until one of those that wait runs, or none waits any more.
func (m *onceModel) next(t *rapid.T) {
	m.runner = nil
	for end := time.Now().Add(20 * time.Second); len(m.waiting) > 0; time.Sleep(time.Millisecond) {
		for i, d := range m.waiting {
			select {
			case <-d.inside:
				m.runner, m.waiting[i] = d, nil
				m.waiting = slices.DeleteFunc(m.waiting, func(d *doing) bool { return d == nil })
				return
			case <-d.done:
				if !d.heard() {
					t.Fatalf("it has ended: %q, %v, %v", d.got, d.ran, d.err)
				}
				m.waiting[i] = nil
			default:
			}
		}
		m.waiting = slices.DeleteFunc(m.waiting, func(d *doing) bool { return d == nil })
		if time.Now().After(end) {
			t.Fatal("nobody runs")
		}
	}
}

// remove takes the lock from the one who runs, who does not know.
func (m *onceModel) remove(t *rapid.T) {
	was, err := m.all[0].ForceUnlock(bg)
	if err != nil || was != (m.runner != nil) {
		t.Fatal(was, err)
	}
	if was {
		m.late = append(m.late, m.runner)
		m.next(t)
	}
}

// succeedLate is the end of a function whose lease is lost.
func (m *onceModel) succeedLate(t *rapid.T) {
	if len(m.late) == 0 {
		t.Skip("all have their leases")
	}
	d := m.late[0]
	m.late = m.late[1:]
	d.succeeds(t)
	if !d.ran || string(d.got) != d.result || !errors.Is(d.err, rlock.ErrLeaseLost) {
		t.Fatalf("%q, %v, %v", d.got, d.ran, d.err)
	}
}

// forget is the end of the time for which a result is kept.
func (m *onceModel) forget(t *rapid.T) {
	if !m.kept {
		t.Skip("there is no result")
	}
	m.rdb.PExpire(bg, "{"+m.name+"}:rlock:once:result", time.Millisecond)
	m.kept = false
	for m.rdb.Exists(bg, "{"+m.name+"}:rlock:once:result").Val() == 1 {
		time.Sleep(time.Millisecond)
	}
}

func (m *onceModel) cancel(t *rapid.T) {
	if len(m.waiting) == 0 {
		t.Skip("nobody waits")
	}
	d := m.waiting[0]
	m.waiting = m.waiting[1:]
	d.cancel()
	d.end(t)
	if !d.heard() && (d.ran || !errors.Is(d.err, context.Canceled)) {
		t.Fatal(d.ran, d.err)
	}
}

// check compares Redis with the model.
func (m *onceModel) check(t *rapid.T) {
	base := "{" + m.name + "}:rlock:once"
	held := m.rdb.HLen(bg, base).Val()
	if held > 1 || (held == 1) != (m.runner != nil) {
		t.Fatalf("%d hold the lock; one runs: %v", held, m.runner != nil)
	}
	result, err := m.rdb.HGet(bg, base+":result", "value").Result()
	if m.kept != (err == nil) || result != m.result && m.kept {
		t.Fatalf("the result is %q (%v), not %q (%v)", result, err, m.result, m.kept)
	}
}

func (m *onceModel) end(*rapid.T) {
	for _, d := range slices.Concat(m.waiting, m.late, []*doing{m.runner}) {
		if d != nil {
			d.cancel()
			d.fate <- func() error { return errOnPurpose }
			<-d.done
		}
	}
}

func TestOnceFollowsItsModel(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		modeltest.Follow(t, b, func(name string, clients []*rlock.Client) modeltest.Run {
			m := &onceModel{rdb: rdb, name: name}
			for _, c := range clients {
				m.all = append(m.all, c.NewOnce(name, time.Hour))
			}
			return modeltest.Run{End: m.end, Actions: map[string]func(*rapid.T){
				"do": m.do, "do again": m.do, "do once more": m.do, "succeed": m.succeed, "fail": m.fail, "remove": m.remove,
				"succeed late": m.succeedLate, "forget": m.forget, "cancel": m.cancel, "": m.check,
			}}
		}, rlock.WithLongestPoll(100*time.Millisecond))
	})
}
