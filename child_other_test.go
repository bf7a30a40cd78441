//go:build !linux

package rlock_test

import "syscall"

// dieWithParent has no counterpart here: a child notices the end of its parent
// by the end of its standard input.
func dieWithParent() *syscall.SysProcAttr { return nil }
