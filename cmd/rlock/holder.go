package main

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/go-rlock/rlock"
)

// under runs a command while a lease lasts, and returns its exit status. When it returns, all processes of the command's
// group have ended; on Linux also the processes that have left the group, unless t.leave is set. Only processes that cannot
// be ended may live on, which a message reports. The error is why the command was not started, or the loss of the lease. In
// each case the caller unlocks the lease; only then can another owner get the lock.
//
// The deadline of the lease comes before Redis can give the lock away. Renewals move it, each third of the lease. Without a
// renewal, the group gets SIGTERM at the deadline less the grace and a margin, and SIGKILL at the deadline less the margin.
// A guard process does the same a little later if this process is stopped or killed.
func (a *app) under(d *deployment, name string, lease *rlock.Lease, t *runTask, in *interrupts) (code int, err error) {
	h := &hold{name: name, lease: lease, command: t, lasts: a.leaseTime(), margin: min(time.Second, a.leaseTime()/20)}
	forget := d.note(cmp.Or(a.label, t.label()), lease, "")
	defer forget()
	t.hold = lease.HoldID()
	if h.child, err = start(t, func(lostFD int) []string { return environment(name, lease, lostFD) }, h.margin, lease.Deadline()); err != nil {
		return 0, &failure{code: exitInternal, text: plain(err)}
	}
	in.attach(h.child)
	defer in.detach()
	cause := h.wait()
	if h.hasSurvivors {
		a.say("%s: processes of the command are left, which cannot be ended", name)
	}
	if guarded := h.child.close(); guarded && cause == nil {
		cause = errors.New("this process was stopped, and its guard ended the command")
	}
	if cause != nil {
		return 0, lostWhile(name, plain(cause))
	}
	a.fatal = h.child.interrupted()
	return h.child.code, nil
}

// hold is a command under a lease.
type hold struct {
	name         string
	lease        *rlock.Lease
	command      *runTask
	child        *child
	lasts        time.Duration // how long the lease lasts after each renewal
	hasSurvivors bool          // some processes do not die, or may not be ended
	margin       time.Duration // from SIGKILL to the deadline: for a timer that is late, and the death of the group
}

// wait returns when the command's group has ended, with the cause of the loss if the lease was lost before.
func (h *hold) wait() (cause error) {
	tick := time.NewTicker(h.lasts / 10)
	defer tick.Stop()
	due := time.NewTimer(h.untilEnd())
	defer due.Stop()
	for {
		select {
		case <-h.child.exited:
			if !h.command.leave && h.child.alive() { // otherwise processes of the command would outlive the lock
				h.end(time.Now().Add(h.command.grace))
			}
			return nil
		case <-h.child.stopped:
			h.child.suspend()
			h.child.keep(h.lease.Deadline())
		case <-h.child.continued:
			h.child.resume()
		case <-h.lease.Done():
			h.child.lost()
			latest := time.Now()
			if err := h.lease.Err(); errors.Is(err, rlock.ErrRemoved) || errors.Is(err, rlock.ErrTakenOver) {
				latest = latest.Add(h.command.grace) // the lock was freed by hand, or Redis has lost it
			}
			h.end(latest)
			return h.lease.Err()
		case <-tick.C:
			h.child.keep(h.lease.Deadline())
			due.Reset(h.untilEnd())
		case <-due.C:
			left := h.untilEnd()
			if left > 0 { // a renewal has moved the deadline
				due.Reset(left)
				continue
			}
			h.child.lost()
			deadline := h.lease.Deadline()
			unconfirmed := h.lasts - time.Until(deadline)
			h.end(deadline.Add(-h.margin))
			return fmt.Errorf("its lease was not renewed for %s", span(unconfirmed))
		}
	}
}

// untilEnd returns the time until the command has to be ended, without a renewal.
func (h *hold) untilEnd() time.Duration {
	return time.Until(h.lease.Deadline()) - h.command.grace - h.margin
}

// end ends the group: SIGTERM, and SIGKILL at the latest time.
func (h *hold) end(latest time.Time) {
	h.child.ending()
	h.child.terminate()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	gaveUp := latest.Add(10 * time.Second) // a process in an uninterruptible wait of the kernel
	for h.child.alive() && time.Now().Before(gaveUp) {
		if !h.child.groupAlive() || !time.Now().Before(latest) {
			poll.Reset(20 * time.Millisecond) // each poll reads all processes
		}
		if !time.Now().Before(latest) {
			h.child.kill()
		} else if !h.child.groupAlive() {
			h.child.askOrphans()
		}
		<-poll.C
	}
	select {
	case <-h.child.exited:
	case <-time.After(time.Until(gaveUp)):
	}
	h.hasSurvivors = h.child.alive()
}
