//go:build !linux

package main

import "syscall"

func dieWithParent() *syscall.SysProcAttr { return nil }

// stopped takes the signal's word for it.
func stopped(int) bool { return true }
