package fuzz

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/handle"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/redistest"
)

// Adopt refuses a text that is no handle before anything is sent, and never repeats it in an error: it may be a secret.
func FuzzAdopt(f *testing.F) {
	for _, k := range protocol.Kinds {
		made := handle.Handle{Kind: k, HoldID: redistest.HoldID("dead:1"), Name: "a", Secret: protocol.Secret{1}}.String()
		f.Add(made)
		f.Add(made[:len(made)/2])
		f.Add(made + "\n")
	}
	f.Add("")
	f.Add("rlock2-")
	f.Fuzz(func(t *testing.T, text string) {
		c, server, err := newRefused(t)
		if err != nil {
			t.Fatal(err)
		}
		h, broken := handle.Parse(text)
		for _, opts := range [][]rlock.AcquireOption{nil, {rlock.WithLease(time.Minute), rlock.WithWait(0)}} {
			lease, err := c.Adopt(bg, text, opts...)
			sent, keys := server.take()
			if lease != nil || err == nil {
				t.Fatalf("Adopt(%q) has a lease although Redis refuses everything: %v", text, err)
			}
			if invalid := errors.Is(err, rlock.ErrInvalidArgument); broken != nil && !invalid || invalid == (sent > 0) || !typed(err) {
				t.Errorf("Adopt(%q): %v, after %d commands; Parse: %v", text, err, sent, broken)
			}
			if len(text) > 20 && strings.Contains(err.Error(), text) {
				t.Errorf("the error of Adopt repeats the handle: %v", err)
			}
			for _, key := range keys {
				if !strings.Contains(key, h.Name) {
					t.Errorf("Adopt of a hold of %q uses the key %q", h.Name, key)
				}
			}
		}
	})
}
