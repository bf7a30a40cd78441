package protocol

import (
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/wire"
)

// Op is one operation that takes effect once, no matter how many of its copies run: see
// scripts/shared/record.lua.
type Op struct {
	Page   *Page // used by no other operation at the same time
	Number int64 // higher than the number of any operation that used the page before
}

// Page names a record in Redis, which has the effect of the latest operation on the page. One goroutine uses a Page.
type Page struct {
	ID        string // "<client uuid>:<number of the page>"
	object    string // name of the latest object: several operations on one object are common
	recordKey any    // key of the record for that object, boxed

	number int64 // number of the latest operation
}

// Next begins an operation.
func (p *Page) Next() Op {
	p.number++
	return Op{Page: p, Number: p.number}
}

// Pages has the pages of a client. It makes as many as there have been operations under way at the same
// time.
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

// Give returns a page for reuse. The caller calls it when Redis has recorded the operation or its end, or when
// the operation can have no effect any more: its record, or the record of the next operation, stops a late copy.
func (ps *Pages) Give(p *Page) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.free = append(ps.free, p)
}

// record returns the key of the page's record for one object.
func (p *Page) record(n *Names) any {
	if p.object != n.Lock {
		p.object, p.recordKey = n.Lock, n.record(p.ID)
	}
	return p.recordKey
}

// RecordTTL is how long Redis keeps the record of an operation. A copy that arrives later would take effect
// again, and a later undo would not find what to undo.
const RecordTTL = 10 * time.Minute

// ErrOverflow: there would be more permits than a semaphore can have. Nothing was changed.
var ErrOverflow = errors.New("more permits than a semaphore can have")

// record returns the key of a page's record for one object.
func (n *Names) record(page string) string { return suffixed(n.Lock, "rlock:op:", page) }

// putWords sets the keys and arguments of the request for an operation. The keys are key, the record, and the
// elements of more that are not nil.
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

// Seal stops late copies of an operation that has no undo.
func (s *Site) Seal(n *Names, op Op) Task {
	t := s.newTask("record/seal", nil, nil)
	t.r.Put(1, op.Page.record(n), op.Number)
	return t
}

// howOrBoth returns the publish command, or "both" if the operation comes before the command is known.
func (s *Site) howOrBoth() any {
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

// Remaining is a number for which callers wait until it is 0: a count, or the members in a DoubleBarrier.
type Remaining struct {
	N    int64         // 0 or less if the wait is over
	Rest time.Duration // time after which N may be lower without a message; negative if every change is announced
}

func readRemaining(a wire.Answer) (Remaining, error) {
	n, err := a.Int()
	return Remaining{n, -1}, err
}
