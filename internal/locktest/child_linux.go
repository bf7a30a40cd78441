package locktest

import (
	"syscall"
)

// dieWithParent lets a child, a stopped one too, die with a test binary that is
// killed and so never runs its cleanups.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
