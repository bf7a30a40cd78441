package protocol

import (
	"fmt"
	"github.com/go-rlock/rlock/internal/redistest"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/wire"
)

// batches are the ways to draw the tokens of a batch: prepare, and then draw, which returns the
// first token and how many follow. five is how many may follow at most.
var batches = map[string]func(t *testing.T, site *Site, n *Names, rdb *redis.Client) (draw func() (token, n int64)){
	"lock/enter": func(t *testing.T, site *Site, n *Names, _ *redis.Client) func() (int64, int64) {
		return func() (int64, int64) { return reserving(t, NewLock(site, n), false) }
	},
	"lock/enter_many": func(t *testing.T, site *Site, n *Names, _ *redis.Client) func() (int64, int64) {
		return func() (int64, int64) {
			a := site.Wire.Do(bg, 5*time.Second, &wire.Request{
				Script: site.Scripts["lock/enter_many"], Keys: []string{n.Lock, n.Tombstone(redistest.HoldID("a:1")), site.clock(n)}, Args: []any{redistest.HoldID("a:1"), 60000, five},
			})
			list, _ := a.Val.([]any)
			if len(list) != 1 {
				t.Fatal(a)
			}
			got, err := readEntered(wire.Answer{Val: list[0]})
			if err != nil || got.Verdict != Granted {
				t.Fatal(got, err)
			}
			return got.Token, got.Reserved
		}
	},
	"lock/stand_by, free": func(t *testing.T, site *Site, n *Names, _ *redis.Client) func() (int64, int64) {
		return func() (int64, int64) { return reserving(t, NewLock(site, n), true) }
	},
	"lock/stand_by, held": func(t *testing.T, site *Site, n *Names, rdb *redis.Client) func() (int64, int64) {
		rdb.HSet(bg, n.Lock, redistest.HoldID("another:1"), 1)
		return func() (int64, int64) {
			e := entry(redistest.HoldID("a:1"))
			e.StandBy, e.Reserve, e.Tries = true, five, 1
			verdict(t, NewLock(site, n), e, Busy)
			words := strings.Fields(rdb.Get(bg, n.standBy()).Val())
			rdb.Del(bg, n.Lock, n.standBy())
			var token, more int64
			if _, err := fmt.Sscan(strings.Join(words[2:4], " "), &token, &more); err != nil {
				t.Fatal(words, err)
			}
			return token, more
		}
	},
}

const five = 5

func reserving(t *testing.T, l *Lock, standBy bool) (token, n int64) {
	t.Helper()
	e := entry(redistest.HoldID("a:1"))
	e.Reserve, e.StandBy, e.Tries = five, standBy, 1
	got := verdict(t, l, e, Granted)
	return got.Token, got.Reserved
}

// The tokens of a batch come after all that were given out before, and none is above the fencing
// clock or the time: whoever draws next, from the clock or from the time if the clock is lost, comes
// after them, also when the server's clock has gone back.
func TestTokensOfABatchAreNewAndNotAheadOfTheClock(t *testing.T) {
	for name, prepare := range batches {
		for gap, more := range map[time.Duration]int64{ // since the last token
			time.Hour: five, 6 * time.Microsecond: five, 5 * time.Microsecond: 4, 3 * time.Microsecond: 2,
			time.Microsecond: 0, 0: 0, -time.Microsecond: 0, -time.Hour: 0, // the server's clock has gone back
		} {
			t.Run(fmt.Sprintf("%s %v after the last", name, gap), func(t *testing.T) {
				site, m, rdb := mini(t)
				n := namesOf(t, "l")
				now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
				m.SetTime(now)
				draw := prepare(t, site, n, rdb)
				before := now.Add(-gap).UnixMicro()
				rdb.Set(bg, site.clock(n), before, 0)
				token, behind := draw()
				if behind != more {
					t.Errorf("%d more tokens, want %d", behind, more)
				}
				if token <= before {
					t.Errorf("token %d, and %d was given out before", token, before)
				}
				last := token + behind
				if clock, err := rdb.Get(bg, site.clock(n)).Int64(); err != nil || last > clock {
					t.Errorf("token %d is above the clock, %d (%v)", last, clock, err)
				}
				if last > max(now.UnixMicro(), before+1) {
					t.Errorf("token %d is above the time, %d", last, now.UnixMicro())
				}
				m.SetTime(now.Add(-time.Minute))
				other := NewLock(site, namesOf(t, "{l}:other")) // it has the same clock
				if next := verdict(t, other, entry(redistest.HoldID("b:1")), Granted).Token; next <= last {
					t.Errorf("token %d when the clock has gone back, after %d", next, last)
				}
			})
		}
	}
}

// Locks that one script takes share what their clock has moved by, and no token is given twice, also
// if that is less than one for each.
func TestTokensOfManyLocksOfOneClock(t *testing.T) {
	for gap, more := range map[time.Duration]int64{time.Hour: five, 30 * time.Microsecond: five, 20 * time.Microsecond: 3, 5 * time.Microsecond: 0, 2 * time.Microsecond: 0, -time.Hour: 0} {
		t.Run(fmt.Sprint(gap, " after the last"), func(t *testing.T) {
			site, m, rdb := mini(t)
			now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
			m.SetTime(now)
			before := now.Add(-gap).UnixMicro()
			const clock, locks = "rlock:clock", 5
			rdb.Set(bg, clock, before, 0)
			r := &wire.Request{Script: site.Scripts["lock/enter_many"]}
			for i := range locks {
				n := namesOf(t, fmt.Sprint("l", i))
				r.Keys = append(r.Keys, n.Lock, n.Tombstone(redistest.HoldID("a:1")), site.clock(n))
				r.Args = append(r.Args, redistest.HoldID("a:1"), 60000, five)
			}
			list, _ := site.Wire.Do(bg, 5*time.Second, r).Val.([]any)
			if len(list) != locks {
				t.Fatal(list)
			}
			last := before
			for i, item := range list {
				got, err := readEntered(wire.Answer{Val: item})
				if err != nil || got.Verdict != Granted {
					t.Fatal(got, err)
				}
				if got.Token <= last {
					t.Errorf("lock %d has the token %d, and %d was given before", i, got.Token, last)
				}
				if got.Reserved < more {
					t.Errorf("lock %d has %d more tokens, want %d", i, got.Reserved, more)
				}
				last = got.Token + got.Reserved
			}
			if drawn, err := rdb.Get(bg, clock).Int64(); err != nil || last > drawn {
				t.Errorf("token %d is above the clock, %d (%v)", last, drawn, err)
			}
			if last > max(now.UnixMicro()+locks-1, before+locks) || gap >= locks*time.Microsecond && last > now.UnixMicro() {
				t.Errorf("token %d is above the time, %d", last, now.UnixMicro())
			}
			if next := verdict(t, NewLock(site, namesOf(t, "other")), entry(redistest.HoldID("b:1")), Granted).Token; next <= last {
				t.Errorf("token %d after %d", next, last)
			}
		})
	}
}
