package idempotency

import (
	"errors"
	"io"
	"sync"
)

var errFull = errors.New("idempotency: bodies of other requests have all the memory that they may have: see WithMaxBodies")

// bodies bounds the memory of bodies, from before their first byte to the answer. A quarter is for one principal at most: what one
// of them sends slowly is not in the way of all.
type bodies struct {
	most, share int64 // bytes; share is the bound of a principal

	mu  sync.Mutex // guards what follows
	all int64
	of  map[string]int64 // by principal
}

func newBodies(most, longest int64) *bodies {
	return &bodies{most: most, share: max(most/4, longest+1), of: map[string]int64{}}
}

// count adds n bytes of a principal, or takes them away. It reports whether they may be had.
func (b *bodies) count(principal string, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n > 0 && (n > b.most-b.all || n > b.share-b.of[principal]) {
		return false
	}
	b.all += n
	if b.of[principal] += n; b.of[principal] == 0 {
		delete(b.of, principal)
	}
	return true
}

// body is one of the bodies, in memory until it is dropped.
type body struct {
	in        *bodies
	principal string
	bytes     []byte // whose capacity is counted
}

func (b *body) drop() {
	b.in.count(b.principal, -int64(cap(b.bytes)))
	b.bytes = nil
}

// read reads all. A length that was announced is counted before the first byte, so that nothing is refused in its middle
// that began with it.
func (b *body) read(from io.Reader, announced, longest int64) error {
	for {
		if length := int64(len(b.bytes)); length == int64(cap(b.bytes)) {
			size := max(512, 2*length)
			if length == 0 && announced >= 0 {
				size = announced
			}
			size = min(size, longest) + 1 // the end is read, too
			if !b.in.count(b.principal, size-length) {
				return errFull
			}
			b.bytes = append(make([]byte, 0, size), b.bytes...)
		}
		n, err := from.Read(b.bytes[len(b.bytes):cap(b.bytes)])
		b.bytes = b.bytes[:len(b.bytes)+n]
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
