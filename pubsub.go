package rlock

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/wire"
)

// hub has the subscriptions of a client: any number of channels over one connection, or
// one for each node if channels are sharded. Only speed depends on it: a waiter that hears
// nothing looks at the lock by itself.
//
// It uses go-redis's PubSub for the protocol only. PubSub reconnects by itself, but does
// not notice a connection that loses everything (it sends PINGs and does not wait for the
// PONG), and resubscribes sharded channels of several slots in one command, which the
// server refuses as a whole. So a session that fails in any way is closed here, and a new
// one subscribes again.
type hub struct {
	env    *seam.Env
	wire   *wire.Deployment
	events *events
	ctx    context.Context // ends with close
	stop   context.CancelFunc
	work   wire.Tally // goroutines

	mu     sync.Mutex // guards the rest and the topics
	topics map[topicName]*topic
	feeds  map[string]*feed // by node address; "" is any node
	router bool             // the goroutine that routes sharded topics runs
	lost   []*topic         // topics that it has to route
}

type topicName struct {
	channel string
	sharded bool
}

// topic is a channel with users.
type topic struct {
	name topicName
	// users are told, each time that the topic is subscribed, that messages come from
	// now on; the value says whether they were told. Each topic of a subscription does
	// so: between the confirmations of two topics a release may have been announced on
	// the later one only.
	users map[*subscription]bool
	feed  *feed // where it is, or will be, subscribed; nil: not routed yet
}

// subscription is one user's interest in a channel.
type subscription struct {
	hub    *hub
	topics []*topic
	notify func()
}

func newHub(env *seam.Env, d *wire.Deployment, events *events) *hub {
	h := &hub{env: env, wire: d, events: events, topics: map[topicName]*topic{}, feeds: map[string]*feed{}}
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
	mode := h.wire.PublishCommand()
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

// listen is subscribe that returns only the function that ends it.
func (h *hub) listen(channel string, notify func()) (end func()) {
	return h.subscribe(channel, notify).close
}

// close ends the subscription. The last user of a topic unsubscribes it.
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
	if h.wire.OneServer() || !t.name.sharded {
		h.feedLocked("", h.wire.IO()).addLocked(t)
		return
	}
	if !h.wire.IsCluster() {
		// A wrapper does not tell which node has a slot. go-redis finds it for each
		// connection.
		slot := wire.Slot(t.name.channel)
		h.feedLocked("slot "+strconv.Itoa(slot), h.wire.IO()).addLocked(t)
		return
	}
	// Finding the node of the slot may take a round trip.
	h.lost = append(h.lost, t)
	if !h.router && h.ctx.Err() == nil {
		h.router = true
		h.work.Add(1)
		go h.route()
	}
}

// route finds the nodes of sharded topics until none is left.
func (h *hub) route() {
	defer h.work.Add(-1)
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
			node, err := h.wire.NodeFor(h.ctx, t.name.channel)
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
			h.work.Add(1)
			go f.run()
		}
	}
	f.node = node // a cluster client may have made a new one for the address
	return f
}

// close ends all feeds. Their goroutines end at once, except one in a handshake with a
// server that hangs: it ends with the time-outs of go-redis.
func (h *hub) close() {
	h.mu.Lock() // no feed is begun after this
	h.stop()
	h.mu.Unlock()
}
