package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

func newTop(a *app) *cobra.Command {
	var (
		every time.Duration
		once  bool
	)
	cmd := &cobra.Command{
		Use: "top [PATTERN]", Short: "Show the locks that are held, live",
		Long: "Shows the locks that are held, and how often each has changed hands or was lost since it is looked at. It looks every two\n" +
			"seconds, so it misses holds that are shorter. Keys: q ends it, a sorts by age, w by waiters, n by name.",
		Args: counted(cobra.MaximumNArgs(1)),
		RunE: func(_ *cobra.Command, args []string) error {
			if every < 100*time.Millisecond {
				return usage("--interval %v: at least 0.1 s", every)
			}
			return a.connected("", func(ctx context.Context, d *deployment) error {
				v := &topView{d: d, pattern: strings.Join(args, ""), locks: map[string]*shownLock{}}
				if once || a.json {
					if err := v.poll(ctx); err != nil {
						return cause(ctx, err)
					}
					if a.json {
						for _, h := range v.all {
							printJSON(a.stdout, h)
						}
					} else {
						v.draw(a.stdout, a.width(), 1<<16, time.Now())
					}
					return nil
				}
				if !paints(a.stdout.file) {
					return usage("top needs a terminal that can be painted; --once prints a table")
				}
				return v.live(ctx, a.stdout, every)
			})
		},
	}
	every = 2 * time.Second
	cmd.Flags().Var((*seconds)(&every), "interval", "between two looks")
	cmd.Flags().BoolVar(&once, "once", false, "print a table, and end")
	return cmd
}

// A topView is the state of rlock top: the held locks, and what has changed since its start.
type topView struct {
	d       *deployment
	pattern string
	order   byte // key of the current order
	err     error
	all     []*holding
	locks   map[string]*shownLock
	hands   int // hand-overs of all locks
	losses  int
}

// shownLock has the state of a lock in the latest poll, and its changes since the start of top.
type shownLock struct {
	holdID  string
	ends    time.Time // end of the lease in the latest poll
	current bool
	hands   int
	losses  int
}

// poll reads the state from Redis.
func (v *topView) poll(ctx context.Context) error {
	sent := time.Now()
	all, err := v.d.list(ctx, v.pattern)
	if v.err = err; err != nil {
		return err
	}
	v.all = all
	v.compare(sent, time.Now())
	return nil
}

// compare counts the changes since the previous poll. The reply shows a moment between the two times.
func (v *topView) compare(sent, now time.Time) {
	for _, s := range v.locks {
		s.current = false
	}
	for _, h := range v.all {
		key := h.Type + " " + h.Name
		s := v.locks[key]
		if s == nil {
			s = &shownLock{}
			v.locks[key] = s
		}
		id := ""
		if len(h.Holders) > 0 {
			id = h.Holders[0].HoldID
		}
		if s.holdID != "" && id != s.holdID && h.Mode != "shared" {
			s.hands++
			v.hands++
			v.ended(s, now)
		}
		s.holdID, s.current = id, true
		s.ends = sent.Add(time.Duration(h.LeftMS) * time.Millisecond)
	}
	for _, s := range v.locks {
		if !s.current && s.holdID != "" {
			v.ended(s, now)
			s.holdID = ""
		}
	}
}

// ended counts the end of a hold as a loss if its lease has run out without an unlock.
func (v *topView) ended(s *shownLock, now time.Time) {
	if !now.Before(s.ends) {
		s.losses++
		v.losses++
	}
}

func (v *topView) sort() {
	slices.SortStableFunc(v.all, func(a, b *holding) int {
		switch v.order {
		case 'a':
			return oldest(a).Compare(oldest(b))
		case 'w':
			return b.Waiters - a.Waiters
		}
		return strings.Compare(a.Name, b.Name)
	})
}

// oldest returns since when a lock is held; locks without a known time come last.
func oldest(h *holding) time.Time {
	since := time.Now()
	for _, by := range h.Holders {
		if !by.Since.IsZero() && by.Since.Before(since) {
			since = by.Since
		}
	}
	return since
}

// draw writes at most so many lines. The changes of each lock are shown where there is room to the right of the 80 columns.
func (v *topView) draw(w io.Writer, width, lines int, now time.Time) {
	v.sort()
	waiters := 0
	for _, h := range v.all {
		waiters += h.Waiters
	}
	line(w, "%s", clip(fmt.Sprintf("rlock top  %s  %d held  %d waiting  %d hand-overs  %d lost", now.Format("15:04:05"), len(v.all), waiters, v.hands, v.losses), width))
	if v.err != nil {
		line(w, "%s", clip("no answer: "+plain(v.err), min(width, 80)))
	}
	var rows bytes.Buffer
	table(&rows, v.all, min(width, 80), now)
	for i, row := range strings.Split(strings.TrimSuffix(rows.String(), "\n"), "\n") {
		if i+2 >= lines {
			line(w, "and %d more", len(v.all)-i+1)
			return
		}
		if width >= 91 {
			row += v.changes(i, row)
		}
		line(w, "%s", row)
	}
}

// changes returns the hand-overs and losses of a row.
func (v *topView) changes(row int, text string) string {
	pad := strings.Repeat(" ", max(1, 80-columnsOf(text)))
	if row == 0 {
		return pad + "HANDS LOST"
	}
	h := v.all[row-1]
	s := v.locks[h.Type+" "+h.Name]
	if s == nil {
		return ""
	}
	return pad + fmt.Sprintf("%-5d %d", s.hands, s.losses)
}

// live shows the view on a terminal until the user ends it.
func (v *topView) live(ctx context.Context, out *output, every time.Duration) error {
	keys := make(chan byte, 16)
	if in := int(os.Stdin.Fd()); term.IsTerminal(in) {
		before, err := term.MakeRaw(in)
		if err != nil {
			return err
		}
		defer term.Restore(in, before)
		go func() { // as long as the process
			for one := make([]byte, 1); ; {
				if n, err := os.Stdin.Read(one); n == 0 || err != nil {
					return
				}
				keys <- one[0]
			}
		}()
	}
	// The alternate screen, without a cursor; what was there before comes back.
	fmt.Fprint(out, "\x1b[?1049h\x1b[?25l")
	defer fmt.Fprint(out, "\x1b[?25h\x1b[?1049l")
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		_ = v.poll(ctx) // an outage is shown
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if v.paint(out); out.failed() != nil {
			return nil
		}
		for waits := true; waits; {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-tick.C:
				waits = false
			case key := <-keys:
				switch key {
				case 'q', 3: // Ctrl-C, which a raw terminal does not turn into a signal
					return nil
				case 'a', 'w', 'n':
					v.order = key
					v.paint(out)
				}
			}
		}
	}
}

// paint repaints the screen in one piece: the terminal shows it when it is complete.
func (v *topView) paint(out *output) {
	width, height, err := term.GetSize(int(out.file.Fd()))
	if err != nil {
		width, height = 80, 24
	}
	var text bytes.Buffer
	v.draw(&text, width, height-1, time.Now())
	var b strings.Builder
	b.WriteString("\x1b[?2026h\x1b[H")
	for line := range strings.Lines(text.String()) {
		b.WriteString(clip(strings.TrimSuffix(line, "\n"), width) + "\x1b[K\r\n")
	}
	b.WriteString("\x1b[J\x1b[?2026l")
	fmt.Fprint(out, b.String())
}
