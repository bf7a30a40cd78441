package rlock

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// hub keeps the subscriptions of a client: any number of channels over one
// connection, or one for each node if channels are sharded. Nothing depends on
// it but speed: a waiter that hears nothing looks at the lock by itself.
//
// It uses go-redis's PubSub for the protocol only. PubSub reconnects by itself,
// but does not notice a connection that swallows everything (it sends PINGs
// and does not wait for the PONG), and resubscribes sharded channels of
// several slots in one command, which the server refuses whole. So a session
// that fails in any way is closed here, and a fresh one subscribes anew.
type hub struct {
	c    *Client
	ctx  context.Context // ends with close
	stop context.CancelFunc
	work tally // goroutines

	mu     sync.Mutex // guards the rest and the topics
	topics map[topicName]*topic
	feeds  map[string]*feed // by node address; "" is any node
	router bool             // the goroutine that places sharded topics runs
	lost   []*topic         // topics that it has to place
}

type topicName struct {
	channel string
	sharded bool
}

// topic is a channel that somebody wants to hear.
type topic struct {
	name topicName
	// users are told, once for each time that it is subscribed, that messages
	// now come; the value says whether they were. Each topic of a subscription
	// tells it by itself: between the confirmations of two a release may have
	// been announced on the later one only.
	users map[*subscription]bool
	feed  *feed // where it is subscribed, or to be; nil: not placed yet
}

// subscription is one user's interest in a channel.
type subscription struct {
	hub    *hub
	topics []*topic
	notify func()
}

const (
	// pingEvery is how long a feed is silent before it is asked for a sign of
	// life, and pongWithin how long that may take.
	pingEvery  = 2 * time.Second
	pongWithin = 2 * time.Second

	// idleFeed is for how long a connection is kept that carries nothing.
	idleFeed = 10 * time.Second

	// retryFeed is the pause before a broken feed is rebuilt, after the first
	// attempt; it doubles up to retryFeedMax.
	retryFeed    = 20 * time.Millisecond
	retryFeedMax = time.Second
)

func newHub(c *Client) *hub {
	h := &hub{c: c, topics: map[topicName]*topic{}, feeds: map[string]*feed{}}
	h.ctx, h.stop = context.WithCancel(context.Background())
	return h
}

// subscribe begins to listen to a channel and returns at once. notify is
// called, from a goroutine of the hub, when the subscription is confirmed, for
// each message, and whenever messages may have been missed. It must be quick.
func (h *hub) subscribe(channel string, notify func()) *subscription {
	s := &subscription{hub: h, notify: notify}
	h.mu.Lock()
	defer h.mu.Unlock()
	mode := h.c.publishCommand()
	if mode != "spublish" {
		s.topics = append(s.topics, h.listenLocked(topicName{channel, false}, s))
	}
	if mode == "spublish" || mode == "both" {
		s.topics = append(s.topics, h.listenLocked(topicName{channel, true}, s))
	}
	return s
}

func (h *hub) listenLocked(name topicName, s *subscription) *topic {
	t := h.topics[name]
	if t == nil {
		t = &topic{name: name, users: map[*subscription]bool{}}
		h.topics[name] = t
		h.placeLocked(t)
	}
	t.users[s] = false
	if t.feed != nil {
		t.feed.changeLocked(name) // tells the new user, if it is subscribed already
	}
	return t
}

// close ends the interest. The last user's end unsubscribes.
func (s *subscription) close() {
	h := s.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range s.topics {
		delete(t.users, s)
		if len(t.users) > 0 {
			continue
		}
		if h.topics[t.name] == t {
			delete(h.topics, t.name)
		}
		if f := t.feed; f != nil {
			delete(f.topics, t.name)
			f.changeLocked(t.name)
		}
	}
}

// placeLocked gives a topic to the feed that will carry it.
func (h *hub) placeLocked(t *topic) {
	if _, server := h.c.rdb.(*redis.Client); server || !t.name.sharded {
		h.feedLocked("", h.c.io).addLocked(t)
		return
	}
	if h.c.cluster == nil {
		// A wrapper that does not tell which node has a slot. go-redis finds it
		// for each connection.
		slot := hashSlot(t.name.channel)
		h.feedLocked("slot "+strconv.Itoa(slot), h.c.io).addLocked(t)
		return
	}
	// Which node has the slot may take a round trip to find out.
	h.lost = append(h.lost, t)
	if !h.router && h.ctx.Err() == nil {
		h.router = true
		h.work.add(1)
		go h.route()
	}
}

// route places sharded topics until none is left.
func (h *hub) route() {
	defer h.work.add(-1)
	for {
		h.mu.Lock()
		lost := h.lost
		h.lost = nil
		if len(lost) == 0 || h.ctx.Err() != nil {
			h.router = false
			h.mu.Unlock()
			return
		}
		h.mu.Unlock()
		for _, t := range lost {
			node, err := h.c.nodeFor(h.ctx, t.name.channel)
			h.mu.Lock()
			switch {
			case len(t.users) == 0:
			case err != nil:
				h.lost = append(h.lost, t)
			default:
				h.feedLocked(node.(*redis.Client).Options().Addr, node).addLocked(t)
			}
			h.mu.Unlock()
			if err != nil && !h.sleep(retryFeed) {
				return
			}
		}
	}
}

func (h *hub) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-h.ctx.Done():
		return false
	}
}

func (h *hub) feedLocked(addr string, node redis.UniversalClient) *feed {
	f := h.feeds[addr]
	if f == nil {
		f = &feed{hub: h, addr: addr, topics: map[topicName]*topic{}, dirty: map[topicName]struct{}{}, change: make(chan struct{}, 1)}
		h.feeds[addr] = f
		if h.ctx.Err() == nil {
			h.work.add(1)
			go f.run()
		}
	}
	f.node = node // a cluster client may have made a new one for the address
	return f
}

// close ends all feeds. Their goroutines end at once, but for one that is in a
// handshake with a server that hangs: it stays for go-redis's time-outs.
func (h *hub) close() {
	h.mu.Lock() // no feed is begun after this
	h.stop()
	h.mu.Unlock()
}

// feed is one connection that carries messages from a node. One goroutine
// decides what is subscribed, and one for each session reads.
type feed struct {
	hub    *hub
	addr   string
	change chan struct{} // capacity 1: dirty has grown

	// Guarded by hub.mu.
	node   redis.UniversalClient
	topics map[topicName]*topic   // what should be subscribed
	dirty  map[topicName]struct{} // what the session has yet to look at
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

// idle reports whether nothing is to be subscribed.
func (f *feed) idle() bool {
	f.hub.mu.Lock()
	defer f.hub.mu.Unlock()
	return len(f.topics) == 0
}

// retire forgets the feed if it carries nothing. A topic that comes later gets
// a new one.
func (f *feed) retire() bool {
	f.hub.mu.Lock()
	defer f.hub.mu.Unlock()
	if len(f.topics) > 0 {
		return false
	}
	delete(f.hub.feeds, f.addr)
	return true
}

// run keeps a session up while there are topics, and ends when there have been
// none for a while.
func (f *feed) run() {
	h := f.hub
	defer h.work.add(-1)
	pause := retryFeed
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
			continue
		}
		worked, err := f.session()
		if err == nil || h.ctx.Err() != nil {
			continue
		}
		h.c.tell(func() {
			h.c.cfg.logger.Info("rlock: subscription broken, subscribing again", "node", f.addr, "error", err)
		})
		if worked {
			pause = retryFeed // it was a good connection: no reason to hesitate
		}
		f.evacuate()
		h.sleep(pause)
		pause = min(2*pause, retryFeedMax)
	}
}

// evacuate has sharded topics placed anew: their slots may have moved to
// another node, which is why the session ended.
func (f *feed) evacuate() {
	h := f.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, t := range f.topics {
		h.c.tell(func() { h.c.cfg.observer.Subscription(name.channel, false) })
		if h.c.cluster != nil && name.sharded {
			delete(f.topics, name)
			t.feed = nil
			h.placeLocked(t)
		}
	}
	h.c.refreshTopology()
}

// session is the life of one connection.
type session struct {
	f    *feed
	ps   *redis.PubSub
	sent map[topicName]progress // guarded by hub.mu

	// leaving counts the unsubscribes that are not answered yet. Answers come
	// in the order of the commands, so as long as there is one, a confirmation
	// is of a subscribe that has been revoked since. Guarded by hub.mu.
	leaving map[topicName]int

	mu     sync.Mutex // guards the rest
	heard  time.Time  // when anything last came in, or the session began
	spoken bool       // anything has come in
}

type progress int

const (
	asked     progress = iota + 1 // subscribe was sent
	confirmed                     // and confirmed
)

var errSilent = errors.New("no sign of life from the subscribed connection")

// session subscribes what the feed should carry and keeps to it, until the
// connection fails, or has not been needed for a while. It reports whether
// anything was heard.
func (f *feed) session() (worked bool, err error) {
	h := f.hub
	defer h.c.caught(goRedis, &err)
	ctx, cancel := context.WithCancel(h.ctx)
	h.mu.Lock()
	s := &session{f: f, ps: f.node.Subscribe(ctx), sent: map[topicName]progress{}, leaving: map[topicName]int{}, heard: time.Now()}
	clear(f.dirty)
	for name, t := range f.topics {
		f.dirty[name] = struct{}{}
		for u := range t.users {
			t.users[u] = false
		}
	}
	h.mu.Unlock()
	var failed chan error // made when there is a reader
	defer func() {
		cancel() // also ends a dial that go-redis may be at
		_ = s.ps.Close()
		if failed != nil {
			<-failed
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
		failed <- h.c.safely(func() error { return s.read(ctx) })
	}()

	defer func() { worked = s.worked() }()
	tick := time.NewTicker(pingEvery / 2)
	defer tick.Stop()
	var pinged time.Time // zero: no PONG awaited
	for {
		select {
		case err := <-failed:
			return false, err
		case <-ctx.Done():
			return false, ctx.Err()
		case <-f.change:
			if err := s.update(ctx); err != nil {
				return false, err
			}
		case now := <-tick.C:
			heard := s.lastHeard()
			switch {
			case f.idle():
				if now.Sub(heard) >= idleFeed {
					return false, nil
				}
			case heard.After(pinged) && now.Sub(heard) >= pingEvery:
				pinged = now
				if err := s.ps.Ping(ctx); err != nil {
					return false, err
				}
			case !pinged.IsZero() && !heard.After(pinged) && now.Sub(pinged) >= pongWithin:
				return false, errSilent
			}
		}
	}
}

func (s *session) worked() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.spoken
}

func (s *session) lastHeard() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.heard
}

// update makes the connection's subscriptions what they should be.
func (s *session) update(ctx context.Context) error {
	h := s.f.hub
	var plain, drop []string
	var sharded, sdrop []string
	var notify []func()
	h.mu.Lock()
	for name := range s.f.dirty {
		t := s.f.topics[name]
		state := s.sent[name]
		switch {
		case t == nil && state == 0, t != nil && state == asked:
		case t != nil && state == confirmed:
			notify = append(notify, t.untold()...) // it came after the confirmation
		case t != nil && name.sharded:
			s.sent[name] = asked
			sharded = append(sharded, name.channel)
		case t != nil:
			s.sent[name] = asked
			plain = append(plain, name.channel)
		case name.sharded:
			delete(s.sent, name)
			s.leaving[name]++
			sdrop = append(sdrop, name.channel)
		default:
			delete(s.sent, name)
			s.leaving[name]++
			drop = append(drop, name.channel)
		}
	}
	clear(s.f.dirty)
	h.mu.Unlock()
	call(notify)

	// The order of a map is not that of the next run, which would make a
	// simulation another one.
	for _, channels := range [][]string{plain, drop, sharded, sdrop} {
		slices.Sort(channels)
	}
	if len(plain) > 0 {
		if err := s.ps.Subscribe(ctx, plain...); err != nil {
			return err
		}
	}
	if len(drop) > 0 {
		if err := s.ps.Unsubscribe(ctx, drop...); err != nil {
			return err
		}
	}
	for _, channel := range sharded { // one slot for each command
		if err := s.ps.SSubscribe(ctx, channel); err != nil {
			return err
		}
	}
	for _, channel := range sdrop {
		if err := s.ps.SUnsubscribe(ctx, channel); err != nil {
			return err
		}
	}
	return nil
}

// untold are the callbacks of the users who do not know yet that the topic is
// subscribed; hub.mu is held. They are called without it.
func (t *topic) untold() (notify []func()) {
	for u, told := range t.users {
		if !told {
			t.users[u] = true
			notify = append(notify, u.notify)
		}
	}
	return notify
}

func call(notify []func()) {
	for _, fn := range notify {
		fn()
	}
}

// read hands on what comes in until the connection fails.
func (s *session) read(ctx context.Context) error {
	h := s.f.hub
	for {
		event, err := s.ps.Receive(ctx)
		h.c.gate("message")
		if err != nil {
			var reply redis.Error
			if errors.As(err, &reply) && !s.refused(err) {
				continue
			}
			return err
		}
		s.mu.Lock()
		s.heard, s.spoken = time.Now(), true
		s.mu.Unlock()
		switch e := event.(type) {
		case *redis.Message:
			// It does not say of which kind it is; a wake-up too many is harmless.
			s.message(topicName{e.Channel, false})
			s.message(topicName{e.Channel, true})
		case *redis.Subscription:
			if err := s.subscribed(e); err != nil {
				return err
			}
		}
	}
}

// message notifies the users of a topic, if it has any.
func (s *session) message(name topicName) {
	h := s.f.hub
	h.mu.Lock()
	var notify []func()
	if t := h.topics[name]; t != nil {
		for u := range t.users {
			notify = append(notify, u.notify)
		}
	}
	h.mu.Unlock()
	call(notify)
}

var errUnsubscribed = errors.New("the node has ended a subscription")

// subscribed deals with the confirmation of a subscribe or unsubscribe.
func (s *session) subscribed(e *redis.Subscription) error {
	h := s.f.hub
	name := topicName{e.Channel, e.Kind == "ssubscribe" || e.Kind == "sunsubscribe"}
	if e.Kind == "unsubscribe" || e.Kind == "sunsubscribe" {
		h.mu.Lock()
		defer h.mu.Unlock()
		switch n := s.leaving[name]; {
		case n > 1:
			s.leaving[name] = n - 1
		case n == 1:
			delete(s.leaving, name)
		case s.sent[name] == confirmed:
			return errUnsubscribed // not ours: the slot has gone to another node
		}
		return nil
	}
	h.mu.Lock()
	var notify []func()
	t := h.topics[name]
	if t != nil && t.feed == s.f && s.sent[name] != 0 && s.leaving[name] == 0 {
		s.sent[name] = confirmed
		// From here on no message is missed: whoever waits must look once more.
		notify = t.untold()
	}
	h.mu.Unlock()
	if notify != nil {
		h.c.cfg.observer.Subscription(e.Channel, true)
	}
	call(notify)
	return nil
}

// refused deals with an error reply, which can only be to a subscribe. It
// reports whether the session should end: if the topics belong elsewhere, or
// should be asked for again a little later.
func (s *session) refused(err error) bool {
	h := s.f.hub
	if transient(err) {
		return true
	}
	h.c.tell(func() {
		h.c.cfg.logger.Warn("rlock: subscribe refused, waiters poll", "node", s.f.addr, "error", err)
	})
	return false
}
