//go:build unix

// Command lostupdates shows what a fence is for. Processes add to a counter, one at a time, under a lock. Some are
// stopped for longer than their lease while their write is on its way. It counts the updates that are lost, without a
// fence and with one.
//
//	cd adapters/fence && go run ./lostupdates
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/adapters/fence"
)

const (
	processes = 4
	updates   = 25                     // of each
	stopEach  = 5                      // one in five is stopped
	lease     = 200 * time.Millisecond // short, so that the program is
	others    = 2                      // updates of others until one that is stopped goes on
	workerEnv = "LOSTUPDATES_WORKER"
)

func main() {
	if os.Getenv(workerEnv) != "" {
		if err := work(); err != nil {
			log.Fatal(err)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	for _, fenced := range []bool{false, true} {
		run, err := count(ctx, fenced)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(run)
	}
}

// result is what has become of the updates.
type result struct {
	fenced           bool
	stopped, refused int
	values           []int // of the counter, after each update that its process takes for done
	final            int
}

func (r result) lost() int { return len(r.values) - r.final }

func (r result) String() string {
	if r.fenced {
		return fmt.Sprintf("with the fence:    %d of %d updates are lost (%d holders were stopped, %d writes were refused, and made anew)",
			r.lost(), len(r.values), r.stopped, r.refused)
	}
	return fmt.Sprintf("without the fence: %d of %d updates are lost (%d holders were stopped)", r.lost(), len(r.values), r.stopped)
}

// told is a line that a worker has written on its standard output.
type told struct {
	worker int
	line   string
	err    error // it has ended; io.EOF: well
}

// count runs the workers, and lets those that are stopped go on when others have written.
func count(ctx context.Context, fenced bool) (r result, err error) {
	r.fenced = fenced
	mini, err := miniredis.Run()
	if err != nil {
		return r, err
	}
	defer mini.Close()
	mini.ClockTTL(true)
	ctx, cancel := context.WithCancel(ctx)
	events, cmds := make(chan told), make([]*exec.Cmd, processes)
	running := 0
	defer func() {
		cancel() // kills those that still run
		for range running {
			for e := range events {
				if e.err != nil {
					break
				}
			}
		}
	}()
	for i := range cmds {
		exe, err := os.Executable()
		if err != nil {
			return r, err
		}
		cmds[i] = exec.CommandContext(ctx, exe)
		cmds[i].Env = append(os.Environ(), fmt.Sprintf("%s=%s %t %d", workerEnv, mini.Addr(), fenced, i))
		cmds[i].Stderr = os.Stderr
		cmds[i].SysProcAttr = dieWithParent()
		started := make(chan error)
		go follow(i, cmds[i], started, events)
		if err := <-started; err != nil {
			return r, err
		}
		running++
	}
	until := map[int]int{} // the number of updates at which a worker that is stopped goes on
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for running > 0 {
		select {
		case e := <-events:
			what, value, _ := strings.Cut(e.line, " ")
			switch {
			case errors.Is(e.err, io.EOF):
				running--
			case e.err != nil:
				running--
				return r, e.err
			case what == "stops":
				r.stopped++
				until[e.worker] = len(r.values) + others
			case what == "refused":
				r.refused++
				delete(until, e.worker)
			case what == "wrote":
				n, err := strconv.Atoi(value)
				if err != nil {
					return r, err
				}
				r.values = append(r.values, n)
				delete(until, e.worker)
			}
		case <-tick.C: // again and again: it may be about to stop
			for worker, n := range until {
				if len(r.values) >= n || len(until) == running {
					_ = cmds[worker].Process.Signal(syscall.SIGCONT)
				}
			}
		}
	}
	r.final, err = strconv.Atoi(mini.HGet("counter", "n"))
	return r, err
}

// follow runs a worker, and passes on what it writes.
func follow(i int, cmd *exec.Cmd, started chan<- error, events chan<- told) {
	runtime.LockOSThread() // the worker dies with the thread that has started it
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	started <- err
	if err != nil {
		return
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		events <- told{worker: i, line: lines.Text()}
	}
	if err := cmd.Wait(); err != nil {
		events <- told{worker: i, err: fmt.Errorf("worker %d: %w", i, err)}
		return
	}
	events <- told{worker: i, err: io.EOF}
}

// freezer stops this process, when it is armed, while a command is on its way to Redis.
type freezer struct{ armed bool }

func (f *freezer) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *freezer) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (f *freezer) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if f.armed {
			f.armed = false
			goesOn := make(chan os.Signal, 1)
			signal.Notify(goesOn, syscall.SIGCONT)
			fmt.Println("stops")
			if err := syscall.Kill(os.Getpid(), syscall.SIGSTOP); err != nil {
				return err
			}
			<-goesOn // this thread may run on for a moment
			signal.Stop(goesOn)
			ctx = context.WithoutCancel(ctx) // it has left already, and arrives late
		}
		return next(ctx, cmd)
	}
}

// work is one of the processes.
func work() error {
	var addr string
	var fenced bool
	var number int
	if _, err := fmt.Sscan(os.Getenv(workerEnv), &addr, &fenced, &number); err != nil {
		return err
	}
	client, err := rlock.New(redis.NewClient(&redis.Options{Addr: addr}))
	if err != nil {
		return err
	}
	freeze := &freezer{}
	data := redis.NewClient(&redis.Options{Addr: addr})
	data.AddHook(freeze)
	lock := client.NewLock("counter:lock")
	for n := 1; n <= updates; {
		stop := (n+number)%stopEach == 0 // not all in the same round
		for {
			value, err := add(context.Background(), lock, data, fenced, func() { freeze.armed, stop = stop, false })
			switch {
			case err == nil:
				fmt.Println("wrote", value)
				n++
			case errors.Is(err, fence.ErrStale), errors.Is(err, rlock.ErrLeaseLost):
				fmt.Println("refused")
				continue
			default:
				return err
			}
			break
		}
	}
	return nil
}

// add adds 1 to the counter, under the lock. It returns what it has written.
func add(ctx context.Context, lock *rlock.Lock, data *redis.Client, fenced bool, onItsWay func()) (value int, err error) {
	held, err := lock.Lock(ctx, rlock.WithLease(lease))
	if err != nil {
		return 0, err
	}
	defer func() { _ = held.Unlock(ctx) }() // it may be lost
	if fenced {                             // from here on no earlier holder can write
		if err := fence.HSet(ctx, data, held, "counter", nil); err != nil {
			return 0, err
		}
	}
	value, err = data.HGet(ctx, "counter", "n").Int()
	if err != nil && !errors.Is(err, redis.Nil) {
		return 0, err
	}
	value++
	if err := held.Err(); err != nil { // the last check
		return 0, err
	}
	onItsWay()
	if fenced {
		return value, fence.HSet(ctx, data, held, "counter", map[string]string{"n": strconv.Itoa(value)})
	}
	return value, data.HSet(ctx, "counter", "n", value).Err()
}
