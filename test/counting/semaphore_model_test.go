package counting

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/modeltest"
	"github.com/go-rlock/rlock/internal/seam"
)

// countModel is a semaphore, a latch and a barrier on paper. Two clients act on them; the first one
// also waits. The next script of a kind can meet a fault.
type countModel struct {
	t       *rapid.T
	ctx     context.Context // of those who wait
	rdb     redis.UniversalClient
	name    string
	members [2]objects
	faults  [2]*atomic.Pointer[fault]
	marks   *marks

	permits *int // nil: not set
	// counted: how many permits there are is known, and nobody waits for any. Else it is as if Java
	// had set them: nobody knows that there are not as many as a waiter wants, and all stay in order.
	counted bool
	total   *int // nil: it is not known
	waiting []*person
	count   int // 0: open
	wait    []<-chan error
	set     bool // the barrier
	held    []<-chan error
}

// person waits for permits.
type person struct {
	n      int
	cancel context.CancelFunc
	done   <-chan error
}

// fault hits one script, once.
type fault struct {
	action faultproxy.Action
	hit    func() // called then; nil: nothing
}

// quickFaults are those after which a request is sent again at once.
var quickFaults = []faultproxy.Action{
	faultproxy.Pass, faultproxy.Pass, faultproxy.Pass, faultproxy.ResetAfter, faultproxy.ResetBefore, faultproxy.Duplicate, faultproxy.Error,
}

// eventually waits for what must come true soon.
func (m *countModel) eventually(what string, ok func() bool) {
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			m.t.Fatalf("waited too long until %s", what)
		}
	}
}

// joined waits until the one that began to wait last is in line.
func (m *countModel) joined() {
	m.eventually("it waits", func() bool {
		mark := m.marks.contended.Load()
		return mark != 0 && m.marks.begun.Load() > mark
	})
}

// marks tell whether somebody has joined a line: after it has told the observer that it will
// wait, it begins work.
type marks struct {
	locktest.Ignoring
	begun     atomic.Int64
	contended atomic.Int64 // begun at that time, since the step began; 0: nobody waits
}

func (m *marks) Contended(context.Context, rlock.ContentionEvent) {
	m.contended.CompareAndSwap(0, m.begun.Load())
}

func (m *marks) work() func() { m.begun.Add(1); return func() {} }

// act draws a client, and has the next script of its meet a fault.
func (m *countModel) act() objects {
	i := rapid.IntRange(0, 1).Draw(m.t, "client")
	m.faults[i].Store(&fault{action: rapid.SampledFrom(quickFaults).Draw(m.t, "fault")})
	return m.members[i]
}

func (m *countModel) must(err error) {
	if err != nil {
		m.t.Fatal(err)
	}
}

// settle lets those in who can enter now, and compares all with Redis.
func (m *countModel) settle() {
	for len(m.waiting) > 0 && m.permits != nil && m.waiting[0].n <= *m.permits {
		*m.permits -= m.waiting[0].n
		m.must(m.end(m.waiting[0].done))
		m.waiting = m.waiting[1:]
	}
	if m.count == 0 {
		m.all(&m.wait)
	}
	if !m.set {
		m.all(&m.held)
	}
	for key, want := range map[string]string{
		m.name: m.text(m.permits), m.name + ":latch": m.text(positive(m.count)), "{" + m.name + "}:rlock:barrier": map[bool]string{true: "1"}[m.set],
	} {
		got, err := m.rdb.Get(bg, key).Result()
		if err != nil && !errors.Is(err, redis.Nil) || got != want {
			m.t.Fatalf("%s is %q (%v), want %q", key, got, err, want)
		}
	}
	if m.counted {
		want := rlock.SemaphoreState{Set: m.permits != nil, Available: m.free()}
		if want.Known = m.known(); want.Known {
			want.Permits = *m.total
		}
		got, err := m.members[0].s.State(bg)
		m.is("State", got, want, err)
	}
	for _, still := range [][]<-chan error{channels(m.waiting), m.wait, m.held} {
		for _, done := range still {
			select {
			case err := <-done:
				m.t.Fatalf("one who has to wait returned: %v", err)
			default:
			}
		}
	}
}

func (m *countModel) end(done <-chan error) error {
	select {
	case err := <-done:
		return err
	case <-time.After(30 * time.Second):
		m.t.Fatal("it does not return")
		return nil
	}
}

func (m *countModel) all(waiting *[]<-chan error) {
	for _, done := range *waiting {
		m.must(m.end(done))
	}
	*waiting = nil
}

func (m *countModel) text(n *int) string {
	if n == nil {
		return ""
	}
	return strconv.Itoa(*n)
}

func positive(n int) *int {
	if n == 0 {
		return nil
	}
	return &n
}

func channels(all []*person) (out []<-chan error) {
	for _, p := range all {
		out = append(out, p.done)
	}
	return out
}

// is checks a result.
func (m *countModel) is(what string, got, want any, err error) {
	if err != nil || got != want {
		m.t.Fatalf("%s: %v, %v, want %v", what, got, err, want)
	}
}

func (m *countModel) number(what string) int { return rapid.IntRange(1, 5).Draw(m.t, what) }

func (m *countModel) free() int {
	if m.permits == nil {
		return 0
	}
	return *m.permits
}

func (m *countModel) add(n int) {
	sum := m.free() + n
	m.permits = &sum
}

// known reports whether it is known how many permits there are.
func (m *countModel) known() bool {
	return m.permits != nil && m.total != nil && *m.total >= *m.permits
}

// grow is what AddPermits does.
func (m *countModel) grow(n int) {
	all := n
	if m.permits != nil && m.total != nil {
		all += *m.total
	}
	if m.permits == nil || m.total != nil {
		m.total = &all
	}
	m.add(n)
}

// put is what SetPermits does, if it can.
func (m *countModel) put(n int) {
	now := n
	if m.permits != nil {
		now += *m.permits - *m.total
	}
	m.permits, m.total = &now, &n
}

func (m *countModel) actions() map[string]func(*rapid.T) {
	own := func(do func()) func(*rapid.T) {
		return func(t *rapid.T) {
			m.t = t
			m.marks.contended.Store(0)
			do()
			for _, f := range m.faults {
				f.Store(nil)
			}
			if !m.counted {
				m.must(m.rdb.Del(bg, "{"+m.name+"}:rlock:all").Err())
				m.total = nil
			}
			m.settle()
		}
	}
	return map[string]func(*rapid.T){
		"TrySetPermits": own(func() {
			n, unset := m.number("n"), m.permits == nil
			got, err := m.act().s.TrySetPermits(bg, n)
			m.is("TrySetPermits", got, unset, err)
			if unset {
				m.put(n)
			}
		}),
		"AddPermits": own(func() {
			n := rapid.SampledFrom([]int{-3, -1, 1, 2}).Draw(m.t, "n")
			m.must(m.act().s.AddPermits(bg, n))
			m.grow(n)
		}),
		"SetPermits": own(func() {
			n := m.number("n")
			err := m.act().s.SetPermits(bg, n)
			if m.permits == nil || m.known() {
				m.must(err)
				m.put(n)
			} else if !errors.Is(err, rlock.ErrTotalUnknown) {
				m.t.Fatal(err)
			}
		}),
		"SetPermits beside AddPermits that is given up": own(func() {
			if !m.counted || m.permits != nil && !m.known() {
				m.t.Skip("it is not known how many there are")
			}
			ctx, cancel := context.WithCancel(bg)
			defer cancel()
			i, n := rapid.IntRange(0, 1).Draw(m.t, "client"), m.number("n")
			action := rapid.SampledFrom([]faultproxy.Action{faultproxy.ResetAfter, faultproxy.SwallowReply, faultproxy.ResetBefore}).Draw(m.t, "fault")
			m.faults[i].Store(&fault{action: action, hit: cancel})
			if m.members[i].s.AddPermits(ctx, 2) == nil { // see "give up"
				m.grow(2)
			}
			m.must(m.members[1-i].s.SetPermits(bg, n))
			m.put(n)
			m.eventually("it is undone", func() bool { return m.rdb.Get(bg, m.name).Val() == m.text(m.permits) })
		}),
		"Delete the semaphore": own(func() {
			got, err := m.act().s.Delete(bg)
			m.is("Delete", got, m.permits != nil, err)
			m.permits, m.total = nil, nil
			for _, p := range m.waiting {
				if err := m.end(p.done); !errors.Is(err, rlock.ErrNotSet) {
					m.t.Fatal(err)
				}
			}
			m.waiting = nil
		}),
		"TryAcquire": own(func() {
			n := m.number("n")
			err := m.act().s.TryAcquire(bg, n)
			switch {
			case m.permits == nil:
				if !errors.Is(err, rlock.ErrNotSet) {
					m.t.Fatal(err)
				}
			case *m.permits < n:
				if !errors.Is(err, rlock.ErrNotAcquired) {
					m.t.Fatal(err)
				}
			default:
				m.must(err)
				m.add(-n)
			}
		}),
		"Acquire": own(func() {
			if m.permits == nil || m.counted || len(m.waiting) > 5 {
				m.t.Skip("not set, or nobody waits, or too many")
			}
			ctx, cancel := context.WithCancel(m.ctx)
			p := &person{n: m.number("n"), cancel: cancel}
			o := m.members[0]
			m.faults[0].Store(&fault{action: rapid.SampledFrom(quickFaults).Draw(m.t, "fault")})
			waits := len(m.waiting) > 0 || p.n > *m.permits
			p.done = begun(func() error { return o.s.Acquire(ctx, p.n) })
			m.waiting = append(m.waiting, p)
			if waits {
				m.joined()
			}
		}),
		"cancel": own(func() {
			if len(m.waiting) == 0 {
				m.t.Skip("nobody")
			}
			i := rapid.IntRange(0, len(m.waiting)-1).Draw(m.t, "waiter")
			m.waiting[i].cancel()
			if err := m.end(m.waiting[i].done); !errors.Is(err, context.Canceled) {
				m.t.Fatal(err)
			}
			m.waiting = slices.Delete(m.waiting, i, i+1)
		}),
		"give up": own(func() {
			// The context ends when the request has run, or has been lost.
			ctx, cancel := context.WithCancel(bg)
			i := rapid.IntRange(0, 1).Draw(m.t, "client")
			action := rapid.SampledFrom([]faultproxy.Action{faultproxy.ResetAfter, faultproxy.SwallowReply, faultproxy.ResetBefore}).Draw(m.t, "fault")
			m.faults[i].Store(&fault{action: action, hit: cancel})
			var err error
			what := rapid.IntRange(0, 2).Draw(m.t, "what")
			switch {
			case len(m.waiting) == 0: // else a waiter could have the permits before they are taken away
			case what == 2:
				what = 0
			}
			n := 0
			switch what {
			case 0:
				n = m.number("n")
				err = m.members[i].s.TryAcquire(ctx, n)
			case 1:
				_, err = m.members[i].s.Drain(ctx)
			default:
				err = m.members[i].s.AddPermits(ctx, 2)
			}
			if err == nil { // a request of its in the background met the fault, after the answer
				switch {
				case what == 0:
					m.add(-n)
				case what == 2:
					m.grow(2)
				case m.permits != nil:
					m.add(-max(*m.permits, 0))
				}
				return
			}
			// It is undone soon: until then the permits may be gone, or be too many.
			m.eventually("it is undone", func() bool { return m.rdb.Get(bg, m.name).Val() == m.text(m.permits) })
		}),
		"Release": own(func() {
			n := m.number("n")
			m.must(m.act().s.Release(bg, n))
			m.add(n)
		}),
		"Drain": own(func() {
			got, err := m.act().s.Drain(bg)
			m.is("Drain", got, max(m.free(), 0), err)
			if m.permits != nil {
				m.add(-max(*m.permits, 0))
			}
		}),
		"Available": own(func() {
			got, err := m.act().s.Available(bg)
			m.is("Available", got, m.free(), err)
		}),
		"TrySetCount": own(func() {
			n, open := m.number("n"), m.count == 0
			got, err := m.act().l.TrySetCount(bg, n)
			m.is("TrySetCount", got, open, err)
			if open {
				m.count = n
			}
		}),
		"CountDown": own(func() {
			m.must(m.act().l.CountDown(bg))
			m.count = max(m.count-1, 0)
		}),
		"Count": own(func() {
			got, err := m.act().l.Count(bg)
			m.is("Count", got, m.count, err)
		}),
		"Delete": own(func() {
			got, err := m.act().l.Delete(bg)
			m.is("Delete", got, m.count > 0, err)
			m.count = 0
		}),
		"Wait": own(func() {
			o := m.act()
			m.wait = append(m.wait, begun(func() error { return o.l.Wait(m.ctx) }))
			if m.count > 0 {
				m.joined()
			}
		}),
		"Set":  own(func() { m.must(m.act().b.Set(bg)); m.set = true }),
		"Lift": own(func() { m.must(m.act().b.Lift(bg)); m.set = false }),
		"pass": own(func() {
			o := m.act()
			m.held = append(m.held, begun(func() error { return o.b.Wait(m.ctx) }))
			if m.set {
				m.joined()
			}
		}),
	}
}

// Random operations on a semaphore, a latch and a barrier, beside models of them: what callers
// are told, who waits, and what is in Redis after each step, with replies lost, requests
// doubled and waits given up.
func TestCountingLikeItsModel(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		m := &countModel{rdb: b.Client(t), marks: &marks{}}
		var clients [2]*rlock.Client
		locktest.LoadScripts(t, m.rdb, countScripts...)
		byHash := map[string]bool{}
		for _, s := range countScripts {
			byHash[locktest.SHA(s)] = true
		}
		for i := range m.members {
			proxy := faultproxy.New(t, b.Addr)
			next := &atomic.Pointer[fault]{}
			m.faults[i] = next
			proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
				if len(c.Args) == 0 || !byHash[c.Args[0]] {
					return faultproxy.Pass
				}
				f := next.Swap(nil)
				if f == nil {
					return faultproxy.Pass
				}
				if f.hit != nil {
					f.hit()
				}
				return f.action
			})
			clients[i] = locktest.NewClient(t, locktest.Dialer(proxy.Addr())(t, nil), rlock.WithLongestPoll(locktest.Patient),
				rlock.WithObserver(m.marks), seam.Option(seam.Env{Work: m.marks.work}).(rlock.Option))
		}
		rounds := 0
		modeltest.Check(t, 25, func(rt *rapid.T) {
			rounds++ // names are not used again: a doubled request may run after its answer
			ctx, cancel := context.WithCancel(bg)
			defer cancel()
			*m = countModel{counted: rounds%2 == 0, rdb: m.rdb, faults: m.faults, marks: m.marks, t: rt, ctx: ctx, name: "counts:" + strconv.Itoa(rounds)}
			for i, c := range clients {
				m.members[i] = objects{c.NewSemaphore(m.name), c.NewCountDownLatch(m.name + ":latch"), c.NewBarrier(m.name)}
			}
			rt.Repeat(m.actions())
		})
	})
}
