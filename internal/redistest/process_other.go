//go:build !unix

package redistest

import "syscall"

// These systems cannot stop a process: sending either is an error, which fails
// the test that pauses a server.
const (
	sigStop = syscall.Signal(0x13)
	sigCont = syscall.Signal(0x12)
)

func dieWithParent() *syscall.SysProcAttr { return nil }

func stopped(int) bool { return true }
