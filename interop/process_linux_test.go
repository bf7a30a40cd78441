package interop

import "syscall"

// dieWithParent lets a process die with a test binary that is killed or times out.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
