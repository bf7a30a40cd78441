package protocol

import (
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/wire"
)

var _ Protocol = (*Tick)(nil)

// Cron has what all ticks of a CronJob share.
type Cron struct {
	site         *Site
	runs         string  // key: a hash
	ticks        string  // key: a zset
	derivedNames derived // derived names of each tick's lock: all ticks are in one slot
	retention    time.Duration
	minInterval  time.Duration
	takesOver    bool
	process      any // string
}

// CronRuns is how many runs of a CronJob Redis keeps, in addition to runs in progress, and to runs of ticks that are
// younger than cronYoung, which processes that start late still find.
const (
	CronRuns  = 100
	cronYoung = time.Minute
)

// CronAhead is how far a tick may be ahead of the server's clock. Ticks that one process with a wrong
// clock has claimed would suppress the ticks of all others: see floor in cron/enter.
const CronAhead = time.Hour

// NewCron returns the protocol of a CronJob that keeps runs for the retention. minInterval is the least time
// between two ticks, or 0. If takesOver is true, a lost run is taken over. process is the text of the client's
// process, or empty. Locks with the same name are independent.
func NewCron(site *Site, names *Names, retention, minInterval time.Duration, takesOver bool, process string) *Cron {
	base := names.Derived("rlock:cron")
	if process == "" {
		process = "-"
	}
	process = strings.ReplaceAll(process, " ", `\u0020`) // process is JSON
	return &Cron{site, base, base + ":ticks", derived{channel: base + ":free"}, retention, minInterval, takesOver, process}
}

// At returns the protocol of one call for a tick, in ms since 1970.
func (c *Cron) At(tick int64) *Tick {
	t := &Tick{cron: c, tick: tick}
	t.own.Lock = c.lock(tick)
	t.own.derived.Store(&c.derivedNames)
	t.HashLock = newHashLock(c.site, &t.own)
	return t
}

func (c *Cron) lock(tick int64) string { return c.runs + ":" + strconv.FormatInt(tick, 10) }

// Peek requests the run of a tick.
func (c *Cron) Peek(tick int64) Request[Run] {
	return newRequest(c.site, "cron/peek", []string{c.runs, c.lock(tick)}, []any{tick}, readPeeked)
}

// Last requests the run of the latest tick. If it is in progress, Peek finds out whether a process runs it.
func (c *Cron) Last() Request[Run] {
	return newRequest(c.site, "cron/last", []string{c.ticks, c.runs}, nil, readPeeked)
}

// ClaimedTicks are the ticks from one time to another that were claimed, in ms since 1970.
type ClaimedTicks struct {
	Known bool  // Redis has any claimed tick
	Since int64 // ticks up to this time are unknown
	Ticks []int64
}

// Between requests which ticks between two times, inclusive, were claimed.
func (c *Cron) Between(from, to int64) Request[ClaimedTicks] {
	return newRequest(c.site, "cron/known", []string{c.ticks, c.runs}, []any{from, to}, readClaimed)
}

func readClaimed(a wire.Answer) (ClaimedTicks, error) {
	known, since, rest, err := a.Pair()
	if err != nil {
		return ClaimedTicks{}, err
	}
	all := ClaimedTicks{known == 1, since, make([]int64, len(rest))}
	for i, one := range rest {
		text, _ := one.(string)
		if all.Ticks[i], err = strconv.ParseInt(text, 10, 64); err != nil {
			return ClaimedTicks{}, wire.ErrReply(a.Val)
		}
	}
	return all, nil
}

// Run is the record of the run of a tick.
type Run struct {
	Known      bool
	Tick       int64 // ms since 1970, in the reply to a Peek or Last
	State      RunState
	TakenOver  bool
	Token      int64
	Start, End int64 // ms since 1970 by the server's clock; End is 0 if unknown, and the end of the lease while the run is in progress
	HoldID     string
	Process    string // text of the caller's process; "-" if anonymous
	Text       string // text of the error
}

// RunState is how far a run is.
type RunState string

// The states of a run, as Redis has them.
const (
	Claimed   RunState = "c" // the run may not have begun, and the claim may be taken back
	Running   RunState = "r" // the run has begun
	Succeeded RunState = "s"
	Broken    RunState = "b" // the caller has gone away, or the function panicked
	Errored   RunState = "f"
	Lost      RunState = "l"
)

// ReadRun parses a record that scripts/shared/cronrun.lua has written.
func ReadRun(text string) (Run, error) {
	words := strings.SplitN(text, " ", 8)
	if len(words) != 8 {
		return Run{}, fmt.Errorf("unexpected reply from Redis: %q is no run", text)
	}
	var numbers [3]int64
	for i, word := range words[2:5] {
		n, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			return Run{}, fmt.Errorf("unexpected reply from Redis: %q is no run: %w", text, err)
		}
		numbers[i] = n
	}
	return Run{
		Known: true, State: RunState(words[0]), TakenOver: words[1] != "1",
		Token: numbers[0], Start: numbers[1], End: numbers[2], HoldID: words[5], Process: words[6], Text: words[7],
	}, nil
}

func readPeeked(a wire.Answer) (Run, error) {
	known, tick, rest, err := a.Pair()
	if err != nil || known == 0 {
		return Run{}, err
	}
	run, err := runIn(a, rest)
	run.Tick = tick
	return run, err
}

// runIn returns the run in the rest of a reply.
func runIn(a wire.Answer, rest []any) (Run, error) {
	if len(rest) == 1 {
		if text, ok := rest[0].(string); ok {
			return ReadRun(text)
		}
	}
	return Run{}, wire.ErrReply(a.Val)
}

// GoesOn reports whether the record of a run has no outcome.
func (s RunState) GoesOn() bool { return s == Claimed || s == Running }

// Tick is the protocol of one call for a tick: a Lock on a separate key, whose first entry claims the
// tick permanently. It belongs to the goroutine of the call.
type Tick struct {
	HashLock
	own     Names
	cron    *Cron
	tick    int64
	claimed Run
	asked   string // hold id of the latest Enter
	phase   atomic.Int32
}

// The phases of a call for a tick.
const (
	notBegun int32 = iota // a claim can be taken back
	begun                 // the claim cannot be taken back any more
	runs                  // the function runs, and renewals report that to Redis
)

// Retention is how long after its tick a run is kept.
func (c *Cron) Retention() time.Duration { return c.retention }

// Cron returns what all ticks of the job share.
func (t *Tick) Cron() *Cron { return t.cron }

// TakesOver reports whether a lost run is taken over.
func (t *Tick) TakesOver() bool { return t.cron.takesOver }

// Claimed returns the run that a Granted Enter has begun.
func (t *Tick) Claimed() Run { return t.claimed }

// Begin records that the function is about to run. After that the claim is not taken back, no matter what ends
// the hold.
func (t *Tick) Begin() { t.phase.Store(begun) }

// NotBegun undoes a Begin, because the function does not run.
func (t *Tick) NotBegun() { t.phase.Store(notBegun) }

// Runs records, after Begin, that the function runs. After that each renewal writes this to Redis, for
// processes that request the tick.
func (t *Tick) Runs() { t.phase.Store(runs) }

// Glanced implements Polled.
func (t *Tick) Glanced() *HashLock { return &t.HashLock }

// Enter implements Protocol. It does not enter if another process has run the tick, or runs it and this call
// does not wait.
func (t *Tick) Enter(e *Acquire) Request[Entered] {
	site := t.cron.site
	t.asked = e.ID
	return newEnterRequest(site, "cron/enter",
		[]string{t.names.Lock, t.names.Tombstone(e.ID), site.clock(t.names), t.cron.runs, t.cron.ticks},
		[]any{e.ID, site.millis(e.Lease), t.tick, flag(t.cron.takesOver), t.cron.retention.Milliseconds(), CronRuns, cronYoung.Milliseconds(), CronAhead.Milliseconds(), t.cron.process, t.cron.minInterval.Milliseconds()}, t.readClaim).draw(t.names)
}

// NotClaimed is the error of an Enter that is refused for good.
type NotClaimed struct {
	Run Run    // run of the process that has claimed the tick
	Own bool   // Run is a claim of this call itself, which Redis has without a lease: it is lost
	Why string // why no process may claim the tick; set if Run is not Known, or if it is Own
}

func (e *NotClaimed) Error() string { return "the tick is not claimed: " + e.Why }

// Found reports whether another call has claimed the tick: then Run is the result for the caller.
func (e *NotClaimed) Found() bool { return e.Run.Known && !e.Own }

func (t *Tick) readClaim(a wire.Answer) (Entered, error) {
	const granted, claimed, refused = 1, 2, 3
	code, _, rest, err := a.Pair()
	switch {
	case err != nil:
	case code == granted:
		t.claimed, err = runIn(a, rest)
	case code == claimed:
		e := &NotClaimed{}
		if e.Run, err = runIn(a, rest); err == nil {
			e.Run.Tick, err = t.tick, e
			if e.Own = e.Run.HoldID == t.asked; e.Own {
				e.Why = "the lease of its claim had ended before this call got the reply, so that others may know the tick as lost"
			}
		}
	case code == refused && len(rest) == 1:
		why, _ := rest[0].(string)
		err = &NotClaimed{Why: why}
	}
	if err != nil {
		return Entered{}, err
	}
	return readEntered(a)
}

// Renew implements Protocol.
func (t *Tick) Renew(id string, lease time.Duration) Task {
	return t.cron.site.newRenewTask("cron/renew", lease,
		[]string{t.names.Lock, t.cron.runs, t.cron.ticks}, []any{id, t.cron.site.millis(lease), t.tick, cronYoung.Milliseconds(), flag(t.phase.Load() == runs)})
}

// Finish writes how the run of the hold with an id has ended, and ends the hold. If lateCopies is true, copies of
// its first request may still arrive.
func (t *Tick) Finish(id string, state RunState, text string, lateCopies bool) Task {
	site := t.cron.site
	return site.newEndTask("cron/finish",
		[]string{t.names.Lock, t.names.Tombstone(id), t.cron.runs},
		[]any{id, t.tick, string(state), text, tombstoneArg(lateCopies), t.names.Channel(), site.how()})
}

// Release implements Protocol. A run that has begun ends by Finish, unless the lease was lost.
func (t *Tick) Release(id string, n int) Task {
	if n > 0 {
		return t.HashLock.Release(id, n)
	}
	return t.Abandon(id, false)
}

// Abandon implements Protocol.
func (t *Tick) Abandon(id string, lateCopies bool) Task {
	if t.phase.Load() != notBegun {
		return t.Finish(id, Lost, "", lateCopies)
	}
	return t.cron.site.newEndTask("cron/abandon",
		[]string{t.names.Lock, t.names.Tombstone(id), t.cron.runs, t.cron.ticks},
		[]any{id, t.tick, tombstoneMillis, t.names.Channel(), t.cron.site.how()})
}
