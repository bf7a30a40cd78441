package pubsub

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/wire"
)

const (
	// After pingEvery without messages a feed sends a PING, and the PONG may take pongWithin.
	pingEvery  = 2 * time.Second
	pongWithin = 2 * time.Second

	// idleFeed is how long a connection without channels stays open.
	idleFeed = 10 * time.Second

	// retryFeed is the pause before a broken feed is rebuilt, after the first
	// attempt; it doubles up to retryFeedMax.
	retryFeed    = 20 * time.Millisecond
	retryFeedMax = time.Second
)

// feed carries the messages of a node over one connection at a time. One goroutine decides what is
// subscribed, and one per session reads.
type feed struct {
	hub    *Hub
	addr   string
	change chan struct{} // capacity 1: dirty has grown

	// Guarded by hub.mu.
	node, base redis.UniversalClient  // node is base with named connections
	topics     map[topicName]*topic   // topics that should be subscribed
	dirty      map[topicName]struct{} // topics that have changed since the last update
}

func (f *feed) addLocked(t *topic) {
	t.feed = f
	f.topics[t.name] = t
	f.changeLocked(t.name)
}

func (f *feed) changeLocked(name topicName) {
	f.dirty[name] = struct{}{}
	select {
	case f.change <- struct{}{}:
	default:
	}
}

// settle is called before an update, which handles all changes so far.
func (f *feed) settle() {
	f.hub.Env.Stop("feed")
	select {
	case <-f.change:
	default:
	}
}

func (f *feed) idle() bool {
	f.hub.mu.Lock()
	defer f.hub.mu.Unlock()
	return len(f.topics) == 0
}

// retire removes the feed if it has no topics. A later topic gets a new feed.
func (f *feed) retire() bool {
	f.hub.mu.Lock()
	defer f.hub.mu.Unlock()
	if len(f.topics) > 0 {
		return false
	}
	delete(f.hub.feeds, f.addr)
	return true
}

// run runs sessions while there are topics, and ends some time after the last.
func (f *feed) run() {
	h := f.hub
	pause := retryFeed // before the second of two sessions; it grows while connections do not work
	defer h.work.Add(-1)
	f.settle()
	for h.ctx.Err() == nil {
		if f.idle() {
			unused := time.NewTimer(idleFeed)
			select {
			case <-f.change:
			case <-h.ctx.Done():
			case <-unused.C:
				if f.retire() {
					return
				}
			}
			unused.Stop()
			f.settle()
			continue
		}
		worked, err := f.session()
		if err == nil || h.ctx.Err() != nil {
			continue
		}
		h.Queue.Later(func() {
			h.Queue.Logger.Info("rlock: subscription broken, subscribing again", "node", f.addr, "error", err)
		})
		if worked {
			pause = retryFeed // the connection worked: no reason to hesitate
		}
		f.evacuate()
		h.sleep(pause)
		pause = min(2*pause, retryFeedMax)
	}
}

// session is the life of one connection.
type session struct {
	f              *feed
	ps             *redis.PubSub
	sent           map[topicName]progress // guarded by hub.mu
	oneByOne       bool                   // one channel in a command, as the server has refused one; guarded by hub.mu
	pendingRetries int                    // channels that were requested again and not refused since; guarded by hub.mu
	hasWarned      bool                   // the log has a refusal; guarded by hub.mu

	// unsubscribing counts the unanswered unsubscribes. Replies come in the order of the commands, so
	// while one is unanswered, a confirmation belongs to a subscribe that was revoked since.
	// Guarded by hub.mu.
	unsubscribing map[topicName]int

	receiving bool // the reader is in go-redis; used by the reader only

	mu          sync.Mutex // guards the rest
	lastEventAt time.Time  // when the last reply or message came, or the session began
	events      int        // number of replies and messages received
	hasWorked   bool       // at least one of the events was not a refusal
}

type progress int

const (
	requested      progress = iota + 1 // subscribe was sent, perhaps for several channels
	requestedAlone                     // subscribe was sent for this channel alone
	subscribed                         // the subscription is confirmed
)

var errSilent = errors.New("no reply to PING on the subscribed connection")

// session subscribes the topics of the feed, until the connection fails or has not been needed for a
// while. It reports whether any reply or message came.
func (f *feed) session() (worked bool, err error) {
	h := f.hub
	defer h.Queue.Caught(wire.GoRedis, &err)
	ctx, cancel := context.WithCancel(h.ctx)
	h.mu.Lock()
	s := &session{f: f, ps: f.node.Subscribe(ctx), sent: map[topicName]progress{}, unsubscribing: map[topicName]int{}, lastEventAt: time.Now()}
	clear(f.dirty)
	for name, t := range f.topics {
		f.dirty[name] = struct{}{}
		t.restLocked()
	}
	h.mu.Unlock()
	var failed chan error // made when there is a reader
	crashed := make(chan struct{})
	defer func() {
		cancel() // also ends a dial of go-redis that is under way
		// If a hook or dialer has panicked in the reader, go-redis has closed the connection, and left a
		// mutex locked for which Close waits.
		closed := make(chan struct{})
		select {
		case <-crashed:
		default:
			go func() { defer close(closed); _ = s.ps.Close() }()
		}
		if failed != nil {
			<-failed
		}
		select {
		case <-closed:
		case <-crashed:
		}
	}()

	// The first subscribe opens the connection; only then is there something
	// to read.
	if err := s.update(ctx); err != nil {
		return false, err
	}
	failed = make(chan error, 1)
	go func() {
		defer close(failed)
		err := h.Wire.Safely(func() error { return s.read(ctx) })
		if s.receiving {
			close(crashed)
		}
		failed <- err
	}()

	defer func() { _, _, worked = s.lastEvent() }()
	tick := time.NewTicker(pingEvery / 2)
	defer tick.Stop()
	repeated := time.Now()
	pinged, pingedAfter := time.Now(), -1 // pingedAfter is the number of events at the latest PING: its PONG may come immediately
	for {
		select {
		case err := <-failed:
			return false, err
		case <-ctx.Done():
			f.settle() // whichever of the two the select has drawn
			return false, ctx.Err()
		case <-f.change:
			f.settle()
			if err := ctx.Err(); err != nil {
				return false, err
			}
			if err := s.update(ctx); err != nil {
				return false, err
			}
		case now := <-tick.C:
			if now.Sub(repeated) >= h.AskAgain {
				repeated = now
				s.repeat()
			}
			lastEventAt, events, _ := s.lastEvent()
			switch {
			case f.idle():
				if now.Sub(lastEventAt) >= idleFeed {
					return false, nil
				}
			case events != pingedAfter && now.Sub(lastEventAt) >= pingEvery:
				pinged, pingedAfter = now, events
				if err := s.ps.Ping(ctx); err != nil {
					return false, err
				}
			case events == pingedAfter && now.Sub(pinged) >= pongWithin:
				return false, errSilent
			}
		}
	}
}

func (s *session) lastEvent() (at time.Time, events int, worked bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lastEventAt, s.events, s.hasWorked
}

// update makes the connection's subscriptions what they should be.
func (s *session) update(ctx context.Context) error {
	h := s.f.hub
	var plain, separate, drop []string
	var sharded, sdrop []string
	var notify []func()
	h.mu.Lock()
	oneByOne, requestedNow := s.oneByOne, requested
	if oneByOne {
		requestedNow = requestedAlone
	}
	for name := range s.f.dirty {
		t := s.f.topics[name]
		state := s.sent[name]
		switch {
		case t == nil && state == 0, t != nil && (state == requested || state == requestedAlone):
		case t != nil && state == subscribed:
			t.isLive = true
			notify = append(notify, t.unnotified()...) // users that came after the confirmation
		case t != nil && name.sharded:
			s.sent[name] = requestedAlone
			sharded = append(sharded, name.channel)
		case t != nil && t.isSeparate:
			s.sent[name] = requestedNow
			separate = append(separate, name.channel)
		case t != nil:
			s.sent[name] = requestedNow
			plain = append(plain, name.channel)
		case name.sharded:
			delete(s.sent, name)
			s.unsubscribing[name]++
			sdrop = append(sdrop, name.channel)
		default:
			delete(s.sent, name)
			s.unsubscribing[name]++
			drop = append(drop, name.channel)
		}
	}
	clear(s.f.dirty)
	h.mu.Unlock()
	call(notify)

	all, most := math.MaxInt, math.MaxInt
	if oneByOne {
		most = 1
	}
	for _, c := range []struct {
		channels []string
		most     int // in a command
		send     func(context.Context, ...string) error
	}{
		{plain, most, s.ps.Subscribe},
		{separate, most, s.ps.Subscribe},
		{drop, all, s.ps.Unsubscribe},
		{sharded, 1, s.ps.SSubscribe}, // a command is for one slot
		{sdrop, 1, s.ps.SUnsubscribe},
	} {
		slices.Sort(c.channels) // a simulation must be repeatable, and the order of a map is not
		for some := range slices.Chunk(c.channels, c.most) {
			if err := c.send(ctx, some...); err != nil {
				return err
			}
		}
	}
	return nil
}

// read passes messages and confirmations on until the connection fails.
func (s *session) read(ctx context.Context) error {
	h := s.f.hub
	for {
		s.receiving = true
		event, err := s.ps.Receive(ctx)
		s.receiving = false
		h.Env.Stop("message")
		if err != nil && !wire.IsReply(err) {
			return err
		}
		s.mu.Lock()
		s.lastEventAt, s.events, s.hasWorked = time.Now(), s.events+1, s.hasWorked || err == nil // a refused PING is a sign of life too
		s.mu.Unlock()
		if err != nil && s.refused(err) {
			return err
		}
		switch e := event.(type) {
		case *redis.Message:
			// The message does not show whether it is sharded; a spurious wake-up is harmless.
			h.message(topicName{e.Channel, false}, e.Payload)
			h.message(topicName{e.Channel, true}, e.Payload)
		case *redis.Subscription:
			if err := s.answered(e); err != nil {
				return err
			}
		}
	}
}

var errUnsubscribed = errors.New("the node has ended a subscription")

// answered handles the confirmation of a subscribe or unsubscribe.
func (s *session) answered(e *redis.Subscription) error {
	h := s.f.hub
	name := topicName{e.Channel, e.Kind == "ssubscribe" || e.Kind == "sunsubscribe"}
	if e.Kind == "unsubscribe" || e.Kind == "sunsubscribe" {
		h.mu.Lock()
		defer h.mu.Unlock()
		switch n := s.unsubscribing[name]; {
		case n > 1:
			s.unsubscribing[name] = n - 1
		case n == 1:
			delete(s.unsubscribing, name)
		case s.sent[name] == subscribed:
			return errUnsubscribed // not requested: the slot has moved to another node
		}
		return nil
	}
	h.mu.Lock()
	var notify []func()
	t := h.topics[name]
	if t != nil && t.feed == s.f && s.sent[name] != 0 && s.unsubscribing[name] == 0 {
		s.sent[name] = subscribed
		t.isLive = true
		// No message is missed from now on, so the waiters check once more.
		notify = t.unnotified()
	}
	h.mu.Unlock()
	if notify != nil {
		h.Subscribed(e.Channel, true)
	}
	call(notify)
	return nil
}

// repeat requests the refused channels again: the user of Redis may have got the permission.
// When no channel is refused any more, channels share commands again.
func (s *session) repeat() {
	h := s.f.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	s.pendingRetries = 0
	for name, state := range s.sent {
		if s.oneByOne && state == requestedAlone && s.f.topics[name] != nil {
			delete(s.sent, name)
			s.f.changeLocked(name)
			s.pendingRetries++
		}
	}
	s.oneByOne = s.pendingRetries > 0
}

// refused handles an error reply, to a subscribe or a PING. It reports whether the session should
// end, because the topics belong to another node or should be subscribed again a little later.
func (s *session) refused(err error) bool {
	h := s.f.hub
	if transient := wire.Transient(err); transient || strings.Contains(err.Error(), "'ping'") {
		return transient
	}
	// Redis refuses a command as a whole, even if the user lacks the right to only one of its channels.
	// Each unconfirmed channel is requested again, by a separate command. To subscribe twice does no
	// harm, and a channel that was requested alone is not requested again.
	h.mu.Lock()
	s.oneByOne = true
	first := !s.hasWarned
	s.hasWarned = true
	s.pendingRetries = max(s.pendingRetries-1, 0)
	for name, state := range s.sent {
		if state == requested && s.f.topics[name] != nil {
			delete(s.sent, name)
			s.f.changeLocked(name)
		}
	}
	h.mu.Unlock()
	if first {
		h.Queue.Later(func() {
			h.Queue.Logger.Warn("rlock: a channel was refused, its waiters poll", "node", s.f.addr, "error", err)
		})
	}
	return false
}
