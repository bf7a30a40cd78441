// Package rlockui has pages that show the locks in Redis, live: who holds them, since when, who waits for whom, and
// what has happened to them while the pages were open.
//
//	pages, err := rlockui.Handler(client, rlockui.Options{Redis: rdb})
//	...
//	defer pages.Close()
//	mux.Handle("/debug/locks/", auth(pages))
//
// The handler works under any prefix, stripped or not, and checks no user: mount it behind the middleware that does. It
// is read-only unless [Options.Allow] permits a write.
//
// All viewers share one poll of Redis. A page whose tab is hidden disconnects, and without viewers no poll begins.
package rlockui

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/visible"
)

const (
	// DefaultInterval is the least time between two polls.
	DefaultInterval = 2 * time.Second
	// DefaultMaxLocks is how many locks a poll reads at most.
	DefaultMaxLocks = 10_000

	leastInterval = 100 * time.Millisecond
	longestReply  = 10 * time.Second
	longestTitle  = 80      // bytes
	mostLocks     = 100_000 // of MaxLocks: each takes a kilobyte of memory, and up to 20 with a full timeline
)

// Options are the options of [Handler]. The zero value is ready to use.
type Options struct {
	// Title is the heading of the pages, by default "rlock".
	Title string
	// Interval is the least time between two polls, by default DefaultInterval; at least 100 ms. A poll that takes long
	// is followed by a pause of nine times its duration, so they take at most a tenth of the time. After one slow poll
	// among quick ones, and after a poll that Redis did not answer, the pause is as long as the poll.
	Interval time.Duration
	// MaxLocks is how many locks a poll reads at most, by default DefaultMaxLocks, at most 100,000. If there are more,
	// the pages say so.
	MaxLocks int
	// Pattern limits the pages to the locks whose name matches, as in Client.Locks. The default is all.
	Pattern string
	// Redis is the go-redis client of the rlock client. With it the pages show which clients wait for which, and which
	// client has stopped introducing itself. The default nil omits both.
	Redis redis.UniversalClient
	// Nodes are the clients of the other nodes, if the client is the first node of RedLocks, in the order of NewRedLock.
	Nodes []*rlock.Client
	// Allow reports whether a request may do a write. The default nil forbids all writes, and hides their buttons.
	Allow func(r *http.Request, w Write) bool
	// Hosts are names under which the pages are reached on a loopback address, as through a proxy on the same machine,
	// other than localhost and the address itself. Any other name is refused there, because the page of an attacker
	// may give its own name the address 127.0.0.1. "*" permits all names.
	Hosts []string
}

// Actions of a [Write].
const (
	ForceUnlock    = "force-unlock"    // ForceUnlockIf of one hold id
	RequestRelease = "request-release" // RequestRelease of a lock
)

// Write is what a viewer wants to do.
type Write struct {
	Action string // ForceUnlock or RequestRelease
	Lock   string // name of the lock, without the prefix
	Type   string // type of the lock, as in a FoundLock
	HoldID string // the hold of a ForceUnlock
}

// UI is the handler of the pages.
type UI struct {
	opts    Options
	clients []*rlock.Client
	prefix  string // of the names in Redis
	cross   *http.CrossOriginProtection
	hosts   map[string]bool

	life    context.Context // ends with Close
	end     context.CancelFunc
	running sync.WaitGroup
	left    chan struct{} // has one element if the last viewer has left, for the poller

	mu      sync.Mutex // guards the rest; it is not held across a request to Redis
	viewers map[*viewer]bool
	polls   bool // there is a poller
	book    *book
}

// Handler returns the pages of a client. Close ends them. It sends nothing before a viewer comes. The error is about an
// option that is out of its bounds.
func Handler(client *rlock.Client, opts Options) (*UI, error) {
	if opts.Interval == 0 {
		opts.Interval = DefaultInterval
	}
	if opts.MaxLocks == 0 {
		opts.MaxLocks = DefaultMaxLocks
	}
	if opts.Title == "" {
		opts.Title = "rlock"
	}
	switch {
	case client == nil || slices.Contains(opts.Nodes, nil):
		return nil, errors.New("rlockui: a client is nil")
	case opts.Interval < leastInterval:
		return nil, fmt.Errorf("rlockui: Interval %v: at least %v", opts.Interval, leastInterval)
	case opts.MaxLocks < 0 || opts.MaxLocks > mostLocks:
		return nil, fmt.Errorf("rlockui: MaxLocks %d: from 1 to %d", opts.MaxLocks, mostLocks)
	}
	if rdb := reflect.ValueOf(opts.Redis); rdb.Kind() == reflect.Pointer && rdb.IsNil() {
		return nil, errors.New("rlockui: Redis is a nil pointer")
	}
	if opts.Pattern != "" {
		if _, err := protocol.ParsePattern(opts.Pattern); err != nil {
			return nil, fmt.Errorf("rlockui: Pattern %.100q: %w", opts.Pattern, err)
		}
	}
	for _, host := range opts.Hosts {
		if host == "" || host != "*" && strings.ContainsAny(host, ":/*@ ") {
			return nil, fmt.Errorf("rlockui: Hosts has %.100q: a name without scheme and port", host)
		}
	}
	opts.Title = visible.Cut(opts.Title, longestTitle)
	if rdb, ok := opts.Redis.(*redis.Client); ok && !rdb.Options().ContextTimeoutEnabled && rdb.Options().ReadTimeout <= 0 {
		opts.Redis = rdb.WithTimeout(longestReply) // it shares the connections. Close would wait for a lost reply for ever
	}
	u := &UI{
		opts:    opts,
		clients: append([]*rlock.Client{client}, opts.Nodes...),
		cross:   http.NewCrossOriginProtection(),
		hosts:   map[string]bool{"localhost": true},
		left:    make(chan struct{}, 1),
		viewers: map[*viewer]bool{},
		book:    newBook(opts.MaxLocks),
	}
	u.life, u.end = context.WithCancel(context.Background())
	const probe = "x"
	full := client.NewLock(probe).Name()
	u.prefix = full[:len(full)-len(probe)]
	for _, host := range opts.Hosts {
		u.hosts[strings.ToLower(host)] = true
	}
	return u, nil
}

// Close ends the poll and all streams, and waits for the poll. Requests for data and writes that come later are refused. To have
// http.Server.Shutdown end the streams, register Close with http.Server.RegisterOnShutdown.
func (u *UI) Close() error {
	u.mu.Lock() // a viewer who joins later begins no poll
	u.end()
	u.mu.Unlock()
	u.running.Wait()
	return nil
}
