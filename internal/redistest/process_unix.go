//go:build unix && !linux

package redistest

import "syscall"

const (
	sigStop = syscall.SIGSTOP
	sigCont = syscall.SIGCONT
)

// dieWithParent has no counterpart here: a killed test binary leaves its
// servers behind.
func dieWithParent() *syscall.SysProcAttr { return nil }

// stopped takes the signal's word for it.
func stopped(int) bool { return true }
