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

// Cron is what all ticks of a CronJob have in common.
type Cron struct {
	site      *Site
	runs      string  // key: a hash
	ticks     string  // key: a zset
	names     derived // of the lock of each tick: all are in one slot
	retention time.Duration
	apart     time.Duration
	takes     bool
	process   any // string
}

// CronRuns is how many runs of a CronJob Redis keeps, in addition to runs in progress, and to runs of ticks that are
// younger than cronYoung: late processes still find those.
const (
	CronRuns  = 100
	cronYoung = time.Minute
)

// CronAhead is how far a tick may be ahead of the server's clock. Ticks that one process with a wrong
// clock has claimed would suppress the ticks of all others: see floor in cron/enter.
const CronAhead = time.Hour

// NewCron returns the protocol of a CronJob that keeps runs for so long. apart is the least time between
// two ticks; 0: any. takes: a lost run is taken over. process is the text of the client's, or empty.
// Locks of its name have nothing to do with it.
func NewCron(site *Site, names *Names, retention, apart time.Duration, takes bool, process string) *Cron {
	base := names.Derived("rlock:cron")
	if process == "" {
		process = "-"
	}
	process = strings.ReplaceAll(process, " ", `\u0020`) // it is JSON
	return &Cron{site, base, base + ":ticks", derived{channel: base + ":free"}, retention, apart, takes, process}
}

// At is the protocol of one call for a tick, in ms since 1970.
func (c *Cron) At(tick int64) *Tick {
	t := &Tick{of: c, tick: tick}
	t.own.Lock = c.lock(tick)
	t.own.derived.Store(&c.names)
	t.HashLock = newHashLock(c.site, &t.own)
	return t
}

func (c *Cron) lock(tick int64) string { return c.runs + ":" + strconv.FormatInt(tick, 10) }

// Peek asks for the run of a tick.
func (c *Cron) Peek(tick int64) Request[Run] {
	return looking(c.site, "cron/peek", []string{c.runs, c.lock(tick)}, []any{tick}, readPeeked)
}

// Last requests the run of the latest tick. If it is in progress, Peek finds out whether a process runs it.
func (c *Cron) Last() Request[Run] {
	return looking(c.site, "cron/last", []string{c.ticks, c.runs}, nil, readPeeked)
}

// ClaimedTicks are the ticks from one time to another that were claimed, in ms since 1970.
type ClaimedTicks struct {
	Known bool  // of any tick
	Since int64 // up to this time nobody knows
	Ticks []int64
}

// Between asks which ticks between two times, and at them, were claimed.
func (c *Cron) Between(from, to int64) Request[ClaimedTicks] {
	return looking(c.site, "cron/known", []string{c.ticks, c.runs}, []any{from, to}, readClaimed)
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

// Run is what is known of the run of a tick.
type Run struct {
	Known      bool
	Tick       int64 // ms since 1970, in the reply to a Peek or Last
	State      RunState
	TakenOver  bool
	Token      int64
	Start, End int64 // ms since 1970 by the server's clock; End is 0 if not known, and the end of the lease of a run in progress
	HoldID     string
	Process    string // text of the caller's process; "-" if anonymous
	Text       string // of the error
}

// RunState is how far a run is.
type RunState string

// The states of a run, as Redis has them.
const (
	Claimed   RunState = "c" // it may not have begun, and be taken back
	Running   RunState = "r" // it has begun
	Succeeded RunState = "s"
	Broken    RunState = "b" // its caller went away, or it panicked
	Errored   RunState = "f"
	Lost      RunState = "l"
)

// ReadRun reads what scripts/shared/cronrun.lua has written.
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

// runIn is the run that is the rest of a reply.
func runIn(a wire.Answer, rest []any) (Run, error) {
	if len(rest) == 1 {
		if text, ok := rest[0].(string); ok {
			return ReadRun(text)
		}
	}
	return Run{}, wire.ErrReply(a.Val)
}

// GoesOn reports whether a run has no outcome, as far as its record says.
func (s RunState) GoesOn() bool { return s == Claimed || s == Running }

// Tick is the protocol of one call for a tick: a Lock on a key of its own, whose first entry claims the
// tick for good. It belongs to the goroutine of the call.
type Tick struct {
	HashLock
	own     Names
	of      *Cron
	tick    int64
	claimed Run
	phase   atomic.Int32
}

// The phases of a call for a tick.
const (
	notBegun int32 = iota // its claim, if there is one, can be taken back
	begun                 // it cannot
	runs                  // and Redis has it
)

// Retention is how long after its tick a run is kept.
func (c *Cron) Retention() time.Duration { return c.retention }

// Of is what all ticks of the job have in common.
func (t *Tick) Of() *Cron { return t.of }

// TakesOver reports whether a lost run is taken over.
func (t *Tick) TakesOver() bool { return t.of.takes }

// Claimed is the run that an Enter which was Granted has begun.
func (t *Tick) Claimed() Run { return t.claimed }

// Begin says that the function is about to run. From then on the claim is not taken back, whatever ends
// the hold.
func (t *Tick) Begin() { t.phase.Store(begun) }

// NotBegun takes back a Begin whose function does not run.
func (t *Tick) NotBegun() { t.phase.Store(notBegun) }

// Runs notes, after Begin, that the function surely runs: from then on each renewal reports that to
// those who ask for the tick.
func (t *Tick) Runs() { t.phase.Store(runs) }

// Glanced implements Polled.
func (t *Tick) Glanced() *HashLock { return &t.HashLock }

// Enter implements Protocol. It does not enter if somebody has run, or runs and nobody is to wait.
func (t *Tick) Enter(e *Acquire) Request[Entered] {
	site := t.of.site
	return entering(site, "cron/enter",
		[]string{t.names.Lock, t.names.Tombstone(e.ID), site.clock(t.names), t.of.runs, t.of.ticks},
		[]any{e.ID, site.millis(e.Lease), t.tick, flag(t.of.takes), t.of.retention.Milliseconds(), CronRuns, cronYoung.Milliseconds(), CronAhead.Milliseconds(), t.of.process, t.of.apart.Milliseconds()}, t.readClaim).draw(t.names)
}

// NotClaimed is the error of an Enter that is refused for good.
type NotClaimed struct {
	Run Run    // of somebody who has claimed the tick
	Why string // nobody may claim it, and Run is not Known
}

func (e *NotClaimed) Error() string { return "the tick is not claimed: " + e.Why }

// Found reports whether there is a run, which is what the caller wants then.
func (e *NotClaimed) Found() bool { return e.Run.Known }

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
	return t.of.site.renewing("cron/renew", lease,
		[]string{t.names.Lock, t.of.runs, t.of.ticks}, []any{id, t.of.site.millis(lease), t.tick, cronYoung.Milliseconds(), flag(t.phase.Load() == runs)})
}

// Finish writes how the run of the hold with an id has ended, and ends the hold. With late, copies of
// its first request may come late.
func (t *Tick) Finish(id string, state RunState, text string, late bool) Task {
	site := t.of.site
	return site.leaving("cron/finish",
		[]string{t.names.Lock, t.names.Tombstone(id), t.of.runs},
		[]any{id, t.tick, string(state), text, keep(late), t.names.Channel(), site.how()})
}

// Release implements Protocol. A run that has begun ends by Finish, unless the lease was lost.
func (t *Tick) Release(id string, n int) Task {
	if n > 0 {
		return t.HashLock.Release(id, n)
	}
	return t.Abandon(id, false)
}

// Abandon implements Protocol.
func (t *Tick) Abandon(id string, late bool) Task {
	if t.phase.Load() != notBegun {
		return t.Finish(id, Lost, "", late)
	}
	return t.of.site.leaving("cron/abandon",
		[]string{t.names.Lock, t.names.Tombstone(id), t.of.runs, t.of.ticks},
		[]any{id, t.tick, tombstoneMillis, t.names.Channel(), t.of.site.how()})
}
