package protocol

import (
	"strings"
)

// Latch is the protocol of a CountDownLatch. Its state is a number, the count.
type Latch struct {
	numeric
	channel string // Redisson's channel
	own     string // channel of this module if Redisson's may be in another slot of a cluster; empty otherwise
}

// NewLatch returns the protocol of a CountDownLatch.
func NewLatch(site *Site, names *Names) *Latch {
	// Redisson always adds braces. If the name has a hash tag, the channel is in another
	// slot then, and a script cannot publish there by SPUBLISH. Redisson itself fails in this
	// case.
	l := &Latch{numeric: newNumber(site, names), channel: "redisson_countdownlatch__channel__{" + names.Lock + "}"}
	if strings.Contains(names.Lock, "{") {
		l.own = names.Derived("rlock:opened")
	}
	return l
}

// where returns the channel, and how to publish there.
func (l *Latch) where() (channel string, how any) {
	how = l.site.howOrBoth()
	switch {
	case l.own == "" || how == "publish":
		return l.channel, how
	case how == "both":
		return l.channel, "publish"
	}
	return l.own, how
}

// TrySet sets the count of an open latch. It reports whether it did.
func (l *Latch) TrySet(op Op, n int64) Request[bool] {
	channel, how := l.where()
	return changing(&l.numeric, "latch/try_set", op, readBool, n, channel, how)
}

// CountDown lowers the count by one. If the latch is open, the outcome is Removed, and no record
// stops a late copy.
func (l *Latch) CountDown(op Op) Task {
	channel, how := l.where()
	return l.change("latch/count_down", op, channel, how)
}

// Delete opens the latch. It reports whether there was a count.
func (l *Latch) Delete(op Op) Request[bool] {
	channel, how := l.where()
	return changing(&l.numeric, "latch/delete", op, readBool, channel, how)
}

// Remaining requests the count, which is 0 or less if the latch is open.
func (l *Latch) Remaining() Request[Remaining] {
	return newRequest(l.site, "latch/look", []string{l.names.Lock}, nil, readRemaining)
}

// Listen calls notify when the latch has opened. It returns nil if it cannot subscribe, now or
// ever.
func (l *Latch) Listen(notify func()) (end func()) {
	channel, _ := l.where()
	return l.site.listen(channel, notify)
}
