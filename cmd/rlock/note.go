package main

import (
	"context"
	"encoding/json"
	"os"
	"os/user"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/visible"
)

// A note is a text about a hold, for people: since when it is held, why, and with which token. The library shows only the
// process of a hold, while that process lives. No decision depends on a note. Its key is rlock:cli: and the hold id, after
// the prefix. If the user of Redis may not write it, there is no note.
type note struct {
	Label  string    `json:"label"`
	Host   string    `json:"host"`
	PID    int       `json:"pid,omitempty"`
	User   string    `json:"user,omitempty"`
	Reason string    `json:"reason,omitempty"`
	Token  int64     `json:"token,omitempty"`
	Since  time.Time `json:"since"`
	Hold   string    `json:"hold,omitempty"` // id of a hold without a process
}

const (
	noteKey  = "rlock:cli:"
	noteTime = time.Second // bounds each wait for a note

	longestHost   = 253 // bytes of a name in DNS
	longestReason = 200 // columns
)

func (d *deployment) newNote(label string, token int64, reason string) note {
	n := note{Label: label, PID: os.Getpid(), Reason: reason, Token: token, Since: time.Now().UTC().Truncate(time.Millisecond)}
	n.Host, _ = os.Hostname()
	if u, err := user.Current(); err == nil {
		n.User = u.Username
	}
	return n
}

// note writes the note of a lease while a command runs. forget deletes the note.
func (d *deployment) note(label string, lease *rlock.Lease, reason string) (forget func()) {
	n := d.newNote(label, lease.Token(), reason)
	quit, done := make(chan struct{}), make(chan struct{})
	lasts := d.app.leaseTime()
	go func() { // ends with forget
		defer close(done)
		ticker := time.NewTicker(lasts / 2)
		defer ticker.Stop()
		for {
			d.writeNote(lease.HoldID(), n, 2*lasts)
			select {
			case <-quit:
				d.writeNote(lease.HoldID(), n, 0)
				return
			case <-ticker.C:
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}

// writeNote writes a note for a time, or deletes it if that is 0.
func (d *deployment) writeNote(holdID string, n note, lasts time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), noteTime)
	defer cancel()
	text, _ := json.Marshal(n)
	for _, rdb := range d.rdbs {
		if lasts == 0 {
			rdb.Del(ctx, d.app.prefix+noteKey+holdID)
		} else {
			rdb.Set(ctx, d.app.prefix+noteKey+holdID, text, lasts)
		}
	}
}

// keepNote keeps a note for at least a time.
func (d *deployment) keepNote(holdID string, lasts time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), noteTime)
	defer cancel()
	for _, rdb := range d.rdbs {
		if key := d.app.prefix + noteKey + holdID; rdb.PTTL(ctx, key).Val() < lasts {
			rdb.PExpire(ctx, key, lasts)
		}
	}
}

// notes returns the notes of some holds. They are requested from the first master that answers.
func (d *deployment) notes(ctx context.Context, holdIDs []string) map[string]note {
	found := map[string]note{}
	if len(holdIDs) == 0 {
		return found
	}
	ctx, cancel := context.WithTimeout(ctx, noteTime)
	defer cancel()
	for _, rdb := range d.rdbs {
		replies, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
			for _, id := range holdIDs {
				p.Get(ctx, d.app.prefix+noteKey+id)
			}
			return nil
		})
		for i, r := range replies {
			var n note
			if text, err := r.(*redis.StringCmd).Bytes(); err == nil && json.Unmarshal(text, &n) == nil {
				found[holdIDs[i]] = n.clean()
			}
		}
		if err == nil || len(found) > 0 || redis.HasErrorPrefix(err, "NOPERM") {
			break
		}
	}
	return found
}

// clean shortens a note, which any program may have written, to the lengths of this program.
func (n note) clean() note {
	n.Label, n.Host, n.User = visible.Cut(n.Label, rlock.MaxLabelLength), visible.Cut(n.Host, longestHost), visible.Cut(n.User, rlock.MaxLabelLength)
	n.Reason = clip(n.Reason, longestReason)
	return n
}
