package rlockui

import (
	"cmp"
	"context"
	"maps"
	"regexp"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/presence"
)

const (
	clientPart  = 21 // bytes of a client's id that its key has
	keyLasts    = 10 * time.Minute
	goneAfter   = 5 * time.Minute // a client in use writes its key every three minutes and some seconds
	askAgain    = 30 * time.Second
	mostAsked   = 200 // clients whose key is read in one poll
	longestText = 4096

	mostWaits   = 20_000 // waits of clients that a poll keeps
	mostEdges   = 5000   // of all locks
	mostWaiters = 64     // clients that wait for one lock
	mostOwners  = 16     // clients that hold one lock
	mostCycles  = 20
	// A client stays subscribed for three seconds after its last wait, and a busy fleet has cycles that dissolve: a
	// cycle is shown after a longer time.
	standsFor = 4 * time.Second
)

// waiting is a client that waits for a lock.
type waiting struct {
	family, name string
	client       string
}

// introduced is what the key of a client shows.
type introduced struct {
	client  string
	process rlock.Process
	exists  bool
	age     time.Duration // since it was written
}

// person is a client that holds a lock or waits for one.
type person struct {
	client  string
	process rlock.Process
	asked   time.Time // when its key was last read; zero if never
	isKnown bool      // its key was there once
	wroteAt time.Time // when its key was last written
	isGone  bool      // it has not written its key in time
	holds   int
	waits   int
	seen    time.Time
}

// edge is a client that waits for a lock, and a hold that it waits for.
type edge struct {
	waiter, lock, holdID string
}

// people are the clients, and who waits for whom. The mutex of the UI guards it.
type people struct {
	clients map[string]*person
	edges   map[edge]time.Time // since when each was seen
	cycles  []cycle
	err     error
	cut     bool // there are more edges

	// The order is made once for each poll: all viewers are shown the same.
	ranked  []*person // clients that are gone first, then by the number of their holds and waits
	ordered []edge    // the oldest first
}

// cycle is clients of which each waits for a lock that the next holds.
type cycle struct {
	steps []edge
	since time.Time // all of them have waited since
}

func newPeople() people {
	return people{clients: map[string]*person{}, edges: map[edge]time.Time{}}
}

var aClient = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// clientOf returns the part of a hold id that names the client of this module that made it, or "".
func clientOf(holdID string) string {
	at := strings.LastIndexByte(holdID, ':')
	if at < 0 || !aClient.MatchString(holdID[:at]) || holdID[14] != '8' {
		return "" // Redisson's have another version of UUIDs, and permits have no such id
	}
	return holdID[:clientPart]
}

// Channels that only waiters subscribe to, by the form of the channel. The family is of the types that share the channels.
var (
	ofLock  = regexp.MustCompile(`(?s)^redisson_(lock__channel|rwlock):(.+):([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?::\d+)?$`)
	ofQueue = regexp.MustCompile(`(?s)^(.+):rlock:(fairrw|priority|election|permits):turn:([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})$`)
)

var families = map[string]string{
	"Lock": "lock", "FairLock": "lock", "FencedLock": "lock", "SpinLock": "lock", "ReadWriteLock": "rwlock",
	"FairReadWriteLock": "fairrw", "PriorityLock": "priority", "Election": "election", "PermitSemaphore": "permits",
}

// parseChannel returns who waits for what, if the channel shows it.
func parseChannel(channel, prefix string) (w waiting, ok bool) {
	if m := ofLock.FindStringSubmatch(channel); m != nil {
		w = waiting{family: strings.TrimSuffix(m[1], "__channel"), name: m[2], client: m[3]}
	} else if m := ofQueue.FindStringSubmatch(channel); m != nil {
		w = waiting{family: m[2], name: m[1], client: m[3]}
	} else {
		return w, false
	}
	// Braces are added around a name that has none.
	if inner, braced := strings.CutPrefix(w.name, "{"); braced {
		if inner, braced = strings.CutSuffix(inner, "}"); braced && !strings.Contains(inner, "{") {
			w.name = inner
		}
	}
	w.client = w.client[:clientPart]
	w.name, ok = strings.CutPrefix(w.name, prefix)
	return w, ok && w.name != ""
}

// waitsIn returns the waits that channels show, each once, and whether there are more than a poll keeps.
func waitsIn(channels []string, prefix string) (all []waiting, cut bool) {
	for _, channel := range channels {
		if w, ok := parseChannel(channel, prefix); ok {
			all = append(all, w)
		}
	}
	sort.Slice(all, func(i, j int) bool {
		a, b := all[i], all[j]
		return cmp.Or(strings.Compare(a.name, b.name), strings.Compare(a.family, b.family), strings.Compare(a.client, b.client)) < 0
	})
	all = slices.Compact(all)
	return all[:min(len(all), mostWaits)], len(all) > mostWaits
}

// readClients reads who waits, and the keys of some clients.
func (u *UI) readClients(ctx context.Context, r *reading) {
	var channels []string
	channels, r.waitErr = u.channels(ctx)
	r.waiting, r.waitsCut = waitsIn(channels, u.prefix)
	asked := u.toAsk(r)
	if len(asked) == 0 {
		return
	}
	pipe := u.opts.Redis.Pipeline()
	texts := make([]*redis.StringCmd, len(asked))
	rests := make([]*redis.DurationCmd, len(asked))
	for i, client := range asked {
		key := u.prefix + "rlock:client:" + client
		texts[i], rests[i] = pipe.GetRange(ctx, key, 0, longestText-1), pipe.PTTL(ctx, key)
	}
	_, _ = pipe.Exec(ctx) // each command has its error
	for i, client := range asked {
		err := cmp.Or(texts[i].Err(), rests[i].Err())
		if err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") { // that key has no text, as if it were missing
			r.waitErr = cmp.Or(r.waitErr, err)
			continue
		}
		one := introduced{client: client}
		if p, known := presence.Read(texts[i].Val()); known && rests[i].Val() > 0 {
			one.exists, one.process, one.age = true, rlock.Process(p), keyLasts-rests[i].Val()
		}
		r.known = append(r.known, one)
	}
}

// channels returns the channels to which waiters are subscribed: three commands for each node.
func (u *UI) channels(ctx context.Context) (all []string, err error) {
	patterns := []string{"redisson_lock__channel:*", "redisson_rwlock:*", "*:rlock:*:turn:*"}
	switch rdb := u.opts.Redis.(type) {
	case *redis.ClusterClient:
		replies := make(chan []string)
		go func() { // ends with the calls below
			defer close(replies)
			err = rdb.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
				for _, pattern := range patterns {
					some, err := node.PubSubShardChannels(ctx, pattern).Result()
					if err != nil {
						return err
					}
					replies <- some
				}
				return nil
			})
		}()
		for some := range replies {
			all = append(all, some...)
		}
		return all, err
	default:
		for _, pattern := range patterns {
			some, err := rdb.PubSubChannels(ctx, pattern).Result()
			if err != nil {
				return all, err
			}
			all = append(all, some...)
		}
	}
	return all, nil
}

// toAsk returns the clients whose keys are read now: those that were not read for the longest time.
func (u *UI) toAsk(r *reading) []string {
	present := map[string]bool{}
	for i := range r.locks {
		for _, h := range r.locks[i].State.Holders {
			present[clientOf(h.HoldID)] = true
		}
	}
	for _, w := range r.waiting {
		present[w.client] = true
	}
	delete(present, "")
	u.mu.Lock()
	defer u.mu.Unlock()
	asked := map[string]time.Time{}
	for client := range present {
		at := time.Time{}
		if p := u.book.people.clients[client]; p != nil {
			at = p.asked
		}
		if r.began.Sub(at) >= askAgain {
			asked[client] = at
		}
	}
	all := slices.SortedFunc(maps.Keys(asked), func(a, b string) int {
		return cmp.Or(asked[a].Compare(asked[b]), strings.Compare(a, b))
	})
	return all[:min(len(all), mostAsked)]
}

// enter adds the clients of a reading. b has the locks of the reading.
func (p *people) enter(r *reading, b *book) {
	p.err = r.waitErr
	for _, one := range p.clients {
		one.holds, one.waits = 0, 0
	}
	for _, e := range b.sorted {
		for i := range e.holders {
			if client := clientOf(e.holders[i].HoldID); client != "" {
				one := p.get(client, r.ended)
				one.holds++
				if one.process == (rlock.Process{}) {
					one.process = e.holders[i].Process
				}
			}
		}
	}
	for _, w := range r.waiting {
		p.get(w.client, r.ended).waits++
	}
	for i := range r.known {
		k := &r.known[i]
		one := p.get(k.client, r.ended)
		one.asked = r.ended
		if k.exists {
			one.process, one.isKnown, one.wroteAt = k.process, true, r.ended.Add(-k.age)
		}
		one.isGone = k.exists && k.age > goneAfter || !k.exists && one.isKnown
	}
	for client, one := range p.clients {
		if one.holds == 0 && one.waits == 0 && r.ended.Sub(one.seen) > time.Minute {
			delete(p.clients, client)
		}
	}
	p.rank()
	p.link(r, b)
}

// rank orders the clients.
func (p *people) rank() {
	p.ranked = slices.Collect(maps.Values(p.clients))
	slices.SortFunc(p.ranked, func(a, b *person) int {
		switch {
		case a.isGone != b.isGone:
			return map[bool]int{true: -1, false: 1}[a.isGone]
		case a.holds+a.waits != b.holds+b.waits:
			return b.holds + b.waits - a.holds - a.waits
		}
		return strings.Compare(a.client, b.client)
	})
}

func (p *people) get(client string, now time.Time) *person {
	one := p.clients[client]
	if one == nil {
		one = &person{client: client}
		p.clients[client] = one
	}
	one.seen = now
	return one
}

// link finds who waits for whom.
func (p *people) link(r *reading, b *book) {
	type lockOf struct{ family, name string }
	locks := map[lockOf]*entry{}
	for _, e := range b.sorted {
		if family := families[e.typ]; family != "" && !e.free() {
			locks[lockOf{family, e.name}] = e
		}
	}
	before := p.edges
	p.edges, p.cut = map[edge]time.Time{}, r.waitsCut
	perLock := map[string]int{}
	for _, w := range r.waiting {
		e := locks[lockOf{w.family, w.name}]
		if e == nil {
			continue
		}
		if perLock[e.id]++; perLock[e.id] > mostWaiters || len(p.edges) >= mostEdges {
			p.cut = true
			continue
		}
		for _, h := range e.holders[:min(len(e.holders), mostOwners)] {
			one := edge{w.client, e.id, h.HoldID}
			since, stood := before[one]
			if !stood {
				since = r.ended
			}
			p.edges[one] = since
		}
	}
	p.ordered = p.sortedEdges()
	p.cycles = p.findCycles(r.ended)
}
