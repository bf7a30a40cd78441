package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

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
				if a.json {
					for _, h := range all {
						printJSON(a.stdout, h)
					}
					return nil
				}
				table(a.stdout, all, time.Now())
				return nil
			})
		},
	}
}

// list finds all that is held, by name. Of several masters it asks each: the votes of a RedLock are one lock.
func (d *deployment) list(ctx context.Context, pattern string) ([]*holding, error) {
	var all []*holding
	seen := map[string]bool{}
	for _, c := range d.clients {
		for f, err := range c.Locks(ctx, pattern) {
			if err != nil {
				return nil, err
			}
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
	d.addAllNotes(ctx, all)
	slices.SortFunc(all, func(a, b *holding) int { return strings.Compare(a.Name+"\x00"+a.Type, b.Name+"\x00"+b.Type) })
	return all, nil
}

// addAllNotes adds the notes of many locks, a few hundred at a time.
func (d *deployment) addAllNotes(ctx context.Context, all []*holding) {
	for part := range slices.Chunk(all, 200) {
		joined := &holding{}
		for _, h := range part {
			joined.Holders = append(joined.Holders, h.Holders...)
		}
		joined.Token = -1 // not of one lock
		d.addNotes(ctx, joined)
		at := 0
		for _, h := range part {
			h.Holders = joined.Holders[at : at+len(h.Holders) : at+len(h.Holders)]
			at += len(h.Holders)
		}
	}
}

// columns of the tables: 80 in all.
var columns = []struct {
	title string
	width int
	value func(h *holding, now time.Time) string
}{
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

// who are the holders in short.
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

// age is how long the oldest holder has it.
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

// short is a duration of at most five columns.
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

func table(w io.Writer, all []*holding, now time.Time) {
	row := func(value func(i int) string) {
		var b strings.Builder
		for i, c := range columns {
			text := clip(value(i), c.width-1)
			if i > 0 && b.Len() > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(text + strings.Repeat(" ", c.width-1-utf8.RuneCountInString(text)))
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
	row(func(i int) string { return columns[i].title })
	for _, h := range all {
		row(func(i int) string { return columns[i].value(h, now) })
	}
}
