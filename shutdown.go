package rlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-rlock/rlock/internal/protocol"
)

// Shutdown ends the client in good order. From then on no lock is granted, waiters return, watches end, and
// all leases and their contexts end with ErrClosed, which asks the holders to leave. The locks stay theirs,
// renewed, until they call Unlock. Shutdown returns nil when all have, and Redis has confirmed every
// release (for a RedLock a quorum, if the other nodes are known not to answer). If ctx ends first, what
// is still held runs out with its lease; the error names some, and matches ctx.Err(). Holders must not wait
// for Shutdown. Details: https://go-rlock.github.io/rlock/latest/using-a-lock/#shutting-down
func (c *Client) Shutdown(ctx context.Context) error {
	if !c.made() {
		return fmt.Errorf("rlock: %w", errNoClient)
	}
	if ctx == nil {
		return fmt.Errorf("rlock: %w", errNoContext)
	}
	c.once.Do(func() { close(c.closing) })
	c.watchdog.Drain()
	err := c.released(ctx)
	c.wire.Stop()
	left := len(c.watchdog.Close())
	holds := c.watchdog.all()

	// Wait for goroutines that end immediately in any case, so that nothing of the client
	// runs any more, but not for goroutines that hang in go-redis.
	c.lines.Close()
	moment, cancel := context.WithTimeout(context.Background(), protocol.GiveUpGrace)
	defer cancel()
	_ = c.hub.Close(moment)
	_ = c.wire.Wait(moment)
	if err != nil {
		_ = c.running.Wait(moment)
		return fmt.Errorf("rlock: shutdown was not finished: %s: %w", unreleased(holds, left), err)
	}
	ctx, cancel = context.WithTimeout(ctx, c.cfg.unlockTimeout)
	defer cancel()
	if err := c.running.Wait(ctx); err != nil {
		return fmt.Errorf("rlock: shutdown was not finished: all is released, but the Observer or Logger has not returned: %w", err)
	}
	return nil
}

// released waits until nothing is held, no call is under way, and no clean-up is
// left to be done.
func (c *Client) released(ctx context.Context) error {
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.wire.Context(), cancel)()
	for {
		// A call that is under way may leave a hold or a clean-up when it ends. So
		// everything is released only if nothing is left after the last call.
		err := c.watchdog.WaitIdle(waiting)
		if err == nil {
			err = c.calls.Wait(waiting)
		}
		switch {
		case err != nil && ctx.Err() == nil:
			return errStopped
		case err != nil:
			return err
		case c.watchdog.Idle():
			return nil
		}
	}
}

var errStopped = errors.New("an earlier shutdown ran out of time")

// unreleasedNames is how many locks an error of Shutdown names.
const unreleasedNames = 5

// unreleased describes what Shutdown had no time for: the number of tasks, and the holds among them.
func unreleased(holds []*hold, tasks int) string {
	var names []string
	for _, h := range holds {
		names = append(names, fmt.Sprintf("%.100q", h.core.name()))
	}
	var what []string
	count := len(names)
	if count > 0 {
		slices.Sort(names)
		if count > unreleasedNames {
			names = append(names[:unreleasedNames], "...")
		}
		what = append(what, fmt.Sprintf("still held, until their leases run out: %d (%s)", count, strings.Join(names, ", ")))
	}
	if n := tasks - count; n > 0 { // smaller if a hold has ended or begun meanwhile
		what = append(what, fmt.Sprintf("releases that Redis has not confirmed: %d", n))
	}
	if len(what) == 0 {
		return "a call is still under way"
	}
	return strings.Join(what, "; ")
}

// Close is [Client.Shutdown] with a deadline of 3 s ([WithUnlockTimeout]): it fails if something is still
// held then. It does not close the go-redis client; do that after it.
func (c *Client) Close() error {
	if !c.made() {
		return fmt.Errorf("rlock: %w", errNoClient)
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.cfg.unlockTimeout)
	defer cancel()
	return c.Shutdown(ctx)
}
