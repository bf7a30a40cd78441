// Package pubsub subscribes one client to channels of Redis. [Hub.Listen] begins a subscription, and the function
// that it returns ends it. All subscriptions share a connection, or one per node if channels are sharded.
//
// # What may be lost
//
// A connection may fail, and messages with it. The Hub subscribes again on a new connection, and calls each listener
// when that is confirmed, so that the listener can check what it may have missed. [Hub.Close] ends all connections.
//
// # States of a channel
//
// A channel (topic) is wanted, requested, and confirmed (live). When its last listener leaves, it is unsubscribed, or
// kept for a while if listeners come and go. If Redis refuses a channel, it is requested again from time to time.
package pubsub

import (
	"container/list"
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/notify"
	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/wire"
)

// Hub has the subscriptions of a client: any number of channels over one connection, or one
// connection per node if channels are sharded. Only speed depends on it: a waiter without messages
// polls the lock.
//
// The Hub uses go-redis's PubSub for the protocol only. PubSub reconnects, but it does not notice a
// connection that loses everything (it sends PINGs and does not wait for the PONG). And it resubscribes
// sharded channels of several slots by one command, which the server refuses as a whole. So a
// session that fails in any way is closed here, and a new one subscribes again.
type Hub struct {
	Config
	ctx  context.Context // ends with close
	stop context.CancelFunc
	work wire.Tally // goroutines

	mu        sync.Mutex // guards the rest and the topics
	topics    map[topicName]*topic
	feeds     map[string]*feed // by node address; "" is any node
	isRouting bool             // the goroutine that routes sharded topics runs
	unrouted  []*topic         // topics that it has to route
	unused    list.List        // of *topic: topics without users, the longest unused first
	expiry    *time.Timer      // runs while there are unused topics

	dropped   []*topic    // dropped topics that are still subscribed
	dropTimer *time.Timer // runs while there are dropped topics
}

// Dropped topics are unsubscribed together, by one command: each waiter of a FairLock has its own
// channel.
const (
	mostLeaving = 32
	leaveWithin = 50 * time.Millisecond
)

// Config configures a Hub.
type Config struct {
	Env        *seam.Env
	Wire       *wire.Deployment
	Queue      *notify.Queue
	Name       string                        // name of the connections; may be empty
	Subscribed func(channel string, on bool) // called when a subscription is confirmed or lost
	AskAgain   time.Duration                 // how often a refused channel is requested again
	Keep       time.Duration                 // how long a channel without listeners stays subscribed, if listeners come and go
	MostKept   int                           // how many such channels stay subscribed
}

type topicName struct {
	channel string
	sharded bool
}

// topic is a channel with users.
type topic struct {
	name topicName
	// users are notified each time the topic is subscribed; the value is whether they were
	// notified. If a subscription has two topics, each of them notifies: between the two
	// confirmations, a release may have been announced on the later topic only.
	users map[*subscription]bool
	// named are the users that get only the messages with their name.
	named map[string]*subscription
	feed  *feed // feed that carries the topic; nil before it is routed
	// isLive: the topic is subscribed. If the connection is broken meanwhile, all users are notified when the topic is
	// subscribed again.
	isLive      bool
	isSeparate  bool          // subscribed by a separate command: the user of Redis may lack the permission
	hasMessages bool          // a message was received
	element     *list.Element // element of Hub.unused; nil if the topic has users
	unusedSince time.Time     // when the topic lost its last user
}

// subscription is one user's interest in a channel.
type subscription struct {
	hub         *Hub
	topics      []*topic
	messageName string // only messages with this payload notify; empty means all
	notify      func()
	onMessage   func(message string) // called for messages instead of notify, if not nil
}

// New returns a Hub without subscriptions. It opens a connection with the first.
func New(c Config) *Hub {
	h := &Hub{Config: c, topics: map[topicName]*topic{}, feeds: map[string]*feed{}}
	h.ctx, h.stop = context.WithCancel(context.Background())
	return h
}

// Listen subscribes to a channel, without waiting for the confirmation. notify is called when the
// subscription is confirmed (immediately, if it is already), then for each message, and whenever
// messages may have been missed. It must be quick. end ends the subscription.
func (h *Hub) Listen(channel string, notify func()) (end func()) {
	return h.subscribe(channel, &subscription{hub: h, notify: notify}).close
}

// ListenFor is Listen for messages that consist of a name.
func (h *Hub) ListenFor(channel, name string, notify func()) (end func()) {
	return h.subscribe(channel, &subscription{hub: h, messageName: name, notify: notify}).close
}

// ListenTo is Listen with a second function: onMessage is called with each message, instead of notify. If notify
// is nil, the user of Redis may lack the permission. Both functions must be quick.
func (h *Hub) ListenTo(channel string, notify func(), onMessage func(message string)) (end func()) {
	return h.subscribe(channel, &subscription{hub: h, notify: notify, onMessage: onMessage}).close
}

func (h *Hub) subscribe(channel string, s *subscription) *subscription {
	live := false
	h.mu.Lock()
	for _, n := range h.namesOf(channel) {
		t := h.listenLocked(n, s)
		s.topics, live = append(s.topics, t), live || t.isLive
	}
	h.mu.Unlock()
	if live {
		call([]func(){s.notify})
	}
	return s
}

// namesOf returns the names of a channel's topics.
func (h *Hub) namesOf(channel string) []topicName {
	switch h.Wire.PublishCommand() {
	case "spublish":
		return []topicName{{channel, true}}
	case "both":
		return []topicName{{channel, false}, {channel, true}}
	}
	return []topicName{{channel, false}}
}

// Listening reports whether the channel with a prefix and the rest of its name is subscribed.
func (h *Hub) Listening(prefix, rest string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.topics) == 0 {
		return false
	}
	for _, name := range h.namesOf(prefix + rest) {
		if t := h.topics[name]; t == nil || !t.isLive {
			return false
		}
	}
	return true
}

// MayBeSubscribed reports whether a channel is subscribed, or a subscribe or unsubscribe is under way.
func (h *Hub) MayBeSubscribed(channel string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(h.namesOf(channel), func(name topicName) bool { return h.topics[name] != nil }) ||
		slices.ContainsFunc(h.dropped, func(t *topic) bool { return t.name.channel == channel })
}

func (h *Hub) listenLocked(name topicName, s *subscription) *topic {
	t := h.topics[name]
	if t == nil {
		t = &topic{name: name, users: map[*subscription]bool{}}
		h.topics[name] = t
		h.placeLocked(t)
	}
	if t.element != nil {
		h.unused.Remove(t.element)
		t.element = nil
	}
	t.users[s] = t.isLive
	t.isSeparate = s.notify == nil
	if s.messageName != "" {
		if t.named == nil {
			t.named = map[string]*subscription{}
		}
		t.named[s.messageName] = s
	}
	if t.feed != nil && !t.isLive {
		t.feed.changeLocked(name)
	}
	return t
}

// close ends the subscription. The last user of a topic unsubscribes it. But if its users have names
// (they come and go), and messages have come, the topic stays subscribed for a while.
func (s *subscription) close() {
	h := s.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range s.topics {
		delete(t.users, s)
		if s.messageName != "" {
			delete(t.named, s.messageName)
		}
		if len(t.users) > 0 || t.element != nil {
			continue
		}
		if s.messageName == "" || !t.hasMessages || h.topics[t.name] != t || h.ctx.Err() != nil {
			h.dropLocked(t)
			continue
		}
		t.unusedSince = time.Now()
		t.element = h.unused.PushBack(t)
		if h.unused.Len() > h.MostKept {
			h.dropLocked(h.unused.Front().Value.(*topic))
		}
		if h.expiry == nil {
			h.expiry = time.AfterFunc(h.Keep, h.expire)
		}
	}
}

// expire drops the topics that were unused for long enough.
func (h *Hub) expire() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.expiry = nil
	for first := h.unused.Front(); first != nil; first = h.unused.Front() {
		t := first.Value.(*topic)
		if left := h.Keep - time.Since(t.unusedSince); left > 0 && h.ctx.Err() == nil {
			h.expiry = time.AfterFunc(left, h.expire)
			return
		}
		h.dropLocked(t)
	}
}

// dropLocked unsubscribes a topic without users soon.
func (h *Hub) dropLocked(t *topic) {
	if t.element != nil {
		h.unused.Remove(t.element)
		t.element = nil
	}
	if h.topics[t.name] == t {
		delete(h.topics, t.name)
	}
	if t.feed == nil {
		return
	}
	h.dropped = append(h.dropped, t)
	switch {
	case !t.isLive || len(h.dropped) >= mostLeaving: // a subscribe under way is revoked immediately
		h.leaveLocked()
	case h.dropTimer == nil:
		h.dropTimer = time.AfterFunc(leaveWithin, func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.leaveLocked()
		})
	}
}

// leaveLocked unsubscribes the topics that were dropped.
func (h *Hub) leaveLocked() {
	if h.dropTimer != nil {
		h.dropTimer.Stop()
		h.dropTimer = nil
	}
	for _, t := range h.dropped {
		if f := t.feed; f != nil && f.topics[t.name] == t { // otherwise it has moved, or is used again
			delete(f.topics, t.name)
			f.changeLocked(t.name)
		}
	}
	h.dropped = nil
}

// restLocked records that a topic may not be subscribed any more. Its users are notified when it is
// subscribed again.
func (t *topic) restLocked() {
	t.isLive = false
	for u := range t.users {
		t.users[u] = false
	}
}

// placeLocked gives a topic to the feed that will carry it.
func (h *Hub) placeLocked(t *topic) {
	if h.Wire.OneServer() || !t.name.sharded {
		h.feedLocked("", h.Wire.IO()).addLocked(t)
		return
	}
	// Finding the node of the slot may take a round trip.
	h.unrouted = append(h.unrouted, t)
	if !h.isRouting && h.ctx.Err() == nil {
		h.isRouting = true
		h.work.Add(1)
		go h.route()
	}
}

// evacuate routes sharded topics again: the session may have ended because their slots moved to
// another node.
func (f *feed) evacuate() {
	h := f.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, t := range f.topics {
		h.Queue.Later(func() { h.Subscribed(name.channel, false) })
		t.restLocked()
		if !h.Wire.OneServer() && name.sharded {
			delete(f.topics, name)
			t.feed = nil
			h.placeLocked(t)
		}
	}
	h.Wire.RefreshTopology()
}

// message notifies the users of a topic: all users without a name, and the user that the message names.
func (h *Hub) message(name topicName, payload string) {
	h.mu.Lock()
	var notify []func()
	if t := h.topics[name]; t != nil {
		t.hasMessages = true
		if u := t.named[payload]; u != nil {
			notify = append(notify, u.notify)
		}
		if len(t.named) < len(t.users) {
			for u := range t.users {
				switch {
				case u.onMessage != nil:
					notify = append(notify, func() { u.onMessage(payload) }, runtime.Gosched) // the waiter runs first
				case u.messageName == "":
					notify = append(notify, u.notify)
				}
			}
		}
	}
	h.mu.Unlock()
	call(notify)
}

// unnotified returns the callbacks of the users that were not notified of the subscription yet. The caller holds hub.mu,
// and calls them without it.
func (t *topic) unnotified() (notify []func()) {
	for u, notified := range t.users {
		if !notified {
			t.users[u] = true
			notify = append(notify, u.notify)
		}
	}
	return notify
}

func call(notify []func()) {
	for _, fn := range notify {
		if fn != nil {
			fn()
		}
	}
}

// route finds the nodes of sharded topics until all are routed.
func (h *Hub) route() {
	defer h.work.Add(-1)
	for {
		h.mu.Lock()
		lost := h.unrouted
		h.unrouted = nil
		if len(lost) == 0 || h.ctx.Err() != nil {
			h.isRouting = false
			h.mu.Unlock()
			return
		}
		h.mu.Unlock()
		for _, t := range lost {
			addr, node, err := h.Wire.Carrier(h.ctx, t.name.channel)
			h.mu.Lock()
			switch {
			case h.topics[t.name] != t: // it is not needed any more
			case err != nil:
				h.unrouted = append(h.unrouted, t)
			default:
				h.feedLocked(addr, node).addLocked(t)
			}
			h.mu.Unlock()
			if err != nil && !h.sleep(retryFeed) {
				return
			}
		}
	}
}

func (h *Hub) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-h.ctx.Done():
		return false
	}
}

func (h *Hub) feedLocked(addr string, node redis.UniversalClient) *feed {
	f := h.feeds[addr]
	if f == nil {
		f = &feed{hub: h, addr: addr, topics: map[topicName]*topic{}, dirty: map[topicName]struct{}{}, change: make(chan struct{}, 1)}
		h.feeds[addr] = f
		if h.ctx.Err() == nil {
			h.work.Add(1)
			go f.run()
		}
	}
	if f.base != node { // a cluster client may have made a new one for the address
		f.base, f.node = node, wire.Named(node, h.Name)
	}
	return f
}

// Close ends all feeds, and waits for their goroutines until ctx ends. They end immediately, except during a
// handshake with a server that hangs, which ends with the timeouts of go-redis.
func (h *Hub) Close(ctx context.Context) error {
	h.mu.Lock() // no feed is begun after this
	h.stop()
	for _, t := range []*time.Timer{h.expiry, h.dropTimer} {
		if t != nil {
			t.Stop()
		}
	}
	h.mu.Unlock()
	return h.work.Wait(ctx)
}
