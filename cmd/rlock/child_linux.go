package main

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// lacks is what rlock cannot do on this platform.
var lacks []string

// sharedClock counts while the machine sleeps.
const sharedClock = unix.CLOCK_BOOTTIME

// dieWithParent makes the kernel kill the command when this process dies, even without the guard.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// adoptOrphans makes this process the parent of processes whose parent, below this one, has ended.
func adoptOrphans() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }
