//go:build linux

package check

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

var bg = context.Background()

// lease is the watchdog lease of the processes: as short as a busy machine can keep.
var lease = locktest.Ample(time.Second)

// permits are those of the semaphore, and readers are more than there are.
const (
	permits = 3
	readers = 1000
)

// The ways in which a Lock is broken on purpose.
const (
	unshared  = "unshared"  // each process has a lock of its own
	unchecked = "unchecked" // its lease is too short, nobody renews it, and nobody looks at it
	unfenced  = "unfenced"  // unshared, and the register has no fence
)

// worker is a process that takes locks of all types, and logs that.
type worker struct {
	name    string
	log     *Log
	client  *rlock.Client // behind a proxy that has faults
	store   *redis.Client // the registers, which have none
	broken  string        // how its Lock is, on purpose
	holds   atomic.Int64
	stopped atomic.Bool
}

// childWorks has the arguments folder, name, seed, address of the registers, and how its Lock is broken.
func childWorks(t *testing.T, p *locktest.Parent, addr string, args []string) {
	log, err := NewLog(args[0], args[1])
	if err != nil {
		t.Fatal(err)
	}
	seed, _ := strconv.ParseUint(args[2], 10, 64)
	// An answer that is lost costs half of the command timeout: a lease outlasts one, and not two.
	c, _ := locktest.ChildClient(t, addr, rlock.WithWatchdogLease(lease), rlock.WithWaiterLease(lease),
		rlock.WithCommandTimeout(lease/2), rlock.WithUnlockTimeout(lease/2), rlock.WithLongestPoll(lease/2))
	w := &worker{name: args[1], log: log, client: c, broken: args[4]}
	w.store = redis.NewClient(&redis.Options{Addr: args[3], MaxRetries: -1})
	go log.Pulse(w.name, lease/4) // until the process ends
	p.Report("works")             // before it may stop itself: nobody would continue it, and the parent would wait for this
	var wg sync.WaitGroup
	for g := range uint64(5) {
		wg.Go(func() {
			one := &goroutine{worker: w, rnd: rand.New(rand.NewPCG(seed, g))}
			for !w.stopped.Load() {
				one.work()
			}
		})
	}
	p.Await("stop")
	w.stopped.Store(true)
	wg.Wait()
	if err := w.store.SAdd(bg, "done", w.name).Err(); err != nil {
		t.Error(err)
	}
}

// goroutine is one that works, with its own random numbers.
type goroutine struct {
	*worker
	rnd *rand.Rand
}

// acquireFunc takes a lock, or enters it again if its context descends from a hold of it.
type acquireFunc func(context.Context) (*rlock.Lease, error)

// patience is how long a wait may take: mostly not until the lease of a dead holder is over, or soon all would wait for
// that.
func (g *goroutine) patience() rlock.WaitOption {
	if g.rnd.IntN(8) == 0 {
		return rlock.WithWait(3 * lease)
	}
	return rlock.WithWait(lease / 20)
}

// locking is an acquire with an end to its wait.
func (g *goroutine) locking(l rlock.Locker) acquireFunc {
	return func(ctx context.Context) (*rlock.Lease, error) { return l.Lock(ctx, g.patience()) }
}

func (g *goroutine) work() {
	name := types[g.rnd.IntN(len(types))].name
	if g.broken != "" {
		name = "Lock"
	}
	switch name {
	case "Lock":
		lock := g.locking(g.client.NewLock(name))
		switch g.broken {
		case unshared, unfenced:
			lock = g.locking(g.client.NewLock(name + g.name))
		case unchecked:
			lock = func(ctx context.Context) (*rlock.Lease, error) {
				return g.client.NewLock(name).Lock(ctx, g.patience(), rlock.WithLease(lease/20))
			}
		}
		g.hold(name, 1, lock, lock)
	case "FencedLock":
		lock := g.locking(g.client.NewFencedLock(name))
		g.hold(name, 1, lock, lock)
	case "FairLock":
		lock := g.locking(g.client.NewFairLock(name))
		g.hold(name, 1, lock, lock)
	case "ReadWriteLock":
		lock := g.client.NewReadWriteLock(name)
		reader := g.locking(lock.Reader)
		if g.rnd.IntN(2) == 0 {
			g.hold(name, 1, reader, reader)
		} else {
			g.hold(name, readers, g.locking(lock.Writer), reader)
		}
	case "PermitSemaphore":
		s, n := g.client.NewPermitSemaphore(name, rlock.WithPermits(permits)), 1+g.rnd.IntN(2)
		g.hold(name, n, func(ctx context.Context) (*rlock.Lease, error) {
			return s.Acquire(ctx, n, g.patience())
		}, nil)
	case "Election":
		g.campaign(name)
	case "Once":
		g.once(fmt.Sprintf("Once %d", Now()/int64(lease/20)-g.ago()))
	case "CronJob":
		g.tick(name, time.Now().Truncate(lease/20).Add(-time.Duration(g.ago())*lease/20))
	}
}

// ago is how many jobs ago the job is that this goroutine does: mostly the latest, which all want at the same time,
// but also one whose run may be lost by now.
func (g *goroutine) ago() int64 {
	if g.rnd.IntN(2) == 0 {
		return 0
	}
	return g.rnd.Int64N(40)
}

// newHold names a hold.
func (g *goroutine) newHold() string { return fmt.Sprintf("%s/%d", g.name, g.holds.Add(1)) }

// hold takes a lock, works below it, and releases it.
func (g *goroutine) hold(key string, units int, acquire, again acquireFunc) {
	hold := g.newHold()
	end := g.log.Call(Operation{Do: Acquire, Key: key, Hold: hold, Units: units})
	l, err := acquire(bg)
	end(acquired(l, err))
	if err != nil {
		return
	}
	if again != nil && g.rnd.IntN(4) == 0 {
		g.enter(key, hold, l, again)
	}
	g.section(key, hold, l, l.Token())
	end = g.log.Call(Operation{Do: Release, Key: key, Hold: hold})
	end(released(l.Unlock(bg)))
}

func acquired(l *rlock.Lease, err error) Operation {
	switch {
	case err == nil:
		return Operation{Out: OK, Token: l.Token()}
	case errors.Is(err, rlock.ErrNotAcquired):
		return Operation{Out: Refused}
	default:
		return Operation{Out: Unknown}
	}
}

func released(err error) Operation {
	switch {
	case err == nil:
		return Operation{Out: OK}
	case errors.Is(err, rlock.ErrLeaseLost):
		return Operation{Out: Lost, Value: err.Error()}
	default:
		return Operation{Out: Unknown}
	}
}

// enter enters a hold again, and leaves it.
func (g *goroutine) enter(key, hold string, l *rlock.Lease, again acquireFunc) {
	end := g.log.Call(Operation{Do: Enter, Key: key, Hold: hold})
	inner, err := again(l.Context(bg))
	end(acquired(inner, err))
	if err == nil {
		end = g.log.Call(Operation{Do: Leave, Key: key, Hold: hold})
		end(released(inner.Unlock(bg)))
	}
}

// section is what a lock is for: an update of a register, in two steps. It does not watch its lease, so the update is
// lost if the lease is, except where the register has a fence. Sometimes it takes longer, or the process is stopped
// just before it writes. A token of 0 stands for no register.
func (g *goroutine) section(key, hold string, l *rlock.Lease, token int64) {
	fenced, plain, known := "", "", token != 0
	if known {
		fenced, known = g.read(key+" fenced", hold, token)
	}
	if known {
		plain, known = g.read(key+" plain", hold, 0)
	}
	g.look(key, hold, l)
	often := 500
	if token == 0 {
		often = 100 // there are fewer of these
	}
	switch g.rnd.IntN(often) {
	case 0:
		if !g.stopped.Load() {
			g.pause()
		}
	case 1, 2, 3, 4, 5:
		for range 2 + g.rnd.IntN(20) {
			time.Sleep(lease / 20)
			g.look(key, hold, l)
		}
	}
	if known {
		g.write(key+" fenced", hold, token, fenced)
		g.write(key+" plain", hold, 0, plain)
	}
	g.look(key, hold, l)
}

// look asks whether the lease lasts, as code does before an effect.
func (g *goroutine) look(key, hold string, l *rlock.Lease) {
	err := l.Err
	if g.broken == unchecked {
		time.Sleep(lease / 20)
		err = func() error { return nil }
	}
	end := g.log.Call(Operation{Do: Look, Key: key, Hold: hold})
	end(released(err()))
}

// pause stops this process, until the parent sees that and continues it.
func (g *goroutine) pause() {
	end := g.log.Call(Operation{Do: Fault, Key: g.name, Value: "pause"})
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGSTOP); err != nil {
		panic(err)
	}
	end(Operation{Out: OK}) // if the signal takes effect later, pulse logs that
}

// read returns a value, and whether it is known: after a refusal it does not matter, as a write will be refused too.
func (g *goroutine) read(key, hold string, token int64) (string, bool) {
	end := g.log.Call(Operation{Do: Read, Key: key, Hold: hold, Token: token})
	out, value := g.access(key, token, "", "")
	end(Operation{Out: out, Value: value})
	return value, out != Unknown
}

// write writes the hold, as each writes once.
func (g *goroutine) write(key, hold string, token int64, prev string) {
	end := g.log.Call(Operation{Do: Write, Key: key, Hold: hold, Token: token, Prev: prev, Value: hold})
	out, _ := g.access(key, token, hold, prev)
	end(Operation{Out: out})
}

func (g *goroutine) access(key string, token int64, value, prev string) (Outcome, string) {
	if g.broken == unfenced {
		token = 0
	}
	return Registers{g.store}.Access(bg, key, token, value, prev)
}

// campaign leads, or asks who does.
func (g *goroutine) campaign(key string) {
	e := g.client.NewElection(key)
	if g.rnd.IntN(2) == 0 {
		g.hold(key, 1, func(ctx context.Context) (*rlock.Lease, error) {
			return e.Campaign(ctx, g.name, g.patience())
		}, nil)
		return
	}
	end := g.log.Call(Operation{Do: See, Key: key})
	leader, err := e.Leader(bg)
	if err == nil || errors.Is(err, rlock.ErrNoLeader) {
		end(Operation{Out: OK, Token: leader.Token})
	}
}

// run is the function of a Once or a CronJob: a section below its lease. It logs the hold, and returns what logs how
// that has ended, to be called with the error of Do.
type run struct {
	g    *goroutine
	key  string
	hold string
	end  func(Operation) // of the acquire, then of the release
	ran  bool
}

func (g *goroutine) newRun(key string) *run {
	r := &run{g: g, key: key, hold: g.newHold()}
	r.end = g.log.Call(Operation{Do: Acquire, Key: key, Hold: r.hold, Units: 1})
	return r
}

func (r *run) body(ctx context.Context) {
	l, _ := rlock.LeaseFrom(ctx)
	r.ran = true
	r.end(acquired(l, nil))
	r.g.section(r.key, r.hold, l, 0) // one run has nobody to lose an update to
	r.end = r.g.log.Call(Operation{Do: Release, Key: r.key, Hold: r.hold})
}

func (r *run) over(err error) {
	switch {
	case r.ran:
		r.end(released(err))
	case err == nil:
		r.end(Operation{Out: Refused})
	}
}

// once does a job once, whose result is the hold that did it.
func (g *goroutine) once(key string) {
	r := g.newRun(key)
	end := g.log.Call(Operation{Do: Decide, Key: key, Value: r.hold})
	result, ran, err := g.client.NewOnce(key, time.Hour).Do(bg, func(ctx context.Context) ([]byte, error) {
		r.body(ctx)
		return []byte(r.hold), nil
	}, g.patience())
	r.over(err)
	switch {
	case err == nil && ran:
		end(Operation{Out: OK})
	case err == nil:
		end(Operation{Out: Learned, Value: string(result)})
	case !r.ran:
		end(Operation{Out: Refused})
	}
}

// tick runs a tick of a job: it is decided when it begins. One that does not begin is reported to nobody. The errors
// are for those who read the log.
func (g *goroutine) tick(job string, scheduled time.Time) {
	key := fmt.Sprint(job, " ", scheduled.UnixMilli())
	r := g.newRun(key)
	end := g.log.Call(Operation{Do: Decide, Key: key})
	got, err := g.client.NewCronJob(job).Do(bg, scheduled, func(ctx context.Context) error {
		l, _ := rlock.LeaseFrom(ctx)
		end(Operation{Out: OK, Value: strconv.FormatInt(l.Token(), 10)})
		r.body(ctx)
		return nil
	})
	r.over(err)
	switch {
	case r.ran:
	case err == nil:
		end(Operation{Out: Learned, Value: strconv.FormatInt(got.Token, 10), Prev: fmt.Sprint(got.Err)})
	default:
		end(Operation{Out: Refused, Prev: err.Error()})
	}
}
