package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-rlock/rlock"
)

// A holding is the state of a lock, in the form that commands print.
type holding struct {
	Name    string   `json:"name"`
	Type    string   `json:"type,omitempty"`
	Mode    string   `json:"mode"` // free, exclusive, shared, or permits
	LeftMS  int64    `json:"lease_left_ms,omitempty"`
	Token   int64    `json:"token,omitempty"`
	Permits int      `json:"permits,omitempty"`   // permits of a semaphore
	Free    int      `json:"available,omitempty"` // free permits of a semaphore
	Waiters int      `json:"waiters"`
	Holders []holder `json:"holders"`
	LastRun *lastRun `json:"last_run,omitempty"` // latest run of a job of rlock once
}

type lastRun struct {
	Tick  time.Time `json:"tick"`
	By    holder    `json:"by"`
	Token int64     `json:"token,omitempty"`
	Start time.Time `json:"start,omitzero"`
	End   time.Time `json:"end,omitzero"` // zero if it runs, or if the end is not known
	Error string    `json:"error,omitempty"`
}

type holder struct {
	HoldID  string    `json:"hold_id"`
	Label   string    `json:"label,omitempty"`
	Host    string    `json:"host,omitempty"`
	PID     int       `json:"pid,omitempty"`
	User    string    `json:"user,omitempty"`
	Reason  string    `json:"reason,omitempty"`
	Since   time.Time `json:"since,omitzero"`
	Shared  bool      `json:"shared,omitempty"`
	Entries int       `json:"entries,omitempty"`
	Permits int       `json:"permits,omitempty"`
}

// who returns the holder in short: billing@web-3.
func (h holder) who() string {
	switch {
	case h.Label != "" && h.Host != "":
		return h.Label + "@" + h.Host
	case h.Label != "":
		return h.Label
	}
	return "hold " + h.HoldID
}

func (h holder) String() string {
	text := h.who()
	if h.PID != 0 {
		text += fmt.Sprintf(" (pid %d)", h.PID)
	}
	if h.Reason != "" {
		text += fmt.Sprintf(" for %q", h.Reason)
	}
	return text
}

// holding returns a state with the notes of its holders.
func (d *deployment) holding(ctx context.Context, name, kind string, s rlock.State) *holding {
	h := &holding{Name: name, Type: kind, Mode: string(s.Mode), Token: s.Token, Waiters: s.Waiters, Holders: []holder{}}
	if s.TTL > 0 {
		h.LeftMS = s.TTL.Milliseconds()
	}
	for _, by := range s.Holders {
		h.Holders = append(h.Holders, newHolder(by.HoldID, by.Process, by.Shared, by.Count))
	}
	d.addNotes(ctx, h)
	return h
}

func newHolder(id string, p rlock.Process, shared bool, entries int) holder {
	h := holder{HoldID: id, Label: p.Label, Host: p.Host, PID: p.PID, Shared: shared, Entries: entries}
	if h.Label == "" {
		h.Label = p.Program
	}
	return h
}

func (d *deployment) addNotes(ctx context.Context, h *holding) {
	var ids []string
	for _, by := range h.Holders {
		ids = append(ids, by.HoldID)
	}
	for id, n := range d.notes(ctx, ids) {
		at := slices.IndexFunc(h.Holders, func(by holder) bool { return by.HoldID == id })
		by := &h.Holders[at]
		by.Since, by.Reason, by.User = n.Since, n.Reason, n.User
		if by.Host == "" || n.Hold != "" { // no process has the hold, no matter which one took it
			by.Label, by.Host, by.PID = n.Label, n.Host, n.PID
		}
		if h.Token == 0 && len(h.Holders) == 1 {
			h.Token = n.Token
		}
	}
}

// String returns the holders in one line.
func (h *holding) String() string {
	if len(h.Holders) == 0 {
		return h.Name + " is free"
	}
	var names []string
	for _, by := range h.Holders[:min(3, len(h.Holders))] {
		names = append(names, by.String())
	}
	if more := len(h.Holders) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	text := h.Name + " is held by " + strings.Join(names, ", ")
	if h.Mode == string(rlock.ModeShared) {
		text = h.Name + " is read by " + strings.Join(names, ", ")
	}
	if h.LeftMS > 0 {
		text += ", " + span(time.Duration(h.LeftMS)*time.Millisecond) + " of its lease left"
	}
	if h.Token != 0 {
		text += fmt.Sprintf(", token %d", h.Token)
	}
	if h.Waiters > 0 {
		text += fmt.Sprintf(", %d waiting", h.Waiters)
	}
	return text
}

// notAcquired returns an error with the holders that keep a command out. It returns other errors unchanged.
func (a *app) notAcquired(ctx context.Context, d *deployment, name string, lock rlock.Inspector, err error) error {
	if context.Cause(ctx) != nil {
		return context.Cause(ctx) // a signal has ended the wait
	}
	var acquireErr *rlock.Error
	if !errors.Is(err, rlock.ErrNotAcquired) || errors.Is(err, rlock.ErrUnreachable) || !errors.As(err, &acquireErr) || acquireErr.HolderID == "" {
		return err
	}
	kept := &holding{Name: name, Mode: string(rlock.ModeExclusive), LeftMS: acquireErr.Left.Milliseconds(),
		Holders: []holder{newHolder(acquireErr.HolderID, acquireErr.Process, false, 0)}}
	switch s, failed := lock.State(ctx); {
	case errors.Is(failed, rlock.ErrUnreachable): // the wait was too short for another request before its end
		return failed
	case failed == nil && s.Locked():
		kept = d.holding(ctx, name, "", s)
	default:
		d.addNotes(ctx, kept)
	}
	return &failure{code: a.busyCode(), text: kept.String(), busy: true, more: kept}
}

// span returns a duration for people.
func span(d time.Duration) string {
	switch {
	case d < 0:
		return "0 s"
	case d < 9950*time.Millisecond:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d < 2*time.Hour:
		return fmt.Sprintf("%.0f min", d.Minutes())
	case d < 48*time.Hour:
		return fmt.Sprintf("%.0f h", d.Hours())
	}
	return fmt.Sprintf("%.0f d", d.Hours()/24)
}
