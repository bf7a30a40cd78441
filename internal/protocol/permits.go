package protocol

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/go-rlock/rlock/internal/wire"
)

var (
	_ Protocol = (*Permits)(nil)
	_ Crowded  = (*Permits)(nil)
	_ Crowded  = (*Semaphore)(nil)
)

// Permits is the protocol of taking n permits of a PermitSemaphore at a time. The permits are
// shared with Redisson's RPermitExpirableSemaphore.
type Permits struct {
	*semaphore
	n int
}

// semaphore is what all Permits of one PermitSemaphore share.
type semaphore struct {
	located
	stateKeys keys // see scripts/shared/permits.lua
	channel   string
	initial   int                                // permits to set if no number is set, or 0
	boxed     [4]any                             // the keys, the mark and the channel
	entered   func(wire.Answer) (Entered, error) // see permitReader
}

// PermitCounter makes the requests about the number of permits, which concern no hold.
type PermitCounter interface {
	// Of returns the protocol of taking n permits at a time.
	Of(n int) Protocol
	// Change changes the number of permits. It reports whether the number was changed.
	Change(op Op, how PermitChange, n int) Request[bool]
	// Delete deletes the semaphore. It reports whether the semaphore existed.
	Delete(op Op) Request[bool]
	// Undo undoes an AddPermits.
	Undo(op Op) Task
	// Count requests the number of free permits. If holds is true, it also requests the holds of the other permits.
	Count(holds bool) Request[Counted]
}

// PermitChange is a change of the number of permits: the end of the name of its script.
type PermitChange string

const (
	TrySetPermits PermitChange = "/try_set" // to n, unless it was set before
	AddPermits    PermitChange = "/add"     // by n, which may be negative
	SetPermits    PermitChange = "/set"     // to n, no matter what it was
)

// Counted is the state of a PermitSemaphore.
type Counted struct {
	Set     bool // the number of permits was set
	Free    int  // free permits; may be negative
	Held    []HeldPermits
	Waiters int // waiters in Redis; -1 if Redis does not keep them
}

// HeldPermits are the permits of one hold. Each permit of Redisson is a separate hold.
type HeldPermits struct {
	HoldID string // see PermitHoldID
	N      int
	Rest   time.Duration // rest of the lease; -1 if it does not end
}

// NewPermits returns the protocol of taking one permit at a time. initial is the number of permits to set if no
// number is set, or 0.
func NewPermits(site *Site, names *Names, initial int) *Permits {
	names.keep()
	held, channel := names.held(), prefixed("redisson_sc", names.Lock)
	return &Permits{n: 1, semaphore: &semaphore{
		located:   located{site, names},
		stateKeys: []string{names.Lock, held},
		channel:   channel,
		initial:   initial,
		boxed:     [4]any{names.Lock, held, names.all(), channel},
		entered:   permitReader(site.Client),
	}}
}

// Of implements PermitCounter.
func (p *Permits) Of(n int) Protocol {
	if n == p.n {
		return p
	}
	return &Permits{p.semaphore, n}
}

// args returns the arguments that all scripts share, and more.
func (s *semaphore) args(more ...any) []any {
	return append([]any{s.channel, s.site.how()}, more...)
}

// A permit's id begins with the first nineBytes of its client's id and the number of its
// hold, in 40 bits. The number of the permit in the hold follows, so the id is as long as Java's ids.
const (
	nineBytes = 9
	baseBytes = nineBytes + 5
	permitLen = baseBytes + 2

	// MostPermits is how many permits a hold can have: each is a member of a set.
	MostPermits = 10_000
)

// permitBase returns the beginning of the ids of a hold's permits. It is unique to the hold.
func permitBase(id string) string {
	var base [baseBytes + 3]byte
	client := clientOf(id)
	number, _ := strconv.ParseInt(id[min(len(client)+1, len(id)):], 10, 64)
	binary.BigEndian.PutUint64(base[nineBytes:], uint64(number)<<24)
	copyClient(base[:nineBytes], client)
	return string(base[:baseBytes])
}

// copyClient copies the beginning of a client's id, which is a UUID.
func copyClient(to []byte, client string) {
	var digits [2 * nineBytes]byte
	n := 0
	for i := 0; i < len(client) && n < len(digits); i++ {
		if client[i] != '-' {
			digits[n] = client[i]
			n++
		}
	}
	if _, err := hex.Decode(to, digits[:n]); err != nil || n < len(digits) {
		sum := sha256.Sum256([]byte(client))
		copy(to, sum[:])
	}
}

// PermitHoldID returns the id of the hold that has a permit, if the given client made the permit. Otherwise it
// returns the hexadecimal form that Redisson shows: the 16 bytes do not have the whole id of a client.
func PermitHoldID(permit, client string) string {
	var own [nineBytes]byte
	copyClient(own[:], client)
	raw, err := hex.DecodeString(permit)
	if err != nil || len(raw) != permitLen || string(raw[:nineBytes]) != string(own[:]) {
		return permit
	}
	var number uint64
	for _, b := range raw[nineBytes:baseBytes] {
		number = number<<8 | uint64(b)
	}
	return client + ":" + strconv.FormatUint(number, 10)
}

// Enter implements Protocol.
func (p *Permits) Enter(e *Acquire) Request[Entered] {
	args := []any{permitBase(e.ID), p.n, p.site.millis(e.Lease)}
	var keys []string
	others := "" // channel of other waiters
	if e.ReportsLeft {
		others = p.channel + taken
	}
	switch {
	case p.initial > 0:
		args, keys = append(args, others, p.initial), []string{p.names.setting()}
	case e.ReportsLeft:
		args = append(args, others)
	}
	q := newEnterRequest(p.site, "permits/enter", keys, args, p.entered)
	q.r.Put(4, p.boxed[0], p.boxed[1], p.names.Tombstone(e.ID), p.boxed[2], p.boxed[3], p.site.how())
	return q
}

// permitReader returns the function that reads the replies of permits/enter to a client.
func permitReader(client string) func(wire.Answer) (Entered, error) {
	return func(a wire.Answer) (Entered, error) {
		e, err := readPermits(a)
		if len(e.Holder) == permitLen {
			e.Holder = PermitHoldID(hex.EncodeToString([]byte(e.Holder)), client)
		}
		return e, err
	}
}

// readPermits reads the reply of an enter script for permits: see readEntered. The reply of a
// grant has the free permits and the rest in place of tokens. The reply of a refusal ends
// with the number of all permits, and the number of free permits.
func readPermits(a wire.Answer) (Entered, error) {
	const counted = 6
	e, err := readEntered(a)
	switch list, _ := a.Val.([]any); {
	case err != nil:
	case e.Verdict == Granted:
		return Entered{Verdict: Granted, Supply: Supply{Free: e.Token}, Rest: millis(e.Reserved)}, nil
	case e.Verdict == Busy && len(list) == counted:
		e.Round, e.HasRound = 0, false
		e.All, _ = list[counted-2].(int64)
		e.Free, e.Counted = list[counted-1].(int64)
	}
	return e, err
}

// Release implements Protocol. It returns all permits of the hold together.
func (p *Permits) Release(id string, n int) Task {
	return p.site.newReleaseTask("permits/release", n, p.stateKeys, p.args(permitBase(id), p.n))
}

// Abandon implements Protocol. It always leaves a tombstone.
func (p *Permits) Abandon(id string, _ bool) Task {
	return p.site.newEndTask("permits/abandon", p.stateKeys.and(p.names.Tombstone(id)),
		p.args(permitBase(id), p.n, tombstoneMillis))
}

// Renew implements Protocol.
func (p *Permits) Renew(id string, lease time.Duration) Task {
	return p.site.newRenewTask("permits/renew", lease, p.stateKeys,
		p.args(permitBase(id), p.n, lease.Milliseconds()))
}

// ForceUnlock implements Protocol.
func (p *Permits) ForceUnlock(holdID string) Request[bool] {
	base := ""
	if raw, err := hex.DecodeString(holdID); err == nil && len(raw) == permitLen {
		base = string(raw)
	} else if holdID != "" {
		base = permitBase(holdID)
	}
	return p.site.newForceRequest("permits/force_unlock", holdID, p.stateKeys, p.args(base))
}

// Inspect implements Protocol.
func (p *Permits) Inspect() Request[State] { return counts(p.inspect(true), stateOf) }

// Probe implements Protocol.
func (p *Permits) Probe(id string) Request[Probed] {
	return probing(p.inspect(true), hex.EncodeToString([]byte(permitBase(id)+"\x00\x00")))
}

// probing converts a Count into a Probe for the hold with an id.
func probing(q *scriptRequest[Counted], id string) Request[Probed] {
	return counts(q, func(c Counted) Probed {
		p := Probed{Held: len(c.Held) > 0}
		if i := slices.IndexFunc(c.Held, func(h HeldPermits) bool { return h.HoldID == id }); i >= 0 {
			p.Entries = c.Held[i].N
		}
		return p
	})
}

// stateOf converts the state of a PermitSemaphore into the State of a lock.
func stateOf(c Counted) State {
	s := State{Waiters: c.Waiters}
	for _, h := range c.Held {
		s.Holders = append(s.Holders, Holder{h.HoldID, h.N, true})
		if s.TTL >= 0 {
			s.TTL = max(s.TTL, h.Rest)
		}
		if h.Rest < 0 {
			s.TTL = -1
		}
	}
	return s
}

// counts returns a Count whose outcome is converted.
func counts[T any](q *scriptRequest[Counted], convert func(Counted) T) Request[T] {
	return &scriptRequest[T]{on: q.on, r: q.r, read: func(a wire.Answer) (T, error) {
		c, err := q.read(a)
		if err != nil {
			var none T
			return none, err
		}
		return convert(c), nil
	}}
}

// Count implements PermitCounter.
func (p *Permits) Count(holds bool) Request[Counted] { return p.inspect(holds) }

func (p *Permits) inspect(holds bool) *scriptRequest[Counted] {
	return newRequest(p.site, "permits/inspect", p.stateKeys, p.args(flag(holds)), readCounted)
}

func readCounted(a wire.Answer) (Counted, error) {
	set, free, list, err := a.Pair()
	if err != nil {
		return Counted{}, err
	}
	c := Counted{Set: set == 1, Free: int(free), Waiters: -1}
	var now int64
	if len(list)%2 == 1 {
		now, _ = list[0].(int64)
	}
	if now == 0 {
		return Counted{}, wire.ErrReply(a.Val)
	}
	at := map[string]int{}
	for list = list[1:]; len(list) > 0; list = list[2:] {
		id, ok1 := list[0].(string)
		text, ok2 := list[1].(string)
		end, err := strconv.ParseFloat(text, 64)
		if !ok1 || !ok2 || err != nil {
			return Counted{}, wire.ErrReply(a.Val)
		}
		rest := time.Duration(-1)
		if end != neverEnds {
			rest = time.Duration(math.Min(max(end-float64(now), 0), float64(longestRest.Milliseconds()))) * time.Millisecond
		}
		base := id[:min(baseBytes, len(id))]
		i, known := at[base]
		if !known {
			i = len(c.Held)
			at[base] = i
			c.Held = append(c.Held, HeldPermits{HoldID: hex.EncodeToString([]byte(id)), Rest: rest})
		}
		c.Held[i].N++
		// The number of the first permit is 0. Its id names the hold.
		c.Held[i].HoldID = min(c.Held[i].HoldID, hex.EncodeToString([]byte(id)))
	}
	return c, nil
}

// neverEnds is Redisson's value for the end of a permit that does not expire.
const neverEnds = 922337203685477

// Change implements PermitCounter.
func (s *semaphore) Change(op Op, how PermitChange, n int) Request[bool] {
	return newRequest(s.site, "permits"+string(how), s.stateKeys.and(s.names.record(op.Page.ID), s.names.all(), s.names.setting()), s.counts(op.Number, n), readSet)
}

// Delete implements PermitCounter.
func (s *semaphore) Delete(op Op) Request[bool] {
	return newRequest(s.site, "permits/delete", s.stateKeys.and(s.names.record(op.Page.ID), s.names.all()), s.counts(op.Number), readBool)
}

// Undo implements PermitCounter.
func (p *Permits) Undo(op Op) Task {
	return p.site.newTask("permits/undo", p.stateKeys.and(p.names.record(op.Page.ID), p.names.setting(), p.names.all()), p.counts(op.Number))
}

// counts returns the arguments of a script that changes the number of permits.
func (s *semaphore) counts(more ...any) []any {
	return append([]any{s.channel, s.site.howOrBoth()}, more...)
}

// setting returns the key of the record of the operation that last made or set the number of a PermitSemaphore.
func (n *Names) setting() string { return n.record("set") }

// Takes implements Taking.
func (p *Permits) Takes() int { return p.n }

// View implements Protocol.
func (p *Permits) View() any { return view{"permits/inspect", p.names.Lock, p.channel} }

// Ready implements Protocol.
func (p *Permits) Ready(ctx context.Context) error { return p.site.Wire.Ready(ctx) }

// SubscribeToFreed implements Crowded.
func (p *Permits) SubscribeToFreed(notify func(), freed func(n int64)) (end func()) {
	return p.site.listenForNumbers(p.channel, notify, freed)
}

// SubscribeToTaken implements Crowded.
func (p *Permits) SubscribeToTaken(left func(n int64)) (end func()) {
	return p.site.listenForTaken(p.channel, left)
}

// Listen implements Protocol.
func (p *Permits) Listen(_ string, notify func()) (end func()) {
	return p.site.listen(p.channel, notify)
}
