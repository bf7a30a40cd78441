package rlock

import (
	"strconv"
	"sync"

	"github.com/go-rlock/rlock/internal/protocol"
)

// pages are those of a client's operations that must count once: see protocol.Op. There are
// as many as operations were ever under way together.
type pages struct {
	mu   sync.Mutex // guards the rest
	free []*page
	made int
}

type page struct {
	protocol.Page
	number int64 // of the latest operation
}

// take returns a page that no other operation uses.
func (ps *pages) take(client string) *page {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if n := len(ps.free); n > 0 {
		p := ps.free[n-1]
		ps.free = ps.free[:n-1]
		return p
	}
	ps.made++
	return &page{Page: protocol.Page{ID: client + ":" + strconv.Itoa(ps.made)}}
}

// give is called when Redis knows of the operation, or of its end, or nothing can come of
// it: a late copy is stopped by its record, or by that of the next operation.
func (ps *pages) give(p *page) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.free = append(ps.free, p)
}

// next begins an operation.
func (p *page) next() protocol.Op {
	p.number++
	return protocol.Op{Page: &p.Page, Number: p.number}
}
