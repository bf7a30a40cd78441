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

// electionModel is what an election should be: who leads with which value, and who waits, in
// order.
type electionModel struct {
	rdb     redis.UniversalClient
	name    string
	all     []*rlock.Election // of several clients
	seen    <-chan rlock.Leader
	last    rlock.Leader // that was seen
	leader  *rlock.Lease
	at      *rlock.Election // of the client that leads
	value   string
	waiting []candidate
	of      map[candidate]*rlock.Election
	former  []*rlock.Lease // those that were deposed or ran out, and have not unlocked
	n       int
}

func (m *electionModel) any(t *rapid.T) *rlock.Election {
	return rapid.SampledFrom(m.all).Draw(t, "client")
}

func (m *electionModel) fresh() string {
	m.n++
	return fmt.Sprint("v", m.n)
}

func (m *electionModel) campaign(t *rapid.T) {
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
	c := campaigns(t, e, value)
	m.of[c] = e
	m.waiting = append(m.waiting, c)
	m.check(t) // it has joined
}

// shortly campaigns for a term that nobody prolongs, and lets it run out.
func (m *electionModel) shortly(t *rapid.T) {
	if m.leader != nil {
		t.Skip("somebody leads")
	}
	lease, err := m.any(t).Campaign(bg, m.fresh(), rlock.WithLease(20*time.Millisecond))
	if errors.Is(err, rlock.ErrUnreachable) {
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

func (m *electionModel) resign(t *rapid.T) {
	if m.leader == nil {
		t.Skip("nobody leads")
	}
	if err := locktest.Ended(m.leader.Unlock(bg)); err != nil {
		t.Fatal(err)
	}
	m.next(t)
}

// depose never gets lost: a copy of its request would depose the next leader.
func (m *electionModel) depose(t *rapid.T) {
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
func (m *electionModel) next(t *rapid.T) {
	m.leader, m.value = nil, ""
	if len(m.waiting) == 0 {
		return
	}
	c := m.waiting[0]
	m.waiting = m.waiting[1:]
	m.leader, m.at, m.value = c.Held(), m.of[c], c.value
	if len(m.former) > 0 && c.Lease.Token() <= m.former[len(m.former)-1].Token() {
		t.Fatalf("token %d after %d", c.Lease.Token(), m.former[len(m.former)-1].Token())
	}
}

func (m *electionModel) proclaim(t *rapid.T) {
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
func (m *electionModel) proclaimLate(t *rapid.T) {
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

func (m *electionModel) cancel(t *rapid.T) {
	if len(m.waiting) == 0 {
		t.Skip("nobody waits")
	}
	i := rapid.IntRange(0, len(m.waiting)-1).Draw(t, "candidate")
	if err := m.waiting[i].GiveUp(); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	m.waiting = slices.Delete(m.waiting, i, i+1)
}

// check compares Redis, and what is observed, with the model.
func (m *electionModel) check(t *rapid.T) {
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
		shown := rlock.Leader{Value: hash["value"], HoldID: hash["exclusive"]}
		fmt.Sscan(hash["token"], &shown.Token)
		select {
		case leader := <-m.seen:
			m.last = unnamed(leader)
		default:
		}
		if unnamed(leader) == want && errors.Is(err, rlock.ErrNoLeader) == (m.leader == nil) && shown == want &&
			int(queue) == len(m.waiting) && alive == queue && m.last == want {
			return
		}
		got = fmt.Sprintf("%+v (%v), %v, %d and %d wait, seen %+v", leader, err, hash, queue, alive, m.last)
		if time.Now().After(end) {
			t.Fatalf("%s\nwant %+v and %d waiting", got, want, len(m.waiting))
		}
	}
}

func (m *electionModel) end(t *rapid.T) {
	for _, c := range m.waiting {
		if c.GiveUp() == nil {
			m.former = append(m.former, c.Lease)
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

func TestElectionFollowsItsModel(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		modeltest.Follow(t, b, func(name string, clients []*rlock.Client) modeltest.Run {
			m := &electionModel{rdb: rdb, name: name, of: map[candidate]*rlock.Election{}}
			for _, c := range clients {
				m.all = append(m.all, c.NewElection(name))
			}
			ctx, cancel := context.WithCancel(bg)
			m.seen = mustObserve(t, ctx, m.all[0])
			end := func(rt *rapid.T) {
				defer cancel()
				m.end(rt)
			}
			return modeltest.Run{End: end, Actions: map[string]func(*rapid.T){
				"campaign": m.campaign, "campaign again": m.campaign, "shortly": m.shortly, "resign": m.resign,
				"depose": m.depose, "proclaim": m.proclaim, "proclaim late": m.proclaimLate, "cancel": m.cancel, "": m.check,
			}}
		}, rlock.WithLongestPoll(100*time.Millisecond), rlock.WithWaiterLease(locktest.Patient))
		locktest.OnlyTombstones(t, rdb)
	})
}
