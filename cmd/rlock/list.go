package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/go-rlock/rlock"
)

func newList(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "ls [PATTERN]", Short: "List the locks that are held",
		Long: "Lists what is held, of all types, whose name matches a pattern as in the command SCAN of Redis: by default all. It reads\n" +
			"all keys of the database. What does not fit in 80 columns is cut; --json has all.",
		Args: counted(cobra.MaximumNArgs(1)),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.connected("", func(ctx context.Context, d *deployment) error {
				all, err := d.list(ctx, strings.Join(args, ""))
				if err != nil {
					return cause(ctx, err)
				}
				if where := d.links.addresses(); where != "" {
					a.say("no answer from %s: a RedLock is shown by the others", where)
				}
				if a.json {
					for _, h := range all {
						printJSON(a.stdout, h)
					}
					return nil
				}
				table(a.stdout, all, a.width(), time.Now())
				return nil
			})
		},
	}
}

// list returns all that is held, sorted by name, with the notes of the holders.
func (d *deployment) list(ctx context.Context, pattern string) ([]*holding, error) {
	all, err := d.held(ctx, pattern)
	d.addAllNotes(ctx, all)
	return all, err
}

// order returns the key for sorting by name.
func (h *holding) order() string { return h.Name + "\x00" + h.Type }

// held returns all that is held, sorted by name. With several masters it sends a request to each: the votes of a RedLock
// count as one lock, and any quorum of masters has a vote of each lock.
func (d *deployment) held(ctx context.Context, pattern string) ([]*holding, error) {
	var all []*holding
	found := make([][]rlock.FoundLock, len(d.clients))
	failed := make([]error, len(d.clients))
	var requests sync.WaitGroup
	for i, c := range d.clients {
		requests.Go(func() {
			for f, err := range c.Locks(ctx, pattern) {
				if err != nil {
					failed[i] = err
					return
				}
				found[i] = append(found[i], f)
			}
		})
	}
	requests.Wait()
	answers := 0
	for _, err := range failed {
		if err == nil {
			answers++
		}
	}
	if answers < d.app.needed(len(d.clients)) {
		return nil, cmp.Or(failed...)
	}
	seen := map[string]bool{}
	for _, locks := range found {
		for _, f := range locks {
			key := f.Type + " " + f.Name
			if len(f.State.Holders) == 1 {
				key += f.State.Holders[0].HoldID
			}
			if seen[key] {
				continue // SCAN may find a key twice
			}
			seen[key] = true
			h := &holding{Name: f.Name, Type: f.Type, Mode: string(f.State.Mode), LeftMS: f.State.TTL.Milliseconds(), Token: f.State.Token, Waiters: f.State.Waiters}
			for _, by := range f.State.Holders {
				h.Holders = append(h.Holders, newHolder(by.HoldID, by.Process, by.Shared, by.Count))
			}
			all = append(all, h)
		}
	}
	slices.SortFunc(all, func(a, b *holding) int { return strings.Compare(a.order(), b.order()) })
	return all, nil
}

// addAllNotes adds the notes of many locks, a few hundred at a time.
func (d *deployment) addAllNotes(ctx context.Context, all []*holding) {
	for part := range slices.Chunk(all, 200) {
		joined := &holding{}
		for _, h := range part {
			joined.Holders = append(joined.Holders, h.Holders...)
		}
		joined.Token = -1 // tokens of several locks cannot be joined
		d.addNotes(ctx, joined)
		at := 0
		for _, h := range part {
			h.Holders = joined.Holders[at : at+len(h.Holders) : at+len(h.Holders)]
			at += len(h.Holders)
		}
	}
}

// A column of a table.
type column struct {
	title string
	width int // includes a blank
	cell  func(h *holding, now time.Time) string
}

// columns fit in 80 columns of a terminal.
var columns = []column{
	{"NAME", 23, func(h *holding, _ time.Time) string { return h.Name }},
	{"TYPE", 10, func(h *holding, _ time.Time) string { return shortType(h) }},
	{"HOLDER", 25, func(h *holding, _ time.Time) string { return h.who() }},
	{"AGE", 6, func(h *holding, now time.Time) string { return h.age(now) }},
	{"LEASE", 6, func(h *holding, _ time.Time) string {
		if h.LeftMS <= 0 {
			return "-"
		}
		return short(time.Duration(h.LeftMS) * time.Millisecond)
	}},
	{"WAIT", 5, func(h *holding, _ time.Time) string { return fmt.Sprint(h.Waiters) }},
}

func shortType(h *holding) string {
	name := strings.NewReplacer("ReadWriteLock", "RW", "PermitSemaphore", "Permits", "DoubleBarrier", "Double").Replace(h.Type)
	if h.Mode == string(rlock.ModeShared) {
		name += " read"
	}
	return name
}

// who returns the holders in short.
func (h *holding) who() string {
	if len(h.Holders) == 0 {
		return "-"
	}
	by := h.Holders[0]
	text := by.who()
	if by.Host != "" && by.PID != 0 {
		text += fmt.Sprintf(":%d", by.PID)
	}
	if more := len(h.Holders) - 1; more > 0 {
		text = clip(text, 20) + fmt.Sprintf(" +%d", more)
	}
	return text
}

// age returns how long the oldest holder has had the lock.
func (h *holding) age(now time.Time) string {
	var oldest time.Time
	for _, by := range h.Holders {
		if !by.Since.IsZero() && (oldest.IsZero() || by.Since.Before(oldest)) {
			oldest = by.Since
		}
	}
	if oldest.IsZero() {
		return "-"
	}
	return short(now.Sub(oldest))
}

// short returns a duration in at most five columns.
func short(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0fs", d.Seconds())
	case d < 2*time.Hour:
		return fmt.Sprintf("%.0fm", d.Minutes())
	case d < 48*time.Hour:
		return fmt.Sprintf("%.0fh", d.Hours())
	}
	return fmt.Sprintf("%.0fd", d.Hours()/24)
}

// fitting returns the columns that a terminal has room for: always the name and the holder.
func fitting(width int) []column {
	shown := slices.Clone(columns)
	all := func() (n int) {
		for _, c := range shown {
			n += c.width
		}
		return n
	}
	for _, title := range []string{"TYPE", "AGE", "WAIT", "LEASE"} {
		if all() > width {
			shown = slices.DeleteFunc(shown, func(c column) bool { return c.title == title })
		}
	}
	if all() > width {
		shown[0].width = max(width*2/5, 4)
		shown[1].width = max(width-shown[0].width, 4)
	}
	return shown
}

func table(w io.Writer, all []*holding, width int, now time.Time) {
	shown := fitting(width)
	row := func(value func(c column) string) {
		var b strings.Builder
		for i, c := range shown {
			text := clip(value(c), c.width-1)
			if i > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(text + strings.Repeat(" ", c.width-1-columnsOf(text)))
		}
		line(w, "%s", strings.TrimRight(b.String(), " "))
	}
	row(func(c column) string { return c.title })
	for _, h := range all {
		row(func(c column) string { return c.cell(h, now) })
	}
}
