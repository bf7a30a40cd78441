package protocol

import (
	"time"

	"github.com/go-rlock/rlock/internal/wire"
)

// Glance adds requests to a round that poll locks of one client. One request polls all the locks that
// one script can reach. done is called once for each request, with the indexes of its locks and the outcome for
// each lock: Busy, or no verdict if a waiter should send an Enter. After an error all waiters should.
func Glance(locks []*HashLock, round *wire.Round, done func(which []int, outcomes []Entered, err error)) {
	var groups [][]int
	last := map[Slot]int{} // latest group of each Slot
	for i, l := range locks {
		where := l.Slot()
		g, some := last[where]
		if !some || len(groups[g]) == wire.BatchSize {
			g = len(groups)
			last[where] = g
			groups = append(groups, nil)
		}
		groups[g] = append(groups[g], i)
	}
	for _, which := range groups {
		keys := make([]string, len(which))
		for j, i := range which {
			keys[j] = locks[i].names.Lock
		}
		q := newRequest(locks[which[0]].site, "lock/glance", keys, nil, readGlance(len(keys)))
		round.Add(&q.r, func(_ time.Time, a wire.Answer) {
			r := q.result(a)
			done(which, r.Outcome, r.Err)
		})
	}
}

func readGlance(n int) func(a wire.Answer) ([]Entered, error) {
	return func(a wire.Answer) ([]Entered, error) {
		if a.Err != nil {
			return nil, a.Err
		}
		list, _ := a.Val.([]any)
		if len(list) != n {
			return nil, wire.ErrReply(a.Val)
		}
		all := make([]Entered, n)
		for i, item := range list {
			if item == int64(0) {
				continue
			}
			var err error
			if all[i], err = readEntered(wire.Answer{Val: item}); err != nil {
				return nil, err
			}
		}
		return all, nil
	}
}
