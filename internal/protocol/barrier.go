package protocol

// Barrier is the protocol of a Barrier, whose state is a key that exists while it is set.
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

// Lift lifts it.
func (b *Barrier) Lift(op Op) Request[Kept] { return b.change(op, "lifted") }

func (b *Barrier) change(op Op, to string) Request[Kept] {
	t := b.site.about("barrier/change", nil, nil)
	putWords(&t.r, b.key, b.names, op, [2]any{}, to, b.channel, b.site.counting())
	return t
}

// Remaining asks whether the barrier is set: 1 remains, or 0.
func (b *Barrier) Remaining() Request[Remaining] {
	return looking(b.site, "barrier/look", []string{b.key}, nil, readRemaining)
}

// Listen has notify called when the barrier was lifted. It returns nil if it cannot, now or
// ever.
func (b *Barrier) Listen(notify func()) (end func()) { return b.site.listen(b.channel, notify) }
