package redistest

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
)

const (
	sigStop = syscall.SIGSTOP
	sigCont = syscall.SIGCONT
)

// dieWithParent lets a server die with a test binary that is killed or times
// out and so never runs its cleanups.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// stopped reports whether SIGSTOP has taken effect, which kill(2) does not wait
// for: a server on another core may answer one more command.
func stopped(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return true // gone, so it answers nothing either
	}
	// "pid (name) state ...", and the name may hold anything but a newline.
	_, rest, _ := bytes.Cut(stat[bytes.LastIndexByte(stat, ')'):], []byte(" "))
	return len(rest) > 0 && (rest[0] == 'T' || rest[0] == 't' || rest[0] == 'Z' || rest[0] == 'X')
}
