package protocol

import (
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/wire"
)

// Op is one operation that changes something once, whatever becomes of its copies: see
// scripts/shared/record.lua.
type Op struct {
	Page   *Page // no other operation uses it
	Number int64 // higher than the number of any operation that used the page before
}

// Page is where Redis notes what the latest of some operations did. One goroutine uses it.
type Page struct {
	ID  string // "<client uuid>:<number of the page>"
	of  string // the latest object: an operation seldom comes alone
	key any    // its record, boxed

	number int64 // of the latest operation
}

// Next begins an operation.
func (p *Page) Next() Op {
	p.number++
	return Op{Page: p, Number: p.number}
}

// Pages are the pages of a client's operations that must count once. There are as many as operations were
// ever under way together.
type Pages struct {
	mu   sync.Mutex // guards the rest
	free []*Page
	made int
}

// Take returns a page that no other operation uses.
func (ps *Pages) Take(client string) *Page {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if n := len(ps.free); n > 0 {
		p := ps.free[n-1]
		ps.free = ps.free[:n-1]
		return p
	}
	ps.made++
	return &Page{ID: client + ":" + strconv.Itoa(ps.made)}
}

// Give is called when Redis knows of the operation, or of its end, or nothing can come of
// it: a late copy is stopped by its record, or by the record of the next operation.
func (ps *Pages) Give(p *Page) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.free = append(ps.free, p)
}

// record is the key of the record of the page for one object.
func (p *Page) record(n *Names) any {
	if p.of != n.Lock {
		p.of, p.key = n.Lock, n.record(p.ID)
	}
	return p.key
}

// RecordTTL is how long Redis knows what an operation did. A copy that comes later, or a
// give-up, would do it again, or not find what to undo.
const RecordTTL = 10 * time.Minute

// ErrOverflow: there would be more permits than a semaphore can have. Nothing was changed.
var ErrOverflow = errors.New("more permits than a semaphore can have")

// record is the key of the record of a page for one object.
func (n *Names) record(page string) string { return suffixed(n.Lock, "rlock:op:", page) }

// putWords makes the keys and arguments of a request for an operation: the key of the number, and more, of which
// those that are nil are none.
func putWords(r *wire.Request, key any, n *Names, op Op, more [2]any, args ...any) {
	const boxed = 6
	var words [10]any
	words[0], words[1] = key, op.Page.record(n)
	keys := 2
	for _, k := range more {
		if k != nil {
			words[keys] = k
			keys++
		}
	}
	words[keys] = op.Number
	all := keys + 1 + copy(words[keys+1:], args)
	r.Put(keys, words[:min(all, boxed)]...)
	if all > boxed {
		r.Args = append(r.Args, words[boxed:all]...)
	}
}

// Seal stops late copies of an operation on an object that nothing undoes.
func (s *Site) Seal(n *Names, op Op) Task {
	t := s.about("record/seal", nil, nil)
	t.r.Put(1, op.Page.record(n), op.Number)
	return t
}

// counting is how to publish for an operation that may come before it is known how.
func (s *Site) counting() any {
	if how := s.how(); how != "" {
		return how
	}
	return "both"
}

func overflown(err error) error {
	if err != nil && redis.HasErrorPrefix(err, "OVERFLOW") {
		return ErrOverflow
	}
	return err
}

func readCount(a wire.Answer) (int64, error) { return a.Int() }

// Remaining is what is left of what somebody waits to be 0: a count, or members of a DoubleBarrier.
type Remaining struct {
	N    int64         // 0 or less: nothing
	Rest time.Duration // after which less may be left; negative: it is announced
}

func readRemaining(a wire.Answer) (Remaining, error) {
	n, err := a.Int()
	return Remaining{n, -1}, err
}
