//go:build unix && !linux

package main

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// lacks is what rlock cannot do on this platform.
var lacks = []string{
	"nothing but the guard ends a command whose rlock was killed: if both are killed, it runs on",
	"a process that has left the group of the command is not ended with the lock, such as the command of a rlock in it that was killed",
}

// sharedClock counts while a Mac sleeps; on other systems it may not.
const sharedClock = unix.CLOCK_MONOTONIC

func dieWithParent(*syscall.SysProcAttr) {}

func adoptOrphans() {}

// relative is a process that has left the group of a command. Only Linux finds such processes.
type relative struct{ pid, parent int }

func (relative) signal(syscall.Signal) {}
func (relative) lives() bool           { return false }

func outside(int, int, int) []relative  { return nil }
func under(string, int, int) []relative { return nil }

func hasChildren() bool { return true }
