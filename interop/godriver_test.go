//go:build unix

package interop

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

// childEnv makes the test binary a driver. Its value is the driver's arguments:
// cluster, sentinel or the kind of a single server, the watchdog lease in ms, the addresses, for sentinel those of the
// sentinels.
const childEnv = "RLOCK_INTEROP_DRIVER"

// driver is the counterpart of java/src/main/java/rlock/interop/Driver.java: a
// client of this library in a process of its own.
type driver struct {
	client *rlock.Client
	rdb    redis.UniversalClient

	mu sync.Mutex // keeps replies whole
}

// worker is an owner that executes its requests one after the other.
type worker struct {
	d        *driver
	ctx      context.Context // carries the owner
	requests chan func()
	leases   map[string][]*rlock.Lease // by type and name, the latest last

	mu     sync.Mutex // guards cancel
	cancel context.CancelFunc
}

func goDriver(args string) {
	words := strings.Fields(args)
	ms, _ := strconv.Atoi(words[1])
	d := &driver{}
	switch words[0] {
	case "cluster":
		d.rdb = redis.NewClusterClient(&redis.ClusterOptions{Addrs: words[2:]})
	case "sentinel":
		d.rdb = redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "mymaster", SentinelAddrs: words[2:]})
	default:
		d.rdb = redis.NewClient(&redis.Options{Addr: words[2]})
	}
	var err error
	d.client, err = rlock.New(d.rdb,
		rlock.WithWatchdogLease(time.Duration(ms)*time.Millisecond),
		rlock.WithWaiterLease(waiterLease),
		// A message that does not come must not go unnoticed.
		rlock.WithLongestPoll(longestPoll))
	if err != nil {
		panic(err)
	}
	d.reply("0", nil, nil)
	workers := map[string]*worker{}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		f := strings.Split(lines.Text(), "\t")
		w := workers[f[1]]
		if w == nil {
			w = &worker{d: d, ctx: rlock.WithOwner(context.Background()), requests: make(chan func(), 100), leases: map[string][]*rlock.Lease{}}
			workers[f[1]] = w
			go w.run() // ends with the process
		}
		switch f[2] {
		case "crash":
			// Not os.Exit, for which the race detector takes a second.
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		case "interrupt":
			w.interrupt()
			d.reply(f[0], nil, nil)
		case "exit":
			closed := make(chan error, 1)
			go func() { closed <- d.client.Close() }()
			for _, w := range workers {
				w.requests <- w.leave // Close waits for it
			}
			d.reply(f[0], nil, <-closed)
		default:
			w.requests <- func() {
				values, err := w.execute(f[2], f[3:])
				d.reply(f[0], values, err)
			}
		}
	}
}

func (d *driver) reply(id string, values []string, err error) {
	outcome := "ok"
	switch {
	case err == errNo:
		outcome = "no"
	case err != nil:
		outcome, values = "failed", []string{err.Error()}
	}
	line := strings.Join(append([]string{id, outcome}, values...), "\t")
	d.mu.Lock()
	defer d.mu.Unlock()
	fmt.Println(strings.ReplaceAll(line, "\n", " "))
}

// errNo is the answer of a lock that is not to be had.
var errNo = errors.New("no")

func (w *worker) run() {
	for request := range w.requests {
		request()
	}
}

// leave unlocks what a test has left held.
func (w *worker) leave() {
	for _, leases := range w.leases {
		for _, l := range leases {
			_ = l.Unlock(context.Background())
		}
	}
}

func (w *worker) interrupt() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cancel != nil {
		w.cancel()
	}
}

// lockType is what all types have.
type lockType interface {
	rlock.Locker
	State(context.Context) (rlock.State, error)
	IsLocked(context.Context) (bool, error)
	HoldCount(context.Context) (int, error)
	ForceUnlock(context.Context) (bool, error)
}

func (d *driver) open(kind, name string) (rlock.Locker, error) {
	c := d.client
	switch kind {
	case "lock":
		return c.NewLock(name), nil
	case "fair":
		return c.NewFairLock(name), nil
	case "spin":
		return c.NewSpinLock(name), nil
	case "fenced":
		return c.NewFencedLock(name), nil
	case "once":
		return c.NewLock(name, rlock.WithNonReentrant()), nil
	case "read":
		return c.NewReadWriteLock(name).Reader, nil
	case "write":
		return c.NewReadWriteLock(name).Writer, nil
	case "fairread":
		return c.NewFairReadWriteLock(name).Reader, nil
	case "fairwrite":
		return c.NewFairReadWriteLock(name).Writer, nil
	case "priority":
		return c.NewPriorityLock(name), nil
	case "red":
		return rlock.NewRedLock(name, []*rlock.Client{c})
	case "multi":
		var members []rlock.Locker
		for member := range strings.SplitSeq(name, "|") {
			kind, name, _ := strings.Cut(member, ":")
			l, err := d.open(kind, name)
			if err != nil {
				return nil, err
			}
			members = append(members, l)
		}
		return rlock.NewMultiLock(members)
	}
	return nil, fmt.Errorf("no type %s", kind)
}

func (w *worker) execute(verb string, args []string) ([]string, error) {
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	w.mu.Lock()
	w.cancel = cancel
	w.mu.Unlock()
	switch verb {
	case "sections":
		return w.sections(ctx, args)
	case "race":
		return w.race(ctx, args)
	case "semaphore":
		return w.semaphore(ctx, args)
	case "latch":
		return w.latch(ctx, args)
	}
	if values, err, ok := w.permits(ctx, verb, args); ok {
		return values, err
	}
	l, err := w.d.open(args[0], args[1])
	if err != nil {
		return nil, err
	}
	key := args[0] + "\t" + args[1]
	switch verb {
	case "lock":
		return w.acquire(ctx, key, l, -1, duration(args[2]))
	case "try":
		return w.acquire(ctx, key, l, duration(args[2]), duration(args[3]))
	case "unlock":
		begin := now()
		lease, err := w.latest(key)
		if err != nil {
			return nil, err
		}
		w.leases[key] = w.leases[key][:len(w.leases[key])-1]
		return []string{begin}, lease.Unlock(ctx)
	case "lost": // when, and why, the latest lease ended
		lease, err := w.latest(key)
		if err != nil {
			return nil, err
		}
		<-lease.Done()
		return []string{now(), lease.Err().Error()}, nil
	case "deadline": // until when the latest lease is valid
		lease, err := w.latest(key)
		if err != nil {
			return nil, err
		}
		return []string{strconv.FormatInt(lease.Deadline().UnixMicro(), 10)}, lease.Err()
	}
	t := l.(lockType)
	switch verb {
	case "force":
		begin := now()
		if was, err := t.ForceUnlock(ctx); err != nil || was {
			return []string{begin}, err
		}
		return nil, errNo
	case "state":
		locked, err1 := t.IsLocked(ctx)
		count, err2 := t.HoldCount(ctx)
		s, err3 := t.State(ctx)
		return []string{fmt.Sprint(locked), fmt.Sprint(count), fmt.Sprint(s.TTL.Milliseconds())}, errors.Join(err1, err2, err3)
	case "token":
		token, err := l.(*rlock.FencedLock).CurrentToken(ctx)
		return []string{fmt.Sprint(token)}, err
	}
	return nil, fmt.Errorf("no command %s", verb)
}

func (w *worker) latest(key string) (*rlock.Lease, error) {
	leases := w.leases[key]
	if len(leases) == 0 {
		return nil, errors.New("this owner has no lease of it")
	}
	return leases[len(leases)-1], nil
}

// take makes one of two calls that acquire: one that waits, unless there is no time to.
func take(wait, lease time.Duration, lock func(...rlock.AcquireOption) (*rlock.Lease, error), try func(...rlock.TryOption) (*rlock.Lease, error)) (*rlock.Lease, error) {
	var opts []rlock.AcquireOption
	var tries []rlock.TryOption
	if lease > 0 {
		fixed := rlock.WithLease(lease)
		opts, tries = append(opts, fixed), append(tries, fixed)
	}
	if wait == 0 {
		return try(tries...)
	}
	if wait > 0 {
		opts = append(opts, rlock.WithWait(wait))
	}
	return lock(opts...)
}

// acquire takes a lock, for a wait below 0 however long it takes.
func (w *worker) acquire(ctx context.Context, key string, l rlock.Locker, wait, lease time.Duration) ([]string, error) {
	got, err := take(wait, lease,
		func(opts ...rlock.AcquireOption) (*rlock.Lease, error) { return l.Lock(ctx, opts...) },
		func(opts ...rlock.TryOption) (*rlock.Lease, error) { return l.TryLock(ctx, opts...) })
	at := now()
	if errors.Is(err, rlock.ErrNotAcquired) && ctx.Err() == nil {
		return nil, errNo
	}
	if err != nil {
		return nil, err
	}
	w.leases[key] = append(w.leases[key], got)
	return []string{at, strconv.FormatInt(got.Token(), 10)}, nil
}

// sections does what the Java driver does; see there.
func (w *worker) sections(ctx context.Context, args []string) ([]string, error) {
	kind, name, counter := args[0], args[1], args[2]
	n, _ := strconv.Atoi(args[3])
	rdb := w.d.rdb
	writes := 0
	for i := range n {
		side := kind
		if kind == "rw" {
			side = "write"
			if i%4 != 0 {
				side = "read"
			}
		}
		l, err := w.d.open(side, name)
		if err != nil {
			return nil, err
		}
		wait := time.Minute
		if i%8 == 6 {
			wait = time.Duration(i%5) * time.Millisecond
		}
		err = rlock.ErrNotAcquired
		var lease *rlock.Lease
		if i%2 == 0 {
			lease, err = l.Lock(ctx, rlock.WithLease(20*time.Second), rlock.WithWait(wait))
		}
		if errors.Is(err, rlock.ErrNotAcquired) || wait < time.Second && errors.Is(err, rlock.ErrUnreachable) {
			lease, err = l.Lock(ctx) // so short a wait may end before an answer
		}
		if err != nil {
			return nil, err
		}
		value, err := rdb.Get(ctx, counter).Int()
		if err != nil && err != redis.Nil {
			return nil, err
		}
		if side == "read" {
			other, err := rdb.Get(ctx, counter+":twin").Int()
			if err != nil && err != redis.Nil || value != other {
				return nil, fmt.Errorf("a reader saw %d and %d (%w)", value, other, err)
			}
		} else {
			writes++
			err = rdb.Set(ctx, counter, value+1, 0).Err()
			if kind == "rw" {
				err = errors.Join(err, rdb.Set(ctx, counter+":twin", value+1, 0).Err())
			}
			if kind == "fenced" {
				err = errors.Join(err, rdb.RPush(ctx, counter+":tokens", lease.Token()).Err())
			}
			if err != nil {
				return nil, err
			}
		}
		if err := lease.Unlock(ctx); err != nil {
			return nil, err
		}
	}
	return []string{strconv.Itoa(writes)}, nil
}

// race does what the Java driver does; see there.
func (w *worker) race(ctx context.Context, args []string) (waits []string, err error) {
	l, err := w.d.open(args[0], args[1])
	if err != nil {
		return nil, err
	}
	micros, err := strconv.ParseInt(args[2], 10, 64)
	if err != nil {
		return nil, err
	}
	for until := time.UnixMicro(micros); time.Now().Before(until); {
		begin := time.Now()
		lease, err := l.Lock(ctx)
		if err != nil {
			return nil, err
		}
		got := time.Now()
		if err := lease.Unlock(ctx); err != nil {
			return nil, err
		}
		if got.Before(until) {
			waits = append(waits, strconv.FormatInt(got.Sub(begin).Microseconds(), 10))
		}
	}
	return waits, nil
}

// semaphore does what the Java driver does; see there.
func (w *worker) semaphore(ctx context.Context, args []string) ([]string, error) {
	s := w.d.client.NewSemaphore(args[0])
	n := 0
	if len(args) > 2 {
		n, _ = strconv.Atoi(args[2])
	}
	begin := now()
	switch args[1] {
	case "set":
		if set, err := s.TrySetPermits(ctx, n); err != nil || set {
			return []string{begin}, err
		}
		return nil, errNo
	case "add":
		return []string{begin}, s.AddPermits(ctx, n)
	case "make": // only here: Redisson has no such method
		return []string{begin}, s.SetPermits(ctx, n)
	case "delete":
		_, err := s.Delete(ctx)
		return []string{begin}, err
	case "acquire":
		var opts []rlock.WaitOption
		if wait := duration(args[3]); wait >= 0 {
			opts = append(opts, rlock.WithWait(wait))
		}
		err := s.Acquire(ctx, n, opts...)
		if errors.Is(err, rlock.ErrNotAcquired) && ctx.Err() == nil {
			err = errNo
		}
		return []string{now()}, err
	case "release":
		return []string{begin}, s.Release(ctx, n)
	case "drain":
		n, err := s.Drain(ctx)
		return []string{strconv.Itoa(n)}, err
	case "available":
		n, err := s.Available(ctx)
		return []string{strconv.Itoa(n)}, err
	case "inside":
		times, _ := strconv.Atoi(args[3])
		most, _ := strconv.ParseInt(args[4], 10, 64)
		for i := range times {
			take := 1 + i%2
			if err := s.Acquire(ctx, take); err != nil {
				return nil, err
			}
			inside, err := w.d.rdb.IncrBy(ctx, args[2], int64(take)).Result()
			if err != nil || inside > most {
				return nil, fmt.Errorf("%d permits are taken (%w)", inside, err)
			}
			if err := errors.Join(w.d.rdb.DecrBy(ctx, args[2], int64(take)).Err(), s.Release(ctx, take)); err != nil {
				return nil, err
			}
		}
		return []string{begin}, nil
	}
	return nil, fmt.Errorf("no command %s", args[1])
}

// latch does what the Java driver does; see there.
func (w *worker) latch(ctx context.Context, args []string) ([]string, error) {
	l := w.d.client.NewCountDownLatch(args[0])
	begin := now()
	no := func(did bool, err error) ([]string, error) {
		if err == nil && !did {
			err = errNo
		}
		return []string{begin}, err
	}
	switch args[1] {
	case "set":
		n, _ := strconv.Atoi(args[2])
		return no(l.TrySetCount(ctx, n))
	case "down":
		return []string{begin}, l.CountDown(ctx)
	case "count":
		n, err := l.Count(ctx)
		return []string{strconv.Itoa(n)}, err
	case "wait":
		err := l.Wait(ctx)
		return []string{now()}, err
	case "delete":
		return no(l.Delete(ctx))
	}
	return nil, fmt.Errorf("no command %s", args[1])
}

func duration(ms string) time.Duration {
	n, _ := strconv.Atoi(ms)
	return time.Duration(n) * time.Millisecond
}

func now() string { return strconv.FormatInt(time.Now().UnixMicro(), 10) }
