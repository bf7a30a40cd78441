package sqltest

import "syscall"

// dieWithParent lets a server die with a test binary that is killed.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
