package main

import "syscall"

// dieWithParent keeps a worker that is stopped from outliving a program that is killed.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
