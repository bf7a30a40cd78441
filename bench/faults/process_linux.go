package main

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
)

// dieWithParent ends a child that is stopped, too, when this process is killed.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// stopped reports whether SIGSTOP has taken effect. kill(2) does not wait for that.
func stopped(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	// "pid (name) state ...": a name may have anything but a newline.
	_, state, _ := bytes.Cut(stat[bytes.LastIndexByte(stat, ')'):], []byte(" "))
	return bytes.HasPrefix(state, []byte("T"))
}
