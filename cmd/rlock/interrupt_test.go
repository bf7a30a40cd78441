//go:build unix

package main

import (
	"os/exec"
	"syscall"
	"testing"
)

// A signal that comes when the lock is held and the command is not attached yet is the command's.
func TestSignalBeforeTheCommandIsItsOwn(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("sleep", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	i := &interrupts{cancel: func(error) {}}
	i.got(syscall.SIGTERM)
	i.attach(&child{pid: cmd.Process.Pid})
	_ = cmd.Wait()
	if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); !ws.Signaled() || ws.Signal() != syscall.SIGTERM {
		t.Error(cmd.ProcessState)
	}
}
