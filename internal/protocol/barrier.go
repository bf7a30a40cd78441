package protocol

// Barrier is the protocol of a Barrier. Its state is a key that exists while the barrier is set.
type Barrier struct {
	located
	key     string
	channel string
}

// NewBarrier returns the protocol of a Barrier.
func NewBarrier(site *Site, names *Names) *Barrier {
	key := names.Derived("rlock:barrier")
	return &Barrier{located{site, names}, key, key + ":lifted"}
}

// Set sets the barrier.
func (b *Barrier) Set(op Op) Request[Kept] { return b.change(op, "set") }

// Lift lifts the barrier.
func (b *Barrier) Lift(op Op) Request[Kept] { return b.change(op, "lifted") }

func (b *Barrier) change(op Op, to string) Request[Kept] {
	t := b.site.newTask("barrier/change", nil, nil)
	putWords(&t.r, b.key, b.names, op, [2]any{}, to, b.channel, b.site.howOrBoth())
	return t
}

// Remaining requests whether the barrier is set: the outcome is 1 if it is, and 0 otherwise.
func (b *Barrier) Remaining() Request[Remaining] {
	return newRequest(b.site, "barrier/look", []string{b.key}, nil, readRemaining)
}

// Listen calls notify when the barrier was lifted. It returns nil if it cannot subscribe, now or
// ever.
func (b *Barrier) Listen(notify func()) (end func()) { return b.site.listen(b.channel, notify) }
