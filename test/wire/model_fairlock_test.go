package wire

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/modeltest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// fairModel is a fair lock on paper: a holder and a line. Its waiters are ours,
// of Redisson, or ours and dead. Ours look only when they are told, as the waiter
// lease of the test is long.
type fairModel struct {
	t       *rapid.T
	rdb     redis.UniversalClient
	members []*locktest.Member
	k       locktest.FairKeys
	made    int // waiters of Redisson and dead ones

	holder *fairPerson // nil: free
	line   []*fairPerson
	token  int64
}

// fairPerson is who waits for the lock or has it.
type fairPerson struct {
	id       string
	turn     *locktest.FairWaiter   // ours
	of       *locktest.Member       // its client
	lease    *rlock.Lease           // ours, when it has the lock
	java     *locktest.JavaFairLock // Redisson's
	dead     bool                   // ours, dead
	deadline float64                // what its score should be, less what it has lived since
}

// expired reports whether anybody may remove it from the head.
func (p *fairPerson) expired() bool {
	return p.java != nil && p.deadline <= float64(time.Now().UnixMilli())
}

const (
	fairTerm  = float64(time.Hour / time.Millisecond) // waiter lease of the model's clients
	fairLease = 30 * time.Minute
)

func (m *fairModel) member(t *rapid.T) *locktest.Member {
	return m.members[rapid.IntRange(0, len(m.members)-1).Draw(t, "client")]
}

func (m *fairModel) lock(t *rapid.T) *rlock.FairLock { return m.member(t).NewFairLock(m.k.Lock) }

func (m *fairModel) one(t *rapid.T, what string, is func(i int, p *fairPerson) bool) int {
	var all []int
	for i, p := range m.line {
		if is(i, p) {
			all = append(all, i)
		}
	}
	if len(all) == 0 {
		t.Skip("nobody")
	}
	return rapid.SampledFrom(all).Draw(t, what)
}

// remove takes one out of the line, and the time of one of Redisson's from those
// behind. Ours have not added any.
func (m *fairModel) remove(i int) {
	if j := m.line[i].java; j != nil {
		for _, p := range m.line[i+1:] {
			p.deadline -= j.Wait
		}
	}
	m.line = slices.Delete(m.line, i, i+1)
}

// looked waits until one of ours has looked so often.
func (m *fairModel) looked(p *fairPerson, times int) {
	for end := time.Now().Add(20 * time.Second); p.of.Looks.Of(p.id) < times; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			m.t.Fatalf("%s has looked %d times, not %d", p.id, p.of.Looks.Of(p.id), times)
		}
	}
}

// sweep is what each script of ours begins with.
func (m *fairModel) sweep() {
	for i := 0; i < len(m.line); {
		if m.line[i].dead {
			m.remove(i)
		} else {
			i++
		}
	}
	for len(m.line) > 0 && m.line[0].expired() {
		m.line = m.line[1:]
	}
}

// settle is what each of them ends with: if the lock is free its head is told, and
// takes it if it is ours.
func (m *fairModel) settle() {
	if m.holder != nil || len(m.line) == 0 || m.line[0].turn == nil {
		return
	}
	p := m.line[0]
	select {
	case <-p.turn.Done:
	case <-time.After(20 * time.Second):
		m.t.Fatalf("%s was not told that the lock is free", p.id)
	}
	if p.turn.Err != nil {
		m.t.Fatal(p.turn.Err)
	}
	m.remove(0)
	m.enter(p, p.turn.Lease)
}

func (m *fairModel) enter(p *fairPerson, lease *rlock.Lease) {
	if lease.Token() <= m.token {
		m.t.Fatalf("token %d after %d", lease.Token(), m.token)
	}
	m.token, m.holder = lease.Token(), p
	p.lease, p.id = lease, lease.HoldID()
}

// wait begins a Lock.
func (m *fairModel) wait(t *rapid.T) {
	who := m.member(t)
	turn, err := locktest.LineUp(m.rdb, who.NewFairLock(m.k.Lock), rlock.WithLease(fairLease))
	if err != nil {
		t.Fatal(err)
	}
	m.sweep()
	p := &fairPerson{id: turn.ID, turn: turn, of: who}
	if m.holder == nil && len(m.line) == 0 {
		<-turn.Done
		if turn.Err != nil {
			t.Fatal(turn.Err)
		}
		m.enter(p, turn.Lease)
		return
	}
	if turn.ID == "" {
		t.Fatalf("it has not had to wait: %v, %v", turn.Lease, turn.Err)
	}
	p.deadline = m.formula()
	m.line = append(m.line, p)
	m.looked(p, 2) // the second time when its subscription was confirmed
	if m.holder == nil {
		m.settle()
		// Its first look may have made the head take the lock. Whether its second look came
		// before or after that is open, and so whether it has swept the line behind that. This does.
		if _, err := who.NewFairLock(m.k.Lock).ForceUnlockIf(bg, "nobody:1"); err != nil {
			t.Fatal(err)
		}
		m.sweep()
		m.settle()
	}
}

// formula is that for the deadline of a newcomer of ours: behind the lease of the
// holder, and behind the latest deadline if some of Redisson's stand in line.
func (m *fairModel) formula() float64 {
	now := locktest.ServerNow(m.rdb)
	deadline := now + fairTerm
	if m.holder != nil {
		deadline += float64(m.rdb.PTTL(bg, m.k.Lock).Val().Milliseconds())
	}
	if !slices.ContainsFunc(m.line, func(p *fairPerson) bool { return p.java != nil }) {
		return deadline
	}
	last := slices.MaxFunc(m.line, func(a, b *fairPerson) int { return int(a.deadline - b.deadline) })
	if last.java != nil {
		return math.Max(deadline, last.deadline+fairTerm)
	}
	return math.Max(deadline, last.deadline)
}

// fairSlack is for how much of an hour a run of the model may last, in ms.
const fairSlack = 60_000

func (m *fairModel) javaWaits(t *rapid.T) {
	m.made++
	j := &locktest.JavaFairLock{RDB: m.rdb, Keys: m.k, Owner: redistest.HoldID(fmt.Sprint("java:", m.made)), Wait: float64(rapid.IntRange(5, 50).Draw(t, "minutes")) * 60_000}
	p := &fairPerson{id: j.Owner, java: j}
	for len(m.line) > 0 && m.line[0].expired() { // by its purge
		m.line = m.line[1:]
	}
	if j.Try(fairLease) {
		if m.holder != nil || len(m.line) > 0 {
			t.Fatal("the model of Redisson overtakes")
		}
		m.holder = p
		return
	}
	p.deadline = locktest.FairState(m.rdb, m.k.Lock).Deadlines[p.id]
	m.line = append(m.line, p)
}

func (m *fairModel) javaTakes(t *rapid.T) {
	if m.holder != nil || len(m.line) == 0 || m.line[0].java == nil || m.line[0].expired() {
		t.Skip("it is not its turn")
	}
	p := m.line[0]
	if !p.java.Try(fairLease) {
		t.Fatal("it is Redisson's turn")
	}
	m.remove(0)
	m.holder = p
}

func (m *fairModel) javaLeaves(t *rapid.T) {
	i := m.one(t, "who", func(_ int, p *fairPerson) bool { return p.java != nil && !p.expired() })
	m.line[i].java.GiveUp()
	m.remove(i)
}

func (m *fairModel) javaDies(t *rapid.T) {
	p := m.line[m.one(t, "who", func(_ int, p *fairPerson) bool { return p.java != nil && !p.expired() })]
	p.deadline = locktest.ServerNow(m.rdb) - 10*fairTerm
	m.rdb.ZAdd(bg, m.k.Deadlines, redis.Z{Score: p.deadline, Member: p.id})
}

// dies puts one of ours into the line that has been dead for longer than any
// outage.
func (m *fairModel) dies(t *rapid.T) {
	dead := 0
	for _, p := range m.line {
		if p.dead {
			dead++
		}
	}
	if dead == 4 {
		t.Skip("one look does not remove more from the middle of the line")
	}
	m.made++
	p := &fairPerson{id: fmt.Sprint("dead:", m.made), dead: true, deadline: locktest.ServerNow(m.rdb) + 20*fairTerm}
	m.rdb.RPush(bg, m.k.Queue, p.id)
	m.rdb.ZAdd(bg, m.k.Deadlines, redis.Z{Score: p.deadline, Member: p.id})
	m.rdb.ZAdd(bg, m.k.Alive, redis.Z{Score: locktest.ServerNow(m.rdb) - 61_000, Member: p.id})
	m.line = append(m.line, p)
}

func (m *fairModel) cancel(t *rapid.T) {
	i := m.one(t, "who", func(_ int, p *fairPerson) bool { return p.turn != nil })
	p := m.line[i]
	p.turn.Cancel()
	<-p.turn.Done
	if !errors.Is(p.turn.Err, context.Canceled) {
		t.Fatalf("cancelled: %v", p.turn.Err)
	}
	for end := time.Now().Add(20 * time.Second); slices.Contains(locktest.FairState(m.rdb, m.k.Lock).Queue, p.id); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not leave the queue")
		}
	}
	m.remove(i)
	m.sweep()
	m.settle()
}

func (m *fairModel) tryLock(t *rapid.T) {
	who := m.member(t)
	lease, err := who.NewFairLock(m.k.Lock).TryLock(bg, rlock.WithLease(fairLease))
	m.sweep()
	if m.holder == nil && len(m.line) == 0 {
		if err != nil {
			t.Fatal(err)
		}
		m.enter(&fairPerson{of: who}, lease)
		return
	}
	if !errors.Is(err, rlock.ErrNotAcquired) {
		t.Fatalf("TryLock overtakes: %v, %v", lease, err)
	}
	m.settle()
}

func (m *fairModel) unlock(t *rapid.T) {
	p := m.holder
	switch {
	case p == nil:
		t.Skip("free")
	case p.java != nil:
		for len(m.line) > 0 && m.line[0].expired() {
			m.line = m.line[1:]
		}
		p.java.Unlock()
		m.holder = nil
		m.swept()
		return
	}
	if err := p.lease.Unlock(bg); err != nil {
		t.Fatal(err)
	}
	m.holder = nil
	m.sweep()
	m.settle()
}

// swept is settle after Redisson's message: whom it wakes sweeps the line first.
func (m *fairModel) swept() {
	if len(m.line) > 0 && m.line[0].turn != nil {
		m.sweep()
		m.settle()
	}
}

func (m *fairModel) force(t *rapid.T) {
	forced, err := m.lock(t).ForceUnlock(bg)
	if err != nil || forced != (m.holder != nil) {
		t.Fatalf("force unlock: %v, %v; held by %+v", forced, err, m.holder)
	}
	if p := m.holder; p != nil && p.lease != nil {
		// Before the next one is awaited: its hold is of no interest any more.
		defer func() {
			if err := p.lease.Unlock(bg); !errors.Is(err, rlock.ErrLeaseLost) {
				t.Fatalf("unlock of a lost lease: %v", err)
			}
			m.sweep()
			m.settle()
		}()
	}
	m.holder = nil
	m.sweep()
	m.settle()
}

func (m *fairModel) check(t *rapid.T) {
	v := locktest.FairState(m.rdb, m.k.Lock)
	hold, queue, alive := map[string]string{}, []string{}, 0
	if m.holder != nil {
		hold[m.holder.id] = "1"
	}
	for _, p := range m.line {
		queue = append(queue, p.id)
		if p.java == nil {
			alive++
			if _, ok := v.Alive[p.id]; !ok {
				t.Fatalf("%s has no sign of life: %+v", p.id, v)
			}
		}
		if d := v.Deadlines[p.id] - p.deadline; d < -fairSlack || d > fairSlack {
			t.Fatalf("the deadline of %s is %v ms off: %+v", p.id, d, v)
		}
	}
	if fmt.Sprint(v.Hold) != fmt.Sprint(hold) || !slices.Equal(v.Queue, queue) || len(v.Deadlines) != len(queue) || len(v.Alive) != alive {
		t.Fatalf("in Redis: %+v, want %v and %q", v, hold, queue)
	}
	for _, p := range m.line {
		if p.turn != nil && !p.turn.Waits() {
			t.Fatalf("%s has ended: %v, %v", p.id, p.turn.Lease, p.turn.Err)
		}
	}
}

func TestFairLockFollowsItsModel(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		var members []*locktest.Member
		for range 3 {
			members = append(members, locktest.Join(t, b.Client(t), rlock.WithWaiterLease(time.Duration(fairTerm)*time.Millisecond), rlock.WithLongestPoll(locktest.Patient)))
		}
		// Its steps wait for one another, which takes time.
		modeltest.Check(t, 30, func(t *rapid.T) {
			m := &fairModel{t: t, rdb: rdb, members: members, k: locktest.FairKeysOf(fmt.Sprintf("model:%d", modelRuns.Add(1)))}
			defer func() { // also when it has failed
				for _, p := range m.line {
					if p.turn != nil {
						p.turn.Cancel()
						<-p.turn.Done
					}
				}
				if m.holder != nil && m.holder.lease != nil {
					_ = m.holder.lease.Unlock(bg)
				}
				rdb.Del(bg, m.k.Lock, m.k.Queue, m.k.Deadlines, m.k.Alive, "{"+m.k.Lock+"}:rlock:line")
			}()
			t.Repeat(map[string]func(*rapid.T){
				"wait": m.wait, "wait more": m.wait, "cancel": m.cancel, "tryLock": m.tryLock, "unlock": m.unlock, "force": m.force, "dies": m.dies,
				"javaWaits": m.javaWaits, "javaTakes": m.javaTakes, "javaLeaves": m.javaLeaves, "javaDies": m.javaDies,
				"": m.check,
			})
		})
		locktest.OnlyTombstones(t, rdb)
	})
}
