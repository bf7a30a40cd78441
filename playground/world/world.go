// Package world has three processes that share a lock of package rlock, a Redis in memory, and a resource that the lock
// guards. Everything in it can be broken: it is what the playground of the site shows, and the same code runs in
// its tests. The clients are the library, unchanged; time is real.
package world

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/seam"
)

// Durations that are long enough to watch.
const (
	Lease   = 5 * time.Second        // of the watchdog, which renews after a third of it
	Compute = 800 * time.Millisecond // from a read to its write
	Rest    = 200 * time.Millisecond // between a write and the next read
)

// LockName is the name of the lock.
const LockName = "counter"

// Names of the clients.
var Names = []string{"A", "B", "C"}

// World is a Redis, its clients, and the resource.
type World struct {
	Register Register

	mini    *miniredis.Miniredis
	began   time.Time
	receive func(Event)
	env     seam.Env // what a test replaces
	clients []*Client
	running sync.WaitGroup // programs, and processes that end

	mu      sync.Mutex // guards the rest, and the order of events
	events  []Event
	changed chan struct{} // closed with the next event
}

// New makes a world. receive, if not nil, gets each event, in order; it must return quickly, and not call the world.
func New(receive func(Event)) (*World, error) { return newWorld(receive, seam.Env{}) }

func newWorld(receive func(Event), env seam.Env) (*World, error) {
	w := &World{mini: miniredis.NewMiniRedis(), began: time.Now(), receive: receive, env: env, changed: make(chan struct{})}
	idle, err := w.mini.Dial() // starts the server without a listener
	if err != nil {
		return nil, err
	}
	_ = idle.Close()
	w.mini.ClockTTL(true)
	for _, name := range Names {
		c := &Client{world: w, name: name}
		if c.process, err = c.start(); err != nil {
			w.Close()
			return nil, err
		}
		w.clients = append(w.clients, c)
	}
	return w, nil
}

// Client returns the client of a name; nil if there is none.
func (w *World) Client(name string) *Client {
	for _, c := range w.clients {
		if c.name == name {
			return c
		}
	}
	return nil
}

// LoseData empties Redis, as a failover to a replica that had got nothing yet.
func (w *World) LoseData() {
	w.mini.FlushAll()
	w.emit(Event{Kind: Flushed, Text: "Redis has lost its data, as in a failover to a replica that had not got them yet."})
}

// SetFence turns the fence of the resource on or off.
func (w *World) SetFence(on bool) {
	w.Register.SetFence(on)
	text := "The fence is off: the resource accepts every write."
	if on {
		text = "The fence is on: the resource refuses a token lower than the highest that it has got."
	}
	w.emit(Event{Kind: Fence, On: on, Text: text})
}

// Show reports what Redis has of the lock.
func (w *World) Show(ctx context.Context) error {
	rdb := redis.NewClient(options(newNetwork(w.mini.Server().ServeConn)))
	defer rdb.Close()
	locks, err := rlock.New(rdb, rlock.WithAnonymity())
	if err != nil {
		return err
	}
	defer locks.Shutdown(ctx)
	state, err := locks.NewLock(LockName).State(ctx)
	if err != nil {
		return err
	}
	e := Event{Kind: Shown, Text: "Redis has no hold of the lock."}
	for _, h := range state.Holders {
		e.Holds += h.Count
	}
	if n := len(state.Holders); n > 0 {
		e.Text = fmt.Sprintf("Redis has %d hold of the lock, entered %d time(s).", n, e.Holds)
	}
	w.emit(e)
	return nil
}

// Age returns how long the world exists: the time of an event that would happen now.
func (w *World) Age() time.Duration { return time.Since(w.began) }

// Events returns what has happened so far.
func (w *World) Events() []Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.events)
}

// Await waits for an event that is so, from the one with the index on, and returns the index after it.
func (w *World) Await(ctx context.Context, from int, is func(Event) bool) (next int, err error) {
	for {
		w.mu.Lock()
		events, changed := w.events, w.changed
		w.mu.Unlock()
		for ; from < len(events); from++ {
			if is(events[from]) {
				return from + 1, nil
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return from, ctx.Err()
		}
	}
}

func (w *World) emit(e Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e.At, e.Name = time.Since(w.began), nameOf(e.Cause)
	w.events = append(w.events, e)
	close(w.changed)
	w.changed = make(chan struct{})
	if w.receive != nil {
		w.receive(e)
	}
}

// Close ends all processes, and Redis.
func (w *World) Close() {
	for _, c := range w.clients {
		c.end()
	}
	w.running.Wait()
	w.mini.Close()
}

func options(n *network) *redis.Options {
	return &redis.Options{
		Addr: redisAddress, Dialer: n.dial,
		DialerRetries: 1, PoolSize: 1000, // a wait for a connection would use a timer that bubbles of synctest share
		DisableIdentity:          true, // miniredis does not know these two
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}
