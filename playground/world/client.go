package world

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/seam"
)

// Client is a process that may be killed and started again.
type Client struct {
	world *World
	name  string

	mu      sync.Mutex // guards the rest
	process *process   // nil once it is killed
}

// process is one run of a client.
type process struct {
	client  *Client
	network *network
	halt    *halt
	rdb     *redis.Client
	locks   *rlock.Client
	ended   atomic.Bool // nothing that it does counts any more

	mu       sync.Mutex // guards the rest
	busy     bool       // the program runs
	leave    context.CancelFunc
	leaving  chan struct{} // closed when the program is to unlock
	lease    *rlock.Lease  // what the program holds; nil without one
	atWrite  time.Duration // how long the process will be stopped at its next write
	stopping *time.Timer   // resumes it
}

func (c *Client) start() (*process, error) {
	p := &process{client: c, network: newNetwork(c.world.mini.Server().ServeConn), halt: newHalt()}
	p.rdb = redis.NewClient(options(p.network))
	env := c.world.env
	env.Clock, env.Gate = p.halt, p.halt.wait
	var err error
	p.locks, err = rlock.New(p.rdb, rlock.WithWatchdogLease(Lease), rlock.WithCommandTimeout(time.Second),
		rlock.WithLabel(c.name), rlock.WithObserver(observer{p}), seam.Option(env).(rlock.Option))
	if err != nil {
		_ = p.rdb.Close()
		return nil, err
	}
	return p, nil
}

// running returns the process, or nil.
func (c *Client) running() *process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.process
}

// Lock starts the client's program, unless it runs: it acquires the lock, and adds one to the resource again and again,
// until Unlock or the loss of the lock.
func (c *Client) Lock() {
	p := c.running()
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.busy, p.leave, p.leaving = true, cancel, make(chan struct{})
	leaving := p.leaving
	c.world.running.Go(func() { p.run(ctx, leaving) })
}

// Unlock asks the program to unlock when its write is done, or to wait no longer.
func (c *Client) Unlock() {
	p := c.running()
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.leaving == nil {
		return
	}
	close(p.leaving)
	p.leaving = nil
	if p.lease == nil {
		p.leave()
	}
}

// Pause stops the process for a time. If it works, that is at the worst moment: after its last check of the
// lease, before its write.
func (c *Client) Pause(d time.Duration) {
	p := c.running()
	if p == nil || p.halt.stopped() {
		return
	}
	p.mu.Lock()
	if p.lease != nil {
		p.atWrite = d
		p.mu.Unlock()
		return
	}
	p.mu.Unlock()
	p.pause(d)
}

// Cut cuts the client's network, and Heal ends that.
func (c *Client) Cut() {
	if p := c.running(); p != nil {
		p.network.setCut(true)
		p.emit(Event{Kind: Cut, Text: "is cut off from Redis."})
	}
}

// Heal ends what Cut began.
func (c *Client) Heal() {
	if p := c.running(); p != nil {
		p.network.setCut(false)
		p.emit(Event{Kind: Healed, Text: "can reach Redis again."})
	}
}

// LoseReply makes the network lose the reply to the client's next acquire. Redis will have run it.
func (c *Client) LoseReply() {
	if p := c.running(); p != nil {
		p.network.loseReply()
		p.emit(Event{Kind: ReplyLost, Text: "will not get the reply to its next acquire."})
	}
}

// Kill ends the process. It releases nothing.
func (c *Client) Kill() {
	c.mu.Lock()
	p := c.process
	c.process = nil
	c.mu.Unlock()
	if p != nil {
		p.emit(Event{Kind: Killed, Text: "is killed."})
		c.world.running.Go(p.end)
	}
}

// Start starts a new process after Kill.
func (c *Client) Start() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process != nil {
		return nil
	}
	p, err := c.start()
	if err != nil {
		return err
	}
	c.process = p
	p.emit(Event{Kind: Started, Text: "is started again."})
	return nil
}

// Status is what a client does now.
type Status struct {
	Alive, Busy, Holds, Paused, Cut bool
	Left                            time.Duration // rest of the lease
}

// Status returns what the client does now.
func (c *Client) Status() Status {
	p := c.running()
	if p == nil {
		return Status{}
	}
	p.network.mu.Lock()
	s := Status{Alive: true, Paused: p.halt.stopped(), Cut: p.network.cut}
	p.network.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	s.Busy, s.Holds = p.busy, p.lease != nil
	if p.lease != nil {
		s.Left = max(time.Until(p.lease.Deadline()), 0)
	}
	return s
}

func (c *Client) end() {
	c.mu.Lock()
	p := c.process
	c.process = nil
	c.mu.Unlock()
	if p != nil {
		p.end()
	}
}

// end ends a process without a word to Redis.
func (p *process) end() {
	p.ended.Store(true)
	p.network.setCut(true)
	p.resume()
	p.mu.Lock()
	if p.leave != nil {
		p.leave()
	}
	p.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = p.locks.Shutdown(ctx) // its context has ended, so it sends nothing
	_ = p.rdb.Close()
}

func (p *process) emit(e Event) {
	if !p.ended.Load() {
		e.Client, e.Text = p.client.name, p.client.name+" "+e.Text
		p.client.world.emit(e)
	}
}

func (p *process) pause(d time.Duration) {
	if !p.halt.pause() {
		return
	}
	p.network.setStuck(true)
	p.emit(Event{Kind: Paused, Text: fmt.Sprintf("is stopped for %v: it renews nothing, and checks nothing.", d)})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopping = time.AfterFunc(d, p.resume)
}

func (p *process) resume() {
	p.mu.Lock()
	if p.stopping != nil {
		p.stopping.Stop()
	}
	p.mu.Unlock()
	if p.halt.stopped() {
		p.emit(Event{Kind: Resumed, Text: "continues."})
		p.network.setStuck(false)
		p.halt.resume()
	}
}

// run is the program of the client.
func (p *process) run(ctx context.Context, leaving chan struct{}) {
	defer p.idle()
	p.halt.wait("")
	lease, err := p.locks.NewLock(LockName).Lock(ctx)
	if err != nil {
		return // the Observer has reported it
	}
	p.mu.Lock()
	p.lease = lease
	p.mu.Unlock()
	p.client.world.countOwners()
	p.work(lease.Context(context.Background()), lease.Token(), leaving)
	p.halt.wait("")
	if err := lease.Unlock(context.Background()); errors.Is(err, rlock.ErrLeaseLost) {
		p.emit(Event{Kind: Stopped, Token: lease.Token(), Text: "has ended its work, as its lease is over."})
	}
}

func (p *process) idle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leave()
	p.busy, p.lease, p.leaving, p.leave, p.atWrite = false, nil, nil, nil, 0
}

// work adds one to the resource until the lease ends, the resource refuses, or the program is to leave.
func (p *process) work(ctx context.Context, token int64, leaving chan struct{}) {
	register := &p.client.world.Register
	for {
		read, outcome := register.Read(token)
		if outcome == Refused {
			p.emit(Event{Kind: Refused, Token: token, Text: fmt.Sprintf("is refused by the fence, which got a higher token than %s.", short(token))})
			return
		}
		p.sleep(Compute, ctx.Done())
		if ctx.Err() != nil {
			return
		}
		// The last check is done. If the process is stopped right here, only the resource can notice.
		p.stopAtWrite()
		if p.ended.Load() {
			return
		}
		if !p.write(token, read) {
			return
		}
		select {
		case <-leaving:
			return
		default:
		}
		p.sleep(Rest, ctx.Done())
	}
}

// write reports whether the resource has accepted the write.
func (p *process) write(token int64, read Read) bool {
	value, outcome := p.client.world.Register.Write(token, read)
	e := Event{Kind: outcome, Token: token}
	switch outcome {
	case Accepted:
		e.Text = fmt.Sprintf("writes %d.", value)
	case LostUpdate:
		e.Text = fmt.Sprintf("writes %d, and overwrites what another has written: an update is lost.", value)
	case Refused:
		e.Text = fmt.Sprintf("is refused by the fence: its token %s is lower than the highest.", short(token))
	}
	p.emit(e)
	return outcome != Refused
}

func (p *process) stopAtWrite() {
	p.mu.Lock()
	d := p.atWrite
	p.atWrite = 0
	p.mu.Unlock()
	if d > 0 {
		p.pause(d)
		p.halt.wait("")
	}
}

// sleep sleeps for d, or until the end; in either case it waits while the process is stopped.
func (p *process) sleep(d time.Duration, end <-chan struct{}) {
	t := p.halt.NewTimer(d)
	select {
	case <-t.C():
	case <-end:
	}
	t.Stop()
	p.halt.wait("")
}

// owns reports whether the process has a lease that is valid as far as it can know.
func (p *process) owns() bool {
	p.mu.Lock()
	lease := p.lease
	p.mu.Unlock()
	// In this order: Err of a lease whose time is over would report the loss, on behalf of a stopped process.
	return lease != nil && time.Now().Before(lease.Deadline()) && lease.Err() == nil
}

// countOwners reports two owners.
func (w *World) countOwners() {
	var owners []string
	for _, c := range w.clients {
		if p := c.running(); p != nil && p.owns() {
			owners = append(owners, c.name)
		}
	}
	if len(owners) > 1 {
		w.emit(Event{Kind: TwoOwners, Text: fmt.Sprintf("%s and %s both believe that they hold the lock.", owners[0], owners[1])})
	}
}
