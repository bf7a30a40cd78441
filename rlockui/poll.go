package rlockui

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-rlock/rlock"
)

const (
	mostViewers = 200
	longestPoll = time.Minute // a poll that takes longer has failed
	restFactor  = 9           // pause after a poll, in durations of the poll
)

var (
	errClosed  = errors.New("rlockui: the pages are closed")
	errCrowded = errors.New("rlockui: too many viewers")
	errTooLong = errors.New("rlockui: the poll took too long: limit it with a Pattern")
)

// viewer is a stream, or a request for one snapshot.
type viewer struct {
	news chan struct{} // has one element if there is a reading that the viewer has not got
}

// join adds a viewer. The first one starts the poller.
func (u *UI) join() (*viewer, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.life.Err() != nil:
		return nil, errClosed
	case len(u.viewers) >= mostViewers:
		return nil, errCrowded
	}
	v := &viewer{news: make(chan struct{}, 1)}
	u.viewers[v] = true
	if u.book.isFresh(time.Now(), u.opts.Interval, u.polls) {
		v.news <- struct{}{}
	}
	if !u.polls {
		u.polls = true
		u.running.Go(u.poll)
	}
	return v, nil
}

// leave removes a viewer. The last one ends the poller, after a poll that is under way.
func (u *UI) leave(v *viewer) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.viewers, v)
	if len(u.viewers) == 0 {
		select {
		case u.left <- struct{}{}:
		default:
		}
	}
}

// poll polls while there are viewers. It is the only goroutine that polls. A poll that has begun is finished without
// viewers too: otherwise viewers who come and go would have poll after poll begun, without the pauses.
func (u *UI) poll() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		u.mu.Lock()
		if len(u.viewers) == 0 || u.life.Err() != nil {
			u.polls = false
			u.mu.Unlock()
			return
		}
		timer.Reset(time.Until(u.book.due(u.opts.Interval)))
		u.mu.Unlock()
		select {
		case <-u.life.Done():
			continue
		case <-u.left:
			continue
		case <-timer.C:
		}
		r := u.read(u.life)
		if u.life.Err() != nil {
			continue // an incomplete poll proves nothing
		}
		u.mu.Lock()
		u.book.enter(r)
		for v := range u.viewers {
			select {
			case v.news <- struct{}{}:
			default:
			}
		}
		u.mu.Unlock()
	}
}

// reading is the outcome of one poll.
type reading struct {
	began, ended time.Time
	err          error // the poll has failed: it has no locks
	locks        []found
	truncated    bool // there are more locks than MaxLocks
	nodes        []nodeState
	waiting      []waiting // without Options.Redis none
	waitsCut     bool      // there are more
	waitErr      error
	known        []introduced
	losses       int64 // of the clients themselves
}

func (r *reading) took() time.Duration { return r.ended.Sub(r.began) }

// found is a lock, with the time at which its state was received.
type found struct {
	rlock.FoundLock
	at    time.Time
	votes int // of a RedLock
}

// nodeState is whether a node answers.
type nodeState struct {
	err    error
	took   time.Duration
	losses int64
	holds  int
}

// read polls Redis once.
func (u *UI) read(ctx context.Context) *reading {
	ctx, cancel := context.WithTimeoutCause(ctx, longestPoll, errTooLong)
	defer cancel()
	r := &reading{began: time.Now(), nodes: make([]nodeState, len(u.clients))}
	parts := make([]part, len(u.clients))
	var requests sync.WaitGroup
	for i, c := range u.clients {
		requests.Go(func() {
			if len(u.clients) > 1 {
				began := time.Now()
				r.nodes[i].err = c.Ping(ctx)
				r.nodes[i].took = time.Since(began)
			}
			parts[i] = u.sweep(ctx, c)
			r.nodes[i].err = cmp.Or(r.nodes[i].err, parts[i].err)
			s := c.Stats()
			r.nodes[i].losses, r.nodes[i].holds = s.Losses, s.Holds
		})
	}
	requests.Wait()
	answers := 0
	for i := range parts {
		r.losses += r.nodes[i].losses
		if parts[i].err == nil {
			answers++
		} else {
			r.err = cmp.Or(r.err, parts[i].err)
		}
	}
	if answers > len(parts)/2 {
		r.err = nil
		r.locks, r.truncated = merge(parts)
	} else if cause := context.Cause(ctx); cause != nil {
		r.err = cause
	}
	if r.err == nil && u.opts.Redis != nil {
		u.readClients(ctx, r)
	}
	r.ended = time.Now()
	return r
}

// part is what one server has.
type part struct {
	locks     []found
	truncated bool
	err       error
}

// sweep reads the locks of one server, at most MaxLocks.
func (u *UI) sweep(ctx context.Context, c *rlock.Client) (p part) {
	type lockKey struct{ typ, name, holder string }
	seen := map[lockKey]bool{}
	for f, err := range c.Locks(ctx, u.opts.Pattern) {
		if err != nil {
			return part{err: err}
		}
		key := lockKey{typ: f.Type, name: f.Name}
		if f.Type == "CronJob" && len(f.State.Holders) > 0 {
			key.holder = f.State.Holders[0].HoldID // each run is found under the name of the job
		}
		if seen[key] {
			continue // SCAN may return a key twice
		}
		if len(p.locks) >= u.opts.MaxLocks {
			p.truncated = true
			break
		}
		seen[key] = true
		p.locks = append(p.locks, found{FoundLock: f, at: time.Now(), votes: 1})
	}
	return p
}

// merge joins the locks of several servers. The votes for a RedLock are one lock, held by the hold with the most votes.
func merge(parts []part) (all []found, truncated bool) {
	if len(parts) == 1 {
		return parts[0].locks, parts[0].truncated
	}
	type vote struct{ name, holdID string }
	votes := map[vote]int{}
	at := map[string]int{} // index in all, by name
	for _, p := range parts {
		truncated = truncated || p.truncated
		for _, f := range p.locks {
			if f.Type != "RedLock" || len(f.State.Holders) == 0 {
				all = append(all, f)
				continue
			}
			v := vote{f.Name, f.State.Holders[0].HoldID}
			votes[v]++
			f.votes = votes[v]
			i, known := at[f.Name]
			switch {
			case !known:
				at[f.Name] = len(all)
				all = append(all, f)
			case f.votes >= all[i].votes:
				if f.State.TTL < all[i].State.TTL && f.State.Holders[0].HoldID == all[i].State.Holders[0].HoldID {
					f.State.TTL = all[i].State.TTL
				}
				all[i] = f
			}
		}
	}
	return all, truncated
}
