package rlock

import "sync"

// herald tells the observer and the logger what happens where nobody may wait
// for them: under a mutex, and in the watchdog. It keeps the order.
type herald struct {
	mu      sync.Mutex // guards the rest
	queue   []func()
	dropped int  // since the queue is full
	on      bool // a goroutine is at it
}

// heraldQueue is how much waits for an observer that is slow.
const heraldQueue = 1000

// tell has fn called soon, from another goroutine, or never if too much waits.
func (c *Client) tell(fn func()) { c.herald.add(c, fn, false) }

// tellAll is tell for what must not be left out, of which there is no more than
// there are holds.
func (c *Client) tellAll(fn func()) { c.herald.add(c, fn, true) }

func (h *herald) add(c *Client, fn func(), always bool) {
	if !c.observed {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.queue) >= heraldQueue && !always {
		h.dropped++
		return
	}
	h.queue = append(h.queue, fn)
	if h.on {
		return
	}
	h.on = true
	c.running.add(1)
	c.background(func() {
		defer c.running.add(-1)
		for {
			queue, dropped := h.take()
			if len(queue) == 0 {
				return
			}
			for _, fn := range queue {
				c.herald.call(c, fn)
			}
			if dropped > 0 {
				c.cfg.observer.Dropped(dropped)
				h.call(c, func() {
					c.cfg.logger.Warn("rlock: the Observer or Logger is too slow, events were dropped", "events", dropped)
				})
			}
		}
	})
}

func (h *herald) take() (queue []func(), dropped int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	queue, dropped = h.queue, h.dropped
	h.queue, h.dropped = nil, 0
	h.on = len(queue) > 0
	return queue, dropped
}

func (*herald) call(c *Client, fn func()) {
	defer c.caught("the handler of the Logger", nil)
	fn()
}
