//go:build !linux

package locktest

import "syscall"

// dieWithParent has no counterpart here: a child notices the end of its parent
// by the end of its standard input.
func dieWithParent() *syscall.SysProcAttr { return nil }
