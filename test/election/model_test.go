package election

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// model is what an election should be: who leads with which value, and who waits, in
// order.
type model struct {
	rdb     redis.UniversalClient
	name    string
	all     []*rlock.Election // of several clients
	seen    <-chan rlock.Leader
	last    rlock.Leader // that was seen
	leader  *rlock.Lease
	at      *rlock.Election // of the client that leads
	value   string
	waiting []*candidate
	of      map[*candidate]*rlock.Election
	former  []*rlock.Lease // those that were deposed or ran out, and have not unlocked
	n       int
}

func (m *model) any(t *rapid.T) *rlock.Election { return rapid.SampledFrom(m.all).Draw(t, "client") }

func (m *model) fresh() string {
	m.n++
	return fmt.Sprint("v", m.n)
}

func (m *model) campaign(t *rapid.T) {
	e, value := m.any(t), m.fresh()
	if m.leader == nil {
		lease, err := e.Campaign(bg, value, rlock.WithWait(20*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		m.leader, m.at, m.value = lease, e, value
		return
	}
	if len(m.waiting) >= 4 {
		t.Skip("enough wait")
	}
	if _, err := e.Campaign(bg, "x", rlock.WithWait(0)); !errors.Is(err, rlock.ErrNotAcquired) {
		t.Fatal(err)
	}
	c := begin(e, value)
	m.of[c] = e
	m.waiting = append(m.waiting, c)
	m.check(t) // it has joined
}

// shortly campaigns for a term that nobody prolongs, and lets it run out.
func (m *model) shortly(t *rapid.T) {
	if m.leader != nil {
		t.Skip("somebody leads")
	}
	lease, err := m.any(t).Campaign(bg, m.fresh(), rlock.WithLease(20*time.Millisecond))
	if errors.Is(err, rlock.ErrNotAcquired) {
		return // the answer took longer
	} else if err != nil {
		t.Fatal(err)
	}
	<-lease.Done()
	m.former = append(m.former, lease)
	for end := time.Now().Add(20 * time.Second); m.rdb.Exists(bg, "{"+m.name+"}:rlock:election").Val() == 1; {
		if time.Now().After(end) {
			t.Fatal("it does not run out")
		}
		time.Sleep(time.Millisecond)
	}
}

func (m *model) resign(t *rapid.T) {
	if m.leader == nil {
		t.Skip("nobody leads")
	}
	if err := m.leader.Unlock(bg); err != nil {
		t.Fatal(err)
	}
	m.next(t)
}

// depose never gets lost: a copy of its request would depose the next leader.
func (m *model) depose(t *rapid.T) {
	was, err := m.all[0].ForceUnlock(bg)
	if err != nil || was != (m.leader != nil) {
		t.Fatal(was, err)
	}
	if was {
		m.former = append(m.former, m.leader)
		m.next(t)
	}
}

// next lets the first candidate lead.
func (m *model) next(t *rapid.T) {
	m.leader, m.value = nil, ""
	if len(m.waiting) == 0 {
		return
	}
	c := m.waiting[0]
	m.waiting = m.waiting[1:]
	select {
	case <-c.done:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s does not lead", c.value)
	}
	if c.err != nil {
		t.Fatal(c.err)
	}
	if len(m.former) > 0 && c.lease.Token() <= m.former[len(m.former)-1].Token() {
		t.Fatalf("token %d after %d", c.lease.Token(), m.former[len(m.former)-1].Token())
	}
	m.leader, m.at, m.value = c.lease, m.of[c], c.value
}

func (m *model) proclaim(t *rapid.T) {
	if m.leader == nil {
		t.Skip("nobody leads")
	}
	value := m.fresh()
	if err := m.at.Proclaim(bg, m.leader, value); err != nil {
		t.Fatal(err)
	}
	m.value = value
}

// proclaimLate is a Proclaim, and then the Unlock, of one that does not lead any more.
func (m *model) proclaimLate(t *rapid.T) {
	if len(m.former) == 0 {
		t.Skip("nobody was deposed")
	}
	l := m.former[0]
	m.former = m.former[1:]
	for _, e := range m.all {
		err := e.Proclaim(bg, l, "x")
		if !errors.Is(err, rlock.ErrLeaseLost) && !errors.Is(err, rlock.ErrInvalidArgument) {
			t.Fatal(err)
		}
	}
	if err := l.Unlock(bg); !errors.Is(err, rlock.ErrLeaseLost) {
		t.Fatal(err)
	}
}

func (m *model) cancel(t *rapid.T) {
	if len(m.waiting) == 0 {
		t.Skip("nobody waits")
	}
	i := rapid.IntRange(0, len(m.waiting)-1).Draw(t, "candidate")
	c := m.waiting[i]
	c.cancel()
	<-c.done
	if !errors.Is(c.err, rlock.ErrNotAcquired) {
		t.Fatal(c.err)
	}
	m.waiting = slices.Delete(m.waiting, i, i+1)
}

// check compares Redis, and what is observed, with the model.
func (m *model) check(t *rapid.T) {
	want := rlock.Leader{}
	if m.leader != nil {
		want = led(m.leader, m.value)
	}
	base := "{" + m.name + "}:rlock:election"
	var got string
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		leader, err := m.all[0].Leader(bg)
		hash := m.rdb.HGetAll(bg, base).Val()
		queue := m.rdb.ZCard(bg, base+":queue").Val()
		alive := m.rdb.ZCard(bg, base+":alive").Val()
		shown := rlock.Leader{Value: hash["value"], Owner: hash["exclusive"]}
		fmt.Sscan(hash["token"], &shown.Token)
		select {
		case m.last = <-m.seen:
		default:
		}
		if leader == want && errors.Is(err, rlock.ErrNoLeader) == (m.leader == nil) && shown == want &&
			int(queue) == len(m.waiting) && alive == queue && m.last == want {
			return
		}
		got = fmt.Sprintf("%+v (%v), %v, %d and %d wait, seen %+v", leader, err, hash, queue, alive, m.last)
		if time.Now().After(end) {
			t.Fatalf("%s\nwant %+v and %d waiting", got, want, len(m.waiting))
		}
	}
}

func (m *model) end(t *rapid.T) {
	for _, c := range m.waiting {
		c.cancel()
		<-c.done
		if c.err == nil {
			m.former = append(m.former, c.lease)
		}
	}
	if m.leader != nil {
		m.former = append(m.former, m.leader)
	}
	for _, l := range m.former {
		_ = l.Unlock(bg)
	}
	m.waiting, m.former, m.leader = nil, nil, nil
	m.check(t)
}

const modelTime = 2 * time.Second

var modelRuns atomic.Int64

// lossy loses some replies, and lets some requests run twice.
func lossy(p *faultproxy.Proxy, seed uint64) {
	var mu sync.Mutex
	r := rand.New(rand.NewPCG(seed, 0))
	p.Handle(func(cmd faultproxy.Command) faultproxy.Action {
		mu.Lock()
		defer mu.Unlock()
		if len(cmd.Args) == 0 || r.IntN(8) > 0 {
			return faultproxy.Pass
		}
		return []faultproxy.Action{faultproxy.ResetAfter, faultproxy.ResetBefore, faultproxy.Duplicate}[r.IntN(3)]
	})
}

func TestElectionFollowsItsModel(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		opts := []rlock.Option{rlock.WithLongestPoll(100 * time.Millisecond), rlock.WithWaiterLease(locktest.Patient)}
		proxy := faultproxy.New(t, b.Addr)
		lossy(proxy, uint64(time.Now().UnixNano()))
		clients := []*rlock.Client{
			b.NewClient(t, opts...),
			locktest.NewClient(t, locktest.Dialer(proxy.Addr())(t, nil), opts...),
		}
		start, runs := time.Now(), 0
		rapid.Check(t, func(rt *rapid.T) {
			if time.Since(start) > modelTime {
				return
			}
			runs++
			m := &model{rdb: rdb, name: fmt.Sprint("m", modelRuns.Add(1)), of: map[*candidate]*rlock.Election{}}
			for _, c := range clients {
				m.all = append(m.all, c.NewElection(m.name))
			}
			ctx, cancel := context.WithCancel(bg)
			defer cancel()
			m.seen = m.all[0].Observe(ctx)
			defer m.end(rt)
			rt.Repeat(map[string]func(*rapid.T){
				"campaign": m.campaign, "campaign again": m.campaign, "shortly": m.shortly, "resign": m.resign,
				"depose": m.depose, "proclaim": m.proclaim, "proclaim late": m.proclaimLate, "cancel": m.cancel, "": m.check,
			})
		})
		t.Logf("%d runs", runs)
		locktest.OnlyTombstones(t, rdb)
	})
}
