//go:build unix && !linux

package main

import "syscall"

// lacks is what rlock cannot do on this platform.
var lacks = []string{
	"nothing but the guard ends a command whose rlock was killed: if both are killed, it runs on",
}

func dieWithParent(*syscall.SysProcAttr) {}

func adoptOrphans() {}
