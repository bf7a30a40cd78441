package quorum

import (
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// holdWitness sees every hold of a lock, and says when two believe in theirs at once,
// or tokens do not grow in the order of the holds.
type holdWitness struct {
	t testing.TB

	mu      sync.Mutex // guards the rest
	open    map[*rlock.Lease]struct{}
	highest int64
	holds   int
	lost    int
}

func newWitness(t testing.TB) *holdWitness {
	return &holdWitness{t: t, open: map[*rlock.Lease]struct{}{}}
}

// asks is called before an acquire: its token must be greater than the one that is
// returned, whatever happens.
func (j *holdWitness) asks() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.highest
}

func (j *holdWitness) got(l *rlock.Lease, floor int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.holds++
	if l.Token() <= floor {
		j.t.Errorf("token %d after %d", l.Token(), floor)
	}
	for other := range j.open {
		if other.Err() == nil && l.Err() == nil {
			j.t.Errorf("%s (token %d) and %s (token %d) hold it at once", other.HoldID(), other.Token(), l.HoldID(), l.Token())
		}
	}
	// One that is over before it is seen here may be seen after its successor.
	if l.Err() == nil && l.Token() <= j.highest {
		j.t.Errorf("token %d in the hands of a holder after %d", l.Token(), j.highest)
	}
	j.highest = max(j.highest, l.Token())
	j.open[l] = struct{}{}
}

// leaves is called before an Unlock.
func (j *holdWitness) leaves(l *rlock.Lease) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.open, l)
	if l.Err() != nil {
		j.lost++
	}
}

// holdJudge sees who holds by his own belief.
type holdJudge struct {
	mu       sync.Mutex // guards the rest
	inside   map[*rlock.Lease]bool
	tokens   map[int64]bool
	last     int64 // highest token that was seen
	holds    int
	together int // times that somebody came in while another held
	backward int // tokens that are not above those seen before the acquire, or given twice
}

// before is what the token of an acquire that begins now must be above.
func (j *holdJudge) before() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.last
}

func (j *holdJudge) enter(lease *rlock.Lease, before int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.inside == nil {
		j.inside, j.tokens = map[*rlock.Lease]bool{}, map[int64]bool{}
	}
	for other := range j.inside {
		// Whoever holds at his look, and the newcomer later, held together.
		if other.Err() == nil && lease.Err() == nil {
			j.together++
		}
	}
	if lease.Token() <= before || j.tokens[lease.Token()] {
		j.backward++
	}
	j.holds++
	j.last = max(j.last, lease.Token())
	j.inside[lease], j.tokens[lease.Token()] = true, true
}

// lock takes a lock before the judge.
func (j *holdJudge) lock(t testing.TB, l *rlock.RedLock, opts ...rlock.AcquireOption) *rlock.Lease {
	t.Helper()
	before := j.before()
	lease := lockPatiently(t, l, opts...)
	j.enter(lease, before)
	return lease
}

// try does so if it is free.
func (j *holdJudge) try(l *rlock.RedLock) (*rlock.Lease, error) {
	before := j.before()
	lease, err := l.TryLock(bg)
	if err == nil {
		j.enter(lease, before)
	}
	return lease, err
}

// unlock leaves it.
func (j *holdJudge) unlock(lease *rlock.Lease) {
	j.leave(lease)
	unlock(lease)
}

func (j *holdJudge) leave(lease *rlock.Lease) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.inside, lease)
}

// clean fails the test unless nobody held beside another.
func (j *holdJudge) clean(t testing.TB) {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.together > 0 || j.backward > 0 {
		t.Errorf("%d holds beside others, %d tokens out of order, of %d holds", j.together, j.backward, j.holds)
	}
}

// more waits for more holds.
func (j *holdJudge) more(t testing.TB, n int) {
	t.Helper()
	count := func() int {
		j.mu.Lock()
		defer j.mu.Unlock()
		return j.holds
	}
	want := count() + n
	locktest.Eventually(t, strconv.Itoa(n)+" more holds", func() bool { return count() >= want })
}

// durations says what is in the middle of some times, and near their end.
type durations []time.Duration

func (d durations) String() string {
	if len(d) == 0 {
		return "none"
	}
	s := slices.Sorted(slices.Values(d))
	at := func(q float64) time.Duration { return s[int(q*float64(len(s)-1))].Round(10 * time.Microsecond) }
	return fmt.Sprintf("median %v, p90 %v, p99 %v, longest %v of %d", at(0.5), at(0.9), at(0.99), at(1), len(s))
}
