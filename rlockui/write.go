package rlockui

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"time"

	"github.com/go-rlock/rlock"
)

const (
	longestRequest = 4096
	writeTime      = 15 * time.Second
)

// opened is a lock, or a side of one, that can be freed.
type opened interface {
	ForceUnlockIf(ctx context.Context, holdID string) (bool, error)
	RequestRelease(ctx context.Context) (asked bool, err error)
}

// openers make the lock of each type whose holds can be ended.
var openers = map[string]func(all []*rlock.Client, name string, shared bool) (opened, error){
	"Lock":         func(c []*rlock.Client, name string, _ bool) (opened, error) { return c[0].NewLock(name), nil },
	"FairLock":     func(c []*rlock.Client, name string, _ bool) (opened, error) { return c[0].NewFairLock(name), nil },
	"FencedLock":   func(c []*rlock.Client, name string, _ bool) (opened, error) { return c[0].NewFencedLock(name), nil },
	"PriorityLock": func(c []*rlock.Client, name string, _ bool) (opened, error) { return c[0].NewPriorityLock(name), nil },
	"Election":     func(c []*rlock.Client, name string, _ bool) (opened, error) { return c[0].NewElection(name), nil },
	"Once": func(c []*rlock.Client, name string, _ bool) (opened, error) {
		return c[0].NewOnce(name, rlock.MinKeep), nil
	},
	"DoubleBarrier": func(c []*rlock.Client, name string, _ bool) (opened, error) {
		return c[0].NewDoubleBarrier(name, 1), nil
	},
	"ReadWriteLock": func(c []*rlock.Client, name string, shared bool) (opened, error) {
		if l := c[0].NewReadWriteLock(name); shared {
			return l.Reader, nil
		} else {
			return l.Writer, nil
		}
	},
	"FairReadWriteLock": func(c []*rlock.Client, name string, shared bool) (opened, error) {
		if l := c[0].NewFairReadWriteLock(name); shared {
			return l.Reader, nil
		} else {
			return l.Writer, nil
		}
	},
	"RedLock": func(c []*rlock.Client, name string, _ bool) (opened, error) { return rlock.NewRedLock(name, c) },
}

// canEnd returns nil if the holds of a type can be ended.
func (u *UI) canEnd(typ string) error {
	switch {
	case openers[typ] == nil:
		return errors.New("holds of a " + typ + " cannot be ended: they end with their lease")
	case typ == "RedLock" && len(u.clients) == 1:
		return errors.New("holds of a RedLock can be ended with all its nodes only: see Options.Nodes")
	}
	return nil
}

// refOf names a hold in a request: an id that others wrote may not be text.
func refOf(holdID string) string {
	sum := sha256.Sum256([]byte(holdID))
	return hex.EncodeToString(sum[:10])
}

// writeRequest is the body of a write.
type writeRequest struct {
	Action string `json:"action"`
	Lock   string `json:"lock"` // id in a row
	Hold   string `json:"hold"` // ref of a holder, for a ForceUnlock
}

// target returns what a request means, as the latest poll has shown it.
func (u *UI) target(q *writeRequest) (w Write, shared bool, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	e := u.book.entries[q.Lock]
	if e == nil || e.free() {
		return w, false, errors.New("nobody holds the lock any more")
	}
	if err := u.canEnd(e.typ); err != nil {
		return w, false, err
	}
	w = Write{Action: q.Action, Lock: e.name, Type: e.typ}
	if q.Action == RequestRelease {
		return w, e.holders[0].Shared, nil
	}
	for i := range e.holders {
		if refOf(e.holders[i].HoldID) == q.Hold {
			w.HoldID = e.holders[i].HoldID
			return w, e.holders[i].Shared, nil
		}
	}
	return w, false, errors.New("the hold is over")
}

// serveWrite does a write, if it comes from the pages and is allowed.
func (u *UI) serveWrite(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", "POST")
		refuse(w, http.StatusMethodNotAllowed, "use POST")
		return
	}
	if err := u.cross.Check(r); err != nil {
		refuse(w, http.StatusForbidden, "the request comes from another site")
		return
	}
	if u.opts.Allow == nil {
		refuse(w, http.StatusForbidden, "these pages are read-only")
		return
	}
	// A form of another site cannot have this type.
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		refuse(w, http.StatusUnsupportedMediaType, "the body is not application/json")
		return
	}
	var q writeRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, longestRequest)).Decode(&q); err != nil || q.Action != ForceUnlock && q.Action != RequestRelease {
		refuse(w, http.StatusBadRequest, "the body is not a write")
		return
	}
	if u.life.Err() != nil {
		refuse(w, http.StatusServiceUnavailable, errClosed.Error())
		return
	}
	what, shared, err := u.target(&q)
	if err != nil {
		refuse(w, http.StatusConflict, err.Error())
		return
	}
	if !u.opts.Allow(r, what) {
		refuse(w, http.StatusForbidden, "you may not do this")
		return
	}
	done, err := u.write(r.Context(), &what, shared)
	if err != nil {
		refuse(w, http.StatusBadGateway, errorText(err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(struct {
		Done bool `json:"done"`
	}{done})
}

// write does a write, and reports whether there was a hold to do it to.
func (u *UI) write(ctx context.Context, what *Write, shared bool) (done bool, err error) {
	l, err := openers[what.Type](u.clients, what.Lock, shared)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	if what.Action == RequestRelease {
		return l.RequestRelease(ctx)
	}
	return l.ForceUnlockIf(ctx, what.HoldID)
}
