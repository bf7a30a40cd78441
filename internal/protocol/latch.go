package protocol

import (
	"strings"
)

// Latch is the protocol of a CountDownLatch, whose state is a number: its count.
type Latch struct {
	number
	channel string // Redisson's
	own     string // ours, if Redisson's is in another slot of a cluster; empty: it is not
}

// NewLatch returns the protocol of a CountDownLatch.
func NewLatch(site *Site, names *Names) *Latch {
	// Redisson adds braces in any case. For a name with a hash tag of its own the channel is
	// then in another slot, and a script cannot publish there by SPUBLISH. Redisson itself
	// fails then.
	l := &Latch{number: newNumber(site, names), channel: "redisson_countdownlatch__channel__{" + names.Lock + "}"}
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

// TrySet sets the count of an open latch. It reports whether it did.
func (l *Latch) TrySet(op Op, n int64) Request[bool] {
	channel, how := l.where()
	return changing(&l.number, "latch/try_set", op, readBool, n, channel, how)
}

// CountDown lowers the count by one. If the latch is open, the outcome is Removed, and a
// late copy is not stopped.
func (l *Latch) CountDown(op Op) Task {
	channel, how := l.where()
	return l.change("latch/count_down", op, channel, how)
}

// Delete opens the latch. It reports whether there was a count.
func (l *Latch) Delete(op Op) Request[bool] {
	channel, how := l.where()
	return changing(&l.number, "latch/delete", op, readBool, channel, how)
}

// Remaining asks for the count: 0 or less if the latch is open.
func (l *Latch) Remaining() Request[Remaining] {
	return looking(l.site, "latch/look", []string{l.names.Lock}, nil, readRemaining)
}

// Listen has notify called when the latch has opened. It returns nil if it cannot, now or
// ever.
func (l *Latch) Listen(notify func()) (end func()) {
	channel, _ := l.where()
	return l.site.listen(channel, notify)
}
