package rlockui

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/visible"
)

const (
	mostEvents      = 50               // of a lock
	keptFree        = 10 * time.Minute // how long a lock is kept after it was released
	rateOver        = 5 * time.Minute  // over which hand-overs are counted
	mostHands       = 300              // hand-overs that are counted there
	unwatched       = 30 * time.Second // a longer pause between two polls makes a gap in the timelines
	longestSearched = 10_000           // bytes of a name that are searched
	longestName     = 300              // bytes that are shown of a name
	longestHold     = 100              // bytes that are shown of a hold id
	longestError    = 300
)

// book is what the polls have shown. The mutex of the UI guards it.
type book struct {
	most   int
	readAt time.Time     // when the latest poll that succeeded has ended
	tried  time.Time     // when the latest poll has ended
	took   time.Duration // of the latest poll that succeeded or took too long
	rest   time.Duration // least pause after the latest poll
	err    error         // of the latest poll; nil if it succeeded
	failed time.Time

	truncated bool
	held      int
	hands     int
	lost      int
	clientsOf int64 // losses of the clients of the UI
	entries   map[string]*entry
	sorted    []*entry // by name
	nodes     []nodeState
	people    people
}

func newBook(most int) *book {
	return &book{most: most, entries: map[string]*entry{}, people: newPeople()}
}

// entry is a lock.
type entry struct {
	id     string // names the lock in addresses and requests
	name   string
	typ    string
	folded string // name as it is shown, in lower case, for searches and the order

	mode    rlock.Mode
	holders []rlock.Holder
	token   int64
	waiters int
	votes   int
	seen    time.Time     // when the state was received
	rest    time.Duration // of the lease, at that time; below 0 if it does not end
	longest time.Duration // longest rest that was seen of this hold
	renewed bool          // the rest has grown since the hold was first seen
	overdue bool          // a renewal was expected, and has not come

	since   time.Time // when the hold began, or was first seen
	isExact bool      // since is the time of the token

	events []event
	hands  []time.Time // recent hand-overs
	passed int         // all hand-overs
	lost   int
}

// event is a line of a timeline.
type event struct {
	at   time.Time
	kind string
	text string
}

func (e *entry) free() bool { return len(e.holders) == 0 }

// ends returns when the lease ends; zero if it does not end.
func (e *entry) ends() time.Time {
	if e.rest < 0 || e.free() {
		return time.Time{}
	}
	return e.seen.Add(e.rest)
}

// keyOf returns what names a lock: nothing that others wrote comes into an address. Types that share their keys are one
// lock: a FairLock looks like a Lock until somebody waits for it.
func keyOf(f *found) string {
	kind, sub := cmp.Or(families[f.Type], f.Type), ""
	if f.Type == "CronJob" && len(f.State.Holders) > 0 {
		sub = f.State.Holders[0].HoldID // each run is a lock of its own
	}
	sum := sha256.Sum256([]byte(kind + "\x00" + sub + "\x00" + f.Name))
	return hex.EncodeToString(sum[:10])
}

// due returns when the next poll may begin.
func (b *book) due(interval time.Duration) time.Time {
	return b.tried.Add(max(interval-b.took, b.rest))
}

// isFresh reports whether a viewer who comes gets the latest reading. Otherwise the viewer waits for the next one, which
// may take longestPoll if it is under way.
func (b *book) isFresh(now time.Time, interval time.Duration, polls bool) bool {
	until := b.due(interval)
	if polls {
		until = until.Add(longestPoll)
	}
	return !b.tried.IsZero() && now.Before(until)
}

// enter adds a reading.
func (b *book) enter(r *reading) {
	b.tried, b.nodes, b.clientsOf = r.ended, r.nodes, r.losses
	switch usual := b.took; r.err {
	case nil:
		// One slow poll among quick ones, or the first, may be due to a machine that is busy for a moment.
		b.took = r.took()
		b.rest = max(restFactor*min(usual, b.took), b.took)
	case errTooLong:
		b.took = r.took()
		b.rest = restFactor * b.took
	default:
		// Most of its time Redis did not answer. Nine times that would leave the pages old long after the outage.
		b.rest = max(restFactor*usual, r.took())
	}
	if r.err != nil {
		if b.err == nil {
			b.failed = r.ended
		}
		b.err = r.err
		return
	}
	gap := !b.readAt.IsZero() && r.began.Sub(b.readAt) > max(unwatched, 2*restFactor*b.took)
	b.err, b.truncated, b.held = nil, r.truncated, len(r.locks)
	present := make(map[string]bool, len(r.locks))
	for i := range r.locks {
		f := &r.locks[i]
		id := keyOf(f)
		present[id] = true
		e := b.entries[id]
		if e == nil {
			e = &entry{id: id, name: f.Name, typ: f.Type, folded: strings.ToLower(visible.Cut(f.Name, longestSearched))}
			b.entries[id] = e
		}
		if gap && !e.seen.IsZero() {
			e.add(event{b.readAt, "gap", "nobody was watching until " + r.began.UTC().Format("15:04:05 MST")})
		}
		b.update(e, f, gap)
	}
	for id, e := range b.entries {
		switch {
		case present[id] || e.free():
		case r.truncated:
			delete(b.entries, id) // it may be held: not all were read
		default:
			b.released(e, r.ended, gap)
		}
	}
	b.prune(r.ended)
	b.sort()
	b.readAt = r.ended
	b.people.enter(r, b)
}

// update changes an entry to the state that was found.
func (b *book) update(e *entry, f *found, gap bool) {
	s := &f.State
	first := e.seen.IsZero()
	same := !e.free() && s.Mode == e.mode && sameHold(e.holders, s.Holders)
	switch {
	case same && s.Token != 0 && e.token != 0 && s.Token != e.token:
		b.pass(e, f.at)
		e.add(event{f.at, "passed", "handed over inside its client, token " + fmt.Sprint(s.Token)})
		e.begin(f, first)
	case same:
		if s.TTL > e.ends().Sub(f.at)+time.Second {
			e.renewed = true
		}
	default:
		if !e.free() {
			b.ending(e, f.at, gap)
			if e.mode == rlock.ModeExclusive && s.Mode == rlock.ModeExclusive && !gap {
				b.pass(e, f.at)
			}
		}
		e.begin(f, first)
		e.add(event{f.at, "held", describe(s)})
	}
	if len(e.holders) != len(s.Holders) && same {
		e.add(event{f.at, "shared", describe(s)})
	}
	if !same || f.Type != "Lock" {
		e.typ = f.Type // otherwise the hold is still of the type that was recognized before
	}
	e.mode, e.holders, e.token, e.waiters, e.votes = s.Mode, s.Holders, s.Token, s.Waiters, f.votes
	e.seen, e.rest, e.longest = f.at, s.TTL, max(e.longest, s.TTL)
	overdue := e.renewed && s.TTL >= 0 && s.TTL < e.longest/2
	if overdue && !e.overdue {
		e.add(event{f.at, "overdue", "its lease was not renewed in time: " + s.TTL.Round(time.Second).String() + " left"})
	}
	e.overdue = overdue
}

// sameHold reports whether a lock has the holder that it had, or is shared by readers as before.
func sameHold(before, now []rlock.Holder) bool {
	if len(before) == 0 || len(now) == 0 {
		return false
	}
	return before[0].HoldID == now[0].HoldID || before[0].Shared && now[0].Shared
}

// begin begins a hold.
func (e *entry) begin(f *found, first bool) {
	e.longest, e.renewed, e.overdue = 0, false, false
	e.since, e.isExact = f.at, false
	// A token of the fencing clock is the time of the grant, in microseconds, unless that clock had to run ahead.
	granted := time.UnixMicro(f.State.Token)
	if age := f.at.Sub(granted); f.State.Token != 0 && age > -time.Second && age < 10*365*24*time.Hour {
		if first || age < time.Hour {
			e.since, e.isExact = granted, true
		}
	}
}

// pass counts a hand-over.
func (b *book) pass(e *entry, at time.Time) {
	b.hands++
	e.passed++
	if len(e.hands) == mostHands {
		e.hands = slices.Delete(e.hands, 0, mostHands/10)
	}
	e.hands = append(e.hands, at)
}

// perMinute returns the rate of hand-overs.
func (e *entry) perMinute(now time.Time) float64 {
	n := 0
	for _, at := range e.hands {
		if now.Sub(at) < rateOver {
			n++
		}
	}
	return float64(n) / rateOver.Minutes()
}

// ending adds how a hold ended: the poll has seen only that it is over.
func (b *book) ending(e *entry, now time.Time, gap bool) {
	ends := e.ends()
	switch {
	case gap || ends.IsZero():
		e.add(event{now, "ended", "the hold has ended"})
	case now.Before(ends):
		e.add(event{now, "released", "released by " + holderText(e.holders)})
	case e.rest < e.longest/2:
		// A holder that renews has more of its lease left.
		b.lost++
		e.lost++
		e.add(event{ends, "lost", "the lease of " + holderText(e.holders) + " has run out"})
	default:
		e.add(event{now, "ended", "the hold has ended: the polls are too rare to see how"})
	}
}

func (b *book) released(e *entry, now time.Time, gap bool) {
	b.ending(e, now, gap)
	e.holders, e.mode, e.token, e.waiters, e.votes, e.overdue = nil, rlock.ModeFree, 0, 0, 0, false
	e.seen, e.since, e.isExact = now, now, false
}

// add adds an event, and drops the oldest if there are many.
func (e *entry) add(v event) {
	if len(e.events) == mostEvents {
		e.events = slices.Delete(e.events, 0, 1)
	}
	e.events = append(e.events, v)
}

// prune forgets locks that have been free for a while, and more if there are many.
func (b *book) prune(now time.Time) {
	var free []*entry
	for id, e := range b.entries {
		switch {
		case !e.free():
		case now.Sub(e.seen) > keptFree:
			delete(b.entries, id)
		default:
			free = append(free, e)
		}
	}
	if len(free) <= b.most {
		return
	}
	slices.SortFunc(free, func(x, y *entry) int { return x.seen.Compare(y.seen) })
	for _, e := range free[:len(free)-b.most] {
		delete(b.entries, e.id)
	}
}

func (b *book) sort() {
	b.sorted = b.sorted[:0]
	for _, e := range b.entries {
		b.sorted = append(b.sorted, e)
	}
	slices.SortFunc(b.sorted, func(x, y *entry) int {
		return cmp.Or(strings.Compare(x.folded, y.folded), strings.Compare(x.typ, y.typ), strings.Compare(x.id, y.id))
	})
}

// who returns the name of a holder.
func who(h *rlock.Holder) string {
	if text := h.Process.String(); text != "" {
		return visible.Text(text)
	}
	return visible.Cut(h.HoldID, longestHold)
}

func holderText(all []rlock.Holder) string {
	switch len(all) {
	case 0:
		return "nobody"
	case 1:
		return who(&all[0])
	}
	return fmt.Sprintf("%s and %d more", who(&all[0]), len(all)-1)
}

func describe(s *rlock.State) string {
	text := "held by " + holderText(s.Holders)
	if s.Mode == rlock.ModeShared {
		text = "shared by " + holderText(s.Holders)
	}
	if s.Token != 0 {
		text += fmt.Sprintf(", token %d", s.Token)
	}
	return text
}
