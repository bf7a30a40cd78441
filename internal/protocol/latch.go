package protocol

import (
	"strings"
)

// Latch is the protocol of a CountDownLatch, whose state is a number: its count.
type Latch struct {
	site    *Site
	names   *Names
	key     any // boxed once
	beside  besideNumber
	channel string // Redisson's
	own     string // ours, if Redisson's is in another slot of a cluster; empty: it is not
}

// NewLatch returns the protocol of a CountDownLatch.
func NewLatch(site *Site, names *Names) *Latch {
	// Redisson adds braces in any case. For a name with a hash tag of its own the channel is
	// then in another slot, and a script cannot publish there by SPUBLISH. Redisson itself
	// fails then.
	l := &Latch{site: site, names: names, key: names.Lock, channel: "redisson_countdownlatch__channel__{" + names.Lock + "}"}
	if strings.Contains(names.Lock, "{") {
		l.own = names.Derived("rlock:opened")
	}
	return l
}

// where returns the channel, and how to publish there.
func (l *Latch) where() (channel string, how any) {
	how = l.site.counting()
	switch {
	case l.own == "" || how == "publish":
		return l.channel, how
	case how == "both":
		return l.channel, "publish"
	}
	return l.own, how
}

// told are more keys of a script that tells a semaphore from this. Who only waits has none.
func (l *Latch) told() [2]any { return l.beside.of(l.names) }

// TrySet sets the count of an open latch. It reports whether it did.
func (l *Latch) TrySet(op Op, n int64) Request[bool] {
	channel, how := l.where()
	q := looking(l.site, "latch/try_set", nil, nil, readBool)
	putWords(&q.r, l.key, l.names, op, l.told(), n, channel, how)
	return q
}

// CountDown lowers the count by one. If the latch is open, the outcome is Removed, and a
// late copy is not stopped.
func (l *Latch) CountDown(op Op) Task {
	channel, how := l.where()
	t := l.site.about("latch/count_down", nil, nil)
	putWords(&t.r, l.key, l.names, op, l.told(), channel, how)
	return t
}

// Delete opens the latch. It reports whether there was a count.
func (l *Latch) Delete(op Op) Request[bool] {
	channel, how := l.where()
	q := looking(l.site, "latch/delete", nil, nil, readBool)
	putWords(&q.r, l.key, l.names, op, l.told(), channel, how)
	return q
}

// Seal stops late copies of an operation.
func (l *Latch) Seal(op Op) Task { return l.site.seal(l.names, op) }

// Count asks for the count: 0 or less if the latch is open.
func (l *Latch) Count() Request[int64] {
	return looking(l.site, "latch/look", []string{l.names.Lock}, nil, readCount)
}

// Listen has notify called when the latch has opened. It returns nil if it cannot, now or
// ever.
func (l *Latch) Listen(notify func()) (end func()) {
	channel, _ := l.where()
	return l.site.listen(channel, notify)
}
