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

const members = 3

// doubleBarrierModel is what a DoubleBarrier should be: some wait to enter; or a generation is in, some
// of which has left, and who comes waits for the next one.
type doubleBarrierModel struct {
	rdb     redis.UniversalClient
	name    string
	all     []*rlock.DoubleBarrier // of several clients
	at      map[*locktest.Attempt]*rlock.DoubleBarrier
	of      map[*rlock.Lease]*rlock.DoubleBarrier
	coming  []*locktest.Attempt
	in      []*rlock.Lease
	leaving []*locktest.Attempt // in Leave, and not in any more
	former  []*rlock.Lease
	token   int64
}

func (m *doubleBarrierModel) enter(t *rapid.T) {
	if len(m.coming) >= members+2 {
		t.Skip("enough wait")
	}
	b := rapid.SampledFrom(m.all).Draw(t, "client")
	c := enters(t, b)
	m.at[c] = b
	m.coming = append(m.coming, c)
	m.settle(t)
}

// settle lets a generation begin if it can. Who of those that wait is among its members is
// not the model's business.
func (m *doubleBarrierModel) settle(t *rapid.T) {
	if len(m.in) > 0 || len(m.coming) < members {
		return
	}
	for end := time.Now().Add(20 * time.Second); len(m.in) < members; time.Sleep(time.Millisecond) {
		m.coming = slices.DeleteFunc(m.coming, func(c *locktest.Attempt) bool {
			if c.Waits() {
				return false
			}
			m.in, m.of[c.Held()] = append(m.in, c.Lease), m.at[c]
			return true
		})
		if time.Now().After(end) {
			t.Fatalf("%d of %d are in", len(m.in), members)
		}
	}
	for _, l := range m.in {
		if l.Token() != m.in[0].Token() || l.Token() <= m.token {
			t.Fatalf("token %d; others %d, before %d", l.Token(), m.in[0].Token(), m.token)
		}
	}
	m.token = m.in[0].Token()
}

func (m *doubleBarrierModel) goes(t *rapid.T) *rlock.Lease {
	if len(m.in) == 0 {
		t.Skip("nobody is in")
	}
	i := rapid.IntRange(0, len(m.in)-1).Draw(t, "member")
	l := m.in[i]
	m.in = slices.Delete(m.in, i, i+1)
	return l
}

// gone is called when somebody has left.
func (m *doubleBarrierModel) gone(t *rapid.T) {
	if len(m.in) > 0 {
		return
	}
	for _, c := range m.leaving {
		c.Held()
	}
	m.leaving = nil
	m.settle(t)
}

func (m *doubleBarrierModel) unlock(t *rapid.T) {
	if err := locktest.Ended(m.goes(t).Unlock(bg)); err != nil {
		t.Fatal(err)
	}
	m.gone(t)
}

func (m *doubleBarrierModel) leave(t *rapid.T) {
	l := m.goes(t)
	b := m.of[l]
	m.leaving = append(m.leaving, locktest.Call(t, bg, func(ctx context.Context) (*rlock.Lease, error) {
		return nil, locktest.Ended(b.Leave(ctx, l))
	}))
	m.gone(t)
}

// cancel ends the wait of one who waits to enter or to leave.
func (m *doubleBarrierModel) cancel(t *rapid.T) {
	all := &m.coming
	if len(m.leaving) > 0 && rapid.Bool().Draw(t, "leaving") {
		all = &m.leaving
	}
	if len(*all) == 0 {
		t.Skip("nobody waits")
	}
	c := (*all)[0]
	*all = (*all)[1:]
	if all == &m.leaving {
		m.check(t) // it is not in any more
	}
	if err := c.GiveUp(); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// remove is the death of one who is in: it does not know.
func (m *doubleBarrierModel) remove(t *rapid.T) {
	l := m.goes(t)
	was, err := m.all[0].ForceUnlockIf(bg, l.HoldID())
	if !was || err != nil {
		t.Fatal(was, err)
	}
	m.former = append(m.former, l)
	m.gone(t)
}

func (m *doubleBarrierModel) check(t *rapid.T) {
	base := "{" + m.name + "}:rlock:double"
	places := len(m.in)
	if places == 0 {
		places = len(m.coming)
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		hash := m.rdb.HGetAll(bg, base).Val()
		n := int(m.rdb.ZCard(bg, base+":places").Val())
		generation := ""
		if len(m.in) > 0 {
			generation = fmt.Sprint(m.token)
		}
		known := places == 0 && len(hash) == 0 || places > 0 && hash["members"] == fmt.Sprint(members)
		if n == places && known && hash["generation"] == generation {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d places, %v; want %d, generation %q", n, hash, places, generation)
		}
	}
	for _, c := range slices.Concat(m.coming, m.leaving) {
		if !c.Waits() {
			t.Fatalf("it does not wait: %v, %v", c.Lease, c.Err)
		}
	}
}

func (m *doubleBarrierModel) end(t *rapid.T) {
	for _, c := range slices.Concat(m.coming, m.leaving) {
		c.GiveUp()
		if c.Lease != nil {
			m.in = append(m.in, c.Lease)
		}
	}
	for _, l := range m.in {
		_ = l.Unlock(bg)
	}
	for _, l := range m.former {
		_ = l.Unlock(bg) // with a lost reply it cannot know that its hold was removed
	}
	m.coming, m.leaving, m.in = nil, nil, nil
	m.check(t)
}

func TestDoubleBarrierFollowsItsModel(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		modeltest.Follow(t, b, func(name string, clients []*rlock.Client) modeltest.Run {
			m := &doubleBarrierModel{rdb: rdb, name: name, at: map[*locktest.Attempt]*rlock.DoubleBarrier{}, of: map[*rlock.Lease]*rlock.DoubleBarrier{}}
			for _, c := range clients {
				m.all = append(m.all, c.NewDoubleBarrier(name, members))
			}
			return modeltest.Run{End: m.end, Actions: map[string]func(*rapid.T){
				"enter": m.enter, "enter again": m.enter, "unlock": m.unlock, "leave": m.leave, "leave again": m.leave,
				"cancel": m.cancel, "remove": m.remove, "": m.check,
			}}
		}, rlock.WithLongestPoll(100*time.Millisecond))
		locktest.OnlyTombstones(t, rdb)
	})
}
