package rlock

// batch is what the hand-overs of one grant share. It is nil if nobody waited when the
// lock was granted. Only the holder uses it, or who gives the lock to the next holder.
type batch struct {
	tokens int64   // how many tokens are left
	last   int64   // the last of them; all were drawn at once
	until  instant // no hand-over after that: other clients wait too
}

// next draws a token.
func (b *batch) next() int64 {
	b.tokens--
	return b.last - b.tokens
}

// pass is a hold on its way to its next owner.
type pass struct {
	*batch
	token  int64
	number int64 // of the id
	unsure bool

	deadline, expires, renewAt, asked instant
}

// grant is a hold that Redis has granted to a waiter at the release of the one before.
type grant struct {
	asked  int64   // serial number of the release among the news of lines
	sent   instant // when it was
	token  int64
	unsure bool // a copy of it may be under way
}

// gift is a hold that a waiter is given while it waits, or nothing.
type gift struct {
	pass  *pass
	grant *grant
}
