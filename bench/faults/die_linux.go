package main

import "syscall"

// dieWithParent ends a child that is stopped, too, when this process is killed.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
